"""Small worlds for the tests of the engines: real digits, few peers, tiny networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.settings import FederationSettings
from fedpeer.data.own.code import imported
from fedpeer.learning.holdings import load_dataset
from fedpeer.peer.node.trainer import LocalTrainer
from fedpeer.sims.memory import engine_of
from fedpeer.sims.peers import local_tasks
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.world import World, build_world


def federation(**settings: Any) -> Federation:
    """Return a federation of six peers with 40 digits each, a network 64-12-10 and two exchanges on a ring.

    `learning__rounds=3` sets `learning.rounds`.
    """
    data: dict[str, Any] = {
        "network": "mlp:64+12+10",
        "learning": {"batch_size": 5, "steps_between_averaging": 8, "rounds": 3},
        "gossip": {"topology": "ring", "exchanges": 2, "tolerance": None},
        "simulation": {"peers": 6, "split": "blocks:40,shuffle=true,test=50/swap:8+9,on=1-2"},
    }
    for path, value in settings.items():
        inside = data
        *groups, name = path.split("__")
        for group in groups:
            inside = inside.setdefault(group, {})
        inside[name] = value
    return Federation.model_validate(data)


def world(options: FederationSettings, seed: int = 0) -> World:
    return build_world(options, load_dataset(options.simulation.dataset), seed)


def engine(
    made: World,
    method: str = "partial-averaging",
    *,
    workers: int = 1,
    device: str = "cpu",
    **watched: Any,
) -> VectorEngine:
    """Return the engine of one method in this world."""
    return engine_of(made, parse_choice(method), device=device, workers=workers, **watched)


def start_of(made: World) -> Tensor:
    """Return the initial parameters of all peers, (P, n)."""
    return torch.stack([made.start(peer) for peer in made.peers])


def played(made: World, rounds: int = 3, **settings: Any) -> Tensor:
    """Run some rounds; return x_Pn after them."""
    with engine(made, **settings) as running:
        for _ in range(rounds):
            running.step()
        return running.x_Pn.clone()


def assert_workers_and_stops_change_nothing(made: World, method: str) -> None:
    """Assert that three rounds have the same bits with one worker, with two, and with a stop after the first."""
    with engine(made, method) as running:
        running.step()
        tensors, state = running.snapshot()
        kept = {name: value.clone() for name, value in tensors.items()}
        for _ in range(2):
            running.step()
        whole_Pn = running.x_Pn.clone()
    with engine(made, method) as again:
        again.restore(kept, state)
        for _ in range(2):
            again.step()
        assert same_bits(again.x_Pn, whole_Pn)
    assert same_bits(played(made, method=method, workers=2), whole_Pn)


def relative(a: Tensor, b: Tensor) -> float:
    """Return the largest relative distance of any peer, ||a - b|| / ||b||."""
    return float(((a - b).norm(dim=-1) / b.norm(dim=-1)).max())


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.view(torch.int32), b.view(torch.int32))


def trainer_of(made: World, peer: str, method: str = "partial-averaging") -> LocalTrainer:
    """Return the trainer that does the work of one peer."""
    return LocalTrainer(local_tasks(made)[peer], parse_choice(method), imported, made.peers)
