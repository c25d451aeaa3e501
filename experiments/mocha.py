"""MOCHA's table: one global model, local models, and models whose relations are learned (MTL).

All are linear models with the hinge loss, trained by the same local solver. Local and MTL differ only in the coupling
of the tasks; the global model is solved with all examples in one place, as rounds between nodes end far from it. lambda
is searched by 5-fold cross-validation on the training examples, for each method on its own, over the published
program's grid and the value 1 that is missing there. (The program takes the last fold alone; the paper takes all.)
Minefields are judged by the area under the ROC curve, as few of their rows are mines.

Source: Smith, Chiang, Sanjabi, Talwalkar, Federated multi-task learning, NIPS 2017, section 5.2 (table 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpeer.experiments.claims import in_order, reaches
from fedpeer.experiments.experiment import Cell, Experiment, RunSize
from fedpeer.experiments.results import PaperClaim
from fedpeer.experiments.short_requests import experiment_options

_LAMBDAS = ("0.01", "0.00001", "0.0001", "0.001", "0.1", "1", "10")
#: The lambdas of the small size.
_FEW = ("0.01", "0.001", "0.1")
#: Parts of the training examples, each of which is held out in turn while lambda is searched.
_FOLDS = 5

#: Passes of every node over its examples per round; with ten, fifty rounds end far from the optimum.
PASSES = 50

#: Label -> the method, without its numeric settings.
_METHODS = {"global": "global", "local": "mocha,omega=local", "MTL": "mocha,omega=trace-constrained"}

#: Column by which a data set is judged, if not by its error.
_BY = {"landmine": "auc"}
#: Name -> data set, how each peer normalises its features, and the paper's errors.
_DATA: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "HAR": ("har,positive=sitting", "none", {"global": "2.23 ± 0.30", "local": "1.34 ± 0.21", "MTL": "0.46 ± 0.11"}),
    "vehicle": ("vehicle", "standard", {"global": "13.40 ± 0.26", "local": "7.81 ± 0.13", "MTL": "6.59 ± 0.21"}),
    "landmine": ("landmine", "standard", {}),
}


def _cells(size: RunSize) -> tuple[Cell, ...]:
    if size.rounds < 100:
        return tuple(_cell(size, "HAR", what, _FEW, folds=1) for what in _METHODS)
    return tuple(_cell(size, name, what, _LAMBDAS, folds=_FOLDS) for name in _DATA for what in _METHODS)


def _cell(size: RunSize, name: str, what: str, lambdas: Sequence[str], *, folds: int) -> Cell:
    dataset, normalise, printed = _DATA[name]
    simulation: dict[str, Any] = {"dataset": dataset, "split": "user,test_fraction=0.25", "normalise": normalise}
    simulation |= {"metrics": [_BY[name]]} if name in _BY else {}
    learning = {"loss": "binary", "steps_between_averaging": 1}  # each of its rounds takes all of a client's examples

    def variant(lam: str) -> Any:
        method = f"{_METHODS[what]},lam={lam},passes={PASSES}"
        return experiment_options(
            method, size, learning=learning, simulation=simulation, network="linear", evaluations=1
        )

    return Cell(
        label=f"{name}, {what}",
        variants={f"lambda {lam}": variant(lam) for lam in lambdas},
        judged=_BY.get(name, "PM"),
        folds=folds,
        published={"error": printed[what]} if what in printed else {},
    )


def _claims(name: str) -> tuple[PaperClaim, ...]:
    lines = (f"{name}, MTL", f"{name}, local", f"{name}, global")
    if name in _BY:
        return (in_order(f"{name}: MTL has a larger AUC than local, local than global", lines, _BY[name], more=True),)
    order = in_order(f"{name}: MTL errs less than local, local less than global", lines, "error", more=False)
    wanted = float(_DATA[name][2]["MTL"].split()[0])
    return order, reaches(
        f"{name}: MTL's error is at most the paper's {wanted}", f"{name}, MTL", "error", wanted, more=False
    )


TABLE = Experiment(
    name="mocha-table",
    title="Global, local and multi-task models: people, vehicles, minefields",
    source="MOCHA 2017, table 1",
    data=("har", "vehicle", "landmine"),
    columns=("error", "auc"),
    sizes={
        "quick": RunSize(
            rounds=50, seeds=2, searches=True, minutes=1, differs="HAR alone, 50 rounds; the paper has 10 shuffles."
        ),
        "default": RunSize(
            rounds=100, seeds=10, searches=True, minutes=300, differs="100 rounds, one shuffle for the search."
        ),
        "full": RunSize(rounds=300, seeds=10, searches=True, search_seeds=3, minutes=2_000),
    },
    cells=_cells,
    claims=tuple(claim for name in _DATA for claim in _claims(name)),
    paper="Smith, Chiang, Sanjabi, Talwalkar, Federated multi-task learning, NIPS 2017; landmine is not in it",
    notes=(
        "Three quarters of each task's examples are for training, and a fifth of these is kept back while lambda is "
        "searched, each fifth in turn (at the quick size one). HAR: sitting against the rest, features as they come; "
        "vehicle and landmine: features standardised on each node's own training examples. A linear SVM of each "
        "vehicle node alone reaches the paper's MTL error with standardised features, so that number proves nothing by "
        "itself. Of the rows of landmine 6.1 % are mines, so who never says mine errs by no more: there lambda is "
        "chosen, and the claim judged, by AUC. The paper uses a part of these rows, so its numbers stand beside ours "
        "for orientation. The global model is solved with all examples in one place: MOCHA's own rounds, under a "
        "coupling of ones, end far from it (on HAR with a duality gap of 0.9 of the objective and an error of 2.6)."
    ),
)
