"""Scenarios of coordinated rounds under faults, one function of a seed for each promise.

Each is a scenario like those of `scenarios.py`, with peers that a `ServerCluster` checks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from fedpeer.algorithms.draws import Draws
from fedpeer.peer.consensus.polls import ElectionTiming
from fedpeer.peer.state.consensus_state import ConsensusState
from fedpeer.peer.state.events import NewRoster, OperatorCommand
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.peer.wire.roster import sign
from fedpeer.sims.network.disk import DiskRules
from fedpeer.sims.network.faults import NEVER, Act, Faults
from fedpeer.sims.network.lies import ELECTION_LIES, ElectionLie
from fedpeer.sims.network.links import LinkRules, partition
from tests.faults.peer_cluster import AUTHORITY
from tests.faults.pretenders import pretend
from tests.faults.server_cluster import LED_TICKS, ServerCluster, world
from tests.faults.storms import stormy

#: Ticks in which all peers meet, elect a coordinator and begin.
CALM = 150.0
#: Links with a short delay and a little jitter.
QUICK = LinkRules(delay=0.2, jitter=0.2)
#: Ticks within which all peers hold the newest model.
TOGETHER = 400.0
#: Effects that a coordinator of three peers carries out in one and a half rounds.
ROUND = 60


def coordinator_killed(effects: int) -> None:
    """P5, P6: A coordinator that is killed after any effect of a round is soon replaced; no round is lost, done twice
    or has two results; after its restart the peer goes on with the others."""
    consensus_cluster = ServerCluster(world(3), Faults(seed=effects, links=QUICK))
    simulator = consensus_cluster.simulator
    simulator.start()
    assert consensus_cluster.reach(2, CALM), consensus_cluster.rounds()
    victim = consensus_cluster.leading()
    assert victim is not None
    simulator.kill_after(victim, simulator.carried[victim] + 1 + effects % ROUND, ticks=300.0)
    assert consensus_cluster.run(simulator.now + 400.0, lambda: victim not in simulator.machines()), (
        "it goes on speaking"
    )
    died, before = simulator.now, max(consensus_cluster.seen.models)
    led = consensus_cluster.run(died + LED_TICKS, lambda: consensus_cluster.leading() is not None)
    assert led, f"nobody leads {LED_TICKS:.0f} ticks after {victim} died"
    assert consensus_cluster.reach(before + 1, 200.0), "rounds go on without it"
    assert consensus_cluster.run(died + 310.0, lambda: victim in simulator.machines())
    consensus_cluster.settle_down()
    assert sorted(consensus_cluster.seen.models) == list(range(1, max(consensus_cluster.seen.models) + 1)), (
        "no round is left out"
    )


def client_killed(effects: int) -> None:
    """A peer that is killed after any effect and restarted at once sends the same bytes as before, and keeps what the
    server counted."""
    consensus_cluster = ServerCluster(world(3), Faults(seed=effects, links=QUICK))
    simulator, victim = consensus_cluster.simulator, "peer3"
    simulator.kill_after(victim, 1 + effects, ticks=5.0)
    simulator.start()
    assert consensus_cluster.run(CALM + 1000.0, lambda: victim not in simulator.machines()), "it was not killed"
    consensus_cluster.settle_down()


def coordinated(seed: int) -> None:
    """P6: Under any faults a round has one result, which each peer applies once and in order, and clients keep what the
    server counted."""
    made = world(3 + seed % 3)
    faults = stormy(seed, made.peers, calm=CALM)
    consensus_cluster = ServerCluster(made, faults, share=(1.0, 0.6)[seed % 2])
    consensus_cluster.simulator.start()
    consensus_cluster.settle_down()


def buffered(seed: int) -> None:
    """Under an aggregation goal each update counts in one round, whoever dies, and a peer that trains ten times as long
    costs the others no round."""
    made = world(5)
    faults = stormy(seed, made.peers, calm=CALM)
    slow = made.peers[seed % 5]
    consensus_cluster = ServerCluster(made, faults, pace={slow: 10.0}, goal=2 + seed % 3)
    consensus_cluster.simulator.start()
    consensus_cluster.settle_down()
    simulator, rounds, trained = consensus_cluster.simulator, consensus_cluster.rounds(), consensus_cluster.trainers
    before, alone = max(rounds.values()), trained[slow].trainings
    assert consensus_cluster.run(simulator.now + 3000.0, lambda: trained[slow].trainings >= alone + 2)
    consensus_cluster.run(simulator.now + TOGETHER, consensus_cluster.level)
    consensus_cluster.judge(also=consensus_cluster.law())
    passed = max(consensus_cluster.rounds().values()) - before
    assert passed >= 4, f"{passed} rounds while {slow} trained once"


def minority(seed: int) -> None:
    """A side without a majority pauses, reports this once, and resumes when the others are back; the other side goes on
    alone."""
    made = world(5)
    few = [made.peers[place] for place in Draws(seed).numpy("minority").permutation(5)[:2]]
    many = [peer for peer in made.peers if peer not in few]
    begin, end = CALM, CALM + 800.0
    faults = Faults(seed=seed, links=QUICK, cuts=partition(begin, end, few, many), heal=end)
    consensus_cluster = ServerCluster(made, faults)
    simulator = consensus_cluster.simulator
    simulator.start()
    consensus_cluster.run(begin + 400.0)
    half, rounds = consensus_cluster.rounds(), {peer: consensus_cluster.rounds()[peer] for peer in few}
    consensus_cluster.run(end - 1)
    after = consensus_cluster.rounds()
    assert {peer: after[peer] for peer in few} == rounds, "no round without a majority"
    assert all(after[peer] > half[peer] + 2 for peer in many), "the majority goes on"
    consensus_cluster.settle_down()
    notes = [row[2:4] for row in simulator.rows if row[1] == "note" and row[3] in ("rounds_paused", "rounds_resumed")]
    for peer in few:
        mine = [what for who, what in notes if who == peer]
        assert mine == ["rounds_paused", "rounds_resumed"], f"{peer} says {mine}"
    assert not [who for who, _ in notes if who in many]


def disk_lost(seed: int) -> None:
    """A voter that has lost its disk takes part, and does not vote."""
    made = world(5)
    victim = f"peer{1 + seed % 5}"
    lost = Act(CALM + 10.0 + seed % 7, "lose", victim, 20.0 + 200.0 * (seed % 2))
    consensus_cluster = ServerCluster(made, Faults(seed=seed, links=QUICK, acts=(lost,), heal=CALM + 400.0))
    simulator = consensus_cluster.simulator
    simulator.start()
    consensus_cluster.run(lost.tick + 1)
    before, since = set(consensus_cluster.seen.accepted), len(simulator.rows)
    # Its client state is lost with the disk, so `ServerCluster.law` no longer holds.
    assert consensus_cluster.run(simulator.now + 1000.0, lambda: _as_far(consensus_cluster))
    consensus_state = consensus_cluster.node(victim).durable.consensus_states[EVERYONE]
    assert consensus_state.lost == 1
    assert not consensus_state.votes
    assert not [each for each in consensus_cluster.seen.accepted - before if each[0] == victim], "it accepts nothing"
    sends = consensus_cluster.run(
        simulator.now + 400.0, lambda: any(r[1:4] == ("said", victim, "Update") for r in simulator.rows[since:])
    )
    assert sends, "it takes part"
    others = [p for p in made.peers if p != victim]
    assert all(consensus_cluster.node(peer).durable.consensus_states[EVERYONE].votes for peer in others)
    consensus_cluster.judge()


def vote_forgotten(seed: int) -> None:
    """A voter whose disk is replaced by an older one has voted in a term of which its disk does not know. It gives up
    its vote before anybody gets it, so no term has two coordinators; under a later roster it votes again."""
    links = LinkRules(delay=0.2, jitter=0.1 + 0.1 * (seed % 4), loss=0.02 * (seed % 5))
    acts = (
        Act(205.0, "kill", "peer3", 5.0),
        Act(225.0, "kill", "peer3", 5.0),  # so that peer1 knows of a start that the backup does not have
        Act(360.0, "kill", "peer2", 5.0),  # and one of the two coordinates in a later term
        Act(400.0, "kill", "peer3", 5.0),
        Act(500.0, "old", "peer3", 1.0 + seed % 40),  # from tick 200
    )
    cuts = (
        *partition(300.0, 500.0, ["peer1"], ["peer2", "peer3"]),
        *partition(500.0, 900.0, ["peer2"], ["peer1", "peer3"]),
    )
    made = world(3)
    faults = Faults(seed=seed, links=links, acts=acts, cuts=cuts, heal=900.0)
    consensus_cluster = ServerCluster(made, faults, roster=made.peers)
    simulator, seen = consensus_cluster.simulator, consensus_cluster.seen
    simulator.start()
    consensus_cluster.run(499.0)
    terms = [_consensus_state(consensus_cluster, peer).hard_state.term for peer in made.peers]
    assert terms[0] < terms[1] == terms[2], "peer3 has voted in a term of which peer1 does not know"
    seen.sent = {place: sent for place, sent in seen.sent.items() if place[0] != "peer3"}  # it trains some rounds again
    consensus_cluster.run(900.0)
    assert not _consensus_state(consensus_cluster, "peer3").votes
    before = set(seen.accepted)
    goal = max(seen.models) + 3
    assert consensus_cluster.reach(goal, 1000.0), "two of three go on, and the third follows"
    assert not [each for each in seen.accepted - before if each[0] == "peer3"], "it accepts nothing"
    later = consensus_cluster.signed(2, made.peers)
    consensus_cluster.admit(later, made.peers)
    simulator.feed("peer2", NewRoster(later))
    votes = consensus_cluster.run(simulator.now + 800.0, lambda: _consensus_state(consensus_cluster, "peer3").votes)
    assert votes, "a later roster gives the vote back"
    assert consensus_cluster.run(simulator.now + 400.0, lambda: _counts(consensus_cluster, "peer3", goal)), "it counts"
    consensus_cluster.judge()


def _consensus_state(consensus_cluster: ServerCluster, peer: str) -> ConsensusState:
    return consensus_cluster.node(peer).durable.consensus_states[EVERYONE]


def voters_change(seed: int) -> None:
    """One peer is invited and then another revoked while rounds go on: each roster takes effect by committed round, for
    all peers alike; a new peer learns under which roster the coordinator was elected, takes part, and counts."""
    made = world(5)
    *first, new = made.peers
    gone = first[seed % 4]
    links = LinkRules(delay=0.2, jitter=0.3, loss=0.1 * (seed % 2))
    consensus_cluster = ServerCluster(made, Faults(seed=seed, links=links), roster=first)
    simulator = consensus_cluster.simulator
    simulator.start(*first)
    assert consensus_cluster.reach(2, 2 * CALM), consensus_cluster.rounds()
    invited = consensus_cluster.signed(2, made.peers)
    consensus_cluster.admit(invited, made.peers)
    simulator.feed(first[(seed + 1) % 4], NewRoster(invited))
    simulator.start(new)
    everybody = consensus_cluster.run(simulator.now + 600.0, lambda: len(_in_force(consensus_cluster, 2)) == 5)
    assert everybody, f"only {_in_force(consensus_cluster, 2)} go by the new roster"
    goal = max(consensus_cluster.rounds().values()) + 3
    assert consensus_cluster.reach(goal, 600.0)
    assert (new, goal) in consensus_cluster.seen.sent or consensus_cluster.leading() == new, "it takes part"
    assert consensus_cluster.run(simulator.now + 600.0, lambda: _counts(consensus_cluster, new, goal - 1)), "it counts"
    rest = [peer for peer in made.peers if peer != gone]
    put_out = consensus_cluster.signed(3, rest)
    consensus_cluster.admit(put_out, rest)
    simulator.feed(next(peer for peer in rest if peer != new), NewRoster(put_out))
    assert consensus_cluster.run(simulator.now + 800.0, lambda: set(_in_force(consensus_cluster, 3)) == set(rest)), (
        consensus_cluster.rounds()
    )
    if gone in simulator.machines():
        simulator.kill(gone)
    assert consensus_cluster.reach(goal + 6, 800.0)
    consensus_cluster.judge(strangers=[gone, new])


def voters_join(seed: int) -> None:
    """A federation that one peer or three began grows by several members between two rounds: each roster in turn comes
    into force, a coordinator that is killed just after is replaced, and a peer that was away during all of this, or
    comes last, takes part."""
    made = world(6)
    founders, away = (made.peers[:1], ()) if seed % 2 else (made.peers[:3], (made.peers[seed // 2 % 3],))
    links = LinkRules(delay=0.2, jitter=0.1 * (1 + seed % 5), loss=0.1 * (seed % 3 == 2))
    consensus_cluster = ServerCluster(made, Faults(seed=seed, links=links), roster=founders)
    simulator, last = consensus_cluster.simulator, made.peers[-1]
    simulator.start(*founders)
    assert consensus_cluster.reach(2, 2 * CALM), consensus_cluster.rounds()
    for peer in away:
        simulator.kill(peer)
    there = [peer for peer in founders if peer not in away]
    for count in range(len(founders) + 1, len(made.peers) + 1):
        roster = consensus_cluster.signed(count - len(founders) + 1, made.peers[:count])
        consensus_cluster.admit(roster, made.peers[:count])
        simulator.feed(there[count % len(there)], NewRoster(roster))
        if made.peers[count - 1] != last:
            simulator.start(made.peers[count - 1])
        consensus_cluster.run(simulator.now + seed % 4)
    newest = len(made.peers) - len(founders) + 1
    assert consensus_cluster.run(simulator.now + 2000.0, lambda: len(_in_force(consensus_cluster, newest)) > 0)
    assert consensus_cluster.run(simulator.now + LED_TICKS, lambda: consensus_cluster.leading() is not None)
    victim, before = consensus_cluster.leading(), max(consensus_cluster.seen.models)
    assert victim is not None
    simulator.kill(victim)
    simulator.start(*away, last)
    assert consensus_cluster.reach(before + 3, 1000.0), "rounds go on without it"
    simulator.start(victim)
    consensus_cluster.settle_down(strangers=made.peers[len(founders) :])  # they speak before all have their roster
    assert len(_in_force(consensus_cluster, newest)) == len(made.peers)
    goal = max(consensus_cluster.rounds().values()) + 4
    for peer in (*away, last):
        counts = consensus_cluster.run(simulator.now + 600.0, lambda peer=peer: _counts(consensus_cluster, peer, goal))  # type: ignore[misc]
        assert counts or consensus_cluster.leading() == peer, f"{peer} accepts nothing"


def voter_readmitted(seed: int) -> None:
    """A voter is revoked and admitted again with another key, on its old disk or an empty one, while rounds go on and
    one peer is away: what it signed before counts by its old key, nobody is blamed for passing it on, and it votes
    again once a round has named the roster with its new key."""
    made = world(5)
    again, away = made.peers[seed % 5], made.peers[(seed + 1 + seed // 5 % 4) % 5]
    acts = (Act(CALM, ("kill", "lose")[seed % 2], again, 60.0), Act(CALM + seed % 7, "kill", away, 60.0))
    faults = Faults(seed=seed, links=QUICK, acts=acts, heal=CALM + 100.0)
    consensus_cluster = ServerCluster(made, faults, roster=made.peers)
    simulator, factory = consensus_cluster.simulator, consensus_cluster.node_factory
    simulator.start()
    consensus_cluster.run(CALM + 10.0)
    rest = [peer for peer in made.peers if peer != again]
    put_out, whole = consensus_cluster.signed(2, rest), consensus_cluster.signed(3, made.peers)
    factory.keys[again] = key = bytes(range(32))
    entries = tuple(replace(each, key=key) if each.id == again else each for each in whole.entries)
    admitted = sign(replace(whole, entries=entries), AUTHORITY)
    consensus_cluster.admit(admitted, made.peers)
    informed = next(peer for peer in rest if peer != away)
    for roster in (put_out, admitted):
        simulator.feed(informed, NewRoster(roster))
        consensus_cluster.run(simulator.now + 3.0 * (seed % 3))
    everybody = consensus_cluster.run(simulator.now + 1000.0, lambda: len(_in_force(consensus_cluster, 3)) == 5)
    assert everybody, f"only {_in_force(consensus_cluster, 3)} go by the new roster"
    goal = max(consensus_cluster.rounds().values()) + 3
    assert consensus_cluster.run(simulator.now + 600.0, lambda: _counts(consensus_cluster, again, goal)), "it counts"
    consensus_cluster.judge(strangers=[again])
    blamed = {(who, of) for who, code, of in consensus_cluster.seen.refused if code == "bad_signature"}
    assert not blamed, f"blamed: {blamed}"


def _counts(consensus_cluster: ServerCluster, peer: str, since: int) -> bool:
    """Return whether this peer has accepted anything from this round on."""
    return any(who == peer and round >= since for who, _, round in consensus_cluster.seen.accepted)


def coordinator_leaves(seed: int) -> None:
    """A coordinator that leaves or pauses is replaced; after its restart it goes on where the others are."""
    made = world(5)
    consensus_cluster = ServerCluster(
        made, Faults(seed=seed, links=LinkRules(delay=0.2, jitter=0.3, loss=0.05 * (seed % 3)))
    )
    simulator = consensus_cluster.simulator
    simulator.start()
    assert consensus_cluster.reach(3, 2 * CALM)
    victim = consensus_cluster.leading()
    assert victim is not None
    simulator.feed(victim, OperatorCommand(("leave", "pause")[seed % 2]))
    assert consensus_cluster.run(simulator.now + 300.0, lambda: victim in simulator.stopped)
    assert simulator.stopped.pop(victim).code == 0
    before = max(consensus_cluster.seen.models)
    assert consensus_cluster.reach(before + 4, 400.0), "rounds go on without it"
    simulator.start(victim)
    consensus_cluster.settle_down()


def ending(seed: int) -> None:
    """All peers finish all rounds and end, whatever messages are lost; no peer is left without the last model."""
    rounds = 4
    made = world(4, learning__rounds=rounds)
    links = LinkRules(delay=0.2, jitter=float(seed % 4), loss=0.1 * (seed % 4), repeat=0.1)
    acts = (Act(60.0 + 5 * seed % 40, "kill", f"peer{1 + seed % 4}", 60.0),) if seed % 2 else ()
    consensus_cluster = ServerCluster(made, Faults(seed=seed, links=links, acts=acts))
    simulator = consensus_cluster.simulator
    simulator.start()
    assert consensus_cluster.run(6000.0, lambda: len(simulator.stopped) == 4), consensus_cluster.rounds()
    assert {stop.code for stop in simulator.stopped.values()} == {0}
    durable_states = [consensus_cluster.node_factory.node(peer, simulator.kept(peer)).durable for peer in made.peers]
    consensus_states = [durable.consensus_states[EVERYONE] for durable in durable_states]
    assert {(each.settled, each.holding.round) for each in consensus_states} == {(rounds, rounds)}
    consensus_cluster.judge()


#: Ticks of `starved` from the first coordinator on; and ticks of a round in addition to its training, where five peers
#: wait for one another, each for one standstill.
STARVED, A_ROUND = 600.0, 150.0
#: Ticks until there is a first coordinator, saves not included: a process that has stood still first waits for
#: `ElectionTiming.longest`, counted in the time in which it runs, in case there is a coordinator; then one or two terms
#: follow.
FIRST = 600.0
#: Ticks for which standstills continue after the kill.
STARVED_AFTER = 800.0
#: Kinds of starved machines: mean ticks between two standstills, ticks of the longest standstill (3 s at most), ticks
#: of the longest save, and the factor by which a training takes longer.
STARVATIONS = (
    (60.0, 120.0, 0.0, 1.0),
    (60.0, 120.0, 60.0, 20.0),
    (20.0, 60.0, 40.0, 1.0),
    (60.0, 120.0, 0.0, 20.0),
    (NEVER, 2.0, 80.0, 1.0),
)
#: Ticks until the round after a kill, in addition to one training: three of the shortest leases.
NEXT_ROUND = 3 * ElectionTiming().shortest
#: Standstills that may happen in that time: one in the election, one in the round. Saves one after the other: of the
#: votes of the candidate and the others, of an update, of the model, and of its acceptance by the coordinator and the
#: others.
STANDSTILLS, SAVES = 2, 6


def starved(seed: int, ticks: float = STARVED) -> None:
    """P5: On machines that have no time for their processes the coordinator changes at most once, and rounds go on; a
    killed coordinator is replaced, and the next round comes within three of the shortest leases, one training, and the
    delays in between: one or two standstills, and slow saves one after the other.

    Processes stand still for up to 3 s each, longer where one standstill runs into the next, and at times all together;
    saves and trainings are slow as well."""
    made = world(5, gossip__deadline=30.0)
    every, longest, save, pace = STARVATIONS[seed % len(STARVATIONS)]
    first = FIRST + 10 * save
    faults = stalls(seed, made.peers, first + ticks + STARVED_AFTER, every, longest)
    paces = dict.fromkeys(made.peers, pace)
    consensus_cluster = ServerCluster(made, faults, pace=paces, disk=DiskRules(longest=save))
    simulator, training = consensus_cluster.simulator, consensus_cluster.node_factory.longest_ticks()
    simulator.start()
    assert consensus_cluster.run(first, lambda: consensus_cluster.leading() is not None)
    began = simulator.now
    consensus_cluster.run(began + ticks)
    leaders = [peer for _, _, peer in sorted(set(consensus_cluster.seen.leads), key=lambda lead: lead[1])]
    changes = sum(one != other for one, other in pairwise(leaders))
    assert changes <= 1, f"{changes} changes of leader, and nobody was killed: {consensus_cluster.seen.leads}"
    victim, before = consensus_cluster.leading(), max(consensus_cluster.seen.models, default=0)
    assert victim is not None
    # No round ends while its coordinator stands still, which may last longer where one standstill runs into the next.
    overlong = max(
        sum(max(0.0, stood - longest) for stood in standstills(acts, began, began + ticks))
        for acts in ([act for act in faults.acts if act.peer == leader] for leader in leaders)
    )
    due = int((ticks - overlong) / (A_ROUND + 4 * (training + save)))
    assert before >= due, f"{before} rounds of {due} in {ticks:.0f} ticks"
    simulator.kill(victim)
    bound = NEXT_ROUND + training + STANDSTILLS * longest + SAVES * save
    acts = [act for act in faults.acts if act.peer != victim]
    stood = sum(standstills(acts, simulator.now, simulator.now + bound)[:STANDSTILLS])
    bound += max(0.0, stood - STANDSTILLS * longest)
    on = consensus_cluster.run(simulator.now + bound, lambda: max(consensus_cluster.seen.models, default=0) > before)
    assert on, f"no round in {bound:.0f} ticks; {consensus_cluster.leading()} leads"
    simulator.start(victim)
    consensus_cluster.settle_down()


#: Ticks in which members lie about terms while there is a coordinator.
LIED = 300.0


def terms_lied_about(seed: int) -> None:
    """P5: One of four members, or two of eight, send higher terms and are candidates in them at each tick from the
    first one on: a coordinator is elected, no liar deposes it, and rounds go on; among eight, a killed coordinator is
    replaced. No honest peer is harmed."""
    made = world(8 if seed % 3 == 2 else 4, gossip__gather=2.0)
    draws = Draws(seed).numpy("liars")
    mixed = [made.peers[place] for place in draws.permutation(len(made.peers))]
    liars: dict[str, Collection[ElectionLie]] = {
        peer: [ELECTION_LIES[(seed + n) % len(ELECTION_LIES)]] for n, peer in enumerate(mixed[: len(mixed) // 4])
    }
    consensus_cluster = ServerCluster(
        made, Faults(seed=seed, links=LinkRules(delay=0.2, jitter=0.5, loss=0.05 * (seed % 2)))
    )
    simulator, honest = consensus_cluster.simulator, mixed[len(liars) :]
    simulator.start()
    pretend(simulator, consensus_cluster.node_factory.driver(), liars, 10_000.0)
    assert consensus_cluster.run(1000.0, lambda: _honest(consensus_cluster, honest) >= 2), "they begin"
    kept, before = consensus_cluster.leading(), _honest(consensus_cluster, honest)
    leads = len(consensus_cluster.seen.leads)
    consensus_cluster.run(simulator.now + LIED)
    assert consensus_cluster.leading() == kept, "nobody deposes the coordinator"
    assert len(consensus_cluster.seen.leads) == leads, consensus_cluster.seen.leads
    assert _honest(consensus_cluster, honest) >= before + 3
    assert kept is not None
    if len(made.peers) > 4:  # four members without the liar and the killed peer would have no majority
        simulator.kill(kept)
        honest = [peer for peer in honest if peer != kept]
        before = _honest(consensus_cluster, honest)
        on = consensus_cluster.run(
            simulator.now + 4 * LED_TICKS, lambda: _honest(consensus_cluster, honest) >= before + 2
        )
        assert on, "rounds go on without it"
    consensus_cluster.judge(strangers=list(liars))


def _honest(consensus_cluster: ServerCluster, peers: Sequence[str]) -> int:
    """Return the round that all of these peers have reached."""
    rounds = consensus_cluster.rounds()
    return min(rounds[peer] for peer in peers)


def _in_force(consensus_cluster: ServerCluster, number: int) -> list[str]:
    consensus_states = {
        peer: node.durable.consensus_states[EVERYONE] for peer, node in consensus_cluster.nodes().items()
    }
    return [peer for peer, consensus_state in consensus_states.items() if consensus_state.holding.roster == number]


def _as_far(consensus_cluster: ServerCluster) -> bool:
    rounds = consensus_cluster.rounds()
    return len(rounds) == len(consensus_cluster.made.peers) and min(rounds.values()) >= 24


#: Scenarios by name.
SESSIONS = {
    session.__name__: session
    for session in (
        coordinator_killed,
        client_killed,
        coordinated,
        buffered,
        minority,
        disk_lost,
        vote_forgotten,
        voters_change,
        voters_join,
        voter_readmitted,
        coordinator_leaves,
        ending,
        starved,
        terms_lied_about,
    )
}


def stalls(seed: int, peers: Sequence[str], until: float, every: float = 60.0, longest: float = 120.0) -> Faults:
    """Return the faults of a machine that has no time for its processes until a tick.

    Each process stands still again and again, some `every` ticks apart, for 2 to `longest` ticks, short times more
    often than long ones; at times all stand still together."""
    draws = Draws(seed).numpy("stalls")
    acts = []
    for together in (*((peer,) for peer in peers), tuple(peers)):
        now = float(draws.exponential(every))
        while now < until:
            ticks = float(np.exp(draws.uniform(np.log(2.0), np.log(longest))))
            acts += [Act(now, "stall", peer, ticks) for peer in together]
            now += ticks + float(draws.exponential(every if len(together) == 1 else 4 * every))
    links = LinkRules(delay=0.2, jitter=float(draws.uniform(0.2, 3.0)))
    return Faults(seed=seed, links=links, acts=tuple(sorted(acts, key=lambda act: act.tick)), heal=until)


def standstills(acts: Sequence[Act], begin: float, end: float) -> list[float]:
    """Return the ticks of all standstills of single processes between two ticks, longest first; a standstill that
    begins during another one extends it."""
    found: list[float] = []
    spans: dict[str, tuple[float, float]] = {}
    for act in (act for act in acts if act.tick < end):  # in the order of their ticks
        since, until = spans.get(act.peer, (begin, begin))
        if act.tick > until:
            found.append(until - since)
            since = act.tick
        spans[act.peer] = since, max(until, min(end, act.tick + act.ticks))
    found += [until - since for since, until in spans.values()]
    return sorted(found, reverse=True)
