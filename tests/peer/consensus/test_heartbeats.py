"""Heartbeats carry a leader certificate until the member knows it, and then its digest: bytes, and when it counts.

The certificate's bytes grow with the number of voters, and a heartbeat goes to each member; so a coordinator that sent
the certificate with each heartbeat would send bytes that grow with the square of that number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np
import pytest

from fedpeer.peer.consensus.election import Election
from fedpeer.peer.wire.consensus_messages import (
    CommitState,
    ConsensusContent,
    ConsensusEffect,
    HardState,
    Heartbeat,
    HeartbeatReply,
    LeaderCertificate,
    LeaderChanged,
    Progress,
    Scope,
    SendConsensus,
    ShortHeartbeat,
    VoteReply,
    certificate_digest,
    vote_text,
)
from fedpeer.peer.wire.messages import ConsensusMessage
from tests.gossip.swim import ids, signature
from tests.peer.consensus.consensus_cluster import SCOPE, ConsensusCluster, Disk, judge, machine
from tests.peer.consensus.test_election import (
    TIMING,
    A,
    B,
    C,
    D,
    E,
    leader_certificate,
    led,
    refused,
    said,
    vote_request,
    voter,
    voter_set,
)
from tests.peer.frames import framed

BEATS = (Heartbeat, ShortHeartbeat)


def short(certificate: LeaderCertificate) -> ShortHeartbeat:
    return ShortHeartbeat(certificate.term, certificate_digest(SCOPE, certificate), Progress())


def frame_bytes(message: ConsensusContent) -> int:
    return len(framed(ConsensusMessage(group="everyone", message=message)))


def elected(count: int, older: Collection[str] = ()) -> tuple[Election, int, dict[str, ConsensusContent]]:
    """Let the first voter begin to coordinate in term 4; return its election, the tick, and its first heartbeats."""
    peers = ids(count)
    disk = Disk(CommitState(1), HardState(3))
    election = machine(A, [voter_set(*peers)], disk, np.random.default_rng(0), older=older).election
    now, out = 0, list[ConsensusEffect]()
    while not out:
        out = election.tick(now := now + 1, ())
    for pre in (True, False):
        for peer in peers[1 : count // 2 + 1]:
            vote = b"" if pre else signature(peer, vote_text(SCOPE, peer, 4, 1, A))
            out = election.on_vote_reply(peer, VoteReply(4, pre, True, vote))
    assert election.leading
    return election, now, beats(out)


def beats(out: Iterable[ConsensusEffect]) -> dict[str, ConsensusContent]:
    """Return the heartbeats, by recipient."""
    return {
        each.to: each.message for each in out if isinstance(each, SendConsensus) and isinstance(each.message, BEATS)
    }


def next_beats(election: Election, now: int) -> tuple[int, dict[str, ConsensusContent]]:
    """Return the tick of the next heartbeats, and these heartbeats by recipient."""
    found: dict[str, ConsensusContent] = {}
    while not found:
        found = beats(election.tick(now := now + 1, ()))
    return now, found


# ---------------------------------------------------------------------------------------------------------- the bytes


def test_a_certificate_is_sent_until_the_first_reply_and_then_named() -> None:
    election, now, first = elected(5)
    certificate = LeaderCertificate(
        4, A, 1, tuple((peer, signature(peer, vote_text(SCOPE, peer, 4, 1, A))) for peer in (A, B, C))
    )
    full, named = Heartbeat(certificate, Progress()), short(certificate)
    assert first == dict.fromkeys((B, C, D, E), full)
    election.on_heartbeat_reply(B, HeartbeatReply(4, Progress()))
    election.on_heartbeat_reply(D, HeartbeatReply(3, Progress()))  # of an earlier term: it shows nothing
    now, second = next_beats(election, now)
    assert second == {B: named, C: full, D: full, E: full}
    for peer in (C, D, E):
        election.on_heartbeat_reply(peer, HeartbeatReply(4, Progress()))
    now, third = next_beats(election, now)
    assert third == dict.fromkeys((B, C, D, E), named)


def test_a_beat_has_the_same_bytes_whatever_the_number_of_voters() -> None:
    full, named = dict[int, int](), dict[int, int]()
    for count in (3, 15, 99):
        election, now, first = elected(count)
        full[count] = frame_bytes(first[B])
        for peer in first:
            election.on_heartbeat_reply(peer, HeartbeatReply(4, Progress()))
        _, then = next_beats(election, now)
        assert set(then) == set(first)
        (named[count],) = {frame_bytes(beat) for beat in then.values()}
    assert len(set(named.values())) == 1
    assert named[3] < 110
    assert full[99] - full[15] == (50 - 8) * (full[15] - full[3]) // (8 - 2), "a vote each"


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_what_a_coordinator_sends_grows_with_the_members_and_no_faster(loss: float) -> None:
    each = {count: beat_bytes(ConsensusCluster(1, count, loss=loss)) / (count - 1) for count in (5, 15)}
    before = {
        count: beat_bytes(ConsensusCluster(1, count, loss=loss, older=ids(count))) / (count - 1) for count in each
    }
    assert before[15] / before[5] > 2, "else this shows nothing"
    if loss:  # at 30 % loss one in eight members has not replied for three heartbeats
        assert each[15] / each[5] < 1.4
    else:
        assert each[15] == pytest.approx(each[5], rel=0.02)


def beat_bytes(consensus_cluster: ConsensusCluster, ticks: int = 25 * TIMING.beat) -> float:
    """Return the bytes of the coordinator's heartbeats per second, counted from a while after its election."""
    assert consensus_cluster.run(400, lambda: consensus_cluster.rounds >= 2)
    consensus_cluster.sent.clear()
    coordinator, term = consensus_cluster.coordinator, consensus_cluster.term
    consensus_cluster.run(ticks)
    assert (consensus_cluster.coordinator, consensus_cluster.term) == (coordinator, term)
    sent = [said for _, sender, _, said in consensus_cluster.sent if sender == coordinator and isinstance(said, BEATS)]
    return 40 * sum(map(frame_bytes, sent)) / ticks


# ------------------------------------------------------------------------------------------------ what is lost, and who


def test_a_member_that_did_not_get_the_certificate_gets_it_with_each_heartbeat() -> None:
    consensus_cluster = ConsensusCluster(3, 5)
    assert consensus_cluster.run(200, lambda: consensus_cluster.coordinator is not None)
    coordinator = consensus_cluster.coordinator
    assert coordinator is not None
    cut = next(peer for peer in consensus_cluster.peers if peer != coordinator)
    consensus_cluster.apart = frozenset({(coordinator, cut)})
    consensus_cluster.run(3 * TIMING.beat)
    assert {type(each) for each in to_it(consensus_cluster, cut)} == {Heartbeat}
    consensus_cluster.apart = frozenset()
    assert consensus_cluster.run(
        TIMING.beat + consensus_cluster.delay,
        lambda: consensus_cluster.alive[cut].election.coordinator == coordinator,
    )
    consensus_cluster.run(2 * consensus_cluster.delay)
    consensus_cluster.sent.clear()
    consensus_cluster.run(2 * TIMING.beat)
    assert {type(each) for each in to_it(consensus_cluster, cut)} == {ShortHeartbeat}


def to_it(consensus_cluster: ConsensusCluster, peer: str) -> list[ConsensusContent]:
    """Return the heartbeats to this peer."""
    return [said for _, _, to, said in consensus_cluster.sent if to == peer and isinstance(said, BEATS)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 6))])
def test_what_is_lost_delays_nothing_that_a_certificate_in_each_heartbeat_would_not_delay(seed: int) -> None:
    """Both runs have the same draws for the links; the coordinator is killed, and starts again after a while."""
    histories = []
    for older in ((), ids(5)):
        consensus_cluster = ConsensusCluster(seed, 5, loss=0.3, repeat=0.1, older=older)
        for _ in range(2):
            consensus_cluster.run(200)
            victim = consensus_cluster.coordinator
            assert victim is not None
            consensus_cluster.kill(victim)
            consensus_cluster.run(150)
            consensus_cluster.start(victim)
        consensus_cluster.run(200)
        assert not judge(consensus_cluster)
        histories.append((consensus_cluster.turns, consensus_cluster.history, consensus_cluster.refused))
        kinds = {type(said) for *_, said in consensus_cluster.sent} & set(BEATS)
        assert kinds == {Heartbeat, *([] if older else [ShortHeartbeat])}
    assert histories[0] == histories[1]


@pytest.mark.parametrize("away", [1, TIMING.known + TIMING.beat + 4])
def test_a_member_that_starts_again_gets_the_certificate(away: int) -> None:
    """It gets the certificate at once if it was away as long as a process takes to start, else within half a lease."""
    consensus_cluster = ConsensusCluster(3, 5)
    assert consensus_cluster.run(400, lambda: consensus_cluster.rounds >= 2)
    coordinator = consensus_cluster.coordinator
    assert coordinator is not None
    member = next(peer for peer in consensus_cluster.peers if peer != coordinator)
    consensus_cluster.kill(member)
    consensus_cluster.run(away)
    consensus_cluster.start(member)
    assert consensus_cluster.alive[member].election.hard_state.term == consensus_cluster.term, "it is on its disk"
    at_once = TIMING.beat + consensus_cluster.delay
    allowed = at_once if away > TIMING.known else TIMING.known + at_once
    assert consensus_cluster.run(allowed, lambda: consensus_cluster.alive[member].election.coordinator == coordinator)
    consensus_cluster.run(200)
    assert consensus_cluster.coordinator == coordinator
    assert not judge(consensus_cluster)


def test_a_member_that_does_not_reply_is_sent_the_certificate_again() -> None:
    election, now, _ = elected(5)
    replied = now
    for peer in (B, C, D, E):
        election.on_heartbeat_reply(peer, HeartbeatReply(4, Progress()))
    while now + TIMING.beat <= replied + 3 * TIMING.known:
        now, sent = next_beats(election, now)
        assert isinstance(sent[E], ShortHeartbeat) is (now - replied <= TIMING.known)
        for peer in (B, C, D):
            election.on_heartbeat_reply(peer, HeartbeatReply(4, Progress()))


# ----------------------------------------------------------------------------------------------- what a digest is worth


def test_a_digest_stands_for_the_certificate_that_was_verified() -> None:
    """Each short heartbeat renews the lease; without any, the follower becomes a candidate."""
    certificate = leader_certificate(A, 4, (A, B, C))
    election, now = led(4), TIMING.shortest
    for _ in range(10 * TIMING.shortest):
        now += 1
        election.tick(now, ())
        if now % TIMING.beat == 0:
            answer = [SendConsensus(A, HeartbeatReply(4, Progress()))]
            assert election.on_short_heartbeat(A, short(certificate)) == answer
    assert election.coordinator == A
    for _ in range(TIMING.shortest + TIMING.spread + TIMING.jitter):
        election.tick(now := now + 1, ())
    assert election.coordinator is None


def test_a_digest_that_is_not_known_changes_nothing_and_the_certificate_does() -> None:
    certificate = leader_certificate(A, 4, (A, B, C))
    election, twin = voter(), voter()
    for now in range(TIMING.shortest + 1, 4 * TIMING.shortest):
        assert election.on_short_heartbeat(A, short(certificate)) == []
        assert election.tick(now, ()) == twin.tick(now, ()), "it stands like a peer that received nothing"
        assert (election.hard_state, election.coordinator, election.followed) == (HardState(3), None, None)
    assert LeaderChanged(4, A) in election.on_heartbeat(A, certificate)
    assert said(election.on_short_heartbeat(A, short(certificate))) == [HeartbeatReply(4, Progress())]


def test_a_forged_digest_is_no_authority() -> None:
    known, forged = leader_certificate(A, 4, (A, B, C)), leader_certificate(D, 5, (D, E))
    election = led(4)
    before = (election.hard_state, election.coordinator)
    assert refused(election.on_heartbeat(D, forged)) == ["bad_signature"], "what was refused is not remembered"
    for sender, beat in [
        (D, short(forged)),
        (D, ShortHeartbeat(4, bytes(32), Progress())),
        (D, ShortHeartbeat(5, certificate_digest(SCOPE, known), Progress())),
        (A, ShortHeartbeat(5, certificate_digest(SCOPE, known), Progress())),
        (A, short(replace(known, votes=()))),
    ]:
        assert election.on_short_heartbeat(sender, beat) == []
    assert refused(election.on_short_heartbeat(D, short(known))) == ["bad_signature"], "another's certificate"
    assert said(election.on_heartbeat(A, replace(known, votes=()))) == [HeartbeatReply(4, Progress())]
    assert election.on_short_heartbeat(A, short(replace(known, votes=()))) == [], "taken, but not verified"
    assert (election.hard_state, election.coordinator) == before


def test_a_heartbeat_of_an_old_term_is_refused_whatever_it_names() -> None:
    election = led(4)
    for beat in (short(leader_certificate(C, 3, (C, D, E))), ShortHeartbeat(3, bytes(32), Progress())):
        out = election.on_short_heartbeat(C, beat)
        assert refused(out) == ["stale_term"]
        assert said(out) == [HeartbeatReply(4, Progress())]


def test_two_coordinators_of_a_term_are_named_when_one_of_them_names_its_certificate() -> None:
    election = led(4)
    other = leader_certificate(D, 4, (C, D, E))
    assert "two_coordinators" in refused(election.on_heartbeat(D, other))
    assert refused(election.on_short_heartbeat(D, short(other))) == ["stale_term"]
    assert refused(election.on_short_heartbeat(A, short(leader_certificate(A, 4, (A, B, C))))) == ["stale_term"]


def test_a_coordinator_of_an_earlier_term_is_followed_by_its_digest_while_this_one_has_none() -> None:
    """Only the last two certificates are remembered."""
    election = voter()
    certificates = [leader_certificate(peer, term, (peer, D, E)) for term, peer in ((4, A), (5, C), (6, A))]
    for each in certificates:
        election.on_heartbeat(each.candidate, each)
    now = TIMING.shortest
    while election.coordinator is not None:
        election.tick(now := now + 1, ())
    while election._has_coordinator():
        election.tick(now := now + 1, ())
    election.on_vote_request(E, vote_request(7))
    assert election.hard_state == HardState(7, E)
    assert election.on_short_heartbeat(A, short(certificates[0])) == []
    assert election.followed is None
    for each in certificates[1:]:
        assert said(election.on_short_heartbeat(each.candidate, short(each))) == [HeartbeatReply(7, Progress())]
        assert election.followed == (each.candidate, each.term)


def test_the_digest_depends_on_all_that_a_certificate_says_and_on_the_group() -> None:
    one = leader_certificate(A, 4, (A, B, C))
    others = [
        replace(one, term=5),
        replace(one, candidate=B),
        replace(one, roster=2),
        replace(one, votes=one.votes[:2]),
        replace(one, votes=((A, bytes(64)), *one.votes[1:])),
        replace(one, votes=((D, one.votes[0][1]), *one.votes[1:])),
    ]
    digests = {certificate_digest(SCOPE, each) for each in (one, *others)}
    digests |= {
        certificate_digest(scope, one) for scope in (Scope(SCOPE.federation, "else"), Scope(bytes(16), "everyone"))
    }
    assert len(digests) == len(others) + 3


# ------------------------------------------------------------------------------------------------------- older versions


def test_a_peer_of_an_earlier_release_is_sent_the_certificate_each_time() -> None:
    election, now, first = elected(5, older=(C,))
    for _ in range(5):
        for peer in first:
            election.on_heartbeat_reply(peer, HeartbeatReply(4, Progress()))
        now, sent = next_beats(election, now)
        assert {peer for peer, beat in sent.items() if isinstance(beat, Heartbeat)} == {C}
        assert sent[C] == first[C]


@pytest.mark.parametrize("seed", range(3))
def test_peers_of_two_releases_elect_and_follow_one_another(seed: int) -> None:
    consensus_cluster = ConsensusCluster(seed, 5, loss=0.3, older=(A, C, E))
    for _ in range(3):
        assert consensus_cluster.run(400, lambda: consensus_cluster.coordinator is not None)
        victim = consensus_cluster.coordinator
        assert victim is not None
        consensus_cluster.run(100)
        consensus_cluster.kill(victim)
        consensus_cluster.run(100)
        consensus_cluster.start(victim)
    assert {type(said) for _, _, to, said in consensus_cluster.sent if to in (A, C, E)} & set(BEATS) == {Heartbeat}
    assert not judge(consensus_cluster)
