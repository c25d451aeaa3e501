"""Data of a real peer: its part of the simulation, or a file of its own, divided by seed and id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.peer_file import PeerFile
from fedpeer.config.settings import TABLE_VALIDATION_ROWS
from fedpeer.data.dataset import DataError, Share
from fedpeer.data.own.code import imported
from fedpeer.learning.holdings import dataset_split, held_by, load_dataset, outfit
from fedpeer.peer.node.trainer import LocalTrainer
from fedpeer.sims.peers import local_tasks
from tests.sims.worlds import federation, world


def peer(data: object, id: str = "peer3", **settings: Any) -> PeerFile:
    return PeerFile.model_validate({"federation": "federation.yaml", "id": id, "data": data, **settings})


def table(folder: Path) -> str:
    draws = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{'ill' if a > b else 'well'}" for a, b in draws.normal(5, 2, (120, 2))]
    path = folder / "ward.csv"
    path.write_text("\n".join(["a,b,outcome", *rows]) + "\n")
    return str(path)


def test_a_table_holds_out_a_tenth_where_there_are_enough_rows(tmp_path: Path) -> None:
    """A simulated peer and a real one; `validation: 0`, and other data, hold out none."""
    path, data = table(tmp_path), load_dataset(parse_choice("digits"))
    at_least = TABLE_VALIDATION_ROWS
    for trained, expected in ((at_least, at_least // 10), (at_least - 1, 0)):
        ward = {"csv": path, "label": "outcome", "test_fraction": 1 - trained / 120}
        _, mine = held_by(peer(ward), Federation())
        assert (len(mine.train_M) + len(mine.valid_M), len(mine.valid_M)) == (trained, expected)
        simulation = {"dataset": {"csv": {"path": path, "label": "outcome"}}, "peers": 1,
                      "split": f"iid,test_fraction={1 - trained / 120}"}  # fmt: skip
        options = Federation.model_validate({"simulation": simulation})
        split = dataset_split(load_dataset(options.simulation.dataset), options, 0)
        assert (len(split.shares[0].valid_M), split.validates, split.remarks) == (expected, expected > 0, ())
        assert not len(held_by(peer({**ward, "validation": 0}), Federation())[1].valid_M)
    plain = Federation.model_validate({"simulation": {"peers": 2, "split": "iid"}})
    assert not dataset_split(data, plain, 0).validates


@pytest.mark.parametrize("settings", [{}, {"simulation__normalise": "standard"}, {"learning__common_start": False}])
def test_a_part_of_the_simulation_is_what_simulate_gives(settings: dict[str, Any]) -> None:
    options = federation(**settings)
    made = world(options)
    mine, twin = outfit(peer({"simulation": 3}), options, "cpu").local_task, local_tasks(made)["peer3"]
    assert torch.equal(mine.start(), twin.start())
    s_k = torch.zeros(0)
    ours, theirs = (LocalTrainer(each, parse_choice("local"), imported, made.peers) for each in (mine, twin))
    x_n, _ = ours.train(1, mine.start(), s_k, True)
    assert torch.equal(x_n, theirs.train(1, twin.start(), s_k, True)[0])
    assert mine.evaluate(x_n) == twin.evaluate(x_n)


def test_a_part_that_is_not_there_is_refused() -> None:
    with pytest.raises(DataError, match="the simulation has 6 peers"):
        held_by(peer({"simulation": 7}), federation())


def test_ones_own_file_is_divided_by_seed_and_id(tmp_path: Path) -> None:
    data = {"csv": table(tmp_path), "label": "outcome"}

    def tested(id: str, seed: int, **more: float) -> list[int]:
        dataset, held = held_by(peer({**data, **more}, id), Federation(seed=seed))
        assert sorted([*held.train_M, *held.test_M]) == list(range(len(dataset)))
        return [int(row) for row in held.test_M]

    usual = tested("peer3", 0)
    assert len(usual) == pytest.approx(30, abs=1)
    assert tested("peer3", 0) == usual
    assert tested("peer4", 0) != usual
    assert tested("peer3", 1) != usual
    assert len(tested("peer3", 0, test_fraction=0.5)) == pytest.approx(60, abs=1)


def test_a_part_of_the_training_examples_may_be_held_out(tmp_path: Path) -> None:
    data = {"csv": table(tmp_path), "label": "outcome"}
    _, usual = held_by(peer(data), Federation())
    assert not len(usual.valid_M)
    _, found = held_by(peer({**data, "validation": 0.2}), Federation())
    assert np.array_equal(found.test_M, usual.test_M), "the test part is the same"
    assert len(found.valid_M) == round(0.2 * len(usual.train_M))
    assert sorted([*found.train_M, *found.valid_M]) == sorted(usual.train_M)
    assert not np.array_equal(
        found.valid_M, held_by(peer({**data, "validation": 0.2}, "peer4"), Federation())[1].valid_M
    )
    with pytest.raises(ValueError, match="simulation takes only a number"):
        peer({"simulation": 3, "validation": 0.2})


def test_examples_held_out_are_others_by_another_scale(tmp_path: Path) -> None:
    """A best model that was trained by the scale before would be used by the new one."""
    path, digests = Path(table(tmp_path)), list[str]()
    ann = peer({"csv": str(path), "label": "outcome", "validation": 0.1}, network="mlp:2+3+2")
    lines = path.read_text().splitlines()
    first = outfit(ann, Federation(), "cpu")
    row = int(first.held.train_M[0]) + 1
    for changed in (lines[row], lines[row].replace(lines[row].split(",")[0], "900")):
        path.write_text("\n".join([*lines[:row], changed, *lines[row + 1 :]]) + "\n")
        found = outfit(ann, Federation(), "cpu")
        assert np.array_equal(found.dataset.x[found.held.valid_M], first.dataset.x[first.held.valid_M])
        digests.append(found.local_task.valid_digest)
    assert digests[0] == first.local_task.valid_digest != digests[1]


def test_each_part_is_held_out_in_one_fold() -> None:
    """The five folds of a fifth are disjoint and have all training examples; the first is the usual validation part."""

    def shares(**settings: Any) -> tuple[Share, ...]:
        options = federation(**settings)
        return dataset_split(load_dataset(options.simulation.dataset), options, 0).shares

    usual, whole = shares(simulation__validation=0.2), shares()
    folds = [shares(simulation__validation=0.2, simulation__fold=fold) for fold in range(5)]
    assert all(np.array_equal(one.valid_M, two.valid_M) for one, two in zip(folds[0], usual, strict=True))
    for number, share in enumerate(whole):
        parts = [fold[number].valid_M for fold in folds]
        assert sorted(np.concatenate(parts)) == sorted(share.train_M)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        for fold, part in zip(folds, parts, strict=True):
            assert sorted([*fold[number].train_M, *part]) == sorted(share.train_M)


def test_ones_own_file_is_brought_to_a_common_scale_on_its_training_part(tmp_path: Path) -> None:
    made = outfit(peer({"csv": table(tmp_path), "label": "outcome"}), Federation(), "cpu")
    assert made.held.inputs is not None
    seen = made.held.inputs.apply(made.dataset.x[made.held.train_M])
    np.testing.assert_allclose(seen.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(seen.std(0), 1, atol=1e-4)
    raw = outfit(peer({"csv": table(tmp_path), "label": "outcome", "normalise": "none"}), Federation(), "cpu")
    assert raw.held.inputs is None


def test_a_network_of_ones_own_is_built_and_the_federation_stays_what_all_agree_on() -> None:
    options = federation()
    made = outfit(peer({"simulation": 1}, network="mlp:64+20+10"), options, "cpu")
    assert made.assembly.layout.n == 64 * 20 + 20 + 20 * 10 + 10
    assert made.assembly.options.digest() == options.digest()


def test_code_of_the_federation_file_needs_leave_and_ones_own_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets_of_others.py").write_text(
        "from torch import nn\ndef build(shape, outputs):\n    return nn.Linear(shape[0], outputs)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    named = "python:nets_of_others:build"
    theirs = federation(network=named)
    with pytest.raises(DataError, match=r"allow_python: \[nets_of_others\]"):
        outfit(peer({"simulation": 1}), theirs, "cpu")
    assert outfit(peer({"simulation": 1}, allow_python=["nets_of_others"]), theirs, "cpu").assembly.layout.n == 650
    assert outfit(peer({"simulation": 1}, network=named), federation(), "cpu").assembly.layout.n == 650
    data = federation(simulation__dataset="python:nets_of_others:build")
    with pytest.raises(DataError, match="allow_python"):
        held_by(peer({"simulation": 1}), data)
