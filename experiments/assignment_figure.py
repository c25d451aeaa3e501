"""Beyond the papers: peers that assign semi-local models to themselves, on the tasks of figure 20.

Twelve peers see the six orders of three digits, two peers each. In figure 20 the orders are known, and six semi-local
models are written down. Here they are unknown: all peers begin with the global model (level 80), and find groups after
20 rounds (`algorithms/assignment.py`), without a server. The figure compares this with the models written by hand, with
the global model alone, and with IFCA, whose server is told that there are six clusters. In the last two lines all peers
have the digits in the same order, so that there is nothing to find.

The partial averaging paper names this as future work (section VII). The rules were chosen from searches, which end with
round 20, without looking at accuracy: at first on seeds 0 to 2 of 50, 100 and 150 updates. The claims were written down
before any run continued from there, and were not changed. Two whole runs of 100 updates (seeds 0 and 1) showed that
joints must be tested together instead of one by one, and that one standard error of the plain losses rejected joints of
peers with equal tasks (seed 1). Bounded losses, and errors by the number of joints, were then chosen on seeds 0 to 2
and on six with drawn blocks; they held on all nine searches of 100 updates that were examined afterwards.
"""

from __future__ import annotations

from dataclasses import replace

from fedpeer.experiments.claims import highest
from fedpeer.experiments.columns import COLUMNS
from fedpeer.experiments.experiment import Cell, Experiment, RunSize
from fedpeer.experiments.figure import Figure, Models, Scheme, labelled
from fedpeer.experiments.results import CellResults, ClaimVerdict, Middle, PaperClaim
from fedpeer.experiments.schemes import LOCAL, MINI, PM, dependent, level, mnist_scheme
from fedpeer.experiments.semi_local_figures import FIG20, GLOBAL_80, IN_PAIRS, SEMI_LOCAL

#: Lines of the figure.
ALONE, BY_HAND, FOUND, IFCA = "80", "80 + 20 by hand", "80 + 20 found", "IFCA, 6 clusters"
#: Lines for peers that all have the same order.
NOTHING, NOTHING_FOUND = "one order: 80", "one order: 80 + 20 found"
#: Column of how well the hidden groups were found.
_RECOVERED = "recovered"

_SETTINGS = (50, 100, 150)
_ALIKE: Models = {**GLOBAL_80, "alike": {"neurons": SEMI_LOCAL, "depends_on": ["everyone"], "members": "alike"}}


def _recovered(size: int) -> PaperClaim:
    label = labelled(FOUND, MINI, size)

    def check(results: CellResults) -> ClaimVerdict:
        found = COLUMNS[_RECOVERED].values(results[label]) if label in results else None
        if found is None:
            return ClaimVerdict(None, f"{label} was not run")
        middle = Middle.of(found)
        words = f"adjusted Rand index {middle.median:.2f}, least {min(found):.2f}"
        return ClaimVerdict(middle.median >= 1, words, runs=len(found))

    return PaperClaim(f"{MINI} {size}: the hidden groups are found, in the median of the runs", check, (label,))


def _above(size: int, text: str, other: str, by: float = 0.0, *, line: str = FOUND) -> PaperClaim:
    return highest(f"{MINI} {size}: {text}", [labelled(line, MINI, size)], [labelled(other, MINI, size)], PM, by=by)


_GROUPS = Figure(
    name="assignment",
    source="beyond the papers, automatic assignment",
    title="Semi-local models that peers find themselves: MNIST, all orders of three digits, two peers each",
    paper="the future work of Bouchra Pilet, Frey, Taiani, IDA 2021; IFCA: Ghosh, Chung, Yin, Ramchandran, 2020",
    data=("mnist",),
    shares=("fig20",),
    schemes=lambda size: (
        LOCAL,
        level(80),
        Scheme(BY_HAND, "partial-averaging", dependent(IN_PAIRS)),
        Scheme(FOUND, "partial-averaging", _ALIKE),
        Scheme(IFCA, "ifca,clusters=6"),
    ),
    settings=_SETTINGS,
    setting=MINI,
    world=FIG20.world,
    few=((LOCAL.name, ALONE, BY_HAND, FOUND, IFCA), (100,)),
    minutes=(1, 12, 80),
    runs=20,
    columns=(PM, _RECOVERED),
    claims=[
        each
        for size in _SETTINGS
        for each in (
            _recovered(size),
            _above(size, "as good as what is written by hand, within 0.5 points", BY_HAND, -0.5),
            _above(size, "better than the global model alone", ALONE),
            _above(size, "better than IFCA", IFCA),
            _above(
                size,
                "where there is nothing to find it does no harm, within 0.5 points",
                NOTHING,
                -0.5,
                line=NOTHING_FOUND,
            ),
        )
    ],
    notes=(
        "All lines have the same updates, each with one example; IFCA's server is told the number of clusters, and in "
        "80 + 20 found nobody is told anything. IFCA's peers are scored after the local steps of the round, those that "
        "average after the averaging. *recovered* is the adjusted Rand index of the groups with the hidden ones: 1 "
        "where all are found, 0 where chance would do as well."
    ),
)
_ONE_ORDER = replace(
    _GROUPS,
    schemes=lambda size: (replace(level(80), name=NOTHING), Scheme(NOTHING_FOUND, "partial-averaging", _ALIKE)),
    world=lambda size: mnist_scheme(size, 100, "", peers=12, examples=200),
    few=((NOTHING, NOTHING_FOUND), (100,)),
)


def _cells(size: RunSize) -> tuple[Cell, ...]:
    return (*_GROUPS.cells(size), *_ONE_ORDER.cells(size))


ASSIGNMENT: Experiment = replace(_GROUPS.experiment(), cells=_cells)
