"""Arrival and departure of a peer: gathering before the first round, joining late, lingering at the end, leaving."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedpeer.gossip.noise_phase import NoisePhase
from fedpeer.gossip.transfers import Outgoing, resting
from fedpeer.peer.node.channels import fitting, ship
from fedpeer.peer.node.handshake import send_hello
from fedpeer.peer.node.retransmission import Retransmissions
from fedpeer.peer.node.rounds import RoundProgress
from fedpeer.peer.node.skew import finished_without, followed, followed_count, furthest
from fedpeer.peer.state.durable_state import NOTHING_HELD
from fedpeer.peer.state.entries import Adopted, Left, MaskedShares, Opened, RealShares
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.messages import ValueRequest

#: Seconds of running time that leaving may take before what is left is written off.
_LEAVE_S = 5.0
#: Seconds for which a late joiner asks for values before it goes on with those that it has; and seconds for which it
#: waits for more values than it needs, since a liar may give none.
JOIN_S, _MORE_S = 10.0, 2.0
#: Seconds that a finished peer stays at least, so that the news spreads before it stops.
_LINGER_MIN_S = 2.0
#: Seconds that it waits for acknowledgements when all peers are done: a peer that has stopped by then has the share or
#: will ask for it.
_OWING_S = 5.0
#: Ticks for which a peer that has left still announces that, so that at least some peers pass it on; and ticks between
#: its Hellos, by which its neighbors know what it has not taken.
FAREWELL_TICKS, FAREWELL_EVERY = 12, 4
#: A finished peer stays until no other peer has made progress for this many deadlines, or for `gossip.gather` if that
#: is longer: the others ask for what they still need at growing intervals, and requests and replies may be lost.
_LINGER_DEADLINES = 4
#: Members that a late joiner asks for each value: if one of three lies, the median lies between two honest values.
_ASKED_FOR_VALUE = 3
#: Values that it waits for, unless there are fewer members: a single value may be a liar's.
_VALUES_MIN = 2


@dataclass
class Lifecycle:
    """Memory of a node while it joins, lingers or leaves.

    values, asked_at        of a late joiner: values (D,) by group and member, and ticks at which they were asked for
    doubted                 (group, peer) whose value was rejected: other peers are asked instead
    progress_at, furthest   of a finished peer: tick at which an unfinished peer last made progress, and the sum of the
                            unfinished peers' rounds
    all_done_at             tick at which another peer was last seen unfinished, or missing
    received_from           tick of running time since which no peer is missing, so that all can learn that this peer
                            has finished
    gone_at, farewells      tick at which this peer left, and number of its farewells
    lost                    whether something was written off then
    """

    values: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    asked_at: dict[tuple[str, str], int] = field(default_factory=dict)
    doubted: set[tuple[str, str]] = field(default_factory=set)
    progress_at: int = 0
    furthest: int = 0
    all_done_at: int = 0
    received_from: int = 0
    gone_at: int = 0
    farewells: int = 0
    lost: bool = False


@dataclass(frozen=True, eq=False)
class NodeParts:
    """The parts of a node that its phases need.

    begin   begins a round as the first one of this process
    """

    state: NodeState
    rounds: RoundProgress
    repeats: Retransmissions
    lifecycle: Lifecycle
    begin: Callable[[int], None]


def await_others(work: NodeParts) -> None:
    """Wait for the other peers for a while; then begin, or first fetch the values of peers that are further."""
    state = work.state
    absent = sorted(p for p in state.group_peers if not state.others[p].met)
    over = state.waited() >= _patience(state)
    # A peer that has met all others begins. Then this peer, which may never meet them all, stops waiting, too.
    if absent and not over and _furthest_begun(state, state.group_peers) < 1:
        return
    if any(_has_missed(state, group) for group in state.durable.groups):
        # No peer goes beyond the first round alone, so others have begun as well: they are met first unless away.
        if over or _furthest_begun(state, state.group_peers, one=False) > 1:
            state.enter("joining")
        return
    if absent and over:
        text = f"beginning without {', '.join(absent)}, after {state.setup.federation.gossip.gather:g} s"
        state.note("info", "went_on_without", text, without=absent)
    state.enter("learning")
    work.begin(1)
    state.advertise()


def _patience(state: NodeState) -> int:
    """Return the ticks for which a peer waits for other peers at its start and its end."""
    return state.setup.ticks(state.setup.federation.gossip.gather)


def _furthest_begun(state: NodeState, peers: Collection[str], *, one: bool = True) -> int:
    """Return the furthest round that enough of these peers to be followed have begun (`followed`); 0: none.

    `one`: a single peer that has begun is enough, unless enough peers to be followed were met that have not begun.
    """
    others = {peer: state.others[peer] for peer in peers if state.others[peer].met}
    stated = followed(state.others.round_of(peer) if peer in others else 0 for peer in peers)
    unbegun = sum(not state.others.begun(peer) for peer in others)
    if not one or unbegun >= followed_count(len(peers)):
        return stated
    seen = [other.round for other in others.values() if other.begun and other.round > 1]
    return max([stated, *seen])


def _has_missed(state: NodeState, group: str) -> bool:
    """Return whether the others may have averaged a group without this peer, which has not begun.

    Until the end of the first round in which the group averages, no peer needs this peer's part in that.
    """
    first = 1 if group in state.peer_groups.asynchronous else state.peer_groups.averaging[group].every
    members = set(state.peer_groups.groups[group].members) & state.group_peers
    return _furthest_begun(state, members) > first


def join_late(work: NodeParts) -> None:
    """Ask three members of each group for its value; begin in their round when all have arrived, or time is up.

    So this peer does not begin with the value of the first member that it meets, which may lie, while others are there.
    After a while two values are enough.
    """
    state = work.state
    complete = _means_there(state) or not finished_without(state)
    for group in state.durable.groups:
        complete &= _ask_for_values(work, group)
    if not complete and state.waited() < state.setup.ticks(JOIN_S):
        return
    taken = _adopt_values(state, work.lifecycle)
    if finished_without(state):  # nobody is left to average with, so these values are the result
        text = f"behind: goes from round {state.durable.round} to the end with the values of {taken}"
        state.note("info", "caught_up", text, round=state.durable.round)
        round = state.setup.federation.learning.rounds + 1
    else:
        round = max(1, furthest(state))
        state.note("info", "joined", f"joined in round {round} with the values of {taken}")
        round = min(round, state.setup.federation.learning.rounds)
    state.enter("learning")
    work.begin(round)
    state.advertise()


def _ask_for_values(work: NodeParts, group: str) -> bool:
    """Ask the members of a group for its value where that is due; return whether enough values have arrived."""
    state, lifecycle = work.state, work.lifecycle
    asked = [
        p for p in state.peer_groups.groups[group].members
        if p != state.me and state.membership.status(p) != "left"
        and state.others.listens(p) and (group, p) not in lifecycle.doubted
    ]  # fmt: skip
    givers = [p for p in asked if state.others.available(p, group) and state.others.begun(p)][:_ASKED_FOR_VALUE]
    got = lifecycle.values.setdefault(group, {})
    missing = [peer for peer in givers if peer not in got]
    for peer in missing:
        asked_at = lifecycle.asked_at.get((group, peer))
        if asked_at is None or state.now - asked_at >= work.repeats.wait(peer):
            lifecycle.asked_at[group, peer] = state.now
            state.send(peer, ValueRequest(group=group))
    wanted = max(1, min(_VALUES_MIN, len(asked)))
    enough = len(got) >= wanted and state.waited() >= state.setup.ticks(_MORE_S)
    return len(givers) >= wanted and (not missing or enough)


def _adopt_values(state: NodeState, lifecycle: Lifecycle) -> str:
    """Take over the values that have arrived; return the names of their groups.

    A value is the median of each coordinate. With two values this peer's own is the third, so that neither of the two
    alone moves it beyond the range between the other and its own; a single value is taken as it is.
    """
    for group, got in lifecycle.values.items():
        if got:
            values = [*got.values()]
            if len(values) % 2 == 0:
                values.append(state.durable.x_n[state.durable.index[group]].to(values[0].dtype))
            value_D = _in_place_of_its_own(state, group, torch.stack(values).median(0).values)
            state.write(Adopted(group=group, value_D=value_D))
    taken = ", ".join(sorted(group for group, got in lifecycle.values.items() if got)) or "nobody"
    lifecycle.values.clear()
    lifecycle.doubted.clear()
    return taken


def _means_there(state: NodeState) -> bool:
    """Return whether the last averaging of each group with a coordinator is in force here."""
    durable, rounds = state.durable, state.setup.federation.learning.rounds
    return all(
        durable.consensus_states[group].holding.round >= rounds // state.peer_groups.gossip[group].every
        for group in state.peer_groups.consensus_by_group
    )


def _in_place_of_its_own(state: NodeState, group: str, value_D: Tensor) -> Tensor:
    """Return the estimate (D,) of a peer that has not begun, as if it had put in this value instead of its own.

    Shares that it has taken meanwhile stay what they are, so that the group's total changes by its own part only.
    """
    durable = state.durable
    if durable.round > 0 or finished_without(state):
        return value_D
    holding, own_D = durable.groups[group], durable.x_n[durable.index[group]]
    total_D = holding.held.value_D + holding.put * (value_D.double() - own_D.double())
    return (total_D / holding.held.weight).to(value_D.dtype)


def lingering(state: NodeState) -> int:
    """Return the ticks for which a finished peer stays while no other peer makes progress."""
    return max(_LINGER_DEADLINES * state.longest_deadline, _patience(state))


def linger(work: NodeParts) -> None:
    """Stay until the other peers are done or stuck, all transfers are acknowledged, and the last evaluation is over.

    A peer that is thought dead may only be cut off, and can learn from nobody else that the others have finished, and
    their result. So it is waited for as long as at the start, `gossip.gather`.
    """
    state, durable, lifecycle = work.state, work.state.durable, work.lifecycle
    waited, patience = state.waited(), _patience(state)
    if waited == 0:
        state.advertise()
        lifecycle.progress_at = lifecycle.all_done_at = state.now
        lifecycle.received_from = state.ran
    unfinished = [p for p in state.group_peers if state.others.unfinished(p)]
    furthest = sum(state.others[p].round for p in unfinished)
    if furthest != lifecycle.furthest:
        lifecycle.furthest, lifecycle.progress_at = furthest, state.now
    absent = [p for p in state.group_peers if state.membership.status(p) == "dead"]
    if waited >= patience:
        absent = [p for p in absent if state.now - state.others[p].received_at < patience]
    there = {p for p in state.group_peers if state.others.present(p)}
    owing = [p for h in durable.groups.values() for p, channel in h.out.items() if channel.open and p in there]
    stuck = state.now - lifecycle.progress_at >= lingering(state)
    if unfinished or absent:
        lifecycle.all_done_at = state.now
    if absent:
        lifecycle.received_from = state.ran
    unpaid = (
        owing or any(map(state.others.leaving, state.group_peers))
    ) and state.now - lifecycle.all_done_at < state.setup.ticks(_OWING_S)
    if state.evaluating or state.ran - lifecycle.received_from < state.setup.ticks(_LINGER_MIN_S):
        return
    if (not unfinished and not unpaid) or stuck:
        state.snapshot()
        state.stop(0, f"finished all {state.setup.federation.learning.rounds} rounds")


def leave_federation(work: NodeParts) -> None:
    """Hand everything over in equal parts to the available members; write off what nobody takes in time."""
    state, durable, lifecycle = work.state, work.state.durable, work.lifecycle
    if durable.left:
        _say_farewell(state, lifecycle)
        return
    over = state.waited() >= state.setup.ticks(_LEAVE_S)
    if not over:
        for group in durable.groups:
            _hand_over(work, group)
        held = any(holding.weight > NOTHING_HELD for holding in durable.groups.values())
        if held or any(channel.open for holding in durable.groups.values() for channel in holding.out.values()):
            return
    for group, holding in durable.groups.items():
        lost = holding.weight + sum(share.weight for channel in holding.out.values() for share in channel.open)
        if lost > NOTHING_HELD:
            lifecycle.lost = True
            text = f'{lost:.3g} of weight in "{group}" is written off: nobody took it in time'
            state.note("warning", "written_off", text, group=group, weight=lost)
    state.write(Left())
    state.snapshot()
    lifecycle.gone_at = state.now


def _say_farewell(state: NodeState, lifecycle: Lifecycle) -> None:
    """Announce for a while that this peer has left, and then stop."""
    waited = state.now - lifecycle.gone_at
    if waited >= FAREWELL_TICKS:
        became = "what nobody took is written off" if lifecycle.lost else "what was held is handed over"
        state.stop(0, f"left; {became}")
    elif waited >= lifecycle.farewells * FAREWELL_EVERY:
        lifecycle.farewells += 1
        for peer in sorted(state.group_peers):
            send_hello(state, peer, answer=True)


def _hand_over(work: NodeParts, group: str) -> None:
    """Give all that is held of a group to its available members, as far as they may take it now."""
    state, holding = work.state, work.state.durable.groups[group]
    members = state.peer_groups.groups[group].members
    idle = tuple(
        p
        for p in members
        if p != state.me and state.others.available(p, group) and not resting(holding.out.get(p, Outgoing()))
    )
    if holding.weight <= NOTHING_HELD or not idle:
        return
    round, exchange = holding.at
    noise = state.peer_groups.averaging[group].noise
    masked_to = holding.masked_to if round == state.durable.round else frozenset()
    shares: RealShares | MaskedShares
    if noise is not None and not NoisePhase(noise.pushes, masked_to).among(idle).lifted:
        free, fraction = fitting(state, group, idle, 1 / (len(idle) + 1))
        shares = state.masked_shares(group, state.durable.round, exchange, fraction, noise.scale)
    else:
        free, fraction = fitting(state, group, idle, 1 / len(idle))
        shares = RealShares(fraction, whole=True)
    if free:  # none is, while each member has as much as it may have from this peer until it gives some back
        at = max(round, state.durable.round)
        opened = Opened(group=group, round=at, exchange=exchange, to=free, expect=(), shares=shares)
        ship(state, work.repeats, group, state.write(opened))
