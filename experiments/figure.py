"""Figures of the papers: a cell for each averaging scheme and setting, drawn as the median of some runs.

A scheme defines which peers average which parameters, a setting is a value on the figure's axis (or the name of a
line), and a `FigureWorld` is everything else. Cells that differ only in the round at which they are read share one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedpeer.config.settings import EngineName
from fedpeer.experiments.experiment import Axes, Cell, Experiment, Moment, Place, RunSize
from fedpeer.experiments.results import PaperClaim
from fedpeer.experiments.short_requests import experiment_options
from fedpeer.sims.request import SimulationRequest

#: The paper's network for images; its k is 10 for digits.
CLASSIC = "mlp:784+300+100+10"

Models = Mapping[str, Mapping[str, Any]]
#: Settings of `simulation` that a user may choose otherwise; all others are of `learning`.
_OF_DATA = ("dataset", "split", "normalise")


@dataclass(frozen=True)
class Scheme:
    """An averaging scheme: which peers average which parameters.

    name               its name in the figure
    method             an algorithm
    models             partial models, as in a federation file
    network            the network
    gossip, learning   further settings of a federation file, which override those of the `FigureWorld`
    faults             as the option of `fedpeer simulate`; overrides that of the `FigureWorld`
    """

    name: str
    method: str
    models: Models | None = None
    network: str = CLASSIC
    gossip: Mapping[str, Any] = field(default_factory=dict)
    learning: Mapping[str, Any] = field(default_factory=dict)
    faults: str = ""


@dataclass(frozen=True, kw_only=True)
class FigureWorld:
    """All settings of a run except its averaging scheme.

    updates          local steps per round, with one example each: the paper's mini-batch
    rounds           number of rounds
    every            rounds from one averaging to the next
    read             when the figure reads the run, if not at its end; a run may be read several times
    read_every       rounds between two evaluations, if `read` is set
    gossip           further settings of a federation file; the default is exact means
    engine, faults   as the options of `fedpeer simulate`
    """

    dataset: str
    split: str
    peers: int
    updates: int
    rounds: int
    every: int = 1
    read: Moment | None = None
    read_every: int = 10
    loss: str = "cross-entropy"
    gossip: Mapping[str, Any] = field(default_factory=dict)
    engine: EngineName = "vector"
    faults: str = ""

    def request(self, scheme: Scheme, size: RunSize) -> SimulationRequest:
        chosen = {name: value for name, value in size.overrides.items() if name not in _OF_DATA}
        chosen_data = {name: value for name, value in size.overrides.items() if name in _OF_DATA}
        return experiment_options(
            scheme.method,
            size,
            learning={
                "steps_between_averaging": self.updates,
                "rounds": self.rounds,
                "loss": self.loss,
                "evaluate_every": self.rounds if self.read is None else self.read_every,
                **scheme.learning,
                **chosen,
            },
            simulation={"dataset": self.dataset, "split": self.split, "peers": self.peers, **chosen_data},
            network=scheme.network,
            partial_models=scheme.models,
            gossip={"protocol": "exact", "every": self.every, **self.gossip, **scheme.gossip},
            engine=self.engine,
            faults=scheme.faults or self.faults,
        )


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the partial averaging paper, or one beyond the papers.

    number     the paper's number; "" if no paper has it, and then it has a `name`, and a `source` for lists
    title      title of its page
    paper      the paper's authors, title and year
    data       names of the data sets that it needs
    schemes    setting -> its averaging schemes
    settings   values along the axis; if `across`, one line each, with the averaging level along the axis
    setting    what the settings are, in the plural
    lines      what the schemes are
    world      setting -> the other settings of its runs
    few        names of schemes, and settings, of the small size
    minutes    rough times of the three sizes on two cores
    claims     claims to check
    across     whether settings are lines instead of values along the axis
    log        whether the axis is logarithmic
    runs       runs per point in the paper
    few_runs   runs per point of the small size
    notes      what a reader should know
    open       settings that the paper leaves open, of `learning` or those of `simulation` in `_OF_DATA`
    columns    numbers to draw, keys of `columns.COLUMNS`, each in a panel of its own
    shares     names of figures with which it has runs in common
    """

    number: str = ""
    name: str = ""
    source: str = ""
    title: str
    paper: str
    data: tuple[str, ...]
    schemes: Callable[[int], Sequence[Scheme]]
    settings: Sequence[int]
    setting: str
    lines: str = "averaging"
    world: Callable[[int], FigureWorld]
    few: tuple[Sequence[str], Sequence[int]]
    minutes: tuple[float, float, float]
    claims: Sequence[PaperClaim]
    across: bool = False
    log: bool = False
    runs: int = 10
    few_runs: int = 2
    notes: str = ""
    open: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("PM",)
    shares: tuple[str, ...] = ()

    def cells(self, size: RunSize) -> tuple[Cell, ...]:
        """Return a cell for each point of the figure."""
        return tuple(self._cell(size, scheme, setting) for scheme, setting in self._points(size))

    def _points(self, size: RunSize) -> Iterator[tuple[Scheme, int]]:
        names, few = self.few
        for setting in few if size.few else self.settings:
            for scheme in self.schemes(setting):
                if scheme.name in names or not size.few:
                    yield scheme, setting

    def cell(self, size: RunSize, scheme: str, setting: int) -> Cell:
        """Return the cell of a scheme at a setting."""
        (found,) = [each for each in self.schemes(setting) if each.name == scheme]
        return self._cell(size, found, setting)

    def _cell(self, size: RunSize, scheme: Scheme, setting: int) -> Cell:
        world = self.world(setting)
        place = Place(f"{setting:,}", float(scheme.name)) if self.across else Place(scheme.name, setting)
        return Cell(
            label=labelled(scheme.name, self.setting, setting),
            variants={"": world.request(scheme, size)},
            place=place,
            read=world.read,
        )

    @property
    def partly(self) -> bool:
        """True if the small size has fewer points."""
        return sum(1 for _ in self._points(_ALL)) > sum(1 for _ in self._points(_SOME))

    def experiment(self) -> Experiment:
        """Return the figure as an experiment."""
        sizes = (
            RunSize(
                rounds=1,
                seeds=self.few_runs,
                few=True,
                minutes=self.minutes[0],
                differs="Some of the figure's points." if self.partly else "",
            ),
            RunSize(rounds=1, seeds=3, minutes=self.minutes[1]),
            RunSize(rounds=1, seeds=self.runs, minutes=self.minutes[2]),
        )
        return Experiment(
            name=self.name or f"fig{self.number}",
            title=self.title,
            source=self.source or f"partial averaging 2021, figure {self.number}",
            paper=self.paper,
            data=self.data,
            columns=self.columns,
            sizes=dict(zip(("quick", "default", "full"), sizes, strict=True)),
            cells=self.cells,
            claims=tuple(self.claims),
            notes=self.notes,
            open=self.open,
            shares=self.shares,
            figure=Axes(
                number=self.number,
                runs=self.runs,
                lines=self.setting if self.across else self.lines,
                x="averaging level" if self.across else self.setting,
                log=self.log,
            ),
        )


_ALL, _SOME = (RunSize(rounds=1, seeds=1, minutes=0, few=few) for few in (False, True))


def labelled(scheme: str, setting: str, value: int) -> str:
    """Return the label of a cell."""
    return f"{scheme}; {setting}: {value:,}"
