"""One peer's client under a server: what it evaluates after a restart."""

from __future__ import annotations

import torch

from fedpeer.config.choice import parse_choice
from fedpeer.peer.state.entries import Began, ClientStateSaved, CommitStateChanged, ModelStored
from fedpeer.peer.state.events import Evaluate, Tick
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.peer.wire.leaf_bytes import content_of
from fedpeer.peer.wire.tails import content_digest
from fedpeer.sims.network.node_factory import NodeFactory
from tests.faults.peer_cluster import world
from tests.peer.node.test_node_setup import ME, Disk


def test_a_client_that_ended_before_its_last_evaluation_makes_up_for_it_with_both_models() -> None:
    """The model that it predicts with is its own, and the server's is another one."""
    disk = Disk(NodeFactory.of(world(2, learning__rounds=1), parse_choice("ditto")))
    node, spec = disk.start(peers=2), disk.made.trainers[ME].spec
    assert spec is not None
    disk.save(node.step(Tick(1)))
    content, start_n = content_of({}, spec.server), node.durable.x_n
    digest = content_digest(content)
    for entry in (
        ModelStored(group=EVERYONE, digest=digest, content=content),
        CommitStateChanged(group=EVERYONE, roster=1, accepted=None, applied=((1, 1, 1, digest), ())),
        ClientStateSaved(group=EVERYONE, round=1, client=spec.client, x_n=start_n + 1),
        Began(round=2),
    ):
        node.state.write(entry)
    disk.save(node.take_effects())
    (job,) = [each for each in disk.start(peers=2).step(Tick(1)) if isinstance(each, Evaluate)]
    assert (job.round, torch.equal(job.x_n, start_n + 1)) == (1, True)
    assert job.server_n is not None
    assert torch.equal(job.server_n, start_n)
