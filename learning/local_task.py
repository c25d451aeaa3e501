"""One peer's local task: its examples and their order, its network, and the evaluation of a model.

Examples, random numbers, steppers and views of the inputs are the same as in the vector engine, so a peer on its own
machine and the same peer in a simulation learn the same. The algorithm defines the training (`peer/node/trainer.py`).

No state is kept between calls: they may come from any thread, one at a time, and may be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpeer.algorithms.batches import Batches, BatchView, Examples, round_order
from fedpeer.algorithms.draws import guarded
from fedpeer.algorithms.evaluation import evaluate
from fedpeer.algorithms.precision import unrounded
from fedpeer.algorithms.steppers import Stepper, build_stepper, choose
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.config.settings import LearningSettings
from fedpeer.learning.assembly import Assembly, DataShape
from fedpeer.learning.class_weights import class_weight_of
from fedpeer.networks.registry import NetworkError
from fedpeer.slicing.flat import digest_of, trainable_copy


class _Scale(Protocol):
    """A scaling, `(x - shift) / scale`, broadcast against an example."""

    @property
    def shift_F(self) -> NDArray[np.float32]: ...
    @property
    def scale_F(self) -> NDArray[np.float32]: ...


class LocalData(Protocol):
    """The examples of one peer; `fedpeer.data.held.PeerExamples` implements it and documents the fields."""

    @property
    def train_M(self) -> NDArray[np.int64]: ...
    @property
    def test_M(self) -> NDArray[np.int64]: ...
    @property
    def train_y(self) -> NDArray[np.generic]: ...
    @property
    def test_y(self) -> NDArray[np.generic]: ...
    @property
    def valid_M(self) -> NDArray[np.int64]: ...
    @property
    def valid_y(self) -> NDArray[np.generic]: ...
    @property
    def feature_map_F(self) -> NDArray[np.int64] | None: ...
    @property
    def inputs(self) -> _Scale | None: ...
    @property
    def score_scale(self) -> float: ...


def budget(learning: LearningSettings, examples: int) -> tuple[int, int]:
    """Return the batch size and the number of local steps per round of a peer with this many examples."""
    batch = min(learning.batch_size, examples)
    steps = learning.steps_between_averaging
    return batch, learning.passes * math.ceil(examples / batch) if steps == "pass" else steps


def check_step(module: nn.Module, inputs: Tensor) -> None:
    """Try one forward pass in training mode with a full batch: some layers reject a batch of one.

    Raises:
        NetworkError: the forward pass failed.
    """
    module = trainable_copy(module).train()
    with guarded(0), torch.no_grad(), unrounded(inputs.device.type):
        try:
            module(inputs)
        except (RuntimeError, ValueError, IndexError) as problem:
            raise NetworkError(
                f"the network cannot be trained with learning.batch_size = {len(inputs)}: {problem}; "
                "choose another batch size or another network"
            ) from None


def batch_view(held: LocalData, shape: DataShape) -> BatchView | None:
    """Return how a peer transforms the inputs; None if it uses them as they are."""
    if held.feature_map_F is None and held.inputs is None:
        return None
    feature_map = None if held.feature_map_F is None else torch.from_numpy(held.feature_map_F)
    scale = () if held.inputs is None else flat_scale(held.inputs, shape)
    return BatchView(feature_map, *map(torch.from_numpy, scale))


def flat_scale(scale: _Scale, shape: DataShape) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return shift and scale for the flattened example, (F,) each."""
    shift_F, scale_F = (np.array(np.broadcast_to(each, shape.input_shape)) for each in (scale.shift_F, scale.scale_F))
    return shift_F.reshape(-1), scale_F.reshape(-1)


@dataclass(frozen=True, eq=False)
class LocalTask:
    """One peer's data, network and stepper.

    device    where it trains and evaluates; arguments and results are on the CPU, float32
    valid_part   examples held out for validation; none: its length is 0
    view      transformation of the inputs, without a leading dimension
    class_weight   (C,) weight of each class in its loss; None: all examples count the same
    batch     examples in a local step
    steps     local steps in a round
    """

    assembly: Assembly
    peer: str
    device: str
    train_part: Examples
    test_part: Examples
    valid_part: Examples
    view: BatchView | None
    score_scale: float
    stepper: Stepper = field(repr=False)
    batch: int
    steps: int
    class_weight: Tensor | None = None

    @classmethod
    def of(
        cls,
        assembly: Assembly,
        held: LocalData,
        x_NF: Tensor,
        peer: str,
        device: str = "cpu",
        *,
        classes: Sequence[str] = (),
    ) -> LocalTask:
        """Build the local task of a peer that holds some rows of x_NF, (N, *F) in the type `shape.dtype`.

        Args:
            classes: names of the classes, in the order of their numbers.

        Raises:
            NetworkError, OptimizerError, ChoiceError: the network cannot be trained with these settings; the message
                says what to change.
        """
        x_NF = x_NF.to(device)

        def part(index_M: NDArray[np.int64], y_M: NDArray[np.generic]) -> Examples:
            return Examples(x_NF, torch.from_numpy(index_M).to(device), torch.from_numpy(y_M).to(device))

        train_part, test_part = part(held.train_M, held.train_y), part(held.test_M, held.test_y)
        view = batch_view(held, assembly.shape)
        learning = assembly.federation.learning
        batch, steps = budget(learning, len(train_part))
        weight = class_weight_of(learning, assembly.criterion, classes, held.train_y)
        weight = None if weight is None else weight.to(device)
        valid_part = part(held.valid_M, held.valid_y).weighted(weight)
        module = trainable_copy(assembly.module, device)
        check_step(module, train_part.between(0, batch).inputs())
        loss, optimizer = assembly.criterion, assembly.optimizer
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
            valid_part=valid_part,
            view=view and BatchView(*(each if each is None else each.to(device) for each in view.fields())),
            score_scale=held.score_scale,
            stepper=build_stepper(way, module, assembly.layout, loss, optimizer),
            batch=batch,
            steps=steps,
            class_weight=weight,
        )

    @property
    def examples(self) -> int:
        """Number of training examples."""
        return len(self.train_part)

    @property
    def valid_digest(self) -> str:
        """Digest of the examples held out for validation as the peer scores them: with scale and weights; "": none.

        Scores on other examples, or by another scale, cannot be compared, nor can a model be used with another scale.
        """
        part, view = self.valid_part, self.view or BatchView()
        fields = {
            "x": part.inputs(),
            "y": part.y_M,
            "weight": part.weight_M,
            "shift": view.shift_F,
            "scale": view.scale_F,
        }
        return digest_of({name: each for name, each in fields.items() if each is not None}) if len(part) else ""

    def start(self) -> Tensor:
        """Return the initial parameters, (n,)."""
        return self.assembly.start(self.peer)

    def context(self, clients: int = 1) -> TrainingContext:
        """Return the context on which the algorithm is built; `clients`: the number of peers of the algorithm."""
        assembly, learning = self.assembly, self.assembly.federation.learning

        def drawn(name: str) -> Tensor:
            return assembly.drawn(name).to(self.device)

        return TrainingContext(
            module=assembly.module,
            layout=assembly.layout,
            loss=assembly.criterion,
            optimizer=assembly.optimizer,
            stepper=self.stepper,
            clients=clients,
            examples_max=self.examples,
            draw=drawn,
            optimizer_state=learning.optimizer_state,
        )

    def batches(self, round: int, number: int | None = None) -> Batches:
        """Return the batches of a round (1, 2, ...); `number`: the peer's index among clients, if it is one."""
        draws, part = self.assembly.draws, self.train_part
        places = torch.from_numpy(round_order(self.examples, round, self.steps, self.batch, draws, self.peer))
        places = places.to(self.device)
        client = None if number is None else torch.tensor(number, device=self.device)
        index, y = part.index_M[places], part.y_M[places]
        return Batches(part.x_NF, index, y, self.view, (part,), client, round, self.class_weight)

    def key(self, round: int) -> int:
        """Return the key of the random streams of that round's training."""
        return self.assembly.draws.key("dropout", self.peer, round)

    def evaluate(self, x_n: Tensor, *, validation: bool = False) -> tuple[float, float]:
        """Return score and mean loss on the test part, or on the examples held out for validation.

        The score is accuracy (0 to 1), or error in the data's units.
        """
        x_n, part = x_n.to(self.device), self.valid_part if validation else self.test_part
        return evaluate(self.stepper, self.assembly.criterion, x_n, part, self.view, self.score_scale)
