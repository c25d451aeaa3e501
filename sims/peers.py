"""The peers of a world one by one, as engines need them that play each peer as itself."""

from __future__ import annotations

from fedpeer.peer.core.learner import Learner
from fedpeer.peer.holdings import inputs_of
from fedpeer.sims.world import World


def learners(world: World, device: str = "cpu") -> dict[str, Learner]:
    """A learner for each peer, by id; all point into one tensor of inputs."""
    x_NF = inputs_of(world.dataset)
    return {peer: Learner.of(world, world.held(number), x_NF, peer, device) for number, peer in enumerate(world.peers)}
