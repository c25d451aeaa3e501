"""FedAvg whose clients train by a loop of the user's own: a base class.

The loop may be that of another library, such as a `Trainer` of PyTorch Lightning or the `fit` of a Flower client.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches, train_singly
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.draws import guarded
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel
from fedpeer.slicing.flat import module_copy


@dataclass(frozen=True)
class OwnTraining(FedAvg):
    """FedAvg whose clients train by a loop of your own: derive from it, and write `fit`.

    The settings of fedpeer's own loop (`learning.optimizer`, `batch_size`, `steps_between_averaging`, `passes`) are not
    used, and `learning.loss` is used for the scores only. Peers train one after the other in each process.

    Source of the rounds: McMahan et al. 2017, Algorithm 1, with `fit` instead of ClientUpdate.
    """

    own_loss = True

    @abstractmethod
    def fit(self, module: nn.Module, x: Tensor, y: Tensor, round: int) -> None:
        """Train a network in place.

        Its draws from torch's generator, such as the order of a `DataLoader`, follow from the federation's seed.

        Args:
            module: a copy of the network with the server's parameters.
            x: (M, *F) inputs of all training examples of a peer, as the network takes them.
            y: (M,) classes, or (M, outputs) numbers.
            round: 1, 2, ...
        """

    def train(
        self, client: Local, broadcast: ServerModel, batches: Batches, keys: Sequence[int]
    ) -> tuple[Local, Local]:
        return train_singly(partial(self._fitted, broadcast.model_n), client, batches, keys)

    def _fitted(self, model_n: Tensor, client: Local, batches: Batches, key: int) -> tuple[Local, Local]:
        layout, module = self.context.layout, module_copy(self.context.module)
        module.load_state_dict(layout.unflatten(model_n), strict=False)  # counters are each peer's own
        module.train()
        try:
            with guarded(key):
                self.fit(module, *batches.everything(), batches.round)
        except Exception as problem:  # whatever a user's loop raises
            text = f"{type(self).__name__}.fit failed: {type(problem).__name__}: {problem}"
            raise AlgorithmError(text) from problem
        local = Local(layout.flatten(module), client.examples)
        return local, local
