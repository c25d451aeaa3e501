"""FlexLoRA: the server averages the products that adapters add to their layers, not the adapters' factors.

The mean of products B A is not the product of the means. The server forms the mean of the products, whose rank may be
the sum of the clients' ranks, and cuts it to the adapters' rank by its singular values, which is the best
approximation of that rank. All other parameters are averaged as by FedAvg.

Source: Bai, Chen, Qian, Yao, Li, Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
Resources, NeurIPS 2024, section 3. The products are never formed whole: their factors are stacked, as in Wang et al.,
FLoRA, NeurIPS 2024, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel
from fedpeer.slicing.network import TensorSpec

#: Singular values up to this fraction of the largest one are rounding errors of factors in float32.
_NO_VALUE = 1e-7


@dataclass(frozen=True)
class Factors:
    """Places of an adapter's two factors: an (outputs, rank) matrix `left` times a (rank, inputs) matrix `right`.

    turned   whether the tensors hold the transposes, as an embedding's tensors do
    """

    left: TensorSpec
    right: TensorSpec
    turned: bool

    def of(self, values_Kn: Tensor) -> tuple[Tensor, Tensor]:
        """Return both matrices of each client: (K, outputs, rank) and (K, rank, inputs)."""
        left, right = (
            values_Kn[:, each.span].reshape(len(values_Kn), each.shape[0], -1).double()
            for each in (self.left, self.right)
        )
        return left, right.mT if self.turned else right


@dataclass(frozen=True)
class FlexLora(FedAvg):
    """FedAvg whose adapters are averaged as products, and cut to their rank again."""

    takes_mean = False

    def __post_init__(self) -> None:
        if not self.adapters:
            raise AlgorithmError("flexlora needs a network with adapters; write learning.lora, or choose fedavg")

    @cached_property
    def adapters(self) -> tuple[Factors, ...]:
        """The network's adapters."""
        tensors = {tensor.name: tensor for tensor in self.context.layout.tensors}
        found = []
        for name, first in tensors.items():
            second = tensors.get(f".{name}".replace(".lora_A.", ".lora_B.")[1:])
            if second is None or second is first:
                continue
            # An embedding's first factor has a row for each token; their number may be the rank.
            embedded = isinstance(self.context.module.get_submodule(name.rpartition(".")[0]), nn.Embedding)
            found.append(Factors(first, second, True) if embedded else Factors(second, first, False))
        return tuple(found)

    def close(self, server: ServerModel, updates: Local) -> ServerModel:
        """Return the mean of the clients' models; each adapter best approximates the mean product."""
        model_n = super().close(server, updates).model_n.clone()
        shares_K = updates.examples.double() / updates.examples.double().sum()
        for each in self.adapters:
            left_KOr, right_KrF = each.of(updates.model_n)
            left, right = best_factors(shares_K, left_KOr, right_KrF)
            model_n[each.left.span] = left.flatten().to(model_n.dtype)
            model_n[each.right.span] = (right.mT if each.turned else right).flatten().to(model_n.dtype)
        return ServerModel(model_n)


def best_factors(shares_K: Tensor, left_KOr: Tensor, right_KrF: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors (O, r) and (r, F) of the best approximation of rank r of sum_k share_k left_k right_k.

    Both factors have the same singular values, the square roots of those of the product. Where a singular value is 0,
    since few examples have been seen, the right factor has 1, so that these dimensions can still learn: with both
    factors 0 neither would ever have a gradient.
    """
    rank = left_KOr.shape[-1]
    stacked_left = (shares_K[:, None, None] * left_KOr).movedim(0, 1).flatten(1)
    stacked_right = right_KrF.flatten(0, 1)
    left_basis, left_rest = torch.linalg.qr(stacked_left)
    right_basis, right_rest = torch.linalg.qr(stacked_right.mT)
    u, values, vt = torch.linalg.svd(left_rest @ right_rest.mT, full_matrices=False)
    values_r = values[:rank]
    right_r = torch.where(values_r > _NO_VALUE * values_r[0], values_r.sqrt(), 1.0)
    return left_basis @ (u[:, :rank] * (values_r / right_r)), (right_r[:, None] * vt[:rank]) @ right_basis.mT
