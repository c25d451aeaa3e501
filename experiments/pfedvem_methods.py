"""The methods of pFedVEM's table with their candidates, equally many for each, and the results of an earlier search.

The paper publishes the ranges of its search, but not the values it chose; ours are within the ranges, except for
momentum, which the published program has, for the server's steps, and for pFedBayes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpeer.experiments.experiment import Cell, RunSize
from fedpeer.experiments.short_requests import experiment_options, passes
from fedpeer.runs.scores import LATE

_MOMENTUM = "sgd,lr=0.01,momentum=0.9"
_SLOWER = "sgd,lr=0.001,momentum=0.9"
_BETWEEN, _FASTER = "sgd,lr=0.003,momentum=0.9", "sgd,lr=0.03,momentum=0.9"
_RATES = (_MOMENTUM, _SLOWER, _BETWEEN, _FASTER)


def _ifca(further: str) -> Sequence[tuple[str, str]]:
    """Return IFCA's variants with a further setting."""
    kinds = ((2, _MOMENTUM), (2, _SLOWER), (4, _MOMENTUM), (8, _MOMENTUM))
    return [(f"ifca,clusters={clusters}{further}", rate) for clusters, rate in kinds]


#: Label -> (variants as (method, optimizer), the first if there is no search; metric to choose by; the paper's numbers
#: for 50 clients).
METHODS: Mapping[str, tuple[Sequence[tuple[str, str]], str, Mapping[str, str]]] = {
    "Local": ([("local", rate) for rate in _RATES], "PM", {"PM": "89.2 ± 0.1"}),
    "FedAvg": (
        (
            ("fedavg", _MOMENTUM),
            ("fedavg", _SLOWER),
            ("fedavgm,server_lr=1.6,momentum=0", _MOMENTUM),
            ("fedavgm,momentum=0.5", _MOMENTUM),
        ),
        "GM",
        {"GM": "83.5 ± 0.4"},
    ),
    "FedProx": (
        (
            ("fedprox,mu=0.1", _MOMENTUM),
            ("fedprox,mu=1", _MOMENTUM),
            ("fedprox,mu=0.1", _SLOWER),
            ("fedprox,mu=0.1,server_lr=1.6", _MOMENTUM),
        ),
        "GM",
        {"GM": "84.8 ± 0.5"},
    ),
    "Scaffold": (  # its control variates assume plain steps, so the rate includes the factor of momentum
        (
            ("scaffold", "sgd,lr=0.1"),
            ("scaffold", "sgd,lr=0.01"),
            ("scaffold,global_lr=1.6", "sgd,lr=0.1"),
            ("scaffold,global_lr=0.6", "sgd,lr=0.1"),
        ),
        "GM",
        {"GM": "85.6 ± 0.2"},
    ),
    "FedPer": ([("fedper", rate) for rate in _RATES], "PM", {"PM": "91.4 ± 0.1"}),
    "FedRep": (
        (
            ("fedrep", _MOMENTUM),
            ("fedrep", _SLOWER),
            ("fedrep,head_share=0.2", _MOMENTUM),
            ("fedrep,head_share=0.8", _MOMENTUM),
        ),
        "PM",
        {"PM": "91.5 ± 0.1"},
    ),
    "IFCA": (_ifca(""), "PM", {}),
    "IFCA, the server's model": (_ifca(",adapted=false"), "PM", {"PM": "84.1 ± 1.0"}),
    "Per-FedAvg": (
        (
            ("per-fedavg,alpha=0.01,beta=0.1", _MOMENTUM),
            ("per-fedavg,alpha=0.01,beta=0.01", _MOMENTUM),
            ("per-fedavg,alpha=0.1,beta=0.1", _MOMENTUM),
            ("per-fedavg,alpha=0.01,beta=0.1", _SLOWER),
        ),
        "PM",
        {"PM": "88.7 ± 0.2"},
    ),
    "pFedMe": (
        (
            ("pfedme,strength=15,lr=0.05", "sgd,lr=0.05"),
            ("pfedme,strength=15,lr=0.01", "sgd,lr=0.05"),
            ("pfedme,strength=1,lr=0.1", "sgd,lr=0.05"),
            ("pfedme,strength=15,lr=0.05,server_rate=1.6", "sgd,lr=0.05"),
        ),
        "PM",
        {"PM": "91.9 ± 0.1", "GM": "82.0 ± 0.7"},
    ),
    # One personal step per batch, as in the other methods. The global distribution takes larger steps than the
    # optimizer's, as the divergence is divided among a client's examples here.
    "pFedBayes": (
        (
            ("pfedbayes,zeta=1,sigma=0.05,global_lr=0.25,personal_steps=1", "sgd,lr=0.1"),
            ("pfedbayes,zeta=0.1,sigma=0.05,global_lr=2.5,personal_steps=1", "sgd,lr=0.1"),
            ("pfedbayes,zeta=1,sigma=0.1,global_lr=0.5,personal_steps=1", "sgd,lr=0.1"),
            ("pfedbayes,zeta=1,sigma=0.05,global_lr=0.25,personal_steps=1,server_rate=1.6", "sgd,lr=0.1"),
        ),
        "PM",
        {"PM": "91.9 ± 0.1", "GM": "83.5 ± 0.3"},
    ),
    "pFedVEM": (
        (
            ("pfedvem,sigma=0.1,head_lr=0.0001,head_epochs=10", _MOMENTUM),
            ("pfedvem,sigma=0.1,head_lr=0.0001,head_epochs=20", _MOMENTUM),
            ("pfedvem,sigma=0.1,head_lr=0.0001,head_epochs=5", _MOMENTUM),
            ("pfedvem,sigma=0.3,head_lr=0.0001,head_epochs=10", _MOMENTUM),
        ),
        "PM",
        {"PM": "91.8 ± 0.1", "GM": "83.9 ± 0.3"},
    ),
}
#: What the search of the published page found where that is not the first variant.
FOUND = {
    "FedRep": f"fedrep,head_share=0.2; {_MOMENTUM}",
    "pFedVEM": f"pfedvem,sigma=0.1,head_lr=0.0001,head_epochs=5; {_MOMENTUM}",
}
FEW = ("Local", "FedAvg", "FedPer", "pFedVEM")
#: Methods whose clients keep state from round to round. Clients of the others begin with the server's model, so rounds
#: in which they do not take part matter only if they are scored then.
_KEEPING = ("FedPer", "FedRep", "pFedBayes", "pFedVEM")


def cells_of(
    size: RunSize,
    labels: Sequence[str],
    published: Mapping[str, Mapping[str, str]],
    *,
    simulation: Mapping[str, Any],
    participation: float,
    batch: int,
    found: Mapping[str, str],
    **settings: Any,
) -> tuple[Cell, ...]:
    learning = {"participation": participation, "evaluate_last": LATE, **passes(size, batch)}

    def cell(label: str) -> Cell:
        variants, judged, _ = METHODS[label]
        everyone = True if label in _KEEPING else "evaluated"
        return Cell(
            label=label,
            variants={
                f"{method}; {optimizer}": experiment_options(
                    method,
                    size,
                    learning={**learning, "everyone_trains": everyone, "optimizer": optimizer},
                    simulation=simulation,
                    **settings,
                )
                for method, optimizer in variants
            },
            judged=judged,
            found=found.get(label, ""),
            published=published.get(label, {}),
        )

    return tuple(map(cell, labels))
