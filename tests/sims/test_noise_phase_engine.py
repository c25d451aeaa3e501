"""Noise phases in the engines: the same numbers from matrices and from whole peers, and the remaining noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpeer.config.choice import parse_choice
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.processes.engine import ProcessesEngine
from tests.sims.worlds import engine, federation, relative, same_bits, world

PARITY = 1e-5
METHOD = "full-averaging"
#: Five peers with different numbers of examples.
UNEVEN: dict[str, Any] = {"simulation__split": "slicing:10", "simulation__peers": 5, "gossip__deadline": 120.0}


def options(privacy: str = "none", **gossip: Any) -> Any:
    return world(
        federation(**UNEVEN, gossip__privacy=privacy, **{f"gossip__{key}": each for key, each in gossip.items()})
    )


def averaged(privacy: str, rounds: int = 1, **gossip: Any) -> Tensor:
    with engine(options(privacy, **gossip), METHOD) as running:
        for _ in range(rounds):
            running.step()
        return running.x_Pn.clone()


@pytest.mark.parametrize(
    ("gossip", "learning"),
    [
        pytest.param({"topology": "star", "exchanges": 3}, {}, id="star", marks=pytest.mark.soak),
        pytest.param({"topology": "one-peer-exponential", "exchanges": 4}, {}, id="phases"),
        pytest.param(
            {"topology": "ring", "exchanges": 3}, {"learning__weights": "samples"}, id="samples", marks=pytest.mark.slow
        ),
        pytest.param({"protocol": "exact"}, {}, id="exact"),
    ],
)
def test_whole_peers_give_the_numbers_of_matrices(gossip: dict[str, Any], learning: dict[str, Any]) -> None:
    settings = {f"gossip__{key}": each for key, each in gossip.items()}
    made = world(federation(**UNEVEN, **settings, **learning, gossip__privacy="noise,pushes=2,scale=0.5"))
    choice = parse_choice(METHOD)
    with engine(made, METHOD) as expected, NetworkEngine(made, choice) as found:
        for _ in range(2):
            expected.step()
            found.step()
            found.evaluate()
            assert relative(found.x_Pn, expected.x_Pn) < PARITY
            assert found.traffic[0] >= expected.traffic[0]
    if gossip.get("protocol") != "exact":
        assert relative(expected_without(gossip, learning), found.x_Pn) > 1e-2, "so few exchanges leave some noise"


def expected_without(gossip: dict[str, Any], learning: dict[str, Any]) -> Tensor:
    settings = {f"gossip__{key}": each for key, each in gossip.items()}
    with engine(world(federation(**UNEVEN, **settings, **learning)), METHOD) as running:
        for _ in range(2):
            running.step()
        return running.x_Pn.clone()


def test_what_is_left_of_the_noise_is_below_the_tolerance() -> None:
    gossip: dict[str, Any] = {"topology": "ring", "exchanges": None, "tolerance": 1e-4}
    exact = averaged("none", protocol="exact")
    for scale in (0.5, 5.0):
        noisy = averaged(f"noise,scale={scale}", **gossip)
        assert float((noisy - exact).abs().max()) <= 1e-4
    assert not torch.equal(averaged("noise,scale=5.0", **gossip), averaged("none", **gossip))


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_real_processes_have_secrets_of_their_own_and_come_to_the_same(tmp_path: Path) -> None:
    gossip: dict[str, Any] = {"exchanges": None, "tolerance": 1e-6, "topology": "complete", "tick": 0.3}
    settings = UNEVEN | {f"gossip__{key}": each for key, each in gossip.items()} | {"simulation__peers": 3}
    made = world(federation(**settings, learning__rounds=2, gossip__privacy="noise,pushes=2,scale=0.5"))
    choice, quiet = parse_choice(METHOD), world(federation(**settings))
    with ProcessesEngine(made, choice, folder=tmp_path / "peers") as real:
        real.step()
        real.step()
        found = real.x_Pn.clone()
        secrets = {path.read_bytes() for path in (tmp_path / "peers").rglob("secret")}
    assert len(secrets) == 3
    with engine(quiet, METHOD) as running:
        running.step()
        running.step()
        assert relative(found, running.x_Pn) < 1e-5


def test_a_phase_is_an_exchange_more() -> None:
    counts = []
    for privacy in ("none", "noise"):
        with engine(options(privacy, topology="ring", exchanges=3), METHOD) as running:
            running.step()
            counts.append(running.traffic[0][0])
    assert counts == [6, 8]


def test_neither_workers_nor_a_stop_change_a_bit() -> None:
    made = options("noise,scale=0.5", topology="ring", exchanges=3)
    with engine(made, METHOD, workers=2) as running:
        running.step()
        tensors, state = running.snapshot()
        kept = {name: value.clone() for name, value in tensors.items()}
        running.step()
        whole = running.x_Pn.clone()
    with engine(made, METHOD) as again:
        again.restore(kept, state)
        again.step()
        assert same_bits(again.x_Pn, whole)
