"""A federation file that was changed while a state exists: what `fedpeer start` reports and which settings it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpeer.cli.peer_config import load_peer
from fedpeer.peer.runtime.agreement import state_of
from fedpeer.peer.runtime.prepared import prepare_peer
from fedpeer.peer.state.journal import held_of
from tests.cli.conftest import Fedpeer
from tests.kept.release import moved, unpacked
from tests.peer.runtime.whole import whole


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a state of the previous release, which kept only a digest, after one start of this release."""
    folder = moved(unpacked("gossip", tmp_path)) / "peer1"
    config = load_peer(folder / "peer1.yaml")
    with whole(prepare_peer(config.file, config.federation)) as running:
        assert "only a digest of its contract" in running.line("older_state").text
        assert "older_state" not in {line.what for line in running.lines if line.level != "info"}
    state = state_of(folder / "peer1-state")
    assert state is not None
    assert held_of(state) is not None
    return folder


def rewritten(folder: Path, *changes: tuple[str, str]) -> None:
    path = folder / "federation.yaml"
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


@pytest.mark.slow
def test_every_key_that_was_changed_by_hand_is_named_and_no_state_is_to_be_removed(
    fedpeer: Fedpeer, folder: Path
) -> None:
    rewritten(
        folder, ("rounds: 2000", "rounds: 3000"), ("lr: 0.05", "lr: 0.01"), ("exchanges: 2", "exchanges: 3"),
        ("[64, 3, 10]", "[64, 4, 10]"),
    )  # fmt: skip
    outcome = fedpeer("start", "--config", str(folder / "peer1.yaml"))
    said = " ".join(outcome.err.split())
    assert outcome.code == 2
    for words in (
        "gossip.exchanges is 2 in the state and 3 in the file; it may change with fedpeer update",
        'learning.optimizer is "sgd,lr=0.05,momentum=0.5" in the state and "sgd,lr=0.01,momentum=0.5" in the file',
        "learning.rounds is 2000 in the state and 3000 in the file; it may change with fedpeer update",
        'network is "mlp,layers=64+3+10" in the state and "mlp,layers=64+4+10" in the file; it cannot change',
        "learning.start: file:MODEL",
    ):
        assert words in said
    assert "remove" not in said


@pytest.mark.slow
def test_settings_that_a_file_leaves_open_stay_as_they_were(folder: Path) -> None:
    """Another wording, another order and defaults that are written out are not a change."""
    rewritten(folder, ("gossip: {topology: complete,", "gossip: {every: 1, tick: 0.025, topology: complete,"))
    config = load_peer(folder / "peer1.yaml")
    assert prepare_peer(config.file, config.federation).going.remark == ""
