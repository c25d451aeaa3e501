"""The vector engine for algorithms with a server: leads the rounds of one method with one seed.

Workers train blocks of clients (`clients.py`); the server's part, which opens and closes rounds, is here, in the
leading process. It gives the numbers of a federation in which nobody is late: all who take part in a round send, and
all that they send counts.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.coordinated import CoordinatedAlgorithm
from fedpeer.algorithms.leaves import byte_count, leaves, rebuilt
from fedpeer.algorithms.probing import probed
from fedpeer.algorithms.steppers import Stepper
from fedpeer.algorithms.updates import fault
from fedpeer.config.building import Coordinated, coordinated_of, left_out
from fedpeer.config.choice import Choice
from fedpeer.config.federation import LearningSettings
from fedpeer.data.own.code import imported
from fedpeer.gossip.averaging import MESSAGE_HEAD_BYTES
from fedpeer.peer.wire.framing import raw
from fedpeer.peer.wire.sparse_words import wire_bytes
from fedpeer.rejection import Rejection
from fedpeer.sims.vector.clients import (
    FIRST,
    Examine,
    Examined,
    Score,
    Teach,
    emptied,
    joined,
    other,
    room,
    rows_of,
    two_sides,
    work_of,
    workbench,
    write_rows,
)
from fedpeer.sims.vector.engine import RoundTimes, cut
from fedpeer.sims.vector.pool import Hands, Pool, Stopped
from fedpeer.sims.vector.resident import given_back
from fedpeer.sims.vector.tasks import Several, Task, Worker
from fedpeer.sims.vector.workspace import Job, Served, Workspace, WorkspaceHandles, on_disk

#: Messages by which a phase's tasks are handed out: enough for the workers to end together.
MESSAGES = 32
#: Clients whose states are begun, settled or read at once in the leading process.
ROWS_AT_ONCE = 64


class ServedEngine:
    """All clients and the server of one method and seed. Use as a context manager: workers and files live as long."""

    def __init__(
        self,
        job: Job,
        algorithm: Choice,
        memory: Callable[[int], Workspace],
        drawn: Callable[[str], Tensor],
        learning: LearningSettings,
        *,
        workers: int = 1,
        folder: Path | None = None,
        replaced: Callable[[str, str], None] = lambda worker, reason: None,
        refused: Callable[[str, str], None] = lambda peer, reason: None,
        stop: threading.Event | None = None,
    ) -> None:
        """
        Args:
            memory: makes the workspace for a given size of optimiser state.
            drawn: (n,) initial parameters by the name of the draw; "" for the usual one.
            learning: who takes part in a round, how updates are aggregated and made private.
            refused: told of an update that is left out, whose it is and why.
        """
        self._job, self._choice, self._memory, self._drawn = job, algorithm, memory, drawn
        self._learning, self._refused = learning, refused
        self._workers, self._folder, self._replaced = workers, folder, replaced
        self._stop = stop or threading.Event()
        self._order = job.clients
        self._sides = [0] * len(job.peers)
        self._sent: list[int] = []
        self._examined: dict[tuple[int, bool], Examined] = {}
        self.weights: dict[str, NDArray[Any]] = {}
        self.server: Any = None
        self.round = 0  # rounds finished
        self._handles: WorkspaceHandles | None = None
        self._pool: Hands | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        stepper = self._job.stepper()
        plain = self._prepared(stepper)
        if self._job.device == "cpu":
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="work-", dir=self._folder)))
            self._handles = on_disk(plain, folder)
            self.workspace = self._handles.open()
            self._stack.enter_context(given_back(self.workspace))
            workers = max(1, min(self._workers, len(cut(self._job, range(len(self._job.peers))))))
            self._pool = self._stack.enter_context(Pool(self._job, self._handles, workers, self._replaced, self._stop))
        else:
            self.workspace = plain
        self._bench = Worker(self._job, self.workspace, stepper)
        first_P = self._first_rows(self.workspace)
        self.workspace.leaves["first"].copy_(torch.tensor(first_P))
        example = {kind: peer for peer, kind in enumerate(first_P)}
        for rows in slices(len(example)):
            kinds = range(rows.start, rows.stop)
            begun = self._begun(self.workspace, [example[kind] for kind in kinds])
            write_rows(self.workspace, begun, kinds, [FIRST] * len(kinds))
        self._sides = [FIRST] * len(first_P)
        self._tell("server", self.server)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The workers' process numbers; empty on a device."""
        return self._pool.process_ids if self._pool else ()

    @property
    def x_Pn(self) -> Tensor:
        """The clients' own models; together they stand where equals have their parameters."""
        assert self._job.served is not None
        x_Pn = self.workspace.x[0]
        for several in slices(len(self._sides)):
            peers = range(several.start, several.stop)
            client = rows_of(self.workspace, self._job.served.client, peers, self._sides[several])
            x_Pn[several] = self._algorithm.personal_model(client)
        return x_Pn

    @property
    def server_n(self) -> Tensor | None:
        """The server's model, where there is one."""
        return self._algorithm.server_model(self.server)

    @property
    def relations_PP(self) -> Tensor | None:
        """How the clients' tasks are related, in the order of the peers, where the algorithm learns it."""
        relations_NN = self._algorithm.relations(self.server)
        if relations_NN is None:
            return None
        place = torch.tensor(self._job.client_P)
        return relations_NN[place][:, place]

    @property
    def traffic(self) -> tuple[list[int], list[int]]:
        """Messages and bytes of the last round: who took part sends an update, the coordinator all others the model.

        The coordinator is taken to be the first peer by id; its own update goes nowhere.
        """
        messages, amount = [0] * len(self._job.peers), [0] * len(self._job.peers)
        coordinator = self._order[0]
        for peer in self._sent:
            if peer != coordinator:
                messages[peer] += 1
                amount[peer] += self._update_bytes(peer) + MESSAGE_HEAD_BYTES
        if self.round:
            others = len(self._job.peers) - 1
            messages[coordinator] += others
            amount[coordinator] += others * (byte_count(self.server) + MESSAGE_HEAD_BYTES)
        return messages, amount

    def step(self) -> RoundTimes:
        """One round.

        Raises:
            Stopped: if asked to stop meanwhile; the state is then that before the round.
        """
        number, began = self.round + 1, time.perf_counter()
        algorithm, everybody = self._algorithm, range(len(self._job.peers))
        drawn = algorithm.participants(number, len(everybody), self._learning.participation, self._job.draws)
        sending = [self._order[client] for client in drawn]
        everyone = algorithm.everyone_trains or self._learning.everyone_in(number)
        training = list(everybody) if everyone else sorted(sending)
        self._tell("broadcast", algorithm.open(self.server, number))
        self._run([Teach(block, self._sides_of(block), number) for block in cut(self._job, training)])
        trained = time.perf_counter()
        counting = self._near(self._taken(sending), number)
        if counting:
            self.server = algorithm.close(self.server, self._updates(counting))
        if type(algorithm).settle is not CoordinatedAlgorithm.settle:
            self._settle(training, set(counting))
        for peer in training:
            self._sides[peer] = other(self._sides[peer])
        self._tell("server", self.server)
        self._sent, self.round = sending, number
        return RoundTimes(trained - began, time.perf_counter() - trained)

    def evaluate(self, *, validation: bool = False) -> list[Score]:
        """(score, loss) of each client's own model on its own test part, or on what was kept back."""
        return self._scored(validation).own

    def evaluate_server(self, *, validation: bool = False) -> list[Score] | None:
        """The same of the server's model; None where there is no such model."""
        return self._scored(validation).server

    def statistics(self) -> dict[str, list[float]]:
        """What the algorithm tells of each client."""
        return self._scored(False).statistics

    def disagreement(self) -> dict[str, float]:
        return {}

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to go on: tensors, not copied, and a small JSON-able state.

        Of each client that has ever trained the side that it is on: on the other one a worker may be writing for a
        round that was stopped.
        """
        assert self._job.served is not None
        tensors = {f"server {name}": leaf for name, leaf in leaves(self.server).items()}
        trained = {peer: side for peer, side in enumerate(self._sides) if side != FIRST}
        for name in leaves(self._job.served.client):
            for peer, side in trained.items():
                tensors[f"client {peer} {name}"] = self.workspace.leaves[f"client {side} {name}"][peer]
        return tensors, {"round": self.round, "trained": list(trained)}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on from a snapshot, to the very numbers of an uninterrupted run."""
        assert self._job.served is not None
        self.round, self._sides = state["round"], [FIRST] * len(self._sides)
        for peer in state["trained"]:
            for name in leaves(self._job.served.client):
                self.workspace.leaves[f"client 0 {name}"][peer] = tensors[f"client {peer} {name}"]
            self._sides[peer] = 0
        found = {name: tensors[f"server {name}"].to(self._job.device, copy=True) for name in leaves(self.server)}
        self.server = rebuilt(self.server, found)
        self._tell("server", self.server)

    # ------------------------------------------------------------------------------------------------------- its parts

    def _further(self, name: str) -> Tensor:
        return self._drawn(name).to(self._job.device)

    def _first_rows(self, workspace: Workspace) -> list[int]:
        """Of each client the number of its first state: one for all that learn from equally many examples, if all
        start from the same draw, or else one each."""
        peers = range(len(self._job.peers))
        if not self._learning.common_start:
            return list(peers)
        kinds: dict[int, int] = {}
        return [kinds.setdefault(workspace.train.count(peer), len(kinds)) for peer in peers]

    def _prepared(self, stepper: Stepper) -> Workspace:
        """Everything but memory for states, which are named; the job says what they are like."""
        plain = self._memory(0)
        self._algorithm, states = rehearsed(self._job, self._choice, self._learning, plain, self._further, stepper)
        self.server = states["server"]
        forms = {name: emptied(each) for name, each in states.items()}
        self._job = replace(self._job, served=Served(self._choice, self._learning, **forms))
        plain.leaves = self._room(states, max(self._first_rows(plain)) + 1)
        return plain

    def _begun(self, workspace: Workspace, peers: Sequence[int]) -> Any:
        """The first states of some clients."""
        if self._learning.common_start:
            values_Bn = self._drawn("").expand(len(peers), -1)
        else:
            values_Bn = torch.stack([self._drawn(self._job.peers[peer]) for peer in peers])
        examples_B = torch.tensor([workspace.train.count(peer) for peer in peers])
        device = self._job.device
        return self._algorithm.start_client(values_Bn.to(device), examples_B.to(device))

    def _room(self, states: Mapping[str, Any], kinds: int) -> dict[str, Tensor]:
        """Leaves of the right shapes and types; so many first states are there."""
        found = two_sides(self._job, states["client"])
        found |= {f"client {FIRST} {name}": leaf for name, leaf in room(self._job, states["client"], kinds).items()}
        found["first"] = torch.zeros(len(self._job.peers), dtype=torch.int64)
        found |= {f"update {name}": leaf for name, leaf in room(self._job, states["update"]).items()}
        for what in ("broadcast", "server"):
            found |= {f"{what} {name}": leaf[0] for name, leaf in room(self._job, states[what], 1).items()}
        return found

    def _tell(self, what: str, state: Any) -> None:
        """Put a state where all workers read it."""
        for name, leaf in leaves(state).items():
            self.workspace.leaves[f"{what} {name}"].copy_(leaf)

    def _taken(self, sending: Sequence[int]) -> list[int]:
        """Those whose updates are made of numbers; of the others it is told why not."""
        assert self._job.served is not None
        template = leaves(self._job.served.update)
        sound = torch.ones(len(sending), dtype=torch.bool)
        for name in template:
            leaf = self.workspace.leaves[f"update {name}"]
            sound &= torch.stack([leaf[peer].isfinite().all() for peer in sending]).cpu()
        for peer in [peer for peer, good in zip(sending, sound.tolist(), strict=True) if not good]:
            update = {name: self.workspace.leaves[f"update {name}"][peer] for name in template}
            found = fault(update, update)
            assert found is not None, "what is no number is a fault"
            self._refused(self._job.peers[peer], found.text)
        return [peer for peer, good in zip(sending, sound.tolist(), strict=True) if good]

    def _near(self, sending: Sequence[int], round: int) -> list[int]:
        """Those whose updates are not left out for how far they moved; of the others it is told."""
        found: list[Rejection | None] = [None] * len(sending)
        if sending:
            found = left_out(self._algorithm, self._learning, self.server, self._updates(sending), round)
        for peer, why in zip(sending, found, strict=True):
            if why is not None:
                self._refused(self._job.peers[peer], why.text)
        return [peer for peer, why in zip(sending, found, strict=True) if why is None]

    def _updates(self, sending: Sequence[int]) -> Any:
        assert self._job.served is not None
        template, everybody = self._job.served.update, list(range(len(self._job.peers)))
        rows = slice(None) if sending == everybody else sending  # a view where it can be
        return rebuilt(template, {name: self.workspace.leaves[f"update {name}"][rows] for name in leaves(template)})

    def _update_bytes(self, peer: int) -> int:
        """What the update takes on the wire: zeros, where there are many, travel as one bit."""
        assert self._job.served is not None
        rows = (self.workspace.leaves[f"update {name}"][peer] for name in leaves(self._job.served.update))
        return wire_bytes(b"".join(raw(row.cpu()) for row in rows))

    def _settle(self, training: Sequence[int], sent: set[int]) -> None:
        """What clients keep of the round, where that is not simply what training made of them."""
        assert self._job.served is not None
        for at in range(0, len(training), ROWS_AT_ONCE):
            peers = training[at : at + ROWS_AT_ONCE]
            sides = self._sides_of(peers)
            others = [other(side) for side in sides]
            template = self._job.served.client
            before, trained = (rows_of(self.workspace, template, peers, each) for each in (sides, others))
            counted = torch.tensor([peer in sent for peer in peers], device=self._job.device)
            write_rows(self.workspace, self._algorithm.settle(before, trained, self.server, counted), peers, others)

    def _scored(self, validation: bool) -> Examined:
        """Scores are asked for by three names; clients are examined once."""
        if (self.round, validation) not in self._examined:
            blocks = cut(self._job, range(len(self._job.peers)))
            found = self._run([Examine(block, self._sides_of(block), validation) for block in blocks])
            self._examined = {key: value for key, value in self._examined.items() if key[0] == self.round}
            self._examined[self.round, validation] = joined(blocks, found)
        return self._examined[self.round, validation]

    def _sides_of(self, peers: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._sides[peer] for peer in peers)

    def _run(self, tasks: Sequence[Task]) -> list[Any]:
        if self._pool is not None:
            size = math.ceil(len(tasks) / MESSAGES)
            several = [Several(tuple(tasks[at : at + size])) for at in range(0, len(tasks), size)]
            return [each for found in self._pool.run(several) for each in found]
        results = []
        for task in tasks:
            if self._stop.is_set():
                raise Stopped
            results.append(self._bench.do(task))
        return results


def slices(rows: int) -> Iterator[slice]:
    """So many rows, a few at a time."""
    yield from (slice(at, min(at + ROWS_AT_ONCE, rows)) for at in range(0, rows, ROWS_AT_ONCE))


def rehearsed(
    job: Job,
    choice: Choice,
    learning: LearningSettings,
    workspace: Workspace,
    drawn: Callable[[str], Tensor],
    stepper: Stepper,
) -> tuple[Coordinated, dict[str, Any]]:
    """The algorithm, and its states before the first round: of the server, of one client, what is told and sent.

    One client is trained a little for it, so that whatever does not fit shows before anything else is begun.

    Raises:
        AlgorithmError, RobustError, PrivacyError: what does not fit, and what to change.
    """
    bench = replace(workbench(job, stepper, workspace), draw=drawn)
    algorithm = coordinated_of(choice, learning, bench, imported)
    start_n = drawn("")
    server = algorithm.start_server(start_n)
    examples = torch.tensor(workspace.train.count(0), device=start_n.device)
    client = algorithm.start_client(start_n, examples)
    batches, _ = work_of(job, workspace, [0], 1)
    update = probed(algorithm, client, server, batches.peer(0))
    return algorithm, {
        "client": client,
        "broadcast": algorithm.open(server, 1),
        "update": update,
        "server": server,
    }
