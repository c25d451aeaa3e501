"""Wire forms: the restored value is debited, coarse forms still find the true mean, hostile bytes are rejected."""

from __future__ import annotations

import tracemalloc
from inspect import getdoc

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedpeer.gossip.mass import Mass
from fedpeer.gossip.reductions import (
    BLOCK,
    FLOAT32,
    FORMS,
    PACKERS,
    Form,
    FormError,
    bfloat16,
    float32,
    float64,
    int8,
    pack_values,
    restore,
    top_k,
    zstd,
)
from fedpeer.gossip.transfers import Incoming, Outgoing, acknowledged, give, take
from fedpeer.topology.graphs import GRAPHS
from tests.gossip.membership_cluster import TransferSimulator

ALL: list[Form] = [float64(), float32(), bfloat16(), int8(), top_k(share=0.1)]
ALL += [zstd()(form) for form in ALL]
EACH = pytest.mark.parametrize("form", ALL, ids=lambda form: form.name)
LENGTHS = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 1000]


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def values(length: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(draws(seed).standard_normal(length))


@EACH
@pytest.mark.parametrize("length", LENGTHS)
def test_a_payload_has_the_bytes_that_its_form_says_and_nothing_wrong_with_it(form: Form, length: int) -> None:
    for value_D in (values(length), torch.zeros(length, dtype=torch.float64), torch.full((length,), -1e30).double()):
        payload = form.pack(value_D, draws())
        fewest, most = form.bytes_bounds(length)
        assert fewest <= payload.nbytes <= most
        assert payload.dtype == form.dtype
        assert form.fault(payload, length) is None
        assert form.unpack(payload, length).shape == (length,)
        assert form.unpack(payload, length).dtype == torch.float64


@pytest.mark.slow
@EACH
@given(seed=st.integers(0, 10**6), length=st.integers(1, 600), weight=st.floats(1e-6, 10))
@settings(max_examples=12, deadline=None)
def test_what_travels_and_what_is_left_are_all(form: Form, seed: int, length: int, weight: float) -> None:
    """Both ends also compute the same numbers from the same payload, to the last bit."""
    share_D, reference_D = weight * values(length, seed), values(length, seed + 1).float()
    payload = pack_values(form, share_D, weight, reference_D, draws(seed))
    carried_D, moved_D = restore(form, payload, length, weight, reference_D)
    again_D, theirs_D = restore(form, payload.clone(), length, weight, reference_D.clone())
    assert torch.equal(carried_D, again_D)
    assert moved_D is not None
    assert theirs_D is not None
    assert torch.equal(moved_D, theirs_D)
    torch.testing.assert_close((share_D - carried_D) + carried_D, share_D, rtol=1e-14, atol=1e-15 * weight)
    if form.relative:
        torch.testing.assert_close(moved_D.double(), carried_D / weight, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("form", "wire"), [(float32(), torch.float32), (bfloat16(), torch.bfloat16)])
def test_plain_types_round_to_the_nearest(form: Form, wire: torch.dtype) -> None:
    value_D = values(500)
    error_D = (form.unpack(form.pack(value_D, draws()), 500) - value_D).abs()
    assert bool((error_D <= torch.finfo(wire).eps / 2 * value_D.abs()).all())


@pytest.mark.slow
def test_int8_is_right_in_the_mean_and_off_by_less_than_a_step() -> None:
    value_D = values(2 * BLOCK + 10)
    blocks = [value_D[first : first + BLOCK] for first in range(0, len(value_D), BLOCK)]
    step_D = torch.cat([block.abs().max().expand(len(block)) for block in blocks]) / 127
    form, many = int8(), 800
    found = torch.stack([form.unpack(form.pack(value_D, draws(seed)), len(value_D)) for seed in range(many)])
    assert bool(((found - value_D).abs() <= step_D * (1 + 1e-6)).all())
    # The standard deviation of one rounding is at most half a step; the limit is five standard deviations of the mean.
    assert bool(((found.mean(0) - value_D).abs() <= 5 * step_D / 2 / many**0.5).all())


def test_top_k_tells_the_largest() -> None:
    value_D = values(95)
    told_D = top_k(share=0.1).unpack(top_k(share=0.1).pack(value_D, draws()), 95)
    largest = sorted(range(95), key=lambda place: -abs(float(value_D[place])))[:10]
    expected_D = torch.zeros(95, dtype=torch.float64)
    expected_D[largest] = value_D[largest].float().double()
    assert torch.equal(told_D, expected_D)


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["ring", "star", pytest.param("complete", marks=pytest.mark.soak)])
@pytest.mark.parametrize("form", [int8(), top_k(share=0.3)], ids=lambda form: form.name)
def test_reduced_shares_find_the_true_mean(graph: str, form: Form) -> None:
    simulator = TransferSimulator(1, form, peers=4, length=20, graph=GRAPHS[graph])
    for _ in range(int(30 / form.pace)):
        simulator.step()
    assert simulator.distance() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("pace", [0.2, 0.6])
def test_exchanges_at_a_pace_are_the_gossip_of_choco(pace: float) -> None:
    """x+ = x + pace (W - I) x_hat+ with x_hat+ = x_hat + Q(x - x_hat), on a ring in which W has thirds.

    The first transfer of a channel has all numbers, so that the public copies begin at the first values.
    """
    form, peers, length = top_k(share=0.3, pace=pace), 5, 10
    x_PD = torch.from_numpy(draws(3).standard_normal((peers, length)))
    held = [Mass.of(x_D) for x_D in x_PD]
    near = [((p - 1) % peers, (p + 1) % peers) for p in range(peers)]
    out = [{str(q): Outgoing() for q in near[p]} for p in range(peers)]
    into = [{str(q): Incoming() for q in near[p]} for p in range(peers)]
    ring_PP = sum(np.roll(np.eye(peers), shift, 1) for shift in (-1, 0, 1)) / 3
    copies_PD = x_PD.clone()
    for number in range(8):
        shares = []
        for p in range(peers):
            held[p], out[p], made = give(held[p], out[p], 1 / 3, form, (number, 0), draws())
            shares.append(made)
        for p in range(peers):
            for q in near[p]:
                into[p][str(q)], mass = take(into[p][str(q)], shares[q][str(p)], form, length)
                held[p] = held[p] + mass
                out[q][str(p)] = acknowledged(out[q][str(p)], number + 1, form)[0]
        for copy_D, x_D in zip(copies_PD, x_PD, strict=True):
            largest = (x_D - copy_D).abs().topk(3).indices
            copy_D[largest] = x_D[largest]
        x_PD = x_PD + pace * (torch.from_numpy(ring_PP) - torch.eye(peers)) @ copies_PD
        found_PD = torch.stack([each.estimate_D for each in held])
        torch.testing.assert_close(found_PD, x_PD, rtol=0, atol=1e-6)


def test_a_reference_stays_finite_whatever_a_stranger_sends() -> None:
    payload = torch.tensor([3e38, -3e38, 0.0]).to(torch.bfloat16)
    reference_D: Tensor | None = torch.tensor([3e38, -3e38, 1.0])
    for _ in range(3):
        carried_D, reference_D = restore(bfloat16(), payload, 3, 1e-300, reference_D)
        assert bool(torch.isfinite(carried_D).all())
        assert reference_D is not None
        assert bool(torch.isfinite(reference_D).all())


def test_a_difference_to_nothing_is_one_to_zero() -> None:
    """A stranger may begin a channel in this way; our code does not fail on it."""
    payload = int8().pack(values(10), draws())
    assert torch.equal(restore(int8(), payload, 10, 0.5, None)[0], int8().unpack(payload, 10))


# ------------------------------------------------------------------------------------------------- hostile payloads


def raw(*parts: np.ndarray) -> Tensor:
    return torch.frombuffer(bytearray(b"".join(part.tobytes() for part in parts)), dtype=torch.uint8)


def places(*wanted: int) -> np.ndarray:
    return np.array(wanted, np.int32)


def floats(*wanted: float) -> np.ndarray:
    return np.array(wanted, np.float32)


K3 = top_k(share=0.3)  # three of ten
STEPS = np.zeros(10, np.int8)
HOSTILE: dict[str, tuple[Form, Tensor, str]] = {
    "float32 nan": (FLOAT32, torch.tensor([0.0] * 9 + [torch.nan]), "not_finite"),
    "bfloat16 inf": (bfloat16(), torch.tensor([torch.inf] * 10).to(torch.bfloat16), "not_finite"),
    "float32 one that would broadcast": (FLOAT32, torch.zeros(1), "wrong_shape"),
    "float32 as float64": (FLOAT32, torch.zeros(10).double(), "wrong_dtype"),
    "int8 short": (int8(), raw(floats(1), STEPS[1:]), "tail_length_wrong"),
    "int8 nan scale": (int8(), raw(floats(np.nan), STEPS), "not_finite"),
    "int8 empty": (int8(), raw(STEPS)[:0], "tail_length_wrong"),
    "top-k long": (K3, raw(places(0, 1, 2, 3), floats(1, 1, 1, 1)), "tail_length_wrong"),
    "top-k beyond the end": (K3, raw(places(0, 1, 10), floats(1, 1, 1)), "wrong_shape"),
    "top-k before the beginning": (K3, raw(places(-1, 1, 2), floats(1, 1, 1)), "wrong_shape"),
    "top-k twice the same": (K3, raw(places(1, 1, 2), floats(1, 1, 1)), "wrong_shape"),
    "top-k falling": (K3, raw(places(1, 0, 2), floats(1, 1, 1)), "wrong_shape"),
    "top-k inf": (K3, raw(places(0, 1, 2), floats(1, np.inf, 1)), "not_finite"),
}


def squeezed(data: bytes, size: bool = True) -> Tensor:
    return raw(np.frombuffer(zstandard.ZstdCompressor(write_content_size=size).compress(data), np.uint8))


GOOD = zstd()(int8()).pack(values(10), draws())
for name, payload in {
    "zstd nothing": GOOD[:0],
    "zstd noise": raw(np.arange(20, dtype=np.uint8)),
    "zstd cut": GOOD[:-1],
    "zstd and more": torch.cat([GOOD, GOOD[:3]]),
    "zstd two frames": torch.cat([GOOD, GOOD]),
    "zstd of something longer": squeezed(bytes(15)),
    "zstd bomb": squeezed(bytes(50_000_000))[:20],
    "zstd that hides its size": squeezed(bytes(14), size=False),
}.items():
    HOSTILE[name] = (zstd()(int8()), payload, "tail_length_wrong")
HOSTILE["zstd of nan"] = (zstd()(int8()), squeezed(floats(np.nan).tobytes() + bytes(10)), "not_finite")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_payload_is_refused_by_name(name: str) -> None:
    form, payload, code = HOSTILE[name]
    tracemalloc.start()
    assert form.fault(payload, 10) == code
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@EACH
def test_flipped_bits_are_refused_or_give_finite_numbers(form: Form) -> None:
    """No other outcome is possible for a payload of the right type."""
    good, rng = form.pack(values(300), draws()), draws(1)
    for _ in range(80):
        bent = good.clone()
        flat = bent.view(torch.uint8)
        flat[int(rng.integers(len(flat)))] ^= 1 << int(rng.integers(8))
        if form.fault(bent, 300) is None:
            assert bool(torch.isfinite(form.unpack(bent, 300)).all())


# ------------------------------------------------------------------------------------------------------- the registry


def test_the_registry_names_its_forms() -> None:
    for name, function in FORMS.items():
        form = function(share=0.25) if name == "top-k" else function()
        assert form.name == {"top-k": "top-k:0.25"}.get(name, name)
        assert getdoc(function)
    assert PACKERS["zstd"](level=1)(int8()).name == "int8/zstd"


def test_a_pace_of_its_own_is_part_of_the_name() -> None:
    assert top_k(share=0.25, pace=0.25).name == "top-k:0.25"
    assert top_k(share=0.25, pace=1).name == "top-k:0.25,pace=1"
    assert zstd()(top_k(share=0.25, pace=0.5)).pace == 0.5


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_is_a_part_of_one(share: float) -> None:
    with pytest.raises(FormError, match="a number above 0"):
        top_k(share=share)
    with pytest.raises(FormError, match=r"pace = .*: write a number above 0"):
        top_k(share=0.1, pace=share)


def test_a_level_of_zstd_is_one_that_it_has() -> None:
    with pytest.raises(FormError, match=r"1 \(quick\) to 19"):
        zstd(level=0)
