"""The generator of sparse vectors against its formulas one by one, and the data set of the experiment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpeer.algorithms.draws import Draws
from fedpeer.config.federation import Federation
from fedpeer.data.associative import associative_data, vectors
from fedpeer.data.dataset import DataError, Dataset, Split
from fedpeer.data.held import held
from fedpeer.data.preview import preview_data
from fedpeer.data.splits import bases, default_split, make_split, summary
from fedpeer.learning.holdings import dataset_split, load_dataset, normalisation_of


def one(k: int, n: int, m: int, z: int, s: int, modified: bool) -> tuple[list[int], list[int], list[int]]:
    """Return the whole, the whole with noise and the given part with noise, by the paper's text, bit by bit."""
    whole, part = [0] * n, [0] * n
    for i in range(m):
        whole[(3 * m * (k % s) + i) % n] = part[(3 * m * (k % s) + i) % n] = 1
    for i in range(2 * m, 3 * m) if modified else range(m, 2 * m):
        whole[(3 * m * (k % s) + i) % n] = 1
    noisy, noisy_part = list(whole), list(part)
    for i in range(z):
        for bits in (noisy, noisy_part):
            place = (k // s + i * (n // z)) % n
            bits[place] = 1 - bits[place]
    return whole, noisy, noisy_part


@pytest.mark.parametrize(("n", "m", "z", "s"), [(50, 8, 2, 3), (12, 2, 1, 2), (9, 3, 0, 4), (20, 3, 20, 1)])
def test_vectors_are_the_formulas(n: int, m: int, z: int, s: int) -> None:
    number_K = np.array([0, 1, 2, 5, 8, 47, 48, 1000, 1099])
    changed_K = number_K % 2 == 0
    found = vectors(number_K, n=n, m=m, z=z, s=s, changed_K=changed_K)
    wanted = [one(int(k), n, m, z, s, bool(c)) for k, c in zip(number_K, changed_K, strict=True)]
    for array, column in zip(found, zip(*wanted, strict=True), strict=True):
        assert array.tolist() == [list(map(float, row)) for row in column]
    assert found[0].sum(1).tolist() == [2 * m] * len(number_K)


def test_of_the_papers_classes_one_has_coordinates_of_its_own() -> None:
    """3mr + 3m exceeds n = 50 for the last class, so its vectors continue into the coordinates of the first."""
    used = []
    for kind in range(3):
        number_K, changed_K = np.array([kind, kind]), np.array([False, True])
        whole_Kn, _, _ = vectors(number_K, n=50, m=8, z=0, s=3, changed_K=changed_K)
        used.append(set(np.flatnonzero(whole_Kn.any(0)).tolist()))
    assert not used[1] & (used[0] | used[2])
    assert used[0] & used[2]


def default() -> tuple[Dataset, Split]:
    dataset = load_dataset_named("associative")
    return dataset, dataset_split(dataset, Federation(), 0)


def load_dataset_named(name: str) -> Dataset:
    return load_dataset(Federation.model_validate({"simulation": {"dataset": name}}).simulation.dataset)


def test_the_experiment_is_the_default() -> None:
    """There are 15 peers, 9 vectors to learn, 100 to complete; two peers complete one class in three otherwise."""
    dataset, split = default()
    assert default_split(dataset, None) == "user"
    assert len(split.shares) == 15
    for number, share in enumerate(split.shares):
        modified = number < 2
        for rows, numbers, whole in ((share.train_M, range(9), True), (share.test_M, range(1000, 1100), False)):
            shown = [one(k, 50, 8, 2, 3, modified and k % 3 == 0) for k in numbers]
            wanted = [noisy if whole else part for _, noisy, part in shown]
            seen, order = dataset.x[rows], np.argsort(rows)
            assert seen[order].tolist() == [list(map(float, row)) for row in wanted]
            assert dataset.y[rows][order].tolist() == [list(map(float, full)) for full, _, _ in shown]
    notes = [share.note for share in split.shares]
    assert notes[:3] == ["other-01", "other-02", "usual-03"]
    assert dataset.x.dtype == dataset.y.dtype == np.float32


@pytest.mark.parametrize(("missed", "others", "s"), [(1, 2, 3), (2, 1, 3), (3, 0, 5)])
def test_what_users_miss_others_know(missed: int, others: int, s: int) -> None:
    dataset = associative_data(missed=missed, others=others, s=s, m=3, changed=1, users=7, train=20)
    assert dataset.user_N is not None
    assert dataset.test_N is not None
    known = set()
    for user in range(7):
        own = dataset.x[(dataset.user_N == user) & ~dataset.test_N]
        kept = [
            k % s
            for k in range(20)
            if any(one(k, 50, 3, 2, s, user < others and k % s == 1)[1] == row.tolist() for row in own)
        ]
        assert len(kept) == len(own)
        assert len(set(kept)) == s - missed
        assert user >= others or 1 in kept, "only they know it"
        known |= set(kept) if user >= others else set()
    assert known == set(range(s))


def test_what_a_peer_holds_are_zeros_and_ones() -> None:
    dataset, split = default()
    one_peer = held(dataset, split, 0, "none")
    assert one_peer.targets is None
    assert one_peer.inputs is None
    assert one_peer.score_scale == 1.0
    assert one_peer.train_y.shape == (9, 50)
    assert one_peer.train_y.dtype == np.float32
    assert normalisation_of(dataset, Federation().simulation.dataset) == "none"
    with pytest.raises(DataError, match="must not be scaled; write none"):
        held(dataset, split, 0, "standard")


def test_the_summary_counts_ones() -> None:
    dataset, split = default()
    found = summary(dataset, split)
    assert found["peers"][0]["train_quantiles"] == [[16.0] * 5]
    assert "ones: min, quartiles, max" in str(preview_data(dataset, split, width=100).columns[3].header)


@pytest.mark.parametrize("rule", ["iid", "blocks"])
def test_other_splits_test_on_parts_too(rule: str) -> None:
    dataset = associative_data(users=3)
    federation = Federation.model_validate({"simulation": {"split": rule, "peers": 2}})
    split = dataset_split(dataset, federation, 0)
    assert dataset.test_N is not None
    assert all(dataset.test_N[share.test_M].all() for share in split.shares)
    assert not any(dataset.test_N[share.train_M].any() for share in split.shares)


@pytest.mark.parametrize(
    ("simulation", "words"),
    [
        ({"split": "user,test_fraction=0.2"}, ["incomplete patterns", "leave test_fraction out"]),
        ({"split": "iid,test_fraction=0.2"}, ["incomplete patterns", "leave test_fraction out"]),
        ({"split": "user/pixels"}, ["pixels", "leave it out"]),
        ({"split": "user/swap:0+1"}, ["swap", "patterns to complete", "leave it out"]),
        ({"split": "labels:2"}, ["needs classes", "patterns to complete"]),
        ({"validation": 0.2}, ["simulation.validation", "write 0"]),
        ({"peers": 16}, ["15 users", "16 peers"]),
    ],
    ids=str,
)
def test_what_would_mix_whole_and_part_is_refused(simulation: dict[str, object], words: list[str]) -> None:
    dataset = load_dataset_named("associative")
    with pytest.raises(DataError) as refusal:
        dataset_split(dataset, Federation.model_validate({"simulation": simulation}), 0)
    assert all(word in str(refusal.value) for word in words)


def test_users_without_a_part_of_their_own_are_refused() -> None:
    dataset = associative_data(users=2)
    assert dataset.test_N is not None
    assert dataset.user_N is not None
    swapped = replace(dataset, user_N=np.where(dataset.test_N, 0, dataset.user_N))
    with pytest.raises(DataError, match="users without training or test patterns"):
        make_split([bases.user], swapped, None, Draws(0).numpy("split"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"m": 17}, ["m = 17", "at most 16"]),
        ({"m": 0}, ["m = 0", "1 or more"]),
        ({"z": 51}, ["z = 51", "at most 50"]),
        ({"z": -1}, ["z = -1", "0 or more"]),
        ({"s": 0}, ["s = 0", "1 or more"]),
        ({"others": 16}, ["others = 16", "at most 15"]),
        ({"changed": 3}, ["changed = 3", "at most 2"]),
        ({"train": 0}, ["train = 0"]),
        ({"missed": 3}, ["missed = 3", "at most 2"]),
        ({"train": 1, "missed": 1}, ["nothing to learn", "missed = 1"]),
        ({"test": 0}, ["test = 0"]),
        ({"test_from": -1}, ["test_from = -1"]),
        ({"users": 0}, ["users = 0"]),
    ],
    ids=str,
)
def test_settings_have_bounds(settings: dict[str, int], words: list[str]) -> None:
    with pytest.raises(DataError) as refusal:
        associative_data(**settings)
    assert all(word in str(refusal.value) for word in words)
