"""The processes engine: all peers of one method and seed as real processes of this machine, over TLS, in real time.

It has the interface of the other engines. Peers are started by `fedpeer start`, as by a user, and watched from outside:
rounds, scores, traffic and weights are read from their state folders, parameters from their saved models. A peer that
dies is restarted and resumes from its disk.

The peers' folders are the checkpoint: a stop pauses all peers, and the next start resumes them.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedpeer.config.choice import Choice, own_function
from fedpeer.exit_codes import EXIT_OURS, EXIT_USERS
from fedpeer.learning.groups import averaging_of, longest_deadline
from fedpeer.learning.models import BestRound, best_round
from fedpeer.sims.ends import how_ended
from fedpeer.sims.engine import RoundTimes
from fedpeer.sims.peers_engine import DEADLINES_MAX, PeersEngine, stacked
from fedpeer.sims.processes.process_pool import ProcessPool
from fedpeer.sims.processes.settling import settle
from fedpeer.sims.processes.watch import Watched, slowest
from fedpeer.sims.request import cores
from fedpeer.sims.vector.pool import EngineError, Stopped
from fedpeer.sims.world import World

#: Seconds between two readings of the peers' files.
LOOK_S = 0.05
#: Seconds within which some peer finishes a round's training, not counting waits for others: no round that is tried out
#: on one machine takes an hour.
_TRAINING_S = 3600.0
#: Most restarts of a peer, whatever the cause of death: it would die again.
DEATHS_MAX = 3
#: Attempts to find ports, if free ones are taken before the peers listen on them.
_PORTS_TRIED = 3


class PortTakenError(EngineError):
    """Another program listens on the port of a peer."""


class ProcessesEngine(PeersEngine):
    """All peers of one method and seed. A context manager: the processes end with it."""

    def __init__(
        self,
        world: World,
        method: Choice,
        *,
        folder: Path,
        logs: Path | None = None,
        device: str = "cpu",
        remark: Callable[[str], None] = lambda text: None,
        replaced: Callable[[str, str], None] = lambda peer, reason: None,
        stop: threading.Event | None = None,
    ) -> None:
        """
        Args:
            folder: where the peers' folders are made, or were made before the run was stopped; for this engine alone.
            logs: folder to which the peers' logs are copied at the end; None: not copied.
            remark: called with lines of the peers' logs that matter to the result.
            replaced: called with a peer that died and the reason, when it is restarted.
        """
        super().__init__(world, method, stop)
        self._method, self._device = method, device
        self._folder, self._logs, self._remark, self._replaced = folder, logs, remark, replaced
        self._pools: list[ProcessPool] = []
        self._watched: list[Watched] = []
        self._files: dict[str, Path] = {}
        self._deaths: Counter[str] = Counter()
        self._threads = max(1, cores() // len(world.peers))
        self._resumed = False
        self._patience = self._limit()

    def __exit__(self, *_: object) -> None:
        """End the processes and delete their folders, unless the run was stopped and will resume from them."""
        self._end()
        if self._logs is not None:
            self._logs.mkdir(parents=True, exist_ok=True)
            for watched in self._watched:
                with suppress(FileNotFoundError):
                    shutil.copyfile(watched.state / "log.jsonl", self._logs / f"{watched.peer}.jsonl")
        if not self._stop.is_set():
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process ids of the peers, from their state folders, including peers that have ended."""
        return tuple(int((watched.state / "lock").read_text()) for watched in self._watched)

    @property
    def x_Pn(self) -> Tensor:
        """Parameters of all peers at each peer's last evaluation."""
        return stacked([self._parameters(watched, "model") for watched in self._watched])

    def best_models(self, known: Mapping[str, BestRound]) -> dict[str, tuple[BestRound, Tensor]]:
        """Return the models that the peers keep: a peer may be some rounds ahead of the others."""
        found = dict[str, tuple[BestRound, Tensor]]()
        for watched in self._watched:
            best = best_round(watched.state / "best.json")
            if best is not None and best != known.get(watched.peer):
                found[watched.peer] = best, self._parameters(watched, "best")
        return found

    def _parameters(self, watched: Watched, kept: str) -> Tensor:
        tensors = load_file(watched.state / f"{kept}.safetensors")
        layout = self._world.assembly_of(watched.peer).layout
        return torch.cat([tensors[tensor.name].reshape(-1) for tensor in layout.tensors])

    def step(self) -> RoundTimes:
        """Wait until every peer has finished the next round.

        Raises:
            Stopped: the run was asked to stop.
            EngineError: a peer cannot be started or kept running, or no peer makes progress.
        """
        if not self._watched:
            self._begin()
        number = self.round + 1
        self._go_on(lambda: all(watched.done >= number for watched in self._watched))
        self.round = number
        rows = {watched.peer: watched.row(number) for watched in self._watched}
        messages, amount = zip(*(watched.sent(number) for watched in self._watched), strict=True)
        self._report(lambda peer, group: rows[peer]["weight"][group], (list(messages), list(amount)))
        return slowest(self._watched, number)

    def evaluate(self, *, validation: bool = False) -> list[tuple[float, float]]:
        """Return (score, loss) of each peer on its own test or validation part, from the peer's own evaluation."""
        return [watched.results(self.round, validation=validation) for watched in self._watched]

    def evaluate_server(self, *, validation: bool = False) -> list[tuple[float, float]] | None:
        """Return (score, loss) of each peer's copy of the server's model; None without a server."""
        found = [watched.server_results(self.round, validation=validation) for watched in self._watched]
        return [each for each in found if each is not None] if all(found) else None

    def disagreement(self) -> dict[str, float]:
        """Return each group's largest distance that a member saw to a neighbor, relative to its own norm."""
        rows = {watched.peer: watched.row(self.round)["disagreement"] for watched in self._watched}
        return {
            group.id: max((rows[peer].get(group.id, 0.0) for peer in group.members), default=0.0)
            for group in self._plan.groups
        }

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the input of `restore` besides the peers' folders."""
        return {}, {"round": self.round}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Resume from the peers' folders if they exist; otherwise repeat all rounds."""
        self._resumed = True
        while self.round < state["round"]:
            self.step()

    # ------------------------------------------------------------------------------------------------- begin and end

    def _begin(self) -> None:
        files = {peer: self._folder / "peers" / peer / f"{peer}.yaml" for peer in self._world.peers}
        if self._resumed and all(file.is_file() for file in files.values()):
            self._start(files)
            return
        for _ in range(_PORTS_TRIED):
            shutil.rmtree(self._folder, ignore_errors=True)
            self._start(
                settle(self._folder, self._world, self._method, self._device, code=_packages(self._world, self._method))
            )
            try:
                self._go_on(lambda: all(watched.listening for watched in self._watched))
            except PortTakenError as taken:
                words = str(taken)
                self._end()
            else:
                return
        raise EngineError(
            f"another program took the peers' ports before they could listen, {_PORTS_TRIED} times: {words}"
        )

    def _start(self, files: dict[str, Path]) -> None:
        self._files = files
        self._watched = [Watched(peer, file.parent / f"{peer}-state") for peer, file in files.items()]
        self._pools = [ProcessPool(files, self._threads)]

    def _end(self) -> None:
        """Pause all peers."""
        for pool in self._pools:
            pool.pause()
        for pool in self._pools:
            pool.wait()
        self._pools = []

    # ------------------------------------------------------------------------------------------------------- watching

    def _go_on(self, done: Callable[[], bool]) -> None:
        """Wait until `done`. Raises EngineError if no peer makes progress for too long."""
        before, until = -1, 0.0
        while True:
            self._look()
            if done():
                return
            if (progress := self._progress()) != before:
                before, until = progress, time.monotonic() + self._patience
            elif time.monotonic() > until:
                behind = ", ".join(each.peer for each in self._watched if each.done <= self.round)
                raise EngineError(f"no peer made progress in {self._patience:.0f} s; waiting for {behind}")
            if self._stop.wait(LOOK_S):
                raise Stopped

    def _look(self) -> None:
        """Read the peers' files, and handle peers that have ended."""
        ended = [(pool, *end) for pool in self._pools for end in pool.ended()]
        for watched in self._watched:  # read after that, so that an ended peer's last lines are included
            for text in watched.look():
                self._remark(text)
        finished = {each.peer for each in self._watched if each.done >= self._world.federation.learning.rounds}
        for pool, peer, code in ended:
            if peer not in finished:
                self._died(pool, peer, code)

    def _died(self, pool: ProcessPool, peer: str, code: int) -> None:
        """Restart a peer that ended too early, if that makes sense."""
        if "cannot listen on" in pool.words:
            raise PortTakenError(pool.words)
        self._deaths[peer] += 1
        # Another start would fail in the same way.
        if code in (EXIT_OURS, EXIT_USERS) or self._deaths[peer] > DEATHS_MAX:
            raise EngineError(f"{peer} ended with {how_ended(code)}: {pool.words or 'no output'}")
        self._replaced(peer, how_ended(code))
        self._pools.append(ProcessPool({peer: self._files[peer]}, self._threads))

    def _progress(self) -> int:
        return sum(watched.done + watched.listening for watched in self._watched)

    def _limit(self) -> float:
        """Return the seconds within which some peer finishes a round, unless all are stuck."""
        federation = self._world.federation
        policies = averaging_of(self._plan, federation, self._world.seed).values()
        exchanges = max((policy.exchanges for policy in policies), default=0)
        waiting = DEADLINES_MAX * longest_deadline(federation) * (1 + exchanges)
        return _TRAINING_S + federation.gossip.gather + waiting


def _packages(world: World, method: Choice) -> list[str]:
    """Return the top-level packages of the code that the federation names. The user who started the run named it."""
    learning = world.federation.learning
    choices = (
        world.federation.network,
        *world.federation.simulation.networks.values(),
        world.federation.simulation.dataset,
        method,
        learning.loss,
        learning.optimizer,
    )
    names = [own_function(each)[0] for each in choices if each and each.name == "python"]
    return sorted({name.partition(":")[0].partition(".")[0] for name in names})
