"""Construction of a node from a federation's settings and a roster, for a real process and for a simulated one.

Initial weights, groups and randomness follow from the federation file and the seed alone, so peers on different
machines and simulated peers start with the same state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
from torch import Tensor

from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.outer_steps import OuterRules
from fedpeer.config.address import PeerUrl
from fedpeer.config.capacity import SIGNATURES_MAX
from fedpeer.config.choice import Choice, parse_choice
from fedpeer.config.contract import (
    EARLIER,
    EARLIER_OF_SLICES,
    NEW_FEDERATION,
    ContractFields,
    HeldContract,
    contract_digest,
    contract_of,
    differences,
    federation_of,
    remembered,
    text_of,
)
from fedpeer.config.methods import method_of
from fedpeer.config.rules import PEERS, Combination, problems_of
from fedpeer.config.settings import FederationSettings
from fedpeer.gossip.claims import Sign, Verify
from fedpeer.gossip.reductions import NOTHING
from fedpeer.learning.assembly import Assembly
from fedpeer.learning.groups import (
    averaging_among,
    enrolled,
    gossip_of,
    hides_values,
    is_asynchronous,
    peer_plan,
    plan_for,
)
from fedpeer.learning.outer import outer_rules, takes_outer_steps
from fedpeer.learning.wire_forms import form_after, forms_of_slices, succeeding
from fedpeer.peer.consensus.means import patience_in
from fedpeer.peer.consensus.means import spec_of as mean_spec
from fedpeer.peer.consensus.roster_keys import VerifyBy
from fedpeer.peer.node.admission import WEIGHT_MAX
from fedpeer.peer.node.node import Node
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.consensus_places import consensus_places
from fedpeer.peer.state.durable_state import DurableState, Rules
from fedpeer.peer.state.entries import Entry
from fedpeer.peer.state.events import Persist
from fedpeer.peer.state.journal import SnapshotForeignError, durable_state_of, entry_bytes, entry_of, snapshot_bytes
from fedpeer.peer.state.saving import Recovered
from fedpeer.peer.state.setup import PeerGroups, Setup
from fedpeer.peer.state.voters import EVERYONE, ConsensusGroup, voter_set
from fedpeer.peer.wire.consensus_messages import VoterSet
from fedpeer.peer.wire.roster import Roster, RosterError
from fedpeer.peer.wire.signed_contract import SignedContract
from fedpeer.slicing.models import ModelGraph, SlicingError
from fedpeer.slicing.plan import Plan
from fedpeer.topology.graphs import TopologyError

#: Most voters whose majority's signatures fit into a message.
VOTERS_MAX = 2 * SIGNATURES_MAX - 1


def rules_of(federation: FederationSettings, seed: int, me: str, examples: int, contract: bytes = b"") -> Rules:
    """Return the rules of this peer's durable state; `contract`: text of that in force if there were earlier ones."""
    text = json.loads(contract or b"{}")
    earlier: Sequence[str] = text.get(EARLIER, ())
    algorithm = parse_choice(text["algorithm"]) if "algorithm" in text else federation.learning.algorithm
    sliced = method_of(algorithm).sharing == "partial models"
    own = {name: each.gossip for name, each in federation.partial_models.items() if sliced and each.gossip is not None}
    eager = federation.learning.mode == "asynchronous"
    eagers = {name: each.mode == "asynchronous" for name, each in own.items() if each.mode is not None}
    drifts = {name: each.drift or federation.gossip.drift for name, each in own.items()}
    in_rounds = [drift for name, drift in drifts.items() if not eagers.get(name, eager)]
    in_rounds += [] if eager else [federation.gossip.drift]
    by_examples = federation.learning.weights == "samples"
    return Rules(
        me=me,
        draws=Draws(seed),
        form=form_after(federation.gossip.wire, earlier),
        eager=eager,
        start_weight=float(examples) if by_examples else 1.0,
        masked=hides_values(federation),
        drifts=any(drift is not None for drift in in_rounds),
        drifted=NOTHING.name in (*earlier, *chain(*text.get(EARLIER_OF_SLICES, {}).values())),
        forms=forms_of_slices(federation, text) if sliced else {},
        eagers=eagers,
    )


def setup_of(
    assembly: Assembly,
    roster: Roster,
    me: str,
    *,
    nonce: int,
    method: Choice | None = None,
    address: str | None = None,
    seeds: Sequence[str] = (),
    held: HeldContract | None = None,
    signed: SignedContract | None = None,
) -> Setup:
    """Return the fixed setup of a process of peer `me`.

    Args:
        method: in place of the federation's own algorithm.
        address: in place of the URL in the roster.
        seeds: addresses of peers that are greeted first.
        held: the contract of the assembly's federation as it is stored.
        signed: the newest contract signed by the authority.

    Raises:
        RosterError: the roster has more voters than can sign a committed round.
    """
    federation = assembly.federation
    chosen = method or federation.learning.algorithm
    found, network = method_of(chosen), _network_digest(assembly)

    def peer_groups_of(roster: Roster) -> PeerGroups:
        peers = {entry.id: entry.models for entry in roster.entries}
        plan = plan_for(enrolled(federation, peers), assembly.network, tuple(peers), chosen, me=me)
        mine = peer_plan(plan, me).groups
        elsewhere = {group.id: group for group in plan.groups if group.id not in mine}
        if found.has_server:
            rounds = federation.gossip.model_copy(update={"every": 1})  # a server closes each of them
            everyone = ConsensusGroup(frozenset(peers), network, voter_set)
            return PeerGroups(roster, {}, {}, elsewhere, {EVERYONE: everyone}, {EVERYONE: rounds})
        gossip = {id: gossip_of(plan, federation, id) for id in mine}
        led = {id for id, own in gossip.items() if own.protocol == "coordinator"}
        consensus_by_group = {
            id: ConsensusGroup(
                frozenset(mine[id].members),
                mine[id].digest,
                partial(group_voter_set, federation, chosen, id),
                mine[id].index_D,
            )
            for id in mine
            if id in led
        }
        groups = {id: group for id, group in mine.items() if id not in led}
        averaging = {
            id: averaging_among(group.members, id, gossip[id], assembly.seed, _outbound_only(roster))
            for id, group in groups.items()
        }
        eager = frozenset(id for id in groups if is_asynchronous(plan, federation, id))
        return PeerGroups(roster, groups, averaging, elsewhere, consensus_by_group, gossip, eager)

    peer_groups = peer_groups_of(roster)
    voters = max((len(each.voter_set(roster).voters) for each in peer_groups.consensus_by_group.values()), default=0)
    if voters > VOTERS_MAX:
        many = f"the roster has {voters:,} peers that vote, and more than {VOTERS_MAX:,} cannot sign a round's result"
        raise RosterError("bad_metadata", f"{many}; split the federation, or choose an algorithm without a server")

    # The file's own settings, before a peer's network fills in what it leaves open.
    text = text_of({**contract_of(assembly.options), **(remembered(held) if held else {})}, str(chosen))
    ours = enrolled(federation, {entry.id: entry.models for entry in roster.entries})
    return Setup(
        me=me,
        federation=federation,
        contract=contract_digest(text),
        held=HeldContract(0, text, b"") if held is None else replace(held, text=text),
        signed=signed,
        unfit=lambda later, roster: _unfit(assembly, chosen, roster, me, text, later),
        peer_groups=peer_groups,
        peer_groups_of=peer_groups_of,
        address=address or roster.by_id[me].address,
        seeds=_at(seeds, roster),
        models=ModelGraph(ours.models()).implemented(me),
        nonce=nonce,
        own_weights=found.own_weights,
        has_server=found.has_server,
    )


def outer_rules_of(assembly: Assembly, roster: Roster, me: str, algorithm: Choice) -> OuterRules | None:
    """Return the outer steps of a peer among the members of a roster; None: it never takes any in this federation.

    A peer that takes none now, since its groups have no other member, may do so under a later roster, and its state of
    training has the same form.
    """
    federation = assembly.federation
    if not takes_outer_steps(federation):
        return None
    peers = {entry.id: entry.models for entry in roster.entries}
    plan = plan_for(enrolled(federation, peers), assembly.network, tuple(peers), algorithm, me=me)
    found = outer_rules(plan, federation)
    if found is None:
        return OuterRules.of_no_group(assembly.layout.n)
    return found.alone(sorted(plan.local).index(me))


def _at(urls: Sequence[str], roster: Roster) -> frozenset[str]:
    """Return the ids of the peers that the roster has at these URLs."""
    wanted = {PeerUrl.read(url) for url in urls}
    return frozenset(entry.id for entry in roster.entries if wanted and PeerUrl.read(entry.address) in wanted)


def _outbound_only(roster: Roster) -> frozenset[str]:
    """Return the ids of the peers to which nobody can connect, by the roster."""
    return frozenset(entry.id for entry in roster.entries if not PeerUrl.read(entry.address).reachable)


def _unfit(assembly: Assembly, algorithm: Choice, roster: Roster, me: str, text: bytes, later: bytes) -> str:
    """Return why a peer of this contract cannot change to a later one while it runs; "": it can."""
    before, after = json.loads(text), json.loads(later)
    fixed = [each for each in differences(before, after) if not each.changes]
    if fixed:
        return "; ".join(f"{each.words('now', 'then')}, and it {each.way()}" for each in fixed)
    if not _lists_all(succeeding(before, after), after):
        return "it does not list the wire forms of shares that are still under way"
    peers = {entry.id: entry.models for entry in roster.entries}
    try:
        new = federation_of(after, assembly.options)
        if wrong := problems_of(Combination.of(new, PEERS, roster=True)):
            return "; ".join(f"{each.dotted}: {each.text}" for each in wrong)
        plan_now, plan_then = (
            plan_for(enrolled(each, peers), assembly.network, tuple(peers), algorithm, me=me)
            for each in (assembly.options, new)
        )
        known, then = peer_plan(plan_now, me).groups, peer_plan(plan_then, me).groups
        for id, group in then.items():
            averaging_among(group.members, id, gossip_of(plan_then, new, id), assembly.seed)
    except (ValueError, SlicingError, TopologyError) as error:
        return " ".join(str(error).split())
    if moved := _moved(plan_now, plan_then):
        order = "models take the lowest free neurons in the order of their names, after those that they depend on"
        return f"the slices of {', '.join(moved)} would have other neurons: {order}"
    led_now, led_then = (
        {id for id in known.keys() & then.keys() if gossip_of(plan, settings, id).protocol == "coordinator"}
        for plan, settings in ((plan_now, assembly.options), (plan_then, new))
    )
    changed = sorted(led_now ^ led_then)  # also groups between two models, by what their models say
    return f"{', '.join(changed)} would be averaged by a coordinator, or by none any more" if changed else ""


def _moved(now: Plan, then: Plan) -> list[str]:
    """Return the ids of the groups whose scalars would be in other places of some member's parameters.

    The places that a slice leaves would keep its values, and a network would have them twice. All members are looked
    at, so that all peers with this network say the same. Digests do not tell: they name models without a part, too.
    """
    before, moved = {group.id: group.indices for group in now.groups}, []
    for group in then.groups:
        known = before.get(group.id, {})
        both = ((known[peer], index_D) for peer, index_D in group.indices.items() if peer in known)
        pairs = {(id(one), id(other)): (one, other) for one, other in both}  # peers with the same slice share an array
        if not all(np.array_equal(one, other) for one, other in pairs.values()):
            moved.append(group.id)
    return moved


def _lists_all(wanted: ContractFields, after: ContractFields) -> bool:
    """Return whether a contract lists all earlier wire encodings that it has to list."""
    own, found = (each.get(EARLIER_OF_SLICES, {}) for each in (wanted, after))
    lists = [(wanted.get(EARLIER, ()), after.get(EARLIER, ())), *((own[name], found.get(name, ())) for name in own)]
    return all({*forms} <= {*listed} for forms, listed in lists)


def group_voter_set(federation: FederationSettings, algorithm: Choice, group: str, roster: Roster) -> VoterSet:
    """Return the voter set of an averaging group by a roster."""
    if method_of(algorithm).sharing != "partial models":
        return voter_set(roster)
    models = {entry.id: entry.models for entry in roster.entries}
    graph = ModelGraph(enrolled(federation, models).models())
    return voter_set(roster, [peer for peer in models if set(group.split("+")) <= set(graph.implemented(peer))])


def _network_digest(assembly: Assembly) -> bytes:
    """Return the digest (32 bytes) of the network's tensors: names, kinds and shapes."""
    text = repr([(each.name, each.kind, tuple(each.shape)) for each in assembly.layout.tensors])
    return hashlib.blake2b(text.encode(), digest_size=32).digest()


def owner_of(setup: Setup) -> dict[str, str]:
    """Return the owner that is stored with a state on disk: another peer's or federation's state is rejected."""
    return {"peer": setup.me, "federation": setup.peer_groups.roster.federation_id.hex()}


def _owner_key(setup: Setup) -> str:
    """Return this peer's own key, in hex."""
    return setup.peer_groups.roster.by_id[setup.me].key.hex()


def disk_bytes(persist: Persist, setup: Setup) -> bytes:
    """Return the bytes for the disk: a snapshot with its owner, or an entry."""
    if isinstance(persist.content, DurableState):
        owner = owner_of(setup) | {"key": _owner_key(setup)}
        return snapshot_bytes(persist.content, owner, persist.held or replace(setup.held, before=b""))
    assert isinstance(persist.content, Entry)
    return entry_bytes(persist.content)


def _optimizers(text: bytes) -> object:
    """Return the settings that decide the form of a training state: the optimizer and the outer optimizers."""
    contract = json.loads(text)
    learning, models = contract["learning"], contract["partial_models"]
    return learning["optimizer"], learning.get("outer"), {name: each.get("outer") for name, each in models.items()}


def node_of(
    setup: Setup,
    rules: Rules,
    recovered: Recovered,
    *,
    start_n: Tensor,
    state_size: int,
    sign: Sign,
    verify: Verify,
    verify_by: VerifyBy,
    spec: AlgorithmSpec | None = None,
    patience: float = 1.0,
) -> Node:
    """Return the node of a peer with the state that it recovered from its disk.

    Args:
        start_n: (n,) initial parameters.
        sign, verify: sign with this peer's key, and verify by the keys of the newest roster.
        verify_by: verifies by the key of an entry of any roster.
        spec: spec of an algorithm with a server; None: the algorithm has no server.
        patience: part of the longest wait before it stands for coordinator of a group's averages (`capability.py`).

    Raises:
        SnapshotForeignError: the state belongs to another peer or federation, or to other data.
    """
    index: Mapping[str, Tensor] = {group.id: group.index_D for group in setup.peer_groups.groups.values()}
    regrouped, gone = False, dict[str, float]()
    if recovered.snapshot is None:
        # There may be entries without a snapshot: the first snapshot was not finished, or can no longer be read.
        durable = DurableState.blank(rules, index, start_n, state_size)
        durable.seated(*consensus_places(setup.peer_groups, b"" if spec is None else spec.client))
        for data in recovered.entries:
            durable.apply(entry_of(data, rules.start_weight))
    else:
        places, blank = consensus_places(setup.peer_groups, b"" if spec is None else spec.client)
        durable = durable_state_of(
            recovered.snapshot, recovered.entries, rules, index, owner_of(setup), places, _owner_key(setup)
        )
        seats = {id for id, each in durable.consensus_states.items() if each.voter_sets}
        regrouped = set(index) != set(durable.groups) or set(blank) != seats
        if set(index) != set(durable.groups):
            gone = durable.regrouped(index)
        durable.seated(places, blank)
        if spec is not None and len(durable.consensus_states[EVERYONE].client) != len(spec.client):
            raise SnapshotForeignError(
                f"the state of {setup.federation.learning.algorithm.name} here is longer or shorter than with these "
                f"data; put the data back with which this peer began, or {NEW_FEDERATION}"
            )
    if setup.held.before and _optimizers(setup.held.before) != _optimizers(setup.held.text):
        durable.s_k, durable.fresh = start_n.new_zeros(state_size), True
    weight_max = WEIGHT_MAX if setup.own_weights or setup.federation.learning.weights == "samples" else 1.0

    def spec_of(group: str, consensus: ConsensusGroup) -> AlgorithmSpec:
        if consensus.index_D is None:
            assert spec is not None, "an algorithm with a server has one"
            return spec
        waits = patience_in(group, setup.me, consensus.members, patience)
        return mean_spec(start_n[consensus.index_D], weight_max=weight_max, patience=waits)

    draws = np.random.Generator(
        np.random.PCG64(rules.draws.key(f"membership {setup.nonce}", setup.me, durable.generation))
    )
    return Node(
        setup,
        durable,
        blank=durable.generation == 0,
        forgot=not recovered.whole,
        renews=regrouped or not recovered.spare,
        gone=gone,
        draws=draws,
        sign=sign,
        verify=verify,
        verify_by=verify_by,
        spec_of=spec_of,
    )
