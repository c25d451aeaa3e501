"""The ways to take a round's steps with autograd, against one uninterrupted torch optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpeer.algorithms import mapped
from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.loop import AT_ONCE, Loop
from fedpeer.algorithms.losses import LOSSES, Loss
from fedpeer.algorithms.mapped import Mapped
from fedpeer.algorithms.optimizers import ELEMENTWISE, OptimizerChoice, names
from fedpeer.algorithms.steppers import Stepper, Way, build_stepper
from fedpeer.networks.registry import cnn, lstm, transformer
from fedpeer.slicing.flat import FlatLayout
from tests.algorithms.client_factory import CLOSE, batches, distance, in_torch, mlp, starts

LOSS = LOSSES["cross-entropy"]
SGD = OptimizerChoice("SGD", {"lr": 0.1})
MOMENTUM = OptimizerChoice("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})
#: Settings for torch's optimizers that train a network with biases (Muon takes matrices only): they give an optimizer
#: all the state that it can have, and a rate at which float32 rounding does not grow within ten steps.
SETTINGS: dict[str, Mapping[str, Any]] = {
    "SGD": MOMENTUM.settings,
    "Adam": {"amsgrad": True, "weight_decay": 0.01},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adadelta": {"lr": 0.1},
    "ASGD": {"t0": 3.0},
    "RAdam": {"lr": 0.01},
}
OPTIMIZERS = [OptimizerChoice(kind, SETTINGS.get(kind, {})) for kind in names().values() if kind != "Muon"]


def two_rounds(loss: str = "cross-entropy", **settings: Any) -> list[Batches]:
    return [batches(loss, seed=seed, **settings) for seed in (2, 3)]


def played(stepper: Stepper, x_Bn: Tensor, rounds: list[Batches], key: int = 0) -> tuple[Tensor, Tensor]:
    """Return parameters and optimizer state after these rounds; the state is kept between rounds."""
    x_Bn, s_Bk = x_Bn.clone(), x_Bn.new_zeros(len(x_Bn), stepper.state_size)
    for number, block in enumerate(rounds):
        stepper.train(x_Bn, s_Bk, number == 0, block, [key_of(key, number, p) for p in range(len(x_Bn))])
    return x_Bn, s_Bk


def key_of(*names: int) -> int:
    return Draws(0).key(str(names))


def of_kind(choice: OptimizerChoice) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    kind: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, choice.kind)
    return lambda parameters: kind(parameters, **choice.settings)


def loop_of(module: nn.Module, optimizer: OptimizerChoice = SGD, loss: Loss = LOSS) -> Loop:
    return Loop(module, FlatLayout.of(module), loss, optimizer)


def mapped_of(module: nn.Module, optimizer: OptimizerChoice = SGD, loss: Loss = LOSS) -> Mapped:
    return Mapped(module, FlatLayout.of(module), loss, optimizer)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda choice: choice.kind)
def test_the_loop_is_one_uninterrupted_run_of_torchs_optimizer(optimizer: OptimizerChoice) -> None:
    module, rounds = mlp(), two_rounds()
    x_Bn = starts(module, 3)
    found, _ = played(loop_of(module, optimizer), x_Bn, rounds)
    for p, x_n in enumerate(x_Bn):
        wanted = in_torch(module, x_n, [each.peer(p) for each in rounds], LOSS, of_kind(optimizer))
        assert distance(found[p], wanted) < CLOSE
        assert distance(wanted, x_n) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [o for o in OPTIMIZERS if o.kind in ELEMENTWISE], ids=lambda choice: choice.kind)
def test_a_mapped_block_is_the_loop(optimizer: OptimizerChoice) -> None:
    module = nn.Sequential(mlp(), nn.LayerNorm(3), nn.Linear(3, 3))
    x_Bn, stepper = starts(module, 3), mapped_of(module, optimizer)
    looped, found = (played(each, x_Bn, two_rounds()) for each in (loop_of(module, optimizer), stepper))
    # Adam and similar optimizers divide by the root of a squared gradient, which magnifies rounding near zero.
    assert all(distance(a, b) < 50 * CLOSE for a, b in zip(found[0], looped[0], strict=True))
    again = played(stepper, x_Bn[1:], [shifted(block) for block in two_rounds()])
    assert all(distance(a, b) < 50 * CLOSE for a, b in zip(again[0], looped[0][1:], strict=True))


class Counting(nn.Module):
    """A layer that records its input's shape each time that it is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.worked_out = nn.Linear(5, 3), list[tuple[int, ...]]()

    def forward(self, x: Tensor) -> Tensor:
        self.worked_out.append(tuple(x.shape))
        found: Tensor = self.layer(x)
        return found


@pytest.mark.slow
def test_a_shape_that_comes_again_and_again_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result equals, bit by bit, that of a block that is computed anew at each step."""
    monkeypatch.setattr(mapped, "STEPS_BEFORE_TRACE", 2)
    stepper, rounds = mapped_of(Counting()), two_rounds(steps=2)
    own = next(each for each in vars(stepper).values() if isinstance(each, Counting))
    own.worked_out.clear()
    x_Bn = starts(Counting(), 3)
    found = x_Bn.clone()
    computed = []
    for block in 2 * rounds:
        stepper.train(found, x_Bn.new_zeros(3, 0), True, block, [0] * 3)
        computed.append(len(own.worked_out))
    assert computed == [2, 3, 3, 3], "twice as it is, and once to trace it"
    monkeypatch.undo()
    anew = x_Bn.clone()
    for block in 2 * rounds:
        mapped_of(Counting()).train(anew, x_Bn.new_zeros(3, 0), True, block, [0] * 3)
    assert torch.equal(found, anew)
    stepper.train(found[:2], x_Bn.new_zeros(2, 0), True, shifted(rounds[0]), [0] * 2)
    assert len(own.worked_out) > computed[-1], "a smaller block is another list"


#: Numbers for two peers' examples of any shape.
DRAWN = torch.randn(60, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (nn.Sequential(mlp(), nn.LayerNorm(3)), DRAWN.view(2, 6, 5)),
        (cnn((1, 5, 6), 3, channels=(4,), hidden=(5,), kernel=3), DRAWN.view(2, 1, 1, 5, 6)),
        (transformer((6,), 3), DRAWN.view(2, 5, 6).gt(0).long()),
    ],
    ids=["norm", "convolutions", "attention"],
)
def test_traced_operations_have_the_same_bits(module: nn.Module, inputs: Tensor) -> None:
    """So the result does not depend on the step at which a shape is traced."""
    stepper = mapped_of(module)
    given = starts(module, 2), inputs, inputs.flatten(2)[:, :, 0].gt(0).long()
    as_it_is = stepper._gradient_of(*given)
    stepper._steps.update(dict.fromkeys(stepper._steps, mapped.STEPS_BEFORE_TRACE))
    traced = stepper._gradient_of(*given)
    assert traced is not as_it_is
    assert torch.equal(traced(*given), as_it_is(*given))


def shifted(block: Batches) -> Batches:
    """Return the block without its first peer."""
    return Batches(block.x_NF, block.index[1:], block.y[1:])


@pytest.mark.parametrize("peers", [1, 3])
@pytest.mark.parametrize("loss", ["cross-entropy", "binary"])
def test_closed_gradients_with_momentum_are_the_loop(loss: str, peers: int) -> None:
    """Velocities agree as well, over two rounds; a fresh optimizer ignores the numbers in its row."""
    module, optimizer = mlp(bias=peers > 1), OptimizerChoice("SGD", {"lr": 0.1, "momentum": 0.9})
    x_Bn, rounds = starts(module, peers), two_rounds(loss, peers=peers)
    steppers: list[Stepper] = [
        build_stepper(way, module, FlatLayout.of(module), LOSSES[loss], optimizer) for way in ("stack", "loop")
    ]
    (found, velocity), (wanted, momentum) = (played(each, x_Bn, rounds) for each in steppers)
    assert velocity.shape == momentum.shape == x_Bn.shape
    for p in range(peers):
        assert distance(found[p], wanted[p]) < CLOSE
        assert distance(velocity[p], momentum[p]) < CLOSE
    forgetful = x_Bn.clone()
    steppers[0].train(forgetful, torch.full_like(x_Bn, 9.0), True, rounds[0], [0] * peers)
    assert torch.equal(forgetful, played(steppers[0], x_Bn, rounds[:1])[0])


@pytest.mark.parametrize("make", [loop_of, mapped_of])
def test_evaluation_is_the_module_itself(make: Callable[[nn.Module], Stepper]) -> None:
    module = mlp()
    x_Bn, inputs = starts(module, 2), torch.randn(2, 8, 5)
    answers = make(module).logits(x_Bn, inputs)
    for x_n, seen, found in zip(x_Bn, inputs, answers, strict=True):
        nn.utils.vector_to_parameters(x_n, module.parameters())
        torch.testing.assert_close(found, module(seen))


def test_the_loop_answers_many_examples_in_pieces() -> None:
    module, sizes = mlp(), list[int]()
    module.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    inputs = torch.randn(1, AT_ONCE + 3, 5)
    found = loop_of(module).logits(FlatLayout.of(module).flatten(module)[None], inputs)
    assert sizes == [AT_ONCE, 3]
    torch.testing.assert_close(found[0], module(inputs[0]))


def test_running_statistics_and_counters_are_each_peers_own() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 3))
    x_Bn, rounds = starts(module, 3), two_rounds()
    stepper = loop_of(module)
    found, s_Bk = played(stepper, x_Bn, rounds)
    assert s_Bk.tolist() == [[8.0]] * 3, "batches seen by each peer's normalisation, two rounds of four"
    for p, x_n in enumerate(x_Bn):
        wanted = in_torch(fresh(module), x_n, [each.peer(p) for each in rounds], LOSS, of_kind(SGD))
        assert distance(found[p], wanted) < CLOSE
    views = FlatLayout.of(module).unflatten(found)
    assert float((views["1.running_mean"][0] - views["1.running_mean"][1]).abs().max()) > 1e-2
    inputs = torch.randn(3, 6, 5)
    answers = stepper.logits(found, inputs)
    module.eval()
    for p in range(3):
        own = {name: view[p] for name, view in views.items()}
        torch.testing.assert_close(answers[p], functional_call(module, own, (inputs[p],)))


def fresh(module: nn.Module) -> nn.Module:
    for each in module.modules():
        if isinstance(each, nn.BatchNorm1d):
            each.reset_running_stats()
    return module


class Masked(nn.Module):
    """A module with an integer buffer that is no counter, one that is, an unused parameter, and a frozen one."""

    places: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.tensor([4, 2, 0]))
        self.register_buffer("calls", torch.tensor(7))
        self.dense = nn.Linear(3, 3)
        self.unused = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        scaled: Tensor = self.dense(x[:, self.places]) * self.frozen / self.calls
        return scaled


@pytest.mark.parametrize("optimizer", [MOMENTUM, OptimizerChoice("Adam", {"lr": 0.01})], ids=lambda choice: choice.kind)
def test_constant_buffers_unused_and_frozen_parameters_are_left_alone(optimizer: OptimizerChoice) -> None:
    module, rounds = Masked(), two_rounds()
    x_Bn = starts(module, 2)
    found, s_Bk = played(loop_of(module, optimizer), x_Bn, [shifted(block) for block in rounds])
    assert s_Bk[:, -4:].tolist() == [[0.0, 0.0, 0.0, 8.0]] * 2
    layout = FlatLayout.of(module)
    assert "frozen" not in layout.unflatten(found)
    assert torch.equal(module.frozen, torch.ones(3))
    assert distance(layout.unflatten(found)["dense.weight"], layout.unflatten(x_Bn)["dense.weight"]) > 1e-3
    module.unused.requires_grad_(False)  # torch skips it, while the loop sees a gradient of zero
    for p, x_n in enumerate(x_Bn):
        wanted = in_torch(Masked(), x_n, [each.peer(p + 1) for each in rounds], LOSS, of_kind(optimizer))
        kept = layout.unflatten(found[p])["dense.weight"]
        assert distance(kept, layout.unflatten(wanted)["dense.weight"]) < CLOSE


@pytest.mark.slow
def test_dropout_is_a_function_of_the_key_alone() -> None:
    module = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    x_Bn, rounds, stepper = starts(module, 3), two_rounds(), loop_of(module)
    first, _ = played(stepper, x_Bn, rounds)
    torch.rand(17)  # moves the global generator
    before = torch.get_rng_state()
    assert torch.equal(played(stepper, x_Bn, rounds)[0], first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(played(stepper, x_Bn, rounds, key=1)[0], first)
    for p in range(3):  # the same alone as in a block
        x_1n, s_1k = x_Bn[p : p + 1].clone(), torch.zeros(1, 0)
        for number, block in enumerate(rounds):
            stepper.train(x_1n, s_1k, number == 0, block.peer(p).block(), [key_of(0, number, p)])
        assert torch.equal(x_1n[0], first[p])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "shape", "ways"),
    [
        (cnn((1, 4, 4), 3, channels=(2,), hidden=(), kernel=3), (1, 4, 4), ("loop", "mapped")),
        (lstm((5, 2), 3, hidden=4), (5, 2), ("loop",)),
        (lstm((5, 2), 3, hidden=4, cell="gru"), (5, 2), ("loop",)),
    ],
)
def test_the_networks_that_come_with_fedpeer_train_like_torchs(
    network: nn.Module, shape: tuple[int, ...], ways: tuple[Way, ...]
) -> None:
    block, x_Bn = batches(peers=2, features=shape), starts(network, 2)
    for way in ways:
        found, _ = played(build_stepper(way, network, FlatLayout.of(network), LOSS, SGD), x_Bn, [block])
        for p, x_n in enumerate(x_Bn):
            assert distance(found[p], in_torch(network, x_n, [block.peer(p)], LOSS, of_kind(SGD))) < CLOSE
