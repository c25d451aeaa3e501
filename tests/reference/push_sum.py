"""One step of push-sum: give shares away, and add what arrives.

Source: Kempe, Dobra, Gehrke, Gossip-based computation of aggregate information, 2003.
"""

from __future__ import annotations

import torch

from fedpeer.gossip.mass import Mass


def rounded(mass: Mass, wire: torch.dtype) -> Mass:
    """Return the mass that arrives if values travel as `wire`; the weight is in the head and stays float64."""
    return Mass(mass.value_D.to(wire).to(torch.float64), mass.weight)


def share_of(held: Mass, fraction: float, *, copies: int = 1, wire: torch.dtype = torch.float64) -> tuple[Mass, Mass]:
    """Split off `copies` equal shares of `fraction` each; return (mass kept, mass that each receiver gets).

    Exactly what travels is debited: the share is rounded to the wire's type first, and the rounding error stays with
    the sender.
    """
    assert fraction > 0, "a share is a part of what is held"
    assert copies * fraction <= 1, "no one can give more than is held"
    sent = rounded(held.scaled(fraction), wire)
    return held - sent.scaled(copies), sent


def receive(held: Mass, sent: Mass) -> Mass:
    """Add a share that arrived, or a share of the peer's own that is known to be lost."""
    return held + sent
