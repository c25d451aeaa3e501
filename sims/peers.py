"""The peers of a world one by one, as engines need them that play each peer as itself."""

from __future__ import annotations

from fedpeer.algorithms.draws import Draws
from fedpeer.learning.holdings import inputs_of
from fedpeer.learning.learner import Learner
from fedpeer.sims.world import World


def secret_of(draws: Draws, peer: str) -> bytes:
    """What the masked shares of a simulated peer come from. A real one draws its own, which no seed tells."""
    return draws.key("secret", peer).to_bytes(16, "little")


def learners(world: World, device: str = "cpu") -> dict[str, Learner]:
    """A learner for each peer, by id; all point into one tensor of inputs."""
    x_NF = inputs_of(world.dataset)
    return {peer: Learner.of(world, world.held(number), x_NF, peer, device) for number, peer in enumerate(world.peers)}
