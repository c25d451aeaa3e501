"""One of four members lies, or two of eight, in one way or in all of them: what the honest lose by it.

Each seed is a lie, a size and links. The liars do their part besides, and say their lies to everybody every other tick.

Coordinators' terms are lied about where groups have coordinators (`liars`, lie `term`); all else is said among equals.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fedpeer.gossip.transfers import Incoming
from fedpeer.peer.state.durable_state import DurableState
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.sims.network.faults import Faults, Lying
from fedpeer.sims.network.lies import LIES
from fedpeer.sims.network.links import LinkRules
from tests.faults.group_cluster import GroupCluster
from tests.faults.group_cluster import world as guild_world
from tests.faults.isolation import Watch
from tests.faults.peer_cluster import EXACT, PeerCluster, world
from tests.reference import audit, judges

#: Ticks of an undisturbed run before which nothing is measured, and at which lies begin; of lies, half as many among
#: eight.
MEASURED, BEGIN, LIED = 150.0, 350.0, 800.0
#: Of the undisturbed rate of rounds.
RATE = 0.5
#: Ticks for which an honest peer may think another one dead (P8).
BURIED = 200.0
#: Shares of one neighbor in one group that may wait.
WAITING = 256
#: Ticks in which groups with coordinators go on by five rounds.
PATIENCE = 400.0
#: Lies that no honest peer can say: whoever says them is not listened to in the end.
PROVABLE = ("life", "weight", "exchange", "value", "contract", "roster")

#: By the number of a seed: what is lied, of all that is said among equals.
SAID: tuple[tuple[str, ...], ...] = (*((lie,) for lie in LIES if lie != "term"), tuple(LIES))


def liars(seed: int) -> None:
    """Honest peers go on, nobody of them is blocked, buried, loaded or born again, and who provably lies is blocked."""
    lies = (*SAID, ("term",))[seed % (len(SAID) + 1)]
    if lies == ("term",):
        _about_terms(seed)
        return
    big = seed // (len(SAID) + 1) % 2
    made = world(8 if big else 4, gossip__topology="complete", gossip__gather=2.0)
    false = made.peers[-2:] if big else made.peers[-1:]
    honest = tuple(peer for peer in made.peers if peer not in false)
    links = LinkRules(delay=0.2, jitter=0.2 + seed % 5 / 4, loss=0.05 * (seed % 3))
    end = BEGIN + (LIED / 2 if big else LIED)
    lying = tuple(Lying(BEGIN, end, peer, lies) for peer in false)
    cluster = PeerCluster(made, Faults(seed=seed, links=links, liars=lying), forgetful=True)
    thought, watch = cluster.standings(), Watch(cluster.simulator)
    cluster.simulator.start()
    cluster.run(BEGIN)
    closed = set[tuple[str, str]]()
    for tick in range(int(BEGIN), int(end), 10):
        cluster.run(tick + 10.0)
        closed |= _closed(cluster, honest)
        _assert_unharmed(cluster, honest, false, closed)
    rate = watch.rate(BEGIN, end, honest) / watch.rate(MEASURED, BEGIN, honest)
    assert rate >= RATE, f"{rate:.2f} of the undisturbed rate of rounds: {cluster.phases()}"
    buried = max(thought.burials(cluster.simulator.now, honest), default=0.0)
    assert buried <= BURIED, f"somebody honest was thought dead for {buried:.0f} ticks"
    if set(lies) & set(PROVABLE):
        received = {(one, other) for one in honest for other in false} - closed
        assert not received, f"liars are still listened to: {sorted(received)}"
    _judge(cluster, honest, poisoned="value" in lies)


def _assert_unharmed(
    cluster: PeerCluster, honest: Sequence[str], false: Sequence[str], closed: Collection[tuple[str, str]]
) -> None:
    """What lies must not do to the honest, at any moment; closed are those to whom somebody did not listen so far."""
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
    """(who, whom): each of the honest, and those to whom it does not listen now."""
    lives = {peer: node.state for peer, node in cluster.nodes().items() if peer in honest}
    return {
        (one, other) for one, state in lives.items() for other in cluster.made.peers if not state.others.listens(other)
    }


def _far(durable_states: Mapping[str, DurableState], false: Sequence[str]) -> list[float]:
    """By group, the part of the weight among these that is missing, or twice, when what each of them gave to those who
    lie, less what it took of them, is counted by name."""
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
    """The most shares of one neighbor that wait in one group."""
    kept = [
        sum(place[2] == peer for place in (*holding.waiting, *holding.nothing))
        for holding in durable.groups.values()
        for peer in durable.met
    ]
    return max(kept, default=0)


def _about_terms(seed: int) -> None:
    """One of five in three groups, each with a coordinator."""
    made = guild_world(gossip__gather=2.0)
    liar = made.peers[seed % 5]
    lying = (Lying(0.0, 10_000.0, liar, ("term",)),)
    cluster = GroupCluster(made, Faults(seed=seed, links=LinkRules(delay=0.2, jitter=0.3), liars=lying))
    cluster.simulator.start()

    def reach(goal: int) -> bool:
        """Let time pass until every honest peer is in this round of each of its groups."""
        ends = cluster.simulator.now + PATIENCE
        return cluster.run(ends, lambda: all(each >= goal for each in _rounds(cluster, liar).values()))

    assert reach(2), _rounds(cluster, liar)
    kept = {each: cluster.leading(each) for each in cluster.groups}
    assert reach(max(_rounds(cluster, liar).values()) + 5), _rounds(cluster, liar)
    assert {each: cluster.leading(each) for each in cluster.groups} == kept, "nobody deposes a coordinator"
    cluster.judge(strangers=[liar])


def _rounds(cluster: GroupCluster, liar: str) -> dict[tuple[str, str], int]:
    """By group and honest peer."""
    return {
        (group, peer): round
        for group in cluster.groups
        for peer, round in cluster.rounds(group).items()
        if peer != liar
    }


#: By name.
LIARS = {liars.__name__: liars}
