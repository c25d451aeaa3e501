"""A peer whose groups average through coordinators: one training per round, shared by all its groups.

Each group has a consensus group of its own (`round_consensus.py`), whose rounds are the averagings: one after each
training, or after every k-th. After a training, the slice of each group is stored as the update for that group's next
round, and offered by its consensus group; when that round is in force, its mean replaces the slice. When this is done
in all groups, the next training begins, from all of them together. So an update is always of trainings that began with
the mean before it.

A peer that comes back finds rounds in force in which it took no part: it takes over the newest mean between two
trainings, and goes on after the furthest of its groups. Groups that are behind catch up by rounds in which nobody has
trained anew; these are over as soon as everybody has sent.

A group may have no coordinator, because more than half of its voters are unreachable. Peers with another group that
goes on do not wait for it forever: they go on with their own values in it, log that, and wait for it again when it has
a coordinator or a mean of it arrives. If no group of a peer goes on, its rounds pause.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedpeer.peer.consensus.round_consensus import PAUSED_TICKS, RoundConsensus
from fedpeer.peer.node.amending import goes_over
from fedpeer.peer.node.lifecycle import lingering
from fedpeer.peer.state.entries import Averaged, Began, LocalTrained, UpdateMade
from fedpeer.peer.state.events import Train, Trained
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.wire.mean_bytes import update_of

#: Deadlines for which a group with a coordinator is waited for: the coordinator's own deadline may begin when this
#: peer's is half over.
_COORDINATED_DEADLINES = 2


class GroupAverager:
    """One peer's rounds over all its consensus groups.

    consensus_by_group   the node may change the mapping; it counts from the next round on
    """

    def __init__(self, state: NodeState, consensus_by_group: Mapping[str, RoundConsensus]) -> None:
        self.state, self.consensus_by_group = state, consensus_by_group
        self._training = False
        self._since: int | None = None  # tick at which the first group was done with this round, and others were not
        self._apart: dict[str, tuple[int, str | None]] = {}  # not waited for while this round and coordinator hold

    @property
    def _every(self) -> int:
        """Number of rounds from one averaging to the next."""
        return self.state.setup.federation.gossip.every

    @property
    def _last(self) -> int:
        """Last round that is followed by an averaging; 0: there is none."""
        return self.state.setup.federation.learning.rounds // self._every * self._every

    @property
    def working(self) -> bool:
        """True while a training is under way."""
        return self._training

    def begin(self) -> None:
        """Begin this peer's first round; after a return, the next one."""
        settled = max((consensus.consensus_state.settled for consensus in self.consensus_by_group.values()), default=0)
        self.state.write(Began(round=min(settled * self._every + 1, self.state.setup.federation.learning.rounds)))

    def go_on(self) -> None:
        """Go as far as possible: take over means, train, store the updates, begin the next round."""
        state, durable = self.state, self.state.durable
        if self._training or goes_over(state):
            return
        self._take_over()
        while state.phase == "learning" and not self._training:
            if not durable.trained:
                if goes_over(state):
                    return
                self._training = True
                state.effects.append(Train(durable.round, durable.round, durable.x_n, durable.s_k, durable.fresh))
                return
            self._store_updates()
            if not self._over():
                return
            self._next()

    def trained(self, done: Trained) -> None:
        """Store the result of a training."""
        if self._training and done.round == self.state.durable.round:
            self._training = False
            self.state.write(LocalTrained(round=done.round, x_n=done.x_n, s_k=done.s_k))
            for group, consensus in self.consensus_by_group.items():
                # A group that is done with its last round keeps its mean.
                if consensus.consensus_state.settled * self._every >= done.round:
                    self.state.write(Averaged(group=group, round=consensus.consensus_state.settled))

    def _take_over(self) -> None:
        """Replace the peer's own values by the means in force."""
        for group, consensus in self.consensus_by_group.items():
            if consensus.consensus_state.settled < consensus.applied:
                self.state.write(Averaged(group=group, round=consensus.applied))

    def _store_updates(self) -> None:
        """Store an update of the training for each group's next round; at most one until that round is over."""
        durable = self.state.durable
        for group, consensus in self.consensus_by_group.items():
            consensus_state = consensus.consensus_state
            if consensus_state.pending is None and consensus_state.settled < durable.round // self._every:
                update = update_of(self._weight(group), durable.x_n[durable.places[group]])
                self.state.write(UpdateMade(group=group, round=consensus_state.settled + 1, update=update, client=b""))

    def _weight(self, group: str) -> float:
        """Return this peer's weight in a group's mean: its algorithm's own, 1, or its number of examples."""
        durable, reader = self.state.durable, self.state.setup.reader
        own = None if durable.fresh else reader.weight(durable.s_k, durable.places[group])
        return durable.rules.start_weight if own is None else own

    def _over(self) -> bool:
        """Return whether this round is over in all groups that are waited for, and in at least one."""
        state, round = self.state, self.state.durable.round
        due = round // self._every
        behind = [
            group for group, consensus in self.consensus_by_group.items() if consensus.consensus_state.settled < due
        ]
        self._apart = {g: mark for g, mark in self._apart.items() if g in behind and mark == self._mark(g)}
        if not behind:
            return True
        if len(behind) == len(self.consensus_by_group):
            return False
        self._since = state.now if self._since is None else self._since
        for group in behind:
            if group not in self._apart and state.now - self._since >= self._patience(group):
                self._apart[group] = self._mark(group)
                text = (
                    f'goes on with its own values in "{group}": round {self._apart[group][0] + 1} of that group is late'
                )
                state.note("info", "group_behind", text, group=group, round=round)
        return all(group in self._apart for group in behind)

    def _mark(self, group: str) -> tuple[int, str | None]:
        return self.consensus_by_group[group].applied, self.consensus_by_group[group].coordinator

    def _patience(self, group: str) -> int:
        """Return the ticks for which a group is waited for once another one is done."""
        deadline = self.state.setup.ticks(self.state.setup.federation.gossip.deadline)
        if self.state.durable.round >= self._last:
            return lingering(self.state)  # a finished peer stays that long anyway
        led = self.consensus_by_group[group].coordinator is not None
        return _COORDINATED_DEADLINES * deadline if led else min(deadline, PAUSED_TICKS)

    def _next(self) -> None:
        """End the round: evaluate if due, and begin the next."""
        state, durable, learning = self.state, self.state.durable, self.state.setup.federation.learning
        before, applied = (
            durable.round,
            [consensus.applied * self._every for consensus in self.consensus_by_group.values()],
        )
        done = max([before, *applied])
        if before < self._last <= done and min(applied) < self._last:
            done = self._last - 1  # where others end before it, this peer takes part in the last averaging of the rest
        if done > before:
            text = f"behind: skips from round {before} to round {done}, where the others are"
            state.note("info", "caught_up", text, round=done)
        weights = {group: self._weight(group) for group in self.consensus_by_group}
        state.write(Began(round=done + 1))
        self._since = None
        if done + 1 >= self._last:
            self._apart.clear()  # in the last averaging all are waited for once more
        state.note("debug", "round", f"round {done} is done", round=done, weights=weights, disagreement={})
        if learning.evaluated(done):
            state.evaluate(done, *state.models())
        state.snapshot_if_due()
        if done >= learning.rounds:
            state.enter("finished")
            state.note("info", "finished", f"all {learning.rounds} rounds are done")
            state.snapshot()
        else:
            state.advertise()
