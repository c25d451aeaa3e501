"""CHOCO-SGD: peers average public copies of their models, and send compressed differences to update the copies.

Each peer has a model x, and a public copy x_hat of it that its neighbors also store. W is the mixing matrix, y the
model after a round's local steps, and Q keeps the share of numbers largest in magnitude (top-k):

    x_hat+ = x_hat + Q(y - x_hat)          x+ = y + gamma (W x_hat+ - x_hat+)

The averaged vector is x_hat; W x_hat is the sum s of the neighbors' copies in the paper's memory-efficient form. So a
peer keeps only x and x_hat, and W may differ from round to round. The numbers that Q leaves out stay in y - x_hat for
later rounds. The mean of the models takes the mean local step, as the columns of W sum to one. x_hat begins at the
start x_0, which all peers know; in the papers it begins at 0 (`from_zero`), and then the first rounds send the start
itself.

Running statistics of normalization are sent whole, and averaged as they are (`running_statistics.py`): Q keeps that
many parameters fewer.

A channel that packs differences from its last transfer has only Q(y - x_hat) to send: with `gossip.wire:
top-k:SHARE,pace=1` 8 bytes for each number that changes. Other encodings send all of x_hat. (Under `gossip.wire:
top-k:SHARE,pace=GAMMA` even `full-averaging` is CHOCO-SGD: there the references of the channels are the public copies.)

Source: Koloskova, Stich, Jaggi, Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
Communication, ICML 2019, Algorithm 2, and its memory-efficient form in the appendix; Koloskova, Lin, Stich, Jaggi,
Decentralized Deep Learning with Arbitrary Communication Compression, ICLR 2020, for momentum in the local steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.contract import Algorithm, Method, Sharing
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.local_training import LocalTraining, TrainingState
from fedpeer.algorithms.running_statistics import with_statistics
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.algorithms.training_context import TrainingContext


@dataclass(frozen=True, eq=False)
class PublicCopy:
    """State of a peer between rounds.

    inner     state of the local optimizer
    model_n   (..., n) its model after the local steps, y
    copy_n    (..., n) the public copy that it sent, x_hat
    """

    inner: TrainingState
    model_n: Tensor
    copy_n: Tensor


@dataclass(frozen=True)
class ChocoSgd(Algorithm[PublicCopy, ServerModel, ServerModel]):
    """The whole network is averaged by public copies of the models, to which peers send compressed differences.

    Args:
        share: share of a difference's numbers that is sent, the largest in magnitude, above 0 and up to 1; default 0.1.
        gamma: consensus step size, above 0 and up to 1; none (default): as `share`.
        from_zero: whether public copies begin at 0, as in the papers; default false: at the initial weights.
    """

    context: TrainingContext
    _: KW_ONLY
    share: float = 0.1
    gamma: float | None = None
    from_zero: bool = False
    sharing: ClassVar[Sharing] = "everything"

    def __post_init__(self) -> None:
        for name, value in (("share", self.share), ("gamma", self._gamma)):
            if not 0 < value <= 1:
                raise AlgorithmError(f"{name} = {value:g}: write a number above 0 and up to 1, such as 0.1")

    @classmethod
    def method(cls, **settings: Any) -> Method:
        return Method(cls.sharing, derived=True)

    @cached_property
    def _local(self) -> LocalTraining:
        return LocalTraining(self.context)

    @property
    def _gamma(self) -> float:
        return self.share if self.gamma is None else self.gamma

    def start_client(self, values_n: Tensor, examples: Tensor) -> PublicCopy:
        return PublicCopy(self._local.start_client(values_n, examples), values_n, values_n)

    def train(
        self, client: PublicCopy, received: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[PublicCopy, ServerModel]:
        start = ServerModel(self.derived_model(client, received))
        inner, trained = self._local.train(client.inner, start, batches, keys)
        copy_n = client.copy_n
        if self.from_zero:
            copy_n = torch.where(client.inner.trained.unsqueeze(-1), copy_n, 0)
        copy_n = copy_n + self._kept(trained.model_n - copy_n)
        copy_n = with_statistics(copy_n, trained.model_n, self.context.layout)
        return PublicCopy(inner, trained.model_n, copy_n), ServerModel(copy_n)

    def derived_model(self, client: PublicCopy, averaged: ServerModel) -> Tensor:
        """Return the model (..., n) after the gossip step, x+."""
        model_n = client.model_n + self._gamma * (averaged.model_n - client.copy_n)
        return with_statistics(model_n, averaged.model_n, self.context.layout)

    def _kept(self, apart_n: Tensor) -> Tensor:
        """Return Q(y - x_hat), (..., n), without running statistics; with these it is the share of n numbers."""
        layout = self.context.layout
        statistics = layout.n - layout.n_parameters
        apart_n = with_statistics(apart_n, torch.zeros_like(apart_n), layout)
        return _largest(apart_n, max(1, math.ceil(self.share * layout.n) - statistics))


def _largest(values_n: Tensor, count: int) -> Tensor:
    """Return values (..., n) in which all numbers but the `count` largest in magnitude are zero."""
    places = values_n.abs().topk(count, dim=-1, sorted=False).indices
    return torch.zeros_like(values_n).scatter(-1, places, values_n.gather(-1, places))
