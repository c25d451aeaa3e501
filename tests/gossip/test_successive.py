"""A lane whose form changes while transfers are under way: both ends read each as it was made, and know the same."""

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


@pytest.mark.parametrize("first", ALL)
@pytest.mark.parametrize("second", ALL)
@pytest.mark.parametrize("seed", range(3))
def test_whenever_each_end_goes_over_no_number_is_lost_and_both_know_the_same(
    first: str, second: str, seed: int
) -> None:
    """The sender goes over at some time and the receiver before it takes anything that was made then; twice."""
    draws = np.random.default_rng(seed)
    eras = [ALL[first], later(ALL[second], ALL[first]), later(ALL[first], ALL[first], ALL[second])]
    held, lane, into = Mass.of(torch.linspace(-1, 1, LENGTH)), Outgoing(), Incoming()
    sends, takes = 0, 0
    made_under: dict[int, int] = {}
    for step in range(120):
        if step in (40, 80):
            sends += 1
        match draws.integers(0, 4):
            case 0 if not resting(lane):
                held, lanes, _ = transfers.give(held, {"b": lane}, 0.2, eras[sends], (step, 0), draws)
                lane = lanes["b"]
                made_under[lane.made] = sends
            case 1 if takes < sends:
                takes += 1
            case 2:
                due = [parcel for parcel in lane.open if parcel.seq == into.taken + 1]
                if due and made_under[due[0].seq] <= takes:
                    worth_D = worths(lane, eras[sends])[due[0].seq - lane.acked - 1]
                    into, mass = take(into, due[0], eras[takes], LENGTH)
                    assert torch.equal(mass.value_D, worth_D), "worth the same to its sender, whose it still is"
                    held = held + mass
            case 3 if into.taken > lane.acked:
                lane, _ = acknowledged(lane, into.taken, eras[sends])
                if lane.acked == lane.made and takes == sends:
                    mine_D, theirs_D = lane.reference_D, into.reference_D
                    assert (mine_D is None) == (theirs_D is None)
                    assert mine_D is None or theirs_D is None or torch.equal(mine_D, theirs_D)
    assert sends == 2
    assert into.taken > 6


def worths(lane: Outgoing, form: Form) -> list[torch.Tensor]:
    """The value of each open transfer, as its sender would take it back."""
    found, reference_D = [], lane.reference_D
    for parcel in lane.open:
        value_D, reference_D = carried(parcel, form, LENGTH, reference_D)
        found.append(value_D)
    return found


def test_after_a_change_plain_float32_has_another_name_and_the_old_one_means_what_it_did() -> None:
    held = Mass.of(torch.ones(2))
    _, lanes, (parcel,) = _given(held, Outgoing(), later(ALL["int8"], ALL["float32"]))
    assert parcel.form == "float32/base"
    assert lanes.open == (parcel,)
    _, _, (old,) = _given(held, Outgoing(), ALL["float32"])
    assert take(Incoming(), old, later(ALL["int8"], ALL["float32"]), 2)[0].reference_D is None
    assert take(Incoming(), old, later(ALL["float32"], ALL["int8"]), 2)[0].reference_D is not None


def _given(held: Mass, lane: Outgoing, form: Form) -> tuple[Mass, Outgoing, list[transfers.NumberedTransfer]]:
    kept, lanes, parcels = transfers.give(held, {"b": lane}, 0.2, form, (1, 0), np.random.default_rng(0))
    return kept, lanes["b"], list(parcels.values())
