"""Who should share a semi-local model: peers find it out from how their slices disagree, and from whom averaging helps.

A partial model whose members are `alike` begins with none: everybody's neurons of it are its own. In the first rounds
each peer adds up how what it trained differs from the average that came of it. Where two peers' tasks are alike, these
disagreements point the same way. A peer sends a *sketch* of its own to all (`gossip/flooding.py`); everyone then holds
the same sketches and draws the same tree of who is most alike (`merges`). Each merge of the tree is tried: those below
it average the slice that they would share, once, and each says by how much that betters its answers to examples that it
kept back, beside the groups that are merged (`missed`, `Gain`). With the gains of all merges everyone cuts the tree at
the same place (`cut`): merges are taken, the most alike first, until they lose more than chance explains. What is below
the cut are the groups; a peer that is in none keeps the slice to itself.

Pure, and without torch. Nobody is a server: each step is a function of what everybody was told.

Sources: partial averaging 2021, section VII (assigning models to peers is its future work). That updates of peers with
different tasks point different ways: Sattler, Müller, Samek, Clustered Federated Learning, 2021, section II. That a
peer judges by its own held-back loss with whom to average: Zhang et al., Personalized Federated Learning with First
Order Model Optimization, 2021, section 3.1. Without a server: Listo Zec et al., Decentralized Adaptive Clustering of
Deep Nets is Beneficial for Client Collaboration, 2022. Count sketch: Charikar, Chen, Farach-Colton, 2002. Losses that
are bounded as in `missed`: Dennis and Welsch, Techniques for Nonlinear Least Squares and Robust Regression, 1978. The
simplest that chance does not tell from the best: Breiman et al., Classification and Regression Trees, 1984, section
3.4.3; with as many comparisons: Dunn, Multiple Comparisons Among Means, 1961.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Bytes of a `Gain` as it is told to others: three numbers of eight.
GAIN_BYTES = 24
#: How probable it may be that a merge is refused by chance, of all merges of a tree together.
CHANCE = 0.05


class AssignmentError(ValueError):
    """A user's mistake about members that are to be found. The message names the place and the way out."""


@dataclass(frozen=True)
class ClusteringSettings:
    """How members are sought.

    after       rounds, from the first one on, in which disagreements add up; groups are formed behind the last of them
    kept_back   share of each peer's training examples that it keeps for the trials; it trains on them afterwards
    sketch      numbers in a sketch, two bytes each
    """

    after: int
    kept_back: float
    sketch: int


def alike(*, after: int = 20, kept_back: float = 0.25, sketch: int = 1024) -> ClusteringSettings:
    """Members are found by the peers themselves, after some rounds of training.

    Raises:
        AssignmentError: a number out of its range.
    """
    if after < 1:
        raise AssignmentError(f"alike: after = {after}: write 1 or more rounds")
    if not 0 < kept_back <= 0.5:
        raise AssignmentError(f"alike: kept_back = {kept_back:g}: write a share above 0, at most 0.5")
    if not 16 <= sketch <= 1_000_000:
        raise AssignmentError(f"alike: sketch = {sketch}: write 16 to 1000000 numbers")
    return ClusteringSettings(after, kept_back, sketch)


#: What may stand in place of a list of members.
ASSIGNMENTS: Mapping[str, Callable[..., ClusteringSettings]] = {"alike": alike}


@dataclass(frozen=True, eq=False)
class CountSketch:
    """Short vectors with the inner products of long ones, but for chance; all peers have the same.

    Each of D numbers is added to one of S, or subtracted from it. It is linear; for vectors of length 1 the inner
    product of two sketches is right in the mean, and its variance is at most 2 / S.

    size       S
    place_D    where each number goes
    sign_D     1 or -1
    """

    size: int
    place_D: NDArray[np.int64]
    sign_D: Floats

    @classmethod
    def drawn(cls, length: int, size: int, draws: np.random.Generator) -> CountSketch:
        """Of D = `length` numbers. Where they are not more than `size`, a sketch is the vector itself."""
        if length <= size:
            return cls(length, np.arange(length), np.ones(length))
        return cls(size, draws.integers(size, size=length), draws.choice([-1.0, 1.0], size=length))

    def __call__(self, change_PD: Floats) -> Floats:
        """(..., D) -> (..., S)"""
        sketch_PS = np.zeros((*change_PD.shape[:-1], self.size))
        np.add.at(sketch_PS.T, self.place_D, (change_PD * self.sign_D).T)
        return sketch_PS


def normalised_sketches(sketch_PS: Floats) -> NDArray[np.float16]:
    """(..., S) sketches as they are sent: of length 1, since only directions are compared."""
    norm_P1 = np.linalg.norm(sketch_PS, axis=-1, keepdims=True)
    return (sketch_PS / np.where(norm_P1 > 0, norm_P1, 1.0)).astype(np.float16)


def merges(sketch_PS: NDArray[np.float16]) -> tuple[tuple[int, int], ...]:
    """Who is most alike, as a tree: merge m makes node P + m of two nodes; nodes 0..P-1 are the peers.

    Average linkage over 1 - cosine: two nodes are as far apart as their peers in the mean.
    """
    from scipy.cluster.hierarchy import linkage  # late: settings are read without it

    if len(sketch_PS) < 2:
        return ()
    wide_PS = sketch_PS.astype(np.float64)
    norm_P1 = np.linalg.norm(wide_PS, axis=1, keepdims=True)
    unit_PS = wide_PS / np.where(norm_P1 > 0, norm_P1, 1.0)
    apart_PP = 1.0 - unit_PS @ unit_PS.T
    tree = linkage(apart_PP[np.triu_indices(len(apart_PP), 1)], "average")
    return tuple((int(a), int(b)) for a, b in tree[:, :2])


def missed(loss_M: Floats, usual: float) -> Floats:
    """(M,) how far off the answers to a peer's examples are, by their losses: 0 where an answer is right, 1 - 1/e where
    it is as bad as this peer's are in the mean (`usual`), 1 where there is no hope.

    Losses have no upper end, and where a peer has few examples, the worst of them would be most of what a trial gains
    or loses by chance. These are within 0 and 1, whatever the loss and its unit.
    """
    if usual <= 0:
        return (loss_M > 0).astype(np.float64)
    return np.asarray(-np.expm1(-loss_M / usual))


@dataclass(frozen=True)
class Gain:
    """How much less a trial misses of some kept-back examples: their number, the sum, the sum of squares."""

    count: int
    total: float
    squares: float

    @classmethod
    def of(cls, before_M: Floats, after_M: Floats) -> Gain:
        """Of each example what was missed before and after."""
        gained_M = before_M - after_M
        return cls(len(gained_M), float(gained_M.sum()), float(np.square(gained_M).sum()))

    @classmethod
    def all(cls, gains: Iterable[Gain]) -> Gain:
        """Of several members together; each of their examples counts alike."""
        found = list(gains)
        return cls(sum(g.count for g in found), math.fsum(g.total for g in found), math.fsum(g.squares for g in found))

    @property
    def variance(self) -> float:
        """Of the sum, as far as it is by chance which examples were kept back."""
        if self.count < 2:
            return 0.0
        return self.count / (self.count - 1) * max(self.squares - self.total**2 / self.count, 0.0)


def below(merges: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """The peers below each node of a tree, ascending: of the leaves 0..P-1, then of the merges."""
    found: list[tuple[int, ...]] = [(peer,) for peer in range(len(merges) + 1)]
    for a, b in merges:
        found.append(tuple(sorted(found[a] + found[b])))
    return tuple(found)


def merges_taken(gains: Sequence[Gain]) -> int:
    """How many merges are taken, the most alike first.

    The more the gains of those taken add up to, the better; and more merges are taken as long as what they lose
    together may be chance: sketches have said that these peers are alike, and slices that have grown apart gain little
    at once, even where they are better off together in the end. What chance explains is a number of standard errors,
    such that the probability that it refuses a merge of peers who are alike is `CHANCE` at most, of all merges together
    (Bonferroni's correction).
    """
    total, variance = ([getattr(gain, name) for gain in gains] for name in ("total", "variance"))
    sums = [math.fsum(total[:count]) for count in range(len(gains) + 1)]
    best = sums.index(max(sums))
    errors = NormalDist().inv_cdf(1 - CHANCE / max(1, len(gains)))
    within = [
        count
        for count in range(best, len(sums))
        if sums[best] - sums[count] <= errors * math.sqrt(math.fsum(variance[best:count]))
    ]
    return within[-1]


def groups(merges: Sequence[tuple[int, int]], taken: int) -> tuple[tuple[int, ...], ...]:
    """The groups of two or more that so many merges make, the one of the smallest number first."""
    nodes, peers = below(merges), len(merges) + 1
    inside = {node for merge in merges[:taken] for node in merge}
    standing = [nodes[node] for node in range(peers, peers + taken) if node not in inside]
    return tuple(sorted(standing))
