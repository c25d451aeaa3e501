"""The two ways to go on: synchronous rounds with a soft barrier, and training and exchanging without any.

Both only decide and write entries; they are called after every event and go as far as they can. Every wait has a limit
and ends in going on without those who are missing, which is said in one line: they are late for the rest of this
averaging, what they sent is added when it comes, and they catch up by taking part in the round in which the others
are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import networkx as nx
from torch import Tensor

from fedpeer.gossip.averaging import Averaging, Turn, neighbours, turn
from fedpeer.gossip.transfers import Incoming, Outgoing, exhausted, overdrawn, resting
from fedpeer.gossip.veil import Veil
from fedpeer.gossip.waking import moved
from fedpeer.peer.core.amending import goes_over
from fedpeer.peer.core.entries import Began, Closed, Learnt, Opened
from fedpeer.peer.core.events import Evaluate, Train, Trained
from fedpeer.peer.core.lanes import fitting, ship
from fedpeer.peer.core.ledger import Holding
from fedpeer.peer.core.life import Life
from fedpeer.peer.core.plausible import Gauge
from fedpeer.peer.core.repeats import Repeats
from fedpeer.topology.repair import repaired

#: The part of the deadline for which a share is waited for whose sender is in the next round already.
AHEAD_PARTS = 10
#: Ticks between two pushes of an asynchronous peer: an answer takes a few, and a lane rests until it is there.
PUSH_EVERY = 4
#: Trainings after which an asynchronous peer that averages by drift pushes though it has hardly moved, so that weight
#: comes back to those who move more than others.
QUIET_TRAININGS = 8


@dataclass
class Rounds:
    """Where the peer is in its rounds, beside what the ledger says.

    opened_at    tick at which each group's exchange was opened
    late         members that this round goes on without, and since when; as long as nothing is heard of one, the next
                 rounds do too
    silent       by group, whose share did not come, and since when they were waited for, until they acknowledge ours
    pushed_at    tick of each group's last push; `news`: groups with something that was not pushed yet
    pushed_D     by group, what it held at its last push, where averages go by drift, and how many trainings ago
    training     whether a `Train` is out
    """

    opened_at: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    silent: dict[str, dict[str, int]] = field(default_factory=dict)
    pushed_at: dict[str, int] = field(default_factory=dict)
    news: set[str] = field(default_factory=set)
    pushed_D: dict[str, tuple[Tensor, int]] = field(default_factory=dict)
    training: bool = False
    disagreement: dict[str, float] = field(default_factory=dict)


def begin(life: Life, rounds: Rounds, gauges: dict[str, Gauge], round: int) -> None:
    """The next round: what was averaged goes into the parameters, is evaluated if due, and is trained on."""
    ledger, learning = life.ledger, life.setup.federation.learning
    before = {group: ledger.x_n[place_D] for group, place_D in ledger.index.items()}
    life.write(Began(round=round))
    rounds.late = {peer: since for peer, since in rounds.late.items() if not life.heard_since(peer, since)}
    rounds.training = False
    done = round - 1
    for group, place_D in ledger.index.items():
        gauges[group].moved(before[group], ledger.x_n[place_D])
    life.averages |= {
        group: ledger.x_n[place_D]
        for group, place_D in ledger.index.items()
        if done and life.circle.averaging[group].due(done - 1)
    }
    if done:
        weights = {group: float(holding.held.weight) for group, holding in ledger.groups.items()}
        life.note(
            "debug",
            "round",
            f"round {done} is done",
            round=done,
            weights=weights,
            disagreement=dict(rounds.disagreement),
        )
        if done % learning.evaluate_every == 0 or done >= learning.rounds:
            life.effects.append(Evaluate(min(done, learning.rounds), *models_of(life)))
    life.snapshot_if_due()
    if round > learning.rounds:
        life.phase = "finished"
        life.note("info", "finished", f"all {learning.rounds} rounds are done")
        life.snapshot()
        return
    train(life, rounds)


def models_of(life: Life) -> tuple[Tensor, Tensor | None]:
    """The model (n,) that this peer predicts with, and the estimate (n,) where that is another one."""
    ledger, keeps = life.ledger, life.setup.keeps
    if keeps is None:
        return ledger.x_n, None
    own_n = None if ledger.fresh else keeps.own_model(ledger.s_k)
    return ledger.x_n if own_n is None else own_n, ledger.x_n


def train(life: Life, rounds: Rounds) -> None:
    """Have the steps of this round taken; again after a restart, since a `Train` that was under way is forgotten."""
    ledger = life.ledger
    if goes_over(life):
        return
    rounds.training = True
    life.effects.append(Train(ledger.round, ledger.x_n, ledger.s_k, ledger.fresh))


def trained(life: Life, rounds: Rounds, event: Trained) -> None:
    """The steps are taken. They are booked under the round in which the others are, if this peer fell behind."""
    if not rounds.training or event.round != life.ledger.round:
        return
    rounds.training = False
    round = life.ledger.round
    if life.synchronous and life.furthest() > round + _lead(life):
        # The others are in the middle of theirs and do not wait for us; in the next one they will.
        round = min(life.furthest() + 1, life.setup.federation.learning.rounds)
        text = f"behind: round {life.ledger.round} counts as round {round}, to which the others come next"
        life.note("info", "caught_up", text, round=round)
    life.write(Learnt(round=round, x_n=event.x_n, s_k=event.s_k))
    rounds.news |= set(life.ledger.groups)
    rounds.pushed_D = {group: (before_D, count + 1) for group, (before_D, count) in rounds.pushed_D.items()}


def _ahead(life: Life) -> int:
    """How many rounds a neighbour can be ahead of a peer that is not late at all.

    Where each exchange goes both ways with all neighbours, those up to the next averaging. Along directed phases and
    matchings news of a peer takes several exchanges to come back, up to one for each member.
    """
    averagings = max([1, *(_detour(life, group) for group in life.circle.averaging if not _mutual(life, group))])
    return averagings * life.setup.federation.gossip.every


def _lead(life: Life) -> int:
    """How many rounds anybody can be ahead of a peer that has just trained, and goes on without nobody.

    Where each exchange goes both ways, who is k steps away cannot close exchange k - 1 before this peer opens the
    first: so none, but in groups that are wider than they have exchanges, and in rounds without an averaging.
    """
    leads = [0]
    for group, policy in life.circle.averaging.items():
        if not policy.exchanges:
            continue
        if not _mutual(life, group):
            leads.append(_detour(life, group))
            continue
        overlay = policy.overlay
        steps = nx.eccentricity(overlay.union, overlay.members.index(life.me)) if not policy.exact else 1
        leads.append((steps - 1) // policy.exchanges)
    every = life.setup.federation.gossip.every
    return max(leads) * every + every - 1


def _mutual(life: Life, group: str) -> bool:
    """Whether every exchange goes both ways with all neighbours, so that they keep step."""
    policy = life.circle.averaging[group]
    whole = len(policy.overlay.phases) == 1 and not policy.overlay.union.is_directed()
    return not policy.exchanges or (whole and policy.protocol != "push-pull")


def _detour(life: Life, group: str) -> int:
    """Rounds until what a peer sends may come back to it, along phases and matchings."""
    return 1 + math.ceil(len(life.circle.groups[group].members) / life.circle.averaging[group].exchanges)


# ------------------------------------------------------------------------------------------------- synchronous rounds


def average(life: Life, rounds: Rounds, repeats: Repeats) -> bool:
    """Take every group as far as it can go; whether the averaging of this round is over in all of them."""
    over = [_average(life, rounds, repeats, group) for group in life.ledger.groups]  # all of them go on, not the first
    return all(over)


def _average(life: Life, rounds: Rounds, repeats: Repeats, group: str) -> bool:
    policy, round = life.circle.averaging[group], life.ledger.round
    if not policy.due(round - 1):
        return True
    while True:
        holding = life.ledger.groups[group]
        at = holding.at if holding.at[0] == round else (round, 0)
        if holding.expect is None or holding.at[0] < round:
            if at[1] >= policy.exchanges:
                return True
            if not _open(life, rounds, repeats, group, at[1]):
                return False
            continue
        missing = [peer for peer in holding.missing if _awaited(life, rounds, group, peer)]
        if missing and not _overdue(life, rounds, group, missing):
            return False
        if missing:
            rounds.late.update(dict.fromkeys(missing, life.now))
        gone = holding.missing
        if gone:
            why = "after the deadline" if missing else "which are gone or ahead"
            text = f'went on without {", ".join(gone)} in "{group}", exchange {at[1] + 1} of round {round}, {why}'
            life.note(
                "info" if missing else "debug", "went_on_without", text, group=group, without=list(gone), round=round
            )
        _measure(life, rounds, group, last=at[1] + 1 == policy.exchanges)
        life.write(Closed(group=group, without=gone))
        since = rounds.opened_at.pop(group, life.now)
        rounds.silent[group] = dict.fromkeys(gone, since) | rounds.silent.get(group, {})


def _awaited(life: Life, rounds: Rounds, group: str, peer: str) -> bool:
    """Whether a missing share may still come in time: not from who is gone, was late already, or is past this."""
    holding = life.ledger.groups[group]
    if peer in rounds.late or not life.expected(peer, group):
        return False
    other, (round, exchange), policy = life.others[peer], holding.at, life.circle.averaging[group]
    if other.round > round + _ahead(life):
        return False
    if other.round > round and _mutual(life, group):
        # Who goes on to the next round has our share of the last exchange and made one for us. In an earlier exchange
        # there is no such share; in the last one it is under way, or it was never made: then we do not wait for long.
        patience = life.setup.ticks(life.setup.federation.gossip.deadline / AHEAD_PARTS)
        if exchange + 1 < policy.exchanges or life.now - other.round_at >= patience:
            return False
    return holding.into.get(peer, Incoming()).place <= holding.at


def _overdue(life: Life, rounds: Rounds, group: str, behind: Sequence[str] = ()) -> bool:
    """Whether this wait has lasted as long as any may.

    For those who are in earlier rounds it begins again with each round that they reach: a peer that was alone for a
    while is ahead of all, and would stay so for good if it went on at every deadline.
    """
    since = rounds.opened_at.setdefault(group, life.now)
    others = (life.others[peer] for peer in behind)
    since = max([since, *(other.round_at for other in others if other.round < life.ledger.round)])
    return life.now - since >= life.setup.ticks(life.setup.federation.gossip.deadline)


def _open(life: Life, rounds: Rounds, repeats: Repeats, group: str, exchange: int) -> bool:
    """Begin an exchange, if the lanes are free; for an acknowledgement that is still under way it waits a little."""
    round, holding = life.ledger.round, life.ledger.groups[group]
    policy = among_the_living(life, group)
    alone = len(policy.overlay.members) == 1
    plan = Turn((), 1.0, ()) if alone else turn(policy, life.me, round - 1, exchange)
    anew = _begins_with(life, group)
    # Whose averagings begin anew is drained for one of them at most; and where weights differ widely, who starts with
    # much comes down to the mean, which may be a small part of that.
    tired = anew is None and exhausted(holding.held, life.ledger.rules.start_weight)
    asleep = policy.drift is not None and (tired or not _awake(holding, exchange, policy.drift))
    lanes = {peer: holding.out.get(peer, Outgoing()) for peer in plan.to if asleep or not tired}
    # Between us and who is silent there may be a cut, for hours, and what is under way to the other side is missed on
    # this one: who has not acknowledged the last share gets no second one, nor a first who may be over there too.
    cut = {
        peer: since for peer, since in rounds.silent.get(group, {}).items() if holding.out.get(peer, Outgoing()).open
    }
    rounds.silent[group] = cut
    since = min(cut.values(), default=-1)
    beyond = {peer for peer in lanes if peer in cut or not life.heard_since(peer, since)}
    # From everybody else an acknowledgement is still under way (it travels beside the shares): to skip a neighbour for
    # that would leave it waiting, and make another average than the matrices say.
    slow = [peer for peer, lane in lanes.items() if resting(lane) and peer not in beyond and peer not in rounds.late]
    if slow:
        if not _overdue(life, rounds, group, slow):
            return False
        rounds.late.update(dict.fromkeys(slow, life.now))
    to, fraction = tuple(p for p, lane in lanes.items() if not resting(lane) and p not in beyond), plan.fraction
    if not asleep:
        to, fraction = fitting(life, group, to, fraction, anew if exchange == 0 else None)
    opened = Opened(
        group=group,
        round=round,
        exchange=exchange,
        to=to,
        expect=plan.expect,
        fraction=fraction,
        start_weight=anew if exchange == 0 else None,
        asleep=asleep,
        **_noise(life, policy, group, exchange, cut),
    )
    rounds.opened_at[group] = life.now
    ship(life, repeats, group, life.write(opened))
    return True


def _awake(holding: Holding, exchange: int, drift: float) -> bool:
    """Whether this peer gives in an exchange: it has moved since it last averaged, or was woken in this averaging. Who
    does not know what it had then gives."""
    if exchange > 0 or holding.settled_D is None:
        return exchange == 0 or holding.awake
    return bool(moved(holding.held.estimate_D, holding.settled_D.to(holding.held.value_D.dtype), drift))


def _noise(life: Life, policy: Averaging, group: str, exchange: int, cut: Collection[str]) -> dict[str, Any]:
    """Fields of an `Opened` by which its shares are made up; none where true ones may be given.

    They may when the phase of noise is over for all, and this peer has told as many as it was to: of those whom it can
    reach, or everybody would wait for who is cut off.
    """
    noise, round, holding = policy.noise, life.ledger.round, life.ledger.groups[group]
    if noise is None:
        return {}
    told = holding.told if holding.at[0] == round else frozenset()
    reached = {p for p in neighbours(policy, life.me) if not resting(holding.out.get(p, Outgoing())) and p not in cut}
    if exchange >= policy.veiled and Veil(noise.pushes, told).among(reached).lifted:
        return {}
    return life.made_up(group, round, exchange, noise.scale)


def _begins_with(life: Life, group: str) -> float | None:
    """The weight with which each averaging of this group begins; None where weights are carried on."""
    ledger, keeps = life.ledger, life.setup.keeps
    if keeps is not None and not ledger.fresh:
        weight = keeps.weight(ledger.s_k, ledger.index[group])
        if weight is not None:
            return weight
    return ledger.rules.start_weight if life.setup.federation.learning.weights == "samples" else None


def among_the_living(life: Life, group: str) -> Averaging:
    """The group's averaging among those who are there, by the overlay repaired; the group's own if all of them are."""
    policy = life.circle.averaging[group]
    if group not in life.living:
        alive = {p for p in policy.overlay.members if p == life.me or life.expected(p, group)}
        whole = len(alive) == len(policy.overlay.members)
        life.living[group] = policy if whole else replace(policy, overlay=repaired(policy.overlay, alive))
    return life.living[group]


def _measure(life: Life, rounds: Rounds, group: str, *, last: bool) -> None:
    """How far the neighbours are from this peer, relative to its norm, as their last shares show it."""
    holding = life.ledger.groups[group]
    if not last:
        return
    own_D = holding.held.estimate_D
    shares = [mass for place, mass in holding.waiting.items() if place[:2] == holding.at]
    if not shares and life.ledger.rules.drifts:  # nobody has moved: it is as it was
        return
    far = max((float((mass.estimate_D - own_D).norm()) for mass in shares), default=0.0)
    rounds.disagreement[group] = far / max(float(own_D.norm()), 1e-30)


# ------------------------------------------------------------------------------------------------------- asynchronous


def push(life: Life, rounds: Rounds, repeats: Repeats) -> None:
    """Give shares to all neighbours whose lanes are free, where there is news and the last push is a while ago. By
    drift, there is news where a group has moved, by training or by what came, since it was last pushed."""
    for group in sorted(rounds.news):
        if life.now - rounds.pushed_at.get(group, -PUSH_EVERY) < PUSH_EVERY:
            continue
        policy, holding = among_the_living(life, group), life.ledger.groups[group]
        me = policy.overlay.members.index(life.me)
        neighbours = [policy.overlay.members[i] for i in sorted(policy.overlay.union.neighbors(me))]
        idle = tuple(peer for peer in neighbours if not resting(holding.out.get(peer, Outgoing())))
        # What was trained meanwhile is added to what came. Who keeps less than a half is moved past the others by that:
        # where training goes far from where it began, peers then swing about the mean, further each time.
        free, fraction = fitting(life, group, idle, 1 / (2 * len(neighbours))) if idle else ((), 0.0)
        tired = exhausted(holding.held, life.ledger.rules.start_weight) or overdrawn(holding.held, holding.out.values())
        if not free or tired:
            continue
        if policy.drift is not None and not _worth_telling(life, rounds, group, policy.drift):
            rounds.news.discard(group)
            continue
        opened = Opened(group=group, round=life.ledger.round, exchange=0, to=free, expect=(), fraction=fraction)
        ship(life, repeats, group, life.write(opened))
        if policy.drift is not None:
            rounds.pushed_D[group] = life.ledger.estimate_D(group), 0
        rounds.pushed_at[group] = life.now
        rounds.news.discard(group)


def _worth_telling(life: Life, rounds: Rounds, group: str, drift: float) -> bool:
    """Whether a group has moved since it was last pushed, or that is long ago, or was in another life."""
    before_D, trainings = rounds.pushed_D.get(group, (None, 0))
    if before_D is None or trainings >= QUIET_TRAININGS:
        return True
    return bool(moved(life.ledger.estimate_D(group), before_D, drift))
