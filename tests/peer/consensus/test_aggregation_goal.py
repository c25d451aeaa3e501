"""Rounds that close after some of the updates: what counts later, what never does, and what its client learns of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fedpeer.peer.consensus.round_results import server_result
from fedpeer.peer.node.node import Node
from fedpeer.peer.state.events import AggregateUpdates, Effect, NewRoster, RejectEffect, Send
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.peer.wire.messages import Ack, RejectMessage
from fedpeer.rejection import Rejection
from tests.faults.server_cluster import BYTES, ServerCluster, world
from tests.peer.consensus.test_round_consensus import leader_of, numbers, refusals, sat, told, update

#: The first of three peers trains so long that it never sends an update by itself here.
PACE, GOAL = {"peer1": 1e6}, 2


def counted_of(node: Node) -> dict[str, int]:
    return dict(node.consensus_by_group[EVERYONE].in_force.counted)


def jobs_of(consensus_cluster: ServerCluster) -> list[AggregateUpdates]:
    """Return a list to which each round is added that is closed from now on."""
    jobs: list[AggregateUpdates] = []
    said = consensus_cluster.simulator.on_effect

    def on_effect(peer: str, effect: Effect) -> None:
        said(peer, effect)
        if isinstance(effect, AggregateUpdates):
            jobs.append(effect)

    consensus_cluster.simulator.on_effect = on_effect
    return jobs


def late_at(peers: int = 3) -> tuple[ServerCluster, Node]:
    """Return a cluster and its coordinator after two rounds without peer1."""
    consensus_cluster = sat(peers, round=0, pace=PACE, goal=GOAL, roster=world(peers).peers)
    quick = [peer for peer in consensus_cluster.made.peers if peer not in PACE]
    assert consensus_cluster.run(1000.0, lambda: min(consensus_cluster.rounds().get(peer, 0) for peer in quick) >= 3)
    return consensus_cluster, leader_of(consensus_cluster)


@pytest.mark.slow
def test_an_update_of_an_earlier_round_counts_once_in_a_later_one() -> None:
    consensus_cluster, node = late_at()
    assert "peer1" not in counted_of(node)
    late = update(node, numbers(1, 2), late=2)
    acks = [each.message for each in told(node, "peer1", late) if isinstance(each, Send)]
    assert acks == [Ack(group=EVERYONE, taken=late.term, round=late.round)]
    assert consensus_cluster.run(consensus_cluster.simulator.now + 400.0, lambda: "peer1" in counted_of(node))
    assert counted_of(node)["peer1"] == late.round, "the model names the round of the training"
    before = node.consensus_by_group[EVERYONE].in_force
    assert not refusals(told(node, "peer1", late)), "who did not hear that it counted is told again"
    assert "peer1" not in node.consensus_by_group[EVERYONE]._gathering.updates
    assert node.consensus_by_group[EVERYONE].in_force == before


@pytest.mark.slow
def test_the_next_coordinator_does_not_count_it_again() -> None:
    consensus_cluster, node = late_at(5)
    simulator, late = consensus_cluster.simulator, update(node, numbers(1, 2), late=2)
    told(node, "peer1", late)
    assert consensus_cluster.run(simulator.now + 400.0, lambda: "peer1" in counted_of(node))
    consensus_cluster.run(simulator.now + 20.0)
    simulator.kill(node.state.me)
    assert consensus_cluster.run(
        simulator.now + 400.0, lambda: consensus_cluster.leading() not in (None, node.state.me)
    )
    following = leader_of(consensus_cluster)
    consensus = following.consensus_by_group[EVERYONE]
    again = replace(late, term=consensus.round_commit.election.hard_state.term)
    assert [type(each.message) for each in told(following, "peer1", again) if isinstance(each, Send)] == [Ack]
    assert "peer1" not in consensus._gathering.updates


@pytest.mark.slow
def test_the_update_of_who_is_revoked_before_it_counts_is_dropped() -> None:
    """The update came too late for the round whose result brings the roster without its client."""
    consensus_cluster, node = late_at()
    consensus, simulator = node.consensus_by_group[EVERYONE], consensus_cluster.simulator
    jobs = jobs_of(consensus_cluster)
    assert consensus_cluster.run(simulator.now + 400.0, lambda: bool(jobs) and consensus._gathering.closed)
    told(node, "peer1", update(node, numbers(1, 2), late=1))
    assert "peer1" in consensus._gathering.updates, "it waits for the next round"
    rest = tuple(peer for peer in consensus_cluster.made.peers if peer != "peer1")
    simulator.feed(node.state.me, NewRoster(consensus_cluster.signed(2, rest)))
    assert consensus_cluster.run(simulator.now + 400.0, lambda: jobs[-1].clients == rest)
    assert all("peer1" not in job.updates for job in jobs)


@pytest.mark.slow
def test_it_is_taken_while_the_result_of_a_round_is_proposed() -> None:
    consensus_cluster, node = late_at()
    consensus, simulator = node.consensus_by_group[EVERYONE], consensus_cluster.simulator
    assert consensus_cluster.run(simulator.now + 400.0, lambda: consensus.round_commit._open is not None)
    assert not refusals(told(node, "peer1", update(node, numbers(1, 2), late=1)))
    assert consensus_cluster.run(simulator.now + 400.0, lambda: "peer1" in counted_of(node))


@pytest.mark.slow
def test_one_for_a_round_that_is_not_open_yet_is_refused() -> None:
    _, node = late_at()
    assert refusals(told(node, "peer1", update(node, numbers(1, 2), late=-1))) == ["round_gap"]


@pytest.mark.slow
def test_what_is_left_out_of_a_round_is_not_looked_at_in_the_next() -> None:
    consensus_cluster, node = late_at()
    simulator, consensus = consensus_cluster.simulator, node.consensus_by_group[EVERYONE]
    jobs = jobs_of(consensus_cluster)
    told(node, "peer1", update(node, numbers(1, 2), late=1))
    assert consensus_cluster.run(simulator.now + 400.0, lambda: any("peer1" in job.updates for job in jobs))
    done = server_result(jobs[-1], bytes(BYTES), sound=True, out={"peer1": Rejection("too_far", "it moved by 9")})
    effects = node.step(done)
    assert [each.rejection.code for each in effects if isinstance(each, RejectEffect)] == ["too_far"]
    assert "peer1" not in consensus._gathering.updates


@pytest.mark.slow
def test_a_coordinator_whose_own_update_is_left_out_trains_again() -> None:
    consensus_cluster, node = late_at()
    consensus, me = node.consensus_by_group[EVERYONE], node.state.me
    jobs = jobs_of(consensus_cluster)
    until = consensus_cluster.simulator.now + 400.0
    assert consensus_cluster.run(until, lambda: any(me in job.updates for job in jobs))
    assert consensus.update_waits
    node.step(server_result(jobs[-1], bytes(BYTES), sound=True, out={me: Rejection("too_far", "it moved by 9")}))
    assert not consensus.update_waits


@pytest.mark.slow
def test_whose_update_is_refused_trains_again_and_the_others_go_on() -> None:
    liars = {"peer2": frozenset(range(3, 60))}
    consensus_cluster = sat(5, round=3, liars=liars, goal=3)
    simulator, before = consensus_cluster.simulator, consensus_cluster.trainers["peer2"].trainings
    highest = max(consensus_cluster.rounds().values())
    assert consensus_cluster.run(
        simulator.now + 2000.0, lambda: consensus_cluster.trainers["peer2"].trainings >= before + 3
    )
    assert max(consensus_cluster.rounds().values()) >= highest + 2
    codes = Counter(code for _, code, sender in consensus_cluster.seen.refused if sender == "peer2")
    assert codes["not_finite"] >= 2 or consensus_cluster.leading() == "peer2"
    consensus_cluster.run(simulator.now + 400.0, consensus_cluster.level)
    assert not consensus_cluster.law()


@pytest.mark.slow
def test_a_round_without_a_result_drops_its_updates_and_tells_their_clients() -> None:
    """Finite updates with an infinite sum would spoil every later round, and their clients would wait forever."""
    consensus_cluster = sat(5, round=2, goal=5)
    for trainer in consensus_cluster.trainers.values():
        trainer.huge = frozenset({5})
    with np.errstate(over="ignore"):
        assert consensus_cluster.reach(8, 1500.0), consensus_cluster.rounds()
    void = [row for row in consensus_cluster.simulator.rows if row[1] == "note" and row[3] == "round_void"]
    assert len(void) == 1
    told = {sender for _, code, sender in consensus_cluster.seen.refused if code == "not_finite"}
    assert len(told) == 4, "all but the coordinator's own"
    consensus_cluster.run(consensus_cluster.simulator.now + 400.0, consensus_cluster.level)
    assert not consensus_cluster.law()


@pytest.mark.slow
def test_only_the_coordinator_can_make_a_client_drop_its_update() -> None:
    consensus_cluster, node = late_at()
    client = next(each for peer, each in consensus_cluster.nodes().items() if peer not in (node.state.me, "peer1"))
    consensus, simulator = client.consensus_by_group[EVERYONE], consensus_cluster.simulator
    assert consensus_cluster.run(simulator.now + 400.0, lambda: consensus.update_waits)
    refusal = RejectMessage(code="not_finite", group=EVERYONE, seq=0, text="")
    told(client, "peer1", refusal)
    assert consensus.update_waits
    told(client, node.state.me, refusal)
    assert not consensus.update_waits


@pytest.mark.slow
def test_a_killed_coordinator_costs_no_update() -> None:
    """Clients send the updates that it had not counted to the next coordinator, as the same bytes."""
    consensus_cluster = sat(5, round=3, pace={"peer2": 10.0}, goal=2)
    simulator = consensus_cluster.simulator
    for _ in range(2):
        leader = consensus_cluster.leading()
        assert leader is not None
        simulator.kill(leader)
        assert consensus_cluster.run(simulator.now + 400.0, lambda: consensus_cluster.leading() is not None)
        simulator.start(leader)
        consensus_cluster.run(simulator.now + 100.0)
    consensus_cluster.settle_down()
