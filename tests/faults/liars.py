"""Lying members, one of four or two of eight, with one lie or with all of them: what honest peers lose by it.

Each seed is a lie, a size and links. The liars also follow the protocol, and send their lies to everybody every other
tick. `liars` compares a long time of lies with the calm before it. `liars_soon` is short, so that there is time for
thousands of seeds: one of four lies while peers meet, or in their first rounds.

Lies about coordinators' terms are sent where groups have coordinators (`liars`, lie `term`); all others are sent among
peers without a server.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from fedpeer.gossip.transfers import Incoming
from fedpeer.peer.state.durable_state import DurableState
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.sims.network.faults import Act, Faults, Lying
from fedpeer.sims.network.lies import LIES
from fedpeer.sims.network.links import LinkRules, partition
from fedpeer.sims.network.node_factory import STEP_S
from tests.faults.group_cluster import GroupCluster
from tests.faults.group_cluster import world as guild_world
from tests.faults.isolation import Watch
from tests.faults.peer_cluster import EXACT, STEPS, PeerCluster, world
from tests.reference import audit, judges

#: Tick from which the undisturbed run is measured; tick at which lies begin; ticks for which they last.
MEASURED, BEGIN, LIED = 150.0, 350.0, 400.0
#: In short runs: tick before which lies begin, ticks for which they last, and ticks afterwards within which honest
#: peers begin the round of this number.
SOON, BRIEF, AFTERWARDS, DONE = 60, 100.0, 300.0, 3
#: Least rate of rounds, as a fraction of the undisturbed rate.
RATE = 0.5
#: Ticks for which an honest peer may consider another one dead (P8).
BURIED = 200.0
#: Number of shares of one neighbor in one group that may wait.
WAITING = 256
#: Ticks within which groups with coordinators advance by five rounds.
PATIENCE = 400.0
#: Lies that no honest peer can send: in the end honest peers do not listen to a peer that sends them.
PROVABLE = ("life", "weight", "exchange", "value", "contract", "roster")

#: Lies by the number of a seed, of all lies among peers without a server. The lie `ahead` has a scenario of its own.
SAID: tuple[tuple[str, ...], ...] = (*((lie,) for lie in LIES if lie not in ("term", "ahead")), tuple(LIES))

#: How one honest peer of `liars_ahead` comes to hear nobody but the liar, and the graphs.
LONE, GRAPHS = ("from the start", "after a restart", "in a cut"), ("complete", "ring")
#: Ticks for which it hears only the liar, and how much faster than usual it may be in the second half of them. Without
#: a bound it averages with nobody, and is up to 2.7 times as fast.
COMPANY, PACE = 500.0, 1.5


def liars(seed: int) -> None:
    """Honest peers go on, none of them is blocked, declared dead, overloaded or made a new incarnation, and a peer that
    provably lies is blocked."""
    lies = (*SAID, ("term",))[seed % (len(SAID) + 1)]
    if lies == ("term",):
        _about_terms(seed)
        return
    big = seed // (len(SAID) + 1) % 2
    run = _Run(seed, lies, 8 if big else 4, 2 if big else 1, BEGIN, LIED)
    run.play()
    rate = run.watch.rate(BEGIN, run.end, run.honest) / run.watch.rate(MEASURED, BEGIN, run.honest)
    assert rate >= RATE, f"{rate:.2f} of the undisturbed rate of rounds: {run.cluster.phases()}"
    if set(lies) & set(PROVABLE):
        assert not run.received, f"liars are still listened to: {sorted(run.received)}"


def liars_soon(seed: int) -> None:
    """A peer that lies from the first ticks on breaks no promise, and honest peers begin their third round."""
    begin = float(seed // len(SAID) % SOON)
    run = _Run(seed, SAID[seed % len(SAID)], 4, 1, begin, BRIEF)
    run.play()
    nodes = [run.cluster.node(peer) for peer in run.honest]
    begun = run.cluster.run(run.end + AFTERWARDS, lambda: all(node.durable.round >= DONE for node in nodes))
    assert begun, run.cluster.phases()


def liars_ahead(seed: int) -> None:
    """One member's claim about its round takes no peer to that round: neither a peer that has met only that member (at
    its start, after a restart or in a cut), nor any other peer afterwards."""
    lone, graph = LONE[seed % len(LONE)], GRAPHS[seed // len(LONE) % len(GRAPHS)]
    made = world(4, gossip__topology=graph, gossip__gather=2.0)
    victim, *others, liar = made.peers
    begin = 0.0 if lone == "from the start" else BEGIN + seed // 6
    cuts = partition(begin, begin + COMPANY, [victim], others)
    acts = (Act(begin, "kill", victim, 20.0 + seed % 7),) if lone == "after a restart" else ()
    lying = (Lying(0.0, math.inf, liar, ("ahead",)),)
    links = LinkRules(delay=0.2, jitter=0.2 + seed % 5 / 4)
    faults = Faults(seed=seed, links=links, cuts=cuts, acts=acts, liars=lying)
    cluster = PeerCluster(made, faults, forgetful=True)
    watch = Watch(cluster.simulator)
    cluster.simulator.start()
    honest, end = made.peers[:-1], begin + COMPANY
    cluster.run(end)
    quickest = cluster.simulator.now / (STEPS * STEP_S / made.federation.gossip.tick)
    assert max(_rounds_of(cluster, honest)) <= quickest, f"no other way leads so far: {cluster.phases()}"
    cluster.run(end + AFTERWARDS)
    begun = cluster.simulator.now
    cluster.run(begun + BEGIN - MEASURED)
    assert max(_rounds_of(cluster, honest)) - min(_rounds_of(cluster, honest)) <= 1, cluster.phases()
    assert {cluster.node(peer).phase for peer in honest} == {"learning"}, cluster.phases()
    after = watch.rate(begun, cluster.simulator.now, honest)
    alone, together = (watch.rate(begin + COMPANY / 2, end, peers) for peers in ([victim], others))
    assert alone <= PACE * after, f"{victim} was {alone / after:.2f} times as fast in the liar's company as later"
    assert after >= RATE * together, f"afterwards {after / together:.2f} of the others' rate before"


def _rounds_of(cluster: PeerCluster, peers: Sequence[str]) -> list[int]:
    return [cluster.node(peer).durable.round for peer in peers]


class _Run:
    """One run among peers without a server, the last of which lie from tick `begin` on for `ticks` ticks.

    Attributes:
        received    each (honest peer, liar to which it still listened at the end)
    """

    def __init__(self, seed: int, lies: tuple[str, ...], peers: int, false: int, begin: float, ticks: float) -> None:
        made = world(peers, gossip__topology="complete", gossip__gather=2.0)
        self.lies, self.begin, self.end = lies, begin, begin + ticks
        self.honest, self.false = made.peers[:-false], made.peers[-false:]
        links = LinkRules(delay=0.2, jitter=0.2 + seed % 5 / 4, loss=0.05 * (seed % 3))
        lying = tuple(Lying(begin, self.end, peer, lies) for peer in self.false)
        self.cluster = PeerCluster(made, Faults(seed=seed, links=links, liars=lying), forgetful=True)
        self.thought, self.watch = self.cluster.standings(), Watch(self.cluster.simulator)

    def play(self) -> None:
        """Play the run, and assert what holds at all times and at its end."""
        cluster, closed = self.cluster, set[tuple[str, str]]()
        cluster.simulator.start()
        cluster.run(self.begin)
        for tick in range(int(self.begin), int(self.end), 10):
            cluster.run(tick + 10.0)
            closed |= _closed(cluster, self.honest)
            _assert_unharmed(cluster, self.honest, self.false, closed)
        buried = max(self.thought.burials(cluster.simulator.now, self.honest), default=0.0)
        assert buried <= BURIED, f"somebody honest was thought dead for {buried:.0f} ticks"
        self.received = {(one, other) for one in self.honest for other in self.false} - closed
        _judge(cluster, self.honest, poisoned="value" in self.lies)


def _assert_unharmed(
    cluster: PeerCluster, honest: Sequence[str], false: Sequence[str], closed: Collection[tuple[str, str]]
) -> None:
    """Assert that lies have not harmed honest peers so far; `closed` holds each (peer, peer to which it did not listen)
    up to now."""
    tick = f"tick {cluster.simulator.now:.0f}"
    assert set(honest) <= cluster.nodes().keys(), f"{tick}: ended: {cluster.simulator.stopped}"
    durable_states = {peer: cluster.node(peer).durable for peer in honest}
    lives = {peer: durable.incarnation for peer, durable in durable_states.items()}
    assert set(lives.values()) == {1}, f"{tick}: nobody was started again: {lives}"
    far = max(_far(durable_states, false))
    assert far <= EXACT, f"{tick}: {far:.3g} of the weight is not there, or twice"
    crowded = max(_waiting(durable) for durable in durable_states.values())
    assert crowded <= WAITING, f"{tick}: {crowded} shares of one neighbor wait"
    among = sorted(pair for pair in closed if set(pair) <= set(honest))
    assert not among, f"{tick}: honest peers do not listen to one another: {among}"


def _judge(cluster: PeerCluster, honest: Sequence[str], *, poisoned: bool) -> None:
    rows = [row for row in cluster.simulator.rows if row[1] != "refused" or {row[2], row[-1]} <= {*honest, ""}]
    took = [each for each in judges.durable(rows) if each[1] in honest and each[2][1][1] in honest]
    judges.judged(
        [each for each in cluster.outside if any(f" {peer}'s " in each for peer in honest) and not poisoned],
        judges.saved_before_said(rows),
        judges.taken_once_and_in_order(took),
        judges.only_harmless(rows, {code: refusal.kind for code, refusal in REJECTIONS.items()}),
    )


def _closed(cluster: PeerCluster, honest: Sequence[str]) -> set[tuple[str, str]]:
    """Return all (honest peer, peer to which it does not listen now)."""
    lives = {peer: node.state for peer, node in cluster.nodes().items() if peer in honest}
    return {
        (one, other) for one, state in lives.items() for other in cluster.made.peers if not state.others.listens(other)
    }


def _far(durable_states: Mapping[str, DurableState], false: Sequence[str]) -> list[float]:
    """Return, by group, the part of the weight among these peers that is missing or there twice, when the weight that
    each of them gave to the liars, less the weight that it took from them, is counted in."""
    found = []
    for group, (there, put) in audit.weights(durable_states).items():
        given = sum(_given(durable, group, liar) for durable in durable_states.values() for liar in false)
        found.append(abs(there + given - put) / put)
    return found


def _given(durable: DurableState, group: str, liar: str) -> float:
    holding = durable.groups[group]
    out = holding.out[liar].weight_until(holding.out[liar].made) if liar in holding.out else 0.0
    return out - holding.into.get(liar, Incoming()).taken_weight


def _waiting(durable: DurableState) -> int:
    """Return the largest number of shares of one neighbor that wait in one group."""
    kept = [
        sum(place[2] == peer for place in (*holding.waiting, *holding.nothing))
        for holding in durable.groups.values()
        for peer in durable.met
    ]
    return max(kept, default=0)


def _about_terms(seed: int) -> None:
    """Run one liar about terms among five peers in three groups, each with a coordinator."""
    made = guild_world(gossip__gather=2.0)
    liar = made.peers[seed % 5]
    lying = (Lying(0.0, 10_000.0, liar, ("term",)),)
    cluster = GroupCluster(made, Faults(seed=seed, links=LinkRules(delay=0.2, jitter=0.3), liars=lying))
    cluster.simulator.start()

    def reach(goal: int) -> bool:
        """Run until every honest peer is in this round of each of its groups."""
        ends = cluster.simulator.now + PATIENCE
        return cluster.run(ends, lambda: all(each >= goal for each in _rounds(cluster, liar).values()))

    assert reach(2), _rounds(cluster, liar)
    kept = {each: cluster.leading(each) for each in cluster.groups}
    assert reach(max(_rounds(cluster, liar).values()) + 5), _rounds(cluster, liar)
    assert {each: cluster.leading(each) for each in cluster.groups} == kept, "nobody deposes a coordinator"
    cluster.judge(strangers=[liar])


def _rounds(cluster: GroupCluster, liar: str) -> dict[tuple[str, str], int]:
    """Return the round by group and honest peer."""
    return {
        (group, peer): round
        for group in cluster.groups
        for peer, round in cluster.rounds(group).items()
        if peer != liar
    }


#: Scenarios by name.
LIARS = {each.__name__: each for each in (liars, liars_soon, liars_ahead)}
