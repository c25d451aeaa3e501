"""Peers with networks of different sizes, which share slices: by each engine, and by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedpeer import simulate
from fedpeer.cli.main import run
from fedpeer.config.choice import ChoiceError, parse_choice
from fedpeer.config.problems import ConfigError
from fedpeer.data.own.code import imported
from fedpeer.learning.models import load_model
from fedpeer.networks.registry import mlp
from fedpeer.runs.folder import RunFolder
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.network.node_factory import NodeFactory
from fedpeer.sims.processes.engine import ProcessesEngine, _packages
from fedpeer.sims.world import World, plan_of
from fedpeer.slicing.models import SlicingError
from tests.sims.worlds import assert_workers_and_stops_change_nothing, engine, federation, played, relative, world

PAIR = ["peer1", "peer4"]
#: The other peers have 64-12-10.
NETWORKS = {"peer2": "mlp:64+20+10", "peer5": "mlp:64+9+10", "pair": "mlp:64+20+10"}
#: Slices that fit networks of any depth: the last hidden layer of a network leads to its outputs.
HIDDEN = {
    "everyone": {"neurons": {"input": "all", "hidden1": 6}},
    "pair": {"depends_on": ["everyone"], "neurons": {"hidden1": 3}, "members": PAIR},
}
#: A deeper network, whose hidden neurons lead to other hidden neurons.
DEEP = {**NETWORKS, "peer5": "mlp:64+9+7+10"}
MODELS = {
    "everyone": {"neurons": {"input": "all", "hidden1": 6, "output": "all"}},
    "pair": {"depends_on": ["everyone"], "neurons": {"hidden1": 3}, "members": PAIR},
}
PARITY = 1e-5
OPTIMIZERS = ["sgd,lr=0.1,momentum=0.9", "adam,lr=0.01"]


def different(networks: dict[str, str] = NETWORKS, **settings: Any) -> World:
    return world(federation(**{"partial_models": MODELS, "simulation__networks": networks, **settings}))


def model(made: World, peer: str, x_Pn: Tensor) -> dict[str, Tensor]:
    layout = made.assembly_of(peer).layout
    return layout.unflatten(x_Pn[made.peers.index(peer)][: layout.n])


def test_each_peer_has_its_own_network() -> None:
    made = different(DEEP)
    sizes = [made.assembly_of(peer).layout.n for peer in made.peers]
    small, large, deep = 64 * 12 + 12 + 12 * 10 + 10, 64 * 20 + 20 + 20 * 10 + 10, 64 * 9 + 9 + 9 * 7 + 7 + 7 * 10 + 10
    assert sizes == [large, large, small, large, deep, small]
    assert made.assembly_of("peer1") is made.assembly_of("peer2"), "those of the same choice are built once"
    assert made.assembly_of("peer3") is made


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_alone_a_peer_has_the_numbers_of_a_federation_where_all_have_its_network(optimizer: str) -> None:
    made = different(DEEP, learning__optimizer=optimizer)
    x_Pn = played(made, method="local")
    for peer, network in {"peer1": "mlp:64+20+10", "peer3": "mlp:64+12+10", "peer5": "mlp:64+9+7+10"}.items():
        same = world(federation(network=network, learning__optimizer=optimizer))
        alone_n = played(same, method="local")[same.peers.index(peer)]
        # Blocks of other sizes add in another order.
        torch.testing.assert_close(x_Pn[made.peers.index(peer)][: len(alone_n)], alone_n, rtol=1e-5, atol=1e-6)


def test_an_exact_average_gives_all_the_mean_of_the_shared_slice_and_leaves_the_rest() -> None:
    """The slice is the first six hidden neurons of whatever network there is."""
    made = different(gossip={"protocol": "exact"})
    apart, together = played(made, 1, method="local"), played(made, 1)
    mean = torch.stack([model(made, peer, apart)["hidden1.weight"][:6] for peer in made.peers]).double().mean(0)
    for peer in made.peers:
        before, after = model(made, peer, apart), model(made, peer, together)
        torch.testing.assert_close(after["hidden1.weight"][:6], mean.float(), rtol=1e-6, atol=1e-7)
        first = 9 if peer in PAIR else 6
        assert torch.equal(after["hidden1.weight"][first:], before["hidden1.weight"][first:]), "its own neurons"
        assert torch.equal(after["output.weight"][:, first:], before["output.weight"][:, first:]), (
            "what leads from them"
        )
    one, other = (model(made, peer, together)["hidden1.weight"][6:9] for peer in PAIR)
    assert torch.equal(one, other)


def test_all_peers_may_have_networks_of_their_own() -> None:
    """No peer has the federation's network then."""
    own = {f"peer{number}": f"mlp:64+{number + 9}+10" for number in range(1, 7)}
    made = different(own)
    assert made not in [made.assembly_of(peer) for peer in made.peers]
    x_Pn = played(made)
    with NetworkEngine(made, parse_choice("partial-averaging")) as whole:
        for _ in range(3):
            whole.step()
        whole.evaluate()
        assert relative(whole.x_Pn, x_Pn) < PARITY
    for peer, x_n in zip(made.peers, x_Pn, strict=True):
        n = made.assembly_of(peer).layout.n
        assert x_n[:n].all(), "each is trained whole"
        assert not x_n[n:].any(), "and ends with zeros"


def test_networks_of_other_depths_share_the_layers_that_they_have_in_common() -> None:
    made = different(DEEP, partial_models=HIDDEN, gossip={"protocol": "exact"})
    x_Pn = played(made, 1)
    shared = [model(made, peer, x_Pn)["hidden1.weight"][:6] for peer in made.peers]
    assert all(torch.equal(each, shared[0]) for each in shared)
    with NetworkEngine(made, parse_choice("partial-averaging")) as whole:
        whole.step()
        whole.evaluate()
        assert relative(whole.x_Pn, x_Pn) < PARITY


@pytest.mark.parametrize(
    "settings",
    [
        {"learning__optimizer": OPTIMIZERS[0]},
        {"learning__optimizer": OPTIMIZERS[1], "learning__common_start": False},
        {"learning__outer": "nesterov:0.7"},
    ],
    ids=["momentum", "adam", "outer steps"],
)
def test_whole_peers_have_the_same_numbers(settings: dict[str, Any]) -> None:
    made = different(**settings)
    with NetworkEngine(made, parse_choice("partial-averaging")) as whole, engine(made) as running:
        for _ in range(3):
            whole.step()
            running.step()
        scores = whole.evaluate()
        assert relative(whole.x_Pn, running.x_Pn) < PARITY
        assert scores == [pytest.approx(each, rel=PARITY) for each in running.evaluate()]
        assert whole.disagreement() == pytest.approx(running.disagreement(), rel=1e-3, abs=1e-6)


#: Networks of which only those of the pair, peer1 and peer4, have room for the pair's slice.
TIGHT: dict[str, Any] = {"networks": {"pair": "mlp:64+20+10", "peer2": "mlp:64+7+10"}, "network": "mlp:64+8+10"}


@pytest.mark.parametrize("outer", ["none", "nesterov:0.7"])
def test_a_slice_need_not_fit_the_network_of_who_does_not_share_it(outer: str) -> None:
    """A peer knows its own network only; the sizes of other peers' networks follow from what they share."""
    made = different(**TIGHT, learning__outer=outer)
    with NetworkEngine(made, parse_choice("partial-averaging")) as whole:
        for _ in range(3):
            whole.step()
        whole.evaluate()
        assert relative(whole.x_Pn, played(made, 3)) < PARITY
    setups = NodeFactory.of(made, parse_choice("partial-averaging")).setups
    small, large = setups["peer3"].peer_groups, setups["peer1"].peer_groups
    assert {id: group.members for id, group in small.elsewhere.items()} == {"pair": tuple(PAIR)}
    assert small.groups["everyone"].members == large.groups["everyone"].members == made.peers
    assert small.groups["everyone"].digest == large.groups["everyone"].digest
    assert large.groups["pair"].members == tuple(PAIR)


@pytest.mark.slow
def test_real_peers_have_the_same_numbers(forked: None, tmp_path: Path) -> None:
    networks = {"peer2": "mlp:64+9+7+10", "pair": "mlp:64+20+10"}  # peer3 has the federation's
    made = different(networks, partial_models=HIDDEN, simulation__peers=4, learning__rounds=2)
    with ProcessesEngine(made, parse_choice("partial-averaging"), folder=tmp_path / "peers") as whole:
        for _ in range(2):
            whole.step()
        whole.evaluate()
        assert relative(whole.x_Pn, played(made, 2)) < PARITY


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_workers_and_stops_change_nothing(optimizer: str) -> None:
    """Each process makes a program for each network, so there are two of them."""
    made = different({"peer5": "mlp:64+9+10"}, learning__optimizer=optimizer)
    assert_workers_and_stops_change_nothing(made, "partial-averaging")


def test_the_models_of_a_run_are_read_as_each_peers_network(tmp_path: Path) -> None:
    settings = federation(partial_models=MODELS, simulation__networks=NETWORKS, simulation__metrics=["f1"])
    found = simulate(federation=settings, out=tmp_path, workers=1)
    assert list(found.summary["methods"]) == ["local", "partial-averaging"]
    kinds = json.loads((found.folder / "plan.json").read_text())["kinds"]
    hidden = {kind["peers"][0]: part["size"] for kind in kinds for part in kind["parts"] if part["name"] == "hidden1"}
    assert hidden == {"peer1": 20, "peer2": 20, "peer3": 12, "peer5": 9}
    tensors = RunFolder(found.folder).models("partial-averaging", 0)
    held = load_file(tensors)
    made = world(settings)
    for peer in made.peers:
        read = load_model(tensors, tensors.with_suffix(".json"), peer, imported)
        assert read.own_card.network == settings.own_networks().get(peer, settings.network)
        assert not read.own_card.networks
        for name, value in read.module.state_dict().items():
            assert torch.equal(value, held[f"{peer}/{name}"])
        score, _ = read.evaluate(*made.held(made.peers.index(peer)).tested(made.dataset))
        scores = found.summary["methods"]["partial-averaging"]["accuracy_per_peer"]
        assert score == pytest.approx(scores[made.peers.index(peer)])


def test_slices_are_drawn_in_each_peers_own_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "federation.yaml"
    file.write_text(
        json.dumps(federation(partial_models=MODELS, simulation__networks=NETWORKS).model_dump(mode="json"))
    )
    assert run(["slices", "--config", str(file)]) == 0
    drawn = dict(
        re.findall(r"^(peer[^\n]*?)  [\d,]+ parameters.*?\nhidden1 +(\d+)", capsys.readouterr().out, re.M | re.S)
    )
    assert drawn == {"peer1, peer4": "20", "peer2": "20", "peer3, peer6": "12", "peer5": "9"}


def own_network(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    return mlp(input_shape, outputs, hidden=(20,))


def test_real_peers_may_import_the_code_of_each_network() -> None:
    made = different({"peer2": f"python:{__name__}:own_network"})
    assert _packages(made, parse_choice("local")) == ["tests"]
    assert _packages(different(), parse_choice("local")) == []


def test_a_slice_that_does_not_fit_is_told_with_the_peer() -> None:
    with pytest.raises(ConfigError, match=r"(?s)hidden1 has 5.*\(in the network of\s+peer5\)"):
        different({"peer5": "mlp:64+5+10"})
    made = different({"peer5": "mlp,hidden=5"})  # its sizes are known only with data
    with pytest.raises(SlicingError, match=r"hidden1.*6 neurons are claimed.*has 5.*\(in the network of peer5\)"):
        plan_of(made, parse_choice("partial-averaging"))
    with pytest.raises(SlicingError, match='peer1 and peer5 cannot average "everyone"'):
        plan_of(different(DEEP), parse_choice("partial-averaging"))


def test_peers_that_do_not_exist_are_told_whenever_their_number_is_known() -> None:
    with pytest.raises(ConfigError, match='no peer and no partial model "peer7"; there are peer1 to peer6'):
        different({"peer7": "mlp:64+9+10"})
    with pytest.raises(ChoiceError, match="there is no peer peer17; there are peer1 to peer16"):
        different({"peer17": "mlp:64+9+10"}, simulation__peers=None)
