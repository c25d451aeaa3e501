"""Slices of an LSTM: whole hidden units with their gates, the numbers that a level owns, claims about the levels."""

from __future__ import annotations

import pytest
import torch

from fedpeer.config.choice import Choice, parse_choice
from fedpeer.experiments.experiment import Cell, SizeName
from fedpeer.experiments.recurrent_figure import LSTM
from fedpeer.experiments.registry import experiment
from fedpeer.experiments.results import Measured, PaperClaim
from fedpeer.networks.registry import lstm
from fedpeer.sims.request import SimulationRequest
from fedpeer.slicing.models import ModelGraph
from fedpeer.slicing.plan import Group, compile_plan
from fedpeer.slicing.trace import trace

HIDDEN, TOKENS, WIDTH = 64, 80, 8
PEERS = tuple(f"peer{number}" for number in range(1, 9))


def cells(size: SizeName = "default") -> dict[str, Cell]:
    each = experiment("lstm-slices")
    return {cell.label: cell for cell in each.cells(each.sizes[size])}


def request(scheme: str, examples: str = "400") -> SimulationRequest:
    (found,) = cells()[f"{scheme}; training examples: {examples}"].variants.values()
    return found


def everyones(scheme: str) -> tuple[Group, dict[str, torch.Tensor]]:
    """Return the averaged group, and for each tensor of a peer a mask of its numbers in that group."""
    module = lstm((80,), TOKENS, hidden=HIDDEN)
    network = trace(module, torch.zeros(2, 80, dtype=torch.int64))
    models = request(scheme).federation.models()
    plan = compile_plan(dict.fromkeys(PEERS, network), ModelGraph(models))
    (group,) = plan.groups
    owned_n = torch.zeros(sum(p.numel() for p in module.parameters()), dtype=torch.bool)
    owned_n[torch.from_numpy(group.indices["peer3"])] = True
    tensors = {each.name: owned_n[each.span].view(each.shape) for each in network.tensors}
    return group, tensors


@pytest.mark.parametrize("percent", [25, 50, 75])
def test_a_level_owns_whole_hidden_units_and_what_is_between_them(percent: int) -> None:
    """A level with h units owns all weights of these units and of the links between them.

    These are 4h rows of W_ih, the 4 h x h blocks of W_hh, both biases, h columns of the output, and its biases.
    """
    group, owned = everyones(str(percent))
    units = HIDDEN * percent // 100
    assert group.members == PEERS
    assert group.length == TOKENS * WIDTH + 4 * units * (WIDTH + units + 2) + TOKENS * units + TOKENS
    gates = owned["recurrent.weight_hh_l0"].view(4, HIDDEN, HIDDEN)
    unit = owned["recurrent.bias_ih_l0"].view(4, HIDDEN)[0]
    assert int(unit.sum()) == units
    assert torch.equal(gates, (unit[:, None] & unit).expand(4, -1, -1)), "the same units in all four gates"
    assert torch.equal(owned["output.weight"], unit.expand(TOKENS, -1))
    assert owned["embedding.weight"].all()


def test_own_output_averages_all_but_the_last_layer() -> None:
    _, owned = everyones("own output")
    last = {"output.weight", "output.bias"}
    assert {name: bool(each.any()) for name, each in owned.items()} == {name: name not in last for name in owned}
    assert all(each.all() for name, each in owned.items() if name not in last)


def test_the_levels_differ_in_nothing_else() -> None:
    wanted = request("50")
    assert wanted.federation.simulation.dataset == parse_choice("shakespeare,users=8,samples=8000")
    assert wanted.federation.learning.batch_size == 10
    methods = {"0": "local", "25": "partial-averaging", "75": "partial-averaging", "100": "full-averaging"}
    for name, method in methods.items():
        other = request(name)
        assert other.methods == (Choice(method),)
        same = {"partial_models": wanted.federation.partial_models}
        assert other.federation.model_copy(update=same) == wanted.federation


def test_the_small_size_is_part_of_the_others_and_something_is_claimed_of_it() -> None:
    few, default = cells("quick"), cells()
    assert few.keys() < default.keys()
    assert len(default) == 18
    judged = [claim for claim in LSTM.claims if set(claim.needs) <= few.keys()]
    assert [claim.text.partition(" ")[0] for claim in judged] == ["training", "training", "100", "1,600"]
    assert all(set(claim.needs) <= default.keys() for claim in LSTM.claims)


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
