"""Slices of networks over sequences: whole neurons, the numbers that a level owns, claims about the levels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpeer.config.choice import Choice, parse_choice
from fedpeer.data.registry import describe_dataset
from fedpeer.experiments.experiment import Cell, SizeName
from fedpeer.experiments.registry import experiment
from fedpeer.experiments.results import Measured, PaperClaim
from fedpeer.experiments.sequence_figures import ATTENTION, LSTM
from fedpeer.learning.holdings import load_dataset
from fedpeer.networks.registry import lstm, transformer
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.world import build_world
from fedpeer.slicing.models import ModelGraph
from fedpeer.slicing.plan import Group, compile_plan
from fedpeer.slicing.trace import trace

HIDDEN, TOKENS, EMBEDDED = 64, 80, 8
HEADS, UNITS, WIDTH, ROWS, COLUMNS, DIGITS = 4, 400, 32, 28, 28, 10
#: Experiment -> its figure, peers, and levels from none to all.
FIGURES = {
    "lstm-slices": (LSTM, 8, ("0", "25", "50", "75", "100")),
    "attention-slices": (ATTENTION, 16, ("0", "100", "200", "300", "400")),
}
every_figure = pytest.mark.parametrize("name", FIGURES)


def cells(name: str, size: SizeName = "default") -> dict[str, Cell]:
    each = experiment(name)
    return {cell.label: cell for cell in each.cells(each.sizes[size])}


def request(name: str, scheme: str, examples: str = "400") -> SimulationRequest:
    (found,) = cells(name)[f"{scheme}; training examples: {examples}"].variants.values()
    return found


def network(name: str) -> tuple[nn.Module, torch.Tensor]:
    if name == "lstm-slices":
        return lstm((80,), TOKENS, hidden=HIDDEN), torch.zeros(2, 80, dtype=torch.int64)
    module = transformer((1, ROWS, COLUMNS), DIGITS, width=WIDTH, heads=HEADS, layers=2, hidden=UNITS)
    return module, torch.zeros(2, 1, ROWS, COLUMNS)


def everyones(name: str, scheme: str) -> tuple[Group, dict[str, torch.Tensor]]:
    """Return the averaged group, and for each tensor of a peer a mask of its numbers in that group."""
    module, example = network(name)
    traced, peers = trace(module, example), [f"peer{number}" for number in range(1, FIGURES[name][1] + 1)]
    plan = compile_plan(dict.fromkeys(peers, traced), ModelGraph(request(name, scheme).federation.models()))
    (group,) = plan.groups
    assert group.members == tuple(peers)
    owned_n = torch.zeros(sum(p.numel() for p in module.parameters()), dtype=torch.bool)
    owned_n[torch.from_numpy(group.indices["peer3"])] = True
    return group, {each.name: owned_n[each.span].view(each.shape) for each in traced.tensors}


@pytest.mark.parametrize("percent", [25, 50, 75])
def test_a_level_owns_whole_hidden_units_of_an_lstm_and_what_is_between_them(percent: int) -> None:
    """A level with h units owns all weights of these units and of the links between them.

    These are 4h rows of W_ih, the 4 h x h blocks of W_hh, both biases, h columns of the output, and its biases.
    """
    group, owned = everyones("lstm-slices", str(percent))
    units = HIDDEN * percent // 100
    assert group.length == TOKENS * EMBEDDED + 4 * units * (EMBEDDED + units + 2) + TOKENS * units + TOKENS
    gates = owned["recurrent.weight_hh_l0"].view(4, HIDDEN, HIDDEN)
    unit = owned["recurrent.bias_ih_l0"].view(4, HIDDEN)[0]
    assert int(unit.sum()) == units
    assert torch.equal(gates, (unit[:, None] & unit).expand(4, -1, -1)), "the same units in all four gates"
    assert torch.equal(owned["output.weight"], unit.expand(TOKENS, -1))
    assert owned["embedding.weight"].all()


@pytest.mark.parametrize("level", [100, 200, 300])
def test_a_level_owns_whole_heads_and_hidden_units_of_a_transformer(level: int) -> None:
    """A level with h heads and u units owns in each block h heads' rows of queries, keys and values and columns of the
    output projection, and the rows and columns of u units; outside the blocks everything."""
    group, owned = everyones("attention-slices", str(level))
    heads, size = HEADS * level // UNITS, WIDTH // HEADS
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


@pytest.mark.slow
@every_figure
def test_the_network_takes_the_data_and_is_the_one_that_is_divided_here(name: str) -> None:
    if not describe_dataset(experiment(name).data[0]).here:
        pytest.skip(f"{experiment(name).data[0]} is not on this machine")
    wanted = request(name, "own output").federation
    made = build_world(wanted, load_dataset(wanted.simulation.dataset), 0)
    assert made.network.parts == trace(*network(name)).parts
    assert len(made.peers) == FIGURES[name][1]


@every_figure
def test_own_output_averages_all_but_the_last_layer(name: str) -> None:
    _, owned = everyones(name, "own output")
    last = {"output.weight", "output.bias"}
    assert {each: bool(mask.any()) for each, mask in owned.items()} == {each: each not in last for each in owned}
    assert all(mask.all() for each, mask in owned.items() if each not in last)


@every_figure
def test_the_levels_differ_in_nothing_else(name: str) -> None:
    none, *partial, whole = FIGURES[name][2]
    wanted = request(name, partial[1])
    data = {"lstm-slices": "shakespeare,users=8,samples=8000", "attention-slices": "mnist,shape=image"}[name]
    assert wanted.federation.simulation.dataset == parse_choice(data)
    assert wanted.federation.simulation.peers == FIGURES[name][1]
    assert wanted.federation.learning.batch_size == 10
    methods = {none: "local", partial[0]: "partial-averaging", partial[2]: "partial-averaging", whole: "full-averaging"}
    for level, method in methods.items():
        other = request(name, level)
        assert other.methods == (Choice(method),)
        same = {"partial_models": wanted.federation.partial_models}
        assert other.federation.model_copy(update=same) == wanted.federation


@every_figure
def test_the_small_size_is_part_of_the_others_and_something_is_claimed_of_it(name: str) -> None:
    few, default = cells(name, "quick"), cells(name)
    assert few.keys() < default.keys()
    assert len(default) == 18
    claims = FIGURES[name][0].claims
    judged = [claim for claim in claims if set(claim.needs) <= few.keys()]
    assert [claim.text.partition(" ")[0] for claim in judged] == ["training", "training", "100", "1,600"]
    assert all(set(claim.needs) <= default.keys() for claim in claims)


def held(claim: PaperClaim, **scores: float) -> bool | None:
    """Return the verdict of a claim on made-up runs with these scores: `at0` is level 0."""
    examples = "400"
    made = {}
    for name, score in scores.items():
        label = f"{name.removeprefix('at').replace('_', ' ')}; training examples: {examples}"
        per_seed = {"PM": (score, score + 0.01)}
        made[label] = Measured(
            label=label, variant="", seeds=(0, 1), rounds=16, peers=8, per_seed=per_seed, sent=0, seconds=0
        )
    return claim.check(made).held


def test_what_is_claimed() -> None:
    best, last, layers = (claim for claim in LSTM.claims if any(need.endswith(": 400") for need in claim.needs))
    some = {"at25": 0.30, "at50": 0.35, "at75": 0.33}
    assert held(best, at0=0.2, at100=0.34, **some) is True
    assert held(best, at0=0.2, at100=0.36, **some) is False
    assert held(best, at0=0.36, at100=0.2, **some) is False
    assert held(last, at0=0.2, at100=0.34, **some) is True
    assert held(last, at0=0.31, at100=0.34, **some) is False, "one level is below it"
    assert held(layers, at75=0.3, atown_output=0.29) is True
    assert held(layers, at75=0.3, atown_output=0.31) is False
    assert held(layers, at75=0.3) is None
