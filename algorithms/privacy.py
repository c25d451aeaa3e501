"""Differential privacy of what clients send: what is asked for, and what it comes to. The noise is in `private.py`.

The unit is a client: whoever sees what is released cannot tell whether a client's data was used in a round or the
client sent no change at all (zero-out adjacency; Kairouz, McMahan, Song, Thakkar, Thakurta, Xu, Practical and Private
(Deep) Learning Without Sampling or Shuffling, ICML 2021, definition 1.1). A client's change, what it made of the
broadcast less the broadcast, is clipped to length `clip` (C), and all count alike, since a weight would tell a number
of examples. So one client moves the sum of a round by C at most, and noise of standard deviation noise * C on that sum
is the Gaussian mechanism with multiplier `noise` (McMahan, Ramage, Talwar, Zhang, Learning Differentially Private
Recurrent Language Models, ICLR 2018, algorithm 1).

Who is protected against whom:

    where     noise of each client     the sum, and the model          one update, as the coordinator sees it
    sum       noise * C / sqrt(K)      multiplier noise                multiplier noise / sqrt(K): weak
    client    noise * C                multiplier noise * sqrt(K)      multiplier noise

With `sum` everybody but the coordinator of the round is shown the sum only, and the coordinator must be trusted not to
look at single updates. The K clients make the noise together: if only k of them answer, or all but k are curious and
take their own share off again, the multiplier is noise * sqrt(k / K) (`Privacy.multiplier`). With `client` nobody needs
be trusted, and the model has sqrt(K) times the noise. A rule that picks updates out of the sum shows them nearly as
they are, so that `sum` goes with the plain mean only.

What is not protected: that a client took part, in which rounds, and what it says of itself elsewhere (scores that it
reports). Real numbers in floating point leak a little more than the theory says (Mironov 2012).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


class PrivacyError(ValueError):
    """A setting that gives no privacy, or the accountant is not installed; the message names the way out."""


@dataclass(frozen=True, slots=True)
class Privacy:
    """Clipped changes with Gaussian noise; see the top of this file.

    clip    C > 0, a length in the units of the parameters
    noise   the multiplier >= 0: standard deviation over C
    delta   for which epsilon is told, in (0, 1)
    """

    clip: float
    noise: float
    delta: float
    where: Literal["sum", "client"]

    def __post_init__(self) -> None:
        if not self.clip > 0:
            raise PrivacyError(f"gaussian: clip = {self.clip:g}: write a length above 0")
        if not self.noise >= 0:
            raise PrivacyError(f"gaussian: noise = {self.noise:g}: write 0 or more; about 1 is usual")
        if not 0 < self.delta < 1:
            raise PrivacyError(f"gaussian: delta = {self.delta:g}: write a number between 0 and 1, such as 1e-5")

    def deviation(self, participants: int) -> float:
        """The standard deviation of the noise that each of K participants adds to each number it sends."""
        return self.noise * self.clip / (math.sqrt(participants) if self.where == "sum" else 1)

    def multiplier(self, participants: int, answered: int) -> float:
        """The noise multiplier for those to whom this choice promises something, of a round in which k of K answered.

        With `sum` that is everyone who is shown the sum; with `client` everyone, the coordinator too.
        """
        return self.noise * (math.sqrt(answered / participants) if self.where == "sum" else 1)


def no_privacy() -> None:
    """Updates are sent as they are."""


def gaussian(
    *, clip: float = 1.0, noise: float = 1.0, delta: float = 1e-5, where: Literal["sum", "client"] = "sum"
) -> Privacy:
    """A client's change is clipped to length `clip` and gets Gaussian noise, and all clients count alike.

    `noise` is in units of `clip`; with `where=sum` the clients of a round make it together, and with `where=client`
    each adds all of it, so that the coordinator need not be trusted.
    """
    return Privacy(clip, noise, delta, where)


PRIVACIES: dict[str, Callable[..., Privacy | None]] = {"none": no_privacy, "gaussian": gaussian}


def epsilon(*, rounds: int, noise: float, delta: float, participation: float = 1.0) -> float:
    """The least epsilon known of (epsilon, delta)-differential privacy after so many rounds.

    Exact where the client is known to take part: R Gaussian mechanisms are one with multiplier noise / sqrt(R), whose
    curve is known (Balle, Wang, Improving the Gaussian Mechanism for Differential Privacy, ICML 2018, theorem 8). With
    chance, an upper bound by the Renyi accountant of Opacus (Mironov, Talwar, Zhang, Renyi Differential Privacy of the
    Sampled Gaussian Mechanism, 2019).

    Args:
        rounds: those in which the client may have taken part.
        noise: the multiplier, the least of them where rounds differ (`Privacy.multiplier`).
        participation: the chance with which a client takes part in a round, where nobody knows whether it did. In a
            federation all members know who takes part (`CoordinatedAlgorithm.participants`), so against them it is 1
            and `rounds` are the client's own; below 1 it is for strangers who are shown nothing but models. Clients
            are taken to be drawn independently of one another.

    Raises:
        PrivacyError: a number out of its range, or Opacus is needed and not installed.
    """
    if not (rounds >= 0 and noise >= 0 and 0 < delta < 1 and 0 < participation <= 1):
        raise PrivacyError(
            f"epsilon of {rounds} rounds, noise {noise:g}, delta {delta:g}, participation {participation:g}: rounds "
            "and noise are 0 or more, delta between 0 and 1, participation above 0 and at most 1"
        )
    if rounds == 0:
        return 0.0
    if noise == 0:
        return math.inf
    if participation == 1:
        return _exact(math.sqrt(rounds) / noise, delta)
    try:
        from opacus.accountants.analysis import rdp
    except ImportError:
        raise PrivacyError("epsilon under chance needs opacus; run pip install fedpeer[privacy]") from None
    spent = rdp.compute_rdp(q=participation, noise_multiplier=noise, steps=rounds, orders=_ORDERS)
    with warnings.catch_warnings():  # of an order at the end of the list, which is as true a bound as any
        warnings.simplefilter("ignore", UserWarning)
        found, _ = rdp.get_privacy_spent(orders=_ORDERS, rdp=spent, delta=delta)
    return float(found)


#: Orders of Renyi divergence over which the accountant looks for its least bound.
_ORDERS = [1 + x / 10 for x in range(1, 100)] + [float(x) for x in range(11, 64)] + [2.0**x for x in range(6, 14)]


def _exact(mu: float, delta: float) -> float:
    """Where delta(e) = Phi(mu / 2 - e / mu) - exp(e) Phi(-mu / 2 - e / mu) falls to delta."""
    import scipy.optimize
    from scipy.special import log_ndtr, ndtr

    def above(epsilon: float) -> float:
        return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))) - delta

    if above(0.0) <= 0:
        return 0.0
    # The Renyi bound mu^2 / 2 + mu sqrt(2 log(1 / delta)) is above it (Mironov 2017, propositions 3 and 7).
    most = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return float(scipy.optimize.brentq(above, 0.0, most, xtol=1e-12))
