"""Peer-to-peer rounds: synchronous ones with a soft barrier, and asynchronous ones without a barrier.

A round is one training, and then an averaging in each group that is due. A group averages by exchanges of shares (in
this module) or through a coordinator (`group_averager.py`). The round is over when all these averagings are.

The functions only decide and write entries; they are called after every event and go as far as they can. Every wait has
a limit, after which the peer goes on without the missing neighbors and logs that in one line. These neighbors are late
for the rest of this averaging; their shares are added when they arrive, and they catch up by taking part in the round
that the other peers are in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from fedpeer.gossip.averaging import Averaging, Turn, neighbors, turn
from fedpeer.gossip.event_trigger import has_moved
from fedpeer.gossip.noise_phase import NoisePhase
from fedpeer.gossip.transfers import Incoming, Outgoing, exhausted, overdrawn, resting
from fedpeer.peer.node.amending import goes_over
from fedpeer.peer.node.channels import fitting, ship
from fedpeer.peer.node.retransmission import Retransmissions
from fedpeer.peer.node.skew import (
    ahead,
    behind,
    finished_without,
    furthest,
    in_step,
    left_behind,
    may_begin,
    mutual,
    relies_on_one_peer,
)
from fedpeer.peer.state.durable_state import GroupState
from fedpeer.peer.state.entries import Began, Closed, LocalTrained, MaskedShares, NoShares, Opened, RealShares
from fedpeer.peer.state.events import Train, Trained
from fedpeer.peer.state.neighbors import DOUBT_TICKS
from fedpeer.peer.state.node_state import NodeState
from fedpeer.topology.repair import repaired

#: Part of the deadline (1 / this) to wait for a share whose sender is already in the next round.
_AHEAD_PARTS = 10
#: Part of the deadline (1 / this) to wait for an acknowledgement. The other neighbors wait for this peer's share
#: meanwhile, at most a deadline: if this peer waited as long, one that acknowledges nothing would make it late for all.
_ACK_PARTS = 2
#: Ticks between two pushes of an asynchronous peer: an acknowledgement takes a few, and the channel rests until then.
_PUSH_EVERY = 4
#: Last part of the deadline (1 / this) in which a neighbor has to be heard if its share did not come within all of it.
_HEARD_PARTS = 2
#: Deadlines for which the averaging of one round may last before the peer logs that rounds have stalled.
_STALLED_DEADLINES = 2
#: Range of the weight at the end of a round, in units of this peer's start weight; outside of it the peer logs that
#: weight has gathered somewhere.
WEIGHT_LEAST, WEIGHT_MOST = 0.2, 2.0
#: Trainings after which an asynchronous peer with event-triggered averaging pushes although it has hardly moved, so
#: that weight comes back to peers that move more than others.
QUIET_TRAININGS = 8


@dataclass
class GroupProgress:
    """Progress of a peer in the averaging of one group, beside what is durable.

    opened_at    tick at which its exchange was opened; None: none is open
    silent       neighbors whose share did not arrive, and the tick since which it was expected; until they have
                 acknowledged our share and been heard
    unheard      neighbors whose share did not arrive within a deadline, and the tick since which they have to be heard:
                 half a deadline before the end of that wait
    further      neighbors in a later round that gave no share of an exchange, and the place of their last share; until
                 another share comes, or this peer catches up
    skipped      neighbors that could not be reached when the exchange was opened, and got no share yet
    missed       members that an averaging went on without, until an averaging with them begins; only for
                 event-triggered averaging
    pushed_at    tick of its last push; None: none yet
    pushed_D     its estimate at its last push, and `trainings`, the number since; event-triggered only
    astray       whether it was logged that far too little or too much weight is held here
    """

    opened_at: int | None = None
    silent: dict[str, int] = field(default_factory=dict)
    unheard: dict[str, int] = field(default_factory=dict)
    further: dict[str, tuple[int, int]] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    missed: set[str] = field(default_factory=set)
    pushed_at: int | None = None
    pushed_D: Tensor | None = None
    trainings: int = 0
    astray: bool = False


@dataclass
class RoundProgress:
    """Progress of a peer in its rounds, beside what is durable.

    groups       progress by group
    late         members that this round goes on without, and since which tick; the next rounds also go on without a
                 member until something comes from it
    news         groups with something that was not pushed yet
    training     a `Train` is under way
    disagreement by group, distance to the furthest neighbor relative to the own norm, in the last averaging
    alone        trainings beyond the first in this round, taken because no peer answers
    alone_since  tick of running time at which the peer found itself alone; None: it is not
    trained_at   tick of running time at which this round's training was over; None: it is not
    alone_noted, stalled_noted   whether it was logged that the peer is alone, and that the round has stalled
    """

    groups: defaultdict[str, GroupProgress] = field(default_factory=lambda: defaultdict(GroupProgress))
    late: dict[str, int] = field(default_factory=dict)
    news: set[str] = field(default_factory=set)
    training: bool = False
    disagreement: dict[str, float] = field(default_factory=dict)
    alone: int = 0
    alone_since: int | None = None
    alone_noted: bool = False
    trained_at: int | None = None
    stalled_noted: bool = False

    def alone_for(self, state: NodeState) -> int:
        """Return the ticks for which this peer has been alone in its round; 0 if it is not, or only for a moment."""
        return state.ran - self.alone_since if self.alone_since is not None and self.alone_noted else 0

    def stalled_for(self, state: NodeState) -> int:
        """Return the ticks for which the averaging of this round lasts; 0 until it counts as stalled."""
        return state.ran - self.trained_at if self.trained_at is not None and self.stalled_noted else 0


def begin_round(state: NodeState, rounds: RoundProgress, round: int) -> None:
    """Begin a round: the averages go into the parameters, which are evaluated if due and trained on."""
    durable, learning = state.durable, state.setup.federation.learning
    state.write(Began(round=round))
    _forgive_late(state, rounds)
    rounds.training, rounds.trained_at, rounds.stalled_noted = False, None, False
    done = round - 1
    state.averages |= {
        group: durable.x_n[span]
        for group, span in durable.spans.items()
        if done and state.peer_groups.averaging[group].due(done - 1)
    }
    if done:
        weights = {group: float(holding.held.weight) for group, holding in durable.groups.items()}
        _watch_weights(state, rounds, weights)
        weights |= {group: update_weight(state, group) for group in state.peer_groups.consensus_by_group}
        state.note(
            "debug",
            "round",
            f"round {done} is done",
            round=done,
            weights=weights,
            disagreement=dict(rounds.disagreement),
        )
        if learning.evaluated(done):
            state.evaluate(min(done, learning.rounds), *state.models())
    state.snapshot_if_due()
    if round > learning.rounds:
        state.enter("finished")
        state.note("info", "finished", f"all {learning.rounds} rounds are done")
        state.snapshot()
        return
    train_round(state, rounds)


def _forgive_late(state: NodeState, rounds: RoundProgress) -> None:
    """Wait again for late peers from which something has come since they were late."""
    rounds.late = {peer: since for peer, since in rounds.late.items() if not state.others.received_since(peer, since)}


def _watch_weights(state: NodeState, rounds: RoundProgress, weights: Mapping[str, float]) -> None:
    """Log that this peer holds far too little or too much weight at the end of a round, once until that is over."""
    start_weight = state.durable.rules.start_weight
    for group, weight in weights.items():
        if _begins_with(state, group) is not None:  # each averaging starts with the right weight
            continue
        part, progress = weight / start_weight, rounds.groups[group]
        noted, progress.astray = progress.astray, not WEIGHT_LEAST <= part <= WEIGHT_MOST
        if progress.astray and not noted:
            text = f'the weight held in "{group}" is {part:.3g} times the start weight'
            state.note("warning", "weight_astray", text, group=group, weight=weight)


def watch_rounds(state: NodeState, rounds: RoundProgress) -> None:
    """Log when the averaging of a synchronous round lasts for longer than a deadline or two can explain."""
    if rounds.trained_at is None or rounds.stalled_noted or rounds.alone_noted:
        return
    if not state.in_rounds:  # rounds that only wait for coordinators log their own pauses
        return
    lasted = state.ran - rounds.trained_at
    if lasted < _STALLED_DEADLINES * state.longest_deadline:
        return
    rounds.stalled_noted = True
    missing = sorted({peer for group in state.in_rounds for peer in state.durable.groups[group].missing})
    missing += [f'the mean of "{group}"' for group in means_awaited(state)]
    seconds, whom = lasted * state.setup.federation.gossip.tick, ", ".join(missing) or "nobody"
    text = f"round {state.durable.round} has been averaging for {seconds:.0f} s; waiting for {whom}"
    state.note("warning", "rounds_stalled", text, round=state.durable.round)


def train_round(state: NodeState, rounds: RoundProgress) -> None:
    """Request this round's local steps; after a restart again, since a `Train` under way is forgotten."""
    durable = state.durable
    if goes_over(state):
        return
    rounds.training = True
    state.effects.append(Train(durable.round, durable.round + rounds.alone, durable.x_n, durable.s_k, durable.fresh))


def stay(state: NodeState, rounds: RoundProgress) -> bool:
    """Return whether this peer has to stay in its round because no other peer has come as far (`skew.py`).

    If that lasts, it trains again under the same number, up to `learning.alone_rounds` times. After
    `learning.alone_limit` it no longer stays, and goes through the remaining rounds by itself. If only one other peer
    states that it has come as far, and gives no shares, this peer begins one round per deadline.
    """
    next_round = state.durable.round + 1
    if may_begin(state, next_round):
        assert rounds.trained_at is not None, "a round is averaged before it ends"
        if relies_on_one_peer(state, next_round) and state.ran - rounds.trained_at < state.longest_deadline:
            return True
        if rounds.alone_noted:
            state.note(
                "info", "company", f"no longer alone, after {rounds.alone} trainings in round {state.durable.round}"
            )
        rounds.alone, rounds.alone_since, rounds.alone_noted = 0, None, False
        return False
    learning = state.setup.federation.learning
    rounds.alone_since = state.ran if rounds.alone_since is None else rounds.alone_since
    waited = state.ran - rounds.alone_since
    if learning.alone_limit is not None and waited >= state.setup.ticks(learning.alone_limit):
        return False
    if waited < DOUBT_TICKS:
        return True
    if not rounds.alone_noted:
        rounds.alone_noted = True
        text = f"alone in round {state.durable.round}: no other peer answers; the round number stays until one does"
        state.note("warning", "alone", text, round=state.durable.round)
    if rounds.alone < learning.alone_rounds:
        rounds.alone += 1
        train_round(state, rounds)
    return True


def round_trained(state: NodeState, rounds: RoundProgress, event: Trained) -> bool:
    """Store the result of a training, under the other peers' round if this peer fell behind.

    Return False if it is not the training that was requested; the result is then dropped.
    """
    if not rounds.training or event.round != state.durable.round:
        return False
    rounds.training = False
    round = state.durable.round
    if left_behind(state) and not finished_without(state):
        # The others are in the middle of their round and do not wait for us; in the next one they will.
        round = min(furthest(state) + 1, state.setup.federation.learning.rounds)
        text = f"behind: round {state.durable.round} counts as round {round}, to which the others come next"
        state.note("info", "caught_up", text, round=round)
    leapt = round > state.durable.round
    x_n, s_k, fresh = event.x_n, event.s_k, False
    if not event.sound:  # kept, it would be there in each later training, too, whatever the learning rate is then
        x_n, s_k, fresh = state.durable.x_n, state.durable.s_k, state.durable.fresh
        text = f"the training of round {state.durable.round} produced NaN or infinite values and was discarded"
        state.note("warning", "update_void", f"{text}; lower the learning rate", round=state.durable.round)
    state.write(LocalTrained(round=round, x_n=x_n, s_k=s_k, fresh=fresh))
    if leapt:  # else peers that leap at the same moment would each think the others behind, and give them nothing
        state.advertise()
        # The others count on this peer in the round that it names. So it waits for acknowledgements still missing from
        # its time alone as for any others; otherwise it would finish that round before the others begin it.
        for progress in rounds.groups.values():
            progress.silent, progress.further = {}, {}
        _forgive_late(state, rounds)  # they were late in the round that it leaves
    rounds.trained_at = state.ran if rounds.trained_at is None else rounds.trained_at
    rounds.news |= set(state.durable.groups)
    for progress in rounds.groups.values():
        progress.trainings += 1
    return True


def means_awaited(state: NodeState) -> list[str]:
    """Return the groups with a coordinator in which the averaging of this round is not in force here yet."""
    durable, gossip = state.durable, state.peer_groups.gossip
    return [
        group
        for group in state.peer_groups.consensus_by_group
        if durable.consensus_states[group].settled < durable.round // gossip[group].every
    ]


# ------------------------------------------------------------------------------------------------- synchronous rounds


def average(state: NodeState, rounds: RoundProgress, repeats: Retransmissions) -> bool:
    """Take every group as far as it can go; return whether the averaging of this round is over in all of them."""
    over = [_average(state, rounds, repeats, group) for group in state.in_rounds]  # a list, so each group goes on
    return all(over)


def _average(state: NodeState, rounds: RoundProgress, repeats: Retransmissions, group: str) -> bool:
    policy, round = state.peer_groups.averaging[group], state.durable.round
    if not policy.due(round - 1):
        return True
    while True:
        holding = state.durable.groups[group]
        at = holding.at if holding.at[0] == round else (round, 0)
        if holding.expect is None or holding.at[0] < round:
            if at[1] >= policy.exchanges:
                return True
            if not _open(state, rounds, repeats, group, at[1]):
                return False
            continue
        _give_late(state, rounds, repeats, group)
        awaited = [peer for peer in holding.missing if _awaited(state, rounds, group, peer)]
        if awaited and not _overdue(state, rounds, group, awaited):
            return False
        _close(state, rounds, group, awaited)


def _close(state: NodeState, rounds: RoundProgress, group: str, overdue: Sequence[str]) -> None:
    """End the open exchange, without the members whose share is missing; of these, the `overdue` ones are late."""
    holding, policy, progress = state.durable.groups[group], state.peer_groups.averaging[group], rounds.groups[group]
    round, exchange = holding.at
    rounds.late.update(dict.fromkeys(overdue, state.now))
    gone = holding.missing
    if gone:
        progress.missed.update(gone)
        why = "after the deadline" if overdue else "which are gone or ahead"
        text = f'went on without {", ".join(gone)} in "{group}", exchange {exchange + 1} of round {round}, {why}'
        level: Literal["info", "debug"] = "info" if overdue else "debug"
        state.note(level, "went_on_without", text, group=group, without=list(gone), round=round)
    _measure(state, rounds, group, last=exchange + 1 == policy.exchanges)
    state.write(Closed(group=group, without=gone))
    since = state.now if progress.opened_at is None else progress.opened_at
    progress.opened_at = None
    # A peer that is past this exchange is not silent: it waits for our share of the one that it is in.
    silent = [peer for peer in gone if not _is_past(holding, peer)]
    progress.silent = dict.fromkeys(silent, since) | progress.silent
    lately = state.now - state.deadline(group, _HEARD_PARTS)
    progress.unheard.update((peer, lately) for peer in silent if peer in overdue)
    further = (peer for peer in silent if peer in state.others and state.others.round_of(peer) > round)
    progress.further.update((peer, _last_place(holding, peer)) for peer in further)


def _awaited(state: NodeState, rounds: RoundProgress, group: str, peer: str) -> bool:
    """Return whether a missing share may still arrive in time: its sender is not gone, late or past this exchange."""
    holding = state.durable.groups[group]
    if peer in rounds.late or not state.others.expected(peer, group):
        return False
    other, (round, exchange), policy = state.others[peer], holding.at, state.peer_groups.averaging[group]
    # An edge that was added for peers that seemed dead is removed when they are back, perhaps at its other end first.
    if not expected_averaging(state, group).linked(state.me, peer):
        return False
    # A peer that has leapt over this round gives nothing for it, and states its new round before it sends a share.
    reached = state.others.round_of(peer)
    if (reached > round and reached > round + ahead(state)) or behind(state, group, peer):
        return False
    if other.round > round and mutual(state, group):
        # A peer in the next round has our share of the last exchange. Its own share of that exchange is under way or
        # was never made, so we do not wait for long; a share of an earlier exchange will not come at all.
        patience = state.deadline(group, _AHEAD_PARTS)
        if exchange + 1 < policy.exchanges or state.now - other.round_at >= patience:
            return False
    return not _is_past(holding, peer)


def _is_past(holding: GroupState, peer: str) -> bool:
    """Return whether a neighbor is past the open exchange: its share for a later one has arrived."""
    return _last_place(holding, peer) > holding.at


def _last_place(holding: GroupState, peer: str) -> tuple[int, int]:
    """Return the place of a neighbor's last share."""
    return holding.into.get(peer, Incoming()).place


def _overdue(state: NodeState, rounds: RoundProgress, group: str, behind: Sequence[str] = (), parts: int = 1) -> bool:
    """Return whether this wait has lasted for a deadline, or for 1 / `parts` of it.

    The wait starts again whenever a peer of `behind` that is in an earlier round reaches its next one: a peer that was
    alone for a while is ahead of all others, and would stay ahead forever if it went on at every deadline.
    """
    progress = rounds.groups[group]
    since = progress.opened_at = state.now if progress.opened_at is None else progress.opened_at
    others = (state.others[peer] for peer in behind)
    since = max([since, *(other.round_at for other in others if other.round < state.durable.round)])
    return state.now - since >= state.deadline(group, parts)


def _open(state: NodeState, rounds: RoundProgress, repeats: Retransmissions, group: str, exchange: int) -> bool:
    """Begin an exchange if the channels are free, after a short wait for acknowledgements; return whether it began."""
    round, holding, progress = state.durable.round, state.durable.groups[group], rounds.groups[group]
    policy = expected_averaging(state, group)
    plan = _turn(state, policy, exchange)
    anew = _begins_with(state, group)
    # If averagings start with a weight of their own, a peer is exhausted for at most one of them; and if weights differ
    # widely, a peer with a large start weight comes down to the mean, which may be a small part of that.
    start_weight, both_ways = state.durable.rules.start_weight, mutual(state, group)
    drained = anew is None and exhausted(holding.held, start_weight, synchronous=True)
    excluded = _excluded(state, rounds, group, {*plan.to, *plan.expect})
    absent = _absent(state, group, excluded) if policy.drift is not None and exchange == 0 else None
    # A peer that is back may be far away although nobody has moved: each side averaged without the other.
    back = absent is not None and bool(progress.missed & {*policy.overlay.members} - absent)
    inactive = policy.drift is not None and (drained or not (back or _is_active(holding, exchange, policy.drift)))
    channels = {p: holding.out.get(p, Outgoing()) for p in plan.to if p not in excluded and (inactive or not drained)}
    # An acknowledgement may still be under way: a neighbor skipped for that would be left waiting, and the average
    # would differ from that of the mixing matrices.
    slow = [peer for peer, channel in channels.items() if resting(channel) and peer not in rounds.late]
    if slow:
        if not _overdue(state, rounds, group, slow, _ACK_PARTS):
            return False
        rounds.late.update(dict.fromkeys(slow, state.now))
    to, fraction = tuple(p for p, channel in channels.items() if not resting(channel)), plan.fraction
    if not inactive:
        to, fraction = fitting(state, group, to, fraction, anew if exchange == 0 else None)
    # A neighbor that gets no share does not give one in return, so nobody waits for it.
    expect = tuple(peer for peer in plan.expect if not (peer in excluded and both_ways))
    if exchange == 0 and plan.expect and not expect:
        _ask_for_rounds(state, group)
    opened = Opened(
        group=group,
        round=round,
        exchange=exchange,
        to=to,
        expect=expect,
        shares=NoShares() if inactive else _shares(state, rounds, group, exchange, fraction),
        start_weight=anew if exchange == 0 else None,
    )
    if absent is not None and not drained:
        progress.missed = absent
    progress.opened_at = state.now
    unrepaired = _turn(state, state.peer_groups.averaging[group], exchange)
    progress.skipped = set() if drained else {*unrepaired.to} - {*channels}
    ship(state, repeats, group, state.write(opened))
    return True


def _ask_for_rounds(state: NodeState, group: str) -> None:
    """Greet the members of a group, whose answers state their rounds, since the neighbors go on without this peer.

    It follows the others once it knows the rounds of enough of them. What membership passes on of these is some rounds
    old where rounds are short, so a peer that was a round behind stayed there for long.
    """
    for peer in state.peer_groups.averaging[group].overlay.members:
        if state.others.available(peer, group):
            state.others[peer].greet_soon(state.now)


def _give_late(state: NodeState, rounds: RoundProgress, repeats: Retransmissions, group: str) -> None:
    """Give a share of the open exchange to neighbors that could not be reached when it was opened, and now can.

    Such a neighbor may wait for a share of this exchange or of an earlier one. Without a share of this exchange it
    would wait for a whole deadline, and this peer would wait for it in a later exchange.
    """
    skipped = rounds.groups[group].skipped
    if not skipped:
        return
    holding, policy = state.durable.groups[group], expected_averaging(state, group)
    there = {peer for peer in skipped if state.others.expected(peer, group)}
    excluded = _excluded(state, rounds, group, there)
    free = [p for p in sorted(there - excluded) if not resting(holding.out.get(p, Outgoing()))]
    if not free:
        return
    exchange, inactive = holding.at[1], policy.drift is not None and not holding.active
    to, fraction = tuple(free), min(_turn(state, policy, exchange).fraction, 1 / (len(free) + 1))
    if not inactive:
        to, fraction = fitting(state, group, to, fraction)
    opened = Opened(
        group=group,
        round=state.durable.round,
        exchange=exchange,
        to=to,
        expect=holding.expect or (),
        shares=NoShares() if inactive else _shares(state, rounds, group, exchange, fraction),
    )
    skipped.difference_update(free)
    ship(state, repeats, group, state.write(opened))


def _turn(state: NodeState, policy: Averaging, exchange: int) -> Turn:
    """Return this peer's part in an exchange of its round; a peer alone in its group keeps everything."""
    alone = len(policy.overlay.members) == 1
    return Turn((), 1.0, ()) if alone else turn(policy, state.me, state.durable.round - 1, exchange)


def _silent(state: NodeState, rounds: RoundProgress, group: str) -> dict[str, int]:
    """Return the neighbors whose share did not arrive and that may not have ours, and since which tick.

    A neighbor that acknowledged our share just before its link was cut is included, since it was not heard again.
    """
    holding, progress = state.durable.groups[group], rounds.groups[group]
    unheard = progress.unheard
    progress.silent = {
        p: since
        for p, since in progress.silent.items()
        if holding.out.get(p, Outgoing()).open or (p in unheard and not state.others.received_since(p, unheard[p]))
    }
    return progress.silent


def _excluded(state: NodeState, rounds: RoundProgress, group: str, peers: Collection[str]) -> set[str]:
    """Return the peers that get no share now: they may be on the other side of a partition, or are not in step.

    A partition may last for hours, and mass under way to its other side is missing on this side. So a silent peer gets
    no second share, and a peer that may be on the silent peer's side gets no first one.
    A neighbor that went on to a later round without this peer gets no share until it gives one: it would only take.
    """
    silent, holding = _silent(state, rounds, group), state.durable.groups[group]
    since = min(silent.values(), default=-1)
    further = rounds.groups[group].further if mutual(state, group) else {}
    return {
        p
        for p in peers
        if p in silent
        or not state.others.received_since(p, since)
        or not in_step(state, group, p)
        or further.get(p) == _last_place(holding, p)
    }


def _absent(state: NodeState, group: str, excluded: Collection[str]) -> set[str]:
    """Return the other members that take no part in an averaging that begins now."""
    members = {*state.peer_groups.averaging[group].overlay.members} - {state.me}
    return {p for p in members if p in excluded or not state.others.expected(p, group)}


def _is_active(holding: GroupState, exchange: int, drift: float) -> bool:
    """Return whether this peer gives in an exchange: it has moved since it last averaged, or was activated.

    A peer that does not know the slice that it had then gives, too.
    """
    if exchange > 0 or holding.settled_D is None:
        return exchange == 0 or holding.active
    return bool(has_moved(holding.held.estimate_D, holding.settled_D.to(holding.held.value_D.dtype), drift))


def _shares(
    state: NodeState, rounds: RoundProgress, group: str, exchange: int, fraction: float
) -> RealShares | MaskedShares:
    """Return the shares of an exchange: masked ones during the noise phase, real ones after it.

    The phase ends when it is over for all peers and this peer has sent masked shares to the required number of
    neighbors. Only reachable neighbors count; otherwise every peer would wait for one that is cut off, and so silent.
    """
    policy, holding = expected_averaging(state, group), state.durable.groups[group]
    noise, round = policy.noise, state.durable.round
    if noise is None:
        return RealShares(fraction)
    masked_to = holding.masked_to if holding.at[0] == round else frozenset()
    free = (p for p in neighbors(policy, state.me) if not resting(holding.out.get(p, Outgoing())))
    reached = {*free} - _silent(state, rounds, group).keys()
    if exchange >= policy.masked and NoisePhase(noise.pushes, masked_to).among(reached).lifted:
        return RealShares(fraction)
    return state.masked_shares(group, round, exchange, fraction, noise.scale)


def _begins_with(state: NodeState, group: str) -> float | None:
    """Return the weight with which each averaging of this group starts; None: weights are carried on."""
    weight = _own_weight(state, state.durable.index[group])
    if weight is not None:
        return weight
    return None if state.setup.federation.learning.weights == "uniform" else state.durable.rules.start_weight


def update_weight(state: NodeState, group: str) -> float:
    """Return this peer's weight in a coordinator's mean: its algorithm's own, 1, or its number of examples."""
    weight = _own_weight(state, state.durable.places[group])
    return state.durable.rules.start_weight if weight is None else weight


def _own_weight(state: NodeState, place_D: Tensor) -> float | None:
    """Return the weight that the algorithm gives to these scalars of its state; None: it gives none."""
    durable = state.durable
    return None if durable.fresh else state.setup.reader.weight(durable.s_k, place_D)


def expected_averaging(state: NodeState, group: str) -> Averaging:
    """Return the group's averaging among the expected members, on a repaired overlay if some are missing."""
    policy = state.peer_groups.averaging[group]
    if group not in state.others.living:
        alive = {p for p in policy.overlay.members if p == state.me or state.others.expected(p, group)}
        whole = len(alive) == len(policy.overlay.members)
        state.others.living[group] = policy if whole else replace(policy, overlay=repaired(policy.overlay, alive))
    return state.others.living[group]


def _measure(state: NodeState, rounds: RoundProgress, group: str, *, last: bool) -> None:
    """Store the largest distance of a neighbor's last share from this peer's estimate, relative to its norm."""
    holding = state.durable.groups[group]
    if not last:
        return
    shares = [mass for place, mass in holding.waiting.items() if place[:2] == holding.at]
    drifts = state.peer_groups.averaging[group].drift is not None
    if not shares and drifts:  # nobody has moved: the disagreement is as it was
        return
    far = max((mass.distance(holding.held) for mass in shares), default=0.0)
    rounds.disagreement[group] = far / max(holding.held.length, 1e-30)


# ------------------------------------------------------------------------------------------------------- asynchronous


def push(state: NodeState, rounds: RoundProgress, repeats: Retransmissions) -> None:
    """Give shares to all neighbors with free channels, in each group that has news and was last pushed a while ago.

    With event-triggered averaging a group has news if it has moved, by training or by shares, since its last push.
    """
    for group in sorted(rounds.news & state.peer_groups.asynchronous):
        progress = rounds.groups[group]
        if progress.pushed_at is not None and state.now - progress.pushed_at < _PUSH_EVERY:
            continue
        policy, holding = expected_averaging(state, group), state.durable.groups[group]
        me = policy.overlay.members.index(state.me)
        neighbors = [policy.overlay.members[i] for i in sorted(policy.overlay.union.neighbors(me))]
        idle = tuple(peer for peer in neighbors if not resting(holding.out.get(peer, Outgoing())))
        # The result of training is added to the shares that arrived meanwhile. A peer that kept less than half would
        # be moved past the others by that: if training goes far, peers would swing about the mean, further each time.
        free, fraction = fitting(state, group, idle, 1 / (2 * len(neighbors))) if idle else ((), 0.0)
        # Otherwise mass under way to peers that are gone for good would end all averaging with the remaining peers.
        channels = [channel for peer, channel in holding.out.items() if state.others.expected(peer, group)]
        drained = exhausted(holding.held, state.durable.rules.start_weight) or overdrawn(holding.held, channels)
        if not free or drained:
            continue
        if policy.drift is not None and not _has_news(state, progress, group, policy.drift):
            rounds.news.discard(group)
            continue
        shares = RealShares(fraction)
        opened = Opened(group=group, round=state.durable.round, exchange=0, to=free, expect=(), shares=shares)
        ship(state, repeats, group, state.write(opened))
        if policy.drift is not None:
            progress.pushed_D, progress.trainings = state.durable.estimate_D(group), 0
        progress.pushed_at = state.now
        rounds.news.discard(group)


def _has_news(state: NodeState, progress: GroupProgress, group: str, drift: float) -> bool:
    """Return whether to push a group: it moved since its last push, or that was long ago or by an earlier process."""
    if progress.pushed_D is None or progress.trainings >= QUIET_TRAININGS:
        return True
    return bool(has_moved(state.durable.estimate_D(group), progress.pushed_D, drift))
