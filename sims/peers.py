"""The peers of a world one by one, for the engines that run each peer on its own."""

from __future__ import annotations

from fedpeer.algorithms.draws import Draws
from fedpeer.learning.holdings import inputs_of
from fedpeer.learning.local_task import LocalTask
from fedpeer.sims.world import World


def secret_of(draws: Draws, peer: str) -> bytes:
    """Return the secret from which a simulated peer's masked shares are made. A real peer draws its own, unseeded."""
    return draws.key("secret", peer).to_bytes(16, "little")


def local_tasks(world: World, device: str = "cpu") -> dict[str, LocalTask]:
    """Return the local task of each peer, by id; all share one tensor of inputs."""
    x_NF, classes = inputs_of(world.dataset), world.dataset.classes
    return {
        peer: LocalTask.of(world.assembly_of(peer), held, x_NF, peer, device, classes=classes)
        for peer, held in world.holdings().items()
    }
