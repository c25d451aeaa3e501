"""A peer, or two of five, without any answers for a while: what that costs the other peers meanwhile and afterwards.

Each seed is one combination of the fault, its duration, and how the peers average. The rates of rounds after the fault
are compared with the rate before it. `isolated` runs synchronous gossip, `isolated_coordinated` groups with
coordinators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from fedpeer.peer.node.node import Node
from fedpeer.peer.state.events import Effect, Note
from fedpeer.sims.network.faults import Faults, faults_from
from fedpeer.sims.network.links import LinkRules
from fedpeer.sims.network.simulator import Simulator
from tests.faults import group_cluster as clusters
from tests.faults.peer_cluster import PeerCluster, world

#: Tick at which the fault begins, and ticks before it in which the undisturbed rate is measured.
BEGIN, MEASURED = 400.0, 250.0
#: Ticks in a second.
SECOND = 40.0
#: Seconds after the fault within which everything has to be as before; two undisturbed rounds, where they take longer.
BACK_S = 10.0
#: Least rate of rounds, as a fraction of the undisturbed rate.
RATE = 0.8
#: Least and most weight of a peer at the end of a round, as fractions of its first weight.
LEAST, MOST = 0.2, 2.0
#: Rounds that an isolated peer may use up, however long it is alone, beyond the rounds of which it hears from others: a
#: peer that hears the others without reaching them follows them, and uses up none.
ALONE_ROUNDS = 2

KINDS = ("cut:1", "cut:1+2", "oneway:1", "oneway:1,direction=in", "freeze:1", "apart")
SECONDS, EXCHANGES, DEADLINES, GRAPHS = (5.0, 30.0), (1, 4, 10), (2.0, 30.0), ("complete", "ring")
#: All combinations; a seed is the number of one, and larger seeds repeat them with other links.
COMBINATIONS = tuple(product(KINDS, SECONDS, EXCHANGES, DEADLINES, GRAPHS))
#: The same for groups with coordinators.
COORDINATED = tuple(product(KINDS[:5], SECONDS, DEADLINES))


@dataclass
class Watch:
    """The rounds that peers finish, and their weights at that time."""

    simulator: Simulator
    rounds: list[tuple[float, str, int, Mapping[str, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        before = self.simulator.on_effect

        def said(peer: str, effect: Effect) -> None:
            before(peer, effect)
            if isinstance(effect, Note) and effect.what == "round":
                fields: Mapping[str, Any] = effect.fields
                self.rounds.append((self.simulator.now, peer, fields["round"], fields["weights"]))

        self.simulator.on_effect = said

    def rate(self, begin: float, end: float, among: Sequence[str] = ()) -> float:
        """Return the rounds per tick of the slowest peer of all, or of these."""
        peers = among or self.simulator.peers
        done = [sum(begin <= tick < end for tick, peer, *_ in self.rounds if peer == each) for each in peers]
        return min(done) / (end - begin)

    def weights(self, since: float) -> list[float]:
        return [weight for tick, _, _, held in self.rounds if tick >= since for weight in held.values()]


def faults_of(kind: str, seconds: float, peers: tuple[str, ...], seed: int) -> Faults:
    """Return the fault from `BEGIN` on, over quick links."""
    at = f"at={BEGIN / SECOND:g},for={seconds:g}"
    named = [f"cut:{number + 1},{at}" for number in range(len(peers))] if kind == "apart" else [f"{kind},{at}"]
    links = LinkRules(delay=0.2, jitter=0.2 + seed % 5 / 4)
    return replace(faults_from("/".join(named), peers), seed=seed, links=links, heal=BEGIN + seconds * SECOND)


def isolated(seed: int) -> None:
    """Soon after a cut, a one-way cut or a freeze, rounds go on as before, and no peer has lost or gained much
    weight."""
    kind, seconds, exchanges, deadline, graph = COMBINATIONS[seed % len(COMBINATIONS)]
    isolate(kind, seconds, exchanges, deadline, graph, seed)


def isolate(kind: str, seconds: float, exchanges: int, deadline: float, graph: str, seed: int) -> None:
    made = world(
        5 if kind == "cut:1+2" else 4,
        gossip__exchanges=exchanges,
        gossip__deadline=deadline,
        gossip__topology=graph,
    )
    # Other scenarios check every step of a cut; here checks of every step would take a third of a run's time.
    cluster = PeerCluster(made, faults_of(kind, seconds, made.peers, seed), look_every=1.0)
    watch = Watch(cluster.simulator)
    cluster.simulator.start()
    cluster.run(BEGIN)
    before = rounds_of(cluster.nodes())
    cluster.run(cluster.simulator.faults.heal)
    lone = made.peers if kind == "apart" else () if kind == "cut:1+2" else made.peers[:1]
    for peer in lone:
        node = cluster.node(peer)
        heard = max(node.state.others.round_of(other) for other in made.peers if other != peer)
        alone = node.durable.round - max(before[peer], heard)
        # A part of a short isolation may pass before the others are considered dead.
        assert alone <= ALONE_ROUNDS or seconds <= 5.0, f"{peer} alone used up {alone} rounds"
    since = _as_before(cluster.simulator, watch, cluster.run)
    weights = watch.weights(since)
    assert min(weights) >= LEAST, f"{min(weights)} of a weight of 1 is left to somebody"
    assert max(weights) <= MOST, f"somebody has a weight of {max(weights)}"
    rounds = rounds_of(cluster.nodes()).values()
    assert max(rounds) - min(rounds) <= 1, cluster.phases()
    cluster.judge()


def isolated_coordinated(seed: int) -> None:
    """Groups with coordinators go on as before after an isolation: an isolated peer pauses, and the others do not wait
    for it."""
    kind, seconds, deadline = COORDINATED[seed % len(COORDINATED)]
    isolate_coordinated(kind, seconds, deadline, seed)


def isolate_coordinated(kind: str, seconds: float, deadline: float, seed: int) -> None:
    made = clusters.world(gossip__deadline=deadline)
    cluster = clusters.GroupCluster(made, faults_of(kind, seconds, made.peers, seed))
    watch = Watch(cluster.simulator)
    cluster.simulator.start()
    cluster.run(BEGIN)
    before = {each: max(cluster.rounds(each).values()) for each in cluster.groups}
    cluster.run(cluster.simulator.faults.heal)
    if kind in ("cut:1", "freeze:1") and seconds > BACK_S:
        assert all(max(cluster.rounds(each).values()) > before[each] + 3 for each in cluster.groups), "the others go on"
    _as_before(cluster.simulator, watch, cluster.run)
    cluster.judge()


def _as_before(simulator: Simulator, watch: Watch, run: Callable[[float], bool]) -> float:
    """Return the tick at which everything has to be as before, and check the rate of rounds from then on against the
    rate before the fault."""
    usual = watch.rate(BEGIN - MEASURED, BEGIN)
    since = simulator.now + max(BACK_S * SECOND, 2 / usual)
    until = since + max(BACK_S * SECOND, 12 / usual)
    run(until)
    rate = watch.rate(since, until) / usual
    assert rate >= RATE, f"{rate:.2f} of the undisturbed rate, {BACK_S:g} s after it was over"
    return since


def rounds_of(nodes: Mapping[str, Node]) -> dict[str, int]:
    return {peer: node.durable.round for peer, node in nodes.items()}


#: Scenarios by name.
ISOLATIONS = {scenario.__name__: scenario for scenario in (isolated, isolated_coordinated)}
