"""Simulator of whole peers in one process and virtual time, over simulated links, disks and clocks.

The simulator knows no mathematics and no protocol. It starts nodes, feeds them events one at a time, and carries out
their effects in order: an `Outbox` holds back the effects after a save, saves and training take virtual time, and
messages travel as bytes through the driver's codec. Faults are planned in advance. The same seed gives the same
history, row for row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedpeer.algorithms.draws import Draws
from fedpeer.peer.state.events import (
    AggregateUpdates,
    Amend,
    Effect,
    Enrol,
    Evaluate,
    Event,
    FinishRound,
    MessageReceived,
    Note,
    Persist,
    RejectEffect,
    Send,
    Stop,
    Tick,
    Train,
    TrainClient,
    Work,
)
from fedpeer.peer.state.saving import Recovered
from fedpeer.sims.network.agenda import Agenda
from fedpeer.sims.network.disk import DiskRules, MemoryDisk
from fedpeer.sims.network.driver import RETRY_TICKS, RETRY_TICKS_MAX, Driver, Fed, Machine, SimulatedProcess
from fedpeer.sims.network.faults import Act, Faults, Lying
from fedpeer.sims.network.history import ROWS_MAX, Row
from fedpeer.sims.network.links import SimulatedLinks

#: Messages and results that may wait for a peer that is paused or cannot save; a real peer has at most as many open
#: requests, and rejects more.
_INBOX_MAX = 256
#: Ticks that a process may need after a stall to read what arrived meanwhile: several passes of its loop, each with a
#: `Tick`.
_STALLED_TICKS = 4.0
#: Ticks between two lies of a liar to all others.
_LIE_TICKS = 2.0
#: Ticks from the end of a process that stops to adopt another contract to its next start.
_AGAIN_TICKS = 4.0
#: Ticks between two backups, from which an old state of the disk can be restored.
_BACKUP_TICKS = 200.0


class Simulator:
    """A simulation of peers and of everything between them. `start` the peers, then `run`.

    Attributes:
        rows      the history so far, if `keeps_rows` (see `history.py`)
        stopped   by peer, the effect with which its node stopped
        carried   by peer, the number of effects carried out, over all its processes
        messages, bytes   by peer, what it has sent so far
        stepped   called after each event that a machine has handled: (peer, machine)
        on_effect called with each effect that is carried out, except saves: (peer, effect)
    """

    def __init__(
        self,
        peers: Sequence[str],
        driver: Driver,
        faults: Faults | None = None,
        disk: DiskRules | None = None,
        *,
        keeps_rows: bool = True,
    ) -> None:
        """
        Args:
            keeps_rows: whether the history is kept; a round of a peer has a hundred rows and more.
        """
        self.keeps_rows = keeps_rows
        self.peers, self.faults = tuple(peers), faults or Faults()
        self.agenda = Agenda()
        self.rows: list[Row] = []
        self.stopped: dict[str, Stop] = {}
        self.carried = dict.fromkeys(peers, 0)
        self.messages, self.bytes = dict.fromkeys(peers, 0), dict.fromkeys(peers, 0)
        self.stepped: Callable[[str, Machine], None] = lambda peer, machine: None
        self.on_effect: Callable[[str, Effect], None] = lambda peer, effect: None
        self._driver = driver
        self._links = SimulatedLinks(self.faults.links, self.faults.seed, self.faults.cuts, self.faults.heal)
        self._rates = dict(self.faults.rates)
        self._disk_rules = disk or DiskRules()
        self._disks = {peer: self._empty_disk(peer) for peer in peers}
        self._backups: dict[str, list[MemoryDisk]] = {peer: [] for peer in peers}
        self._alive: dict[str, SimulatedProcess] = {}
        self._kill_after: dict[str, tuple[int, float]] = {}
        self._draws = Draws(self.faults.seed).numpy("crashes")
        for act in self.faults.acts:
            self.agenda.at(act.tick, partial(self._act, act))
        for lying in self.faults.liars:
            self.agenda.at(lying.begin, partial(self._lie, lying, 1))
        if any(act.kind == "old" for act in self.faults.acts):
            self.agenda.at(_BACKUP_TICKS, self._back_up)

    # ---- for tests and engines

    @property
    def now(self) -> float:
        return self.agenda.now

    def machines(self) -> Mapping[str, Machine]:
        """Return the machines of all running processes, by peer."""
        return {peer: process.machine for peer, process in self._alive.items()}

    def counted(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the messages and bytes that each peer has sent so far, in the order of the peers."""
        return np.array(list(self.messages.values())), np.array(list(self.bytes.values()))

    def kept(self, peer: str) -> Recovered:
        """Return the content of this peer's disk, as a process that started now would find it."""
        return self._disks[peer].copy().recover()

    def start(self, *peers: str) -> None:
        """Start these peers (default: all) now."""
        for peer in peers or self.peers:
            if peer in self._alive or peer in self.stopped:
                continue
            recovered = self._disks[peer].recover()
            process = SimulatedProcess(self._driver.start(peer, recovered), self.now, self._rates.get(peer, 1.0))
            self._alive[peer] = process
            self._note("start", peer)
            for remark in recovered.remarks:
                if isinstance(remark, RejectEffect):
                    self._note("refused", peer, remark.rejection.code, "")
                else:
                    self._note("note", peer, remark.what)
            self._tick(peer, process)

    def kill(self, peer: str) -> None:
        """Kill the peer's process. What is not durable is lost; a save under way may survive."""
        process = self._alive.pop(peer)
        survived = self._disks[peer].crash(self._draws) if process.saving else False
        self._note("kill", peer, process.saving if survived else 0)

    def kill_after(self, peer: str, effects: int, ticks: float) -> None:
        """Kill the peer once it has carried out this many effects in total, and restart it after `ticks`."""
        self._kill_after[peer] = (effects, ticks)

    def feed(self, peer: str, event: Event) -> None:
        """Feed the node of a running peer an event from its own machine, such as a user's request or a new roster."""
        self._give(peer, self._alive[peer], event)

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Run until this tick or until `done`; return whether `done` was reached."""
        while not done():
            if not self.agenda.step(until):
                return done()
        return True

    def _empty_disk(self, peer: str) -> MemoryDisk:
        return MemoryDisk(self._disk_rules, Draws(self.faults.seed).numpy("disk", peer))

    # ---- faults

    def _act(self, act: Act) -> None:
        peer = act.peer
        disk = self._disks[peer]
        if act.kind == "full":
            disk.full_until = max(disk.full_until, self._healed(act.ticks))
            self._note("full", peer, act.ticks)
            return
        process = self._alive.get(peer)
        if process is None:
            return
        match act.kind:
            case "pause" | "stall":
                process.paused_until = max(process.paused_until, self._healed(act.ticks))
                self._note("pause", peer, act.ticks)
                if act.kind == "stall":
                    process.reads_from = process.paused_until + _STALLED_TICKS * float(self._draws.random())
                    self.agenda.at(process.paused_until, partial(self._remind, process))
                    self.agenda.at(process.reads_from, partial(self._feed, peer, process))
                self.agenda.at(process.paused_until, partial(self._feed, peer, process))
            case "step":
                process.leapt += act.ticks
            case "kill" | "flip" | "old" | "lose":
                self.kill(peer)
                if act.kind == "flip":
                    disk.damage()
                elif act.kind == "old" and self._backups[peer]:
                    self._disks[peer] = self._backups[peer][0].copy()
                elif act.kind == "lose":
                    self._disks[peer] = self._empty_disk(peer)
                self.agenda.at(self._healed(act.ticks), partial(self.start, peer))

    def _lie(self, lying: Lying, number: int) -> None:
        """Send this liar's lies to all other running peers, in addition to its regular messages, and plan the next."""
        if self.now >= min(lying.end, self.faults.heal):
            return
        liar = self._alive.get(lying.peer)
        if liar is not None and self.now >= liar.paused_until:
            for peer in [peer for peer in self._alive if peer != lying.peer]:
                for send in self._driver.lie(lying.lies, liar.machine, self._alive[peer].machine, number):
                    self._post(lying.peer, send)
        self.agenda.at(self.now + _LIE_TICKS, partial(self._lie, lying, number + 1))

    def _withholds(self, peer: str, send: Send) -> bool:
        """Return whether a liar's current lies make it withhold this message."""
        if self.now >= self.faults.heal:
            return False
        lying = (each for each in self.faults.liars if each.peer == peer and each.begin <= self.now < each.end)
        return any(self._driver.withholds(each.lies, send) for each in lying)

    def _healed(self, ticks: float) -> float:
        """Return when a fault that begins now is over: after `ticks`, but no later than the end of all faults."""
        return self.now + ticks if self.now >= self.faults.heal else min(self.now + ticks, self.faults.heal)

    def _back_up(self) -> None:
        for peer, disk in self._disks.items():
            self._backups[peer] = [*self._backups[peer][-2:], disk.copy()]
        if self.now < self.faults.heal:
            self.agenda.at(self.now + _BACKUP_TICKS, self._back_up)

    # ---- events in

    def _tick(self, peer: str, process: SimulatedProcess) -> None:
        if self._alive.get(peer) is not process:
            return
        if not any(isinstance(each, Tick) for each in process.inbox):
            self._give(peer, process, Tick(process.clock(self.now)))
        self.agenda.at(self.now + 1 / process.rate, partial(self._tick, peer, process))

    def _remind(self, process: SimulatedProcess) -> None:
        """Resume a stalled process: the first thing it sees is the current time."""
        if self.now >= process.paused_until:
            rest = [fed for fed in process.inbox if not isinstance(fed, Tick)]
            process.inbox = deque([Tick(process.clock(self.now)), *rest])

    def _give(self, peer: str, process: SimulatedProcess, fed: Fed) -> None:
        process.inbox.append(fed)
        self._feed(peer, process)

    def _feed(self, peer: str, process: SimulatedProcess) -> None:
        """Let the machine handle its inbox, one event at a time, while its process can."""
        if process.feeding:
            return
        process.feeding = True
        while self._alive.get(peer) is process and not process.outbox.full:
            fed = process.next(self.now)
            if fed is None:
                break
            event = fed(process.machine) if callable(fed) else fed
            if event is not None:
                self._step(peer, process, event)
        process.feeding = False

    def _step(self, peer: str, process: SimulatedProcess, event: Event) -> None:
        again, effects = process.outbox.again(process.machine.step(event))
        facts = [(effect, self._driver.fact(peer, effect)) for effect in effects]
        self.stepped(peer, process.machine)
        for send in again:
            self.on_effect(peer, send)
            self._note("repeated", peer, type(send.message).__name__, send.to, self._post(peer, send))
        for effect, fact in facts:
            self._note("asked", peer, effect.kind if isinstance(effect, Persist) else "say", fact)
        self._carry_out(peer, process, process.outbox.put(effects))
        self._save(peer, process)

    # ---- effects out

    def _save(self, peer: str, process: SimulatedProcess) -> None:
        if process.saving or self._alive.get(peer) is not process or not (batch := process.outbox.batch()):
            return
        disk = self._disks[peer]
        process.saving = len(batch)
        if self.now < disk.full_until:
            process.saving = 0
            self._note("refused", peer, "persist_failed", "")
            self.agenda.at(self.now + process.retry, partial(self._save, peer, process))
            process.retry = min(2 * process.retry, RETRY_TICKS_MAX)
            return
        process.retry = RETRY_TICKS
        data = [self._driver.save(peer, persist) for persist in batch]
        ticks = disk.append(data) if batch[0].kind == "entry" else disk.snapshot(data[0])
        self.agenda.at(self.now + ticks, partial(self._saved, peer, process))

    def _saved(self, peer: str, process: SimulatedProcess) -> None:
        if self._alive.get(peer) is not process:
            return
        self._disks[peer].finish()
        self._note("saved", peer, process.saving)
        count, process.saving = process.saving, 0
        for _ in range(count):
            self._count(peer)
        if self._alive.get(peer) is process:
            self._carry_out(peer, process, process.outbox.saved())
            self._save(peer, process)
            self._feed(peer, process)

    def _carry_out(self, peer: str, process: SimulatedProcess, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if self._alive.get(peer) is not process:
                return
            self.on_effect(peer, effect)
            self._say(peer, process, effect)
            self._count(peer)

    def _count(self, peer: str) -> None:
        self.carried[peer] += 1
        due, ticks = self._kill_after.get(peer, (0, 0.0))
        if due == self.carried[peer] and peer in self._alive:
            self.kill(peer)
            self.agenda.at(self._healed(ticks), partial(self.start, peer))

    def _say(self, peer: str, process: SimulatedProcess, effect: Effect) -> None:
        match effect:
            case Send():
                size = 0 if self._withholds(peer, effect) else self._post(peer, effect)
                self._note("said", peer, type(effect.message).__name__, effect.to, size)
                return
            case Train() | Evaluate() | TrainClient() | AggregateUpdates() | FinishRound():
                busy, thread = process.busy_until, "close" if isinstance(effect, AggregateUpdates) else "train"
                busy[thread] = max(self.now, busy[thread]) + self._driver.work_ticks(peer, effect)
                self.agenda.at(busy[thread], partial(self._worked, peer, process, effect))
            case RejectEffect(rejection):
                self._note("refused", peer, rejection.code, rejection.sender)
            case Note():
                self._note("note", peer, effect.what)
            case Stop():
                del self._alive[peer]
                self._note("stop", peer, effect.code)
                if effect.again:
                    self.agenda.at(self.now + _AGAIN_TICKS, partial(self.start, peer))
                else:
                    self.stopped[peer] = effect
            case Amend():
                self._driver.amend(peer, effect.contract)
            case Enrol():
                pass  # only the roster's file changes; the node has adopted the roster already
        self._note("said", peer, type(effect).__name__)

    def _worked(self, peer: str, process: SimulatedProcess, effect: Work) -> None:
        if self._alive.get(peer) is process:
            self._give(peer, process, self._driver.work(peer, effect))

    # ---- messages

    def _post(self, sender: str, send: Send) -> int:
        """Send a message and return its size in bytes."""
        data = self._driver.encode(sender, send)
        self.messages[sender] += 1
        self.bytes[sender] += len(data)
        self._travel(sender, send.to, data, self._arrived)
        return len(data)

    def _travel(self, sender: str, receiver: str, data: bytes, arrived: Callable[[str, str, bytes], None]) -> None:
        times = self._links.arrivals(sender, receiver, len(data), self.now)
        if not times:
            self._note("lost", sender, receiver)
        for time in times:
            self.agenda.at(time, partial(arrived, sender, receiver, data))

    def _arrived(self, sender: str, receiver: str, data: bytes) -> None:
        if receiver not in self._alive:
            self._refuse_connection(sender, receiver)
            return

        def read(machine: Machine) -> Event | None:
            found = self._driver.decode(receiver, machine, sender, data)
            if isinstance(found, MessageReceived):
                self._note("heard", receiver, type(found.message).__name__, sender)
                return found
            refusal, answer = found
            self._note("refused", receiver, refusal.code, sender)
            self._travel(receiver, sender, answer, self._answer)
            return refusal

        self._put(receiver, read)

    def _refuse_connection(self, sender: str, receiver: str) -> None:
        """Refuse a connection: the receiver's machine answers, but its process is not running."""
        back = self.now + self.faults.links.delay
        if not self._links.cut(receiver, sender, back):
            self.agenda.at(back, lambda: self._put(sender, lambda m: self._driver.nobody_listens(sender, m, receiver)))

    def _answer(self, receiver: str, sender: str, data: bytes) -> None:
        """Deliver the answer to a rejected message to its sender."""
        self._put(sender, lambda machine: self._driver.answered(sender, machine, receiver, data))

    def _put(self, peer: str, fed: Fed) -> None:
        process = self._alive.get(peer)
        if process is not None and len(process.inbox) < _INBOX_MAX:
            self._give(peer, process, fed)

    def _note(self, what: str, peer: str, *more: object) -> None:
        if not self.keeps_rows:
            return
        assert len(self.rows) < ROWS_MAX, f"a run without end: {self.faults.line()}"
        self.rows.append((self.now, what, peer, *more))
