"""The work of one peer under an algorithm with a server: training, closing a round, settling.

All of it is functions of what is handed in, states as bytes (`leaf_bytes.py`), so it may be done in any thread, one job
at a time, and repeated. A job says who the clients of its round are: when the roster changes their number does, and
with it the algorithm that was built for so many. The numbers are those of the vector engine: the same batches, keys and
order of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.leaves import leaves_of, map_leaves, stack_states, take_rows
from fedpeer.algorithms.probing import probed
from fedpeer.algorithms.updates import fault
from fedpeer.config.building import Coordinated, Loader, coordinated_of, left_out
from fedpeer.config.choice import Choice
from fedpeer.learning.learner import Learner
from fedpeer.peer.consensus.round_results import practised, server_result
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


@dataclass(frozen=True, eq=False)
class Pupil:
    """The work of one peer.

    algorithm   for the number of clients at the start; `among` builds it for another one
    """

    learner: Learner
    algorithm: Coordinated
    among: Callable[[int], Coordinated]
    server: LeafForm
    client: LeafForm
    update: LeafForm
    course: AlgorithmSpec

    @classmethod
    def of(
        cls,
        learner: Learner,
        method: Choice,
        load: Loader,
        peers: Sequence[str],
        *,
        patience: float = 1.0,
        secret: bytes = b"",
    ) -> Pupil:
        """The pupil that a learner is under this method, among these peers.

        Args:
            patience: how long it waits before it stands for coordinator (`capability.py`).
            secret: what its noise comes from.

        Raises:
            ChoiceError, AlgorithmError, RobustError, PrivacyError: the method's settings do not fit, or those of
                aggregation and privacy; the message says what to change.
        """
        assembly, device = learner.assembly, learner.device
        learning, clients = assembly.federation.learning, tuple(sorted(peers))

        bench = learner.bench(len(clients))
        algorithm = coordinated_of(method, learning, bench, load, secret=secret)

        @cache
        def among(count: int) -> Coordinated:
            if count == len(clients):
                return algorithm
            return coordinated_of(method, learning, replace(bench, clients=count), load, secret=secret, begun=True)

        server = algorithm.start_server(bench.draw(""))
        examples = torch.tensor(learner.examples, device=device)
        client = algorithm.start_client(assembly.start(learner.peer).to(device), examples)
        update = probed(algorithm, client, server, _batches(learner, clients, 1))
        forms = LeafForm(server), LeafForm(client), LeafForm(update)
        draws = assembly.draws

        def takes_part(round: int, peers: Sequence[str]) -> tuple[str, ...]:
            numbers = among(len(peers)).participants(round, len(peers), learning.participation, draws)
            return tuple(peers[number] for number in numbers)

        template = leaves_of(map_leaves(lambda leaf: leaf.cpu(), update))

        def wrong(data: bytes) -> Rejection | None:
            return fault(forms[2].leaves(data), template, counts=algorithm.counts, positive=algorithm.positive)

        def number(data: bytes) -> int | None:
            return int(forms[2].leaf(data, algorithm.numbered)) if algorithm.numbered else None

        course = AlgorithmSpec(
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
        )
        return cls(learner, algorithm, among, *forms, course)

    def work(
        self, job: TrainClient | AggregateUpdates | FinishRound
    ) -> ClientTrained | UpdatesAggregated | RoundFinished:
        """Do one job."""
        match job:
            case TrainClient():
                return self._practise(job)
            case AggregateUpdates():
                return self._conclude(job)
            case FinishRound():
                return self._settle(job)

    def _practise(self, job: TrainClient) -> ClientTrained:
        algorithm = self.among(len(job.clients))
        broadcast = algorithm.open(self._read(self.server, job.server), job.round)
        batches = _batches(self.learner, job.clients, job.round)
        keys = [self.learner.assembly.draws.key("dropout", self.learner.peer, job.round)]
        trained, update = algorithm.train(self._read(self.client, job.client), broadcast, batches, keys)
        return practised(job, self.client.written(trained), self.update.written(update), self.course)

    def _conclude(self, job: AggregateUpdates) -> UpdatesAggregated:
        algorithm, before = self.among(len(job.clients)), self._read(self.server, job.server)
        updates = stack_states([self._read(self.update, each) for each in job.updates.values()])
        found = left_out(algorithm, self.learner.assembly.federation.learning, before, updates, job.round)
        out = {client: why for client, why in zip(job.updates, found, strict=True) if why is not None}
        if out:
            updates = take_rows(updates, [row for row, why in enumerate(found) if why is None])
        server = self.server.written(algorithm.close(before, updates))
        sound = self.course.sound(server) and self.course.server_fault(server) is None
        return server_result(job, server, sound=sound, out=out)

    def _settle(self, job: FinishRound) -> RoundFinished:
        server, client = self._read(self.server, job.server), self._read(self.client, job.before)
        if job.trained is not None:
            counted = torch.tensor(job.counted, device=self.learner.device)
            client = self.algorithm.settle(client, self._read(self.client, job.trained), server, counted)
        server_n = self.algorithm.server_model(server)
        x_n = self.algorithm.personal_model(client).cpu()
        return RoundFinished(job.round, self.client.written(client), x_n, None if server_n is None else server_n.cpu())

    def _read(self, form: LeafForm, data: bytes) -> Any:
        return map_leaves(lambda leaf: leaf.to(self.learner.device), form.read(data))


def _batches(learner: Learner, clients: Sequence[str], round: int) -> Batches:
    """The batches of one peer, as the vector engine has them."""
    return learner.batches(round, clients.index(learner.peer))
