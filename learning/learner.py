"""What one peer learns from and with: its examples, their order, its network; and how good a model is on them.

The numbers are those of the vector engine: the same stream of examples, the same keys of randomness, the same steppers,
the same view of the inputs. So a peer that runs alone on its machine and its twin in a simulation learn the same. What
training is the algorithm says (`peer/node/trainer.py`).

Nothing is kept between two calls, so they may be made from any thread, one at a time, and repeated.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches, BatchView, Examples, round_order
from fedpeer.algorithms.draws import guarded
from fedpeer.algorithms.evaluation import evaluate
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.steppers import Stepper, build_stepper, choose
from fedpeer.algorithms.workbench import Workbench
from fedpeer.config.building import optimizer_of
from fedpeer.config.settings import LearningSettings
from fedpeer.learning.assembly import Assembly, DataShape
from fedpeer.networks.registry import NetworkError


class Scale(Protocol):
    """`(x - shift) / scale`, broadcast against an example."""

    @property
    def shift_F(self) -> NDArray[np.float32]: ...
    @property
    def scale_F(self) -> NDArray[np.float32]: ...


class LocalData(Protocol):
    """What one peer holds; `fedpeer.data.held.PeerExamples` is one and says what is what."""

    @property
    def train_M(self) -> NDArray[np.int64]: ...
    @property
    def test_M(self) -> NDArray[np.int64]: ...
    @property
    def train_y(self) -> NDArray[np.generic]: ...
    @property
    def test_y(self) -> NDArray[np.generic]: ...
    @property
    def feature_map_F(self) -> NDArray[np.int64] | None: ...
    @property
    def inputs(self) -> Scale | None: ...
    @property
    def score_scale(self) -> float: ...


def budget(learning: LearningSettings, examples: int) -> tuple[int, int]:
    """(examples in an update, updates in a round) of a peer with so many examples."""
    batch = min(learning.batch_size, examples)
    options = learning.steps_between_averaging
    return batch, learning.passes * math.ceil(examples / batch) if options == "pass" else options


def check_step(module: nn.Module, inputs: Tensor) -> None:
    """Try one forward pass as in training, with as many examples as a batch has: some layers refuse a batch of one.

    Raises:
        NetworkError: the network cannot.
    """
    module = copy.deepcopy(module).train()
    with guarded(0), torch.no_grad():
        try:
            module(inputs)
        except (RuntimeError, ValueError, IndexError) as problem:
            raise NetworkError(
                f"the network cannot be trained with learning.batch_size = {len(inputs)}: {problem}; "
                "choose another batch size or another network"
            ) from None


def batch_view(held: LocalData, shape: DataShape) -> BatchView | None:
    """How a peer sees the inputs, or None if as they are."""
    if held.feature_map_F is None and held.inputs is None:
        return None
    feature_map = None if held.feature_map_F is None else torch.from_numpy(held.feature_map_F)
    scale = () if held.inputs is None else flat_scale(held.inputs, shape)
    return BatchView(feature_map, *map(torch.from_numpy, scale))


def flat_scale(scale: Scale, shape: DataShape) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(F,) shift and scale over the flattened example."""
    shift_F, scale_F = (np.array(np.broadcast_to(each, shape.input_shape)) for each in (scale.shift_F, scale.scale_F))
    return shift_F.reshape(-1), scale_F.reshape(-1)


@dataclass(frozen=True, eq=False)
class Learner:
    """One peer that can learn.

    device    where it trains and evaluates; tensors that go in and come out are on the CPU, float32
    view      of the inputs, without a leading dimension
    """

    assembly: Assembly
    peer: str
    device: str
    train_part: Examples
    test_part: Examples
    view: BatchView | None
    score_scale: float
    stepper: Stepper = field(repr=False)
    batch: int
    steps: int

    @classmethod
    def of(cls, assembly: Assembly, held: LocalData, x_NF: Tensor, peer: str, device: str = "cpu") -> Learner:
        """The learner of a peer that holds some rows of x_NF (N, *F), whose type is `shape.dtype`.

        Raises:
            NetworkError, OptimizerError: the network cannot be trained so; the message says what to change.
        """
        x_NF = x_NF.to(device)

        def part(index_M: NDArray[np.int64], y_M: NDArray[np.generic]) -> Examples:
            return Examples(x_NF, torch.from_numpy(index_M).to(device), torch.from_numpy(y_M).to(device))

        train_part, test_part = part(held.train_M, held.train_y), part(held.test_M, held.test_y)
        view = batch_view(held, assembly.shape)
        learning = assembly.federation.learning
        batch, steps = budget(learning, len(train_part))
        module = copy.deepcopy(assembly.module).to(device)
        check_step(module, train_part.between(0, batch).inputs())
        loss, optimizer = LOSSES[assembly.loss], optimizer_of(learning.optimizer)
        two = train_part.between(0, 2)
        way, _ = choose(
            module,
            assembly.layout,
            loss,
            optimizer,
            batch_size=batch,
            device=device,
            peers=1,
            example=(two.inputs(), two.y_M),
        )
        return cls(
            assembly=assembly,
            peer=peer,
            device=device,
            train_part=train_part,
            test_part=test_part,
            view=view and BatchView(*(each if each is None else each.to(device) for each in view.fields())),
            score_scale=held.score_scale,
            stepper=build_stepper(way, module, assembly.layout, loss, optimizer),
            batch=batch,
            steps=steps,
        )

    @property
    def examples(self) -> int:
        """How many it has to train on."""
        return len(self.train_part)

    def start(self) -> Tensor:
        """(n,) initial parameters."""
        return self.assembly.start(self.peer)

    def context(self, clients: int = 1) -> Workbench:
        """What its algorithm is built on, among so many peers."""
        assembly, learning = self.assembly, self.assembly.federation.learning

        def drawn(name: str) -> Tensor:
            return assembly.drawn(name).to(self.device)

        return Workbench(
            module=assembly.module,
            layout=assembly.layout,
            loss=LOSSES[assembly.loss],
            optimizer=optimizer_of(learning.optimizer),
            stepper=self.stepper,
            clients=clients,
            examples_max=self.examples,
            draw=drawn,
            optimizer_state=learning.optimizer_state,
        )

    def batches(self, round: int, number: int | None = None) -> Batches:
        """Those of round 1, 2, ...; `number` is the peer's own among clients, where it is one."""
        draws, part = self.assembly.draws, self.train_part
        places = torch.from_numpy(round_order(self.examples, round, self.steps, self.batch, draws, self.peer))
        places = places.to(self.device)
        client = None if number is None else torch.tensor(number, device=self.device)
        return Batches(part.x_NF, part.index_M[places], part.y_M[places], self.view, (part,), client)

    def key(self, round: int) -> int:
        """Names the streams of randomness of that round's training."""
        return self.assembly.draws.key("dropout", self.peer, round)

    def evaluate(self, x_n: Tensor) -> tuple[float, float]:
        """(score, loss) on its own test part: accuracy as a fraction, or error in units of the data; and mean loss."""
        x_n = x_n.to(self.device)
        return evaluate(self.stepper, LOSSES[self.assembly.loss], x_n, self.test_part, self.view, self.score_scale)
