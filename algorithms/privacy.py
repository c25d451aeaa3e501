"""Differential privacy of clients' updates: the settings and their guarantee. The noise is in `private.py`.

The unit of privacy is a client: an observer of the released numbers cannot tell whether a client's data was used in a
round or the client sent no change at all (zero-out adjacency; Kairouz, McMahan, Song, Thakkar, Thakurta, Xu, Practical
and Private (Deep) Learning Without Sampling or Shuffling, ICML 2021, definition 1.1). A client's change, its trained
model minus the broadcast, is clipped to length `clip` (C), and all clients have the same weight, since another weight
would reveal a number of examples. So one client moves the sum of a round by C at most, and noise of standard deviation
noise * C on that sum is the Gaussian mechanism with multiplier `noise` (McMahan, Ramage, Talwar, Zhang, Learning
Differentially Private Recurrent Language Models, ICLR 2018, algorithm 1).

Who is protected against whom:

    where     noise of each client     the sum, and the model          one update, as the coordinator sees it
    sum       noise * C / sqrt(K)      multiplier noise                multiplier noise / sqrt(K): weak
    client    noise * C                multiplier noise * sqrt(K)      multiplier noise

With `sum` only the coordinator of the round sees more than the sum, and it must be trusted not to look at single
updates. The K clients make the noise together: if only k of them answer, or all but k are curious and subtract their
own share of the noise, the multiplier is noise * sqrt(k / K) (`Privacy.multiplier`). Real peers and the engines with
time close a round at its deadline with the updates that arrived, even a single one, and under an aggregation goal the
noise of late updates shrinks with their age. So the epsilon that is reported for them counts on a client's own share of
the noise alone. Updates may not be left out of the sum after they were seen, either (`learning.farthest`): the sum
would have less noise, and one client could decide which other clients count. With `client` no peer needs to be trusted,
and the model has sqrt(K) times the noise. A robust rule that selects updates reveals them nearly as they are, so `sum`
works with the plain mean only.

Not protected: the fact that a client took part, the rounds in which it did, and its other reports (such as its scores).
Real numbers in floating point leak a little more than the theory says (Mironov 2012).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


class PrivacyError(ValueError):
    """A setting gives no privacy, or the accountant is not installed; the message names the way out."""


@dataclass(frozen=True, slots=True)
class Privacy:
    """Clipped changes with Gaussian noise; see the top of this file.

    clip    C > 0, a length in the units of the parameters
    noise   the multiplier >= 0: standard deviation over C
    delta   the delta, in (0, 1), for which epsilon is reported
    where   "sum": the clients of a round make the noise together; "client": each adds all of it
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
        """Return the standard deviation of the noise that each of K participants adds to each number."""
        return self.noise * self.clip / (math.sqrt(participants) if self.where == "sum" else 1)

    def multiplier(self, participants: int, answered: int) -> float:
        """Return the noise multiplier of a round in which k of K participants answered.

        It holds against the observers that `where` names: with `sum` all who see the sum, with `client` all peers,
        including the coordinator.
        """
        return self.noise * (math.sqrt(answered / participants) if self.where == "sum" else 1)


def no_privacy() -> None:
    """Send updates as they are."""


def gaussian(
    *, clip: float = 1.0, noise: float = 1.0, delta: float = 1e-5, where: Literal["sum", "client"] = "sum"
) -> Privacy:
    """Clip each client's change to length `clip`, add Gaussian noise, and count all clients alike.

    Args:
        clip: length > 0 in the units of the parameters; default 1.0.
        noise: standard deviation in units of `clip`, >= 0; default 1.0.
        delta: in (0, 1), for which epsilon is reported; default 1e-5.
        where: "sum" (default): the clients of a round make the noise together; "client": each adds all of it, so that
            the coordinator need not be trusted.
    """
    return Privacy(clip, noise, delta, where)


PRIVACIES: dict[str, Callable[..., Privacy | None]] = {"none": no_privacy, "gaussian": gaussian}


def epsilon(*, rounds: int, noise: float, delta: float, participation: float = 1.0) -> float:
    """Return the least known epsilon of (epsilon, delta)-differential privacy after this many rounds.

    It is exact if the client is known to take part: R Gaussian mechanisms equal one with multiplier noise / sqrt(R),
    whose curve is known (Balle, Wang, Improving the Gaussian Mechanism for Differential Privacy, ICML 2018, theorem 8).
    If participation is random, it is an upper bound by the Renyi accountant of Opacus (Mironov, Talwar, Zhang, Renyi
    Differential Privacy of the Sampled Gaussian Mechanism, 2019).

    Args:
        rounds: number of rounds in which the client may have taken part.
        noise: the multiplier; the least one if rounds differ (`Privacy.multiplier`).
        delta: in (0, 1).
        participation: probability that a client takes part in a round, if the observer does not know whether it did. In
            a federation all members know who takes part (`CoordinatedAlgorithm.participants`), so against them it is 1
            and `rounds` are the client's own; below 1 it is for outsiders who see only models. Clients are assumed to
            be drawn independently of one another.

    Raises:
        PrivacyError: a number is out of its range, or Opacus is needed and not installed.
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
        raise PrivacyError(
            "epsilon with participation below 1 needs opacus; run pip install fedpeer[privacy]"
        ) from None
    spent = rdp.compute_rdp(q=participation, noise_multiplier=noise, steps=rounds, orders=_ORDERS)
    with warnings.catch_warnings():  # it warns of an order at the end of the list, which gives a valid bound, too
        warnings.simplefilter("ignore", UserWarning)
        found, _ = rdp.get_privacy_spent(orders=_ORDERS, rdp=spent, delta=delta)
    return float(found)


#: Orders of the Renyi divergence among which the accountant finds its least bound.
_ORDERS = [1 + x / 10 for x in range(1, 100)] + [float(x) for x in range(11, 64)] + [2.0**x for x in range(6, 14)]


def _exact(mu: float, delta: float) -> float:
    """Return the epsilon where delta(e) = Phi(mu / 2 - e / mu) - exp(e) Phi(-mu / 2 - e / mu) falls to delta."""
    import scipy.optimize
    from scipy.special import log_ndtr, ndtr

    def above(epsilon: float) -> float:
        return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))) - delta

    if above(0.0) <= 0:
        return 0.0
    # The Renyi bound mu^2 / 2 + mu sqrt(2 log(1 / delta)) is above it (Mironov 2017, propositions 3 and 7).
    most = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return float(scipy.optimize.brentq(above, 0.0, most, xtol=1e-12))
