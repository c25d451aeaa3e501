"""Masked shares given by push-sum, without numbered transfers: the twin of `gossip.noise_phase.give_masked`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedpeer.gossip.mass import Mass
from fedpeer.gossip.noise_phase import NoisePhase
from tests.reference.push_sum import rounded


def push(
    held: Mass,
    masking: NoisePhase,
    fraction: float,
    masked_shares: Mapping[str, Tensor],
    *,
    wire: torch.dtype = torch.float64,
) -> tuple[Mass, NoisePhase, dict[str, Mass]]:
    """Give each of these neighbors a masked share with a true share's weight: (kept, mask, shares by peer).

    Args:
        fraction: of the weight held, as in `push_sum.share_of`.
        masked_shares: for each neighbor a vector (D,) of its own, in the units of an estimate.
    """
    assert fraction > 0, "a share is a part of what is held"
    assert len(masked_shares) * fraction <= 1, "no one can give more than is held"
    weight = held.weight * fraction
    sent = {peer: rounded(Mass.of(vector_D, weight), wire) for peer, vector_D in masked_shares.items()}
    for share in sent.values():
        held = held - share
    return held, masking.after(sent), sent
