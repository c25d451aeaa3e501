"""The processes engine: all peers of one method and seed as real processes of this machine, over TLS, in real time.

It is asked the same things as the other engines. Peers are started as a person starts them and watched from outside:
rounds, scores, traffic and weights are what they write into their state folders, parameters are their saved models. A
peer that dies is started again and goes on from its disk.

The peers' folders are the checkpoint: a stop pauses all of them, and the next start goes on where they were.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from fedpeer.config.choice import Choice
from fedpeer.config.methods import method_of
from fedpeer.learning.groups import averaging_of
from fedpeer.sims.ends import how_ended
from fedpeer.sims.processes.process_pool import ProcessPool
from fedpeer.sims.processes.settling import settle
from fedpeer.sims.processes.watch import Watched, slowest
from fedpeer.sims.request import cores
from fedpeer.sims.vector.engine import RoundTimes
from fedpeer.sims.vector.pool import EngineError, Stopped
from fedpeer.sims.world import World
from fedpeer.slicing.plan import Plan

#: Seconds between two looks at what the peers wrote.
LOOK_S = 0.05
#: Seconds in which some peer finishes a round's training, beside its waiting for others: an hour is beyond any round
#: that is tried out on one machine.
_TRAINING_S = 3600.0
#: Deadlines of an exchange in which some peer gets further, as in the network engine.
DEADLINES_MAX = 3
#: Deaths of one peer, by whatever reason, after which it is not started again: the next one would follow.
DEATHS_MAX = 3
#: Rows of ports that were free and taken a moment later.
_PORTS_TRIED = 3


#: Exit codes of a start that failed: another one would end in the same way.
EXIT_OURS, EXIT_USERS = 1, 2


class PortTakenError(EngineError):
    """Somebody else listens where a peer was to."""


class ProcessesEngine:
    """All peers of one method and seed. Use as a context manager: the processes live no longer than it."""

    def __init__(
        self,
        world: World,
        plan: Plan,
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
            folder: where the peers' folders are made, or were when the run was stopped; its own and nobody else's.
            logs: where the peers' logs are kept at the end; None: nowhere.
            remark: told what the peers' logs say about the result.
            replaced: told which peer died and how, when it is started again.
        """
        self._world, self._plan, self._method, self._device = world, plan, method, device
        self._folder, self._logs, self._remark, self._replaced = folder, logs, remark, replaced
        self._stop = stop or threading.Event()
        self._crews: list[ProcessPool] = []
        self._watched: list[Watched] = []
        self._files: dict[str, Path] = {}
        self._deaths: Counter[str] = Counter()
        self._threads = max(1, cores() // len(world.peers))
        self._resumed = False
        self._patience = self._limit()
        self.traffic = ([0] * len(world.peers), [0] * len(world.peers))
        self.weights = {group.id: np.ones(len(group.members)) for group in plan.groups}
        self.round = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left behind but what a stopped run goes on from."""
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
        """The peers' own, as their state folders have them, also of those who have ended."""
        return tuple(int((watched.state / "lock").read_text()) for watched in self._watched)

    @property
    def x_Pn(self) -> Tensor:
        """The parameters of all peers as each last evaluated itself."""
        names = [tensor.name for tensor in self._world.layout.tensors]
        found = [load_file(watched.state / "model.safetensors") for watched in self._watched]
        return torch.stack([torch.cat([tensors[name].reshape(-1) for name in names]) for tensors in found])

    def step(self) -> RoundTimes:
        """Wait until every peer has finished the next round.

        Raises:
            Stopped: if asked to stop meanwhile.
            EngineError: if a peer cannot be started or kept alive, or none gets any further.
        """
        if not self._watched:
            self._begin()
        number = self.round + 1
        self._go_on(lambda: all(watched.done >= number for watched in self._watched))
        self.round = number
        rows = {watched.peer: watched.row(number) for watched in self._watched}
        for group in self._plan.groups:
            weights = [rows[peer]["weight"][group.id] for peer in group.members]
            self.weights[group.id] = np.array(weights) / self._unit(weights)
        self.traffic = [row["messages_sent"] for row in rows.values()], [row["bytes_sent"] for row in rows.values()]
        return slowest(self._watched, number)

    def evaluate(self, *, validation: bool = False) -> list[tuple[float, float]]:
        """(score, loss) of each peer on its own test part, as it evaluated itself."""
        return [watched.results(self.round) for watched in self._watched]

    def evaluate_server(self, *, validation: bool = False) -> list[tuple[float, float]] | None:
        """The same of the server's model, as each peer holds it; None where there is none."""
        found = [watched.server_results(self.round) for watched in self._watched]
        return [each for each in found if each is not None] if all(found) else None

    def statistics(self) -> dict[str, list[float]]:
        return {}

    @property
    def relations_PP(self) -> None:
        """Peers are equals."""

    def disagreement(self) -> dict[str, float]:
        """Of each group: the largest that a member saw between its neighbours and itself, relative to its norm."""
        rows = {watched.peer: watched.row(self.round)["disagreement"] for watched in self._watched}
        return {
            group.id: max((rows[peer].get(group.id, 0.0) for peer in group.members), default=0.0)
            for group in self._plan.groups
        }

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What `restore` needs beside the peers' folders."""
        return {}, {"round": self.round}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on from the peers' folders where they are there; where not, do it all again."""
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
        raise EngineError(f"ports that were free were taken a moment later, {_PORTS_TRIED} times: {words}")

    def _start(self, files: dict[str, Path]) -> None:
        self._files = files
        self._watched = [Watched(peer, file.parent / f"{peer}-state") for peer, file in files.items()]
        self._crews = [ProcessPool(files, self._threads)]

    def _end(self) -> None:
        """Pause all peers."""
        for pool in self._crews:
            pool.pause()
        for pool in self._crews:
            pool.wait()
        self._crews = []

    # ------------------------------------------------------------------------------------------------------- watching

    def _go_on(self, done: Callable[[], bool]) -> None:
        """Wait until `done`, while somebody gets further."""
        before, until = -1, 0.0
        while True:
            self._look()
            if done():
                return
            if (progress := self._progress()) != before:
                before, until = progress, time.monotonic() + self._patience
            elif time.monotonic() > until:
                behind = ", ".join(each.peer for each in self._watched if each.done <= self.round)
                raise EngineError(f"in {self._patience:.0f} s nobody got further; waiting for {behind}")
            if self._stop.wait(LOOK_S):
                raise Stopped

    def _look(self) -> None:
        """Take up what the peers wrote, and who has ended."""
        ended = [(pool, *end) for pool in self._crews for end in pool.ended()]
        for watched in self._watched:  # after it: what an ended peer wrote last is there
            for text in watched.look():
                self._remark(text)
        finished = {each.peer for each in self._watched if each.done >= self._world.federation.learning.rounds}
        for pool, peer, code in ended:
            if peer not in finished:
                self._died(pool, peer, code)

    def _died(self, pool: ProcessPool, peer: str, code: int) -> None:
        """A peer ended before its time: start it again, if that makes sense."""
        if "cannot be listened on" in pool.words:
            raise PortTakenError(pool.words)
        self._deaths[peer] += 1
        if code in (EXIT_OURS, EXIT_USERS) or self._deaths[peer] > DEATHS_MAX:
            raise EngineError(f"{peer} ended with {how_ended(code)}: {pool.words or 'it said nothing'}")
        self._replaced(peer, how_ended(code))
        self._crews.append(ProcessPool({peer: self._files[peer]}, self._threads))

    def _progress(self) -> int:
        return sum(watched.done + watched.listening for watched in self._watched)

    def _unit(self, weights: Sequence[float]) -> float:
        """Under `weights: samples` peers count in examples; what is compared over runs counts in the mean of all. An
        algorithm may have units of its own in each group and round: then the mean is of those who are there."""
        if method_of(self._method).own_weights:
            return float(np.mean(weights))
        if self._world.federation.learning.weights == "uniform":
            return 1.0
        return float(np.mean([len(share.train_M) for share in self._world.split.shares]))

    def _limit(self) -> float:
        """Seconds in which some peer finishes a round, if any ever will."""
        federation = self._world.federation
        policies = averaging_of(self._plan, federation, self._world.seed).values()
        exchanges = max((policy.exchanges for policy in policies), default=0)
        return _TRAINING_S + federation.gossip.gather + DEADLINES_MAX * federation.gossip.deadline * (1 + exchanges)


def _packages(world: World, method: Choice) -> list[str]:
    """Top packages of the code that the federation names: who started the simulation named it."""
    choices = (world.federation.network, world.federation.simulation.dataset, method)
    names = [str(each.value or each.settings["function"]) for each in choices if each and each.name == "python"]
    return sorted({name.partition(":")[0].partition(".")[0] for name in names})
