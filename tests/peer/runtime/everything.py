"""An algorithm whose updates and servers have every value that can be invalid, for a peer that must reject it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.mocha.linear import number_of
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel
from fedpeer.rejection import Rejection

#: Bound that no value of a valid server exceeds.
FAR = 1e6


@dataclass(frozen=True)
class Sent:
    """A model (..., n), n_k (...), a precision (...), and the client's number (...)."""

    model_n: Tensor
    examples: Tensor
    precision: Tensor
    number: Tensor


@dataclass(frozen=True)
class Everything(FedAvg):
    """FedAvg whose updates also have a precision and the client's number."""

    positive = ("precision",)
    numbered = "number"

    def train(self, client: Local, broadcast: ServerModel, batches: Batches, keys: Sequence[int]) -> tuple[Local, Any]:
        kept, sent = super().train(client, broadcast, batches, keys)
        precision = torch.ones_like(sent.examples, dtype=torch.float32)
        return kept, Sent(sent.model_n, sent.examples, precision, number_of(batches))

    def server_fault(self, server: ServerModel) -> Rejection | None:
        far = float(server.model_n.abs().max()) > FAR
        return Rejection("bad_task_matrix", "the tasks cannot be related so") if far else None
