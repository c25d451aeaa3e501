"""Adapters of roles: each peer's genre, the trained parameters, and a pretraining that gives the same model again."""

from __future__ import annotations

import pytest
import torch

from fedpeer.config.choice import Choice
from fedpeer.config.settings import FederationSettings
from fedpeer.data.registry import describe_dataset
from fedpeer.data.shakespeare import genre_of
from fedpeer.experiments import pretraining
from fedpeer.experiments.adapters import ADAPTERS
from fedpeer.learning.holdings import load_dataset
from fedpeer.networks.registry import NetworkError
from fedpeer.sims.world import World, build_world, plan_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not describe_dataset("shakespeare").here, reason="Shakespeare is not on this machine"),
]
#: A model whose training takes no time.
BRIEFLY = Choice("python", "fedpeer.experiments.pretraining:character_model", {"width": 16, "layers": 1, "steps": 2})


def federations() -> dict[str, FederationSettings]:
    cells = ADAPTERS.cells(ADAPTERS.sizes["default"])
    return {each.label: each.variants[""].federation.model_copy(update={"network": BRIEFLY}) for each in cells}


def made(label: str) -> World:
    chosen = federations()[label]
    return build_world(chosen, load_dataset(chosen.simulation.dataset), 0)


def test_peers_are_in_the_groups_of_their_plays() -> None:
    world = made("A common, B by genre")
    plan = plan_of(world, world.federation.learning.algorithm)
    genres = {peer: genre_of(share.note) for peer, share in zip(world.peers, world.split.shares, strict=True)}
    groups = {group.id: set(group.members) for group in plan.groups}
    assert groups.pop("everyone") == set(world.peers)
    assert groups == {
        genre: {peer for peer, its in genres.items() if its == genre} for genre in ("histories", "tragedies")
    }


def test_only_adapters_are_trained() -> None:
    world = made("one common adapter")
    assert all("lora_" in tensor.name for tensor in world.layout.tensors)
    assert world.network.base


def test_a_server_averages_factors_or_their_products() -> None:
    methods = {each.label: each.variants[""].methods[0].name for each in ADAPTERS.cells(ADAPTERS.sizes["default"])}
    assert methods["one common adapter, server, A and B averaged"] == "fedavg"
    assert methods["one common adapter, server, BA averaged"] == "flexlora"


def test_the_model_as_it_is_stays_so() -> None:
    [optimizer] = {str(each.learning.optimizer) for name, each in federations().items() if name.startswith("the model")}
    assert torch.tensor(1.0) - float(optimizer.partition("lr=")[2]) == 1.0


def test_pretraining_learns_and_gives_the_same_model_again() -> None:
    brief = {"width": 16, "layers": 1}
    one = pretraining.character_model((80,), 80, **brief, steps=40)
    pretraining._trained.cache_clear()
    torch.manual_seed(5)
    same = pretraining.character_model((80,), 80, **brief, steps=40)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    comedies = load_dataset(Choice("shakespeare", None, {"users": 3, "plays": "comedies", "each": True}))
    x, y = torch.from_numpy(comedies.x[:64]), torch.from_numpy(comedies.y[:64])
    models = (pretraining.character_model((80,), 80, **brief, steps=1), one)
    with torch.no_grad():
        losses = [float(torch.nn.functional.cross_entropy(each(x).flatten(0, 1), y.flatten())) for each in models]
    assert losses[1] < losses[0] - 0.3


def test_other_data_are_refused() -> None:
    with pytest.raises(NetworkError, match="shakespeare,each=true"):
        pretraining.character_model((40,), 80)
    with pytest.raises(NetworkError, match="reads text"):
        pretraining.character_model((4, 4), 2)
