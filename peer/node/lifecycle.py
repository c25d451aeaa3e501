"""How a peer comes in and goes: gathering before the first round, joining late, lingering at the end, leaving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedpeer.gossip.noise_phase import NoisePhase
from fedpeer.gossip.transfers import Outgoing, resting
from fedpeer.peer.node.channels import fitting, ship
from fedpeer.peer.node.handshake import say_hello
from fedpeer.peer.node.retransmission import Retransmissions
from fedpeer.peer.node.rounds import Rounds
from fedpeer.peer.node.skew import finished_without, furthest
from fedpeer.peer.state.entries import Adopted, Left, Opened
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.messages import ValueRequest

#: Seconds in which this process ran that `leave` may take before what is left is written off.
LEAVE_S = 5.0
#: Seconds in which a late joiner asks for values before it goes on with what it has.
JOIN_S = 10.0
#: Seconds that a finished peer stays at least, so that the news of it gets about before it is gone.
LINGER_MIN_S = 2.0
#: Seconds that it waits for acknowledgements when all are done: who is gone by then has the share or will ask for it.
OWING_S = 5.0
#: Ticks for which a peer that has left still tells so, to some at least, who pass it on; and between two Hellos by
#: which its neighbours know what it has not taken.
FAREWELL_TICKS, FAREWELL_EVERY = 12, 4
#: A finished peer stays for the others until none of them has come further for so many deadlines, or for as long as
#: peers wait for one another at the beginning, if that is longer: what they still need is asked for again and again, at
#: growing intervals, and may be lost again and again.
LINGER_DEADLINES = 4
#: Members that a late joiner asks for each value: the median of three lies between two honest ones where one lies.
ASKED_FOR_VALUE = 3


@dataclass
class Lifecycle:
    """What is remembered while coming or going.

    values, asked_at        of a late joiner: what members gave, by group and peer, and when they were asked
    doubted                 whose value was refused, by group and peer: others are asked in their place
    progress_at, furthest   of a finished peer: when one of the others last came further, and how far they are in all
    all_done_at             tick at which the last of them was seen unfinished, or missing
    heard_from              tick of this process's running time from which on nobody was missing, so that all can hear
                            that this peer has finished
    gone_at, farewells      tick at which this peer had left, and how often it has said so
    lost                    whether something was written off then
    """

    values: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    asked_at: dict[tuple[str, str], int] = field(default_factory=dict)
    doubted: set[tuple[str, str]] = field(default_factory=set)
    progress_at: int = 0
    furthest: int = 0
    all_done_at: int = 0
    heard_from: int = 0
    gone_at: int = 0
    farewells: int = 0
    lost: bool = False


@dataclass(frozen=True, eq=False)
class NodeParts:
    """A node's parts, each with its own business."""

    life: NodeState
    rounds: Rounds
    repeats: Retransmissions
    passage: Lifecycle
    begin: Callable[[int], None]  # this round


def await_others(work: NodeParts) -> None:
    """Wait for the others, for a while; then begin, or first take over the values of those who are further."""
    life = work.life
    absent = sorted(p for p in life.mates if not life.others[p].met)
    patience = round(life.setup.federation.gossip.gather / life.setup.federation.gossip.tick)
    further = [other for other in life.others.values() if other.met and other.begun and other.round > 1]
    if absent and life.waited() < patience and not further:
        return
    if further and life.ledger.groups:
        life.enter("joining")
        return
    if absent and not further:
        text = f"beginning without {', '.join(absent)}, after {life.setup.federation.gossip.gather:g} s"
        life.note("info", "went_on_without", text, without=absent)
    life.enter("learning")
    work.begin(1)
    life.advertise()


def join_late(work: NodeParts) -> None:
    """Ask three members of each group for its value; begin in their round when all are there, or the time is up.

    Of each coordinate the median is taken over. Where there are two values the third is this peer's own, so that one of
    the two alone moves nothing beyond what lies between the other and that; where there is one, it is taken.
    """
    life, passage = work.life, work.passage
    over = life.waited() >= life.setup.ticks(JOIN_S)
    complete = True
    for group in life.ledger.groups:
        givers = [
            p for p in life.circle.groups[group].members
            if p != life.me and life.available(p, group) and life.others[p].begun and (group, p) not in passage.doubted
        ][:ASKED_FOR_VALUE]  # fmt: skip
        got = passage.values.setdefault(group, {})
        for peer in givers:
            asked = passage.asked_at.get((group, peer))
            if peer not in got and (asked is None or life.now - asked >= work.repeats.wait(peer)):
                passage.asked_at[group, peer] = life.now
                life.send(peer, ValueRequest(group=group))
        complete &= bool(givers) and all(peer in got for peer in givers)
    if not complete and not over:
        return
    for group, got in passage.values.items():
        if got:
            values = [*got.values()]
            if len(values) % 2 == 0:
                values.append(life.ledger.x_n[life.ledger.index[group]].to(values[0].dtype))
            life.write(Adopted(group=group, value_D=torch.stack(values).median(0).values))
    taken = ", ".join(sorted(group for group, got in passage.values.items() if got)) or "nobody"
    passage.values.clear()
    passage.doubted.clear()
    if finished_without(life):  # nobody is left to average with, so what is taken over is the result
        text = f"behind: goes from round {life.ledger.round} to the end with the values of {taken}"
        life.note("info", "caught_up", text, round=life.ledger.round)
        round = life.setup.federation.learning.rounds + 1
    else:
        round = max(1, furthest(life))
        life.note("info", "joined", f"joined in round {round} with the values of {taken}")
        round = min(round, life.setup.federation.learning.rounds)
    life.enter("learning")
    work.begin(round)
    life.advertise()


def lingering(life: NodeState) -> int:
    """Return for how many ticks a finished peer stays while no other one comes further."""
    gossip = life.setup.federation.gossip
    return life.setup.ticks(max(LINGER_DEADLINES * gossip.deadline, gossip.gather))


def linger(work: NodeParts) -> None:
    """Stay until the others are done too, or come no further, and everything said is acknowledged.

    One that is thought dead may only be cut off, and can learn from nobody else that the others have finished, and what
    they have: it is waited for as long as at the beginning, `gossip.gather`.
    """
    life, ledger, passage = work.life, work.life.ledger, work.passage
    waited, patience = life.waited(), round(life.setup.federation.gossip.gather / life.setup.federation.gossip.tick)
    if waited == 0:
        life.advertise()
        passage.progress_at = passage.all_done_at = life.now
        passage.heard_from = life.ran
    unfinished = [p for p in life.mates if life.membership.standing(p) in ("alive", "suspect")]
    furthest = sum(life.others[p].round for p in unfinished)
    if furthest != passage.furthest:
        passage.furthest, passage.progress_at = furthest, life.now
    absent = [p for p in life.mates if life.membership.standing(p) == "dead"]
    if waited >= patience:
        absent = [p for p in absent if life.now - life.others[p].heard_at < patience]
    there = {p for p in life.mates if life.membership.standing(p) not in ("dead", "left", "unknown")}
    owing = [p for h in ledger.groups.values() for p, lane in h.out.items() if lane.open and p in there]
    stuck = life.now - passage.progress_at >= lingering(life)
    if unfinished or absent:
        passage.all_done_at = life.now
    if absent:
        passage.heard_from = life.ran
    unpaid = (owing or any(map(life.parts, life.mates))) and life.now - passage.all_done_at < life.setup.ticks(OWING_S)
    if life.ran - passage.heard_from < life.setup.ticks(LINGER_MIN_S):
        return
    if (not unfinished and not unpaid) or stuck:
        life.snapshot()
        life.stop(0, f"finished all {life.setup.federation.learning.rounds} rounds")


def leave_federation(work: NodeParts) -> None:
    """Hand everything over, in equal parts to who is there; write off what nobody takes in time."""
    life, ledger, passage = work.life, work.life.ledger, work.passage
    if ledger.left:
        waited = life.now - passage.gone_at
        if waited >= FAREWELL_TICKS:
            became = "what nobody took is written off" if passage.lost else "what was held is handed over"
            life.stop(0, f"left; {became}")
        elif waited >= passage.farewells * FAREWELL_EVERY:
            passage.farewells += 1
            for peer in sorted(life.mates):
                say_hello(life, peer, answer=True)
        return
    over = life.waited() >= life.setup.ticks(LEAVE_S)
    for group, holding in ledger.groups.items():
        there = [p for p in life.circle.groups[group].members if p != life.me and life.available(p, group)]
        idle = tuple(p for p in there if not resting(holding.out.get(p, Outgoing())))
        if holding.weight > 0 and idle and not over:
            round, exchange = holding.at
            noise, told = life.circle.averaging[group].noise, holding.told if round == ledger.round else frozenset()
            if noise is not None and not NoisePhase(noise.pushes, told).among(idle).lifted:
                free, fraction = fitting(life, group, idle, 1 / (len(idle) + 1))
                opened = Opened(
                    group=group, round=max(round, ledger.round), exchange=exchange, to=free, expect=(),
                    fraction=fraction, **life.made_up(group, ledger.round, exchange, noise.scale),
                )  # fmt: skip
            else:
                free, fraction = fitting(life, group, idle, 1 / len(idle))
                opened = Opened(
                    group=group, round=max(round, ledger.round), exchange=exchange, to=free, expect=(),
                    fraction=fraction, whole=True,
                )  # fmt: skip
            if not free:  # all have what they may have of this peer, until they give it back
                continue
            ship(life, work.repeats, group, life.write(opened))
    open_ = any(lane.open for holding in ledger.groups.values() for lane in holding.out.values())
    held = {group: holding.weight for group, holding in ledger.groups.items() if holding.weight > 1e-12}
    if (open_ or held) and not over:
        return
    for group, holding in ledger.groups.items():
        lost = holding.weight + sum(parcel.weight for lane in holding.out.values() for parcel in lane.open)
        if lost > 1e-12:
            passage.lost = True
            text = f'{lost:.3g} of weight in "{group}" is written off: nobody took it in time'
            life.note("warning", "written_off", text, group=group, weight=lost)
    life.write(Left())
    life.snapshot()
    passage.gone_at = life.now
