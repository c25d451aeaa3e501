"""`learning.start: file:MODEL`: another network continues from a trained model, and paths stay on their machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedpeer.cli.peer_config import load_peer
from fedpeer.peer.runtime.prepared import prepare_peer
from tests.cli.conftest import Fedpeer

FILE = """\
name: second
network: {mlp: {layers: [64, 6, 10]}}
learning: {start: "file:models/first.safetensors", rounds: 3, steps_between_averaging: 1}
simulation: {peers: 2, dataset: digits, split: iid}
"""


@pytest.fixture
def weight() -> torch.Tensor:
    """Write the first layer of a network with four hidden neurons to models/first.safetensors."""
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "hidden1.weight": torch.randn(4, 64, generator=generator),
        "hidden1.bias": torch.randn(4, generator=generator),
        "output.weight": torch.randn(10, 4, generator=generator),
        "output.bias": torch.randn(10, generator=generator),
    }
    Path("models").mkdir()
    save_file(tensors, "models/first.safetensors")
    return tensors["hidden1.weight"]


@pytest.mark.slow
def test_a_new_federation_begins_with_an_exported_model(fedpeer: Fedpeer, weight: torch.Tensor, tmp_path: Path) -> None:
    Path("federation.yaml").write_text(FILE, encoding="utf-8")
    made = fedpeer("init", "fed", "--peers", "2", "--federation", "federation.yaml")
    assert made.code == 0, made.err
    going = []
    for peer in ("peer1", "peer2"):
        config = load_peer(Path(f"fed/{peer}/{peer}.yaml"))
        prepared = prepare_peer(config.file, config.federation)
        local_task = prepared.outfit.local_task
        found = prepared.outfit.assembly.layout.unflatten(local_task.start())["hidden1.weight"]
        assert torch.equal(found[:4], weight)
        assert found[4:].abs().sum() > 0
        going.append(prepared.going.held.text)
    assert going[0] == going[1]
    assert json.loads(going[0])["learning"]["start"].startswith("file,digest=")
    assert str(tmp_path) not in going[0].decode()


def test_a_model_outside_of_the_files_folder_has_no_place_in_the_new_ones(fedpeer: Fedpeer) -> None:
    """The copy would be outside of the new folder, too, in the place of whatever is there."""
    Path("files").mkdir()
    Path("files/federation.yaml").write_text(FILE.replace("models/", "../"), encoding="utf-8")
    Path("first.safetensors").write_bytes(b"trained")
    outcome = fedpeer("init", "fed", "--peers", "2", "--federation", "files/federation.yaml")
    assert outcome.code == 2, outcome.err
    assert "../first.safetensors is outside of its folder" in " ".join(outcome.err.split())
    assert not Path("fed").exists()


def test_a_model_that_is_not_there_or_fits_nowhere_is_said(fedpeer: Fedpeer) -> None:
    Path("federation.yaml").write_text(FILE, encoding="utf-8")
    outcome = fedpeer("init", "fed", "--peers", "2", "--federation", "federation.yaml")
    assert outcome.code == 2
    assert "copy the model" in " ".join(outcome.err.split())
    Path("models").mkdir()
    save_file({"other": torch.ones(2)}, "models/first.safetensors")
    outcome = fedpeer("simulate", "--config", "federation.yaml", "--quiet")
    assert outcome.code == 2
    assert "none of its tensors fits the network" in " ".join(outcome.err.split())
