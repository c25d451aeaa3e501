"""`fedpeer start` and `fedpeer leave`: real peers on this machine, usually one."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedpeer.cli.peer_config import PeerConfig
    from fedpeer.config.choice import Choice
    from fedpeer.config.peer_file import PeerFile
    from fedpeer.data.dataset import Dataset
    from fedpeer.learning.assembly import Assembly
    from fedpeer.peer.runtime.logs import Level

#: Last line of a peer that was stopped before its process could log.
_PAUSED_EARLY = "paused before it could begin; start it again to continue"

_Config = Annotated[Path, typer.Option(help="The peer's own file, such as peer3.yaml.", metavar="FILE")]
_Configs = Annotated[
    list[Path],
    typer.Option("--config", help="The peer's own file, such as peer3.yaml; repeat it for several.", metavar="FILE"),
]


def start(
    config: _Configs,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", metavar="", help="Print warnings and errors only; the state folder has the whole log."),
    ] = False,
    attached: Annotated[
        bool,
        typer.Option("--attached", metavar="", help="Pause when standard input closes; for use by other programs."),
    ] = False,
) -> int:
    """Run one or more real peers on this machine. Ctrl-C pauses them; the same command resumes them.

    With several files, each peer runs in a process of its own; they share modules, data and networks, and divide the
    cores: as many train at once as there are cores.
    """
    if len(config) > 1:
        return _in_order(partial(_several, config, quiet=quiet, attached=attached))
    return _in_order(partial(_run, config[0], quiet=quiet, leave=False, attached=attached))


def leave_command(config: _Config) -> int:
    """Hand over everything that this peer holds to the others, and stop it; a later start joins anew.

    Asks the running peer to leave; if it is not running, starts it just for that.
    """
    from fedpeer.cli.peer_config import load_peer
    from fedpeer.peer.runtime.store import ask_to_leave

    file = load_peer(config, ", so nothing was done").file
    process = ask_to_leave(Path(file.state or ""))
    if process is not None:
        print(f"{file.id} (process {process}) is handing over what it holds and will stop; its log reports the result.")
        return 0
    return _in_order(partial(_run, config, quiet=False, leave=True))


class _EarlySignals:
    """SIGINT and SIGTERM before a peer's process takes signals itself: each is a pause.

    They interrupt loading and building, but no import: what is left of a half-imported torch can neither log nor end in
    order.

    files   peer files that were read
    """

    def __init__(self) -> None:
        self.files: list[PeerFile] = []
        self.received = self._interrupts = False

    def handle(self, _number: int, _frame: object) -> None:
        self.received = True
        if self._interrupts:
            raise KeyboardInterrupt

    def imported(self) -> None:
        """Interrupt from now on, and at once if a signal has come."""
        self._interrupts = True
        if self.received:
            raise KeyboardInterrupt


def _in_order(run: Callable[[_EarlySignals], int]) -> int:
    """Run peers; a signal that comes early ends them as a pause does, with a last line and exit code 0."""
    early, signals = _EarlySignals(), (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, early.handle) for each in signals]
    try:
        return run(early)
    except BaseException:  # a library may turn the interruption into an error of its own
        if not early.received:
            raise
        for file in early.files:
            _log(file.id, "stopped", _PAUSED_EARLY, 0, plain=True, folder=Path(file.state or ""))
        if not early.files:
            print("Stopped.", file=sys.stderr)
        return 0
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)


def _run(
    config: Path,
    early: _EarlySignals,
    *,
    quiet: bool,
    leave: bool,
    attached: bool = False,
    read: PeerConfig | None = None,
    loaded: Mapping[str, Dataset] = MappingProxyType({}),
    assembled: Sequence[Assembly] = (),
    turn: AbstractContextManager[None] | None = None,
) -> int:
    """Run a peer.

    Args:
        read: the peer's settings, if its files need not be read again.
        loaded: data sets that need not be loaded again, by choice.
        assembled: networks that need not be built again.
        turn: within which the peer trains.
    """
    from fedpeer.cli.outcome import flush_streams
    from fedpeer.cli.peer_config import load_peer

    peer = read or load_peer(config, ", so nothing was started")
    early.files.append(peer.file)
    import asyncio

    from fedpeer.learning.holdings import load_dataset
    from fedpeer.peer.runtime.freed_memory import give_back_freed_memory
    from fedpeer.peer.runtime.prepared import prepare_peer
    from fedpeer.peer.runtime.process import PeerProcess
    from fedpeer.peer.runtime.supervisor import end_of_input, stop_after

    early.imported()

    def load(choice: Choice) -> Dataset:
        return loaded[str(choice)] if str(choice) in loaded else load_dataset(choice)

    process = PeerProcess(
        prepare_peer(peer.file, peer.federation, load, assembled), quiet=quiet, leave=leave, turn=turn
    )
    give_back_freed_memory()
    gc.freeze()  # a search for garbage in all that is loaded by now would stop the loop for some 100 ms

    async def run() -> int:
        nonlocal process
        if attached:
            stop_after(end_of_input)
        stop = await process.run()
        while stop.again and not process.pause_requested:  # its state is under a new contract now
            again = load_peer(config, ", so it was not started again")
            ready = prepare_peer(again.file, again.federation, load)
            process = PeerProcess(ready, quiet=quiet, leave=process.leave_requested, turn=turn)
            running = asyncio.create_task(process.run())
            if turn is None:  # else this process shares memory with others, which a search for garbage would copy
                await asyncio.sleep(0)  # it handles signals now, and nothing needs the process before and its data
                gc.unfreeze()
                gc.collect()
                gc.freeze()
            stop = await running
        _log(peer.file.id, "stopped", stop.text, stop.code, plain=True)
        return stop.code

    code = asyncio.run(run())
    if process.training:  # everything is saved and logged; see `Trainer`
        flush_streams()
        os._exit(code)
    return code


def _several(configs: list[Path], early: _EarlySignals, *, quiet: bool, attached: bool) -> int:
    """Run each peer in a process of its own, as `start` with its file alone would."""
    from fedpeer.cli.peer_config import load_peers

    peers = load_peers(configs, ", so nothing was started")
    early.files += [peer.file for peer in peers]
    from fedpeer.peer.runtime.supervisor import watch_over
    from fedpeer.sims.request import cores

    _import_once(peers)
    early.imported()
    loaded = _load_once(peers)
    assembled = _assemble_once(peers, loaded)
    threads = max(1, cores() // len(peers))
    read = dict(zip(configs, peers, strict=True))
    files = {peer.file.id: config for config, peer in read.items()}
    starts = {
        peer: partial(_alone, config, threads, read, loaded, assembled, quiet=quiet) for peer, config in files.items()
    }

    def ended(peer: str, code: int) -> None:
        read.pop(files[peer], None)  # if it is started again, it reads its files again: they may have been mended
        _ended(peer, code)

    return watch_over(starts, ended, attached=attached, places=cores())


def _import_once(peers: Sequence[PeerConfig]) -> None:
    """Import what the peers' training needs, before the fork: for each peer it takes a second and 50 to 85 MB."""
    import fedpeer.peer.runtime.process  # noqa: F401
    from fedpeer.algorithms.warm_up import import_optimizers, load_compiled_loop

    for peer in peers:
        network, learning = peer.file.network or peer.federation.network, peer.federation.learning
        has_closed_gradients = (network is None or network.name == "mlp") and learning.optimizer.name == "sgd"
        if not has_closed_gradients:
            import_optimizers()
        elif learning.batch_size == 1:
            load_compiled_loop()


def _load_once(peers: Sequence[PeerConfig]) -> dict[str, Dataset]:
    """Load the data sets that the peers divide among them, by choice: they share them, and an error is reported once.

    Where processes cannot be forked, nothing is loaded: each process would get a copy.
    """
    from fedpeer.data.registry import DATASETS
    from fedpeer.learning.holdings import load_dataset

    parts = [peer.federation.simulation.dataset for peer in peers if peer.file.data.part is not None]
    choices = {str(part): part for part in parts if part.name in DATASETS}
    loaded = {text: load_dataset(choice) for text, choice in choices.items()}
    return loaded if hasattr(os, "fork") else {}


def _assemble_once(peers: Sequence[PeerConfig], loaded: Mapping[str, Dataset]) -> list[Assembly]:
    """Build the networks that peers would build alike: building and tracing one takes seconds and some 20 MB."""
    import torch

    from fedpeer.peer.runtime.prepared import assemble_shared

    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    return assemble_shared([(peer.file, peer.federation) for peer in peers], loaded)


def _alone(
    config: Path,
    threads: int,
    read: Mapping[Path, PeerConfig],
    loaded: Mapping[str, Dataset],
    assembled: Sequence[Assembly],
    turn: AbstractContextManager[None],
    *,
    quiet: bool,
) -> int:
    """Run one of several peers in this process, with its share of the cores."""
    import torch

    from fedpeer.cli.outcome import outcome_of

    torch.set_num_threads(threads)
    arguments = ["start", "--config", str(config), *(["--quiet"] if quiet else [])]
    given = read.get(config)
    run = partial(_run, config, quiet=quiet, leave=False, read=given, loaded=loaded, assembled=assembled, turn=turn)
    return outcome_of(lambda: _in_order(run), arguments)


def _ended(peer: str, code: int) -> None:
    from fedpeer.sims.ends import how_ended

    _log(peer, "ended", f"its process ended{f' with {how_ended(code)}' if code else ''}", code)


def _log(peer: str, what: str, text: str, code: int, *, plain: bool = False, folder: Path | None = None) -> None:
    """Write one line to standard error while the log is closed, in its format.

    Args:
        plain: on a terminal as plain text.
        folder: state folder, to whose log it is added if the folder is there.
    """
    from fedpeer.peer.runtime.logs import LogFile, LogLine, for_stream
    from fedpeer.peer.runtime.lossy_stream import LossyStream

    level: Level = "error" if code else "info"
    line = LogLine(t=time.time(), level=level, what=what, text=text, fields={"code": code})
    if folder is not None and folder.is_dir():
        with contextlib.closing(LogFile(folder / "log.jsonl")) as log:
            log(line)
    if plain and (terminal := LossyStream(sys.stderr)).is_terminal:
        terminal.write(f"{peer}: {text}\n")
        return
    for_stream(peer, sys.stderr)(line)
