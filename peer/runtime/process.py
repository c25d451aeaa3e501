"""The process of one real peer: carries out its node's effects with sockets, disk, clock and threads.

`PeerProcess.run` feeds events (ticks, messages, results, the operator's commands) to the node of a prepared peer
(`prepared.py`) and carries its effects out through the pipeline, which saves before it sends. The event loop never
waits for training, saving or the network: these have threads and tasks of their own, and their results are events.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from fedpeer.config.address import Endpoint, PeerUrl
from fedpeer.exit_codes import EXIT_STOPPED
from fedpeer.peer.node.atomic_step import Steps
from fedpeer.peer.node.node import Node
from fedpeer.peer.node.node_setup import disk_bytes, node_of, rules_of, setup_of
from fedpeer.peer.runtime.admission import AnsweredRejectionError, Host
from fedpeer.peer.runtime.buffers import BufferPool, Lease
from fedpeer.peer.runtime.carrier import Carrier, Neighborhood
from fedpeer.peer.runtime.contract_file import ContractFile, contract_file
from fedpeer.peer.runtime.dashboard.access import listener
from fedpeer.peer.runtime.dashboard.server import Dashboard
from fedpeer.peer.runtime.discovery import Discovery
from fedpeer.peer.runtime.identity import peer_of, put_out, server_context
from fedpeer.peer.runtime.job_runner import JobRunner
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.listener import bind_socket
from fedpeer.peer.runtime.logs import Level, Log, LogFile, LogLine, at_least, for_stream, printable
from fedpeer.peer.runtime.loop_lag import LoopLag
from fedpeer.peer.runtime.metrics import Metrics
from fedpeer.peer.runtime.mistakes import ReportedPlaces
from fedpeer.peer.runtime.prepared import Prepared, initial_status, signatures
from fedpeer.peer.runtime.roster_file import RosterFile
from fedpeer.peer.runtime.rows import Rows
from fedpeer.peer.runtime.secret import keep_secret
from fedpeer.peer.runtime.sender import MessageSender
from fedpeer.peer.runtime.server import PeerServer
from fedpeer.peer.runtime.status import Status
from fedpeer.peer.runtime.store import DuplicatePeerError, Store, StoreError
from fedpeer.peer.runtime.tracked_peer import PeerTrackers
from fedpeer.peer.runtime.trainer import Trainer
from fedpeer.peer.runtime.transient import NoAddressError, patiently
from fedpeer.peer.runtime.view import view_of
from fedpeer.peer.runtime.writer import Pipeline
from fedpeer.peer.state.events import (
    AggregateUpdates,
    Amend,
    Effect,
    Enrol,
    Evaluate,
    Evaluated,
    Event,
    FinishRound,
    MessageReceived,
    NewContract,
    NewRoster,
    Note,
    OperatorCommand,
    Persist,
    Reachability,
    RejectEffect,
    Send,
    Stop,
    Tick,
    Train,
    TrainClient,
    Worked,
)
from fedpeer.peer.state.saving import Recovered
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import Message, RosterNews, group_of
from fedpeer.peer.wire.roster import AUTHORITY, RosterError, to_bytes
from fedpeer.peer.wire.versions import LINKS
from fedpeer.rejection import Rejection

#: Seconds between two updates of what is outside the node: status, log windows, the roster's file.
LOOK_S = 1.0
#: Seconds after which a second Ctrl-C counts as such; a terminal and a service manager may both signal at once.
_AGAIN_S = 1.0
#: Most events that wait while a disk is slow: windows and pings of some dozen neighbors. Further messages are dropped,
#: and their senders repeat them; further rejections are only counted.
WAITING_MAX = 256

#: Seconds, from when this peer met another that would connect to it, after which it logs that no peer has.
UNREACHED_S = 20.0
_UNREACHED = (
    "nobody has connected to this peer at {address}: it takes part over connections that it opens, and other peers "
    "carry its connections to peers to which nobody can connect either, which is slower; open or forward its port, or "
    "write listen: none"
)

_BYTES_PER_MEGABIT = 1e6 / 8

#: Codes of the rejections that say what the process waits for.
NO_DISK, NO_ADDRESS = "persist_failed", "not_listening"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Then:
    """A call in its turn among the effects: made once the effects before it are durable."""

    do: Callable[[], None]


class PeerProcess:
    """Runs a prepared peer, from its first to its last effect.

    quiet   print warnings and errors only
    leave   leave the federation as soon as the other peers have been met
    turn    within which it trains and evaluates; None: whenever it likes
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        quiet: bool = False,
        leave: bool = False,
        turn: AbstractContextManager[None] | None = None,
    ) -> None:
        self._prepared = prepared
        self._leave = self._leave_asked = leave
        file = prepared.file
        self._folder = prepared.folder
        self._members = RosterFile(Path(file.roster), prepared.roster)
        self._contract = ContractFile(contract_file(Path(file.roster)), prepared.going.signed)
        self.status = initial_status(prepared)
        self._jobs = JobRunner(
            prepared, self._folder, self.status, self._warn, self._inform, turn, lambda: self._members.roster
        )
        self._quiet = quiet
        self._store: Store | None = None
        self._stopped: Stop | None = None
        self._over = asyncio.Event()
        self._begun, self._shown_at = False, ""
        self._received_at: dict[str, float] = {}
        self._waiting: deque[tuple[Event, Lease | None]] = deque()
        self._failure: BaseException | None = None
        self._mistakes = ReportedPlaces()
        self._pause_asked_at: float | None = None
        self._reachability, self._met_at = "", math.inf
        self._carriers: set[str] = set()

    @property
    def _node(self) -> Node:
        """Current node; after a bug of ours it is replaced by a new one (`atomic_step.py`)."""
        return self._steps.node

    @property
    def pause_requested(self) -> bool:
        """True if the operator has asked this peer to pause."""
        return self._pause_asked_at is not None

    @property
    def leave_requested(self) -> bool:
        """True if the operator has asked this peer to leave, whether or not it has begun to."""
        return self._leave_asked

    @property
    def training(self) -> bool:
        """True if the trainer's thread is busy; a peer that pauses does not wait for it."""
        return self._begun and (self._trainer.busy or self._closer.busy)

    # --------------------------------------------------------------------------------------------------- begin, end

    async def run(self) -> Stop:
        """Run until the node stops; return how it ended.

        The state folder is locked before anything listens, so that a second start of the same peer reports that, and
        not that its ports are in use.

        Raises:
            StateError, DuplicatePeerError, SnapshotForeignError, ListenError, DashboardError: the user's mistakes.
            PortInUseError: another process has a port.
        """
        loop = self._loop = asyncio.get_running_loop()
        log_file = LogFile(self._folder / "log.jsonl")
        stream = at_least("warning" if self._quiet else "info", for_stream(self._prepared.file.id, sys.stderr))
        self._log = Log([log_file, at_least("info", self.status.say), stream], "debug")
        self._trap_signals()
        unhandled = loop.get_exception_handler()
        loop.set_exception_handler(self._unhandled)
        dashboard: Dashboard | None = None
        try:
            with suppress(StoreError):  # tried again below, where the dashboard shows what is waited for
                self._store = Store.open(self._folder)
            dashboard = await self._patiently(self._start_dashboard, NoAddressError)
            opened = await self._patiently(self._open_store, StoreError)
            if opened is not None:
                await self._run_node(*opened)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            if dashboard is not None:
                await dashboard.stop()
            self._close_store()
            loop.set_exception_handler(unhandled)
            self._log.close()
            if not isinstance(self._failure, DuplicatePeerError):  # else the file is another process's, which goes on
                log_file(self._last_line())
            log_file.close()
        if self._failure is not None:
            raise self._failure
        assert self._stopped is not None, "run ends when the node has stopped"
        return self._stopped

    def _last_line(self) -> LogLine:
        """Return the log's last line: how the process ends. The caller of `run` writes it to standard error."""
        if self._failure is not None:
            text = printable(f"{type(self._failure).__name__}: {self._failure}")
            return LogLine(t=time.time(), level="error", what="failed", text=text)
        assert self._stopped is not None, "run ends when the node has stopped"
        level: Level = "error" if self._stopped.code else "info"
        fields = {"code": self._stopped.code}
        return LogLine(t=time.time(), level=level, what="stopped", text=self._stopped.text, fields=fields)

    async def _patiently(self, attempt: Callable[[], Awaitable[T]], passes: type[Exception]) -> T | None:
        """Return the attempt's result as soon as this machine allows it; None if the peer is to stop before."""
        code = NO_DISK if passes is StoreError else NO_ADDRESS

        def on_failure(why: Exception) -> None:
            self._say(RejectEffect(Rejection(code, str(why))))

        return None if self._over.is_set() else await patiently(attempt, passes, on_failure, self._over)

    async def _open_store(self) -> tuple[Store, Recovered]:
        """Return the state folder, locked, and the state saved there."""
        store = self._store = self._store or Store.open(self._folder)
        try:
            if self._prepared.secret:
                keep_secret(self._folder, self._prepared.secret)
            return store, store.recover()
        except BaseException:
            self._close_store()  # the next attempt opens it again
            raise

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    async def _run_node(self, store: Store, recovered: Recovered) -> None:
        """Continue from the saved state until the node stops."""
        self.status.starts = store.generation
        self._steps = Steps(self._make_node(recovered), self._broken)
        round = self._node.durable.round
        self._tracking = PeerTrackers(self._prepared, round)
        path = self._folder / "metrics.jsonl"
        due = self._prepared.federation.learning.evaluated
        self._rows = Rows(path, self.status.about.score_name, round, due, self._tracking.row)
        try:
            for remark in recovered.remarks:
                self._say(remark)
            if self._prepared.going.remark:
                self._say(Note("info", "older_state", self._prepared.going.remark))
            outbound = self._prepared.file.outbound
            listening = None if outbound else await self._patiently(self._bind, NoAddressError)
            if outbound or listening is not None:
                await self._serve(store, listening)
        finally:
            self._rows.close()
            if self._prepared.file.tracking:
                await asyncio.to_thread(self._tracking.close)
                self._look_at_trackers()

    async def _bind(self) -> socket.socket:
        """Return the socket of the peer port. Resolving a name may take long, so a thread does it."""
        host, port = Endpoint.read(self._prepared.file.listen)
        return await asyncio.to_thread(bind_socket, host, port, plain=self._prepared.identity is None)

    def _make_node(self, recovered: Any) -> Node:
        prepared = self._prepared
        file, assembly, trainer = prepared.file, prepared.outfit.assembly, prepared.trainer
        setup = setup_of(
            assembly,
            self._members.roster,
            file.id,
            nonce=secrets.randbits(62),
            address=str(PeerUrl.nowhere(file.id)) if file.outbound else file.address,
            seeds=tuple(file.seeds),
            held=prepared.going.held,
            signed=prepared.going.signed,
        )
        sign, verify_by = signatures(prepared, self._members)

        def verify(author: str, text: bytes, signature: bytes) -> bool:
            # The node may have adopted a later roster than the one in force here, which waits for a save.
            entry = self._node.state.peer_groups.roster.by_id.get(author)
            return entry is not None and verify_by(entry, text, signature)

        return node_of(
            replace(setup, reader=trainer, secret=prepared.secret, earlier=prepared.earlier),
            rules_of(assembly.federation, assembly.seed, file.id, trainer.examples, setup.held.text),
            recovered,
            start_n=trainer.start(),
            state_size=trainer.state_size,
            sign=sign,
            verify=verify,
            verify_by=verify_by,
            spec=trainer.spec,
            patience=prepared.patience,
        )

    def _connect(self, store: Store) -> None:
        """Make what carries the node's effects out and brings messages in; nothing is started."""
        file = self._prepared.file
        limits = Limits.among(len(self._members.roster.entries))
        self._trainer = Trainer(self._jobs.work, self._worked, self._failed, self._training_waits)
        # A coordinator closes rounds while it trains itself: others need not wait for its training.
        self._closer = Trainer(self._jobs.work, self._worked, self._failed, self._training_waits)
        self._pipeline = Pipeline(_Timed(store, self.status, self._warn), self._encoded, self._carry_out, self._saved)
        self._server = PeerServer(
            Host(
                identify=lambda certificate: peer_of(certificate, self._members.roster),
                farewell=self._farewell,
                expects=self._members.expects,
                listens=self._listens,
                policy=lambda peer: self._node.policy(peer),
                deliver=self._deliver,
                accepted=lambda size, message: self.status.received(size, group_of(message)),
                rejected=self._rejected,
                broken=self._broken,
                linked=lambda peer, link: self._sender.linked(peer, link),
                begun=lambda sender, *stream: self._carrier.begun(sender, *stream),
            ),
            BufferPool(),
            limits,
        )
        self._carrier = Carrier(
            file.id,
            Neighborhood(link=lambda peer: self._sender.link(peer), member=self._carries_to),
            self._take_carried,
            limits,
            rate=math.inf if file.carry is None else file.carry * _BYTES_PER_MEGABIT,
        )
        self._sender = MessageSender(
            self._prepared,
            self._members,
            lambda: self._node,
            self.status,
            self._rows,
            self._say,
            self.feed,
            self._server.admission,
            self._carrier,
        )

    async def _serve(self, store: Store, listening: socket.socket | None) -> None:
        """Exchange messages with the other peers until the node stops."""
        self._connect(store)
        file, identity = self._prepared.file, self._prepared.identity
        lag = LoopLag()
        lag.start()
        at, discovery, tasks = "", None, []
        try:
            await self._server.start(listening, server_context(identity) if identity else None)
            if listening is not None:
                endpoint = Endpoint(Endpoint.read(file.listen).host, int(listening.getsockname()[1]))
                at, discovery = f"listening on {endpoint}", self._discovery(endpoint)
            where = f"; dashboard at {self._shown_at}" if self._shown_at else ""
            self._say(Note("info", "started", f"{at or 'outbound only: it opens all connections itself'}{where}"))
            self._begun = True
            if listening is None:
                self.feed(Reachability(False))
            tasks = [
                asyncio.create_task(self._pipeline.run()),
                asyncio.create_task(self._tick()),
                asyncio.create_task(self._look(lag)),
                *([asyncio.create_task(discovery.run())] if discovery is not None else []),
            ]
            over = asyncio.create_task(self._over.wait())
            await asyncio.wait([over, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # an error of our own ends the process
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            lag.stop()
            self._trainer.close()
            self._closer.close()
            async with AsyncExitStack() as closing:  # all are closed, whatever one of them raises
                closing.push_async_callback(self._sender.close)
                closing.push_async_callback(self._carrier.close)
                closing.push_async_callback(self._server.stop)

    async def _start_dashboard(self) -> Dashboard | None:
        """Start the dashboard, which listens first: it shows what a peer waits for before it begins."""
        settings = self._prepared.file.dashboard
        if settings is None:
            return None
        where, metrics = listener(settings, Path()), Metrics(self.status.as_json) if settings.metrics else None
        dashboard = Dashboard(where, self.status.as_json, metrics)
        await dashboard.start()
        self._shown_at = dashboard.listener.door.url
        return dashboard

    def _discovery(self, at: Endpoint) -> Discovery | None:
        file = self._prepared.file
        if not file.discovery:
            return None
        return Discovery(
            self._members.roster.federation_id,
            file.id,
            at,
            member=lambda peer: peer in self._members.roster.by_id,
            found=self._sender.found.see,
            say=lambda text: self._say(Note("warning", "discovery", text)),
        )

    def _trap_signals(self) -> None:
        """Handle signals: Ctrl-C and SIGTERM pause, SIGUSR1 (`fedpeer leave`) leaves, a second Ctrl-C ends at once."""
        loop = asyncio.get_running_loop()

        def pause() -> None:
            asked, now = self._pause_asked_at, loop.time()
            self._pause_asked_at = now if asked is None else asked
            if self._stopped is not None:
                return  # how it ends is decided; it only must not start again by itself
            if asked is None and self._begun:
                self.feed(OperatorCommand("pause"))
            elif asked is None:
                self._end(Stop(0, "paused before it could begin; start it again to continue"))
            elif now - asked > _AGAIN_S:
                text = "stopped at once; work that was not saved is repeated after the next start"
                self._end(Stop(EXIT_STOPPED, text))

        def leave() -> None:
            self._leave_asked = True
            if self._stopped is not None:
                return  # how it ends is decided; if it starts again by itself, it leaves then
            if self._begun:
                self.feed(OperatorCommand("leave"))
            else:
                self._leave = True

        if threading.current_thread() is not threading.main_thread():
            return  # signals belong to the main thread; in another thread a peer is controlled by `feed`
        if sys.platform == "win32":  # its event loop handles no signals, and it has neither SIGTERM nor SIGUSR1
            signal.signal(signal.SIGINT, lambda number, frame: loop.call_soon_threadsafe(pause))
            return
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, pause)
        loop.add_signal_handler(signal.SIGUSR1, leave)

    def _end(self, stop: Stop) -> None:
        """End without asking the node."""
        self._stopped = stop
        self._over.set()

    # ------------------------------------------------------------------------------------------------------ events in

    def feed(self, event: Event, lease: Lease | None = None) -> None:
        """Pass an event to the node, now or as soon as the disk has caught up."""
        self._waiting.append((event, lease))
        self._drain()

    def _drain(self) -> None:
        """Pass the waiting events to the node while the pipeline has room.

        An exception is not the caller's fault: a bug of ours ends the process.
        """
        try:
            while self._waiting and not self._pipeline.full and self._failure is None:
                event, lease = self._waiting.popleft()
                effects: list[Any] = list(self._steps.step(event))
                if lease is not None:
                    effects.append(_Then(lease.release))
                self._pipeline.put(effects)
        except Exception as error:
            self._failed(error)

    async def _tick(self) -> None:
        loop, tick = asyncio.get_running_loop(), self._prepared.federation.gossip.tick
        began, before = loop.time(), -1
        while True:
            now = int((loop.time() - began) / tick)
            # One waiting tick is enough: the next one has the later time.
            if now > before and not any(isinstance(event, Tick) for event, _ in self._waiting):
                before = now
                if self._leave and self._ready_to_leave(now * tick):  # before the tick with which it may stop by itself
                    self._leave = False
                    self.feed(OperatorCommand("leave"))
                self.feed(Tick(now))
            await asyncio.sleep(max(0.0, began + (now + 1) * tick - loop.time()))

    def _ready_to_leave(self, seconds: float) -> bool:
        """Return whether a peer that was started only to leave has met the others, or has waited long enough.

        A finished peer that nobody needs stops by itself after two seconds.
        """
        if self._node.phase == "finished":
            return seconds >= 1.0
        return seconds > 2.0 and (all(each.met for each in self._node.state.others.values()) or seconds > 5.0)

    async def _look(self, lag: LoopLag) -> None:
        while True:
            now = time.monotonic()
            received = {peer: now - at for peer, at in self._received_at.items()}
            self.status.look(view_of(self._node, received, 1000 * lag.p99()))
            self.status.carries(self._carrier.under_way.total(), self._carrier.carried.total())
            self._log.tick()
            self._look_for_roster()
            self._look_for_contract()
            self._look_for_callers()
            self._look_at_trackers()
            await asyncio.sleep(LOOK_S)

    def _look_for_roster(self) -> None:
        """Pass on a roster that somebody has put on this machine's disk."""
        try:
            roster = self._members.changed()
        except RosterError as error:
            self._say(Note("warning", "roster", str(error)))
            return
        if roster is not None:
            self.feed(NewRoster(roster))

    def _look_for_contract(self) -> None:
        """Pass on a contract that somebody has put on this machine's disk."""
        try:
            contract = self._contract.changed(self._members.roster.authority)
        except RosterError as error:
            self._say(Note("warning", "contract", str(error)))
            return
        if contract is not None:
            self.feed(NewContract(contract))

    def _look_for_callers(self) -> None:
        """Log once that others can connect to this peer, or before that, that none of the peers it has met has."""
        if self._reachability == "reachable" or self._prepared.file.outbound:
            return
        state, first = self._node.state, self._server.reached
        if first is not None:
            by = f": {first} has connected" if first else ""
            note = Note("info", "reachable", f"reachable at {state.setup.address}{by}")
            if self._reachability:
                self.feed(Reachability(True))
        elif self._reachability or not self._waits_for_callers():
            return
        else:
            note = Note("warning", "outbound_only", _UNREACHED.format(address=state.setup.address))
            self.feed(Reachability(False))
        self._reachability = note.what
        self._say(note)

    def _waits_for_callers(self) -> bool:
        """Return whether this peer met, a while ago, a peer that would have connected since.

        Of two peers that share one connection, the one with the smaller id opens it, so a peer with a larger id need
        not connect; a peer of an earlier release opens its own.
        """
        me, others = self._prepared.file.id, self._node.state.others
        if not any(other.met and (peer < me or not others.can(peer, LINKS)) for peer, other in others.items()):
            return False
        self._met_at = min(self._met_at, self._loop.time())
        return self._loop.time() - self._met_at >= UNREACHED_S

    def _look_at_trackers(self) -> None:
        """Log which trackers have failed."""
        for text in self._tracking.warnings():
            self._say(Note("warning", "tracking", text))

    # --------------------------------------------------------------------------------------------------- the server's

    def _take_carried(self, connection: socket.socket, carrier: str) -> None:
        if carrier not in self._carriers:
            self._carriers.add(carrier)
            self._say(Note("info", "carried", f"{carrier} carries connections of other peers to this one"))
        self._server.take(connection, carrier)

    def _carries_to(self, peer: str) -> bool:
        return peer in self._members.roster.by_id and self._listens(peer)

    def _farewell(self, certificate: bytes | None) -> RosterNews | None:
        roster = self._members.roster
        return RosterNews(number=roster.number, text=to_bytes(roster)) if put_out(certificate, roster) else None

    def _listens(self, peer: str) -> bool:
        return peer == AUTHORITY or self._node.state.others.listens(peer)

    def _deliver(self, sender: str, envelope: Envelope, message: Message, lease: Lease) -> None:
        if later := self._node.outlived(sender, message):
            # All other messages go to the later process's address; only this response reaches the earlier process.
            rejection = Rejection("duplicate_peer", f"a later process has the identity of {sender}")
            raise AnsweredRejectionError(rejection, codec.rejection_message(rejection, later))
        self._received_at[sender] = time.monotonic()
        self._sender.received(sender)
        if len(self._waiting) >= WAITING_MAX:
            lease.release()
        else:
            received = MessageReceived(sender, envelope.incarnation, envelope.to_incarnation, message, envelope.version)
            self.feed(received, lease)

    def _broken(self, error: Exception, sender: str) -> None:
        """Log a bug of ours that a message triggers: its place, and once per place the traceback."""
        self._say(self._mistakes.of(error, sender))

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log a bug of ours in a task for which nobody waits, such as that of a connection: the peer goes on."""
        error = context.get("exception")
        if not isinstance(error, Exception):
            loop.default_exception_handler(context)
            return
        say = self._say if "handle" in context else self._say_soon  # a task may be collected in the trainer's thread
        say(self._mistakes.beside(error))

    def _rejected(self, rejection: Rejection) -> None:
        self._say(RejectEffect(rejection))
        if rejection.sender and len(self._waiting) < WAITING_MAX:
            self.feed(rejection)

    # ----------------------------------------------------------------------------------------------------- effects out

    def _carry_out(self, effect: Effect | _Then) -> None:
        match effect:
            case _Then():
                effect.do()
            case Send():
                self._sender.send(effect)
            case Train() | Evaluate() | TrainClient() | FinishRound():
                self._trainer.submit(effect)
            case AggregateUpdates():
                self._closer.submit(effect)
            case Note() | RejectEffect():
                self._say(effect)
            case Enrol():
                gone = self._members.keep(effect.roster)
                self._sender.forget(gone)
                self._server.review(gone, Limits.among(len(effect.roster.entries)))
                self._write(self._members.write, f"roster {effect.roster.number}")
            case Amend():
                self._contract.contract = effect.contract
                self._write(self._contract.write, f"contract {effect.contract.number}")
            case Stop():
                self._stopped = effect
                asyncio.get_running_loop().call_soon(self._over.set)
            case Persist():
                raise AssertionError("the pipeline saves")
        self._drain_soon()

    def _write(self, write: Callable[[], None], what: str) -> None:
        try:
            write()
        except OSError as problem:
            text = f"{what} could not be saved ({problem.strerror}); it is in force until this process ends"
            self._say(Note("warning", what.partition(" ")[0], text))

    def _training_waits(self, problem: OSError) -> None:
        self._say(Note("warning", "training_waits", f"training waits for a disk ({problem.strerror}); trying again"))

    def _warn(self, what: str, text: str) -> None:
        """Log a warning from another thread, which trains or saves."""
        self._say_soon(Note("warning", what, text))

    def _inform(self, what: str, text: str) -> None:
        """Log an info note from the trainer's thread."""
        self._say_soon(Note("info", what, text))

    def _say_soon(self, note: Note) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process is ending
            self._loop.call_soon_threadsafe(self._say, note)

    def _drain_soon(self) -> None:
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._drain)

    def _failed(self, failure: Exception) -> None:
        self._failure = failure
        self._over.set()

    def _worked(self, event: Worked) -> None:
        if self._over.is_set():
            return
        if isinstance(event, Evaluated):
            self.status.evaluated(event)
            self._rows.evaluated(event)
        self.feed(event)

    def _encoded(self, persist: Persist) -> bytes:
        """Encode an entry or a snapshot; called in the writer's thread."""
        return disk_bytes(persist, self._node.setup)

    def _saved(self, problem: StoreError | None) -> None:
        if problem is not None:
            self._say(RejectEffect(Rejection(NO_DISK, str(problem))))
        else:
            self._say(Note("info", "saving_again", "the state can be saved again"))

    def _say(self, effect: Note | RejectEffect) -> None:
        if isinstance(effect, RejectEffect):
            self.status.refused(effect.rejection)
        else:
            self.status.noted(effect)
            if effect.what == "round":
                self._rows.round(effect)
        self._log.on_effect(effect)


@dataclass(frozen=True, slots=True)
class _Timed:
    """A store whose saves are timed for the status; `warn` takes its warnings, in the thread that saves."""

    store: Store
    status: Status
    warn: Callable[[str, str], None]

    def append(self, entries: Sequence[bytes]) -> None:
        began = time.perf_counter()
        self.store.append(entries)
        self.status.took("save", time.perf_counter() - began)

    def snapshot(self, data: bytes) -> None:
        began = time.perf_counter()
        stays = self.store.snapshot(data)
        self.status.took("save", time.perf_counter() - began)
        if stays:
            self.warn("old_state_stays", stays)
