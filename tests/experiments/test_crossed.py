"""Two hierarchies that cross: who is in which group, and the network that gets both as inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedpeer.cli.simulate_options import options_of
from fedpeer.config.rules import PEERS, Combination, problems_of
from fedpeer.config.settings import FederationSettings
from fedpeer.experiments.crossed import CROSSED
from fedpeer.experiments.told_network import told_network
from fedpeer.learning.holdings import load_dataset
from fedpeer.networks.mlp import MLP
from fedpeer.sims.world import build_world, plan_of
from tests.experiments.conftest import Listed

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "crossed.yaml"


@pytest.fixture
def federation(listed: Listed) -> Callable[..., FederationSettings]:
    """Provide the federation of a method, or of one of its variants, on 20 digits."""

    def of(method: str, variant: str = "") -> FederationSettings:
        [cell] = [cell for cell in listed("crossed", "default") if cell.label == f"digits, 20 images, {method}"]
        rated = [name for name in cell.variants if name.startswith(variant) and name.endswith("0.003")]
        [found] = [cell.variants[name].federation for name in rated]
        return found

    return of


def test_each_peer_is_in_one_group_of_each_hierarchy(federation: Callable[..., FederationSettings]) -> None:
    wanted = federation("crossed", "first by view, middle common")
    made = build_world(wanted, load_dataset(wanted.simulation.dataset), 0)
    groups = {group.id: set(group.members) for group in plan_of(made, wanted.learning.algorithm).groups}
    assert groups.pop("everyone") == set(made.peers)
    for number in range(1, 5):
        for other in range(1, 5):
            assert len(groups[f"view{number}"] & groups[f"code{other}"]) == 1, "they cross"
    shares = dict(zip(made.peers, made.split.shares, strict=True))
    seen = [{_bytes(shares[peer].feature_map_F) for peer in groups[f"view{number}"]} for number in range(1, 5)]
    called = [{_bytes(shares[peer].label_map_C) for peer in groups[f"code{number}"]} for number in range(1, 5)]
    for each in (seen, called):
        assert [len(found) for found in each] == [1] * 4, "a group's peers see, or call, alike"
        assert len(set.union(*each)) == 4


def _bytes(places: NDArray[np.int64] | None) -> bytes:
    return b"" if places is None else places.tobytes()


def test_groups_that_are_found_would_be_those_written_down(federation: Callable[..., FederationSettings]) -> None:
    found, written = (
        federation("crossed, groups found", "codes after 60; a"),
        federation("crossed", "first by view, middle common"),
    )
    assert found.automatic == ("view", "code")
    views = [[f"peer{peer}" for peer in range(first, 17, 4)] for first in range(1, 5)]
    codes = [[f"peer{4 * number + place}" for place in range(1, 5)] for number in range(4)]
    decided = found.decided("view", views).decided("code", codes)
    assert {name: (each.modules, each.members) for name, each in decided.partial_models.items()} == {
        name: (each.modules, each.members) for name, each in written.partial_models.items()
    }


def test_the_example_is_the_first_layout(federation: Callable[..., FederationSettings]) -> None:
    example, written = options_of({}, EXAMPLE).federation, federation("crossed", "first by view, middle common")
    assert example.partial_models == written.partial_models
    same = ("batch_size", "steps_between_averaging", "start", "loss")
    assert [getattr(example.learning, name) for name in same] == [getattr(written.learning, name) for name in same]
    assert str(example.simulation.split).replace("50", "20", 1) == str(written.simulation.split)
    assert problems_of(Combination.of(example, PEERS)) == [], "real peers play it"


def test_pages_say_what_the_picture_of_the_example_shows() -> None:
    facts = json.loads((ROOT / "docs" / "pictures" / "crossed.json").read_text())
    crossed, alone = (100 * float(np.mean(facts[name]["accuracy"][-1])) for name in ("crossed", "alone"))
    assert len({kill["peer"] for kill in facts["kills"]}) == 5
    sentence = f"with groups that cross their mean accuracy is {crossed:.1f} %, alone {alone:.1f} %"
    for page in ("README.md", "docs/gallery.md"):
        assert sentence in (ROOT / page).read_text()
    assert f"crossed {crossed:.1f} %" in (ROOT / "docs" / "pictures" / "crossed.svg").read_text()


def test_each_size_has_every_method_on_all_kinds_of_images(listed: Listed) -> None:
    for name in CROSSED.sizes:
        cells = listed("crossed", name)
        assert len({cell.label for cell in cells}) == len(cells)
        kinds = {request.federation.simulation.dataset.name for cell in cells for request in cell.variants.values()}
        assert kinds == set(CROSSED.data), name
        claimed = {label for claim in CROSSED.claims for label in claim.needs}
        assert {cell.label for cell in cells} <= claimed
    splits = {
        cell.label.partition(",")[0]: request.federation.simulation.model_dump(mode="json")["split"]
        for cell in listed("crossed", "default")
        for request in cell.variants.values()
    }
    assert {name for name, split in splits.items() if "pixels" in str(split)} == {"digits with mixed pixels"}


def test_who_is_told_has_view_and_code_beside_the_inputs() -> None:
    network, x = told_network((8, 8), 10, view=2, code=1, of=4, layers=(64, 6, 10)), torch.randn(3, 8, 8)
    plain = MLP([72, 6, 10], activation="relu")
    plain.load_state_dict({name.removeprefix("layers."): value for name, value in network.state_dict().items()})
    marks = torch.tensor([0, 0, 1, 0, 0, 1, 0, 0]).expand(3, -1)
    assert torch.equal(network(x), plain(torch.cat([x.flatten(1), marks], dim=1)))


def test_all_who_are_told_have_one_model_and_each_knows_its_own_place(
    federation: Callable[..., FederationSettings],
) -> None:
    wanted = federation("one model, told view and code")
    made = build_world(wanted, load_dataset(wanted.simulation.dataset), 0)
    [group] = plan_of(made, wanted.learning.algorithm).groups
    assert group.members == made.peers
    assert all(group.length == made.assembly_of(peer).layout.n for peer in made.peers)
    marks = [tuple(made.assembly_of(peer).module.get_buffer("mark_E").tolist()) for peer in made.peers]
    assert len(set(marks)) == 16
    crossed = federation("crossed", "first by view, middle common").partial_models
    for number, peer in enumerate(made.peers):
        view, code = marks[number].index(1.0) + 1, marks[number].index(1.0, 4) - 3
        assert peer in (crossed[f"view{view}"].members or ())
        assert peer in (crossed[f"code{code}"].members or ())
