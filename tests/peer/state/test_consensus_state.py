"""The durable part of a consensus group: a journal replayed, or a snapshot read, gives the same consensus state."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.algorithms.draws import Draws
from fedpeer.gossip.reductions import FLOAT32
from fedpeer.peer.state.consensus_state import (
    VOTER_SETS_MAX,
    ConsensusState,
    commit_state_changed,
    consensus_state_fields,
    consensus_state_of,
    holding_of,
    voter_set_known,
)
from fedpeer.peer.state.durable_state import DurableState, Rules
from fedpeer.peer.state.entries import (
    ClientStateSaved,
    ConsensusEntry,
    ModelStored,
    TermChanged,
    UpdateMade,
    VoteLost,
    VotingAllowed,
)
from fedpeer.peer.state.journal import durable_state_of, entry_bytes, entry_of, snapshot_bytes
from fedpeer.peer.wire.consensus_messages import MODELS_MAX, Certificate, CommitState, HardState, Proposal, VoterSet
from fedpeer.peer.wire.tails import content_digest

GROUP = "everyone"
PEERS = frozenset({"ann", "ben", "cy"})
FIRST = VoterSet(1, PEERS, PEERS)


def consensus_state() -> ConsensusState:
    return ConsensusState(b"start", CommitState(1), {1: FIRST})


def durable() -> DurableState:
    made = DurableState.blank(Rules(me="ann", draws=Draws(0), form=FLOAT32), {}, torch.zeros(2), 0)
    made.consensus_states[GROUP] = consensus_state()
    return made


def plain(made: DurableState) -> tuple[object, ...]:
    found = made.consensus_states[GROUP]
    return (*(getattr(found, name) for name in ConsensusState.__dataclass_fields__), made.x_n.tolist())


DIGESTS = [content_digest(bytes([number])) for number in range(9)]
PROPOSALS = st.builds(Proposal, st.integers(1, 9), st.integers(1, 9), st.just(1), st.sampled_from(DIGESTS))
CERTIFICATES = st.builds(Certificate, PROPOSALS, st.just((("ann", bytes(64)), ("ben", bytes(64)))))
HOLDINGS = st.builds(CommitState, st.just(1), st.none() | PROPOSALS, st.none() | CERTIFICATES)
ENTRIES: st.SearchStrategy[ConsensusEntry] = st.one_of(
    st.builds(TermChanged, group=st.just(GROUP), term=st.integers(0, 9), voted=st.sampled_from(["", "ann"])),
    HOLDINGS.map(lambda holding: commit_state_changed(GROUP, holding)),
    st.integers(0, 8).map(lambda n: ModelStored(group=GROUP, digest=DIGESTS[n], content=bytes([n]))),
    st.integers(1, 9).map(lambda n: UpdateMade(group=GROUP, round=n, update=bytes([n]), client=bytes([n, n]))),
    st.integers(1, 9).map(
        lambda n: ClientStateSaved(group=GROUP, round=n, client=bytes([n]), x_n=torch.tensor([n, 0.5]))
    ),
    st.integers(1, 40).map(lambda n: voter_set_known(GROUP, VoterSet(n, PEERS, PEERS | {f"p{n}"}))),
    st.integers(0, 1).map(lambda n: VotingAllowed(group=GROUP, lost=n)),
    st.integers(1, 3).map(lambda n: VoteLost(group=GROUP, roster=n)),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(ENTRIES, max_size=25), st.integers(0, 25))
def test_a_disk_gives_the_same_consensus_state(entries: list[ConsensusEntry], at: int) -> None:
    """The state is the same wherever the snapshot was taken."""
    alive, kept, journal = durable(), snapshot_bytes(durable(), {}), list[bytes]()
    for number, entry in enumerate(entries):
        alive.apply(entry)
        journal.append(entry_bytes(entry))
        if number == at:
            kept, journal = snapshot_bytes(alive, {}), []
    again = durable_state_of(kept, journal, alive.rules, {}, {})
    assert plain(again) == plain(alive)


@given(HOLDINGS)
def test_a_holding_is_an_entry_and_back(holding: CommitState) -> None:
    entry = entry_of(entry_bytes(commit_state_changed(GROUP, holding)))
    assert entry == commit_state_changed(GROUP, holding)
    assert holding_of(commit_state_changed(GROUP, holding)) == holding


def test_models_are_kept_as_long_as_they_are_needed() -> None:
    accepted, applied = Proposal(1, 2, 1, DIGESTS[0]), Certificate(Proposal(1, 1, 1, DIGESTS[1]), ())
    found = consensus_state().changed(commit_state_changed(GROUP, CommitState(1, accepted, applied)))
    for number, digest in enumerate(DIGESTS):
        found = found.changed(ModelStored(group=GROUP, digest=digest, content=bytes([number])))
        assert found.models.keys() >= {*DIGESTS[: min(number + 1, 2)]}
    assert list(found.models) == [*DIGESTS[:2], *DIGESTS[-MODELS_MAX:]]
    found = found.changed(
        commit_state_changed(GROUP, CommitState(1, None, Certificate(Proposal(1, 3, 1, DIGESTS[8]), ())))
    )
    assert list(found.models) == DIGESTS[-MODELS_MAX:]


def test_a_training_waits_until_it_is_settled() -> None:
    trained = consensus_state().changed(UpdateMade(group=GROUP, round=1, update=b"u", client=b"c"))
    assert trained.client == b"start"
    assert trained.pending is not None
    kept = trained.changed(ClientStateSaved(group=GROUP, round=1, client=b"c", x_n=torch.zeros(1)))
    assert (kept.client, kept.settled, kept.pending) == (b"c", 1, None)


def test_earlier_electorates_are_forgotten_and_never_the_one_in_force() -> None:
    found = consensus_state()
    for number in range(2, 3 * VOTER_SETS_MAX):
        found = found.changed(voter_set_known(GROUP, VoterSet(number, PEERS, PEERS)))
        assert 1 in found.voter_sets
        assert number in found.voter_sets
    found = found.changed(commit_state_changed(GROUP, CommitState(3 * VOTER_SETS_MAX - 1)))
    found = found.changed(voter_set_known(GROUP, VoterSet(3 * VOTER_SETS_MAX, PEERS, PEERS)))
    assert len(found.voter_sets) == VOTER_SETS_MAX
    assert {3 * VOTER_SETS_MAX - 1, 3 * VOTER_SETS_MAX} <= found.voter_sets.keys()


def test_who_lost_a_disk_votes_under_a_later_roster_only() -> None:
    assert not consensus_state().votes
    voting_allowed = consensus_state().changed(VotingAllowed(group=GROUP, lost=0))
    assert voting_allowed.votes
    lost = voting_allowed.changed(VotingAllowed(group=GROUP, lost=1))
    assert not lost.votes
    assert replace(lost, holding=CommitState(2)).votes
    assert lost.hard_state == HardState()


def test_who_has_forgotten_a_promise_does_not_vote_and_keeps_the_newest_roster_for_which_that_is_so() -> None:
    voting = replace(consensus_state().changed(VotingAllowed(group=GROUP, lost=3)), holding=CommitState(4))
    assert voting.votes
    for roster, lost in ((4, 4), (2, 3)):
        found = voting.changed(VoteLost(group=GROUP, roster=roster))
        assert (found.votes, found.lost) == (False, lost)
        assert not replace(found, holding=CommitState(9)).votes, "others have not said yet which rosters they know"


@pytest.mark.parametrize(
    ("sets", "force", "votes"),
    [
        ({1: "ann ben", 3: "ann ben cy"}, 1, True),
        ({1: "ann ben", 3: "ann ben cy"}, 3, False),
        ({2: "ann ben cy", 3: "ann cy"}, 2, False),
        ({2: "ann ben cy", 3: "ann cy"}, 3, True),
        ({2: "ann ben cy", 4: "ann ben cy dan"}, 4, True),
    ],
)
def test_a_lost_vote_counts_where_every_voter_is_needed(sets: dict[int, str], force: int, votes: bool) -> None:
    """The other of two voters remembers; two of three that do not know what the third promised may decide anew."""
    known = {
        number: VoterSet(number, frozenset(each.split()), frozenset(each.split())) for number, each in sets.items()
    }
    forgot = ConsensusState(b"", CommitState(force), known, voting_allowed=True, lost=3)
    assert forgot.votes is votes
    assert not forgot.remembers(3) or len(known[3].voters) == 2


def test_a_group_that_a_later_roster_brings_knows_of_the_loss() -> None:
    made = durable()
    made.apply(VoteLost(group=GROUP, roster=4))
    made.seated({}, {GROUP: consensus_state(), "blue": consensus_state()})
    assert [made.consensus_states[group].lost for group in (GROUP, "blue")] == [4, 4]
    assert not made.consensus_states["blue"].voting_allowed


def test_a_group_that_is_left_and_come_back_to_is_blank_but_for_the_promises() -> None:
    made, blank = durable(), {GROUP: consensus_state()}
    made.apply(TermChanged(group=GROUP, term=7, voted="ann"))
    made.apply(voter_set_known(GROUP, VoterSet(4, PEERS, PEERS)))
    made.apply(VotingAllowed(group=GROUP, lost=2))
    for _ in range(2):  # a roster does not change the state while the peer is outside the group
        made.seated({}, {})
        aside = made.consensus_states[GROUP]
        assert (aside.left, aside.lost, aside.models, aside.voter_sets) == (4, 2, {}, {})
    made.consensus_states[GROUP] = consensus_state_of(consensus_state_fields(aside))
    made.seated({}, {**blank, "blue": consensus_state()})
    found = made.consensus_states[GROUP]
    assert (found.hard_state, found.left, found.lost, found.voting_allowed) == (HardState(7, "ann"), 4, 2, True)
    assert (found.client, found.voter_sets) == (blank[GROUP].client, blank[GROUP].voter_sets)
    assert made.consensus_states["blue"].left == 0
    assert [number for number in range(1, 7) if found.remembers(number)] == [5, 6]
    made.seated({}, blank)
    assert made.consensus_states[GROUP] is found
