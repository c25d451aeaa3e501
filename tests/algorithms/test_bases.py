"""Bases under a linear head: the two ways to train them against each other and against plain torch loops."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpeer.algorithms.bases import ModuleBase, Slopes, StackBase, base_of, head_span
from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.loop import AT_ONCE
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.training_context import TrainingContext
from tests.algorithms.client_factory import CLOSE, batches, distance, mlp, starts

CE = LOSSES["cross-entropy"]
SETTINGS: list[dict[str, Any]] = [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}]


class Forward(nn.Module):
    """A network that names its head before its base, with dropout, normalisation and a layer that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = nn.Linear(4, 3)
        self.inside = nn.Linear(5, 4)
        self.norm = nn.BatchNorm1d(5)
        self.spare = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = functional.dropout(self.inside(self.norm(x)).relu(), 0.3, self.training)
        answer: Tensor = self.answer(z)
        return answer


class Scaling(nn.Module):
    """A network that scales the output of its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = 2 * self.dense(x)
        return scaled


def bench_of(module: nn.Module, kind: str = "SGD", **settings: Any) -> TrainingContext:
    return TrainingContext.of(module, CE, OptimizerChoice(kind, settings or {"lr": 0.1}))


def under(weight_CF: Tensor, bias_C: Tensor) -> Slopes:
    """Return the function for the gradient of cross-entropy at the features, under a fixed head."""

    def slopes(z_bF: Tensor, y_b: Tensor) -> Tensor:
        delta_bC = (z_bF @ weight_CF.T + bias_C).softmax(-1) - functional.one_hot(y_b, len(bias_C))
        return delta_bC @ weight_CF / len(z_bF)

    return slopes


def under_its_own(context: TrainingContext, x_n: Tensor, head: str) -> Slopes:
    views = context.layout.unflatten(x_n)
    return under(views[f"{head}.weight"], views[f"{head}.bias"])


def looped(module: nn.Module, x_n: Tensor, one: Batches, head: str, kind: str, settings: dict[str, Any]) -> Tensor:
    """Train in plain torch on the loss of the whole network, without the head's parameters in the optimizer."""
    context, module = bench_of(module), copy.deepcopy(module)
    module.load_state_dict({**module.state_dict(), **{k: v.clone() for k, v in context.layout.unflatten(x_n).items()}})
    module.train()
    stepped = [p for name, p in module.named_parameters() if not name.startswith(f"{head}.")]
    optimizer = getattr(torch.optim, kind)(stepped, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(7 >> 65)
        for step in range(one.steps):
            optimizer.zero_grad()
            functional.cross_entropy(module(one.inputs(step)), one.targets(step)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return context.layout.flatten(module)


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("settings", SETTINGS, ids=("plain", "momentum"))
def test_closed_gradients_and_autograd_give_what_torch_gives(
    settings: dict[str, Any], activation: type[nn.Module]
) -> None:
    module = mlp(activation=activation)
    context, x_n, one = bench_of(module, **settings), starts(module, 1)[0], batches(peers=1, steps=12).peer(0)
    closed, slopes = base_of(context, "4"), under_its_own(context, x_n, "4")
    assert isinstance(closed, StackBase)
    wanted_n = looped(module, x_n, one, "4", "SGD", settings)
    assert distance(wanted_n, x_n) > 1e-2
    for base in (closed, ModuleBase(module, context.layout, context.optimizer, "4")):
        before_n = x_n.clone()
        found_n = base.train(x_n, one, slopes, 7)
        assert distance(found_n, wanted_n) < CLOSE
        assert torch.equal(found_n[head_span(context, "4")], x_n[head_span(context, "4")])
        assert torch.equal(x_n, before_n)


@pytest.mark.parametrize(
    ("kind", "settings"), [("SGD", {"lr": 0.1, "nesterov": True, "momentum": 0.5}), ("Adam", {"lr": 0.01})]
)
def test_any_module_is_trained_by_any_optimizer_as_torch_does_it(kind: str, settings: dict[str, Any]) -> None:
    """Dropout draws from the key's stream, running statistics are learnt, and the head may be at any place."""
    module = Forward()
    module.spare.requires_grad_(False)
    context, x_n, one = bench_of(module, kind, **settings), starts(module, 1)[0], batches(peers=1, steps=6).peer(0)
    base, span = base_of(context, "answer"), head_span(context, "answer")
    assert (type(base), span) == (ModuleBase, slice(0, 15))
    found_n = base.train(x_n, one, under_its_own(context, x_n, "answer"), 7)
    assert distance(found_n, looped(module, x_n, one, "answer", kind, settings)) < CLOSE
    before, after = context.layout.unflatten(x_n), context.layout.unflatten(found_n)
    still = {name for name in before if torch.equal(before[name], after[name])}
    assert still == {"answer.weight", "answer.bias"}
    assert "spare.weight" not in before


@pytest.mark.parametrize("module", [mlp(activation=nn.ReLU), Forward()], ids=("stack", "module"))
def test_features_are_what_the_head_is_given_in_evaluation(module: nn.Module) -> None:
    head = "answer" if isinstance(module, Forward) else "4"
    context, x_n = bench_of(module), starts(module, 1)[0]
    inputs = torch.randn((AT_ONCE + 1, 5), generator=torch.Generator().manual_seed(1))
    z_MF = base_of(context, head).features(x_n, inputs)
    whole = copy.deepcopy(module)
    whole.load_state_dict({**whole.state_dict(), **context.layout.unflatten(x_n)})
    views = context.layout.unflatten(x_n)
    answers = z_MF @ views[f"{head}.weight"].T + views[f"{head}.bias"]
    torch.testing.assert_close(answers, whole.eval()(inputs))


def test_what_is_no_linear_head_is_refused() -> None:
    bias_free = mlp(bias=False)
    tied = mlp((4, 4, 4))
    tied[2].weight = tied[0].weight
    for module, head, words in (
        (bias_free, "4", '"4" is not a linear layer with weights and biases of its own'),
        (tied, "2", '"2" is not a linear layer'),
        (Forward(), "norm", '"norm" is not a linear layer'),
        (Forward(), "nobody", 'no module "nobody"'),
        (nn.Sequential(nn.Linear(5, 3)), "0", "nothing is left"),
    ):
        with pytest.raises(AlgorithmError, match=words):
            base_of(bench_of(module), head)


def test_a_head_that_is_not_the_last_step_is_refused_when_it_is_met() -> None:
    one = batches(peers=1).peer(0)
    for module, head in ((mlp(), "2"), (nn.Sequential(nn.Linear(5, 5), Scaling()), "1.dense")):
        context = bench_of(module)
        base, x_n = base_of(context, head), context.layout.flatten(module)
        assert isinstance(base, ModuleBase)
        with pytest.raises(AlgorithmError, match=f'"{head}" is not the last step'):
            base.features(x_n, one.inputs(0))
        with pytest.raises(AlgorithmError, match=f'"{head}" is not the last step'):
            base.train(x_n, one, under_its_own(context, x_n, head), 0)
