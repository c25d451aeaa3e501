"""The noise phase: nothing is lost or shown early, shares reveal nothing, and all receivers must collude."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from fedpeer.gossip import transfers
from fedpeer.gossip.mass import Mass
from fedpeer.gossip.noise_phase import NoisePhase, give_masked
from fedpeer.gossip.reductions import Form, bfloat16, float32, float64, int8, top_k, zstd
from fedpeer.gossip.transfers import Outgoing
from fedpeer.topology.prediction import predicted_rounds
from tests.gossip.membership_cluster import TransferSimulator
from tests.reference.masking import push
from tests.reference.push_sum import receive, share_of

FORMS: dict[str, Form] = {
    form.name: form for form in (float64(), float32(), bfloat16(), int8(), top_k(share=0.3), zstd()(int8()))
}
#: Scale (standard deviation) of the noise; the values are of size 1.
SCALE = 20.0


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class MaskedSimulator(TransferSimulator):
    """A simulator in which each peer first sends noise to `pushes` different neighbors, one per round."""

    def __init__(self, seed: int, form: Form, *, pushes: int = 2, peers: int | None = None) -> None:
        super().__init__(seed, form, peers=peers)
        self.masking = {peer: NoisePhase(pushes) for peer in self.peers}

    def _give(self, peer: str) -> None:
        masking = self.masking[peer]
        if masking.lifted:
            super()._give(peer)
            return
        free = [q for q in self.near[peer] if q not in masking.masked_to and not transfers.resting(self.out[peer, q])]
        if free:
            near = str(self.rng.choice(free))
            masked_shares = {near: torch.from_numpy(SCALE * self.rng.standard_normal(self.length))}
            self.held[peer], self.masking[peer], channels, _ = give_masked(
                self.held[peer],
                masking,
                {near: self.out[peer, near]},
                0.2,
                self.form,
                (self.now, 0),
                self.rng,
                masked_shares,
            )
            self.out[peer, near] = channels[near]


def masked_in_a_storm(form: str) -> MaskedSimulator:
    """Return a simulator after a storm under which no step has lost or added mass."""
    simulator = MaskedSimulator(7, FORMS[form], peers=6)
    begun = simulator.everything()
    simulator.storm()
    for _ in range(12):
        simulator.step()
        now = simulator.everything()
        torch.testing.assert_close(now.value_D, begun.value_D, atol=1e-12 * SCALE * len(simulator.peers), rtol=0)
        torch.testing.assert_close(now.weight, begun.weight, atol=0, rtol=1e-12)
    return simulator


#: A form that takes longest to average, and one that packs another: `make soak` waits for their averages.
SLOW_FORMS = ("top-k:0.3", "int8/zstd")


@pytest.mark.parametrize("form", SLOW_FORMS)
def test_noise_is_under_way_like_any_mass_in_every_form(form: str) -> None:
    masked_in_a_storm(form)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", [pytest.param(name, marks=pytest.mark.soak) if name in SLOW_FORMS else name for name in FORMS]
)
def test_noise_is_under_way_like_any_mass_and_averages_away(form: str) -> None:
    """Transfers conserve mass under all faults, then reach the true mean of values that were never sent unmasked."""
    simulator = masked_in_a_storm(form)
    simulator.heal()
    # top-k gives 0.3 of what other forms give in an exchange, so it takes as many times longer.
    for _ in range(int(2 * predicted_rounds(simulator.overlay, "push-sum", 1e-6) / FORMS[form].pace)):
        simulator.step()
    simulator.settle()
    assert all(masking.lifted for masking in simulator.masking.values())
    assert simulator.distance() <= 1e-5


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    some.integers(0, 999), some.integers(0, 5), some.integers(1, 5), some.sampled_from([torch.float64, torch.float32])
)
def test_a_push_takes_exactly_what_it_sends(seed: int, pushes: int, copies: int, wire: torch.dtype) -> None:
    held, masking = Mass.of(normal(6, seed=seed), 1.5), NoisePhase(pushes)
    masked_shares = {str(k): SCALE * normal(6, seed=seed + 1 + k) for k in range(copies)}
    kept, after, sent = push(held, masking, 1 / (copies + 1), masked_shares, wire=wire)
    total = kept
    for mass in sent.values():
        total = receive(total, mass)
    torch.testing.assert_close(total.value_D, held.value_D, atol=1e-13 * SCALE, rtol=0)
    torch.testing.assert_close(total.weight, held.weight, atol=0, rtol=1e-14)
    _, usual = share_of(held, 1 / (copies + 1), copies=copies, wire=wire)
    for peer, mass in sent.items():
        assert torch.equal(mass.weight, usual.weight), "by its weight nobody can tell it from a true one"
        assert torch.equal(mass.value_D, mass.value_D.to(wire).double())
        torch.testing.assert_close(mass.estimate_D, masked_shares[peer], rtol=1e-6, atol=0)
    assert after.masked_to == set(masked_shares)


@pytest.mark.parametrize("form", FORMS)
def test_on_a_channel_a_push_is_the_same(form: str) -> None:
    """The two agree bit for bit in every form, because masked shares travel whole."""
    held, masking = Mass.of(normal(40)), NoisePhase(3)
    masked_shares = {"b": SCALE * normal(40, seed=1), "c": SCALE * normal(40, seed=2)}
    channels = {"b": Outgoing(), "c": Outgoing()}
    draws = np.random.default_rng(0)
    wire = torch.float64 if form == "float64" else torch.float32
    kept, after, sent = push(held, masking, 0.2, masked_shares, wire=wire)
    left, lifted, opened, shares = give_masked(held, masking, channels, 0.2, FORMS[form], (1, 0), draws, masked_shares)
    assert torch.equal(left.value_D, kept.value_D)
    assert torch.equal(left.weight, kept.weight)
    assert lifted == after
    for peer, share in shares.items():
        assert opened[peer].open == (share,)
        _, taken = transfers.take(transfers.Incoming(), share, FORMS[form], 40)
        assert torch.equal(taken.value_D, sent[peer].value_D)
        assert torch.equal(taken.weight, sent[peer].weight)


def test_an_estimate_is_shown_when_the_phase_is_over() -> None:
    held, masking = Mass.of(normal(3)), NoisePhase(2)
    for number, peer in enumerate(["b", "b", "c"]):
        assert meaningful_estimate(held, masking) is None
        held, masking, _ = push(held, masking, 0.1, {peer: normal(3, seed=number)})
    found = meaningful_estimate(held, masking)
    assert found is not None
    assert torch.equal(found, held.estimate_D)
    assert meaningful_estimate(Mass.of(normal(3)), NoisePhase(0)) is not None, "who asks for no phase has none"


def test_a_phase_ends_with_the_last_neighbor() -> None:
    masking = NoisePhase(4).after(["b"])
    assert not masking.among(["b", "c", "d"]).lifted
    assert masking.among(["b", "c", "d"]).wanted == 3
    assert masking.among(["b"]).lifted, "nobody else is there to be told"
    assert masking.among(["c"]).after(["c"]).lifted, "b was told before it went away"
    assert NoisePhase(2).among([]).lifted


def test_nobody_gives_more_than_is_held() -> None:
    with pytest.raises(AssertionError, match="more than is held"):
        push(Mass.of(normal(2)), NoisePhase(2), 0.6, {"b": normal(2), "c": normal(2)})
    with pytest.raises(AssertionError, match="more than is held"):
        give_masked(
            Mass.of(normal(2)), NoisePhase(2), {"b": Outgoing(), "c": Outgoing()}, 0.6, float64(), (1, 0),
            np.random.default_rng(0), {"b": normal(2), "c": normal(2)},
        )  # fmt: skip


def correlation(a_D: Tensor, b_D: Tensor) -> float:
    return float(np.corrcoef(a_D.numpy(), b_D.numpy())[0, 1])


DRAWS, PUSHES, FRACTION = 10_000, 3, 0.2


@pytest.mark.parametrize("wire", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["normal", "coin", "far"])
def test_what_is_sent_says_nothing_of_the_value(kind: str, wire: torch.dtype) -> None:
    """10,000 values, each with its own noise, are uncorrelated with the shares sent.

    Without the phase, the first share would reveal the value. The first true share after the phase has the correlation
    that theory gives: that of v among p pieces of noise.
    """
    value_D = {"normal": normal(DRAWS), "coin": normal(DRAWS).sign(), "far": 3 + normal(DRAWS)}[kind]
    held, masking = Mass.of(value_D), NoisePhase(PUSHES)
    for number in range(PUSHES):
        masked_shares = {str(number): SCALE * normal(DRAWS, seed=number + 1)}
        held, masking, sent = push(held, masking, FRACTION, masked_shares, wire=wire)
        assert abs(correlation(sent[str(number)].value_D, value_D)) < 0.05
    assert masking.lifted
    _, first = share_of(held, FRACTION, wire=wire)
    noise = math.sqrt(sum((FRACTION * (1 - FRACTION) ** k * SCALE) ** 2 for k in range(PUSHES)))
    wanted = 1 / math.sqrt(1 + (noise / float(value_D.std())) ** 2)
    assert correlation(first.value_D, value_D) == pytest.approx(wanted, abs=0.04)
    _, bare = share_of(Mass.of(value_D), FRACTION, wire=wire)
    assert correlation(bare.value_D, value_D) > 0.999, "without the phase the first share is the value"


def guessed(held: Mass, first: Mass, seen: dict[str, Mass]) -> Tensor:
    """Return the value as observers compute it: the first true share scaled up, plus the shares they saw."""
    spread = Mass(first.value_D / FRACTION, first.weight / FRACTION)
    for mass in seen.values():
        spread = spread + mass
    return spread.value_D / held.weight


@pytest.mark.slow
@pytest.mark.parametrize(("pushes", "tau"), [(1, 0.2), (2, 0.5), (4, 0.5)])
def test_only_all_who_were_told_together_find_the_value(pushes: int, tau: float) -> None:
    """If a share tau of the neighbors is corrupted and also sees the first true share, leaks are at most tau ** p."""
    rng, trials, leaks = np.random.default_rng(1), 400, 0
    for _ in range(trials):
        held = begun = Mass.of(torch.from_numpy(rng.standard_normal(1)))
        masking, seen = NoisePhase(pushes), dict[str, Mass]()
        corrupted = {str(k) for k in range(6) if rng.random() < tau}
        while not masking.lifted:
            near = str(rng.choice([k for k in range(6) if str(k) not in masking.masked_to]))
            masked_shares = {near: torch.from_numpy(SCALE * rng.standard_normal(1))}
            held, masking, sent = push(held, masking, FRACTION, masked_shares)
            seen |= {peer: mass for peer, mass in sent.items() if peer in corrupted}
        _, first = share_of(held, FRACTION)
        error = float((guessed(begun, first, seen) - begun.value_D).norm())
        assert (error < 1e-9) == (masking.masked_to <= corrupted)
        leaks += error < 1e-9
    assert leaks / trials <= tau**pushes + 4 * math.sqrt(tau**pushes * (1 - tau**pushes) / trials)
    assert leaks / trials >= tau**pushes - 4 * math.sqrt(tau**pushes * (1 - tau**pushes) / trials)


def meaningful_estimate(held: Mass, masking: NoisePhase) -> Tensor | None:
    """Return the estimate, (D,), or None during the noise phase."""
    return held.estimate_D if masking.lifted else None
