"""Averaging blocks of columns: a view gives what gathering would give, and blocks cover each column once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor

from fedpeer.config.choice import parse_choice
from fedpeer.sims.memory import workspace_of
from fedpeer.sims.vector import gossip_rounds, tasks
from fedpeer.sims.vector.gossip_rounds import columns
from fedpeer.sims.vector.tasks import Disagreement, Mix, Mixing, disagreement_of_columns, mix, multiplied
from fedpeer.sims.vector.workspace import Region, Workspace
from fedpeer.sims.world import World, plan_of
from fedpeer.slicing.plan import Plan
from tests.sims.worlds import federation, same_bits, world

MEMBERS, WIDTH = 7, 50
#: Rows and columns of a (9, 50) tensor, and whether they are a rectangle in it.
REGIONS: dict[str, tuple[Tensor, Tensor, bool]] = {
    "everything": (torch.arange(9), torch.arange(WIDTH), True),
    "some consecutive rows and columns": (torch.arange(2, 9), torch.arange(11, 40), True),
    "one scalar": (torch.tensor([8]), torch.tensor([49]), True),
    "every second row": (torch.arange(0, 9, 2), torch.arange(11, 40), False),
    "rows in another order": (torch.tensor([1, 0]), torch.arange(11, 40), False),
    "two runs of columns": (torch.arange(9), torch.cat([torch.arange(5), torch.arange(30, 50)]), False),
    "other columns for each row": (torch.arange(2), torch.stack([torch.arange(5), torch.arange(5).flip(0)]), False),
}


@pytest.mark.parametrize("name", REGIONS)
def test_a_region_is_what_indexing_every_scalar_gives_and_a_rectangle_is_no_copy(name: str) -> None:
    rows, index, rectangle = REGIONS[name]
    x_Pn, region = torch.arange(9.0 * WIDTH).view(9, WIDTH), Region(rows, index, WIDTH)
    scalars_MD = torch.stack([x_Pn[row, index if index.dim() == 1 else index[m]] for m, row in enumerate(rows)])
    assert torch.equal(region.of(x_Pn), scalars_MD)
    assert (region.view(x_Pn) is not None) is rectangle
    expected, written = x_Pn.clone(), x_Pn.clone()
    for m, row in enumerate(rows):
        expected[row, index if index.dim() == 1 else index[m]] = -scalars_MD[m]
    region.put(written, -scalars_MD)
    assert torch.equal(written, expected)
    x_Pn.zero_()
    assert bool(region.of(x_Pn).any()) is False


def plan_of_one(made: World) -> Plan:
    """Return a plan with one group of all peers and all columns."""
    return plan_of(made, parse_choice("full-averaging"))


def group_of(x_Pn: Tensor, *, gathered: bool) -> Workspace:
    """Return a workspace with one group of rows 1..7 and all columns but the first two, read as a view or gathered."""
    made, index = world(federation()), torch.arange(2, x_Pn.shape[1])
    return replace(
        workspace_of(made, plan_of_one(made), "cpu")(),
        x=(x_Pn.clone(), torch.zeros_like(x_Pn)),
        index={"g": index.expand(MEMBERS, -1) if gathered else index},
        rows={"g": torch.arange(1, 1 + MEMBERS)},
    )


def matrices() -> dict[str, Mixing]:
    dense = np.random.default_rng(0).random((MEMBERS, MEMBERS))
    dense /= dense.sum(1, keepdims=True)
    return {"dense": dense, "sparse": scipy.sparse.csr_array(dense * (dense > 0.1)), "exact": dense[0]}


@pytest.mark.parametrize(
    ("kind", "compiled"),
    [("dense", False), ("sparse", False), pytest.param("sparse", True, id="compiled"), ("exact", False)],
)
def test_a_view_is_averaged_to_the_bits_of_gathered_columns_and_they_are_right(
    kind: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_MIXED_IN_CACHE", 16 * MEMBERS)  # pieces of 16 columns
    monkeypatch.setattr(tasks, "_COMPILED_FROM", 0 if compiled else 10**9)
    matrix, x_Pn = matrices()[kind], torch.randn(MEMBERS + 2, WIDTH, generator=torch.Generator().manual_seed(1))
    viewed, gathered = (group_of(x_Pn, gathered=way) for way in (False, True))
    for workspace in (viewed, gathered):
        for start, stop in ((0, 31), (31, WIDTH - 2)):
            mix(workspace, multiplied(matrix, x_Pn.device), Mix("g", start, stop, 0))
    assert same_bits(viewed.x[1], gathered.x[1])
    expected = torch.zeros_like(x_Pn, dtype=torch.float64)
    whole = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
    expected[1:-1, 2:] = torch.from_numpy(whole) @ x_Pn[1:-1, 2:].double()
    assert torch.allclose(viewed.x[1].double(), expected, rtol=0, atol=4 * torch.finfo(torch.float32).eps)
    (apart, norm), (apart_too, norm_too) = (
        disagreement_of_columns(workspace, Disagreement("g", 0, 31, 0)) for workspace in (viewed, gathered)
    )
    assert np.array_equal(apart, apart_too)
    assert norm == norm_too


def test_blocks_of_columns_cover_each_vector_once_in_almost_equal_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of_one(world(federation(network="mlp:64+100+10")))
    (group,) = plan.groups
    twice = replace(plan, vectors=2, groups=(replace(group, length=2 * group.length),))
    monkeypatch.setattr(gossip_rounds, "_MIXED_AT_ONCE", 2000 * len(group.members))
    found = columns(twice)
    assert [a for _, a, _ in found] == [0, *(b for _, _, b in found[:-1])]
    assert found[-1][2] == 2 * group.length == 2 * 7510
    assert [b - a for _, a, b in found] == 2 * [1878, 1878, 1878, 1876]
