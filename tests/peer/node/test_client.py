"""One peer under a server: its evaluations after a restart, jobs that are done twice, trainings that diverge."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpeer.config.choice import parse_choice
from fedpeer.peer.node.node import Node
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.entries import Began, ClientStateSaved, CommitStateChanged, ModelStored, UpdateMade
from fedpeer.peer.state.events import ClientTrained, Evaluate, Persist, Reachability, Tick, TrainClient
from fedpeer.peer.state.journal import SnapshotForeignError
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.peer.wire.leaf_bytes import content_of
from fedpeer.peer.wire.tails import content_digest
from fedpeer.rejection import Rejection
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


def training() -> tuple[Node, AlgorithmSpec, TrainClient]:
    """Return a node whose client trains, and the job."""
    disk = Disk(NodeFactory.of(world(2), parse_choice("ditto")))
    node, spec = disk.start(peers=2), disk.made.trainers[ME].spec
    assert spec is not None
    disk.save(node.step(Tick(1)))
    node.state.write(Began(round=1))
    disk.save(node.take_effects())
    node = disk.start(peers=2)
    (job,) = [each for each in node.step(Tick(1)) if isinstance(each, TrainClient)]
    return node, spec, job


def test_a_client_whose_training_diverges_goes_on_from_the_state_before() -> None:
    """Else its own model would be NaN for good, also with a lower learning rate."""
    node, spec, job = training()
    update = np.full(spec.update_bytes // 4, np.nan, np.float32).tobytes()
    fault = Rejection("not_finite", "all numbers")
    effects = node.step(ClientTrained(job.round, bytes(len(spec.client)), update, content_digest(update), fault))
    (entry,) = [each.content for each in effects if isinstance(each, Persist)]
    assert isinstance(entry, UpdateMade)
    assert entry.client == spec.client != bytes(len(spec.client))


def test_a_training_that_was_requested_twice_gives_one_update() -> None:
    """As after a step that failed. The second one would free the client while it settles, and be a round too late."""
    node, spec, job = training()
    update = bytes(spec.update_bytes)
    done = ClientTrained(job.round, spec.client, update, content_digest(update))
    saved = [each.content for _ in range(2) for each in node.step(done) if isinstance(each, Persist)]
    assert [type(entry) for entry in saved] == [UpdateMade]


def test_a_peer_to_which_nobody_can_connect_stands_last_after_a_failed_step_too() -> None:
    node, _, _ = training()
    node.step(Reachability(False))
    again = node.again(node.restore_point())
    assert again.consensus_by_group[EVERYONE].round_commit.election._last_in_turn


def test_a_client_whose_state_is_of_other_examples_is_told_so() -> None:
    """An algorithm that keeps a number for each example, such as mocha, has a state of another length then."""
    disk = Disk(NodeFactory.of(world(2), parse_choice("ditto")))
    node = disk.start(peers=2)
    disk.save(node.step(Tick(1)))
    node.state.write(ClientStateSaved(group=EVERYONE, round=1, client=bytes(12), x_n=node.durable.x_n))
    disk.save(node.take_effects())
    with pytest.raises(SnapshotForeignError, match="longer or shorter than with these data"):
        disk.start(peers=2)
