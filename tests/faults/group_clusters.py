"""Scenarios under faults where groups average through coordinators.

Each is a scenario like those of `scenarios.py`, with peers that a `GroupCluster` checks.
"""

from __future__ import annotations

from fedpeer.peer.state.events import NewRoster
from fedpeer.sims.network.faults import Act, Faults
from fedpeer.sims.network.lies import ELECTION_LIES
from fedpeer.sims.network.links import LinkRules
from fedpeer.sims.world import World
from tests.faults.group_cluster import GroupCluster, world, world_with_shares
from tests.faults.peer_cluster import EXACT
from tests.faults.pretenders import pretend
from tests.faults.server_cluster import LED_TICKS
from tests.faults.storms import STORM, stormy
from tests.reference import audit

#: Ticks in which all peers meet, elect coordinators and begin.
CALM = 200.0
#: Links with a short delay and a little jitter.
QUICK = LinkRules(delay=0.2, jitter=0.2)
#: Effects that a coordinator of two groups carries out in one and a half rounds.
ROUND = 105


def group_coordinator_killed(effects: int) -> None:
    """P5, P6: A coordinator of a group that is killed after any effect of a round is soon replaced; no round of any
    group is lost, done twice or has two means; the groups without it go on, and so does the peer after its
    restart."""
    _coordinator_killed(world(), effects)


def slice_coordinator_killed(effects: int) -> None:
    """P1, P5, P6: The same for a slice with a coordinator, beside a slice whose shares are exchanged: this one goes on
    and loses nothing."""
    _coordinator_killed(world_with_shares(), effects)


def _coordinator_killed(made: World, effects: int) -> None:
    cluster = GroupCluster(made, Faults(seed=effects, links=QUICK))
    simulator, group = cluster.simulator, sorted(cluster.groups)[effects % len(cluster.groups)]
    simulator.start()
    assert cluster.reach(2, CALM), {each: cluster.rounds(each) for each in cluster.groups}
    victim = cluster.leading(group)
    assert victim is not None
    simulator.kill_after(victim, simulator.carried[victim] + 1 + effects % ROUND, ticks=300.0)
    assert cluster.run(simulator.now + 400.0, lambda: victim not in simulator.machines()), "it goes on speaking"
    died = simulator.now
    before = {each: max(cluster.rounds(each).values()) for each in cluster.groups}
    led = cluster.run(died + LED_TICKS, lambda: all(cluster.leading(each) is not None for each in cluster.groups))
    assert led, f"some group has no coordinator {LED_TICKS:.0f} ticks after {victim} died"
    on = cluster.run(
        died + 299.0, lambda: all(min(cluster.rounds(each).values()) > before[each] + 1 for each in cluster.groups)
    )
    assert on, f"some group does not go on without {victim}"
    assert cluster.run(died + 310.0, lambda: victim in simulator.machines())
    cluster.settle_down()


def groups_coordinated(seed: int) -> None:
    """P6: Under any faults a round of a group has one mean, which each member takes over once and in order."""
    _coordinated(world(), seed)


def slices_coordinated(seed: int) -> None:
    """P1, P6: The same for slices with coordinators, beside a slice whose shares are exchanged."""
    _coordinated(world_with_shares(), seed)


def _coordinated(made: World, seed: int) -> None:
    cluster = GroupCluster(made, stormy(seed, made.peers, calm=CALM))
    cluster.simulator.start()
    cluster.settle_down()


def group_minority(seed: int) -> None:
    """A group that has lost most of its voters pauses, and no other group does: the remaining member goes on in the
    others, reports this once, and takes part in all of its groups when the others are back."""
    made, away = world(), 500.0
    pair = (("peer1", "peer2"), ("peer4", "peer5"))[seed % 2]
    group, other = (("left", "right"), ("right", "left"))[seed % 2]
    begin = CALM + seed % 50
    acts = tuple(Act(begin, "kill", peer, away) for peer in pair)
    cluster = GroupCluster(made, Faults(seed=seed, links=QUICK, acts=acts, heal=begin + away))
    simulator = cluster.simulator
    simulator.start()
    cluster.run(begin + 100.0)
    kept = cluster.nodes()["peer3"].durable.consensus_states[group].pending
    paused, going = cluster.rounds(group), {each: cluster.rounds(each) for each in ("everyone", other)}
    cluster.run(begin + away - 1)
    assert cluster.rounds(group) == paused, "no round without a majority"
    assert kept is not None
    assert cluster.nodes()["peer3"].durable.consensus_states[group].pending == kept, "it has one update for a round"
    for each, before in going.items():
        after = cluster.rounds(each)
        assert min(after.values()) > max(before.values()) + 10, f"{each} goes on: {before}, {after}"
    assert cluster.notes("rounds_paused") == ["peer3"]
    assert cluster.notes("group_behind") == ["peer3"], "who goes on alone says so once"
    cluster.settle_down()
    assert set(cluster.notes("rounds_resumed")) == {"peer3"}


def group_terms_lied_about(seed: int) -> None:
    """P5: One member sends higher terms in all of its groups, or is a candidate in them, at each tick from the first
    one on: each group has a coordinator that is not deposed, and goes on."""
    cluster = GroupCluster(world(gossip__gather=2.0), Faults(seed=seed, links=LinkRules(delay=0.2, jitter=0.3)))
    liar = f"peer{1 + seed // 3 % 5}"
    cluster.simulator.start()
    lie = ELECTION_LIES[seed % 3]
    pretend(cluster.simulator, cluster.node_factory.driver(), {liar: [lie]}, 10_000.0)
    assert cluster.reach(2, 2 * CALM), {each: cluster.rounds(each) for each in cluster.groups}
    kept, before = {each: cluster.leading(each) for each in cluster.groups}, len(cluster.seen.leads)
    goal = max(max(cluster.rounds(each).values()) for each in cluster.groups) + 5
    assert cluster.reach(goal, STORM)
    assert {each: cluster.leading(each) for each in cluster.groups} == kept, "nobody deposes a coordinator"
    assert len(cluster.seen.leads) == before, cluster.seen.leads
    cluster.judge(strangers=[liar])


def groups_end(seed: int) -> None:
    """All peers finish all rounds and end with the last mean of each of their groups, whatever messages are lost."""
    _all_end(world(learning__rounds=4, gossip__deadline=10.0), seed)


def slices_end(seed: int) -> None:
    """All peers finish beside a slice without a coordinator, whose whole weight is there or written off at the end."""
    _all_end(world_with_shares(learning__rounds=4, gossip__deadline=10.0), seed)


def _all_end(made: World, seed: int) -> None:
    rounds = made.federation.learning.rounds
    links = LinkRules(delay=0.2, jitter=float(seed % 4), loss=0.1 * (seed % 4), repeat=0.1)
    acts = (Act(60.0 + 5 * seed % 40, "kill", f"peer{1 + seed % 5}", 60.0),) if seed % 2 else ()
    cluster = GroupCluster(made, Faults(seed=seed, links=links, acts=acts))
    simulator = cluster.simulator
    simulator.start()
    assert cluster.run(6000.0, lambda: len(simulator.stopped) == 5), {
        each: cluster.rounds(each) for each in cluster.groups
    }
    assert {stop.code for stop in simulator.stopped.values()} == {0}
    durable_states = [cluster.node_factory.node(peer, simulator.kept(peer)).durable for peer in made.peers]
    assert {
        consensus_state.settled for durable in durable_states for consensus_state in durable.consensus_states.values()
    } == {rounds}
    for durable in durable_states:
        for group, consensus_state in durable.consensus_states.items():
            assert consensus_state.content is not None
            assert consensus_state.content.endswith(durable.x_n[durable.places[group]].numpy().tobytes())
    for group, (there, put) in audit.weights(dict(zip(made.peers, durable_states, strict=True))).items():
        assert abs(there - put) <= EXACT * put, f"{there} of {put} in {group}"
    cluster.judge()


def group_members_change(seed: int) -> None:
    """One peer is invited and then another revoked while rounds go on: each roster takes effect in each group by
    committed round; a group that only now has two members begins, and catches up with the others; a group that has lost
    a member goes on."""
    made = world()
    first = (["peer1", "peer3", "peer4", "peer5"], ["peer3", "peer4", "peer5"])[seed % 2]
    cluster = GroupCluster(made, Faults(seed=seed, links=LinkRules(delay=0.2, jitter=0.3)), roster=first)
    simulator = cluster.simulator
    assert ("left" in cluster.groups) == ("peer1" in first)
    simulator.start(*first)
    assert cluster.reach(3, 400.0)
    invited = cluster.signed(2, [*first, "peer2"])
    cluster.admit(invited, [*first, "peer2"])
    simulator.feed("peer5", NewRoster(invited))
    simulator.start("peer2")
    assert cluster.groups["left"] == {"peer2", *first} & {"peer1", "peer2", "peer3"}
    _all_go_on(cluster, 2)
    rest = [peer for peer in (*first, "peer2") if peer != "peer4"]
    put_out = cluster.signed(3, rest)
    cluster.admit(put_out, rest)
    simulator.feed("peer3", NewRoster(put_out))
    cluster.run(simulator.now + 50.0)
    if "peer4" in simulator.machines():
        simulator.kill("peer4")
    _all_go_on(cluster, 3)
    cluster.judge(strangers=["peer2", "peer4"])


def _all_go_on(cluster: GroupCluster, number: int) -> None:
    """Assert that all members of all groups come to use this roster, and finish three more rounds."""

    def there() -> bool:
        consensus_states = [
            node.durable.consensus_states.get(group)
            for peer, node in cluster.nodes().items()
            for group, members in cluster.groups.items()
            if peer in members
        ]
        return all(each is not None and each.holding.roster == number and each.settled for each in consensus_states)

    everybody = cluster.run(cluster.simulator.now + 1500.0, there)
    assert everybody, {each: cluster.rounds(each) for each in cluster.groups}
    goal = 3 + max(round for group in cluster.groups for round in cluster.rounds(group).values())
    assert cluster.reach(goal, 1500.0), {each: cluster.rounds(each) for each in cluster.groups}


#: Scenarios by name.
GROUP_SESSIONS = {
    scenario.__name__: scenario
    for scenario in (
        group_coordinator_killed,
        slice_coordinator_killed,
        groups_coordinated,
        slices_coordinated,
        group_minority,
        group_terms_lied_about,
        groups_end,
        slices_end,
        group_members_change,
    )
}
