"""What goes wrong where groups average through coordinators, and what has to be true all the same.

Each is a scenario like those of `scenarios.py`, of peers that a `GroupCluster` looks at.
"""

from __future__ import annotations

from dataclasses import replace

from fedpeer.peer.state.events import NewRoster
from fedpeer.sims.network.faults import Act, Faults, draw_faults
from fedpeer.sims.network.lies import promising, rising, standing
from fedpeer.sims.network.links import LinkRules
from tests.faults.group_cluster import GroupCluster, world
from tests.faults.pretenders import pretend
from tests.faults.server_cluster import LED_TICKS

#: Ticks in which all meet, elect and begin.
CALM = 200.0
#: Ticks behind it in which anything may happen.
STORM = 300.0
#: Links that are quick and not quite even.
QUICK = LinkRules(delay=0.2, jitter=0.2)
#: Effects that a coordinator of two groups carries out in a round and a half.
ROUND = 105


def group_coordinator_killed(effects: int) -> None:
    """P5, P6: killed after any effect of a round, the coordinator of a group is soon replaced in it; no round of any
    group is lost, done twice or has two means; the groups in which it has no part go on; back again, it does too."""
    guild = GroupCluster(world(), Faults(seed=effects, links=QUICK))
    town, group = guild.town, sorted(guild.groups)[effects % 3]
    town.start()
    assert guild.reach(2, CALM), {each: guild.rounds(each) for each in guild.groups}
    victim = guild.leading(group)
    assert victim is not None
    town.kill_after(victim, town.carried[victim] + 1 + effects % ROUND, ticks=300.0)
    assert guild.run(town.now + 400.0, lambda: victim not in town.machines()), "it goes on speaking"
    died = town.now
    before = {each: max(guild.rounds(each).values()) for each in guild.groups}
    led = guild.run(died + LED_TICKS, lambda: all(guild.leading(each) is not None for each in guild.groups))
    assert led, f"some group has no coordinator {LED_TICKS:.0f} ticks after {victim} died"
    on = guild.run(
        died + 299.0, lambda: all(min(guild.rounds(each).values()) > before[each] + 1 for each in guild.groups)
    )
    assert on, f"some group does not go on without {victim}"
    assert guild.run(died + 310.0, lambda: victim in town.machines())
    guild.settle_down()


def groups_coordinated(seed: int) -> None:
    """P6: whatever happens, a round of a group has one mean, which each takes over once and in order."""
    made = world()
    faults = draw_faults(seed, made.peers, STORM, ("kill", "flip", "pause", "step", "full"))
    faults = replace(
        faults,
        cuts=tuple(replace(cut, begin=cut.begin + CALM, end=cut.end + CALM) for cut in faults.cuts),
        acts=tuple(replace(act, tick=act.tick + CALM) for act in faults.acts),
        heal=CALM + STORM,
    )
    guild = GroupCluster(made, faults)
    guild.town.start()
    guild.settle_down()


def group_minority(seed: int) -> None:
    """A group most of whose voters are gone pauses, and no other one does: who is left goes on in those, says once that
    it does so, and takes part in all of them when the others are back."""
    made, away = world(), 800.0
    pair = (("peer1", "peer2"), ("peer4", "peer5"))[seed % 2]
    group, other = (("left", "right"), ("right", "left"))[seed % 2]
    begin = CALM + seed % 50
    acts = tuple(Act(begin, "kill", peer, away) for peer in pair)
    guild = GroupCluster(made, Faults(seed=seed, links=QUICK, acts=acts, heal=begin + away))
    town = guild.town
    town.start()
    guild.run(begin + 100.0)
    kept = guild.nodes()["peer3"].ledger.chambers[group].study
    paused, going = guild.rounds(group), {each: guild.rounds(each) for each in ("everyone", other)}
    guild.run(begin + away - 1)
    assert guild.rounds(group) == paused, "no round without a majority"
    assert kept is not None
    assert guild.nodes()["peer3"].ledger.chambers[group].study == kept, "it has one update for a round"
    for each, before in going.items():
        after = guild.rounds(each)
        assert min(after.values()) > max(before.values()) + 10, f"{each} goes on: {before}, {after}"
    assert guild.notes("rounds_paused") == ["peer3"]
    assert guild.notes("group_behind") == ["peer3"], "who goes on alone says so once"
    guild.settle_down()
    assert set(guild.notes("rounds_resumed")) == {"peer3"}


def group_terms_lied_about(seed: int) -> None:
    """P5: one member says higher terms in all of its groups, or stands in them, at each tick from the first one on:
    each group has a coordinator whom nobody deposes, and goes on."""
    guild = GroupCluster(world(gossip__gather=2.0), Faults(seed=seed, links=LinkRules(delay=0.2, jitter=0.3)))
    liar = f"peer{1 + seed // 3 % 5}"
    guild.town.start()
    pretend(guild.town, guild.residents.craft(), {liar: [(rising, standing, promising)[seed % 3]]}, 10_000.0)
    assert guild.reach(2, 2 * CALM), {each: guild.rounds(each) for each in guild.groups}
    kept, before = {each: guild.leading(each) for each in guild.groups}, len(guild.seen.leads)
    goal = max(max(guild.rounds(each).values()) for each in guild.groups) + 5
    assert guild.reach(goal, STORM)
    assert {each: guild.leading(each) for each in guild.groups} == kept, "nobody deposes a coordinator"
    assert len(guild.seen.leads) == before, guild.seen.leads
    guild.judge(strangers=[liar])


def groups_end(seed: int) -> None:
    """All peers finish all rounds and end with the last mean of each of their groups, whatever is lost on the way."""
    rounds = 4
    made = world(learning__rounds=rounds, gossip__deadline=10.0)
    links = LinkRules(delay=0.2, jitter=float(seed % 4), loss=0.1 * (seed % 4), repeat=0.1)
    acts = (Act(60.0 + 5 * seed % 40, "kill", f"peer{1 + seed % 5}", 60.0),) if seed % 2 else ()
    guild = GroupCluster(made, Faults(seed=seed, links=links, acts=acts))
    town = guild.town
    town.start()
    assert guild.run(6000.0, lambda: len(town.stopped) == 5), {each: guild.rounds(each) for each in guild.groups}
    assert {stop.code for stop in town.stopped.values()} == {0}
    ledgers = [guild.residents.node(peer, town.kept(peer)).ledger for peer in made.peers]
    assert {chamber.settled for ledger in ledgers for chamber in ledger.chambers.values()} == {rounds}
    for ledger in ledgers:
        for group, chamber in ledger.chambers.items():
            assert chamber.content is not None
            assert chamber.content.endswith(ledger.x_n[ledger.places[group]].numpy().tobytes())
    guild.judge()


def group_members_change(seed: int) -> None:
    """One is invited, then another put out, while rounds go on: each roster counts in each group by decree; a group
    that has two members only now begins, and comes up to the others; one that has lost a member goes on."""
    made = world()
    first = (["peer1", "peer3", "peer4", "peer5"], ["peer3", "peer4", "peer5"])[seed % 2]
    guild = GroupCluster(made, Faults(seed=seed, links=LinkRules(delay=0.2, jitter=0.3)), roster=first)
    town = guild.town
    assert ("left" in guild.groups) == ("peer1" in first)
    town.start(*first)
    assert guild.reach(3, 400.0)
    invited = guild.signed(2, [*first, "peer2"])
    guild.admit(invited, [*first, "peer2"])
    town.tell("peer5", NewRoster(invited))
    town.start("peer2")
    assert guild.groups["left"] == {"peer2", *first} & {"peer1", "peer2", "peer3"}
    _all_go_on(guild, 2)
    rest = [peer for peer in (*first, "peer2") if peer != "peer4"]
    put_out = guild.signed(3, rest)
    guild.admit(put_out, rest)
    town.tell("peer3", NewRoster(put_out))
    guild.run(town.now + 50.0)
    if "peer4" in town.machines():
        town.kill("peer4")
    _all_go_on(guild, 3)
    guild.judge(strangers=["peer2", "peer4"])


def _all_go_on(guild: GroupCluster, number: int) -> None:
    """All members of all groups come to go by this roster, and three rounds further."""

    def there() -> bool:
        chambers = [
            node.ledger.chambers.get(group)
            for peer, node in guild.nodes().items()
            for group, members in guild.groups.items()
            if peer in members
        ]
        return all(each is not None and each.holding.roster == number and each.settled for each in chambers)

    everybody = guild.run(guild.town.now + 1500.0, there)
    assert everybody, {each: guild.rounds(each) for each in guild.groups}
    goal = 3 + max(round for group in guild.groups for round in guild.rounds(group).values())
    assert guild.reach(goal, 1500.0), {each: guild.rounds(each) for each in guild.groups}


#: By name.
COMPANIES = {
    company.__name__: company
    for company in (
        group_coordinator_killed,
        groups_coordinated,
        group_minority,
        group_terms_lied_about,
        groups_end,
        group_members_change,
    )
}
