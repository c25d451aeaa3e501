"""What the figures of a paper have in common: schemes of averaging times settings, a cell each, medians of some runs.

A scheme says what is averaged with whom, a setting is what the axis (or the line) of the figure says, and a `World` is
everything else. Cells that differ in the round after which they are read ask for the same run, which is played once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpeer.sims.experiments.asking import asked
from fedpeer.sims.experiments.experiment import Axes, Cell, Experiment, Place, Size
from fedpeer.sims.experiments.results import Claim

#: The paper's network for images; its k is 10 for digits.
CLASSIC = "mlp:784+300+100+10"

Models = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Scheme:
    """What is averaged with whom: a name in the figure, an algorithm, partial models as in a federation's file."""

    name: str
    method: str
    models: Models | None = None
    network: str = CLASSIC


@dataclass(frozen=True, kw_only=True)
class World:
    """Everything else of a run.

    updates   with one example each, between two averagings: the paper's mini-batch
    rounds    of updates; `every`: how many of them from one averaging to the next
    read      after which round the figure reads it, where one run is read several times
    read_every   rounds between two evaluations then
    """

    dataset: str
    split: str
    peers: int
    updates: int
    rounds: int
    every: int = 1
    read: int | None = None
    read_every: int = 10
    loss: str = "cross-entropy"

    def request(self, scheme: Scheme, size: Size) -> Any:
        return asked(
            scheme.method,
            size,
            learning={
                "steps_between_averaging": self.updates,
                "rounds": self.rounds,
                "loss": self.loss,
                "evaluate_every": self.rounds if self.read is None else self.read_every,
            },
            simulation={"dataset": self.dataset, "split": self.split, "peers": self.peers},
            network=scheme.network,
            partial_models=scheme.models,
            gossip={"protocol": "exact", "every": self.every},
        )


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the paper.

    schemes    of a setting
    settings   along the axis; or, where `across`, one line each, and along the axis the averaging level
    setting    what they are, in the plural
    few        names of schemes, and settings, of the small size
    runs       of the paper
    minutes    of the three sizes, on two cores
    """

    number: str
    title: str
    paper: str
    data: tuple[str, ...]
    schemes: Callable[[int], Sequence[Scheme]]
    settings: Sequence[int]
    setting: str
    world: Callable[[int], World]
    few: tuple[Sequence[str], Sequence[int]]
    minutes: tuple[float, float, float]
    claims: Sequence[Claim]
    across: bool = False
    log: bool = False
    runs: int = 10
    few_runs: int = 2
    notes: str = ""

    def cells(self, size: Size) -> tuple[Cell, ...]:
        """A cell a point."""
        return tuple(self._cells(size))

    def _cells(self, size: Size) -> Iterator[Cell]:
        names, few = self.few
        for setting in few if size.few else self.settings:
            for scheme in self.schemes(setting):
                if scheme.name in names or not size.few:
                    yield self._cell(size, scheme, setting)

    def _cell(self, size: Size, scheme: Scheme, setting: int) -> Cell:
        world = self.world(setting)
        place = Place(f"{setting:,}", float(scheme.name)) if self.across else Place(scheme.name, setting)
        return Cell(
            label=labelled(scheme.name, self.setting, setting),
            variants={"": world.request(scheme, size)},
            place=place,
            round=world.read,
        )

    @property
    def partly(self) -> bool:
        """Whether the small size lacks some points."""
        return len(self.cells(_ALL)) > len(self.cells(_SOME))

    def experiment(self) -> Experiment:
        """As it is played."""
        sizes = (
            Size(
                rounds=1,
                seeds=self.few_runs,
                few=True,
                minutes=self.minutes[0],
                differs="Some of the figure's points." if self.partly else "",
            ),
            Size(rounds=1, seeds=3, minutes=self.minutes[1]),
            Size(rounds=1, seeds=self.runs, minutes=self.minutes[2]),
        )
        return Experiment(
            name=f"fig{self.number}",
            title=self.title,
            source=f"partial averaging 2021, figure {self.number}",
            paper=self.paper,
            data=self.data,
            columns=("PM",),
            sizes=dict(zip(("quick", "default", "full"), sizes, strict=True)),
            cells=self.cells,
            claims=tuple(self.claims),
            notes=self.notes,
            figure=Axes(
                number=self.number,
                runs=self.runs,
                lines=self.setting if self.across else "averaging",
                x="averaging level" if self.across else self.setting,
                log=self.log,
            ),
        )


_ALL, _SOME = (Size(rounds=1, seeds=1, minutes=0, few=few) for few in (False, True))


def labelled(scheme: str, setting: str, value: int) -> str:
    """The label of a cell."""
    return f"{scheme}; {setting}: {value:,}"
