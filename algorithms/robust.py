"""Robust aggregation: one update from the updates of K peers, f of which may be Byzantine and send anything.

Every rule takes updates (K, D), one row a peer, and returns (D,) float64. Rows are in the order of peers, not of
arrival, and are summed in that order, so that the result is the same to the last bit. A rule counts rows. They must
come from known peers, since a Byzantine client with two identities counts as two, and must be finite (`finite_rows`).
The bounds below are for updates of one distribution (IID data); where the peers' data differ, an honest outlier looks
like a Byzantine update and is discarded like one.

    rule              it gives                                     if any f of K >= 2 f + 3 are Byzantine, the result is
    median            the median of each coordinate                between honest values in each coordinate
    trimmed_mean      each coordinate's mean without both ends     the same
    krum              the row whose nearest others are nearest     near an honest row, by the spread of honest rows
    multi_krum        the mean of the best such rows               the same
    geometric_median  the point with the least sum of distances    within 2 (K - f) / (K - 2 f) honest radii
    centred_clipping  a start moved by clipped differences         moved by 2 * steps * radius * f / K at most

Sources: Blanchard, El Mhamdi, Guerraoui, Stainer, Machine Learning with Adversaries, NeurIPS 2017 (Krum); Yin, Chen,
Ramchandran, Bartlett, Byzantine-Robust Distributed Learning, ICML 2018 (median, trimmed mean); Pillutla, Kakade,
Harchaoui, Robust Aggregation for Federated Learning, 2019 (geometric median); Karimireddy, He, Jaggi, Learning from
History for Byzantine Robust Optimization, ICML 2021 (centred clipping).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedpeer.algorithms.byzantine import RobustError, check_liars
from fedpeer.algorithms.coordinated import uniform_mean, weighted_mean
from fedpeer.algorithms.precision import widest

#: Most steps of Weiszfeld's method. It needs five to twenty. Only where the median is exactly on a row does it converge
#: more slowly than linearly, and the error after a thousand steps does not matter for learning.
_WEISZFELD_STEPS_MAX = 1000


def finite_rows(updates_KD: Tensor) -> Tensor:
    """Return which rows contain only finite numbers, (K,) bool.

    The other rows are left out, and their peers named, before a rule sees the rest; each such row reduces f by one.
    """
    return updates_KD.isfinite().all(1)


def coordinate_median(updates_KD: Tensor) -> Tensor:
    """Return the median of each coordinate, the mean of the middle two if K is even. Yin et al. 2018, definition 1."""
    sorted_KD = _checked(updates_KD).sort(dim=0).values
    last = len(sorted_KD) - 1
    return (sorted_KD[last // 2] + sorted_KD[(last + 1) // 2]) / 2


def mean_trimmed(updates_KD: Tensor, *, trim: int) -> Tensor:
    """Return the mean of each coordinate without its `trim` smallest and largest values. Yin et al. 2018, definition 2.

    Tolerates `trim` Byzantine rows: the remaining values lie between values of honest peers.

    Raises:
        RobustError: K < 2 * trim + 3.
    """
    check_liars("the trimmed mean", len(updates_KD), trim)
    sorted_KD = _checked(updates_KD).sort(dim=0).values
    return uniform_mean(sorted_KD[trim : len(sorted_KD) - trim])


def select_krum(updates_KD: Tensor, *, liars: int) -> Tensor:
    """Return the one update whose K - f - 2 nearest others are nearest to it. Blanchard et al. 2017, section 4.

    Raises:
        RobustError: K < 2 f + 3.
    """
    return mean_of_krum(updates_KD, liars=liars, kept=1)


def mean_of_krum(updates_KD: Tensor, *, liars: int, kept: int | None = None) -> Tensor:
    """Return the mean of the `kept` updates with the best Krum scores. Blanchard et al. 2017, section 6.

    Args:
        kept: in 1..K - f - 2; default K - f - 2.

    Raises:
        RobustError: K < 2 f + 3, or `kept` is out of its range.
    """
    check_liars("Krum", len(updates_KD), liars)
    near = len(updates_KD) - liars - 2
    kept = near if kept is None else kept
    if not 1 <= kept <= near:
        raise RobustError(f"multi-krum: kept = {kept}: write 1 to K - f - 2 = {near}, for {len(updates_KD)} updates")
    order_K = krum_scores(updates_KD, liars=liars).sort(stable=True).indices  # ties: the first peer's, as in Krum
    return uniform_mean(_checked(updates_KD)[order_K[:kept].sort().values])


def krum_scores(updates_KD: Tensor, *, liars: int) -> Tensor:
    """Return each update's sum of squared distances to its K - f - 2 nearest others, (K,); the least is the best."""
    near = len(updates_KD) - liars - 2
    apart_KK = _apart(_checked(updates_KD)).square()
    return apart_KK.fill_diagonal_(torch.inf).sort(dim=1).values[:, :near].sum(1)


def weiszfeld_median(updates_KD: Tensor, weight_K: Tensor | None = None, *, tolerance: float = 1e-6) -> Tensor:
    """Return argmin over v of sum_k weight_k |v - update_k|, by Weiszfeld's method from the median of the coordinates.

    Pillutla et al. 2019. Where v coincides with rows, the method takes the step of Vardi and Zhang 2000, without which
    it would stay there. It stops when a step is at most `tolerance` times the weighted median distance of the rows,
    which Byzantine clients cannot choose. Steps would approach a minimum on a row ever more slowly, so the row itself
    is found.

    Args:
        weight_K: (K,), >= 0, by number of examples in the paper; Byzantine clients must have less than half of the sum.
            None: all equal.
        tolerance: no unit, relative to the spread of the honest majority; default 1e-6.
    """
    value_KD = _checked(updates_KD)
    weight_K = torch.ones_like(value_KD[:, 0]) if weight_K is None else weight_K.to(value_KD.dtype)
    at_D = coordinate_median(value_KD)
    for _ in range(_WEISZFELD_STEPS_MAX):
        difference_KD = value_KD - at_D
        apart_K = torch.linalg.vector_norm(difference_KD, dim=1)
        short = tolerance * _middle(apart_K, weight_K)
        here_K = apart_K <= short
        pull_K = torch.where(here_K, 0.0, weight_K / apart_K.where(~here_K, 1.0))
        held = weight_K[here_K].sum()  # the rows at v resist a step with all their weight
        if pull_K.sum() == 0:
            break
        step_D = weighted_mean(difference_KD, pull_K)
        force = pull_K.sum() * torch.linalg.vector_norm(step_D)
        if force <= held:
            break
        step_D *= 1 - held / force
        at_D = at_D + step_D
        if torch.linalg.vector_norm(step_D) <= short:
            break
    return _no_worse_than_a_row(at_D, value_KD, weight_K)


def _no_worse_than_a_row(at_D: Tensor, value_KD: Tensor, weight_K: Tensor) -> Tensor:
    """Return the point, or the best of the rows if that is better: steps converge slowly to a minimum on a row."""
    reach = weight_K @ torch.linalg.vector_norm(value_KD - at_D, dim=1)
    best, row = (_apart(value_KD) @ weight_K).min(0)
    return value_KD[row] if best < reach else at_D


def _apart(value_KD: Tensor) -> Tensor:
    """Return the distances between the rows, (K, K).

    A matrix product would not do: |a|^2 - 2ab + |b|^2 of close rows far from 0 cancels to noise.
    """
    return torch.cdist(value_KD, value_KD, compute_mode="donot_use_mm_for_euclid_dist")


def _middle(apart_K: Tensor, weight_K: Tensor) -> Tensor:
    """Return the distance within which half of the weight lies."""
    near, order_K = apart_K.sort()
    reached_K = weight_K[order_K].cumsum(0)
    return near[torch.searchsorted(reached_K, reached_K[-1] / 2)]


def clip_centred(updates_KD: Tensor, start_D: Tensor, *, radius: float, steps: int = 1) -> Tensor:
    """Return v + mean_k (update_k - v) min(1, radius / |update_k - v|), applied `steps` times from v = `start_D` (D,).

    Karimireddy et al. 2021. Any two choices of f Byzantine rows give results at most 2 * steps * radius * f / K apart.
    Updates should carry momentum from round to round, or Byzantine changes that are too small to be clipped add up.

    Args:
        start_D: (D,) the result of the round before; 0 at first.
        radius: > 0, about the length of an honest update's difference from the start.
        steps: >= 1; default 1.
    """
    value_KD = _checked(updates_KD)
    at_D = start_D.to(value_KD.dtype)
    for _ in range(steps):
        difference_KD = value_KD - at_D
        apart_K1 = torch.linalg.vector_norm(difference_KD, dim=1, keepdim=True)
        at_D = at_D + uniform_mean(difference_KD * (radius / apart_K1.clamp(min=radius)))
    return at_D


def _spread_of(updates_KD: Tensor, from_D: Tensor) -> float:
    """Return the median distance of the updates from a point, the lower of the middle two if their number is even.

    While fewer than half of the updates are Byzantine, it is at most the distance of some honest row.
    """
    return float(torch.linalg.vector_norm(_checked(updates_KD) - from_D, dim=1).median())


def aggregated(rule: str, values_KD: Tensor, weights_K: Tensor, liars: int, **settings: Any) -> Tensor:
    """Return the result of a choice of `aggregation.py` for the updates of a round, (D,) in the type of values_KD.

    The plain mean takes all rows as they are. Every other rule leaves out the rows that are not finite, each of which
    reduces f by one, and falls back to the median of the coordinates if fewer than 2 f + 3 rows are left.
    """
    if rule == "mean":
        return weighted_mean(values_KD, weights_K)
    finite_K = finite_rows(values_KD)
    left_KD, left_K = values_KD[finite_K], weights_K[finite_K]
    assert len(left_KD), "a round whose updates are all refused is not closed"
    liars = max(0, liars - int((~finite_K).sum()))
    if len(left_KD) < 2 * liars + 3:
        return coordinate_median(left_KD).to(values_KD.dtype)
    return _RULES[rule](left_KD, left_K, liars, **settings).to(values_KD.dtype)


def _multi_krum(values_KD: Tensor, weights_K: Tensor, liars: int, *, kept: int | None) -> Tensor:
    near = len(values_KD) - liars - 2
    return mean_of_krum(values_KD, liars=liars, kept=min(kept or near, near))


def _centred_clipping(values_KD: Tensor, weights_K: Tensor, liars: int, *, radius: float | None, steps: int) -> Tensor:
    start_D = coordinate_median(values_KD)
    reach = _spread_of(values_KD, start_D) if radius is None else radius
    return clip_centred(values_KD, start_D, radius=reach, steps=steps) if reach > 0 else start_D


#: (values_KD, weights_K, liars) -> (D,), by the names of `aggregation.py`.
_RULES: dict[str, Callable[..., Tensor]] = {
    "median": lambda values_KD, weights_K, liars: coordinate_median(values_KD),
    "trimmed-mean": lambda values_KD, weights_K, liars: mean_trimmed(values_KD, trim=liars),
    "krum": lambda values_KD, weights_K, liars: select_krum(values_KD, liars=liars),
    "multi-krum": _multi_krum,
    "centred-clipping": _centred_clipping,
    "geometric-median": lambda values_KD, weights_K, liars, weighted: weiszfeld_median(
        values_KD, weights_K if weighted else None
    ),
}


def _checked(updates_KD: Tensor) -> Tensor:
    """Return the updates in the widest type, all finite: a single one that is not would decide every rule."""
    assert updates_KD.dim() == 2, "one row a peer"
    assert finite_rows(updates_KD).all(), "an update that is not finite is refused before aggregation"
    return updates_KD.to(widest(updates_KD.device))
