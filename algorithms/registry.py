"""The names of the learning algorithms and their settings. Imports no torch, so that checking a file is quick.

An algorithm in which peers are equals is local training (`algorithms/local_training.py`) under a plan that says what
is averaged with whom. Local only, partial averaging and full averaging are the same program under three plans.

One whose peers keep a state of their own beside that is a class behind `GossipAlgorithm`, one line in `KEEPING`.

An algorithm with a server is a class behind `CoordinatedAlgorithm`, built on a `Workbench`; its keyword-only parameters
are its settings. It is one line in `SERVED`, and imported when it is first asked for.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: What a method shares: nothing, the federation's partial models, one model that owns everything, a base and a head
#: that are averaged by weights of their own, what an algorithm with a server says to its coordinator, or the data.
Sharing = Literal["nothing", "partial models", "everything", "base and head", "with a coordinator", "the data"]


@dataclass(frozen=True)
class Method:
    """What a method shares.

    cross_model   whether weights between unrelated models are averaged too (Algorithm 2)
    head          of base and head: the head's layer by name; "" for the last one that has parameters
    linear        of the data: lam and passes of a linear model that is solved; None for the network's own training
    """

    sharing: Sharing
    cross_model: bool = False
    head: str = ""
    linear: tuple[float, float] | None = None

    @property
    def served(self) -> bool:
        """Whether it has a server."""
        return self.sharing == "with a coordinator"

    @property
    def averages(self) -> bool:
        """Whether its peers are equals that average something."""
        return self.sharing not in ("nothing", "with a coordinator", "the data")

    @property
    def pooled(self) -> bool:
        """Whether all examples are in one place, which only a simulation can do."""
        return self.sharing == "the data"

    @property
    def keeps_state(self) -> bool:
        """Whether its peers are equals that keep a state of their own, beside parameters and optimiser."""
        return self.sharing == "base and head"


def local() -> Method:
    """Each peer learns alone; nothing is sent."""
    return Method("nothing")


def partial_averaging(*, cross_model: bool = False) -> Method:
    """Slice by slice, each weight with the peers that the partial models name.

    Bouchra Pilet, Frey, Taiani 2021, Algorithm 1; with `cross_model` also Algorithm 2.
    """
    return Method("partial models", cross_model)


def full_averaging() -> Method:
    """The whole network is averaged among all peers (one global model)."""
    return Method("everything")


def pooled(*, lam: float | None = None, passes: float = 50.0) -> Method:
    """One model trained on the examples of all peers in one place: what no federation can do, to compare with; where
    lam is given a linear one with MOCHA's objective, by its solver.
    """
    return Method("the data", linear=None if lam is None else (lam, passes))


#: Algorithms of equals that keep a state of their own: where the class of each is, and the algorithm with a server as
#: whose clients its peers train; its settings are theirs.
KEEPING: Mapping[str, tuple[str, str]] = {
    "pfedvem-gossip": ("fedpeer.algorithms.confident_peers:ConfidentPeers", "pfedvem"),
}

#: Algorithms with a server: where the class of each is.
SERVED: Mapping[str, str] = {
    "fedavg": "fedpeer.algorithms.servers.fedavg:FedAvg",
    "fedprox": "fedpeer.algorithms.servers.fedprox:FedProx",
    "scaffold": "fedpeer.algorithms.servers.scaffold:Scaffold",
    "fedper": "fedpeer.algorithms.servers.fedper:FedPer",
    "fedrep": "fedpeer.algorithms.servers.fedrep:FedRep",
    "ifca": "fedpeer.algorithms.servers.ifca:Ifca",
    "per-fedavg": "fedpeer.algorithms.servers.perfedavg:PerFedAvg",
    "pfedme": "fedpeer.algorithms.servers.pfedme:PFedMe",
    "ditto": "fedpeer.algorithms.servers.ditto:Ditto",
    "pfedbayes": "fedpeer.algorithms.servers.pfedbayes:PFedBayes",
    "virtual": "fedpeer.algorithms.servers.virtual:Virtual",
    "virtual-2019": "fedpeer.algorithms.servers.virtual_sequential:SequentialVirtual",
    "pfedvem": "fedpeer.algorithms.servers.pfedvem:PFedVEM",
    "mocha": "fedpeer.algorithms.servers.mocha:Mocha",
    "cocoa": "fedpeer.algorithms.servers.mocha_comparators:Cocoa",
    "minibatch-sdca": "fedpeer.algorithms.servers.mocha_comparators:MinibatchSdca",
    "minibatch-sgd": "fedpeer.algorithms.servers.mocha_comparators:MinibatchSgd",
}


def taking_part(clients: int, share: float) -> int:
    """How many take part in a round of an algorithm with a server: that share of all clients, at least one.

    A half is rounded up; Python's own `round` goes to the even number.
    """
    return max(1, int(share * clients + 0.5))


class _Algorithms(Mapping[str, Callable[..., Method]]):
    """Name -> a function with the settings of that algorithm, which gives its method."""

    _equals: Mapping[str, Callable[..., Method]] = {
        "local": local,
        "partial-averaging": partial_averaging,
        "full-averaging": full_averaging,
        "global": pooled,
    }

    def __getitem__(self, name: str) -> Callable[..., Method]:
        if name in self._equals:
            return self._equals[name]
        if name in KEEPING:
            return _method(keeping_class(name), served_class(KEEPING[name][1]), _base_and_head)
        return _method(served_class(name), served_class(name), _with_a_coordinator)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._equals, *KEEPING, *SERVED])

    def __len__(self) -> int:
        return len(self._equals) + len(KEEPING) + len(SERVED)


def served_class(name: str) -> Callable[..., Any]:
    """The class of an algorithm with a server: `served_class("fedavg")(bench)`. KeyError where there is none."""
    return _found(SERVED[name])


def keeping_class(name: str) -> Callable[..., Any]:
    """The class of an algorithm of equals that keep a state, built on what trains them. KeyError: no such name."""
    return _found(KEEPING[name][0])


def _found(path: str) -> Callable[..., Any]:
    module, _, function = path.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _with_a_coordinator(**settings: Any) -> Method:
    return Method("with a coordinator")


def _base_and_head(*, head: tuple[str, ...] = (), **settings: Any) -> Method:
    return Method("base and head", head="".join(head[:1]))


def _method(
    told: Callable[..., Any], algorithm: Callable[..., Any], made: Callable[..., Method]
) -> Callable[..., Method]:
    """`made`, with the name and the words of one class and the settings of another."""

    @functools.wraps(told, updated=())
    def method(**settings: Any) -> Method:
        return made(**settings)

    parameters = inspect.signature(algorithm).parameters.values()
    # Settings may be inherited: what their annotations name is known where the class stands that has them.
    hints = typing.get_type_hints(algorithm)
    settings = [
        each.replace(annotation=hints[each.name]) for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    method.__signature__ = inspect.Signature(settings)  # type: ignore[attr-defined]
    return method


ALGORITHMS: Mapping[str, Callable[..., Method]] = _Algorithms()
