"""Figures of gossip beyond the papers: the request of a point, reading at a moment, and claims on made-up runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedpeer.config.choice import Choice
from fedpeer.config.federation import Federation
from fedpeer.experiments.columns import COLUMNS
from fedpeer.experiments.experiment import AtSecond, Cell, SizeName
from fedpeer.experiments.figure_lines import lines_of
from fedpeer.experiments.moments import at_second
from fedpeer.experiments.pictures import figure_picture
from fedpeer.experiments.registry import experiment
from fedpeer.experiments.results import CellResults, Measured
from fedpeer.experiments.runner import request_digest
from fedpeer.experiments.table import page_data, table_page
from fedpeer.runs.scores import METRICS
from fedpeer.sims.network.engine import SECONDS, NetworkEngine
from fedpeer.sims.network.faults import Faults, faults_from
from fedpeer.sims.network.links import LinkRules
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.request import SimulationRequest
from tests.sims import worlds

NAMES = ("push-sum", "message-loss", "stragglers")


def cells(name: str, size: SizeName = "default") -> dict[str, Cell]:
    each = experiment(name)
    made = each.cells(each.sizes[size])
    assert len({cell.label for cell in made}) == len(made), "every label once"
    return {cell.label: cell for cell in made}


def request(cell: Cell) -> SimulationRequest:
    (found,) = cell.variants.values()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_small_size_is_part_of_the_others_and_something_is_claimed_of_it(name: str) -> None:
    few, default, full = (cells(name, size) for size in ("quick", "default", "full"))
    assert few.keys() < default.keys() == full.keys()
    claims = experiment(name).claims
    assert all(set(claim.needs) <= default.keys() for claim in claims)
    assert sum(set(claim.needs) <= few.keys() for claim in claims) >= 3
    assert all(COLUMNS[column].title for column in experiment(name).columns)


def test_push_sum_differs_from_the_exact_mean_in_graph_and_exchanges_alone() -> None:
    found = cells("push-sum")
    wanted = request(found["exact mean; exchanges in an averaging: 1"])
    assert (wanted.engine, wanted.methods) == ("vector", (Choice("partial-averaging"),))
    assert wanted.federation.gossip.protocol == "exact"
    exact = wanted.federation.model_copy(update={"gossip": Federation().gossip})
    for number in (1, 2, 4, 8):
        same = request(found[f"exact mean; exchanges in an averaging: {number}"])
        assert request_digest(same) == request_digest(wanted), "one run for all its points"
        for graph in ("ring", "k-regular:4", "one-peer-exponential", "complete"):
            made = request(found[f"{graph}; exchanges in an averaging: {number}"])
            gossip = made.federation.gossip
            assert (str(gossip.topology), gossip.exchanges, gossip.protocol) == (graph, number, "push-sum")
            assert made.federation.model_copy(update={"gossip": Federation().gossip}) == exact
    assert request(found["alone; exchanges in an averaging: 1"]).methods == (Choice("local"),)


def test_messages_are_lost_in_the_shares_that_the_axis_says() -> None:
    found = cells("message-loss")
    modes = {
        "synchronous push-sum": ("synchronous", "push-sum"),
        "asynchronous push-sum": ("asynchronous", "push-sum"),
        "coordinator": ("synchronous", "coordinator"),
    }
    for line, (mode, protocol) in modes.items():
        for percent in (0, 10, 20, 30):
            made = request(found[f"{line}; messages lost, %: {percent}"])
            assert made.engine == "network"
            assert faults_from(made.faults, ["peer1"]) == Faults(links=LinkRules(loss=percent / 100))
            assert (made.federation.learning.mode, made.federation.gossip.protocol) == (mode, protocol)
            assert made.federation.learning.rounds == 12


def test_stragglers_are_so_many_and_a_run_is_read_at_every_second() -> None:
    found = cells("stragglers")
    peers = [f"peer{number}" for number in range(1, 17)]
    for mode in ("synchronous", "asynchronous"):
        for slow in (0, 2, 4):
            cells_of = [found[f"{mode}, {slow} slow; virtual seconds: {second}"] for second in (1, 2, 3)]
            assert [cell.read for cell in cells_of] == [AtSecond(1), AtSecond(2), AtSecond(3)]
            assert len({request_digest(request(cell)) for cell in cells_of}) == 1
            made = request(cells_of[0])
            paces = faults_from(made.faults, peers).paces if made.faults else ()
            assert [times for _, times in paces] == [10.0] * slow
            assert made.federation.learning.mode == mode
            waits = mode == "synchronous"
            round = 0.8 if slow and waits else 0.1 if waits else 0.08  # 80 updates, and exchanges if a peer waits
            assert made.federation.learning.rounds * round >= 2.8, "nobody is done long before it is read"
            assert made.federation.learning.evaluate_every == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_requests_can_be_played(name: str) -> None:
    """Preparation succeeds: protocols, graphs and faults go together. MNIST is not needed for that."""
    seen = set()
    for cell in cells(name, "quick").values():
        made = request(cell)
        if request_digest(made) in seen:
            continue
        seen.add(request_digest(made))
        small = made.federation.simulation.model_copy(update={"dataset": Choice("digits"), "split": None})
        federation = made.federation.model_copy(update={"simulation": small, "network": None})
        prepare_simulation(
            SimulationRequest(
                federation=federation, methods=made.methods, engine=made.engine, faults=made.faults, workers=1
            )
        )


# ------------------------------------------------------------------------------------------------------- at a moment


def row(number: int, seconds: list[float], scores: list[float] | None, seed: int = 0) -> dict[str, Any]:
    evaluated = {} if scores is None else {"statistics": {SECONDS: seconds}}
    return {
        "method": "local",
        "seed": seed,
        "round": number,
        "seconds": 0.1,
        "accuracy": scores,
        "loss": scores,
        "tested": [1, 1],
        "bytes_sent": [10 * number, 1],
        "messages_sent": [number, 1],
        "disagreement": {},
        "weight": {},
        **evaluated,
    }


ROWS = [
    row(1, [1.0, 3.0], [0.1, 0.2]),
    row(2, [2.0, 6.0], None),
    row(3, [3.0, 9.0], [0.3, 0.4]),
    row(1, [0.5, 0.6], [0.7, 0.8], seed=1),
]


@pytest.mark.parametrize(
    ("second", "scores", "sent"), [(3.0, [0.3, 0.2], 11), (8.9, [0.3, 0.2], 11), (9.0, [0.3, 0.4], 63)]
)
def test_at_a_moment_a_peer_is_as_good_as_its_last_model(second: float, scores: list[float], sent: int) -> None:
    first, second_seed = at_second([each | {"disagreement": {"a": 0.5}} for each in ROWS], second)
    assert first["accuracy"] == scores
    assert sum(first["bytes_sent"]) == sent, "of the rounds that both have finished"
    assert second_seed["accuracy"] == [0.7, 0.8]
    measured = Measured.of("x", [first, second_seed], variant="", tried={}, seconds=0.0)
    assert measured.seeds == (0, 1)
    assert measured.per_seed["PM"] == pytest.approx((sum(scores) / 2, 0.75))
    assert "disagreement" not in measured.statistics, "peers are in different rounds"


def test_before_its_first_model_nothing_is_read() -> None:
    with pytest.raises(AssertionError, match="peer 2 had not finished"):
        at_second(ROWS[:3], 2.9)


def test_the_engines_name_for_time_is_the_columns() -> None:
    assert COLUMNS["seconds"].metric == SECONDS


def test_how_far_peers_are_apart_is_of_the_group_that_is_furthest() -> None:
    rows = [row(1, [1.0, 1.0], [0.5, 0.5], seed) | {"disagreement": {"a": 0.1, "b": 0.3 + seed}} for seed in (1, 0)]
    measured = Measured.of("x", rows, variant="", tried={}, seconds=0.0)
    assert COLUMNS["disagreement"].values(measured) == pytest.approx((30.0, 130.0))


# ------------------------------------------------------------------------------------------------------------- claims


def results(name: str, value: Callable[[str, float], dict[str, float]]) -> CellResults:
    """Return every cell with the metrics, as fractions, and statistics that `value` gives for its line and x."""
    found = {}
    for label, cell in cells(name).items():
        assert cell.place is not None
        given = value(cell.place.line, cell.place.x)
        found[label] = Measured(
            label=label,
            variant="",
            seeds=(0, 1),
            rounds=1,
            peers=16,
            per_seed={key: (number, number) for key, number in given.items() if key in METRICS},
            sent=1e6,
            seconds=0,
            statistics={key: (number, number) for key, number in given.items() if key not in METRICS},
        )
    return found


def verdicts(name: str, value: Callable[[str, float], dict[str, float]]) -> list[bool | None]:
    found = results(name, value)
    return [claim.check(found).held for claim in experiment(name).claims]


#: Share of a disagreement that remains after one exchange.
LEFT = {"complete": 0.0, "one-peer-exponential": 0.5, "k-regular:4": 0.75, "ring": 0.95}


def mixing(line: str, exchanges: float) -> dict[str, float]:
    """Return scores in which the remaining disagreement costs up to one point, and learning alone ten."""
    left = LEFT.get(line, 0.0) ** exchanges if (line, exchanges) != ("one-peer-exponential", 4) else 0.0
    return {"PM": 0.8 if line == "alone" else 0.9 - 0.01 * left, "disagreement": left}


def test_claims_of_push_sum() -> None:
    assert verdicts("push-sum", mixing) == [True] * 7
    nowhere = verdicts("push-sum", lambda line, x: {"PM": 0.9 if line == "exact mean" else 0.8, "disagreement": 0.5})
    assert nowhere == [False, False, False, False, True, False, False]


def test_claims_of_message_loss() -> None:
    def kept(line: str, percent: float) -> dict[str, float]:
        return {"PM": 0.9 - (percent / 5000 if line.startswith("a") else 0.0), SECONDS: 1 + percent * (line[0] == "s")}

    assert verdicts("message-loss", kept) == [True] * 5
    lost = verdicts("message-loss", lambda line, percent: {"PM": 0.9 - percent / 1000, SECONDS: 1.0})
    assert lost == [False] * 5


def test_claims_of_stragglers() -> None:
    def waiting(line: str, seconds: float) -> dict[str, float]:
        rounds = seconds * (0.1 if line == "synchronous, 4 slow" else 1.0)
        return {"PM": 0.9 - 0.1 / (1 + rounds)}

    assert verdicts("stragglers", waiting) == [True] * 4
    assert verdicts("stragglers", lambda line, x: {"PM": 0.8 if "asyn" in line and "4" in line else 0.9}) == [
        False,
        False,
        True,
        False,
    ]


def test_each_column_has_a_panel_and_a_table() -> None:
    each = experiment("message-loss")
    size = each.sizes["default"]
    made = each.cells(size)
    found = results("message-loss", lambda line, percent: {"PM": 0.9 - percent / 1000, SECONDS: 1.0 + percent})
    where: dict[str, Any] = {
        "command": "fedpeer experiment run message-loss",
        "environment": {"packages": {}, "device": "cpu", "git": None, "processors": 2, "python": "Python"},
        "workers": 1,
    }
    data = page_data(each, size, "default", made, found, where)
    text = table_page(data)
    assert "| synchronous push-sum | 90.0 | 89.0 | 88.0 | 87.0 |" in text
    assert "| synchronous push-sum | 1.00 | 11.00 | 21.00 | 31.00 |" in text
    assert "the paper has" not in text
    assert [x for x, _ in lines_of(data, "seconds")[0].points] == [0, 10, 20, 30]
    svg, two, alone = (figure_picture({**data, "columns": data["columns"][:count]}) for count in (3, 2, 1))
    for words in ("accuracy, %", "virtual seconds", "MB a round"):
        assert words in svg
    assert svg.count("messages lost, %") == 3
    assert svg.count("coordinator") == alone.count("coordinator"), "one legend for all panels"
    height = [float(each.partition('viewBox="')[2].partition('"')[0].split()[3]) for each in (svg, two, alone)]
    assert height[0] - height[1] == height[1] - height[2] > 200, "panels of one height, and a legend above the first"


def test_what_a_request_says_goes_wrong_reaches_the_peers() -> None:
    federation = worlds.federation(learning__mode="asynchronous", learning__rounds=2)
    wanted = SimulationRequest(federation=federation, engine="network", faults="slow:2")
    simulation = prepare_simulation(wanted)
    with NetworkEngine(simulation.world, wanted.methods[1], faults=simulation.faults) as nodes:
        for _ in range(2):
            nodes.step()
        nodes.evaluate()
        seconds = nodes.statistics()[SECONDS]
    others = [each for peer, each in enumerate(seconds) if peer != 1]
    assert seconds[1] - max(others) > 0.1, "sixteen updates of 10 ms beside sixteen of 1 ms"
