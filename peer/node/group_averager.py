"""Averagings of a peer through coordinators, as a part of its rounds, beside groups that exchange shares.

Each group has a consensus group of its own (`round_consensus.py`), whose rounds are the averagings: one after each
training, or after every k-th. After a training, the slice of each group is stored as the update for that group's next
round, and offered by its consensus group; when that round is in force, its mean replaces the slice. When this is done
in all groups, and the other groups have exchanged shares (`rounds.py`), the next training begins from all of them
together. So an update always comes from trainings that began with the mean before it.

A peer that comes back finds rounds in force in which it took no part: it takes over the newest mean between two
trainings. If it exchanges no shares, it goes on after its furthest group; otherwise it follows the peers with which it
exchanges them (`skew.py`). Groups that are behind catch up by rounds in which nobody has trained anew; such a round is
over as soon as all members have sent.

A group may have no coordinator, because more than half of its voters are unreachable. Peers with another group that
goes on, with or without a coordinator, do not wait for it forever: they go on with their own values in it, log that,
and wait for it again when it has a coordinator or a mean of it arrives. If no group goes on, a peer's rounds pause.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedpeer.peer.consensus.round_consensus import PAUSED_TICKS, RoundConsensus
from fedpeer.peer.node.lifecycle import lingering
from fedpeer.peer.node.rounds import means_awaited, update_weight
from fedpeer.peer.state.entries import Averaged, UpdateMade
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.mean_bytes import update_of

#: Deadlines for which a group with a coordinator is waited for: another coordinator, whose own deadline begins with the
#: first update that it gets, may be elected when this peer's is half over.
_COORDINATED_DEADLINES = 2


class GroupAverager:
    """One peer's averagings through coordinators; nothing happens where it has no consensus group.

    consensus_by_group   consensus groups; the node may change the mapping, which counts from the next round on
    """

    def __init__(self, state: NodeState, consensus_by_group: Mapping[str, RoundConsensus]) -> None:
        self.state, self.consensus_by_group = state, consensus_by_group
        self._since: int | None = None  # tick at which the first group, but not all, was done with this round
        self._apart: dict[str, tuple[int, str | None]] = {}  # not waited for while their round and coordinator stay

    def _every(self, group: str) -> int:
        """Return the number of rounds from one averaging of a group to the next."""
        return self.state.peer_groups.gossip[group].every

    def _last(self, group: str) -> int:
        """Return the last round that is followed by an averaging of a group; 0: no round is."""
        return self.state.setup.federation.learning.rounds // self._every(group) * self._every(group)

    def take_over(self) -> None:
        """Replace the peer's own values by the means in force; not during a training."""
        for group, consensus in self.consensus_by_group.items():
            if consensus.consensus_state.settled < consensus.applied:
                self.state.write(Averaged(group=group, round=consensus.applied))

    def keep_means(self) -> None:
        """Undo a training in groups that are done with this round, or with their last one."""
        for group, consensus in self.consensus_by_group.items():
            if consensus.consensus_state.settled * self._every(group) >= self.state.durable.round:
                self.state.write(Averaged(group=group, round=consensus.consensus_state.settled))

    def store_updates(self) -> None:
        """Store an update of the training for each group's next round; at most one until that round is over."""
        durable = self.state.durable
        for group in means_awaited(self.state):
            consensus_state = durable.consensus_states[group]
            if consensus_state.pending is None:
                update = update_of(update_weight(self.state, group), durable.x_n[durable.places[group]])
                self.state.write(UpdateMade(group=group, round=consensus_state.settled + 1, update=update, client=b""))

    def over(self, *, goes_on: bool) -> bool:
        """Return whether this round is over in all groups that are waited for, and in at least one group of the peer.

        `goes_on`: there are groups without a coordinator that go on to the next round.
        """
        state, behind = self.state, means_awaited(self.state)
        self._apart = {g: mark for g, mark in self._apart.items() if g in behind and mark == self._mark(g)}
        if not behind:
            return True
        if len(behind) == len(self.consensus_by_group) and not goes_on:
            return False
        self._since = state.now if self._since is None else self._since
        for group in behind:
            if group not in self._apart and state.now - self._since >= self._patience(group):
                self._apart[group] = self._mark(group)
                text = (
                    f'goes on with its own values in "{group}": round {self._apart[group][0] + 1} of that group is late'
                )
                state.note("info", "group_behind", text, group=group, round=state.durable.round)
        return all(group in self._apart for group in behind)

    def _mark(self, group: str) -> tuple[int, str | None]:
        return self.consensus_by_group[group].applied, self.consensus_by_group[group].coordinator

    def _patience(self, group: str) -> int:
        """Return the ticks for which a group is waited for once another one is done."""
        deadline = self.state.deadline(group)
        if self.state.durable.round >= self._last(group):
            return lingering(self.state)  # a finished peer stays that long anyway
        led = self.consensus_by_group[group].coordinator is not None
        return _COORDINATED_DEADLINES * deadline if led else min(deadline, PAUSED_TICKS)

    def first_round(self, round: int) -> int:
        """Return the first round of this process: `round`, or without share exchanges the one after the newest mean."""
        if self.state.in_rounds:
            return round
        settled = (
            consensus.consensus_state.settled * self._every(group)
            for group, consensus in self.consensus_by_group.items()
        )
        return max(round, min(max(settled, default=0) + 1, self.state.setup.federation.learning.rounds))

    def next_round(self) -> int:
        """Return the round that begins now: the one after this round, or after that of the furthest group.

        A peer that exchanges shares in rounds skips none: it would leave its neighbors behind, and the mean in force is
        as good in any round.
        """
        state, before = self.state, self.state.durable.round
        done = before if state.in_rounds else self._furthest()
        if done > before:
            text = f"behind: skips from round {before} to round {done}, where the others are"
            state.note("info", "caught_up", text, round=done)
        self._since = None
        # A group is waited for once more in its last averaging.
        self._apart = {group: mark for group, mark in self._apart.items() if done + 1 < self._last(group)}
        return done + 1

    def _furthest(self) -> int:
        """Return the round after which the newest mean of any group was averaged, or the present one if it is later.

        The result is before the last averaging of each group that has not had it, so that this peer takes part in it.
        """
        before = self.state.durable.round
        done = {group: each.applied * self._every(group) for group, each in self.consensus_by_group.items()}
        ends = [
            self._last(group) for group, at in done.items() if at < self._last(group) and before < self._last(group)
        ]
        return min([max([before, *done.values()]), *(end - 1 for end in ends)])
