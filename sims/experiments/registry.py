"""The experiments by name. Imports none of them before it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from fedpeer.peer.core.choice import ChoiceError, nearest
from fedpeer.sims.experiments.experiment import Experiment

#: Name -> where its `Experiment` is.
EXPERIMENTS: Mapping[str, str] = {
    "pfedvem-table1": "fedpeer.sims.experiments.pfedvem:TABLE1",
    "pfedvem-cifar100": "fedpeer.sims.experiments.pfedvem:CIFAR100",
    "virtual-table2": "fedpeer.sims.experiments.virtual:TABLE2",
    "virtual-table3": "fedpeer.sims.experiments.virtual:TABLE3",
    "mocha-table": "fedpeer.sims.experiments.mocha:TABLE",
}


def experiment(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        ChoiceError: there is none.
    """
    if name not in EXPERIMENTS:
        raise ChoiceError(f'there is no experiment "{name}"; {nearest(name, list(EXPERIMENTS))}')
    module, _, attribute = EXPERIMENTS[name].partition(":")
    found: Experiment = getattr(importlib.import_module(module), attribute)
    return found
