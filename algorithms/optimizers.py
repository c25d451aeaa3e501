"""Torch's optimizers by name, or a user's own, and their state as plain tensors that can be kept and saved.

A peer's optimizer lives for one round of local steps. Between rounds its state (momentum, Adam's moments, step counts)
is a flat row of numbers, so that a peer's memory is two tensors: parameters and optimizer state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn


class OptimizerError(ValueError):
    """The optimizer or one of its settings cannot be used; the message gives the reason and the way out."""


#: Optimizers that need sparse gradients, a closure or several passes a step: their step is no function of (parameters,
#: gradient, state).
_REFUSED = {"LBFGS": "it needs a closure", "SparseAdam": "it needs sparse gradients"}
#: Learning rate of an optimizer of a user's own whose `lr` has no default.
_RATE = 1e-3
#: Optimizers with state per scalar: a flat vector of all parameters, or of many peers, is like separate tensors.
ELEMENTWISE = frozenset(
    ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta", "ASGD")
)


def names() -> dict[str, str]:
    """Return lower-case name -> torch's class name, for every optimizer that can be used."""
    found = {
        name.lower(): name
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    return {name: cls for name, cls in found.items() if cls not in _REFUSED}


@dataclass(frozen=True)
class OptimizerChoice:
    """A torch optimizer by its class name and its keyword settings, or a user's own.

    own   (parameters, **settings) -> a torch.optim.Optimizer over them, a class or a function; None: torch's
    """

    kind: str = "SGD"
    settings: Mapping[str, Any] = field(default_factory=lambda: {"lr": 0.1})
    own: Callable[..., Any] | None = None

    @classmethod
    def named(cls, name: str, settings: Mapping[str, Any]) -> OptimizerChoice:
        """Return the choice by the name that a user wrote, in any case; `build` refuses unknown names."""
        return cls(names().get(name.lower(), name), dict(settings))

    @property
    def elementwise(self) -> bool:
        """True if the state is per scalar, so that the vectors of many peers are treated like separate tensors."""
        return self.kind in ELEMENTWISE if self.own is None else _elementwise(self)

    @property
    def plain_sgd(self) -> bool:
        """True if a step is exactly x <- x - lr * gradient."""
        off = {"momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False, "maximize": False}
        return self.kind == "SGD" and all(off.get(k, "other") == v for k, v in self.settings.items() if k != "lr")

    @property
    def momentum(self) -> float | None:
        """m if a step is exactly v <- m * v + gradient, x <- x - lr * v, with v = 0 at the start; else None."""
        momentum = self.settings.get("momentum", 0)
        without = replace(self, settings={**self.settings, "momentum": 0})
        known = without.plain_sgd and isinstance(momentum, int | float) and momentum >= 0
        return float(momentum) if known else None

    @property
    def lr(self) -> float:
        """The learning rate, checked as torch does, for steps without a torch optimizer; default: the optimizer's own.

        Raises:
            OptimizerError: it is below 0, or the name or a setting is unknown.
        """
        lr = float(self.settings.get("lr", self._usual_lr))
        if not lr >= 0:
            raise OptimizerError(f'optimizer "{self.kind}": lr = {lr}: write 0 or more')
        return lr

    @cached_property
    def _usual_lr(self) -> float:
        usual = inspect.signature(self.own or self._class).parameters.get("lr")
        return usual.default if usual is not None and isinstance(usual.default, int | float) else _RATE

    def build(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a fresh optimizer over these parameters.

        Raises:
            OptimizerError: unknown name or setting, or a value that torch refuses, in torch's own words.
        """
        if self.own is not None:
            return self._built(self.own, parameters)
        kind = self._class
        try:
            return kind(parameters, **self.settings)
        except (TypeError, ValueError, RuntimeError) as problem:
            # Torch's optimizer for matrices says which parameter is not a matrix, but not what to do.
            way_out = "; take a network without biases and normalization, or another optimizer" * (self.kind == "Muon")
            raise OptimizerError(f'optimizer "{self.kind}": {problem}{way_out}') from None

    @cached_property  # each peer asks for it in each round
    def _class(self) -> Callable[..., torch.optim.Optimizer]:
        """Torch's class of this name, which accepts all of the settings.

        Raises:
            OptimizerError: unknown name or setting.
        """
        known = names()
        if self.kind.lower() not in known:
            why = next((f" ({reason})" for name, reason in _REFUSED.items() if name.lower() == self.kind.lower()), "")
            raise OptimizerError(f'optimizer "{self.kind}" cannot be used{why}; known: {", ".join(sorted(known))}')
        kind: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, known[self.kind.lower()])
        parameters = inspect.signature(kind).parameters
        allowed = [name for name in parameters if name != "params"]
        for name, value in self.settings.items():
            if name not in allowed:
                raise OptimizerError(f'optimizer "{self.kind}" has no setting "{name}"; known: {", ".join(allowed)}')
            usual = parameters[name].default
            if isinstance(usual, tuple) and not (isinstance(value, tuple | list) and len(value) == len(usual)):
                several = "+".join(map(str, usual))
                raise OptimizerError(
                    f'optimizer "{self.kind}": {name} = {value}: write {len(usual)}, as in {name}={several}'
                )
        return kind

    def _built(self, own: Callable[..., Any], parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        try:
            made = own(parameters, **self.settings)
        except Exception as problem:  # whatever the user's function raises
            raise OptimizerError(f'optimizer "{self.kind}": {type(problem).__name__}: {problem}') from problem
        if not isinstance(made, torch.optim.Optimizer):
            text = f"returned {type(made).__name__}; it must return a torch.optim.Optimizer over the parameters"
            raise OptimizerError(f'optimizer "{self.kind}" {text}')
        return made


def _elementwise(choice: OptimizerChoice) -> bool:
    """Try whether an optimizer treats one tensor of two vectors as it treats the pieces of each by themselves.

    Norms of whole tensors, or of all tensors together, would mix the peers of a block.
    """
    start_2n, *gradients = torch.randn(5, 2, 6, generator=torch.Generator().manual_seed(0))
    try:
        kept = StateLayout.probe(choice, [nn.Parameter(start_2n)]).entries
        together = _stepped(choice, [start_2n], [[each] for each in gradients])
        apart = [_stepped(choice, _cut(row), [_cut(each[p]) for each in gradients]) for p, row in enumerate(start_2n)]
    except Exception:  # the loop will report it
        return False
    alike = torch.allclose(together, torch.cat(apart), rtol=1e-5, atol=1e-7)
    return alike and all(shape in ((), (2, 6)) for _, _, shape in kept)


def _cut(row_n: Tensor) -> list[Tensor]:
    return [row_n[:2], row_n[2:]]


def _stepped(choice: OptimizerChoice, start: list[Tensor], gradients: list[list[Tensor]]) -> Tensor:
    """Return all numbers of some tensors after a step on each of the gradients."""
    parameters = [nn.Parameter(each.clone()) for each in start]
    optimizer = choice.build(parameters)
    for pieces in gradients:
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.clone()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


@dataclass(frozen=True)
class StateLayout:
    """The place of each number of an optimizer's state in a flat row.

    entries   (number of the parameter, key in its state, shape), in order
    size      k, length of the row
    """

    entries: tuple[tuple[int, str, tuple[int, ...]], ...]
    size: int

    @classmethod
    def probe(cls, choice: OptimizerChoice, parameters: list[nn.Parameter]) -> StateLayout:
        """Return the layout of this optimizer's state, found by a step with zero gradients on copies."""
        copies = [nn.Parameter(p.detach().clone()) for p in parameters]
        optimizer = choice.build(copies)
        for p in copies:
            p.grad = torch.zeros_like(p)
        try:
            optimizer.step()
        except (RuntimeError, ValueError, TypeError, AssertionError) as problem:  # torch checks some settings only here
            raise OptimizerError(f'optimizer "{choice.kind}" cannot train this network: {problem}') from None
        except Exception as problem:  # whatever a user's own raises
            text = f"failed in a step with gradients of 0: {type(problem).__name__}: {problem}"
            raise OptimizerError(f'optimizer "{choice.kind}" {text}') from problem
        entries: list[tuple[int, str, tuple[int, ...]]] = []
        for number, p in enumerate(copies):
            for key, value in optimizer.state[p].items():
                if isinstance(value, Tensor):
                    entries.append((number, key, tuple(value.shape)))
                elif isinstance(value, (int, float)):
                    entries.append((number, key, ()))
                elif value is not None:
                    raise OptimizerError(f'optimizer "{choice.kind}" keeps "{key}", which is not a tensor')
        return cls(tuple(entries), sum(torch.Size(shape).numel() for _, _, shape in entries))

    def load(self, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], row_k: Tensor) -> None:
        """Set the optimizer's state from this row (k,), as copies.

        Args:
            parameters: those that the optimizer was built over, which a user's own may divide into several groups.
        """
        at = 0
        for number, key, shape in self.entries:
            length = torch.Size(shape).numel()
            value = row_k[at : at + length].clone().view(shape)
            if key == "step" and not shape:  # torch keeps step counts on the CPU and in float32
                value = value.cpu().float()
            optimizer.state[parameters[number]][key] = value
            at += length

    def save(self, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], row_k: Tensor) -> None:
        """Write the optimizer's state into this row (k,); the arguments are those of `load`."""
        at = 0
        for number, key, shape in self.entries:
            length = torch.Size(shape).numel()
            value = optimizer.state[parameters[number]][key]
            row_k[at : at + length] = torch.as_tensor(value, dtype=row_k.dtype).reshape(-1)
            at += length
