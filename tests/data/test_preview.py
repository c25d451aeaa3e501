"""The preview fits its width for any data; normalisation converts values to a common scale and back."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedpeer.data.dataset import Dataset, Share, Split
from fedpeer.data.normalise import NORMALISERS, fitted_targets, standard
from fedpeer.data.preview import ROWS_MAX, preview_data


def _dataset(classes: int, examples: int = 600) -> Dataset:
    return Dataset(
        name="made",
        x=np.zeros((examples, 2), np.float32),
        y=np.arange(examples) % max(classes, 1) if classes else np.linspace(-1000.123, 1, examples, dtype=np.float32),
        task="classification" if classes else "regression",
        input_kind="features",
        classes=tuple(f"class number {c}" for c in range(classes)),
    )


def _split(peers: int, note: str, examples: int = 600) -> Split:
    parts = np.array_split(np.arange(examples // 2), peers)
    test = np.arange(examples // 2, examples)
    return Split(
        rule="blocks", shares=tuple(Share(train_M=part, test_M=test, note=note) for part in parts), remarks=("so",)
    )


def _drawn(dataset: Dataset, split: Split, width: int) -> list[str]:
    console = Console(width=200, file=io.StringIO(), color_system=None)
    console.print(preview_data(dataset, split, width=width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("classes", [0, 2, 10, 62, 200])
@pytest.mark.parametrize(
    "note", ["", "8 and 9 exchanged", "[/b] is a user's name", "a very long note about what this peer sees differently"]
)
def test_it_fits_and_shows_every_peer(width: int, classes: int, note: str) -> None:
    lines = _drawn(_dataset(classes), _split(5, note), width)
    assert max(map(len, lines)) <= width
    for peer in range(1, 6):
        assert sum(f"peer{peer} " in line and "60" in line and "300" in line for line in lines) == 1
    if note:
        assert sum(note[:10] in line for line in lines) == 5
    assert "5 peers, 60 training examples each" in "".join(lines)


def test_it_says_how_many_are_held_out() -> None:
    split = _split(5, "").keeping_back(0.1, np.random.default_rng(0))
    said = " ".join(" ".join(_drawn(_dataset(2), split, 80)).split())
    assert "5 peers, 54 training examples each 6 more are held out to choose the best round so" in said


def test_of_labels_it_counts_the_examples_of_which_each_holds() -> None:
    marks = (np.arange(600)[:, None] % [2, 3, 600] == 0).astype(np.float32)
    labels = dataclasses.replace(_dataset(0), y=marks, task="multi-label", classes=("fever", "cough", "rare"))
    lines = _drawn(labels, _split(2, ""), 80)
    assert all(name in "".join(lines) for name in labels.classes)
    [first], [second] = ([line.split() for line in lines if f"peer{peer} " in line] for peer in (1, 2))
    assert first[-3:] == ["75", "50", "1"]
    assert second[-3:] == ["75", "50", "."]


def test_of_very_many_labels_it_tells_how_many_an_example_has() -> None:
    marks = (np.arange(600)[:, None] >= np.arange(200)).astype(np.float32)  # example i has i + 1 of them, at most 200
    labels = dataclasses.replace(_dataset(0), y=marks, task="multi-label", classes=tuple(map(str, range(200))))
    lines = _drawn(labels, _split(1, ""), 80)
    [row] = [line.split() for line in lines if "peer1 " in line]
    assert row[-5:] == ["1", "75.8", "150", "200", "200"]
    assert "labels: min, quartiles, max" in "".join(lines)


def test_counts_are_shown_where_there_is_room() -> None:
    dataset = _dataset(3)
    share = Share(train_M=np.array([0, 3, 6, 1]), test_M=np.array([2]))
    line = next(line for line in _drawn(dataset, Split(rule="r", shares=(share,)), 80) if "peer1" in line)
    assert line.split() == ["peer1", "4", "1", "3", "1", "."]


def test_class_names_are_whole_where_there_is_room_and_cut_alike_where_there_is_not() -> None:
    names = ("ill", "well", "in remission", "unknown to us")
    made = dataclasses.replace(_dataset(4), classes=names)
    share = Share(train_M=np.array([0, 4, 8, 1]), test_M=np.array([2]))
    for width, shown in (
        (100, ["ill", "well", "in remission", "unknown to us"]),
        (52, ["ill", "well", "in rem…", "unknow…"]),
    ):
        lines = _drawn(made, Split(rule="r", shares=(share,)), width)
        header = next(line for line in lines if "train" in line)
        assert [name for name in shown if name not in header] == [], header
        counts = next(line for line in lines if "peer1" in line)
        for name, count in zip(shown, ("3", "1", ".", "."), strict=True):
            end = header.index(name) + len(name)
            assert counts[:end].split()[-1] == count, "a count stands under its class"


def test_many_classes_are_shaded() -> None:
    dataset = _dataset(50)
    share = Share(train_M=np.array([0, 50, 100, 150, 1]), test_M=np.array([2]))
    line = next(line for line in _drawn(dataset, Split(rule="r", shares=(share,)), 80) if "peer1" in line)
    assert line.split() == ["peer1", "5", "1", "█░"]


def test_many_peers_are_abbreviated() -> None:
    lines = _drawn(_dataset(4), _split(300, ""), 80)
    text = "\n".join(lines)
    assert "peer20 " in text
    assert "peer21 " not in text
    assert "peer297 " in text
    assert "peer300 " in text
    assert f"{300 - ROWS_MAX} more peers" in text
    assert len(lines) < ROWS_MAX + 12


# Normalisation


@given(st.integers(0, 1000), st.sampled_from(["none", "standard", "minmax"]))
def test_undo_takes_back_what_apply_did(seed: int, name: str) -> None:
    x = np.random.default_rng(seed).normal(3, 5, (20, 4)).astype(np.float32)
    normaliser = NORMALISERS[name](x)
    assert np.allclose(normaliser.undo(normaliser.apply(x)), x, atol=1e-4)


def test_standard_is_mean_zero_and_spread_one_per_feature() -> None:
    x = np.array([[1, 10, 0.1], [3, 30, 0.1], [5, 50, 0.1]], dtype=np.float32)
    found = standard(x).apply(x)
    assert np.allclose(found[:, 0], [-np.sqrt(1.5), 0, np.sqrt(1.5)], atol=1e-6)
    assert np.allclose(found[:, 0], found[:, 1])
    assert np.abs(found[:, 2]).max() < 1e-6, "a constant feature is 0, not noise"


def test_images_have_one_scale_a_channel() -> None:
    x = np.random.default_rng(0).normal([[[[0.0]], [[7.0]]]], [[[[1.0]], [[3.0]]]], (50, 2, 8, 8)).astype(np.float32)
    normaliser = standard(x)
    assert normaliser.shift_F.shape == (2, 1, 1)
    assert np.allclose(normaliser.apply(x).mean(axis=(0, 2, 3)), 0, atol=1e-5)
    assert np.allclose(normaliser.apply(x).std(axis=(0, 2, 3)), 1, atol=1e-5)


@pytest.mark.parametrize("name", ["standard", "minmax"])
def test_targets_have_a_shift_each_and_one_scale(name: str) -> None:
    y = np.random.default_rng(0).normal([48, -77, 0.1], [1, 3, 0], (200, 3)).astype(np.float32)
    normaliser = fitted_targets(y, name)
    seen, each = normaliser.apply(y), NORMALISERS[name](y)
    np.testing.assert_allclose(seen.min(0) if name == "minmax" else seen.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(normaliser.undo(seen), y, rtol=1e-5)
    assert normaliser.scale_F.shape == (1,)
    widest = each.scale_F[1] if name == "minmax" else np.sqrt(np.square(y.std(0)).mean())
    assert normaliser.scale_F[0] == pytest.approx(widest, rel=1e-4)
    assert fitted_targets(np.full((5, 2), 0.1, np.float32), name).scale_F.tolist() == [1]
    alone, plain = fitted_targets(y[:, 0], name), NORMALISERS[name](y[:, :1])
    assert (alone.shift_F, alone.scale_F) == (plain.shift_F, plain.scale_F)
    assert fitted_targets(y, "none").apply(y).tolist() == y.tolist()


@pytest.mark.parametrize("name", ["standard", "minmax"])
def test_a_feature_has_one_scale_along_a_sequence(name: str) -> None:
    degrees, pascals = np.random.default_rng(0).normal([[[20.0]], [[1e5]]], [[[5.0]], [[1e3]]], (2, 50, 6))
    x = np.stack([degrees, pascals], axis=2).astype(np.float32)
    found = NORMALISERS[name](x).apply(x)
    alone = [NORMALISERS[name](each.reshape(-1)).apply(each) for each in (x[..., 0], x[..., 1])]
    np.testing.assert_allclose(found, np.stack(alone, axis=2), atol=1e-4)


def test_minmax_takes_training_data_to_zero_and_one_and_targets_too() -> None:
    y = np.array([4.0, 8.0, 6.0], dtype=np.float32)
    normaliser = NORMALISERS["minmax"](y)
    assert normaliser.apply(y).tolist() == [0, 1, 0.5]
    assert normaliser.apply(np.array([10.0])).tolist() == [1.5], "test data is not fitted"
    assert normaliser.undo(np.array([0.25])).tolist() == [5]
