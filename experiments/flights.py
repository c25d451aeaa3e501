"""Beyond the papers: a real federation, the airlines at New York's airports, that tells whether a flight will be late.

Each of 33 peers is an airline at an airport (`data/flights.py`). Their tasks are related, but not the same: two
hierarchies cross, airlines and airports. The experiment compares learning alone, one model for all, one model that is
told airline and airport, half of the network common, models by airline and by airport over a common one, and common
weights with biases of each peer's own. The claims come from a prototype by hand, and were written down before any run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from fedpeer.experiments.claims import above, in_order
from fedpeer.experiments.experiment import Cell, Experiment, RunSize
from fedpeer.experiments.results import PaperClaim
from fedpeer.experiments.short_requests import experiment_options

#: The peers in the order of the split, which is that of their numbers of flights.
USERS = (
    *("EWR-UA", "JFK-B6", "EWR-EV", "LGA-DL", "JFK-DL", "LGA-MQ", "LGA-AA", "JFK-9E", "JFK-AA", "LGA-US", "LGA-EV"),
    *("LGA-UA", "JFK-MQ", "EWR-B6", "EWR-WN", "LGA-WN", "LGA-B6", "JFK-UA", "EWR-US", "EWR-DL", "JFK-VX", "EWR-AA"),
    *("LGA-FL", "JFK-US", "LGA-9E", "EWR-MQ", "EWR-VX", "JFK-EV", "EWR-9E", "EWR-AS", "LGA-F9", "LGA-YV", "JFK-HA"),
)
_SIZES = (200, 500, 2_000)
_HALF = {"input": "all", "hidden1": 32, "hidden2": 16, "output": "all"}
_ALONE, _ONE, _TOLD = "alone", "one model", "one model, told airline and airport"
_COMMON, _CROSSED, _BIASES = "half common, half own", "crossed: by airline and by airport", "common weights, own biases"
_AUTUMN = "autumn as the test part"


def crossed_models() -> dict[str, Any]:
    """Return half of the network for all, and a quarter each by airline and by airport."""
    groups = defaultdict[str, list[str]](list)
    for number, user in enumerate(USERS, 1):
        for name in user.split("-"):
            groups[name].append(f"peer{number}")
    own = {"neurons": {"hidden1": 16, "hidden2": 8}, "depends_on": ["everyone"]}
    return {
        "everyone": {"neurons": _HALF},
        **{name: {**own, "members": members} for name, members in sorted(groups.items())},
    }


#: Scheme -> method and partial models.
_SCHEMES: Mapping[str, tuple[str, Mapping[str, Any] | None]] = {
    _ALONE: ("local", None),
    _ONE: ("full-averaging", None),
    _TOLD: ("full-averaging", None),
    _COMMON: ("partial-averaging", {"everyone": {"neurons": _HALF}}),
    _CROSSED: ("partial-averaging", crossed_models()),
    _BIASES: ("partial-averaging", {"everyone": {"neurons": "all"}, "local": {"parameters": ["*.bias"]}}),
}


def _label(flights: int, scheme: str, test: str = "weeks") -> str:
    return f"{flights:,} flights, {scheme}" + (f", {_AUTUMN}" if test == "autumn" else "")


def _cell(size: RunSize, flights: int, scheme: str, test: str = "weeks") -> Cell:
    method, models = _SCHEMES[scheme]
    told = scheme == _TOLD
    request = experiment_options(
        method,
        size,
        learning={
            "optimizer": "adam,lr=0.002",
            "batch_size": 32,
            "steps_between_averaging": 5,
            "loss": "binary",
        },
        simulation={
            "dataset": f"flights,told={str(told).lower()},test={test}",
            "split": f"user/truncate:{flights},test=2000,at_most=true",
            "peers": len(USERS),
            "validation": 0.2,
            "normalise": "none",
            "metrics": ["auc"],
        },
        network=f"mlp,layers={51 if told else 32}+64+32+1,activation=relu",
        partial_models=models,
        evaluations=20,
    )
    return Cell(label=_label(flights, scheme, test), variants={"": request})


def _cells(size: RunSize) -> tuple[Cell, ...]:
    amounts = (500,) if size.few else _SIZES
    cells = [_cell(size, flights, scheme) for flights in amounts for scheme in _SCHEMES]
    apart = [] if size.few else [_cell(size, 500, scheme, "autumn") for scheme in (_ALONE, _ONE, _BIASES)]
    return (*cells, *apart)


def _claims(flights: int) -> tuple[PaperClaim, ...]:
    others = [_label(flights, scheme) for scheme in _SCHEMES if scheme != _BIASES]
    return (
        above(
            f"{flights:,} flights: common weights with own biases have the least log loss of all",
            _label(flights, _BIASES),
            others,
            "loss",
            more=False,
        ),
        in_order(
            f"{flights:,} flights: half common, half own is better than alone",
            (_label(flights, _COMMON), _label(flights, _ALONE)),
            "loss",
            more=False,
        ),
        in_order(
            f"{flights:,} flights: crossed is better than half common, half own",
            (_label(flights, _CROSSED), _label(flights, _COMMON)),
            "loss",
            more=False,
        ),
    )


FLIGHTS = Experiment(
    name="flights",
    title="Late flights: 33 airlines at airports learn from each other",
    source="beyond the papers, a real federation",
    paper="data: US Bureau of Transportation Statistics, 2013; biases of one's own: as in BitFit, Ben Zaken, Goldberg, "
    "Ravfogel, ACL 2022",
    data=("flights",),
    columns=("loss", "loss by examples", "auc", "auc by examples", "PM"),
    sizes={
        "quick": RunSize(rounds=20, seeds=2, few=True, minutes=1, differs="500 flights a peer, 20 rounds."),
        "default": RunSize(rounds=100, seeds=5, minutes=15),
        "full": RunSize(rounds=200, seeds=10, minutes=60),
    },
    cells=_cells,
    claims=(
        *(claim for flights in _SIZES for claim in _claims(flights)),
        above(
            "500 flights: common weights with own biases are better by 0.004 than alone and than one model",
            _label(500, _BIASES),
            [_label(500, _ALONE), _label(500, _ONE)],
            "loss",
            by=0.004,
            more=False,
        ),
    ),
    notes=(
        "327,317 flights; a flight is late if it arrives more than 15 minutes after its time. Each peer trains on "
        "that many flights of every second week, drawn by the seed (peers with fewer have all of theirs), and is "
        "tested on up to 2,000 flights of the other weeks; a fifth of the training flights is kept back to choose the"
        " round. Perceptrons 32-64-32-1 with ReLU, Adam with rate 0.002, batches of 32, averaged after every 5 steps "
        "by push-sum. *Crossed*: half of the hidden neurons common, a quarter by airline, a quarter by airport. "
        "Boosted trees that see the flights of all peers together, and are told airline and airport, have a log loss "
        "of 0.482, 0.472 and 0.468 with 200, 500 and 2,000 flights a peer, and an AUC of 0.698, 0.714 and 0.722, each"
        " peer counted the same (`python -m benchmarks.flights`). From September to December flights are late less "
        "often, which no method can know: those lines are apart."
    ),
)
