"""What goes wrong in coordinated rounds, and what has to be true all the same: one function a promise, of a seed.

Each is a scenario like those of `scenarios.py`, of peers that a `ServerCluster` looks at.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from fedpeer.algorithms.draws import Draws
from fedpeer.peer.consensus.polls import ElectionTiming
from fedpeer.peer.state.events import NewRoster, OperatorCommand
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.sims.network.disk import DiskRules
from fedpeer.sims.network.faults import NEVER, Act, Faults, draw_faults
from fedpeer.sims.network.lies import TERMS, Said
from fedpeer.sims.network.links import LinkRules, partition
from tests.faults.pretenders import pretend
from tests.faults.server_cluster import LED_TICKS, ServerCluster, world

#: Ticks in which all meet, elect and begin.
CALM = 150.0
#: Ticks behind it in which anything may happen.
STORM = 300.0
#: Links that are quick and not quite even.
QUICK = LinkRules(delay=0.2, jitter=0.2)
#: Effects that a coordinator of three carries out in a round and a half.
ROUND = 60


def coordinator_killed(effects: int) -> None:
    """P5, P6: killed after any effect of a round, the coordinator is soon replaced; no round is lost, done twice or has
    two results; back again, it goes on with the others."""
    parliament = ServerCluster(world(3), Faults(seed=effects, links=QUICK))
    town = parliament.town
    town.start()
    assert parliament.reach(2, CALM), parliament.rounds()
    victim = parliament.leading()
    assert victim is not None
    town.kill_after(victim, town.carried[victim] + 1 + effects % ROUND, ticks=300.0)
    assert parliament.run(town.now + 400.0, lambda: victim not in town.machines()), "it goes on speaking"
    died, before = town.now, max(parliament.seen.models)
    led = parliament.run(died + LED_TICKS, lambda: parliament.leading() is not None)
    assert led, f"nobody leads {LED_TICKS:.0f} ticks after {victim} died"
    assert parliament.reach(before + 1, 200.0), "rounds go on without it"
    assert parliament.run(died + 310.0, lambda: victim in town.machines())
    parliament.settle_down()
    assert sorted(parliament.seen.models) == list(range(1, max(parliament.seen.models) + 1)), "no round is left out"


def client_killed(effects: int) -> None:
    """Killed after any effect and started again at once, a peer sends the bytes that it sent before, and keeps what the
    server counted."""
    parliament = ServerCluster(world(3), Faults(seed=effects, links=QUICK))
    town, victim = parliament.town, "peer3"
    town.kill_after(victim, 1 + effects, ticks=5.0)
    town.start()
    assert parliament.run(CALM + 1000.0, lambda: victim not in town.machines()), "it was not killed"
    parliament.settle_down()


def coordinated(seed: int) -> None:
    """P6: whatever happens, a round has one result, which each applies once and in order, and what clients keep is what
    the server counted."""
    made = world(3 + seed % 3)
    faults = draw_faults(seed, made.peers, STORM, ("kill", "flip", "pause", "step", "full"))
    faults = replace(
        faults,
        cuts=tuple(replace(cut, begin=cut.begin + CALM, end=cut.end + CALM) for cut in faults.cuts),
        acts=tuple(replace(act, tick=act.tick + CALM) for act in faults.acts),
        heal=CALM + STORM,
    )
    parliament = ServerCluster(made, faults, share=(1.0, 0.6)[seed % 2])
    parliament.town.start()
    parliament.settle_down()


def minority(seed: int) -> None:
    """A side without a majority pauses, says so once, and goes on when the others are back; the other goes on alone."""
    made = world(5)
    few = [made.peers[place] for place in Draws(seed).numpy("minority").permutation(5)[:2]]
    many = [peer for peer in made.peers if peer not in few]
    begin, end = CALM, CALM + 800.0
    faults = Faults(seed=seed, links=QUICK, cuts=partition(begin, end, few, many), heal=end)
    parliament = ServerCluster(made, faults)
    town = parliament.town
    town.start()
    parliament.run(begin + 400.0)
    half, rounds = parliament.rounds(), {peer: parliament.rounds()[peer] for peer in few}
    parliament.run(end - 1)
    after = parliament.rounds()
    assert {peer: after[peer] for peer in few} == rounds, "no round without a majority"
    assert all(after[peer] > half[peer] + 2 for peer in many), "the majority goes on"
    parliament.settle_down()
    notes = [row[2:4] for row in town.rows if row[1] == "note" and row[3] in ("rounds_paused", "rounds_resumed")]
    for peer in few:
        mine = [what for who, what in notes if who == peer]
        assert mine == ["rounds_paused", "rounds_resumed"], f"{peer} says {mine}"
    assert not [who for who, _ in notes if who in many]


def disk_lost(seed: int) -> None:
    """A voter whose disk is gone takes part, and does not vote."""
    made = world(5)
    victim = f"peer{1 + seed % 5}"
    lost = Act(CALM + 10.0 + seed % 7, "lose", victim, 20.0 + 200.0 * (seed % 2))
    parliament = ServerCluster(made, Faults(seed=seed, links=QUICK, acts=(lost,), heal=CALM + 400.0))
    town = parliament.town
    town.start()
    parliament.run(lost.tick + 1)
    before, since = set(parliament.seen.accepted), len(town.rows)
    # What its client kept is gone with the disk, so the law does not hold any more.
    assert parliament.run(town.now + 1000.0, lambda: _as_far(parliament))
    chamber = parliament.node(victim).ledger.chambers[EVERYONE]
    assert chamber.lost == 1
    assert not chamber.votes
    assert not [each for each in parliament.seen.accepted - before if each[0] == victim], "it accepts nothing"
    sends = parliament.run(
        town.now + 400.0, lambda: any(r[1:4] == ("said", victim, "Update") for r in town.rows[since:])
    )
    assert sends, "it takes part"
    others = [p for p in made.peers if p != victim]
    assert all(parliament.node(peer).ledger.chambers[EVERYONE].votes for peer in others)
    parliament.judge()


def voters_change(seed: int) -> None:
    """One is invited, then another put out, while rounds go on: each roster counts by decree, for all alike; who is new
    learns under which one the coordinator was elected, takes part, and counts."""
    made = world(5)
    *first, new = made.peers
    gone = first[seed % 4]
    links = LinkRules(delay=0.2, jitter=0.3, loss=0.1 * (seed % 2))
    parliament = ServerCluster(made, Faults(seed=seed, links=links), roster=first)
    town = parliament.town
    town.start(*first)
    assert parliament.reach(2, 2 * CALM), parliament.rounds()
    invited = parliament.signed(2, made.peers)
    parliament.admit(invited, made.peers)
    town.tell(first[(seed + 1) % 4], NewRoster(invited))
    town.start(new)
    everybody = parliament.run(town.now + 600.0, lambda: len(_in_force(parliament, 2)) == 5)
    assert everybody, f"only {_in_force(parliament, 2)} go by the new roster"
    goal = max(parliament.rounds().values()) + 3
    assert parliament.reach(goal, 600.0)
    assert (new, goal) in parliament.seen.sent or parliament.leading() == new, "it takes part"
    assert parliament.run(town.now + 600.0, lambda: _counts(parliament, new, goal - 1)), "it counts"
    rest = [peer for peer in made.peers if peer != gone]
    put_out = parliament.signed(3, rest)
    parliament.admit(put_out, rest)
    town.tell(next(peer for peer in rest if peer != new), NewRoster(put_out))
    assert parliament.run(town.now + 800.0, lambda: set(_in_force(parliament, 3)) == set(rest)), parliament.rounds()
    if gone in town.machines():
        town.kill(gone)
    assert parliament.reach(goal + 6, 800.0)
    parliament.judge(strangers=[gone, new])


def _counts(parliament: ServerCluster, peer: str, since: int) -> bool:
    """Whether this peer has accepted anything from this round on."""
    return any(who == peer and round >= since for who, _, round in parliament.seen.accepted)


def coordinator_leaves(seed: int) -> None:
    """Who leaves, or pauses, while it coordinates is replaced; back again it goes on where the others are."""
    made = world(5)
    parliament = ServerCluster(made, Faults(seed=seed, links=LinkRules(delay=0.2, jitter=0.3, loss=0.05 * (seed % 3))))
    town = parliament.town
    town.start()
    assert parliament.reach(3, 2 * CALM)
    victim = parliament.leading()
    assert victim is not None
    town.tell(victim, OperatorCommand(("leave", "pause")[seed % 2]))
    assert parliament.run(town.now + 300.0, lambda: victim in town.stopped)
    assert town.stopped.pop(victim).code == 0
    before = max(parliament.seen.models)
    assert parliament.reach(before + 4, 400.0), "rounds go on without it"
    town.start(victim)
    parliament.settle_down()


def ending(seed: int) -> None:
    """All peers finish all rounds and end, whatever is lost on the way; nobody is left without the last model."""
    rounds = 4
    made = world(4, learning__rounds=rounds)
    links = LinkRules(delay=0.2, jitter=float(seed % 4), loss=0.1 * (seed % 4), repeat=0.1)
    acts = (Act(60.0 + 5 * seed % 40, "kill", f"peer{1 + seed % 4}", 60.0),) if seed % 2 else ()
    parliament = ServerCluster(made, Faults(seed=seed, links=links, acts=acts))
    town = parliament.town
    town.start()
    assert parliament.run(6000.0, lambda: len(town.stopped) == 4), parliament.rounds()
    assert {stop.code for stop in town.stopped.values()} == {0}
    ledgers = [parliament.residents.node(peer, town.kept(peer)).ledger for peer in made.peers]
    chambers = [ledger.chambers[EVERYONE] for ledger in ledgers]
    assert {(each.settled, each.holding.round) for each in chambers} == {(rounds, rounds)}
    parliament.judge()


#: Ticks of `starved`, and in which a round comes beside its training, where five peers wait for one another.
STARVED, A_ROUND = 600.0, 150.0
#: Ticks for which machines go on standing still after the kill.
STARVED_AFTER = 800.0
#: Ways in which a machine has no time: ticks between two standstills and of the longest one (3 s at most), of the
#: longest save, and how many times as long a training takes.
STARVATIONS = (
    (60.0, 120.0, 0.0, 1.0),
    (60.0, 120.0, 60.0, 20.0),
    (20.0, 60.0, 40.0, 1.0),
    (60.0, 120.0, 0.0, 20.0),
    (NEVER, 2.0, 80.0, 1.0),
)
#: Ticks, beside one training, until the round after a kill: three of the shortest leases.
NEXT_ROUND = 3 * ElectionTiming().shortest
#: Standstills that may come in between: one in the election, one in the round. Saves one after the other: of the
#: candidate's vote and the others', of an update, of the model and that it was accepted, by the coordinator and others.
STANDSTILLS, SAVES = 2, 6


def starved(seed: int, ticks: float = STARVED) -> None:
    """P5: on machines that have no time for their processes, at most one coordinator follows another, and rounds go on;
    killed, it is replaced all the same, and a round comes within three of the shortest leases and one training, and
    what comes in between: a standstill or two, and saves that take long, one after the other.

    Processes stand still for up to 3 s each, and at times all together; saves and trainings take long, too."""
    made = world(5, gossip__deadline=30.0)
    every, longest, save, pace = STARVATIONS[seed % len(STARVATIONS)]
    faults = stalls(seed, made.peers, CALM + ticks + STARVED_AFTER, every, longest)
    paces = dict.fromkeys(made.peers, pace)
    parliament = ServerCluster(made, faults, pace=paces, disk=DiskRules(longest=save))
    town, training = parliament.town, parliament.residents.longest_ticks()
    town.start()
    assert parliament.run(town.now + 600.0 + 10 * save, lambda: parliament.leading() is not None)
    parliament.run(CALM + ticks)
    leaders = [peer for _, _, peer in sorted(set(parliament.seen.leads), key=lambda lead: lead[1])]
    changes = sum(one != other for one, other in pairwise(leaders))
    assert changes <= 1, f"{changes} changes of leader, and nobody was killed: {parliament.seen.leads}"
    victim, before = parliament.leading(), max(parliament.seen.models, default=0)
    assert before >= int(ticks / (A_ROUND + 4 * (training + save))), f"{before} rounds in {ticks:.0f} ticks"
    assert victim is not None
    town.kill(victim)
    bound = NEXT_ROUND + training + STANDSTILLS * longest + SAVES * save
    on = parliament.run(town.now + bound, lambda: max(parliament.seen.models, default=0) > before)
    assert on, f"no round in {bound:.0f} ticks; {parliament.leading()} leads"
    town.start(victim)
    parliament.settle_down()


#: Ticks in which members lie about terms while there is a coordinator.
LIED = 300.0


def terms_lied_about(seed: int) -> None:
    """P5: one of four members, or two of eight, say higher terms and stand in them at each tick from the first one on:
    a coordinator is elected, nobody deposes it, rounds go on; killed, one of eight is replaced. Of honest peers nobody
    pays."""
    made = world(8 if seed % 3 == 2 else 4, gossip__gather=2.0)
    draws = Draws(seed).numpy("liars")
    mixed = [made.peers[place] for place in draws.permutation(len(made.peers))]
    liars: dict[str, Collection[Said]] = {
        peer: [TERMS[(seed + n) % len(TERMS)]] for n, peer in enumerate(mixed[: len(mixed) // 4])
    }
    parliament = ServerCluster(made, Faults(seed=seed, links=LinkRules(delay=0.2, jitter=0.5, loss=0.05 * (seed % 2))))
    town, honest = parliament.town, mixed[len(liars) :]
    town.start()
    pretend(town, parliament.residents.craft(), liars, 10_000.0)
    assert parliament.run(1000.0, lambda: _honest(parliament, honest) >= 2), "they begin"
    kept, before = parliament.leading(), _honest(parliament, honest)
    leads = len(parliament.seen.leads)
    parliament.run(town.now + LIED)
    assert parliament.leading() == kept, "nobody deposes the coordinator"
    assert len(parliament.seen.leads) == leads, parliament.seen.leads
    assert _honest(parliament, honest) >= before + 3
    assert kept is not None
    if len(made.peers) > 4:  # of four without the liar and the one that is killed there would be no majority
        town.kill(kept)
        honest = [peer for peer in honest if peer != kept]
        before = _honest(parliament, honest)
        on = parliament.run(town.now + 4 * LED_TICKS, lambda: _honest(parliament, honest) >= before + 2)
        assert on, "rounds go on without it"
    parliament.judge(strangers=list(liars))


def _honest(parliament: ServerCluster, peers: Sequence[str]) -> int:
    """The round in which all of these are."""
    rounds = parliament.rounds()
    return min(rounds[peer] for peer in peers)


def _in_force(parliament: ServerCluster, number: int) -> list[str]:
    chambers = {peer: node.ledger.chambers[EVERYONE] for peer, node in parliament.nodes().items()}
    return [peer for peer, chamber in chambers.items() if chamber.holding.roster == number]


def _as_far(parliament: ServerCluster) -> bool:
    rounds = parliament.rounds()
    return len(rounds) == len(parliament.made.peers) and min(rounds.values()) >= 24


#: By name.
SESSIONS = {
    session.__name__: session
    for session in (
        coordinator_killed,
        client_killed,
        coordinated,
        minority,
        disk_lost,
        voters_change,
        coordinator_leaves,
        ending,
        starved,
        terms_lied_about,
    )
}


def stalls(seed: int, peers: Sequence[str], until: float, every: float = 60.0, longest: float = 120.0) -> Faults:
    """A machine that has no time for its processes, until a tick: each stands still again and again, some `every`
    ticks, for 2 to `longest` ticks, short times more often than long ones; at times all together."""
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
