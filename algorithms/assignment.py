"""Clustering of peers: they find out themselves which of them should share a semi-local model.

A partial model whose members are `alike` begins without members: every peer has its own neurons of it. In the first
rounds each peer sums the differences between its trained slice and the average in which that slice took part. If two
peers' tasks are similar, these differences point the same way. Each peer sends a *sketch* of its sum to all others
(`gossip/flooding.py`), so all peers have the same sketches and compute the same tree of similar peers (`merges`). Then
each merge of the tree is tried: the peers below it average the slice that they would share, once, and each reports how
much that improves its answers to examples that it kept back, compared with the two groups that are merged (`missed`,
`Gain`). From the gains of all merges every peer cuts the tree at the same place: merges are taken, the most similar
first, until they lose more than chance explains (`merges_taken`). The groups are below the cut (`groups`); a peer
without a group keeps the slice to itself.

Peers may also differ in two ways that cross, in their inputs and in their labels. Then peers that are similar in one of
the two have no direction in common. They are compared by the `second_moments` of the changes of their own weights, less
the mean over all peers (`without_common`), and the tree of these sketches is cut without trials
(`merges_by_likelihood`). Groups count as found only if halves of the neurons show them as well (`groups_by_parts`).

Pure, and without torch. There is no server: each step is a function of messages that all peers received.

Sources: partial averaging 2021, section VII (assigning models to peers is its future work). That updates of peers with
different tasks point different ways: Sattler, Müller, Samek, Clustered Federated Learning, 2021, section II. That a
peer decides by its own held-back loss with whom to average: Zhang et al., Personalized Federated Learning with First
Order Model Optimization, 2021, section 3.1. Without a server: Listo Zec et al., Decentralized Adaptive Clustering of
Deep Nets is Beneficial for Client Collaboration, 2022. Count sketch: Charikar, Chen, Farach-Colton, 2002. Bounded
losses as in `missed`: Dennis and Welsch, Techniques for Nonlinear Least Squares and Robust Regression, 1978. The
simplest choice that is within chance of the best: Breiman et al., Classification and Regression Trees, 1984, section
3.4.3; correction for many comparisons: Dunn, Multiple Comparisons Among Means, 1961. Groups whose distances have means
of their own: Mariadassou, Robin, Vacher, Uncovering Latent Structure in Valued Graphs, 2010. Cost of each of these
means: Schwarz, Estimating the Dimension of a Model, 1978. That clusters of parts of the data agree where there are
clusters: Ben-Hur, Elisseeff, Guyon, A Stability Based Method for Discovering Structure in Clustered Data, 2002.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Bytes of a `Gain` as it is sent: three numbers of eight.
GAIN_BYTES = 24
#: Largest probability that a merge is refused by chance, for all merges of a tree together.
CHANCE = 0.05
#: Shuffles of the sketches. Groups count as found only if no shuffle is cut better than the sketches. It is the least
#: number for `CHANCE`.
_SHUFFLES = round(1 / CHANCE) - 1
#: Parts of a sketch by inputs or outputs: each is of every fourth neuron, and all peers store them separately.
SKETCH_PARTS = 4
#: Least adjusted Rand index between the groups of half of the parts and the groups of all parts, so that groups count
#: as found. In pilots with views and codes of digits it was at least 0.85 where groups by code were right (50 digits a
#: peer, after 60 rounds), and at most 0.62 where they were chance (20 digits).
AGREEMENT_MIN = 0.8
#: Distances that differ by less count as equal: the numbers of a sketch have eleven bits.
_ROUNDING = 2.0**-11

#: Basis of the comparison of peers: the updates of the slice that all of them average, or which of the network's
#: inputs, or outputs, the model's own weights change together.
ComparedBy = Literal["updates", "inputs", "outputs"]


class AssignmentError(ValueError):
    """A setting of automatic assignment is invalid. The message names the place and the way out."""


@dataclass(frozen=True)
class ClusteringSettings:
    """The settings of automatic assignment.

    after       number of first rounds whose differences are summed, >= 1; groups are formed after the last of them
    kept_back   share of each peer's training examples that is kept for the trials, in (0, 0.5]; the peer trains on them
                afterwards
    sketch      numbers in a sketch, 16 to 1,000,000, two bytes each
    by          basis of the comparison of peers
    groups      number of groups where `by` is not "updates", >= 2; 0: as many as the sketches show
    """

    after: int
    kept_back: float
    sketch: int
    by: ComparedBy
    groups: int


def similar_peers(
    *, after: int = 20, kept_back: float = 0.25, sketch: int = 1024, by: ComparedBy = "updates", groups: int = 0
) -> ClusteringSettings:
    """Let the peers find the members themselves, after some rounds of training.

    Args:
        after: rounds before the groups are formed, >= 1; default 20.
        kept_back: share of each peer's training examples kept for the trials, in (0, 0.5]; default 0.25.
        sketch: numbers in a sketch, 16 to 1,000,000, two bytes each; default 1024.
        by: basis of the comparison: `updates` of the slice that all average, or changes of the model's own weights from
            the network's `inputs` (peers with similar inputs) or into its `outputs` (peers with similar labels);
            default updates.
        groups: number of groups, by inputs or outputs; default 0, as many as the sketches show.

    Raises:
        AssignmentError: a number is out of its range.
    """
    if after < 1:
        raise AssignmentError(f"alike: after = {after}: write 1 or more rounds")
    if not 0 < kept_back <= 0.5:
        raise AssignmentError(f"alike: kept_back = {kept_back:g}: write a share above 0, at most 0.5")
    if not 16 <= sketch <= 1_000_000:
        raise AssignmentError(f"alike: sketch = {sketch}: write 16 to 1000000 numbers")
    if by not in get_args(ComparedBy):
        raise AssignmentError(f"alike: by = {by}: write {', '.join(get_args(ComparedBy))}")
    if groups and (groups < 2 or by == "updates"):
        raise AssignmentError(
            f"alike: groups = {groups}: write 2 or more, with by=inputs or by=outputs, or leave it out"
        )
    return ClusteringSettings(after, kept_back, sketch, by, groups)


#: What a partial model may have in place of a list of members.
ASSIGNMENTS: Mapping[str, Callable[..., ClusteringSettings]] = {"alike": similar_peers}


@dataclass(frozen=True, eq=False)
class CountSketch:
    """A random linear map to short vectors that keeps inner products up to random errors; all peers use the same.

    Each of D numbers is added to one of S, or subtracted from it. For vectors of length 1 the inner product of two
    sketches is right in the mean, and its variance is at most 2 / S.

    size       S
    place_D    (D,) place of each number, in 0..S-1
    sign_D     (D,) 1 or -1
    """

    size: int
    place_D: NDArray[np.int64]
    sign_D: Floats

    @classmethod
    def drawn(cls, length: int, size: int, draws: np.random.Generator) -> CountSketch:
        """Return a sketch of D = `length` numbers; where D <= `size`, it is the vector itself."""
        if length <= size:
            return cls(length, np.arange(length), np.ones(length))
        return cls(size, draws.integers(size, size=length), draws.choice([-1.0, 1.0], size=length))

    def __call__(self, change_PD: Floats) -> Floats:
        """Return the sketches (..., S) of vectors (..., D)."""
        sketch_PS = np.zeros((*change_PD.shape[:-1], self.size))
        np.add.at(sketch_PS.T, self.place_D, (change_PD * self.sign_D).T)
        return sketch_PS


def second_moments(change_RC: Floats) -> Floats:
    """Return which of C inputs (or outputs) the weights of R neurons have changed together, (C * C,).

    Peers with the same inputs and other labels, or the same labels and other inputs, move their weights in different
    directions, but these span the same space: a row is a mixture of the inputs that the peer has seen, and a column is
    a mixture of the classes that it confuses. The products of the changes do not depend on how they are mixed.
    """
    return (change_RC.T @ change_RC).ravel()


def moments_in_parts(change_RC: Floats) -> Floats:
    """Return the `second_moments` of every fourth neuron's changes, (K, C * C); their sum is that of all neurons.

    K is 4, or the number of neurons R if that is less.
    """
    count = min(SKETCH_PARTS, len(change_RC))
    return np.stack([second_moments(change_RC[first::count]) for first in range(count)])


def normalised_sketches(sketch_PS: Floats) -> NDArray[np.float16]:
    """Return sketches (..., S) as they are sent: of length 1, since only directions are compared."""
    norm_P1 = np.linalg.norm(sketch_PS, axis=-1, keepdims=True)
    return (sketch_PS / np.where(norm_P1 > 0, norm_P1, 1.0)).astype(np.float16)


def merges(sketch_PS: NDArray[np.float16]) -> tuple[tuple[int, int], ...]:
    """Return the tree of similar peers: merge m makes node P + m of two nodes; nodes 0..P-1 are the peers.

    Average linkage over 1 - cosine: the distance of two nodes is the mean distance of their peers.
    """
    from scipy.cluster.hierarchy import linkage  # late: settings are read without it

    if len(sketch_PS) < 2:
        return ()
    apart_PP = _apart(sketch_PS)
    tree = linkage(apart_PP[np.triu_indices(len(apart_PP), 1)], "average")
    return tuple((int(a), int(b)) for a, b in tree[:, :2])


def _apart(sketch_PS: NDArray[np.float16]) -> Floats:
    """Return 1 - cosine of each two sketches, (P, P)."""
    wide_PS = sketch_PS.astype(np.float64)
    norm_P1 = np.linalg.norm(wide_PS, axis=1, keepdims=True)
    unit_PS = wide_PS / np.where(norm_P1 > 0, norm_P1, 1.0)
    return np.asarray(1.0 - unit_PS @ unit_PS.T)


def without_common(sketch_PS: NDArray[np.float16]) -> NDArray[np.float16]:
    """Return sketches less their mean, of length 1 again: the mean distinguishes no peer."""
    wide_PS = sketch_PS.astype(np.float64)
    return normalised_sketches(wide_PS - wide_PS.mean(axis=0))


def groups_by_parts(
    part_PKS: NDArray[np.float16], draws: np.random.Generator, wanted: int = 0
) -> tuple[tuple[int, ...], ...]:
    """Return the groups that sketches by inputs or outputs show, (P, K, S) in parts; () where they show none for sure.

    The tree of the whole sketches is cut by likelihood. Then each half of the parts is cut in the same way: its neurons
    learned from the same examples, but from other weights. Where the halves show other groups, the groups are chance,
    and a model shared with the wrong peers is worse than one of a peer's own. A single part is not checked.

    Args:
        draws: draws the shuffles of `merges_by_likelihood`; all peers use the same.
        wanted: number of groups, >= 2, which are then not checked; 0: not known.
    """
    whole_PS = _special(part_PKS, range(part_PKS.shape[1]))
    found = groups(merges(whole_PS), merges_by_likelihood(whole_PS, draws, wanted))
    checked = found and not wanted and part_PKS.shape[1] > 1
    return () if checked and _agreement(part_PKS, found) < AGREEMENT_MIN else found


def _special(part_PKS: NDArray[np.float16], parts: Sequence[int]) -> NDArray[np.float16]:
    """Return the sketches (P, S) of these parts together, less the mean over all peers."""
    return without_common(normalised_sketches(part_PKS[:, list(parts)].astype(np.float64).sum(axis=1)))


def _agreement(part_PKS: NDArray[np.float16], found: tuple[tuple[int, ...], ...]) -> float:
    """Return the mean adjusted Rand index between these groups and the groups of each half of the parts."""
    from sklearn.metrics import adjusted_rand_score  # late: a second

    peers, count = part_PKS.shape[:2]
    label_P, scores = _labels(found, peers), []
    for half in combinations(range(count), count // 2):
        half_PS = _special(part_PKS, half)
        halfs = groups(merges(half_PS), _best_cut(half_PS)[0])
        scores.append(float(adjusted_rand_score(label_P, _labels(halfs, peers))))
    return math.fsum(scores) / len(scores)


def _labels(found: Sequence[Sequence[int]], peers: int) -> NDArray[np.int64]:
    """Return the number of each peer's group, (P,); a peer without a group has a number of its own."""
    label_P = -1 - np.arange(peers)
    for number, members in enumerate(found):
        label_P[list(members)] = number
    return label_P


def merges_by_likelihood(sketch_PS: NDArray[np.float16], draws: np.random.Generator, wanted: int = 0) -> int:
    """Return how many merges of the tree of these sketches are taken, without a trial.

    Of all cuts that leave two groups or more, and at most half as many groups as peers, the one under which the
    distances of the peers are the most likely is chosen (`_evidence`). Two groups that are closer to one another than
    to the other groups stay separate. No merge is taken, and there are no groups, if sketches whose numbers are
    shuffled among the peers are cut as well.

    Args:
        draws: draws the shuffles; all peers use the same.
        wanted: number of groups, >= 2; 0: not known.
    """
    if wanted:
        return max(0, len(sketch_PS) - wanted)
    taken, best = _best_cut(sketch_PS)
    shuffled = [_best_cut(draws.permuted(sketch_PS, axis=0))[1] for _ in range(_SHUFFLES if taken else 0)]
    return taken if best > max(shuffled, default=math.inf) else 0


def _best_cut(sketch_PS: NDArray[np.float16]) -> tuple[int, float]:
    """Return the number of merges with the most evidence, and how much more evidence that is than for one group.

    0 merges for fewer than four peers, since no cut of them leaves two groups of two.
    """
    peers, tree, apart_PP = len(sketch_PS), merges(sketch_PS), _apart(sketch_PS)
    nodes, label_P, best = below(tree), np.arange(peers), (0, -math.inf)
    for taken, (a, _) in enumerate(tree[:-1], 1):
        label_P[list(nodes[peers + taken - 1])] = label_P[nodes[a][0]]
        if 2 * taken >= peers:  # at most half as many groups as peers
            best = max(best, (taken, _evidence(apart_PP, label_P)), key=lambda cut: cut[1])
    return best[0], best[1] - _evidence(apart_PP, np.zeros_like(label_P)) if best[0] else 0.0


def _evidence(apart_PP: Floats, label_P: NDArray[np.int64]) -> float:
    """Return the log-likelihood of the distances under these groups, up to a constant, less the cost of the groups.

    Distances within a group, and between two, are normal with a mean of their own, and all have one variance
    (Mariadassou et al. 2010). Each mean costs half the logarithm of the number of distances (Schwarz 1978), and each
    further group costs the logarithm of the number of peers, since one of the tree's nodes names it.
    """
    first_N, second_N = np.triu_indices(len(label_P), 1)
    _, group_P = np.unique(label_P, return_inverse=True)
    count, pairs, apart_N = int(group_P.max()) + 1, len(first_N), apart_PP[first_N, second_N]
    low_N, high_N = np.sort(group_P[np.stack([first_N, second_N])], axis=0)
    _, block_N, size_B = np.unique(low_N * count + high_N, return_inverse=True, return_counts=True)
    mean_B = np.bincount(block_N, weights=apart_N) / size_B
    variance = max(float(np.square(apart_N - mean_B[block_N]).mean()), _ROUNDING**2)
    stated = count * (count + 1) / 4 * math.log(pairs) + (count - 1) * math.log(len(label_P))
    return -pairs / 2 * math.log(variance) - stated


def missed(loss_M: Floats, usual: float) -> Floats:
    """Return how wrong the answers to a peer's examples are, by their losses, (M,) in [0, 1].

    It is 0 for a right answer, 1 - 1/e for one as bad as this peer's mean (`usual`), and approaches 1 for worse ones.
    Losses have no upper bound, and where a peer has few examples, the worst of them would make up most of what a trial
    gains or loses by chance. These values are bounded, whatever the loss and its unit.
    """
    if usual <= 0:
        return (loss_M > 0).astype(np.float64)
    return np.asarray(-np.expm1(-loss_M / usual))


@dataclass(frozen=True)
class Gain:
    """Gain of a trial on some kept-back examples.

    count     number of examples
    total     sum of their gains
    squares   sum of the squares of their gains
    """

    count: int
    total: float
    squares: float

    @classmethod
    def of(cls, before_M: Floats, after_M: Floats) -> Gain:
        """Return the gain, from the values of `missed` of each example before and after the trial."""
        gained_M = before_M - after_M
        return cls(len(gained_M), float(gained_M.sum()), float(np.square(gained_M).sum()))

    @classmethod
    def all(cls, gains: Iterable[Gain]) -> Gain:
        """Return the gain of several members together; each of their examples counts the same."""
        found = list(gains)
        return cls(sum(g.count for g in found), math.fsum(g.total for g in found), math.fsum(g.squares for g in found))

    @property
    def variance(self) -> float:
        """Variance of the sum that is due to the random choice of the examples that were kept back."""
        if self.count < 2:
            return 0.0
        return self.count / (self.count - 1) * max(self.squares - self.total**2 / self.count, 0.0)


def below(merges: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Return the peers below each node of a tree, ascending: of the leaves 0..P-1, then of the merges."""
    found: list[tuple[int, ...]] = [(peer,) for peer in range(len(merges) + 1)]
    for a, b in merges:
        found.append(tuple(sorted(found[a] + found[b])))
    return tuple(found)


def merges_taken(gains: Sequence[Gain]) -> int:
    """Return how many merges are taken, beginning with the most similar peers.

    The merges that are taken should have the largest sum of gains; further merges are taken while their joint loss may
    be chance. The reason is that the sketches have shown these peers to be similar, and slices that have grown apart
    gain little at once, even where their peers are better off together in the end. Chance explains a number of standard
    errors such that the probability of refusing a merge of similar peers is at most `CHANCE`, for all merges of the
    tree together (Bonferroni's correction).
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
    """Return the groups of two or more peers that this many merges make, ordered by their smallest number."""
    nodes, peers = below(merges), len(merges) + 1
    inside = {node for merge in merges[:taken] for node in merge}
    outermost = [nodes[node] for node in range(peers, peers + taken) if node not in inside]
    return tuple(sorted(outermost))
