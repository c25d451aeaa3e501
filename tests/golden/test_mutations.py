"""Each golden case turns red when one function that its adapter calls has a wrong sign, order or index.

A mutation wraps one of fedpeer's own functions, which shows that the case depends on that function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.gossip.mass import Mass
from fedpeer.slicing.flat import gather_group, scatter_
from fedpeer.slicing.models import ModelGraph
from fedpeer.slicing.plan import Plan, compile_plan
from fedpeer.topology.mixing import push_sum_matrix
from tests.golden.adapters import ADAPTERS
from tests.golden.mutating import assert_turned_red, name_of, needs_golden
from tests.reference import push_pull
from tests.reference.assign import layout_of_slices
from tests.reference.exact import weighted_mean
from tests.reference.mixing import metropolis_hastings
from tests.reference.push_sum import share_of
from tests.reference.synchronous import synchronous_round

HERE = "tests.golden.adapters"
#: The functions as they were before any mutation.
REDUCED, EXCHANGE = ModelGraph.reduced, push_pull.exchange


def share_the_rest(held: Mass, fraction: float) -> tuple[Mass, Mass]:
    """Send the share that should be kept."""
    kept, sent = share_of(held, fraction)
    return sent, kept


def receive_negated(held: Mass, sent: Mass) -> Mass:
    return held - sent


def rows_for_columns(graph: Any) -> Any:
    return scipy.sparse.csr_array(push_sum_matrix(graph).T)


def sends_by_rows(mass: Mass, matrix: Tensor) -> Mass:
    return synchronous_round(mass, matrix.T)


def reply_after_merging(asking: Mass, answering: Mass) -> tuple[Mass, Mass]:
    """Let the responder merge before it replies, so that the two do not meet in the middle."""
    merged, _ = EXCHANGE(asking, answering)
    return EXCHANGE(asking, merged)[0], merged


def gather_backwards(x_n: Tensor, index_D: Tensor) -> Tensor:
    return gather_group(x_n, index_D.flip(0))


def scatter_one_later(x_n: Tensor, index_D: Tensor, value_D: Tensor) -> Tensor:
    return scatter_(x_n, index_D, value_D.roll(1))


def mean_negated(mass: Mass) -> Tensor:
    return -weighted_mean(mass)


def other_algorithm(*arguments: Any, cross_model: bool) -> Plan:
    return compile_plan(*arguments, cross_model=not cross_model)


def by_position(network: Any, graph: ModelGraph, layers: dict[str, list[tuple[str, int]]]) -> Any:
    """Match neurons of a slice by their position on the peer, not by their index in the slice."""
    counted: dict[str, list[tuple[str, int]]] = {}
    for part, neurons in layers.items():
        models = [model for model, _ in neurons]
        counted[part] = [(model, models[:at].count(model)) for at, model in enumerate(models)]
    return layout_of_slices(network, graph, counted)


def dependencies_kept(graph: ModelGraph, names: Iterable[str]) -> frozenset[str]:
    """Keep the models on which other models depend, although they should be removed."""
    names = frozenset(names)
    return names - REDUCED(graph, names) or names


def closure_without_steps(graph: ModelGraph, name: str) -> frozenset[str]:
    return frozenset()


def two_less_the_matrix(graph: Any) -> Any:
    matrix = metropolis_hastings(graph)
    return scipy.sparse.csr_array(2 * scipy.sparse.eye_array(matrix.shape[0]) - matrix)


def nodes_backwards(graph: Any) -> Any:
    return scipy.sparse.csr_array(metropolis_hastings(graph).toarray()[::-1, ::-1])


def cut_one_later(order: NDArray[np.int64], places: Sequence[int]) -> list[NDArray[np.int64]]:
    return np.split(order, [place + 1 for place in places])


def cut_backwards(order: NDArray[np.int64], places: Sequence[int]) -> list[NDArray[np.int64]]:
    return np.split(order[::-1], places)


NETWORKS_CASES = ("02a_partial_averaging_fig5", "02b_partial_averaging_no_dependency", "02c_partial_averaging_diamond",
                  "02e_partial_averaging_chain")  # fmt: skip
MUTATIONS: list[tuple[str, str, Callable[..., Any]]] = [
    ("01a_push_sum_atomic", f"{HERE}.share_of", share_the_rest),
    ("01a_push_sum_atomic", f"{HERE}.receive", receive_negated),
    ("01b_push_sum_synchronous", f"{HERE}.push_sum_matrix", rows_for_columns),
    ("01b_push_sum_synchronous", f"{HERE}.synchronous_round", sends_by_rows),
    ("01c_push_sum_asynchronous", f"{HERE}.share_of", share_the_rest),
    ("01c_push_sum_asynchronous", f"{HERE}.receive", receive_negated),
    ("01d_push_pull_pairwise", "tests.reference.push_pull.exchange", reply_after_merging),
    *((stem, f"{HERE}.gather_group", gather_backwards) for stem in NETWORKS_CASES),
    *((stem, f"{HERE}.scatter_", scatter_one_later) for stem in NETWORKS_CASES),
    *((stem, f"{HERE}.weighted_mean", mean_negated) for stem in NETWORKS_CASES),
    *((stem, f"{HERE}.layout_of_slices", by_position) for stem in NETWORKS_CASES if not stem.startswith("02c")),
    ("02b_partial_averaging_no_dependency", f"{HERE}.compile_plan", other_algorithm),
    ("02c_partial_averaging_diamond", "fedpeer.slicing.models.ModelGraph.closure", closure_without_steps),
    ("02d_reduced_model_sets", "fedpeer.slicing.models.ModelGraph.reduced", dependencies_kept),
    ("02d_reduced_model_sets", "fedpeer.slicing.models.ModelGraph.closure", closure_without_steps),
    ("09_mixing_matrices", f"{HERE}.metropolis_hastings", two_less_the_matrix),
    ("09_mixing_matrices", f"{HERE}.metropolis_hastings", nodes_backwards),
    ("13_random_slicing", f"{HERE}.cut_examples", cut_one_later),
    ("13_random_slicing", f"{HERE}.cut_examples", cut_backwards),
]


@needs_golden
@pytest.mark.parametrize(("stem", "target", "mutant"), MUTATIONS, ids=name_of)
def test_one_mistake_turns_the_case_red(
    stem: str, target: str, mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_turned_red(stem, target, mutant, monkeypatch)


def test_every_adapter_has_a_mutation() -> None:
    assert {stem for stem, _, _ in MUTATIONS} == {stem for stem, each in ADAPTERS.items() if each.__module__ == HERE}
