"""The number of exchanges that a large simulation should need, from its graph alone, by closed forms where they exist.

There are two numbers. *worst* holds for every start: the smallest number of exchanges after which no start has more
than the tolerance left (the definition of `prediction.py`), or an upper bound of it. *usual* holds for a random start
with independent, identically distributed values: the mean of the squared relative disagreement is then the mean of the
squared remaining fractions of the graph's modes, and with many peers a single start hardly differs from that mean.

    vertex-transitive graphs   (ring, torus, exponential, one-peer-exponential, complete)  The modes are waves, and the
                               fraction left of each is a Fourier transform of one peer's shares; both are exact.
    random regular graphs      In the limit of many members, the modes follow the law of Kesten and McKay, and the
                               largest is 2 sqrt(degree - 1) (Friedman, A proof of Alon's second eigenvalue conjecture,
                               2008). With the self-loop, (1 + x) / (degree + 1) is left of mode x. *usual* is exact in
                               that limit, and so is *worst* except for a factor that a finite graph adds.
    other regular graphs       Up to SAME_MEMBERS_MAX members, all eigenvalues; both are exact.
    star                       A half is left, since the leaves keep half of their own.
    others                     *worst* by Lanczos, up to _LANCZOS_MEMBERS_MAX members.

Push-pull's numbers are upper bounds in root mean square over the matchings, as in `prediction.py`: an edge is taken if
it comes first among the edges at its ends, which has at least the probability q = 1 / (2 degree - 1). Only the number
of the complete graph is exact: there a matching leaves (P - 2) / (2 P - 2) of the square, and a half if P is odd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpeer.topology.graphs import TopologyError
from fedpeer.topology.mixing import Dense, eigenvalues, shares_of
from fedpeer.topology.prediction import TOLERANCE_MIN, contraction_of, geometric
from fedpeer.topology.wide import SAME_MEMBERS_MAX, WideGraph

#: Lanczos takes some hundred products with the matrix: a second for this many members.
_LANCZOS_MEMBERS_MAX = 100_000
#: Numbers of exchanges beyond this count as infinite.
_EXCHANGES_COUNTED_MAX = 10**15
#: Eigenvalues that stand for those of a large random regular graph.
_POINTS = 20_000


@dataclass(frozen=True)
class Theory:
    """Numbers of exchanges that reach a tolerance.

    usual    for a random start; None: unknown; infinite: too many to count
    worst    for the worst start; None and infinite as for `usual`
    gap      fraction of the disagreement that one exchange removes in the long run, from the worst start; None: unknown
    source   the method behind the numbers, in a few words
    """

    usual: float | None
    worst: float | None
    gap: float | None
    source: str


def theory(graph: WideGraph, protocol: str, tolerance: float) -> Theory:
    """Return the expected exchanges of push-sum or push-pull on this graph without message losses.

    Raises:
        TopologyError: the tolerance is out of range.
    """
    if not TOLERANCE_MIN <= tolerance < 1:
        raise TopologyError(f"tolerance = {tolerance}: write a number from {TOLERANCE_MIN} to below 1")
    if graph.members == 1:
        return Theory(0, 0, 1.0, "one peer is its own mean")
    if graph.complete and protocol == "push-sum":
        return Theory(1, 1, 1.0, "one exchange is exact")
    return _push_sum(graph, tolerance) if protocol == "push-sum" else _push_pull(graph, tolerance)


def _push_sum(graph: WideGraph, tolerance: float) -> Theory:
    if graph.shape is not None:
        left_TJ = [np.abs(wave_J) for wave_J in waves(graph)]
        period_J = np.prod(left_TJ, axis=0)
        gap = 1 - float(period_J.max()) ** (1 / len(left_TJ))
        usual = first_exchange(left_TJ, _root_mean_square, tolerance)
        worst = max(
            first_exchange(left_TJ[first:] + left_TJ[:first], _largest, tolerance) for first in range(len(left_TJ))
        )
        return Theory(usual, worst, gap, "eigenvalues by Fourier transform")
    if graph.degree is not None and graph.degree >= 3:
        x_J, chance_J = kesten_mckay(graph.degree)
        left_J = np.abs(1 + x_J) / (graph.degree + 1)
        edge = (1 + 2 * math.sqrt(graph.degree - 1)) / (graph.degree + 1)
        usual = first_exchange([left_J], lambda left_J: math.sqrt(float(chance_J @ left_J**2)), tolerance)
        return Theory(usual, _powers(edge, tolerance), 1 - edge, "Kesten and McKay's law, Friedman's bound")
    if graph.members <= SAME_MEMBERS_MAX and _regular(graph):
        left_J = np.abs(eigenvalues(shares_of(graph.phases[0]))[1:])
        usual = first_exchange([left_J], _root_mean_square, tolerance)
        worst = first_exchange([left_J], _largest, tolerance)
        return Theory(usual, worst, 1 - float(left_J.max()), "all eigenvalues")
    if graph.name == "star":
        return Theory(None, _powers(0.5, tolerance * 2 / _mean_size(graph)), 0.5, "closed form")
    if graph.members > _LANCZOS_MEMBERS_MAX:
        return Theory(None, None, None, f"no closed form, and Lanczos takes {_LANCZOS_MEMBERS_MAX:,} peers at most")
    left = contraction_of([shares_of(phase) for phase in graph.phases])
    least = min(float(np.diff(phase.indptr).min()) + 1 for phase in graph.phases)
    return Theory(None, _powers(left, tolerance * least / _mean_size(graph)), 1 - left, "largest eigenvalue by Lanczos")


def _push_pull(graph: WideGraph, tolerance: float) -> Theory:
    if graph.complete:
        left = 0.5 if graph.members % 2 else (graph.members - 2) / (2 * graph.members - 2)
        return _of_squares(left, tolerance, "closed form")
    if graph.shape is not None:
        degree = len(_offsets(graph))
        mu = (degree - float(_union_waves(graph).max())) / (2 * degree - 1)
        return _of_squares(1 - mu / 2, tolerance, "eigenvalues by Fourier transform")
    if graph.degree is not None and graph.degree >= 3:
        mu = (graph.degree - 2 * math.sqrt(graph.degree - 1)) / (2 * graph.degree - 1)
        return _of_squares(1 - mu / 2, tolerance, "Friedman's bound")
    return Theory(None, None, None, "no closed form")


def _of_squares(left: float, tolerance: float, source: str) -> Theory:
    """Return the numbers for an exchange that leaves this mean fraction of the squared distance, whatever the start."""
    count = _powers(left, tolerance**2)
    return Theory(count, count, 1 - math.sqrt(left), source)


# --------------------------------------------------------------------------------------------------------------- modes


def waves(graph: WideGraph) -> Iterator[NDArray[np.complex128]]:
    """Yield for each phase push-sum's factors for all waves but the constant one, (P - 1,) complex.

    The graph looks the same from every member, so its matrix is a convolution, and these are its eigenvalues.
    """
    assert graph.shape is not None, "waves are modes where all members see the same"
    for phase in graph.phases:
        near = phase.indices[phase.indptr[0] : phase.indptr[1]]
        column_P = np.zeros(graph.members)
        column_P[[0, *near.tolist()]] = 1 / (len(near) + 1)
        yield np.fft.fftn(column_P.reshape(graph.shape)).ravel()[1:]


def kesten_mckay(degree: int) -> tuple[Dense, Dense]:
    """Return eigenvalues of the adjacency matrix of large random regular graphs, and the probability of each.

    The density is degree sqrt(4 (degree - 1) - x^2) / (2 pi (degree^2 - x^2)); Kesten 1959, McKay, The expected
    eigenvalue distribution of a large regular graph, 1981. The points are Chebyshev's for that root.
    """
    angle_J = np.pi * np.arange(1, _POINTS + 1) / (_POINTS + 1)
    x_J = 2 * math.sqrt(degree - 1) * np.cos(angle_J)
    weight_J = np.sin(angle_J) ** 2 / (degree**2 - x_J**2)
    return x_J, weight_J / weight_J.sum()


def first_exchange(left_TJ: Sequence[Dense], size: Callable[[Dense], float], tolerance: float) -> float:
    """Return the first exchange after which `size` of the modes' remaining fractions is at most the tolerance.

    left_TJ: for each phase the fraction that it leaves of each mode, 0 to 1. Whole periods are found by bisection, then
    phases one by one.
    """
    period_J = np.prod(left_TJ, axis=0)
    low, high = -1, 1  # numbers of periods that do not suffice, and that do
    while size(period_J**high) > tolerance:
        low, high = high, 2 * high
        if high > _EXCHANGES_COUNTED_MAX:
            return math.inf
    low = max(low, 0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(period_J**middle) > tolerance else (low, middle)
    left_J = period_J**low
    for number, phase_J in enumerate(left_TJ, start=1):
        left_J = left_J * phase_J
        if size(left_J) <= tolerance:
            return low * len(left_TJ) + number
    return high * len(left_TJ)


def _offsets(graph: WideGraph) -> list[int]:
    """Return the offsets of the first member's neighbors, in both directions, over all phases."""
    near: set[int] = set()
    for phase in graph.phases:
        near |= set(phase.indices[phase.indptr[0] : phase.indptr[1]].tolist())
        incoming = phase.T.tocsr()
        near |= set(incoming.indices[incoming.indptr[0] : incoming.indptr[1]].tolist())
    return sorted(near - {0})


def _union_waves(graph: WideGraph) -> Dense:
    """Return the eigenvalues of the undirected union's adjacency matrix, except the constant wave's, (P - 1,)."""
    near_P = np.zeros(graph.members)
    near_P[_offsets(graph)] = 1.0
    assert graph.shape is not None, "waves are modes where all members see the same"
    return np.asarray(np.fft.fftn(near_P.reshape(graph.shape)).real.ravel()[1:])


def _powers(left: float, tolerance: float) -> float:
    count = geometric(left, tolerance)
    return count if count <= _EXCHANGES_COUNTED_MAX else math.inf


def _root_mean_square(left_J: Dense) -> float:
    return math.sqrt(float(np.mean(left_J**2)))


def _largest(left_J: Dense) -> float:
    return float(left_J.max())


def _regular(graph: WideGraph) -> bool:
    """Return whether the graph is undirected and all members have equally many neighbors: its matrix is symmetric."""
    (phase, *more) = graph.phases
    return not more and len(np.unique(np.diff(phase.indptr))) == 1 and not (phase - phase.T).nnz


def _mean_size(graph: WideGraph) -> float:
    """Return the mean of out-degree + 1."""
    return graph.channels / len(graph.phases) / graph.members + 1
