"""The learning algorithms by name. Imports no torch, so that checking a file is quick.

An algorithm is a class that implements `contract.Algorithm`, built on a `TrainingContext`; its keyword-only parameters
are its settings, and the class declares what it shares. A new algorithm is one file and one line here. Its module is
imported when the algorithm is first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: Name of an algorithm -> "module:class".
_CLASSES: Mapping[str, str] = {
    "local": "fedpeer.algorithms.local_training:LocalTraining",
    "partial-averaging": "fedpeer.algorithms.local_training:PartialAveraging",
    "full-averaging": "fedpeer.algorithms.local_training:FullAveraging",
    "global": "fedpeer.algorithms.local_training:Pooled",
    "d-psgd": "fedpeer.algorithms.dpsgd:DPsgd",
    "dfedavgm": "fedpeer.algorithms.dfedavgm:DFedAvgM",
    "dfedalt": "fedpeer.algorithms.dfedalt:DFedAlt",
    "dfedsalt": "fedpeer.algorithms.dfedalt:DFedSalt",
    "noloco": "fedpeer.algorithms.noloco:NoLoCo",
    "choco-sgd": "fedpeer.algorithms.choco:ChocoSgd",
    "dispfl": "fedpeer.algorithms.dispfl:DisPfl",
    "gradient-tracking": "fedpeer.algorithms.gradient_tracking:GradientTracking",
    "pfedvem-gossip": "fedpeer.algorithms.confident_peers:ConfidentPeers",
    "fedavg": "fedpeer.algorithms.servers.fedavg:FedAvg",
    "fedprox": "fedpeer.algorithms.servers.fedprox:FedProx",
    "fedavgm": "fedpeer.algorithms.servers.fedavgm:FedAvgM",
    "fedadagrad": "fedpeer.algorithms.servers.fedopt:FedAdagrad",
    "fedadam": "fedpeer.algorithms.servers.fedopt:FedAdam",
    "fedyogi": "fedpeer.algorithms.servers.fedopt:FedYogi",
    "scaffold": "fedpeer.algorithms.servers.scaffold:Scaffold",
    "flexlora": "fedpeer.algorithms.servers.flexlora:FlexLora",
    "fedper": "fedpeer.algorithms.servers.fedper:FedPer",
    "fedbn": "fedpeer.algorithms.servers.fedbn:FedBN",
    "fedrep": "fedpeer.algorithms.servers.fedrep:FedRep",
    "ifca": "fedpeer.algorithms.servers.ifca:Ifca",
    "per-fedavg": "fedpeer.algorithms.servers.perfedavg:PerFedAvg",
    "pfedme": "fedpeer.algorithms.servers.pfedme:PFedMe",
    "ditto": "fedpeer.algorithms.servers.ditto:Ditto",
    "apfl": "fedpeer.algorithms.servers.apfl:Apfl",
    "fedala": "fedpeer.algorithms.servers.fedala:FedAla",
    "pfedbayes": "fedpeer.algorithms.servers.pfedbayes:PFedBayes",
    "virtual": "fedpeer.algorithms.servers.virtual:Virtual",
    "virtual-2019": "fedpeer.algorithms.servers.virtual_sequential:SequentialVirtual",
    "pfedvem": "fedpeer.algorithms.servers.pfedvem:PFedVEM",
    "mocha": "fedpeer.algorithms.servers.mocha:Mocha",
    "cocoa": "fedpeer.algorithms.servers.mocha_comparators:Cocoa",
    "minibatch-sdca": "fedpeer.algorithms.servers.mocha_comparators:MinibatchSdca",
    "minibatch-sgd": "fedpeer.algorithms.servers.mocha_comparators:MinibatchSgd",
}

#: Algorithms whose clients send only a model and whose server takes the mean of the models, so that a change of an old
#: model can be added to a later one.
AVERAGE_MODELS = (
    *("fedavg", "fedprox", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fedper", "fedbn", "fedrep"),
    *("per-fedavg", "pfedme", "ditto", "apfl", "fedala"),
)
#: Algorithms whose clients send only a model, so that their updates can be made private.
SEND_A_MODEL = (*AVERAGE_MODELS, "flexlora")


def taking_part(clients: int, share: float) -> int:
    """Return the number of clients that take part in a round of an algorithm with a server: this share, at least one.

    A half is rounded up; Python's own `round` rounds it to the even number.
    """
    return max(1, int(share * clients + 0.5))


def updates_awaited(clients: int, share: float, goal: int | None) -> int:
    """Return the number of updates that a round of an algorithm with a server waits for; it may close with fewer.

    Args:
        goal: the aggregation goal; None: the round waits for all participants.
    """
    participants = taking_part(clients, share)
    return min(participants, goal or participants)


class _Algorithms(Mapping[str, Callable[..., Any]]):
    """Mapping from an algorithm's name to its class, which is imported on access."""

    def __getitem__(self, name: str) -> Callable[..., Any]:
        module, _, kind = _CLASSES[name].partition(":")
        found: Callable[..., Any] = getattr(importlib.import_module(module), kind)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


ALGORITHMS: Mapping[str, Callable[..., Any]] = _Algorithms()
