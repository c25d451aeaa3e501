"""Figure 7 of the partial averaging paper: local learning, partial averaging and one model for all, on each task.

It has no runs of its own: each of its points is a point of another figure at one setting, whose runs count
(`Experiment.reads`); missing ones are run as that figure would. Levels are the paper's: 80 %, and for the associative
network 300 of 400 hidden neurons, the level of figure 27 nearest to its 70 %.

The paper does not name the settings of its summary. Here: 200 mini-batches of handwriting, as in its text, mini-batches
of 500 of MNIST, as in most of its figures, and the longest runs of the other two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedpeer.experiments.associative_figure import FIG27
from fedpeer.experiments.claims import highest
from fedpeer.experiments.experiment import Axes, Cell, Experiment, Place, RunSize
from fedpeer.experiments.figure import Figure
from fedpeer.experiments.mnist_figures import FIG17
from fedpeer.experiments.results import PaperClaim
from fedpeer.experiments.schemes import PAPER, PM
from fedpeer.experiments.sensor_figures import FIG26
from fedpeer.experiments.writer_figures import FIG8, FIG9, FIG10

LOCAL, PARTIAL, GLOBAL = "local learning", "partial averaging", "one model for all"


@dataclass(frozen=True)
class SummaryTask:
    """A task of the summary.

    name      its name here
    figure    the figure that has its runs
    setting   the setting there
    partial   the level that is partial averaging
    whole     the level that is one model for all
    """

    name: str
    figure: Figure
    setting: int
    partial: str
    whole: str = "100"

    def cells(self, size: RunSize, place: int) -> Iterator[Cell]:
        for line, level in ((LOCAL, "0"), (PARTIAL, self.partial), (GLOBAL, self.whole)):
            there = self.figure.cell(size, level, self.setting)
            yield replace(there, label=self.label(line), place=Place(line, place))

    def label(self, line: str) -> str:
        return f"{self.name}; {line}"

    def claims(self) -> Iterator[PaperClaim]:
        for other in (LOCAL, GLOBAL):
            text = f"{self.name}: {PARTIAL} is above {other}"
            yield highest(text, [self.label(PARTIAL)], [self.label(other)], PM)


#: The three variants of FEMNIST, or, if it is not on this machine, the one task that replaces them.
_HANDWRITING = (
    {"FEMNIST-A": FIG8, "FEMNIST-M": FIG9, "FEMNIST-D": FIG10} if "femnist" in FIG8.data else {"writers": FIG10}
)
TASKS = (
    *(SummaryTask(name, figure, 200, "80") for name, figure in _HANDWRITING.items()),
    SummaryTask("MNIST", FIG17, 500, "80"),
    SummaryTask("vehicles", FIG26, 400, "40", "50"),
    SummaryTask("associative", FIG27, 40, "300", "400"),
)
FIG7 = Experiment(
    name="fig7",
    title="Summary: local learning, partial averaging, one model for all",
    source="partial averaging 2021, figure 7",
    paper=PAPER,
    data=tuple(dict.fromkeys(name for task in TASKS for name in task.figure.data)),
    columns=(PM,),
    sizes={
        "quick": RunSize(rounds=1, seeds=2, minutes=3, few=True),
        "default": RunSize(rounds=1, seeds=3, minutes=4),
        "full": RunSize(rounds=1, seeds=10, minutes=13),
    },
    cells=lambda size: tuple(cell for place, task in enumerate(TASKS) for cell in task.cells(size, place)),
    claims=tuple(claim for task in TASKS for claim in task.claims()),
    notes=(
        "Points of figures "
        + ", ".join(task.figure.number for task in TASKS)
        + " in this order, at "
        + ", ".join(f"{task.figure.setting} {task.setting}" for task in TASKS)
        + ". Their runs are read; fedpeer experiment run fig7 plays what they lack."
    ),
    figure=Axes(number="7", runs=10, lines="averaging", x="task", ticks=tuple(task.name for task in TASKS)),
    reads=("fig8", "fig9", "fig10", "fig17", "fig26", "fig27"),
)
