"""What a worker does for an algorithm with a server: train some clients, score some clients.

Clients' states are leaves in the workspace, (P, ...) each, on two sides. A client's present state lies on one of them,
which the leader keeps in mind for each; training reads that one and writes the other, and the update beside it, so
that a task may be done twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedpeer.algorithms import evaluation
from fedpeer.algorithms.batches import Batches, round_order
from fedpeer.algorithms.leaves import leaves, mapped, rebuilt
from fedpeer.algorithms.steppers import Stepper
from fedpeer.algorithms.workbench import Workbench
from fedpeer.config.building import Coordinated, coordinated_of
from fedpeer.data.own.code import imported
from fedpeer.sims.vector.workspace import Job, Served, Workspace

#: In place of a side: a client that has never trained has no state of its own. Its first one stands in leaves of
#: this number, in the row that the leaf "first" has of it; clients that begin alike share one.
FIRST = 2


def other(side: int) -> int:
    """Where a client's state goes whose present one is on this side."""
    return 1 if side == 0 else 0


#: (score, loss) of a model on a peer's test part.
Score: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Teach:
    """A round's training of these clients, whose present states lie on these sides."""

    peers: tuple[int, ...]
    sides: tuple[int, ...]
    round: int


@dataclass(frozen=True)
class Examine:
    """Score these clients' own models and the server's on their test parts, or on what was kept back."""

    peers: tuple[int, ...]
    sides: tuple[int, ...]
    validation: bool


@dataclass(frozen=True)
class Examined:
    """Of each peer: its own model, the server's (None where there is none), and the algorithm's own statistics."""

    own: list[Score]
    server: list[Score] | None
    statistics: dict[str, list[float]]


def built(job: Job, served: Served, stepper: Stepper, workspace: Workspace) -> Coordinated:
    """The algorithm, as a worker needs it: nothing is drawn there."""
    return coordinated_of(served.algorithm, served.learning, workbench(job, stepper, workspace), imported)


def workbench(job: Job, stepper: Stepper, workspace: Workspace) -> Workbench:
    """The bench of this job's network."""
    return Workbench(
        module=job.module,
        layout=job.layout,
        loss=job.criterion,
        optimizer=job.optimizer,
        stepper=stepper,
        clients=len(job.peers),
        examples=len(workspace.train.index_T),
        examples_max=max(workspace.train.count(peer) for peer in range(len(job.peers))),
        optimizer_state=job.optimizer_state,
    )


def work_of(job: Job, workspace: Workspace, peers: Sequence[int], round: int) -> tuple[Batches, list[int]]:
    """Batches and keys of a block of peers, which have equal batches and steps."""
    batch, steps = job.batch_P[peers[0]], job.steps_P[peers[0]]
    orders = np.stack(
        [round_order(workspace.train.count(p), round, steps, batch, job.draws, job.peers[p]) for p in peers]
    )
    keys = [job.draws.key("dropout", job.peers[p], round) for p in peers]
    whole = tuple(workspace.examples(workspace.train, peer) for peer in peers)
    number = torch.tensor([job.client_P[peer] for peer in peers], device=job.device)
    return replace(workspace.batches(peers, orders), whole=whole, number=number), keys


def rows_of(workspace: Workspace, template: Any, peers: Sequence[int], sides: Sequence[int]) -> Any:
    """The present states of a block of clients."""

    def leaf(name: str) -> Tensor:
        rows = [
            workspace.leaves[f"client {side} {name}"][row]
            for row, side in zip(_places(workspace, peers, sides), sides, strict=True)
        ]
        return rows[0][None] if len(rows) == 1 else torch.stack(rows)

    return rebuilt(template, {name: leaf(name) for name in leaves(template)})


def _places(workspace: Workspace, peers: Sequence[int], sides: Sequence[int]) -> list[int]:
    """The rows in which clients' present states stand."""
    first = workspace.leaves.get("first")
    return [
        peer if side != FIRST or first is None else int(first[peer]) for peer, side in zip(peers, sides, strict=True)
    ]


def write_rows(workspace: Workspace, state: Any, peers: Sequence[int], sides: Sequence[int]) -> None:
    """Put states of a block of clients on these sides."""
    for name, leaf in leaves(state).items():
        for peer, side, row in zip(peers, sides, leaf, strict=True):
            workspace.leaves[f"client {side} {name}"][peer] = row


def shared(workspace: Workspace, template: Any, what: str) -> Any:
    """The broadcast or the server, as the leader wrote it."""
    return rebuilt(template, {name: workspace.leaves[f"{what} {name}"] for name in leaves(template)})


def teach(job: Job, workspace: Workspace, algorithm: Coordinated, task: Teach) -> None:
    """Train a block, and write states and updates."""
    assert job.served is not None, "clients are taught where there is a server"
    batches, keys = work_of(job, workspace, task.peers, task.round)
    client = rows_of(workspace, job.served.client, task.peers, task.sides)
    broadcast = shared(workspace, job.served.broadcast, "broadcast")
    if len(task.peers) == 1:  # without the leading dimension: quicker, and what a real peer does
        trained, update = algorithm.train(mapped(lambda leaf: leaf[0], client), broadcast, batches.peer(0), keys)
        trained, update = (mapped(lambda leaf: leaf[None], each) for each in (trained, update))
    else:
        trained, update = algorithm.train(client, broadcast, batches, keys)
    write_rows(workspace, trained, task.peers, [other(side) for side in task.sides])
    for name, leaf in leaves(update).items():
        workspace.leaves[f"update {name}"][list(task.peers)] = leaf


def examine(job: Job, workspace: Workspace, stepper: Stepper, algorithm: Coordinated, task: Examine) -> Examined:
    """Score a block."""
    assert job.served is not None, "the server's model is scored where there is one"
    client = rows_of(workspace, job.served.client, task.peers, task.sides)
    server = shared(workspace, job.served.server, "server")
    server_n, asked = algorithm.server_model(server), (job, workspace, stepper, task.peers)
    own_Bn = algorithm.personal_model(client)
    return Examined(
        own=scores(*asked, own_Bn, validation=task.validation),
        server=None if server_n is None else scores(*asked, server_n.expand_as(own_Bn), validation=task.validation),
        statistics={name: each.tolist() for name, each in algorithm.statistics(client, server).items()},
    )


def scores(
    job: Job, workspace: Workspace, stepper: Stepper, peers: Sequence[int], x_Bn: Tensor, *, validation: bool
) -> list[Score]:
    """Of each of these peers: a model of its own, on its test part or on what was kept back."""
    view = workspace.seen_by(peers)
    return [
        evaluation.evaluate(
            stepper,
            job.criterion,
            x_n,
            workspace.scored(peer, validation=validation),
            view and view.of(number),
            job.score_scale_P[peer],
        )
        for number, (peer, x_n) in enumerate(zip(peers, x_Bn, strict=True))
    ]


def joined(blocks: Sequence[Sequence[int]], found: Sequence[Examined]) -> Examined:
    """The blocks' results in peer order."""
    place = np.argsort([peer for block in blocks for peer in block])

    def ordered(parts: Sequence[list[Any]]) -> list[Any]:
        flat = [each for part in parts for each in part]
        return [flat[number] for number in place]

    servers = [each.server for each in found if each.server is not None]
    return Examined(
        own=ordered([each.own for each in found]),
        server=ordered(servers) if servers else None,
        statistics={name: ordered([each.statistics[name] for each in found]) for name in found[0].statistics},
    )


def emptied(state: Any) -> Any:
    """A state of the same kind, with tensors of no size."""
    return mapped(lambda leaf: leaf.new_empty(0), state)


def room(job: Job, state: Any, many: int | None = None) -> dict[str, Tensor]:
    """Leaves for that many states like this one, by name; for one of each peer unless it is said.

    On a CPU without memory, which files give.
    """
    where, count = "meta" if job.device == "cpu" else job.device, len(job.peers) if many is None else many
    return {
        name: torch.zeros((count, *leaf.shape), dtype=leaf.dtype, device=where) for name, leaf in leaves(state).items()
    }


def two_sides(job: Job, state: Any) -> dict[str, Tensor]:
    """The same for states that are trained: each leaf twice."""
    return {f"client {side} {name}": leaf for side in (0, 1) for name, leaf in room(job, state).items()}
