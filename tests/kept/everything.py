"""An entry of every kind without any default value, and a durable state without any initial value.

Their bytes, as each release wrote them, are kept beside the states that its peers left (`entries.txt`); values here
never change. Run as a program this module writes that file: `python -m tests.kept.everything > entries.txt`.
"""

from __future__ import annotations

import torch

from fedpeer.algorithms.draws import Draws
from fedpeer.gossip.mass import Mass
from fedpeer.gossip.reductions import FORMS
from fedpeer.gossip.transfers import Incoming, NumberedTransfer, Outgoing
from fedpeer.peer.state import entries
from fedpeer.peer.state.consensus_state import ConsensusState, PendingUpdate
from fedpeer.peer.state.durable_state import DurableState, GroupState, Rules
from fedpeer.peer.state.journal import entry_bytes, snapshot_bytes
from fedpeer.peer.wire.consensus_messages import Certificate, HardState, Proposal, VoterSet
from fedpeer.peer.wire.consensus_messages import CommitState as Bounds

PARCEL = NumberedTransfer(
    seq=3, round=5, exchange=1, weight=0.25, form="float32", payload=torch.tensor([1.5, -0.0, 2e-40])
)
SPARSE = NumberedTransfer(
    seq=4, round=6, exchange=0, weight=0.5, form="top-k", payload=torch.tensor([7, 9], dtype=torch.uint8)
)


def opened(shares: entries.RealShares | entries.MaskedShares | entries.NoShares) -> entries.Opened:
    return entries.Opened(
        group="all", round=5, exchange=1, to=("bob", "cas"), expect=("bob",), shares=shares, start_weight=1.5
    )


DIGEST, SIGNATURE = bytes(range(32)), bytes(range(64))
OWNER = {"peer": "ann", "federation": "00ff", "contract": "abcd"}

ENTRIES: dict[str, entries.Entry] = {
    "Started": entries.Started(generation=7),
    "Began": entries.Began(round=5),
    "Learnt": entries.LocalTrained(round=5, x_n=torch.tensor([0.5, -2.0]), s_k=torch.tensor([1, 2], dtype=torch.uint8)),
    "Opened-whole": opened(entries.RealShares(0.25, whole=True)),
    "Opened-masked": opened(entries.MaskedShares(0.25, b"key", 0.125)),
    "Opened-inactive": opened(entries.NoShares()),
    "Closed": entries.Closed(group="all", without=("bob",)),
    "Took": entries.ShareApplied(group="all", sender="bob", share=PARCEL, at_once=True),
    "Acked": entries.Acked(group="all", peer="bob", taken=3),
    "Met": entries.Met(peer="bob", incarnation=2, generation=4, nonce=99),
    "Reborn": entries.Reborn(incarnation=3),
    "Adopted": entries.Adopted(group="all", value_D=torch.tensor([1.0, 2.0, 3.0])),
    "Returned": entries.Returned(group="all", peer="bob"),
    "Revoked": entries.Revoked(peer="bob"),
    "Left": entries.Left(),
    "Stood": entries.TermChanged(group="all", term=6, voted="bob"),
    "Bound": entries.CommitStateChanged(
        group="all", roster=2, accepted=(6, 9, 2, DIGEST), applied=((5, 8, 1, DIGEST), (("ann", SIGNATURE),))
    ),
    "Stored": entries.ModelStored(group="all", digest=DIGEST, content=b"content"),
    "Studied": entries.UpdateMade(group="all", round=9, update=b"update", client=b"client"),
    "Kept": entries.ClientStateSaved(group="all", round=8, client=b"client", x_n=torch.tensor([0.25])),
    "Averaged": entries.Averaged(group="all", round=8),
    "Called": entries.VoterSetKnown(
        group="all", number=2, voters=("ann", "bob"), members=("ann", "bob", "cas"), text=b"{}"
    ),
    "Sworn": entries.VotingAllowed(group="all", lost=1),
    "VoteLost": entries.VoteLost(group="all", roster=2),
    "OthersAhead": entries.OthersAhead(group="all", members=("ann", "bob")),
}


def durable() -> DurableState:
    """Return a durable state in which nothing has its initial value."""
    reference_D = torch.tensor([9.0, 8.0, 7.0])
    holding = GroupState(
        Mass.of(torch.tensor([1.0, 2.0, 3.0]), 0.75),
        {(5, 1, "bob"): Mass.of(torch.tensor([4.0, 5.0, 6.0]), 0.125)},
        {"bob": Outgoing(4, (PARCEL, SPARSE), 0.5, reference_D)},
        {"cas": Incoming(2, 0.25, (b"digest",), (4, 1), reference_D)},
        at=(5, 1),
        expect=("bob", "cas"),
        masked_to=frozenset({"cas"}),
        nothing=frozenset({(5, 1, "dan")}),
        active=True,
        settled_D=reference_D,
        put=2.0,
        written_off=0.375,
    )
    consensus_state = ConsensusState(
        client=b"client",
        holding=Bounds(2, Proposal(6, 9, 2, DIGEST), Certificate(Proposal(5, 8, 1, DIGEST), (("ann", SIGNATURE),))),
        voter_sets={2: VoterSet(2, frozenset({"ann", "bob"}), frozenset({"ann", "bob", "cas"}))},
        hard_state=HardState(6, "bob"),
        models={DIGEST: b"content"},
        settled=8,
        pending=PendingUpdate(9, b"update", b"client"),
        voting_allowed=True,
        lost=1,
        rosters={2: b"{}"},
    )
    return DurableState(
        Rules("ann", Draws(0), FORMS["float32"]()),
        {"all": torch.tensor([0, 1, 2])},
        torch.tensor([1.0, 2.0, 3.0, 4.0]),
        torch.tensor([5.0, 6.0]),
        {"all": holding},
        fresh=False,
        round=5,
        trained=True,
        incarnation=3,
        generation=7,
        met={"bob": 2},
        met_as={"bob": (4, 99, b"")},
        left=True,
        consensus_states={"all": consensus_state},
    )


def kept_bytes() -> dict[str, bytes]:
    """Return the bytes of each entry by its name, and of the snapshot."""
    return {name: entry_bytes(each) for name, each in ENTRIES.items()} | {"snapshot": snapshot_bytes(durable(), OWNER)}


if __name__ == "__main__":
    for name, data in kept_bytes().items():
        print(name, data.hex())
