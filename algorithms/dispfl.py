"""DisPFL: each peer trains its own sparse model by gossip, and only the peers that keep a weight average it.

A peer keeps a mask m (0 or 1 for each weight) and a model x that is 0 outside it. A round, with mixing matrix W, local
rate lr, gradients g, and alpha(t) = alpha/2 (1 + cos(pi t / T)) in round t = 0, 1, ... of T:

    x <- m * W(m' x) / W m'          only peers that had a weight count in its average; 0 where none had it
    x <- x - lr m * g(x)             the local steps
    m' = m,   m <- pruned and grown  in each tensor the fraction alpha(t) of the kept weights with the smallest
                                     magnitude is dropped, and as many others with the largest gradient are added

The two averages are two averaged vectors, m' x and m', so the ratio is exact for each weight, whatever the matrix. The
price is that twice the numbers of a whole model travel: in these encodings a zero takes as many bytes as any other
number.

A peer sends its model under m', the mask of its training, as the authors' program does: a weight that has just been
grown is not learned yet, and its 0 would count in the averages. Masks are drawn in a peer's first round, differently
for each peer, with the densities of Erdos-Renyi-Kernel (Evci, Gale, Menick, Castro, Elsen, Rigging the Lottery, ICML
2020, section 3): a tensor's density is in proportion to the sum of its dimensions over their product, and 1 at most.
Tensors of one dimension, such as biases, stay whole and are not counted.

Source: Dai, Shen, He, Tian, Tao, DisPFL: Towards Communication-Efficient Personalized Federated Learning via
Decentralized Sparse Training, ICML 2022, Algorithms 1 and 2. All peers keep the same share of their weights here.
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
from fedpeer.algorithms.draws import Draws, branch
from fedpeer.algorithms.gradients import Gradient, gradient_of
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.slicing.network import TensorSpec

#: A mean of masks up to this is rounding, and no peer has the weight. The bound is a hundred times the rounding of
#: float32, and a tenth of the share of one peer among ten thousand.
_NOBODY = 1e-5


@dataclass(frozen=True, eq=False)
class SparseModel:
    """The two vectors that are averaged.

    kept_n   (..., n) the model, 0 outside the mask
    mask_n   (..., n) the mask with which it was trained, as numbers
    """

    kept_n: Tensor
    mask_n: Tensor

    @property
    def mean_n(self) -> Tensor:
        """The mean of each weight among the peers that had it, (..., n); 0 where no peer had it."""
        return torch.where(self.mask_n > _NOBODY, self.kept_n / self.mask_n.clamp(min=_NOBODY), 0)


@dataclass(frozen=True, eq=False)
class PersonalMask:
    """State of a peer between rounds.

    mask_n   (..., n) bool, the weights that the peer keeps in the next round
    drawn    (...) bool, whether its mask is drawn; before that it keeps all weights
    """

    mask_n: Tensor
    drawn: Tensor


@dataclass(frozen=True)
class DisPfl(Algorithm[PersonalMask, SparseModel, SparseModel]):
    """Each peer trains a sparse model under a mask of its own, and averages each weight with those that keep it, too.

    Args:
        density: share of the weights that a peer keeps, above 0 and up to 1; default 0.5.
        prune: alpha, share of the kept weights that is replaced after the first round, 0 to below 1; default 0.5. It
            falls to 0 over the rounds of the run; with 0 the masks stay as they are drawn.
    """

    context: TrainingContext
    _: KW_ONLY
    density: float = 0.5
    prune: float = 0.5
    sharing: ClassVar[Sharing] = "everything"

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise AlgorithmError(f"density = {self.density:g}: write a number above 0 and up to 1, such as 0.5")
        if not 0 <= self.prune < 1:
            raise AlgorithmError(f"prune = {self.prune:g}: write 0 up to less than 1, such as 0.5")
        assert self.context.lr >= 0, "it takes plain gradient steps"
        assert callable(self._gradient), "built now, so that what it refuses is refused now"

    @classmethod
    def method(cls, **settings: Any) -> Method:
        return Method(cls.sharing, vectors=2, derived=True, ratio=True)

    @cached_property
    def _gradient(self) -> Gradient:
        return gradient_of(self.context.module, self.context.layout, self.context.loss)

    @cached_property
    def _sparse(self) -> tuple[TensorSpec, ...]:
        """The tensors that have masks."""
        return tuple(each for each in self.context.layout.tensors if len(each.shape) > 1)

    @cached_property
    def _counts(self) -> tuple[int, ...]:
        """The number of weights that a peer keeps of each tensor with a mask, at least one."""
        found = kernel_densities([each.shape for each in self._sparse], self.density)
        return tuple(max(1, round(part * each.size)) for part, each in zip(found, self._sparse, strict=True))

    def start_client(self, values_n: Tensor, examples: Tensor) -> PersonalMask:
        whole_n = torch.ones_like(values_n, dtype=torch.bool)
        return PersonalMask(whole_n, torch.zeros(values_n.shape[:-1], dtype=torch.bool, device=values_n.device))

    def start_averaged(self, values_n: Tensor) -> SparseModel:
        return SparseModel(values_n, torch.ones_like(values_n))

    def train(
        self, client: PersonalMask, received: SparseModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[PersonalMask, SparseModel]:
        mask_n = client.mask_n
        if not bool(client.drawn.all()):
            drawn_n = self._drawn([branch(key, batches.steps) for key in keys]).view_as(mask_n).to(mask_n.device)
            mask_n = torch.where(client.drawn.unsqueeze(-1), mask_n, drawn_n)
        model_n = received.mean_n * mask_n
        for step in range(batches.steps):
            model_n = model_n - mask_n * (self.context.lr * self._slope(model_n, batches, step, keys))
        next_n, rate = mask_n, self.prune / 2 * (1 + math.cos(math.pi * (batches.round - 1) / self.context.rounds))
        if rate > 0:
            next_n = self._exchanged(mask_n, model_n, self._slope(model_n, batches, batches.steps - 1, keys), rate)
        return PersonalMask(next_n, client.drawn | True), SparseModel(model_n, mask_n.to(model_n.dtype))

    def derived_model(self, client: PersonalMask, averaged: SparseModel) -> Tensor:
        """Return the averaged model (..., n) under the peer's own mask."""
        return averaged.mean_n * client.mask_n

    def statistics(self, client: PersonalMask, shared: SparseModel) -> dict[str, Tensor]:
        """Return the share of the weights that each peer keeps, (...)."""
        return {"kept weights": client.mask_n.to(torch.float32).mean(-1)}

    def _slope(self, model_n: Tensor, batches: Batches, step: int, keys: Sequence[int]) -> Tensor:
        """Return the gradient (..., n) of one step's batch."""
        of_step = [branch(key, step) for key in keys]
        return self._gradient(model_n, batches.inputs(step), batches.targets(step), of_step, batches.weights(step))

    def _drawn(self, keys: Sequence[int]) -> Tensor:
        """Return a random mask for each key, (len(keys), n) bool."""
        mask_Bn = torch.ones(len(keys), self.context.layout.n, dtype=torch.bool)
        for mask_n, key in zip(mask_Bn, keys, strict=True):
            generator = Draws(key).torch("mask")
            for each, count in zip(self._sparse, self._counts, strict=True):
                mask_n[each.offset + torch.randperm(each.size, generator=generator)[count:]] = False
        return mask_Bn

    def _exchanged(self, mask_n: Tensor, model_n: Tensor, slope_n: Tensor, rate: float) -> Tensor:
        """Return the masks (..., n) after pruning and growing this part of each tensor's kept weights, rounded up."""
        next_n = mask_n.clone()
        for each, held in zip(self._sparse, self._counts, strict=True):
            mask, size, slope = (values_n[..., each.span] for values_n in (mask_n, model_n.abs(), slope_n.abs()))
            count = math.ceil(rate * held)
            kept = mask & (_rank(size.masked_fill(~mask, math.inf)) >= count)
            next_n[..., each.span] = kept | (_rank((-slope).masked_fill(kept, math.inf)) < count)
        return next_n


def kernel_densities(shapes: Sequence[tuple[int, ...]], density: float) -> list[float]:
    """Return the densities of tensors, 0 to 1 each, with which all tensors together keep this share of their weights.

    A density is in proportion to sum(shape) / prod(shape), and 1 at most (Erdos-Renyi-Kernel).
    """
    sizes, sums = [math.prod(shape) for shape in shapes], [sum(shape) for shape in shapes]
    whole: set[int] = set()
    while len(whole) < len(shapes):
        rest = [number for number in range(len(shapes)) if number not in whole]
        scale = (density * sum(sizes) - sum(sizes[each] for each in whole)) / sum(sums[each] for each in rest)
        over = {each for each in rest if scale * sums[each] > sizes[each]}
        if not over:
            return [1.0 if each in whole else scale * sums[each] / sizes[each] for each in range(len(shapes))]
        whole |= over
    return [1.0] * len(shapes)


def _rank(values: Tensor) -> Tensor:
    """Return the place of each number (..., N) in ascending order; equal numbers keep their order."""
    order = values.argsort(dim=-1, stable=True)
    places = torch.arange(values.shape[-1], device=values.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)
