"""Coordinated rounds, judged by their history: one model per round, whichever peer dies, and named rejections."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np
import pytest

from fedpeer.peer.consensus.election import TERM_JUMP_MAX
from fedpeer.peer.consensus.round_commit import RoundCommit
from fedpeer.peer.state.consensus_state import ConsensusState
from fedpeer.peer.state.entries import ModelStored
from fedpeer.peer.wire.consensus_messages import (
    Accept,
    ApplyModel,
    Certificate,
    Commit,
    CommitState,
    ConsensusContent,
    ConsensusEffect,
    CountUpdate,
    Fetch,
    HardState,
    Heartbeat,
    LeaderCertificate,
    PersistConsensus,
    Progress,
    Proposal,
    Propose,
    SendConsensus,
    VoteReply,
    VoteRequest,
    VoterSet,
    acceptance_text,
    vote_text,
)
from fedpeer.rejection import Rejection
from tests.gossip.swim import ids, signature
from tests.peer.consensus.consensus_cluster import (
    SCOPE,
    ConsensusCluster,
    Disk,
    applications,
    bereaved,
    effects,
    judge,
    machine,
)

# ----------------------------------------------------------------------------------------------- one model a round (P6)


def storm(seed: int, kind: type[RoundCommit] = RoundCommit) -> ConsensusCluster:
    """Run 900 ticks of kills (mostly of the coordinator), restarts and cuts; then end all faults.

    In every third storm the voter set changes with each round.
    """
    count = 3 + seed % 5
    consensus_cluster = ConsensusCluster(
        seed, count, kind=kind, voter_sets=changing(ids(count)) if seed % 3 == 0 else ()
    )
    rng = consensus_cluster.rng
    consensus_cluster.loss, consensus_cluster.repeat, consensus_cluster.delay = (
        0.3 * rng.random(),
        0.3 * rng.random(),
        int(rng.integers(1, 13)),
    )
    back: dict[str, int] = {}
    for now in range(900):
        if rng.random() < 0.03 and consensus_cluster.doomed is None and consensus_cluster.alive:
            victim = consensus_cluster.coordinator if rng.random() < 0.8 else None
            consensus_cluster.doomed = (
                victim or str(rng.choice(sorted(consensus_cluster.alive))),
                int(rng.integers(1, 20)),
            )
        if rng.random() < 0.03:
            consensus_cluster.apart = cut(consensus_cluster.peers, rng) if rng.random() < 0.3 else frozenset()
        for peer in consensus_cluster.peers:
            if peer not in consensus_cluster.alive and now >= back.setdefault(peer, now + int(rng.integers(1, 60))):
                del back[peer]
                consensus_cluster.start(peer)
        consensus_cluster.step()
    consensus_cluster.loss = consensus_cluster.repeat = 0.0
    consensus_cluster.delay, consensus_cluster.apart, consensus_cluster.doomed = 4, frozenset(), None
    for peer in consensus_cluster.peers:
        if peer not in consensus_cluster.alive:
            consensus_cluster.start(peer)
    return consensus_cluster


def cut(peers: list[str], rng: np.random.Generator) -> frozenset[tuple[str, str]]:
    """Return a cut into two sides that receive nothing from one another, or only one of them from the other."""
    one, one_way = {peer for peer in peers if rng.random() < 0.5}, rng.random() < 0.3
    apart = {(p, q) for p in peers for q in peers if p in one and q not in one}
    return frozenset(apart if one_way else apart | {(q, p) for p, q in apart})


def changing(peers: tuple[str, ...]) -> list[VoterSet]:
    """Return voter sets: two peers at first; then all others join one by one; then the first ones leave, until three
    are left; then the same backward, and forward again."""
    steps = [peers[:n] for n in range(2, len(peers))] + [peers[n:] for n in range(len(peers) - 2)]
    voters = [*steps, *steps[::-1], *steps]
    return [VoterSet(number, frozenset(who), frozenset(peers)) for number, who in enumerate(voters, 1)]


def weather(seed: int) -> tuple[int, dict[str, object]]:
    """Run a storm, then three more rounds, which must follow within 300 ticks; return the last round and violations."""
    consensus_cluster = storm(seed)
    target = max(round_commit.holding.round for round_commit in consensus_cluster.alive.values()) + 3
    went_on = consensus_cluster.run(300, lambda: consensus_cluster.rounds >= target)
    found = judge(consensus_cluster)
    return target, found if went_on else {**found, "stuck": consensus_cluster.now}


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds", [pytest.param(range(8), id="few"), pytest.param(range(100, 160), marks=pytest.mark.soak, id="many")]
)
def test_a_storm_of_kills_and_cuts_forks_no_round_and_everything_goes_on(seeds: range) -> None:
    results = {seed: weather(seed) for seed in seeds}
    assert not {seed: wrong for seed, (_, wrong) in results.items() if wrong}
    assert sum(rounds for rounds, _ in results.values()) > len(seeds) * 10, (
        "storms in which hardly anything happens show nothing"
    )


def widowed(count: int, seed: int, outputs: int, kind: type[RoundCommit] = RoundCommit) -> ConsensusCluster:
    """Kill the coordinator, and no other peer, after so many of its outputs; later start it again from its disk."""
    consensus_cluster = ConsensusCluster(seed, count, loss=0.2 * (seed % 2), repeat=0.1, kind=kind)
    victim, _ = bereaved(consensus_cluster, outputs)
    newest = max(round_commit.holding.round for round_commit in consensus_cluster.alive.values())
    consensus_cluster.run(300, lambda: consensus_cluster.rounds > newest)
    consensus_cluster.start(victim)
    newest = max(round_commit.holding.round for round_commit in consensus_cluster.alive.values())
    consensus_cluster.run(300, lambda: consensus_cluster.rounds > newest)
    return consensus_cluster


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 5])
def test_a_coordinator_killed_after_any_output_never_forks_a_round(count: int) -> None:
    for outputs in range(1, effects(count) + 1):
        consensus_cluster = widowed(count, outputs, outputs)
        newest = max(round_commit.holding.round for round_commit in consensus_cluster.alive.values())
        assert not judge(consensus_cluster), f"replay with outputs={outputs}"
        assert consensus_cluster.rounds >= newest - 1, f"all follow; replay with outputs={outputs}"


# ----------------------------------------------------------------------------------- each rule, switched off, is seen


class WithoutMajority(RoundCommit):
    def _carried(self, proposal: Proposal, by: Iterable[str], *, after: bool) -> bool:
        return True


class Forgetful(RoundCommit):
    """A new coordinator that ignores what was accepted before."""

    def _finish(self, term: int) -> list[ConsensusEffect]:
        return []


class Rash(RoundCommit):
    """A peer that sends before it saves."""

    def received(self, sender: str, message: ConsensusContent) -> list[ConsensusEffect]:
        return sorted(super().received(sender, message), key=lambda output: isinstance(output, PersistConsensus))


def findings(kind: type[RoundCommit]) -> set[str]:
    return {name for outputs in range(1, effects(3) + 1) for name in judge(widowed(3, outputs, outputs, kind))}


@pytest.mark.slow
def test_a_commit_without_a_majority_is_seen() -> None:
    assert {"forks", "unsupported"} <= findings(WithoutMajority)


@pytest.mark.slow
def test_a_new_coordinator_that_ignores_what_was_accepted_is_seen() -> None:
    assert "forks" in findings(Forgetful)


@pytest.mark.slow
def test_speaking_before_the_save_is_seen() -> None:
    assert "rash" in findings(Rash)


def overtaken(seed: int) -> ConsensusCluster:
    """Cut one of three peers off for a while; then kill the coordinator as soon as it has applied a round that the
    third peer has only accepted. Later start it again."""
    consensus_cluster = ConsensusCluster(seed, 3)
    assert consensus_cluster.run(200, lambda: consensus_cluster.rounds >= 1)
    first = consensus_cluster.coordinator
    assert first is not None
    away, other = (peer for peer in consensus_cluster.peers if peer != first)
    consensus_cluster.apart = frozenset(
        pair for peer in consensus_cluster.peers for pair in ((peer, away), (away, peer))
    )
    one, two = consensus_cluster.alive[first], consensus_cluster.alive[other]
    assert consensus_cluster.run(60, lambda: one.holding.round > max(two.holding.round, consensus_cluster.rounds + 1))
    consensus_cluster.kill(first)
    consensus_cluster.apart = frozenset(
        (first, peer) for peer in consensus_cluster.peers
    )  # the certificate in transit is lost as well
    consensus_cluster.run(200)
    consensus_cluster.apart = frozenset()
    consensus_cluster.start(first)
    consensus_cluster.run(100)
    return consensus_cluster


@pytest.mark.slow
def test_votes_for_candidates_that_are_behind_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(judge(overtaken(seed)) for seed in range(8))
    monkeypatch.setattr(Progress, "at_least", lambda mine, theirs: True)
    assert any("forks" in judge(overtaken(seed)) for seed in range(8))


# ------------------------------------------------------------------------------------------- voter sets, late joiners


def rosters(*memberships: str) -> list[VoterSet]:
    """Return numbered voter sets, one letter per peer; all peers are members of each."""
    everyone = frozenset(ids(max(ord(letter) for each in memberships for letter in each) - 64))
    voters = (frozenset(ids(26)[ord(letter) - 65] for letter in each) for each in memberships)
    return [VoterSet(number, who, everyone) for number, who in enumerate(voters, 1)]


@pytest.mark.parametrize("seed", range(3))
def test_electorates_change_by_one_voter_at_a_time(seed: int) -> None:
    consensus_cluster = ConsensusCluster(seed, 5, loss=0.1, voter_sets=rosters("ABC", "ABCD", "ABCDE", "BCDE"))
    assert consensus_cluster.run(400, lambda: consensus_cluster.rounds >= 5)
    by_round = {
        certificate.proposal.round: certificate.proposal.roster
        for _, certificate in applications(consensus_cluster.history)
    }
    assert [by_round[round_] for round_ in range(1, 5)] == [2, 3, 4, 4], "the next with each round"
    assert not judge(consensus_cluster)
    assert all(len(each.acceptances) >= 3 for _, each in applications(consensus_cluster.history)), (
        "a majority of both electorates"
    )
    consensus_cluster.kill(consensus_cluster.peers[2])
    consensus_cluster.run(
        100, lambda: consensus_cluster.coordinator in (consensus_cluster.peers[1], *consensus_cluster.peers[3:])
    )
    rounds = consensus_cluster.rounds
    assert consensus_cluster.run(300, lambda: consensus_cluster.rounds >= rounds + 2), (
        "three of the four that vote now are enough"
    )
    assert consensus_cluster.coordinator != consensus_cluster.peers[0], "who has no vote does not stand"


def test_voter_sets_that_differ_by_two_voters_are_not_committed() -> None:
    consensus_cluster = ConsensusCluster(1, 5, voter_sets=rosters("ABC", "ABCDE"))
    assert consensus_cluster.run(200, lambda: consensus_cluster.rounds >= 3)
    assert {certificate.proposal.roster for _, certificate in applications(consensus_cluster.history)} == {1}


#: Rosters of a federation that one peer began, and that four others joined one by one.
GROWN = rosters("A", "AB", "ABC", "ABCD", "ABCDE")


@pytest.mark.parametrize("seed", range(4))
def test_where_one_peer_began_and_four_came_at_once_rounds_reach_the_newest_roster(seed: int) -> None:
    """The voter set grows with each round; a coordinator whose roster counts no longer is elected again at once."""
    cluster = ConsensusCluster(seed, 5, loss=0.1, voter_sets=GROWN)
    assert cluster.run(400, lambda: cluster.rounds >= 6)
    by_round = {each.proposal.round: each.proposal.roster for _, each in applications(cluster.history)}
    assert [by_round[round_] for round_ in range(1, 6)] == [2, 3, 4, 5, 5]
    assert not judge(cluster)
    assert all(each.election.outdated(roster) for each in cluster.alive.values() for roster in (1, 2, 3))
    victim = cluster.coordinator
    assert victim is not None
    cluster.kill(victim)
    rounds = cluster.rounds
    assert cluster.run(300, lambda: cluster.rounds >= rounds + 2), "the four others elect and commit"
    assert not judge(cluster)


def test_a_coordinator_steps_down_once_its_voters_need_not_meet_those_in_force_and_stands_first() -> None:
    cluster = ConsensusCluster(1, 5, voter_sets=GROWN)
    assert cluster.run(400, lambda: cluster.rounds >= 5)
    led = [(turn.term, peer) for _, peer, turn in cluster.turns if turn.coordinator == peer]
    assert {peer for _, peer in led} == {cluster.peers[0]}, "nobody else stands before it"
    assert len(led) == 3, "under roster 1, after it 3, after it 5"
    ends = [when for when, peer, turn in cluster.turns if (peer, turn.coordinator) == (cluster.peers[0], None)]
    begins = [when for when, peer, turn in cluster.turns if peer == turn.coordinator][1:]
    waits = [begin - end for begin, end in zip(begins, ends, strict=True)]
    assert max(waits) < 24, f"nobody waits for a lease to end: {waits}"


def test_who_follows_drops_a_coordinator_that_does_not_step_down() -> None:
    """A coordinator elected by roster 1 alone goes on after a round has named roster 3: nobody listens to it."""
    one = LeaderCertificate(5, A, 1, ((A, signature(A, vote_text(SCOPE, A, 5, 1, A))),))
    round_commit = machine(C, GROWN, Disk(CommitState(1, None, None), HardState(4, A)), np.random.default_rng(0))
    beat, models = Heartbeat(one, Progress()), {2: X, 3: Y}
    round_commit.received(A, beat)
    for number, digest in models.items():
        assert round_commit.election.coordinator == A
        round_commit.holds(digest)
        done = certificate(Proposal(5, number - 1, number, digest), *ids(number))
        assert not first_refusal(round_commit.received(A, Commit(done)))
    assert round_commit.election.coordinator is None
    assert first_refusal(round_commit.received(A, beat)) == "stale_roster"
    assert round_commit.election.coordinator is None
    granted = round_commit.received(B, VoteRequest(6, False, 3, Progress(2, 2, 5)))
    assert any(isinstance(out, SendConsensus) and out.message.granted for out in granted), "no lease is waited for"  # type: ignore[union-attr]


def usurped(cluster: ConsensusCluster, me: str) -> Iterable[tuple[str, ConsensusContent]]:
    """Return the messages of a founder that was the only voter once, and goes on as if it were."""
    term, rounds = cluster.term + 1, cluster.rounds
    vote = signature(me, vote_text(SCOPE, me, term, 1, me))
    proposal = Proposal(term, rounds + 10, 1, bytes(32))
    done = Certificate(proposal, ((me, signature(me, acceptance_text(SCOPE, me, proposal))),))
    for peer in cluster.alive:
        yield peer, Heartbeat(LeaderCertificate(term, me, 1, ((me, vote),)), Progress())
        yield peer, Commit(done)


def test_who_was_the_only_voter_once_deposes_nobody_and_commits_nothing_later() -> None:
    """Four members go on under roster 5 while the founder claims to coordinate by its own vote under roster 1."""
    voter_sets = GROWN
    cluster = ConsensusCluster(3, 5, voter_sets=voter_sets, liars={ids(1)[0]: usurped})
    grown = Proposal(1, 1, 5, X)
    begun = Certificate(grown, tuple((p, signature(p, acceptance_text(SCOPE, p, grown))) for p in cluster.peers[1:]))
    for peer in cluster.peers[1:]:
        cluster.disks[peer] = Disk(CommitState(5, None, begun), HardState(1, cluster.peers[1]), {X, bytes(32)})
        cluster.start(peer)
    assert cluster.run(400, lambda: cluster.rounds >= 6), cluster.rounds
    assert {turn.coordinator for _, _, turn in cluster.turns} & {cluster.peers[0]} == set()
    assert bytes(32) not in {proposal.digest for _, _, proposal in cluster.applied}
    assert cluster.refused["stale_roster"] > 10


# ------------------------------------------------------------------------------------------- a voter with another key


def readmitted() -> list[VoterSet]:
    """Return three rosters: C is put out by the second, and admitted again with another key by the third."""
    rest = {A: b"a", B: b"b"}
    return [
        VoterSet(number, frozenset(keys), ALL.members, keys)
        for number, keys in enumerate((rest | {C: b"old"}, rest, rest | {C: b"new"}), 1)
    ]


def talk(one: RoundCommit, said: Iterable[ConsensusEffect], other: RoundCommit) -> None:
    """Let these two peers, which have the models X and Y, exchange messages alone until both are silent."""
    for out in said:
        if isinstance(out, SendConsensus) and out.to == other.election.me:
            talk(other, other.received(one.election.me, out.message), one)


def proposed(cluster: tuple[RoundCommit, RoundCommit], digest: bytes) -> None:
    """Let a coordinator propose this model, while only one other peer hears it."""
    lead, other = cluster
    for each in cluster:
        each.holds(X)
        each.holds(Y)
    for tick in range(1000, 1010):  # until its next heartbeat
        talk(lead, lead.tick(tick, ()), other)
    talk(lead, lead.propose(digest), other)


def test_a_voter_that_comes_back_with_another_key_undoes_nothing_that_it_decided_with_the_old_one() -> None:
    """A coordinates in term 5, and stalls. B and C commit a round in term 6; then C loses its disk and its key,
    and comes back as another voter, which hears A only."""
    voter_sets = readmitted()
    later = coordinator(B, C, 6, voter_sets)
    before = machine(C, voter_sets[:1], Disk(CommitState(1, None, FIRST), HardState(6, B)), np.random.default_rng(0))
    later.election.known = {1: voter_sets[0]}
    proposed((later, before), Y)
    assert later.holding.applied is not None, "B and C are a majority"
    assert later.holding.applied.proposal == Proposal(6, 2, 1, Y)
    earlier = coordinator(A, C, 5, voter_sets)
    anew = machine(C, voter_sets, Disk(CommitState(3)), np.random.default_rng(0))
    proposed((earlier, anew), X)
    assert anew.election.coordinator == A, "it believes A, which a majority elected"
    assert [each.holding.applied for each in (earlier, anew)] == [FIRST, FIRST], "there would be two models for round 2"


def test_a_coordinator_elected_with_the_old_key_of_a_voter_is_followed_no_longer_once_the_new_one_counts() -> None:
    voter_sets, grown = readmitted(), certificate(Proposal(5, 2, 3, Y), A, B)
    follower = machine(A, voter_sets, Disk(CommitState(3, None, grown), HardState(5, "")), np.random.default_rng(0))
    votes = tuple((each, signature(each, vote_text(SCOPE, each, 6, 1, B))) for each in (B, C))
    assert (
        first_refusal(follower.received(B, Heartbeat(LeaderCertificate(6, B, 1, votes), Progress()))) == "stale_roster"
    )


def test_a_voter_that_comes_back_with_another_key_counts_two_rounds_later() -> None:
    """First the roster without it comes into force, then the one with its new key."""
    cluster = ConsensusCluster(1, 3, voter_sets=readmitted())
    assert cluster.run(300, lambda: cluster.rounds >= 4)
    assert [each.proposal.roster for _, each in applications(cluster.history)[:9:3]] == [2, 3, 3]
    assert not judge(cluster)


def test_who_was_away_during_several_rosters_comes_back_and_helps_to_elect() -> None:
    cluster = ConsensusCluster(2, 5, voter_sets=GROWN[2:])
    away, peers = cluster.peers[0], cluster.peers
    assert cluster.run(60, lambda: cluster.alive[away].holding.round >= 1)
    cluster.kill(away)
    cluster.disks[away].holding = CommitState(3, None, cluster.disks[away].holding.applied)
    assert cluster.run(400, lambda: cluster.rounds >= 6)
    cluster.start(away)
    assert cluster.run(60, lambda: cluster.rounds >= 6)
    leader = cluster.coordinator
    assert leader is not None
    for victim in (leader, next(peer for peer in peers if peer not in (away, leader))):
        cluster.kill(victim)
    rounds = cluster.rounds
    assert cluster.run(400, lambda: cluster.rounds >= rounds + 2), "three of five, and one of them was away"
    assert not judge(cluster)


def test_who_comes_with_a_later_roster_takes_the_first_round_of_those_who_began() -> None:
    """The peer does not blame the sender, which was the only voter then."""
    began = Commit(certificate(Proposal(1, 1, 1, Y), A))
    round_commit = machine(C, GROWN, Disk(CommitState(5)), np.random.default_rng(0))
    round_commit.holds(Y)
    out = round_commit.received(A, began)
    assert not first_refusal(out)
    assert ApplyModel(Proposal(1, 1, 1, Y)) in out
    assert round_commit.election.voter_set.number == 1


def test_who_began_alone_blames_nobody_for_a_round_of_others_and_follows_from_the_next() -> None:
    """Peers of a later roster began without it; it took their first round after its own for a forgery."""
    alone = CommitState(1, None, certificate(Proposal(1, 1, 1, X), A))
    round_commit, others = machine(A, GROWN, Disk(alone, HardState(1, A)), np.random.default_rng(0)), ids(5)[1:]
    round_commit.holds(Y)
    assert first_refusal(round_commit.received(B, Commit(certificate(Proposal(1, 2, 5, Y), B)))) == "bad_signature"
    assert first_refusal(round_commit.received(B, Commit(certificate(Proposal(1, 2, 5, Y), *others)))) == "round_gap"
    assert ApplyModel(Proposal(1, 3, 5, Y)) in round_commit.received(
        B, Commit(certificate(Proposal(1, 3, 5, Y), *others))
    )


def test_who_comes_late_goes_on_from_the_newest_round() -> None:
    consensus_cluster = ConsensusCluster(2, 4)
    late = consensus_cluster.peers[3]
    consensus_cluster.kill(late)
    assert consensus_cluster.run(400, lambda: consensus_cluster.rounds >= 10)
    consensus_cluster.start(late)
    assert consensus_cluster.run(60, lambda: consensus_cluster.rounds >= 10)
    assert consensus_cluster.refused["round_gap"] >= 1
    mine = [
        certificate.proposal.round
        for saved, certificate in applications(consensus_cluster.history)
        if saved.peer == late
    ]
    assert len(mine) < 6, "one leap, and no round on the way"
    assert not judge(consensus_cluster)


# ------------------------------------------------------------------------------------------------------------- refusals

A, B, C = ids(3)
ALL = VoterSet(1, frozenset((A, B, C)), frozenset((A, B, C)))
X, Y = bytes([1]) * 32, bytes([2]) * 32


def leader_certificate(candidate: str, term: int) -> LeaderCertificate:
    votes = ((who, signature(who, vote_text(SCOPE, who, term, 1, candidate))) for who in (A, B))
    return LeaderCertificate(term, candidate, 1, tuple(votes))


def certificate(proposal: Proposal, *who: str) -> Certificate:
    return Certificate(proposal, tuple((each, signature(each, acceptance_text(SCOPE, each, proposal))) for each in who))


FIRST = certificate(Proposal(4, 1, 1, X), A, B)


def follower(holding: CommitState | None = None) -> RoundCommit:
    """Return C, which follows A in term 5 and has applied round 1; it has the models X and Y."""
    round_commit = machine(
        C, [ALL], Disk(holding or CommitState(1, None, FIRST), HardState(4, A)), np.random.default_rng(0)
    )
    round_commit.received(A, Heartbeat(leader_certificate(A, 5), Progress(1, 1, 4)))
    round_commit.holds(Y)
    return round_commit


def coordinator(me: str = B, by: str = A, term: int = 5, voter_sets: Collection[VoterSet] = (ALL,)) -> RoundCommit:
    """Return a peer that coordinates round 2 in a term, by the vote of another peer."""
    disk = Disk(CommitState(1, None, FIRST), HardState(term - 1, A))
    round_commit = machine(me, voter_sets, disk, np.random.default_rng(0))
    now = 0
    while not round_commit.election.leading:
        out = round_commit.tick(now := now + 1, ())
        for said in out:
            if isinstance(said, SendConsensus) and isinstance(said.message, VoteRequest):
                pre = said.message.pre
                text = vote_text(SCOPE, by, term, 1, me)
                round_commit.received(by, VoteReply(term, pre, True, b"" if pre else signature(by, text)))
                break
    return round_commit


def first_refusal(out: list[ConsensusEffect]) -> str | None:
    return out[0].code if out and isinstance(out[0], Rejection) else None


@pytest.mark.parametrize(
    ("sender", "message", "code"),
    [
        (A, Propose(Proposal(4, 2, 1, Y)), "stale_term"),
        (A, Heartbeat(leader_certificate(A, 4), Progress()), "stale_term"),
        (A, Propose(Proposal(5 + TERM_JUMP_MAX + 1, 2, 1, Y)), "term_jump"),
        (A, Commit(certificate(Proposal(5 + TERM_JUMP_MAX + 1, 2, 1, Y), A, B)), "term_jump"),
        (B, Propose(Proposal(5, 2, 1, Y)), "two_coordinators"),
        (B, Heartbeat(leader_certificate(B, 5), Progress()), "two_coordinators"),
        (A, Propose(Proposal(5, 1, 1, Y)), "already_applied"),
        (A, Propose(Proposal(5, 3, 1, Y)), "round_gap"),
        (A, Propose(Proposal(5, 2, 7, Y)), "round_gap"),
        (A, Commit(certificate(Proposal(5, 3, 1, bytes(32)), A, B)), "round_gap"),
        (A, Commit(certificate(Proposal(5, 2, 7, Y), A, B)), "round_gap"),
        (A, Commit(certificate(Proposal(5, 1, 1, Y), A, B)), "digest_mismatch"),
        (A, Commit(certificate(Proposal(5, 2, 1, Y), A)), "bad_signature"),
        (A, Commit(certificate(Proposal(5, 2, 1, Y), A, "stranger")), "bad_signature"),
        (A, Commit(replace(certificate(Proposal(5, 2, 1, Y), A, B), proposal=Proposal(5, 2, 1, X))), "bad_signature"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_changes_nothing(
    sender: str, message: ConsensusContent, code: str
) -> None:
    round_commit = follower()
    before = round_commit.holding, round_commit.election.hard_state
    out = round_commit.received(sender, message)
    assert first_refusal(out) == code
    assert (round_commit.holding, round_commit.election.hard_state) == before
    assert not any(isinstance(output, PersistConsensus | ApplyModel) for output in out)


def test_another_proposal_in_the_same_term_is_refused_and_in_a_later_one_it_counts() -> None:
    round_commit = follower()
    out = round_commit.received(A, Propose(Proposal(5, 2, 1, Y)))
    assert out[0] == PersistConsensus(CommitState(1, Proposal(5, 2, 1, Y), FIRST))
    assert out[1] == SendConsensus(A, Accept(5, 2, signature(C, acceptance_text(SCOPE, C, Proposal(5, 2, 1, Y)))))
    assert round_commit.received(A, Propose(Proposal(5, 2, 1, Y))) == out[1:], "said again, saved once"
    for message in (Propose(Proposal(5, 2, 1, X)), Commit(certificate(Proposal(5, 2, 1, X), A, B))):
        assert first_refusal(round_commit.received(A, message)) == "digest_mismatch"
    round_commit.received(B, Heartbeat(leader_certificate(B, 6), Progress(1, 1, 4)))
    assert round_commit.received(B, Propose(Proposal(6, 2, 1, X)))[0] == PersistConsensus(
        CommitState(1, Proposal(6, 2, 1, X), FIRST)
    )


def test_who_proposes_a_round_that_is_over_is_handed_the_certificate() -> None:
    assert follower().received(A, Propose(Proposal(5, 1, 1, X)))[1:] == [SendConsensus(A, Commit(FIRST))]


def test_a_restart_counts_the_same_models_as_durable_as_its_state_keeps() -> None:
    """A model that counts as durable and is dropped would be accepted, and be missing when it is applied."""
    models = [bytes([number]) * 32 for number in range(6)]
    accepted, applied = Proposal(5, 2, 1, models[4]), certificate(Proposal(5, 1, 1, models[0]), A, B)
    holding = CommitState(1, accepted, applied)
    state = ConsensusState(b"", holding, {GROWN[0].number: GROWN[0]})
    for digest in models[:5]:
        state = state.changed(ModelStored(group="", digest=digest, content=digest))
    round_commit = machine(B, GROWN, Disk(holding, HardState(5, A)), np.random.default_rng(0))
    for digest in state.models:
        round_commit.holds(digest)
    for digest in (models[5], models[0]):  # a new one, and the one in force again
        state = state.changed(ModelStored(group="", digest=digest, content=digest))
        round_commit.holds(digest)
        assert {each for each in models if round_commit._has(each)} == state.models.keys()


def test_nothing_is_accepted_or_applied_before_its_model_is_durable() -> None:
    new = bytes([3]) * 32
    round_commit = follower()
    assert round_commit.received(A, Propose(Proposal(5, 2, 1, new))) == [Fetch(A, new)]
    accepted = round_commit.holds(new)
    assert accepted[0] == PersistConsensus(CommitState(1, Proposal(5, 2, 1, new), FIRST))
    round_commit = follower()
    proof = certificate(Proposal(5, 2, 1, new), A, B)
    assert round_commit.received(B, Commit(proof)) == [Fetch(B, new)]
    assert round_commit.holds(new) == [PersistConsensus(CommitState(1, None, proof)), ApplyModel(proof.proposal)]
    assert round_commit.received(B, Commit(proof)) == [], "once"


def test_acceptances_count_once_for_their_own_term_and_with_their_own_signature() -> None:
    round_commit = coordinator()
    round_commit.propose(Y)
    proposal = Proposal(5, 2, 1, Y)
    good = signature(A, acceptance_text(SCOPE, A, proposal))
    assert (
        first_refusal(round_commit.received(A, Accept(5, 2, signature(A, acceptance_text(SCOPE, A, FIRST.proposal)))))
        == "bad_signature"
    )
    assert first_refusal(round_commit.received("stranger", Accept(5, 2, good))) == "unknown_peer"
    assert round_commit.received(A, Accept(4, 2, good)) == []
    out = round_commit.received(A, Accept(5, 2, good))
    assert out[:2] == [PersistConsensus(CommitState(1, None, certificate(proposal, A, B))), ApplyModel(proposal)]
    assert out[2:] == [SendConsensus(peer, Commit(certificate(proposal, A, B))) for peer in (A, C)]


def test_updates_count_once_for_the_round_under_way() -> None:
    round_commit = coordinator()
    assert round_commit.on_update(A, 5, 2, X) == [CountUpdate(A, 2, X)]
    assert round_commit.on_update(A, 5, 2, X) == []
    for term, round_, digest, code in [
        (5, 2, Y, "second_update"),
        (5, 1, X, "round_closed"),
        (5, 3, X, "round_gap"),
        (4, 2, X, "stale_term"),
    ]:
        assert first_refusal(round_commit.on_update(A, term, round_, digest)) == code
    round_commit.propose(Y)
    assert first_refusal(round_commit.on_update(C, 5, 2, X)) == "round_closed"
    assert first_refusal(follower().on_update(A, 5, 2, X)) == "stale_term"


def test_a_new_coordinator_proposes_again_what_it_accepted_before_anything_else() -> None:
    unfinished = Proposal(4, 2, 1, Y)
    round_commit = machine(B, [ALL], Disk(CommitState(1, unfinished, FIRST), HardState(4, A)), np.random.default_rng(0))
    now, out = 0, list[ConsensusEffect]()
    while not round_commit.election.leading:
        for said in round_commit.tick(now := now + 1, ()):
            if isinstance(said, SendConsensus) and isinstance(said.message, VoteRequest):
                pre = said.message.pre
                answer = VoteReply(5, pre, True, b"" if pre else signature(A, vote_text(SCOPE, A, 5, 1, B)))
                out = round_commit.received(A, answer)
                break
    assert PersistConsensus(CommitState(1, replace(unfinished, term=5), FIRST)) in out
    assert [o.message for o in out if isinstance(o, SendConsensus) and isinstance(o.message, Propose)] == [
        Propose(replace(unfinished, term=5))
    ] * 2
    assert not round_commit.gathering
