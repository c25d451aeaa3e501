"""MOCHA's time: the round that is read, the time until then by hand, and claims if a method never gets that far."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpeer.algorithms.mocha.comparators import METHODS, NETWORKS
from fedpeer.experiments.columns import COLUMNS
from fedpeer.experiments.experiment import AtObjective, RunSize
from fedpeer.experiments.figure import FigureWorld, Scheme
from fedpeer.experiments.mocha_time import TIME
from fedpeer.experiments.moments import at_objective, read_at
from fedpeer.experiments.registry import experiment
from fedpeer.experiments.results import Measured
from fedpeer.runs.folder import RunFolder
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.simulate import run_prepared

#: Operations of a step and communication of a round, in units of as many operations as there are features.
STEP = {"mocha": 8, "cocoa": 8, "minibatch-sdca": 6, "minibatch-sgd": 4}
ROUND = {"wifi": 10, "lte": 100, "3g": 1000}


def row(number: int, primal: list[float], steps: list[int], seed: int = 0, method: str = "mocha,passes=1") -> Any:
    return {
        "method": method,
        "seed": seed,
        "round": number,
        "seconds": 0.1,
        "accuracy": [number / 10, 0.5],
        "loss": [0.1, 0.1],
        "tested": [1, 1],
        "bytes_sent": [1, 1],
        "messages_sent": [1, 1],
        "disagreement": {},
        "weight": {},
        "statistics": {"primal": primal, "steps": steps, "gap": [0.0, 0.0]},
    }


def rows(method: str = "mocha,passes=1") -> list[Any]:
    """Return rows whose objective goes from 2 to 1.5, 0.9, 1.1, and with another seed to 0.8 at once."""
    one = [([1.0, 1.0], [3, 5]), ([1.0, 0.5], [2, 6]), ([0.5, 0.4], [9, 9]), ([0.5, 0.6], [9, 9])]
    other = [([1.0, 1.0], [1, 1]), ([0.4, 0.4], [9, 9])]
    made = [row(number, *each, method=method) for number, each in enumerate(one, start=1)]
    return made + [row(number, *each, seed=1, method=method) for number, each in enumerate(other, start=1)]


@pytest.mark.parametrize(
    ("method", "steps"),
    [("mocha", (16, 2)), ("minibatch-sdca", (16, 2)), ("minibatch-sgd", (16, 2)), ("cocoa", (22, 2))],
)
def test_the_rounds_before_it_was_so_small_count(method: str, steps: tuple[int, int]) -> None:
    """Two rounds of seed 0 count, with 3 + 5 and 2 + 6 steps, and one of seed 1; all of CoCoA's nodes take as long as
    the slowest."""
    measured = Measured.of(
        "x", at_objective(rows(f"{method},lam=1"), AtObjective(0.5, 7)), variant="", tried={}, seconds=0
    )
    for network in NETWORKS:
        units = [STEP[method] * each + rounds * ROUND[network] for each, rounds in zip(steps, (2, 1), strict=True)]
        assert COLUMNS[network].values(measured) == pytest.approx([each * 7 / 1e9 for each in units])
    assert measured.per_seed["PM"] == pytest.approx((0.4, 0.35))


def test_who_never_comes_so_far_in_some_run_has_no_seconds() -> None:
    measured = Measured.of("x", at_objective(rows(), AtObjective(0.42, 7)), variant="", tried={}, seconds=0)
    assert all(COLUMNS[network].values(measured) is None for network in NETWORKS)
    assert measured.per_seed["PM"] == pytest.approx((0.45, 0.35)), "the last round of seed 0"


def test_all_lines_solve_one_problem_and_one_run_is_read_five_times() -> None:
    made = experiment("mocha-time")
    cells = made.cells(made.sizes["default"])
    requests = {cell.label.partition(";")[0]: cell.variants[""] for cell in cells}
    assert len(cells) == 5 * len(requests)
    assert all(cell.variants[""] == requests[cell.label.partition(";")[0]] for cell in cells)
    [methods] = {len(request.methods) for request in requests.values()}
    assert methods == 1
    choices = [request.methods[0] for request in requests.values()]
    assert {choice.name for choice in choices} == set(METHODS)
    assert len({tuple(str(choice.settings[name]) for name in ("omega", "lam", "ridge")) for choice in choices}) == 1


def test_claims_of_who_is_sooner_and_of_slow_networks() -> None:
    def measured(label: str, **seconds: float) -> Measured:
        return of_runs(label, **{network: (each,) for network, each in seconds.items()})

    def of_runs(label: str, **seconds: tuple[float, ...]) -> Measured:
        seeds = tuple(range(max(map(len, seconds.values()), default=1)))
        return Measured(
            label=label,
            variant="",
            seeds=seeds,
            rounds=1,
            peers=2,
            per_seed={"PM": (0.9,) * len(seeds)},
            sent=0,
            seconds=0,
            statistics=seconds,
        )

    for claim in (each for each in TIME.claims if len(each.needs) == 2):
        network = next(name for name in NETWORKS if f" {COLUMNS[name].title} " in claim.text)
        mine, published = claim.needs
        for own, other, held in ((0.9, 1.0, True), (1.0, 1.0, False), (1.1, 1.0, False), (1.0, None, True)):
            there = {} if other is None else {network: other}
            results = {mine: measured(mine, **{network: own}), published: measured(published, **there)}
            assert claim.check(results).held is held
        assert claim.check({mine: measured(mine), published: measured(published)}).held is False
        assert claim.check({}).held is None
    alone = [each for each in TIME.claims if len(each.needs) == 1]
    assert alone
    for claim in alone:
        (label,) = claim.needs
        verdicts = [claim.check({label: measured(label, wifi=1.0, **{"3g": far})}).held for far in (1.0, 10.0)]
        assert sorted(verdicts, key=str) == [False, True]
        for far in (1.05, 1.15, 1.25):
            one = claim.check({label: measured(label, wifi=1.0, **{"3g": far})})
            of_three = of_runs(label, wifi=(1.0, 1.0, 1.0), **{"3g": (far, far, 9.0)})
            assert claim.check({label: of_three}).held == one.held, "its median decides"
        assert claim.check({label: measured(label)}).held is None


@pytest.mark.slow
def test_of_real_runs_the_time_is_that_of_their_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole pass over each of six tasks of forty digits is 240 steps a round in any case."""
    (tmp_path / "two_classes.py").write_text(
        "from sklearn.datasets import load_digits\n"
        "def load():\n"
        "    x, y = load_digits(return_X_y=True)\n"
        "    return (x / 16).astype('float32'), (y < 5).astype('int64')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    world = FigureWorld(
        dataset="python:two_classes:load",
        split="blocks:40,test=50",
        peers=6,
        updates=1,
        rounds=12,
        read_every=1,
        read=AtObjective(0.7, 64),
        loss="binary",
    )
    seconds = {}
    for scheme in TIME.schemes(10):
        if scheme.name in ("MOCHA", "CoCoA"):
            short = Scheme(scheme.name, scheme.method, network="linear", learning={"rounds": 12})
            request = replace(world.request(short, RunSize(rounds=1, seeds=1, minutes=0)), workers=1)
            run = RunFolder.create(tmp_path / "runs", name="test", settings=request.to_json(), environment={})
            run_prepared(prepare_simulation(request), run)
            [read] = read_at(run.rows(), AtObjective(0.7, 64))
            seconds[scheme.name] = read["statistics"]
    for network, cost in ROUND.items():
        [took] = seconds["MOCHA"][network]
        rounds = took * 1e9 / 64 / (240 * STEP["mocha"] + cost)
        assert rounds == pytest.approx(round(rounds))
        assert 1 <= rounds < 12
    assert set(seconds["CoCoA"]) == set(ROUND)


def test_a_size_of_some_points_is_smaller() -> None:
    some, whole = (TIME.cells(RunSize(rounds=1, seeds=1, minutes=0, few=few)) for few in (True, False))
    assert {cell.label for cell in some} < {cell.label for cell in whole}
