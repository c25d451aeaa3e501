"""The two ways to go on: synchronous rounds with a soft barrier, and training and exchanging without any.

Both only decide and write entries; they are called after every event and go as far as they can. Every wait has a limit
and ends in going on without those who are missing, which is said in one line: they are late for the rest of this
averaging, what they sent is added when it comes, and they catch up by taking part in the round in which the others
are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from fedpeer.gossip.averaging import Averaging, Turn, neighbours, turn
from fedpeer.gossip.event_trigger import has_moved
from fedpeer.gossip.noise_phase import NoisePhase
from fedpeer.gossip.transfers import Incoming, Outgoing, exhausted, overdrawn, resting
from fedpeer.peer.node.amending import goes_over
from fedpeer.peer.node.channels import fitting, ship
from fedpeer.peer.node.retransmission import Retransmissions
from fedpeer.peer.node.skew import ahead, behind, finished_without, furthest, in_step, lead, may_begin, mutual
from fedpeer.peer.state.durable_state import GroupState
from fedpeer.peer.state.entries import Began, Closed, LocalTrained, MaskedShares, NoShares, Opened, RealShares
from fedpeer.peer.state.events import Evaluate, Train, Trained
from fedpeer.peer.state.neighbors import DOUBT_TICKS
from fedpeer.peer.state.node_state import NodeState
from fedpeer.topology.repair import repaired

#: The part of the deadline for which a share is waited for whose sender is in the next round already.
_AHEAD_PARTS = 10
#: The part of the deadline for which an acknowledgement is waited for. Others wait for this peer's share meanwhile, a
#: deadline at most: if it waited as long, whoever acknowledges nothing would make it late for all.
_ACK_PARTS = 2
#: Ticks between two pushes of an asynchronous peer: an answer takes a few, and a channel rests until it is there.
_PUSH_EVERY = 4
#: Deadlines for which the averaging of one round may last before it is said that rounds have stalled.
_STALLED_DEADLINES = 2
#: Weight at the end of a round, in parts of what this peer began with, outside of which it is said that weight has
#: gathered somewhere.
WEIGHT_LEAST, WEIGHT_MOST = 0.2, 2.0
#: Trainings after which an asynchronous peer that averages by drift pushes though it has hardly moved, so that weight
#: comes back to those who move more than others.
QUIET_TRAININGS = 8


@dataclass
class RoundProgress:
    """Where the peer is in its rounds, beside what the durable state says.

    opened_at    tick at which each group's exchange was opened
    late         members that this round goes on without, and since when; as long as nothing is heard of one, the next
                 rounds do too
    silent       by group, whose share did not come, and since when they were waited for, until they acknowledge ours
    skipped      by group, neighbours that the open exchange has not given to, since they could not be reached
    pushed_at    tick of each group's last push; `news`: groups with something that was not pushed yet
    pushed_D     by group, what it held at its last push, where averages go by drift, and how many trainings ago
    training     whether a `Train` is out
    alone        trainings beyond the first in this round, taken because nobody answers; `alone_since`: tick of this
                 process's running time at which it found itself alone; None: it is not
    trained_at   tick of this process's running time at which this round's training was over; None: it is not
    astray       groups of which it was said that far too little or too much weight is held here
    """

    opened_at: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    silent: dict[str, dict[str, int]] = field(default_factory=dict)
    skipped: dict[str, set[str]] = field(default_factory=dict)
    pushed_at: dict[str, int] = field(default_factory=dict)
    news: set[str] = field(default_factory=set)
    pushed_D: dict[str, tuple[Tensor, int]] = field(default_factory=dict)
    training: bool = False
    disagreement: dict[str, float] = field(default_factory=dict)
    alone: int = 0
    alone_since: int | None = None
    said_alone: bool = False
    trained_at: int | None = None
    said_stalled: bool = False
    astray: set[str] = field(default_factory=set)

    def alone_for(self, state: NodeState) -> int:
        """Return the ticks for which this peer has been alone in its round; 0 where it is not, or for a moment only."""
        return state.ran - self.alone_since if self.alone_since is not None and self.said_alone else 0

    def stalled_for(self, state: NodeState) -> int:
        """Return the ticks for which the averaging of this round lasts; 0 until that is remarkable."""
        return state.ran - self.trained_at if self.trained_at is not None and self.said_stalled else 0


def begin_round(state: NodeState, rounds: RoundProgress, round: int) -> None:
    """The next round: what was averaged goes into the parameters, is evaluated if due, and is trained on."""
    durable, learning = state.durable, state.setup.federation.learning
    state.write(Began(round=round))
    rounds.late = {peer: since for peer, since in rounds.late.items() if not state.others.received_since(peer, since)}
    rounds.training, rounds.trained_at, rounds.said_stalled = False, None, False
    done = round - 1
    state.averages |= {
        group: durable.x_n[place_D]
        for group, place_D in durable.index.items()
        if done and state.peer_groups.averaging[group].due(done - 1)
    }
    if done:
        weights = {group: float(holding.held.weight) for group, holding in durable.groups.items()}
        _watch_weights(state, rounds, weights)
        state.note(
            "debug",
            "round",
            f"round {done} is done",
            round=done,
            weights=weights,
            disagreement=dict(rounds.disagreement),
        )
        if done % learning.evaluate_every == 0 or done >= learning.rounds:
            state.effects.append(Evaluate(min(done, learning.rounds), *state.models()))
    state.snapshot_if_due()
    if round > learning.rounds:
        state.enter("finished")
        state.note("info", "finished", f"all {learning.rounds} rounds are done")
        state.snapshot()
        return
    train_round(state, rounds)


def _watch_weights(state: NodeState, rounds: RoundProgress, weights: Mapping[str, float]) -> None:
    """Say when far too little or too much weight is held here at the end of a round, and when that is over."""
    start_weight = state.durable.rules.start_weight
    for group, weight in weights.items():
        if _begins_with(state, group) is not None:  # each averaging begins with the right one
            continue
        part = weight / start_weight
        if WEIGHT_LEAST <= part <= WEIGHT_MOST:
            rounds.astray.discard(group)
        elif group not in rounds.astray:
            rounds.astray.add(group)
            text = f'{part:.3g} times the weight that this peer began with is held here in "{group}"'
            state.note("warning", "weight_astray", text, group=group, weight=weight)


def watch_rounds(state: NodeState, rounds: RoundProgress) -> None:
    """Say when the averaging of a synchronous round lasts for longer than a deadline or two can explain."""
    if rounds.trained_at is None or rounds.said_stalled or rounds.said_alone or not state.synchronous:
        return
    lasted = state.ran - rounds.trained_at
    if lasted < _STALLED_DEADLINES * state.setup.ticks(state.setup.federation.gossip.deadline):
        return
    rounds.said_stalled = True
    missing = sorted({peer for holding in state.durable.groups.values() for peer in holding.missing})
    seconds, whom = lasted * state.setup.federation.gossip.tick, ", ".join(missing) or "nobody"
    text = f"round {state.durable.round} has been averaging for {seconds:.0f} s; waiting for {whom}"
    state.note("warning", "rounds_stalled", text, round=state.durable.round)


def train_round(state: NodeState, rounds: RoundProgress) -> None:
    """Have the steps of this round taken; again after a restart, since a `Train` that was under way is forgotten."""
    durable = state.durable
    if goes_over(state):
        return
    rounds.training = True
    state.effects.append(Train(durable.round, durable.round + rounds.alone, durable.x_n, durable.s_k, durable.fresh))


def stay(state: NodeState, rounds: RoundProgress) -> bool:
    """Return whether this peer has to stay in its round because nobody else has come as far (`skew.py`).

    It then trains on under the same number, up to `learning.alone_rounds` times, once that lasts. After
    `learning.alone_limit` it no longer stays, and goes through the remaining rounds by itself.
    """
    if may_begin(state, state.durable.round + 1):
        if rounds.said_alone:
            state.note(
                "info", "company", f"no longer alone, after {rounds.alone} trainings in round {state.durable.round}"
            )
        rounds.alone, rounds.alone_since, rounds.said_alone = 0, None, False
        return False
    learning = state.setup.federation.learning
    rounds.alone_since = state.ran if rounds.alone_since is None else rounds.alone_since
    waited = state.ran - rounds.alone_since
    if learning.alone_limit is not None and waited >= state.setup.ticks(learning.alone_limit):
        return False
    if waited < DOUBT_TICKS:
        return True
    if not rounds.said_alone:
        rounds.said_alone = True
        text = f"alone in round {state.durable.round}: nobody answers; the round number stays until somebody does"
        state.note("warning", "alone", text, round=state.durable.round)
    if rounds.alone < learning.alone_rounds:
        rounds.alone += 1
        train_round(state, rounds)
    return True


def round_trained(state: NodeState, rounds: RoundProgress, event: Trained) -> None:
    """The steps are taken. They are booked under the round in which the others are, if this peer fell behind."""
    if not rounds.training or event.round != state.durable.round:
        return
    rounds.training = False
    round = state.durable.round
    if state.synchronous and furthest(state) > round + lead(state) and not finished_without(state):
        # The others are in the middle of theirs and do not wait for us; in the next one they will.
        round = min(furthest(state) + 1, state.setup.federation.learning.rounds)
        text = f"behind: round {state.durable.round} counts as round {round}, to which the others come next"
        state.note("info", "caught_up", text, round=round)
    leapt = round > state.durable.round
    state.write(LocalTrained(round=round, x_n=event.x_n, s_k=event.s_k))
    if leapt:  # peers that leap at the same moment would otherwise each think the others behind, and give them nothing
        state.advertise()
    rounds.trained_at = state.ran if rounds.trained_at is None else rounds.trained_at
    rounds.news |= set(state.durable.groups)
    rounds.pushed_D = {group: (before_D, count + 1) for group, (before_D, count) in rounds.pushed_D.items()}


# ------------------------------------------------------------------------------------------------- synchronous rounds


def average(state: NodeState, rounds: RoundProgress, repeats: Retransmissions) -> bool:
    """Take every group as far as it can go; whether the averaging of this round is over in all of them."""
    over = [
        _average(state, rounds, repeats, group) for group in state.durable.groups
    ]  # all of them go on, not the first
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
        missing = [peer for peer in holding.missing if _awaited(state, rounds, group, peer)]
        if missing and not _overdue(state, rounds, group, missing):
            return False
        if missing:
            rounds.late.update(dict.fromkeys(missing, state.now))
        gone = holding.missing
        if gone:
            why = "after the deadline" if missing else "which are gone or ahead"
            text = f'went on without {", ".join(gone)} in "{group}", exchange {at[1] + 1} of round {round}, {why}'
            state.note(
                "info" if missing else "debug", "went_on_without", text, group=group, without=list(gone), round=round
            )
        _measure(state, rounds, group, last=at[1] + 1 == policy.exchanges)
        state.write(Closed(group=group, without=gone))
        since = rounds.opened_at.pop(group, state.now)
        rounds.silent[group] = dict.fromkeys(gone, since) | rounds.silent.get(group, {})


def _awaited(state: NodeState, rounds: RoundProgress, group: str, peer: str) -> bool:
    """Whether a missing share may still come in time: not from who is gone, was late already, or is past this."""
    holding = state.durable.groups[group]
    if peer in rounds.late or not state.others.expected(peer, group):
        return False
    other, (round, exchange), policy = state.others[peer], holding.at, state.peer_groups.averaging[group]
    if other.round > round + ahead(state) or behind(state, group, peer):
        return False
    if other.round > round and mutual(state, group):
        # Who goes on to the next round has our share of the last exchange and made one for us. In an earlier exchange
        # there is no such share; in the last one it is under way, or it was never made: then we do not wait for long.
        patience = state.setup.ticks(state.setup.federation.gossip.deadline / _AHEAD_PARTS)
        if exchange + 1 < policy.exchanges or state.now - other.round_at >= patience:
            return False
    return holding.into.get(peer, Incoming()).place <= holding.at


def _overdue(state: NodeState, rounds: RoundProgress, group: str, behind: Sequence[str] = (), parts: int = 1) -> bool:
    """Whether this wait has lasted as long as any may: a deadline, or one of so many parts of it.

    For those who are in earlier rounds it begins again with each round that they reach: a peer that was alone for a
    while is ahead of all, and would stay so for good if it went on at every deadline.
    """
    since = rounds.opened_at.setdefault(group, state.now)
    others = (state.others[peer] for peer in behind)
    since = max([since, *(other.round_at for other in others if other.round < state.durable.round)])
    return state.now - since >= state.setup.ticks(state.setup.federation.gossip.deadline / parts)


def _open(state: NodeState, rounds: RoundProgress, repeats: Retransmissions, group: str, exchange: int) -> bool:
    """Begin an exchange, if the channels are free; for an acknowledgement that is still under way it waits a little."""
    round, holding = state.durable.round, state.durable.groups[group]
    policy = among_the_living(state, group)
    plan = _turn(state, policy, exchange)
    anew = _begins_with(state, group)
    # Whose averagings begin anew is drained for one of them at most; and where weights differ widely, who starts with
    # much comes down to the mean, which may be a small part of that.
    start_weight, both_ways = state.durable.rules.start_weight, mutual(state, group)
    tired = anew is None and exhausted(holding.held, start_weight, mutual=both_ways)
    inactive = policy.drift is not None and (tired or not _awake(holding, exchange, policy.drift))
    beyond = _beyond(state, rounds, group, {*plan.to, *plan.expect})
    channels = {p: holding.out.get(p, Outgoing()) for p in plan.to if p not in beyond and (inactive or not tired)}
    # From everybody else an acknowledgement is still under way (it travels beside the shares): to skip a neighbour for
    # that would leave it waiting, and make another average than the matrices say.
    slow = [peer for peer, channel in channels.items() if resting(channel) and peer not in rounds.late]
    if slow:
        if not _overdue(state, rounds, group, slow, _ACK_PARTS):
            return False
        rounds.late.update(dict.fromkeys(slow, state.now))
    to, fraction = tuple(p for p, channel in channels.items() if not resting(channel)), plan.fraction
    if not inactive:
        to, fraction = fitting(state, group, to, fraction, anew if exchange == 0 else None)
    # A neighbour that gets nothing cannot give a share for a share, so nobody waits for it.
    expect = tuple(peer for peer in plan.expect if not (peer in beyond and both_ways))
    cut = _silent(state, rounds, group)
    opened = Opened(
        group=group,
        round=round,
        exchange=exchange,
        to=to,
        expect=expect,
        shares=NoShares() if inactive else _shares(state, policy, group, exchange, fraction, cut),
        start_weight=anew if exchange == 0 else None,
    )
    rounds.opened_at[group] = state.now
    rounds.skipped[group] = (
        {*_turn(state, state.peer_groups.averaging[group], exchange).to} - {*channels} if not tired else set()
    )
    ship(state, repeats, group, state.write(opened))
    return True


def _give_late(state: NodeState, rounds: RoundProgress, repeats: Retransmissions, group: str) -> None:
    """Give a share of the open exchange to neighbours that could not be reached when it was opened, and now can.

    Such a neighbour may wait for a share of this exchange or of an earlier one. Without a share of this one it would
    wait for a whole deadline, and this peer, in a later exchange, for it.
    """
    if not rounds.skipped.get(group):
        return
    holding, policy = state.durable.groups[group], among_the_living(state, group)
    there = {peer for peer in rounds.skipped[group] if state.others.expected(peer, group)}
    beyond = _beyond(state, rounds, group, there)
    free = [p for p in sorted(there - beyond) if not resting(holding.out.get(p, Outgoing()))]
    if not free:
        return
    exchange, inactive = holding.at[1], policy.drift is not None and not holding.active
    to, fraction = tuple(free), min(_turn(state, policy, exchange).fraction, 1 / (len(free) + 1))
    if not inactive:
        to, fraction = fitting(state, group, to, fraction)
    cut = _silent(state, rounds, group)
    opened = Opened(
        group=group,
        round=state.durable.round,
        exchange=exchange,
        to=to,
        expect=holding.expect or (),
        shares=NoShares() if inactive else _shares(state, policy, group, exchange, fraction, cut),
    )
    rounds.skipped[group] -= {*free}
    ship(state, repeats, group, state.write(opened))


def _turn(state: NodeState, policy: Averaging, exchange: int) -> Turn:
    """Return what this peer does in an exchange of its round; one without others keeps everything."""
    alone = len(policy.overlay.members) == 1
    return Turn((), 1.0, ()) if alone else turn(policy, state.me, state.durable.round - 1, exchange)


def _silent(state: NodeState, rounds: RoundProgress, group: str) -> dict[str, int]:
    """Return whose share did not come, and since when they were waited for, until they acknowledge ours."""
    holding = state.durable.groups[group]
    silent = rounds.silent.get(group, {})
    rounds.silent[group] = {p: since for p, since in silent.items() if holding.out.get(p, Outgoing()).open}
    return rounds.silent[group]


def _beyond(state: NodeState, rounds: RoundProgress, group: str, peers: Collection[str]) -> set[str]:
    """Return those who get no share now: they may be beyond a cut, or are not in step with this peer.

    Between us and who is silent there may be a cut, for hours, and what is under way to the other side is missed on
    this one: who has not acknowledged the last share gets no second one, nor a first who may be over there too.
    """
    silent = _silent(state, rounds, group)
    since = min(silent.values(), default=-1)
    return {
        p for p in peers if p in silent or not state.others.received_since(p, since) or not in_step(state, group, p)
    }


def _awake(holding: GroupState, exchange: int, drift: float) -> bool:
    """Whether this peer gives in an exchange: it has moved since it last averaged, or was woken in this averaging. Who
    does not know what it had then gives."""
    if exchange > 0 or holding.settled_D is None:
        return exchange == 0 or holding.active
    return bool(has_moved(holding.held.estimate_D, holding.settled_D.to(holding.held.value_D.dtype), drift))


def _shares(
    state: NodeState, policy: Averaging, group: str, exchange: int, fraction: float, cut: Collection[str]
) -> RealShares | MaskedShares:
    """Return the shares of an exchange: masked ones during the noise phase, real ones after it.

    The phase ends when it is over for all, and this peer has sent masked shares to as many neighbors as it was to: of
    those that it can reach, or everybody would wait for a peer that is cut off (one of `cut`).
    """
    noise, round, holding = policy.noise, state.durable.round, state.durable.groups[group]
    if noise is None:
        return RealShares(fraction)
    told = holding.told if holding.at[0] == round else frozenset()
    reached = {p for p in neighbours(policy, state.me) if not resting(holding.out.get(p, Outgoing())) and p not in cut}
    if exchange >= policy.masked and NoisePhase(noise.pushes, told).among(reached).lifted:
        return RealShares(fraction)
    return state.masked_shares(group, round, exchange, fraction, noise.scale)


def _begins_with(state: NodeState, group: str) -> float | None:
    """The weight with which each averaging of this group begins; None where weights are carried on."""
    durable = state.durable
    weight = None if durable.fresh else state.setup.reader.weight(durable.s_k, durable.index[group])
    if weight is not None:
        return weight
    return durable.rules.start_weight if state.setup.federation.learning.weights == "samples" else None


def among_the_living(state: NodeState, group: str) -> Averaging:
    """The group's averaging among those who are there, by the overlay repaired; the group's own if all of them are."""
    policy = state.peer_groups.averaging[group]
    if group not in state.others.living:
        alive = {p for p in policy.overlay.members if p == state.me or state.others.expected(p, group)}
        whole = len(alive) == len(policy.overlay.members)
        state.others.living[group] = policy if whole else replace(policy, overlay=repaired(policy.overlay, alive))
    return state.others.living[group]


def _measure(state: NodeState, rounds: RoundProgress, group: str, *, last: bool) -> None:
    """How far the neighbours are from this peer, relative to its norm, as their last shares show it."""
    holding = state.durable.groups[group]
    if not last:
        return
    own_D = holding.held.estimate_D
    shares = [mass for place, mass in holding.waiting.items() if place[:2] == holding.at]
    if not shares and state.durable.rules.drifts:  # nobody has moved: it is as it was
        return
    far = max((float((mass.estimate_D - own_D).norm()) for mass in shares), default=0.0)
    rounds.disagreement[group] = far / max(float(own_D.norm()), 1e-30)


# ------------------------------------------------------------------------------------------------------- asynchronous


def push(state: NodeState, rounds: RoundProgress, repeats: Retransmissions) -> None:
    """Give shares to all neighbours whose channels are free, where there is news and the last push is a while ago. By
    drift, there is news where a group has moved, by training or by what came, since it was last pushed."""
    for group in sorted(rounds.news):
        if state.now - rounds.pushed_at.get(group, -_PUSH_EVERY) < _PUSH_EVERY:
            continue
        policy, holding = among_the_living(state, group), state.durable.groups[group]
        me = policy.overlay.members.index(state.me)
        neighbours = [policy.overlay.members[i] for i in sorted(policy.overlay.union.neighbors(me))]
        idle = tuple(peer for peer in neighbours if not resting(holding.out.get(peer, Outgoing())))
        # What was trained meanwhile is added to what came. Who keeps less than a half is moved past the others by that:
        # where training goes far from where it began, peers then swing about the mean, further each time.
        free, fraction = fitting(state, group, idle, 1 / (2 * len(neighbours))) if idle else ((), 0.0)
        tired = exhausted(holding.held, state.durable.rules.start_weight) or overdrawn(
            holding.held, holding.out.values()
        )
        if not free or tired:
            continue
        if policy.drift is not None and not _worth_telling(state, rounds, group, policy.drift):
            rounds.news.discard(group)
            continue
        shares = RealShares(fraction)
        opened = Opened(group=group, round=state.durable.round, exchange=0, to=free, expect=(), shares=shares)
        ship(state, repeats, group, state.write(opened))
        if policy.drift is not None:
            rounds.pushed_D[group] = state.durable.estimate_D(group), 0
        rounds.pushed_at[group] = state.now
        rounds.news.discard(group)


def _worth_telling(state: NodeState, rounds: RoundProgress, group: str, drift: float) -> bool:
    """Whether a group has moved since it was last pushed, or that is long ago, or was in another generation."""
    before_D, trainings = rounds.pushed_D.get(group, (None, 0))
    if before_D is None or trainings >= QUIET_TRAININGS:
        return True
    return bool(has_moved(state.durable.estimate_D(group), before_D, drift))
