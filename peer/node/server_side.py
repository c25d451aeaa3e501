"""Work of a peer under an algorithm with a server: training as a client, aggregating a round, finishing it.

Each job is a function of its arguments, with states as bytes (`leaf_bytes.py`). A job names the clients of its round:
their number may change with the roster, and the algorithm is built for a number of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.leaves import leaves_of, map_leaves, stack_states, take_rows
from fedpeer.algorithms.probing import probed
from fedpeer.algorithms.updates import fault
from fedpeer.config.building import Coordinated, left_out
from fedpeer.learning.local_task import LocalTask
from fedpeer.peer.consensus.round_results import server_result, training_result
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.events import (
    AggregateUpdates,
    ClientTrained,
    FinishRound,
    RoundFinished,
    TrainClient,
    UpdatesAggregated,
)
from fedpeer.peer.wire.leaf_bytes import LeafForm
from fedpeer.rejection import Rejection

#: Jobs of a round with a server, and their results.
RoundWork: TypeAlias = TrainClient | AggregateUpdates | FinishRound
RoundWorked: TypeAlias = ClientTrained | UpdatesAggregated | RoundFinished


@dataclass(frozen=True, eq=False)
class ServerSide:
    """Work of a client, and of the server, which any peer may have to do.

    algorithm   for the number of clients at the start; `among` builds it for another number
    server, client, update   forms of their states as bytes
    """

    local_task: LocalTask
    algorithm: Coordinated
    among: Callable[[int], Coordinated]
    server: LeafForm
    client: LeafForm
    update: LeafForm
    spec: AlgorithmSpec

    @classmethod
    def of(
        cls,
        local_task: LocalTask,
        algorithm: Coordinated,
        rebuilt: Callable[[int], Coordinated],
        client: Any,
        peers: Sequence[str],
        patience: float,
    ) -> ServerSide:
        """Return the work of an algorithm that was built for these peers.

        Args:
            rebuilt: builds the algorithm for another number of clients.
            client: this client's state before the first round.
            patience: part of the longest wait before this peer stands for coordinator (`capability.py`).
        """
        clients, learning = tuple(sorted(peers)), local_task.assembly.federation.learning

        @cache
        def among(count: int) -> Coordinated:
            return algorithm if count == len(clients) else rebuilt(count)

        server = algorithm.start_server(local_task.assembly.drawn("").to(local_task.device))
        update = probed(algorithm, client, server, _batches(local_task, clients, 1))
        forms = LeafForm(server), LeafForm(client), LeafForm(update)
        draws = local_task.assembly.draws

        def takes_part(round: int, peers: Sequence[str]) -> tuple[str, ...]:
            numbers = among(len(peers)).participants(round, len(peers), learning.participation, draws)
            return tuple(peers[number] for number in numbers)

        template = leaves_of(map_leaves(lambda leaf: leaf.cpu(), update))

        def wrong(data: bytes) -> Rejection | None:
            return fault(forms[2].leaves(data), template, counts=algorithm.counts, positive=algorithm.positive)

        def number(data: bytes) -> int | None:
            return int(forms[2].leaf(data, algorithm.numbered)) if algorithm.numbered else None

        spec = AlgorithmSpec(
            server_bytes=forms[0].size,
            update_bytes=forms[2].size,
            server=forms[0].written(server),
            client=forms[1].written(client),
            takes_part=takes_part,
            fault=wrong,
            sound=forms[0].finite,
            everyone=lambda round: algorithm.everyone_trains or learning.everyone_in(round),
            patience=patience,
            fixed=algorithm.fixed_clients,
            number=number,
            server_fault=lambda data: algorithm.server_fault(forms[0].read(data)),
            goal=learning.aggregation_goal,
        )
        return cls(local_task, algorithm, among, *forms, spec)

    def work(self, job: RoundWork) -> RoundWorked:
        """Do one job."""
        match job:
            case TrainClient():
                return self._train(job)
            case AggregateUpdates():
                return self._aggregate(job)
            case FinishRound():
                return self._settle(job)

    def _train(self, job: TrainClient) -> ClientTrained:
        algorithm = self.among(len(job.clients))
        broadcast = algorithm.open(self._read(self.server, job.server), job.round)
        batches = _batches(self.local_task, job.clients, job.round)
        keys = [self.local_task.assembly.draws.key("dropout", self.local_task.peer, job.round)]
        trained, update = algorithm.train(self._read(self.client, job.client), broadcast, batches, keys)
        return training_result(job, self.client.written(trained), self.update.written(update), self.spec)

    def _aggregate(self, job: AggregateUpdates) -> UpdatesAggregated:
        algorithm, before = self.among(len(job.clients)), self._read(self.server, job.server)
        updates = stack_states([self._read(self.update, each) for each in job.updates.values()])
        age_K = torch.tensor([job.round - job.rounds.get(each, job.round) for each in job.updates])
        updates = algorithm.rebased(before, updates, job.round, age_K.to(self.local_task.device))
        found = left_out(algorithm, self.local_task.assembly.federation.learning, before, updates, job.round)
        out = {client: why for client, why in zip(job.updates, found, strict=True) if why is not None}
        if out:
            updates = take_rows(updates, [row for row, why in enumerate(found) if why is None])
        server = self.server.written(algorithm.close(before, updates))
        sound = self.spec.sound(server) and self.spec.server_fault(server) is None
        return server_result(job, server, sound=sound, out=out)

    def _settle(self, job: FinishRound) -> RoundFinished:
        server, client = self._read(self.server, job.server), self._read(self.client, job.before)
        if job.trained is not None:
            counted = torch.tensor(job.counted, device=self.local_task.device)
            client = self.algorithm.settle(client, self._read(self.client, job.trained), server, counted)
        x_n = self.algorithm.personal_model(client).cpu()
        return RoundFinished(job.round, self.client.written(client), x_n, self.server_model(job.server))

    def server_model(self, server: bytes) -> Tensor | None:
        """Return the model (n,) of a server's state; None: it has none."""
        model_n = self.algorithm.server_model(self._read(self.server, server))
        return None if model_n is None else model_n.cpu()

    def _read(self, form: LeafForm, data: bytes) -> Any:
        return map_leaves(lambda leaf: leaf.to(self.local_task.device), form.read(data))


def _batches(local_task: LocalTask, clients: Sequence[str], round: int) -> Batches:
    """Return the batches of one peer, the same as the vector engine's."""
    return local_task.batches(round, clients.index(local_task.peer))
