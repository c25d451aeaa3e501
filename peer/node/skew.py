"""Skew of round numbers: how far apart those of synchronous peers may be, and which peers are in step.

A round number is a logical clock. It says which shares belong together, so a number that no other peer comes near is of
no use: its peer and all others would wait for each other. Two rules bound the skew.

**No peer runs ahead.** A peer begins the next round only if some other peer was seen in the last one (`may_begin`). So
every number is at most one above the largest number of another peer, and a peer that nobody answers keeps its number.
It goes on training under the same number, as often as `learning.alone_rounds` allows. The peer with the largest number
never blocks the others: they have seen it, so they may come up to it, and then it has seen them. If only one other peer
states such a number, and gives no shares, a peer goes on slowly (`relies_on_one_peer`).

**No peer stays behind.** A peer that finds a third of the others in a later round, and at least two (or the only other
one), counts its training for the round after that (`furthest`). So many are required because a liar might state
anything, and so might two of eight: a peer that followed them would be alone in a round far ahead. All other peers
count, including those that are away (`_reached`): otherwise a peer that meets only a liar would follow it. Peers that
were away for ten minutes do not count while two others are there, since they may never come back. Where exchanges are
few and the graph is wide, distant peers may be ahead although nobody is behind (`_leads_of`); but if all of a peer's
neighbors are in a later round, they have gone on without it (`left_behind`).

Until it has caught up, such a peer gives nothing for the round of the others: they neither wait for it nor give to it
(`in_step`). A peer that took shares and gave none back would end up with the weight of all; so a peer that is behind
and does not know it gives no second share to a neighbor that gave it none (`RoundProgress.further`).

`tests/peer/node/test_skew.py` checks both rules in a model of three peers, through all orders of events.

A peer that comes back when all others have finished takes over their result (`finished_without`).

All this holds between peers that have rounds in common. A peer whose groups are all asynchronous has none in common: it
keeps its number while no other peer is present.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import networkx as nx

from fedpeer.gossip.averaging import neighbors
from fedpeer.peer.state.neighbors import DOUBT_TICKS
from fedpeer.peer.state.node_state import NodeState

#: Rounds by which news of a peer may be late along directed phases and matchings, where an exchange does not go both
#: ways: a peer without a partner in one round has one in the next.
_ONE_WAY_ROUNDS = 2
#: A peer follows the others to a round that 1 / this of them have reached, and at least so many.
_FOLLOWED_PARTS, _FOLLOWED_MIN = 3, 2
#: With so many other peers no liar is tolerated (one of four is): if only one of them is there, it is believed.
_BELIEVED_OTHERS = 2


def may_begin(state: NodeState, round: int) -> bool:
    """Return whether this peer may go on to this round, by the rounds in which it has seen the others.

    Peers that have finished or left are no longer waited for: the last peer goes on alone.
    """
    peers = state.round_peers if state.synchronous else state.group_peers
    learning = [peer for peer in peers if state.membership.status(peer) not in ("finished", "left")]
    if not learning:
        return True
    if not state.synchronous:
        return accompanied(state)
    if not state.in_rounds:
        return True
    if not any(map(state.others.present, peers)):  # nobody is there to go on with, whatever one of them stated before
        return _seen_by_several(state, round)
    return round <= latest(map(state.others.round_of, peers), _slack(state))


def relies_on_one_peer(state: NodeState, round: int) -> bool:
    """Return whether this peer may begin a round only by the word of one other peer, which gave no share lately.

    A peer that goes on with this one gives it shares. A peer that only states rounds, while nobody else is there, would
    take this peer through all of them as fast as it trains.
    """
    # Only what this peer heard itself counts: the one that is there may pass on that unreachable peers are alive. While
    # this process stood still, it could hear nobody.
    lately = max(DOUBT_TICKS, state.longest_deadline)
    heard = sum(state.others.heard_within(peer, lately) for peer in state.round_peers)
    if not state.in_rounds or heard >= followed_count(len(state.round_peers)) or _seen_by_several(state, round):
        return False
    places = (channel.place[0] for group in state.in_rounds for channel in state.durable.groups[group].into.values())
    return max(places, default=0) + _slack(state) < round


def _seen_by_several(state: NodeState, round: int) -> bool:
    """Return whether enough others to be followed have come far enough for this peer to begin a round."""
    return round <= followed(_reached(state).values()) + _slack(state)


def _slack(state: NodeState) -> int:
    """Return how many rounds a peer may go beyond the largest number of another one."""
    slack = max([1, *(_ONE_WAY_ROUNDS for group in state.in_rounds if not mutual(state, group))])
    return slack * _every(state, state.peer_groups.gossip.keys() - state.peer_groups.asynchronous)


def accompanied(state: NodeState) -> bool:
    """Return whether another peer with rounds to go is there and can get shares."""
    learning = (peer for peer in state.group_peers if state.membership.status(peer) not in ("finished", "left"))
    return any(state.others.expected(peer, group) for peer in learning for group in state.durable.groups)


def furthest(state: NodeState) -> int:
    """Return the round that enough of the others have reached to be followed.

    If shares are exchanged in rounds, only peers that exchange them count: round numbers mean nothing to a coordinator.
    """
    return min(followed(_reached(state).values()), state.setup.federation.learning.rounds)


def _reached(state: NodeState) -> dict[str, int]:
    """Return the last known rounds of the other peers that count.

    Peers that are away or were not met yet count, too: otherwise a peer that meets only a liar would follow it. Peers
    that were away for long count only while fewer than two others are left without them: if most peers never come back,
    a peer that is started again is in step with the rest by then. With one or two other peers in all, the one that is
    there is believed.
    """
    peers = state.peer_groups.share_peers if state.in_rounds else state.others.keys()
    counted = [peer for peer in peers & state.others.keys() if state.membership.status(peer) != "left"]
    if len(counted) <= _BELIEVED_OTHERS:
        counted = [peer for peer in counted if state.others[peer].met and state.others.present(peer)]
    else:
        lately = [peer for peer in counted if not state.others.long_away(peer)]
        counted = lately if len(lately) >= _FOLLOWED_MIN else counted
    return {peer: state.others.round_of(peer) for peer in counted}


def left_behind(state: NodeState) -> bool:
    """Return whether the others do not wait for this peer, which has just trained and then has to catch up.

    That is so if enough others to be followed are further than they can be while somebody waits for this peer; or if
    all of its neighbors in a group are further, though it gave them no share of this round yet.
    """
    round = state.durable.round
    if not state.in_rounds or furthest(state) <= round:
        return False
    rounds, leads = _reached(state), _leads_of(state)
    if followed(reached - leads.get(peer, 0) for peer, reached in rounds.items()) > round:
        return True
    there = {peer: reached for peer, reached in rounds.items() if state.others.present(peer)}
    return any(_passed_over(state, group, there) for group in state.in_rounds)


def _passed_over(state: NodeState, group: str, rounds: Mapping[str, int]) -> bool:
    """Return whether all neighbors that are present are in later rounds than this one, which ends with an averaging.

    Args:
        rounds: rounds of the other peers that are present.
    """
    round, policy = state.durable.round, state.peer_groups.averaging[group]
    if not (policy.exchanges and mutual(state, group) and policy.due(round - 1)):
        return False
    reached = [rounds[peer] for peer in neighbors(policy, state.me) if peer in rounds]
    return bool(reached) and min(reached) > round


def finished_without(state: NodeState) -> bool:
    """Return whether all others that are present have finished, and this peer is too far behind to be in step.

    Enough peers to be followed must have come to the end; otherwise one liar would end this peer's training.
    """
    if not state.in_rounds or any(map(state.others.unfinished, state.round_peers)):
        return False  # without exchanges in rounds the last mean of each group is the result
    finished = any(state.membership.status(peer) == "finished" for peer in state.round_peers)
    lead, last = max(_leads_of(state).values(), default=0), state.setup.federation.learning.rounds
    return finished and state.durable.round + lead < last == furthest(state)


def latest(others: Iterable[int], slack: int = 1) -> int:
    """Return the latest round that a peer may begin, given the rounds in which the others were seen."""
    return max(others) + slack


def followed(others: Iterable[int]) -> int:
    """Return the round to which a peer follows the others: a third of them, at least two if there are, have reached it.

    0 if there are no others.
    """
    rounds = sorted(others, reverse=True)
    return rounds[followed_count(len(rounds)) - 1] if rounds else 0


def followed_count(others: int) -> int:
    """Return how many of `others` peers must have reached a round for a peer to follow them."""
    return min(others, max(_FOLLOWED_MIN, math.ceil(others / _FOLLOWED_PARTS)))


def in_step(state: NodeState, group: str, peer: str) -> bool:
    """Return whether this peer and `peer` can exchange shares of this peer's round.

    A neighbor that is further behind than any peer in step can be has to catch up first. If every exchange goes both
    ways, a neighbor that has begun a later round has given all its shares of this one.
    """
    later = mutual(state, group) and state.others[peer].round > state.durable.round
    return not (later or behind(state, group, peer))


def behind(state: NodeState, group: str, peer: str) -> bool:
    """Return whether a neighbor is further behind than any peer in step can be.

    Along phases and matchings that is not known: the two may not have had an exchange for many rounds.
    """
    reached, round = state.others.round_of(peer), state.durable.round
    return reached < round and mutual(state, group) and reached + ahead(state) < round


def ahead(state: NodeState) -> int:
    """Return how many rounds a neighbor can be ahead of a peer that is not late at all.

    If each exchange goes both ways with all neighbors, these are the rounds up to the next averaging. Along directed
    phases and matchings news of a peer takes several exchanges to come back, up to one for each member.
    """
    groups = state.in_rounds
    averagings = max([1, *(_detour(state, group) for group in groups if not mutual(state, group))])
    return averagings * _every(state, groups)


def _leads_of(state: NodeState) -> dict[str, int]:
    """Return how many rounds each other peer can be ahead of this one, which has just trained and is not left behind.

    If each exchange goes both ways, a peer that is k steps away cannot close exchange k - 1 before this peer opens the
    first. So none is ahead, except in groups that are wider than they have exchanges, and in rounds without averaging.
    """
    every, leads = _every(state, state.in_rounds), dict[str, int]()
    for group in state.in_rounds:
        policy = state.peer_groups.averaging[group]
        if not policy.exchanges:
            continue
        members = policy.overlay.members
        if not mutual(state, group):
            found = dict.fromkeys(members, _detour(state, group))
        elif policy.exact:
            found = dict.fromkeys(members, 0)
        else:
            steps = nx.single_source_shortest_path_length(policy.overlay.union, members.index(state.me))
            found = {members[other]: max(0, count - 1) // policy.exchanges for other, count in steps.items()}
        leads |= {peer: max(count, leads.get(peer, 0)) for peer, count in found.items()}
    return {peer: count * every + every - 1 for peer, count in leads.items()}


def mutual(state: NodeState, group: str) -> bool:
    """Return whether every exchange of a group goes both ways with all neighbors, so that they keep step."""
    return state.peer_groups.averaging[group].mutual


def _every(state: NodeState, groups: Iterable[str]) -> int:
    """Return the most rounds from one averaging of one of these groups to the next."""
    return max((state.peer_groups.gossip[group].every for group in groups), default=1)


def _detour(state: NodeState, group: str) -> int:
    """Return after how many rounds news that a peer sends may come back to it, along phases and matchings."""
    return 1 + math.ceil(len(state.peer_groups.groups[group].members) / state.peer_groups.averaging[group].exchanges)
