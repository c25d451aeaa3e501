"""Slices of a transformer: whole heads and hidden units, the numbers that a level owns, claims about the levels."""

from __future__ import annotations

import pytest
import torch

from fedpeer.config.choice import Choice, parse_choice
from fedpeer.experiments.attention_figure import ATTENTION
from fedpeer.experiments.experiment import Cell, SizeName
from fedpeer.experiments.registry import experiment
from fedpeer.networks.registry import transformer
from fedpeer.sims.request import SimulationRequest
from fedpeer.slicing.models import ModelGraph
from fedpeer.slicing.plan import Group, compile_plan
from fedpeer.slicing.trace import trace

HEADS, HIDDEN, WIDTH, ROWS, COLUMNS, DIGITS = 4, 400, 32, 28, 28, 10
PEERS = tuple(f"peer{number}" for number in range(1, 17))


def cells(size: SizeName = "default") -> dict[str, Cell]:
    each = experiment("attention-slices")
    return {cell.label: cell for cell in each.cells(each.sizes[size])}


def request(scheme: str, examples: str = "400") -> SimulationRequest:
    (found,) = cells()[f"{scheme}; training examples: {examples}"].variants.values()
    return found


def everyones(scheme: str) -> tuple[Group, dict[str, torch.Tensor]]:
    """Return the averaged group, and for each tensor of a peer a mask of its numbers in that group."""
    module = transformer((1, ROWS, COLUMNS), DIGITS, width=WIDTH, heads=HEADS, layers=2, hidden=HIDDEN)
    network = trace(module, torch.zeros(2, 1, ROWS, COLUMNS))
    plan = compile_plan(dict.fromkeys(PEERS, network), ModelGraph(request(scheme).federation.models()))
    (group,) = plan.groups
    owned_n = torch.zeros(sum(p.numel() for p in module.parameters()), dtype=torch.bool)
    owned_n[torch.from_numpy(group.indices["peer3"])] = True
    return group, {each.name: owned_n[each.span].view(each.shape) for each in network.tensors}


@pytest.mark.parametrize("level", [100, 200, 300])
def test_a_level_owns_whole_heads_and_hidden_units(level: int) -> None:
    """A level with h heads and u units owns in each block h heads' rows of queries, keys and values and columns of the
    output projection, and the rows and columns of u units; outside the blocks everything."""
    group, owned = everyones(str(level))
    heads, size = HEADS * level // HIDDEN, WIDTH // HEADS
    assert group.members == PEERS
    of_heads = heads * size * (4 * WIDTH + 3) + WIDTH
    of_units = level * (2 * WIDTH + 1) + WIDTH
    norms = 2 * 2 * WIDTH
    outside = (COLUMNS + 1 + ROWS + 2) * WIDTH + (WIDTH + 1) * DIGITS
    assert group.length == 2 * (of_heads + of_units + norms) + outside
    for block in ("block1", "block2"):
        common = owned[f"{block}.q.weight"][:, 0]
        assert all(len(set(head.tolist())) == 1 for head in common.view(HEADS, size)), "heads are whole"
        assert int(common.sum()) == heads * size
        for part in "qkv":
            assert torch.equal(owned[f"{block}.{part}.weight"], common[:, None].expand(-1, WIDTH))
            assert torch.equal(owned[f"{block}.{part}.bias"], common)
        assert torch.equal(owned[f"{block}.o.weight"], common.expand(WIDTH, -1))
        units = owned[f"{block}.up.bias"]
        assert int(units.sum()) == level
        assert torch.equal(owned[f"{block}.down.weight"], units.expand(WIDTH, -1))
    assert owned["position"].all()
    assert owned["output.weight"].all()


def test_own_output_averages_all_but_the_last_layer() -> None:
    _, owned = everyones("own output")
    last = {"output.weight", "output.bias"}
    assert {name: bool(each.any()) for name, each in owned.items()} == {name: name not in last for name in owned}
    assert all(each.all() for name, each in owned.items() if name not in last)


def test_the_levels_differ_in_nothing_else() -> None:
    wanted = request("200")
    simulation = wanted.federation.simulation
    assert simulation.dataset == parse_choice("mnist")
    assert simulation.peers == 16
    assert wanted.federation.learning.batch_size == 10
    methods = {"0": "local", "100": "partial-averaging", "300": "partial-averaging", "400": "full-averaging"}
    for name, method in methods.items():
        other = request(name)
        assert other.methods == (Choice(method),)
        same = {"partial_models": wanted.federation.partial_models}
        assert other.federation.model_copy(update=same) == wanted.federation


def test_the_small_size_is_part_of_the_others_and_something_is_claimed_of_it() -> None:
    few, default = cells("quick"), cells()
    assert few.keys() < default.keys()
    assert len(default) == 18
    assert all(set(claim.needs) <= default.keys() for claim in ATTENTION.claims)
    assert [claim.text for claim in ATTENTION.claims if set(claim.needs) <= few.keys()]
