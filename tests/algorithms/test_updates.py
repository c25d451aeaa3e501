"""Faults that are found in updates, and honest updates, none of which is rejected for any algorithm."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from fedpeer.algorithms.leaves import leaves_of, take_rows
from fedpeer.algorithms.servers.ifca import ClusterModels, Estimated
from fedpeer.algorithms.servers.models import Local, ServerModel
from fedpeer.algorithms.servers.pfedbayes import PFedBayes, PFedBayesServer, PFedBayesUpdate
from fedpeer.algorithms.servers.scaffold import ControlledModel, ScaffoldUpdate
from fedpeer.algorithms.updates import EXAMPLES_MAX, fault, length, strayed, too_far
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.rejection import Rejection
from tests.algorithms.client_factory import batches, starts
from tests.algorithms.server_factory import MAKERS, MODULE, Algorithm, bench_of

Leaves = dict[str, Tensor]


def update() -> Leaves:
    return {
        "model_n": torch.arange(4.0) - 2,
        "factor.xi_n": torch.full((4,), 0.5, dtype=torch.float64),
        "examples": torch.tensor(12),
    }


def put(name: str, leaf: Tensor) -> Callable[[Leaves], Leaves]:
    return lambda found: found | {name: leaf}


def found_in(changed: Mapping[str, Tensor]) -> Rejection | None:
    return fault(changed, update(), positive=("factor.xi_n",))


#: Ids are those of the table of bad inputs where the table has a row for the case.
WRONG = [
    pytest.param(
        lambda found: {k: v for k, v in found.items() if k != "model_n"}, "wrong_shape", "model_n is missing", id="less"
    ),
    pytest.param(
        put("extra" * 50, torch.ones(1)),
        "wrong_shape",
        "is unknown; an update has model_n, factor.xi_n, examples",
        id="more",
    ),
    pytest.param(
        put("model_n", torch.ones(5)), "wrong_shape", r"has shape \(5,\), and should have \(4,\)", id="longer"
    ),
    pytest.param(put("model_n", torch.ones(1, 4)), "wrong_shape", r"has shape \(1, 4\)", id="block"),
    pytest.param(put("model_n", torch.ones(4).double()), "wrong_dtype", "is float64, and should be float32", id="type"),
    pytest.param(
        put("model_n", torch.tensor([0.0, 1.0, torch.nan, torch.nan])), "not_finite", "2 of 4 numbers", id="nan"
    ),
    pytest.param(put("factor.xi_n", torch.full((4,), -torch.inf).double()), "not_finite", "4 of 4 numbers", id="inf"),
    pytest.param(
        put("examples", torch.tensor(0)),
        "bad_sample_count",
        "examples = 0, and must be a whole number from 1 to",
        id="R13-none",
    ),
    pytest.param(put("examples", torch.tensor(-7)), "bad_sample_count", "examples = -7", id="R13-negative"),
    pytest.param(
        put("examples", torch.tensor(EXAMPLES_MAX + 1)), "bad_sample_count", "to 10,000,000,000", id="R13-many"
    ),
    pytest.param(
        put("factor.xi_n", torch.tensor([1.0, 0.0, 2.0, 3.0]).double()),
        "bad_precision",
        "least number of factor.xi_n is 0,",
        id="R14-flat",
    ),
    pytest.param(
        put("factor.xi_n", torch.tensor([1.0, -0.25, 2.0, 3.0]).double()),
        "bad_precision",
        "least number of factor.xi_n is -0.25,",
        id="R14-below",
    ),
]


@pytest.mark.parametrize(("change", "code", "words"), WRONG)
def test_what_cannot_be_is_named(change: Callable[[Leaves], Leaves], code: str, words: str) -> None:
    found = found_in(change(update()))
    assert found is not None
    assert found.code == code
    assert code in REJECTIONS
    assert len(found.text) < 300
    assert re.search(words, found.text)


def test_what_is_well_is_taken() -> None:
    assert found_in(update()) is None
    assert found_in(update() | {"examples": torch.tensor(EXAMPLES_MAX)}) is None
    assert found_in(update() | {"model_n": torch.full((4,), -3e38)}) is None


def test_a_count_is_whole_in_whatever_type_it_travels() -> None:
    template = {"examples": torch.tensor(1.0)}
    assert fault({"examples": torch.tensor(3.0)}, template) is None
    halves = fault({"examples": torch.tensor(3.5)}, template)
    assert halves == Rejection(
        "bad_sample_count", "examples = 3.5, and must be a whole number from 1 to 10,000,000,000"
    )
    assert fault({"examples": torch.tensor(3.0)}, template, examples_max=2) is not None


@pytest.mark.parametrize("name", MAKERS)
def test_honest_updates_of_every_algorithm_are_taken(name: str) -> None:
    algorithm, x_Bn = MAKERS[name]("stack"), starts(MODULE, 3)
    broadcast = algorithm.open(algorithm.start_server(x_Bn[0]), 1)
    clients = algorithm.start_client(x_Bn, torch.tensor([10, 300, 60]))
    _, updates = algorithm.train(clients, broadcast, batches(), (1, 2, 3))
    template = leaves_of(take_rows(updates, 0))
    lengths = []
    for row in range(3):
        sent = leaves_of(take_rows(updates, row))
        assert fault(sent, template, counts=algorithm.counts, positive=algorithm.positive) is None
        lengths.append(length({name: leaf[row] for name, leaf in algorithm.changes(broadcast, updates).items()}))
        broken = sent | {"model_n": sent["model_n"] * torch.nan}
        assert fault(broken, template, counts=algorithm.counts, positive=algorithm.positive) is not None
    assert too_far(lengths, limit=100.0) == [None] * 3
    found = strayed(algorithm.changes(broadcast, updates), 1.01)
    assert found == too_far(lengths, limit=1.01), "of all at once as of each alone"


def test_a_length_is_that_of_the_change_and_not_of_the_model() -> None:
    model_n, examples = torch.tensor([100.0, 200.0, 300.0]), torch.tensor([40.0])
    became_n = torch.tensor([[103.0, 200.0, 304.0]])

    def moved(algorithm: Algorithm, broadcast: Any, sent: Any) -> float:
        return length({name: leaf[0] for name, leaf in algorithm.changes(broadcast, sent).items()})

    assert moved(MAKERS["fedavg"]("stack"), ServerModel(model_n), Local(became_n, examples)) == 5
    scaffold = ScaffoldUpdate(torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([[2.0]]))
    assert moved(MAKERS["scaffold"]("stack"), ControlledModel(model_n, model_n), scaffold) == 3
    models = ClusterModels(torch.stack([torch.zeros(3), model_n]))
    for cluster, expected in ((1, 5.0), (0, float(became_n.norm())), (99, 5.0), (-9, float(became_n.norm()))):
        estimated = Estimated(became_n, examples, torch.tensor([cluster]))
        assert moved(MAKERS["ifca"]("stack"), models, estimated) == pytest.approx(expected), "from the model it chose"
    copy = PFedBayesUpdate(became_n, torch.full((1, 3), 0.1), examples)
    assert moved(PFedBayes(bench_of("stack")), PFedBayesServer(model_n, 0 * model_n + 9), copy) == 5


LENGTHS = some.lists(some.floats(0, 1e6), min_size=1, max_size=9)


@settings(deadline=None)
@given(LENGTHS, some.floats(1, 1e3))
def test_who_went_too_far_is_said_of_each(lengths: list[float], limit: float) -> None:
    found = too_far(lengths, limit=limit)
    middle = torch.tensor(lengths, dtype=torch.float64).quantile(0.5).item()
    judged = len(lengths) >= 3 and middle > 0
    assert [each is not None for each in found] == [judged and each > limit * middle for each in lengths]
    assert sum(each is not None for each in found) <= len(lengths) // 2, "most are never refused"


def test_a_minority_cannot_have_honest_updates_refused() -> None:
    honest = [1.0, 2.0, 5.0]
    for lies in ([0.0, 0.0], [1e-9, 1e-9], [1e9, 1e9], [0.0, 1e9]):
        found = too_far(honest + lies, limit=100.0)
        assert found[:3] == [None] * 3
        assert [each is not None for each in found[3:]] == [lie > 100 * 5 for lie in lies]
    assert too_far([1.0, 1e9], limit=2.0) == [None, None], "of two nobody can say which"
    assert too_far([0.0, 0.0, 1.0], limit=2.0) == [None] * 3
