"""Client-server rounds of the vector engine, which opens and closes them in the leading process.

They compute a federation without delays: all participants of a round send an update, and every valid update counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.coordinated import CoordinatedAlgorithm
from fedpeer.algorithms.leaves import byte_count, leaves_of, rebuilt, take_rows
from fedpeer.algorithms.updates import fault
from fedpeer.config.building import Coordinated, left_out
from fedpeer.gossip.averaging import MESSAGE_HEAD_BYTES
from fedpeer.gossip.sparse_words import wire_bytes
from fedpeer.gossip.tensor_bytes import raw
from fedpeer.rejection import Rejection
from fedpeer.sims.vector.rounds import Session, Tensors
from fedpeer.sims.vector.workspace import FIRST, other


class ServerRounds:
    """The rounds of a server and its clients.

    server   the server's state after the last round
    """

    def __init__(self, session: Session, algorithm: Coordinated, server: Any) -> None:
        self._session, self._algorithm, self.server = session, algorithm, server
        self._learning = session.job.learning
        self.weights: dict[str, NDArray[np.float64]] = {}
        self.source = 0
        self._sent: list[int] = []
        self._sent_bytes: dict[int, int] | None = {}  # None: not counted yet

    def begin(self) -> None:
        self._session.executor.set_shared("server", self.server)

    @property
    def relations_PP(self) -> Tensor | None:
        """Relations between the clients' tasks, in the order of the peers, if the algorithm learns them; else None."""
        relations_NN = self._algorithm.relations(self.server)
        if relations_NN is None:
            return None
        place = torch.tensor(self._session.job.client_P)
        return relations_NN[place][:, place]

    def open(self, number: int) -> Sequence[int]:
        job, algorithm = self._session.job, self._algorithm
        drawn = algorithm.participants(number, len(job.peers), self._learning.participation, job.draws)
        self._sending = [job.clients[client] for client in drawn]
        everyone = algorithm.everyone_trains or self._learning.everyone_in(number)
        self._session.executor.set_shared("received", algorithm.open(self.server, number))
        return range(len(job.peers)) if everyone else sorted(self._sending)

    def close(self, number: int, trained: Sequence[int]) -> None:
        session = self._session
        session.executor.fetch(self._sending)
        counting, updates = self._counting(number)
        if counting:
            self.server = self._algorithm.close(self.server, updates)
        session.executor.set_shared("server", self.server)
        if type(self._algorithm).settle is not CoordinatedAlgorithm.settle:
            counted = set(counting)
            session.executor.settle(trained, session.sides_of(trained), [peer in counted for peer in trained])
        for peer in trained:
            session.sides[peer] = other(session.sides[peer])
        self._sent, self._sent_bytes = self._sending, None
        session.executor.finished(trained, session.sides_of(trained), self.source, mixed=False)

    def traffic(self, round: int) -> tuple[list[int], list[int]]:
        """Return each peer's messages and bytes.

        Participants send an update, the coordinator sends the model to all others. The coordinator is assumed to be the
        first peer by id; its own update is not sent.
        """
        job = self._session.job
        messages, amount = [0] * len(job.peers), [0] * len(job.peers)
        coordinator = job.clients[0]
        for peer, update in self._updates_sent().items():
            messages[peer] += 1
            amount[peer] += update + MESSAGE_HEAD_BYTES
        if round:
            others = len(job.peers) - 1
            messages[coordinator] += others
            amount[coordinator] += others * (byte_count(self.server) + MESSAGE_HEAD_BYTES)
        return messages, amount

    def disagreement(self) -> dict[str, float]:
        return {}

    def snapshot(self, *, trained: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the server's state, and the state on the current side of each client that has ever trained.

        A worker may still be writing to the other side, for a round that was stopped.
        """
        session = self._session
        tensors = {f"server {name}": leaf for name, leaf in leaves_of(self.server).items()}
        ever = {peer: side for peer, side in enumerate(session.sides) if side != FIRST}
        clients = [leaves_of(side) for side in session.states.clients]
        for name in clients[0]:
            for peer, side in ever.items():
                tensors[f"client {peer} {name}"] = clients[side][name][peer]
        return tensors, {"trained": list(ever), "sent": list(self._updates_sent().items())}

    def restore(self, tensors: Tensors, state: Mapping[str, Any]) -> None:
        session = self._session
        session.sides[:] = [FIRST] * len(session.sides)
        for peer in state["trained"]:
            for name, leaf in leaves_of(session.states.clients[0]).items():
                leaf[peer] = tensors[f"client {peer} {name}"]
            session.sides[peer] = 0
        found = {n: tensors[f"server {n}"].to(session.job.device, copy=True) for n in leaves_of(self.server)}
        self.server = rebuilt(self.server, found)
        self._sent_bytes = dict(state.get("sent", []))  # earlier checkpoints have none
        session.executor.resume(session.sides)
        session.executor.set_shared("server", self.server)

    def _counting(self, round: int) -> tuple[list[int], Any]:
        """Return the peers whose updates count, and those updates; report the others."""
        peers, updates = self._sending, self._updates(self._sending)
        checks: list[Callable[[Any], list[Rejection | None]]] = [
            _faults,
            lambda some: left_out(self._algorithm, self._learning, self.server, some, round),
        ]
        for check in checks:
            found = check(updates) if peers else []
            for peer, why in zip(peers, found, strict=True):
                if why is not None:
                    self._session.refused(self._session.job.peers[peer], why.text)
            if any(found):
                good = [row for row, why in enumerate(found) if why is None]
                peers, updates = [peers[row] for row in good], take_rows(updates, good)
        return peers, updates

    def _updates(self, sending: Sequence[int]) -> Any:
        everybody = list(range(len(self._session.job.peers)))
        rows = slice(None) if sending == everybody else sending  # a view where it can be
        return take_rows(self._session.states.sent, rows)

    def _updates_sent(self) -> dict[int, int]:
        """Return the bytes on the wire of each peer's update of the last round; of many zeros, each takes one bit."""
        if self._sent_bytes is None:
            leaves, coordinator = leaves_of(self._session.states.sent).values(), self._session.job.clients[0]
            self._sent_bytes = {
                peer: wire_bytes(b"".join(raw(leaf[peer].cpu()) for leaf in leaves))
                for peer in self._sent
                if peer != coordinator
            }
        return self._sent_bytes


def _faults(updates: Any) -> list[Rejection | None]:
    """Return why each of a round's updates, (K, ...), is invalid; None if its numbers are finite."""
    leaves = leaves_of(updates)
    # Infinity and NaN show in a row's sum. Huge finite numbers may make it infinite, too: then each number is checked.
    sums_LK = torch.stack([leaf.unsqueeze(-1).flatten(1).sum(-1).cpu().double() for leaf in leaves.values()])
    found: list[Rejection | None] = []
    for row, good in enumerate(sums_LK.isfinite().all(0).tolist()):
        update = {} if good else {name: leaf[row] for name, leaf in leaves.items()}
        found.append(fault(update, update))
    return found
