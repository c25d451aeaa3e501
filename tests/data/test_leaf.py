"""LEAF's JSON: a small FEMNIST, the real MNIST by writer, and files that contradict themselves."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeer.data import idx, leaf, store
from fedpeer.data.dataset import DataError


def image(ink: float) -> list[float]:
    return [1.0] * 783 + [ink]


def user(*labels: int) -> dict[str, Any]:
    return {"x": [image(label / 100) for label in labels], "y": list(labels)}


def put(path: Path, **users: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(each["y"]) for each in users.values()]
    text = json.dumps({"users": list(users), "num_samples": counts, "user_data": users})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.fixture
def femnist(folder: Path) -> Path:
    """Write files of three writers: two for training, one of them compressed, one for tests. Labels 0-9, A-Z, a-z."""
    data = folder / "femnist/data"
    put(data / "train/all_data_0_niid_0_keep_0_train_9.json", f0001_41=user(0, 10, 36), f0000_14=user(9, 12, 38))
    put(data / "train/all_data_1_niid_0_keep_0_train_9.json.gz", f0999_02=user(61))
    put(data / "test/all_data_0_niid_0_keep_0_test_9.json", f0000_14=user(35), f0001_41=user(37))
    return data


def test_femnist_with_all_62_classes(femnist: Path) -> None:
    found = leaf.femnist()
    assert len(found.classes) == 62
    assert "".join(found.classes[label] for label in found.y) == "0Aa9CczZb"
    assert found.x.dtype == np.float32
    np.testing.assert_allclose(found.x[:, -1].astype(float), found.y.astype(float) / 100, rtol=1e-6)
    assert (found.x[:, :-1] == 1).all()
    assert found.user_names == ("f0000_14", "f0001_41", "f0999_02")
    assert found.user_N is not None
    assert found.user_N.tolist() == [1, 1, 1, 0, 0, 0, 2, 0, 1]
    assert found.test_N is not None
    assert found.test_N.tolist() == [False] * 7 + [True] * 2


def test_femnist_merged_has_the_47_classes_of_nist(femnist: Path) -> None:
    found = leaf.femnist(variant="merged", shape="image")
    # NIST SD 19, hierarchy by_merge: these 15 letters have one class for both cases.
    assert "".join(found.classes) == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"
    assert "".join(found.classes[label] for label in found.y) == "0Aa9CCZZb"
    assert found.input_shape == (1, 28, 28)


def test_femnist_digits_leaves_out_the_letters_and_who_wrote_none(femnist: Path) -> None:
    found = leaf.femnist(variant="digits")
    assert (found.classes, found.y.tolist()) == (tuple("0123456789"), [0, 9])
    assert found.user_names == ("f0000_14", "f0001_41")
    np.testing.assert_allclose(found.x[:, -1].astype(float), [0, 0.09], rtol=1e-6)


@pytest.mark.slow
def test_mnist_by_writer_is_mnist(real: Path) -> None:
    found = leaf.mnist_by_writer()
    assert found.x.shape == (12_741, 784)
    assert found.test_N is not None
    assert found.test_N.sum() == 1301
    assert found.user_N is not None
    per_user = np.bincount(found.user_N)
    assert (len(per_user), per_user.min(), per_user.max()) == (100, 125, 131)
    # MNIST has the same digits of one writer; the files have four decimals.
    writer, expected = found.user_names[7], list[bytes]()
    for images, writers in ((idx.QMNIST.files[0], idx.QMNIST.files[4]), (idx.QMNIST.files[2], idx.QMNIST.files[5])):
        image_NHW, label_N8 = (idx.read_idx(store.fetch(idx.QMNIST, file)) for file in (images, writers))
        rows = label_N8[: len(image_NHW), 2] == int(writer.removeprefix("f"))
        expected += map(bytes, image_NHW[rows].reshape(-1, 784))
    mine = found.x[found.user_N == 7]
    assert sorted(map(bytes, np.rint(mine * 255).astype(np.uint8))) == sorted(expected)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"users": ["a"], "num_samples": [1]}, "LEAF's users, num_samples and user_data"),
        ([], "LEAF's users"),
        ({"users": ["a"], "num_samples": [1], "user_data": {}}, "'a'"),
        ({"users": ["a"], "num_samples": [1], "user_data": {"a": user(1, 2)}}, "2 labels, but num_samples says 1"),
        ({"users": ["a"], "num_samples": [], "user_data": {"a": user(1)}}, "shorter"),
        ({"users": ["a"], "num_samples": [1], "user_data": {"a": user(62)}}, "user a has a label outside 0..61"),
        ({"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[0, 1]], "y": [1]}}}, r"shape \(2,\), not"),
    ],
)
def test_a_file_that_contradicts_itself_is_named(content: object, problem: str, femnist: Path) -> None:
    (femnist / "train/all_data_0_niid_0_keep_0_train_9.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=f"femnist/data.* cannot be used: .*{problem}"):
        leaf.femnist()


def test_truncated_files_are_named(femnist: Path) -> None:
    path = femnist / "train/all_data_1_niid_0_keep_0_train_9.json.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match=r"train_9.json.gz cannot be used"):
        leaf.femnist()


def test_a_part_without_files_is_named(femnist: Path) -> None:
    (femnist / "test/all_data_0_niid_0_keep_0_test_9.json").unlink()
    with pytest.raises(DataError, match=r"femnist/data/test has no .json file; LEAF's preprocess.sh"):
        leaf.femnist()


def test_where_there_is_none_the_error_says_how_to_make_it(folder: Path) -> None:
    with pytest.raises(DataError, match=r"femnist/data is missing; .*preprocess.sh -s niid --sf 1.0 -k 0 -t sample"):
        leaf.femnist()
