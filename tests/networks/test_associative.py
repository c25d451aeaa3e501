"""The associative network: Algorithms 3 and 4 of the paper as plain loops, its laws, and how it is sliced."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedpeer.networks.associative import Associative, associate_, fires
from fedpeer.networks.registry import NetworkError, associative_network
from fedpeer.slicing.trace import trace

THRESHOLD = 0.5


def computed(source: list[float], weight: list[list[float]]) -> list[float]:
    """Compute Algorithm 3, lines 1-5 or 6-10."""
    return [float(sum(x * w for x, w in zip(source, row, strict=True)) >= THRESHOLD) for row in weight]


def learnt(weight: list[list[float]], source: list[float], target: list[float], rate: float) -> None:
    """Apply Algorithm 4, lines 1-7 or 8-14, in place."""
    for i in range(len(weight)):
        for j in range(len(weight[i])):
            if source[j] == 1:
                if target[i] == 1:
                    weight[i][j] += (1 - weight[i][j]) / 2 * rate
                else:
                    weight[i][j] -= (1 + weight[i][j]) / 2 * rate


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


def patterns(seed: int, *shape: int) -> Tensor:
    return (drawn(seed, *shape) > 0.3).double()


def weights(seed: int, visible: int = 9, hidden: int = 7, lead: tuple[int, ...] = ()) -> dict[str, Tensor]:
    first, second = drawn(seed, *lead, hidden, visible), drawn(seed + 1000, *lead, visible, hidden)
    return {"hidden.weight": first, "output.weight": second}


@pytest.mark.parametrize("seed", range(5))
def test_learning_and_completion_are_the_papers_listings(seed: int) -> None:
    module, found = Associative(9, 40, threshold=THRESHOLD).double(), weights(seed, hidden=40)
    hidden, visible = found["hidden.weight"].tolist(), found["output.weight"].tolist()
    shown_SV = patterns(seed + 1, 6, 9)
    module.learn_(found, shown_SV, 0.1)
    for pattern in shown_SV.tolist():
        active = computed(pattern, hidden)
        learnt(hidden, pattern, active, 0.1)
        learnt(visible, active, pattern, 0.1)
    torch.testing.assert_close(found["hidden.weight"], torch.tensor(hidden, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(found["output.weight"], torch.tensor(visible, dtype=torch.float64), rtol=0, atol=1e-12)
    module.load_state_dict(found)
    asked_SV = patterns(seed + 2, 20, 9)
    expected = [computed(computed(each, hidden), visible) for each in asked_SV.tolist()]
    assert module(asked_SV).tolist() == expected
    assert 0 < sum(map(sum, expected)) < asked_SV.numel()


def test_many_networks_are_each_by_itself_to_the_last_bit() -> None:
    module, block = Associative(9, 7, threshold=THRESHOLD), weights(3, lead=(4,))
    shown_PSV = patterns(4, 4, 6, 9)
    alone = [{name: tensor[p].clone() for name, tensor in block.items()} for p in range(4)]
    module.learn_(block, shown_PSV, 0.1)
    for p, one in enumerate(alone):
        before = {name: tensor.clone() for name, tensor in one.items()}
        module.learn_(one, shown_PSV[p], 0.1)
        for name, tensor in one.items():
            assert torch.equal(tensor, block[name][p])
            assert not torch.equal(tensor, before[name])


def test_examples_of_any_shape_are_patterns() -> None:
    module = Associative(12, 7, threshold=THRESHOLD).double()
    flat, shaped = weights(5, visible=12), weights(5, visible=12)
    shown = patterns(6, 8, 3, 4)
    module.learn_(flat, shown.flatten(1), 0.1)
    module.learn_(shaped, shown, 0.1)
    assert all(torch.equal(flat[name], shaped[name]) for name in flat)
    module.load_state_dict(flat)
    assert torch.equal(module(shown), module(shown.flatten(1)))


@pytest.mark.slow
@given(
    st.lists(st.floats(-1, 1, width=32), min_size=12, max_size=12),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.floats(0, 2),
    st.integers(1, 30),
)
@settings(deadline=None, max_examples=60)
def test_weights_stay_between_minus_one_and_one(
    values: list[float], source: list[bool], target: list[bool], rate: float, times: int
) -> None:
    weight_OI = torch.tensor(values).view(3, 4)
    before_OI, source_I, target_O = weight_OI.clone(), torch.tensor(source).float(), torch.tensor(target).float()
    for _ in range(times):
        associate_(weight_OI, source_I, target_O, rate)
    assert bool((weight_OI.abs() <= 1).all())
    silent_I = source_I == 0
    assert torch.equal(weight_OI[:, silent_I], before_OI[:, silent_I]), "only links whose source fires change"
    # At a rate up to 1 a weight moves towards its bound and never passes it.
    if rate <= 1:
        towards_O1 = (2 * target_O - 1).unsqueeze(1)
        nearer = (weight_OI - towards_O1).abs() <= (before_OI - towards_O1).abs()
        assert bool(nearer[:, ~silent_I].all())


def test_what_was_shown_often_is_completed_from_its_half() -> None:
    torch.manual_seed(0)
    module = Associative(30, 200, threshold=THRESHOLD)
    whole_2V = torch.zeros(2, 30)
    whole_2V[0, :10] = whole_2V[1, 15:25] = 1
    half_2V = whole_2V.clone()
    half_2V[0, 5:10] = half_2V[1, 20:25] = 0
    assert not torch.equal(module(half_2V), whole_2V)
    own = {name: tensor.detach() for name, tensor in module.named_parameters()}
    for _ in range(30):
        module.learn_(own, whole_2V, 0.1)
    assert torch.equal(module(half_2V), whole_2V)


def test_the_parts_are_the_layers_and_every_link_has_two_ends() -> None:
    map_n = trace(associative_network((1, 2, 3), 6, hidden=4), torch.zeros(2, 1, 2, 3))
    assert [(part.name, part.size) for part in map_n.parts] == [("input", 6), ("hidden", 4), ("output", 6)]
    assert not any(tensor.unsliceable for tensor in map_n.tensors)
    into = [(map_n.parts[p].name, n) for p, n in zip(map_n.out_part_n, map_n.out_neuron_n, strict=True)]
    source = [(map_n.parts[p].name, n) for p, n in zip(map_n.in_part_n, map_n.in_neuron_n, strict=True)]
    hidden = [(("hidden", h), ("input", v)) for h in range(4) for v in range(6)]
    output = [(("output", v), ("hidden", h)) for v in range(6) for h in range(4)]
    assert list(zip(into, source, strict=True)) == hidden + output


def test_its_own_draw_is_over_the_whole_range() -> None:
    torch.manual_seed(1)
    values = torch.cat([p.detach().flatten() for p in Associative(50, 400, threshold=THRESHOLD).parameters()])
    assert float(values.min()) < -0.999
    assert float(values.max()) > 0.999
    assert float(values.var()) == pytest.approx(1 / 3, rel=0.02)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"outputs": 5}, ["6 inputs", "5 outputs", "associative", "mlp"]),
        ({"hidden": 0}, ["hidden 0", "1 or more"]),
        ({"threshold": 0.0}, ["threshold = 0", "above 0"]),
        ({"threshold": float("inf")}, ["threshold = inf"]),
    ],
)
def test_refusals_say_the_way_out(settings: dict[str, float], words: list[str]) -> None:
    with pytest.raises(NetworkError) as refusal:
        associative_network((6,), **{"outputs": 6, **settings})  # type: ignore[arg-type]
    assert all(word in str(refusal.value) for word in words)


def test_fires_takes_any_leading_dimensions() -> None:
    x, weight = patterns(1, 2, 5, 9), drawn(2, 2, 7, 9)
    found = fires(x, weight, THRESHOLD)
    for p in range(2):
        for m in range(5):
            assert found[p, m].tolist() == computed(x[p, m].tolist(), weight[p].tolist())
