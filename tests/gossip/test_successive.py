"""A channel whose form changes with transfers in transit: both ends read each as it was made and stay consistent."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpeer.gossip import transfers
from fedpeer.gossip.mass import Mass
from fedpeer.gossip.reductions import FLOAT32, FORMS, Form, Zstd, top_k
from fedpeer.gossip.successive import Successive
from fedpeer.gossip.transfers import Incoming, Outgoing, acknowledged, carried, resting, take

LENGTH = 300
ALL: dict[str, Form] = {
    **{name: FORMS[name]() for name in ("float32", "float64", "bfloat16", "int8")},
    "top-k:0.2": top_k(share=0.2),
    "float32/zstd": Zstd(FLOAT32, 3),
}


def later(form: Form, *before: Form) -> Form:
    return Successive(form, before)


@pytest.mark.slow
@pytest.mark.parametrize("first", ALL)
@pytest.mark.parametrize("second", ALL)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_whenever_each_end_goes_over_no_number_is_lost_and_both_know_the_same(
    first: str, second: str, seed: int
) -> None:
    """The sender changes its form at any time, the receiver before it takes a later transfer; each does so twice."""
    draws = np.random.default_rng(seed)
    eras = [ALL[first], later(ALL[second], ALL[first]), later(ALL[first], ALL[first], ALL[second])]
    held, channel, into = Mass.of(torch.linspace(-1, 1, LENGTH)), Outgoing(), Incoming()
    sends, takes = 0, 0
    made_under: dict[int, int] = {}
    for step in range(120):
        if step in (40, 80):
            sends += 1
        match draws.integers(0, 4):
            case 0 if not resting(channel):
                held, channels, _ = transfers.give(held, {"b": channel}, 0.2, eras[sends], (step, 0), draws)
                channel = channels["b"]
                made_under[channel.made] = sends
            case 1 if takes < sends:
                takes += 1
            case 2:
                due = [share for share in channel.open if share.seq == into.taken + 1]
                if due and made_under[due[0].seq] <= takes:
                    worth_D = worths(channel, eras[sends])[due[0].seq - channel.acked - 1]
                    into, mass = take(into, due[0], eras[takes], LENGTH)
                    assert torch.equal(mass.value_D, worth_D), "worth the same to its sender, whose it still is"
                    held = held + mass
            case 3 if into.taken > channel.acked:
                channel, _ = acknowledged(channel, into.taken, eras[sends])
                if channel.acked == channel.made and takes == sends:
                    mine_D, theirs_D = channel.reference_D, into.reference_D
                    assert (mine_D is None) == (theirs_D is None)
                    assert mine_D is None or theirs_D is None or torch.equal(mine_D, theirs_D)
    assert sends == 2
    assert into.taken > 6


def worths(channel: Outgoing, form: Form) -> list[torch.Tensor]:
    """Return the value of each open transfer as its sender would take it back."""
    found, reference_D = [], channel.reference_D
    for share in channel.open:
        value_D, reference_D = carried(share, form, LENGTH, reference_D)
        found.append(value_D)
    return found


def test_after_a_change_plain_float32_has_another_name_and_the_old_one_means_what_it_did() -> None:
    held = Mass.of(torch.ones(2))
    _, channels, (share,) = _given(held, Outgoing(), later(ALL["int8"], ALL["float32"]))
    assert share.form == "float32/base"
    assert channels.open == (share,)
    _, _, (old,) = _given(held, Outgoing(), ALL["float32"])
    assert take(Incoming(), old, later(ALL["int8"], ALL["float32"]), 2)[0].reference_D is None
    assert take(Incoming(), old, later(ALL["float32"], ALL["int8"]), 2)[0].reference_D is not None


def _given(held: Mass, channel: Outgoing, form: Form) -> tuple[Mass, Outgoing, list[transfers.NumberedTransfer]]:
    kept, channels, shares = transfers.give(held, {"b": channel}, 0.2, form, (1, 0), np.random.default_rng(0))
    return kept, channels["b"], list(shares.values())
