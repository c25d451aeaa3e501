"""Compares a world on several engines, and on one that was stopped and resumed: all must have the same numbers."""

from __future__ import annotations

from pathlib import Path

from fedpeer.config.choice import parse_choice
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.processes.engine import ProcessesEngine
from fedpeer.sims.world import World
from tests.sims.worlds import engine, played, relative, same_bits

#: Largest relative distance of two engines: both compute in float32, in different orders.
PARITY = 1e-5
METHOD = parse_choice("partial-averaging")


def check_whole_peers(made: World, rounds: int) -> None:
    """Check after each round that whole peers in virtual time have the vector engine's numbers."""
    with engine(made) as vector, NetworkEngine(made, METHOD) as network:
        for number in range(1, rounds + 1):
            vector.step()
            network.step()
            assert relative(network.x_Pn, vector.x_Pn) < PARITY, f"round {number}"


def check_real_peers(made: World, rounds: int, folder: Path) -> None:
    """Check after these rounds that real peers, in processes, have the vector engine's numbers."""
    with ProcessesEngine(made, METHOD, folder=folder) as processes:
        for _ in range(rounds):
            processes.step()
        found = processes.x_Pn
    assert relative(found, played(made, rounds)) < PARITY


def check_stop(made: World, rounds: int, stop: int) -> None:
    """Check that a run that was stopped after some rounds goes on to the bits of one that was not."""
    with engine(made) as running:
        for _ in range(stop):
            running.step()
        tensors, state = running.snapshot()
        kept = {name: value.clone() for name, value in tensors.items()}
        for _ in range(rounds - stop):
            running.step()
        whole_Pn = running.x_Pn.clone()
    with engine(made) as again:
        again.restore(kept, state)
        for _ in range(rounds - stop):
            again.step()
        assert same_bits(again.x_Pn, whole_Pn)
