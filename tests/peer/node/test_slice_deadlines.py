"""A slice with a deadline of its own: peers wait for late ones as long as each common group says."""

from __future__ import annotations

from typing import Any

import pytest

from fedpeer.peer.state.events import Effect, Note
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from fedpeer.sims.network.simulator import Simulator
from tests.faults.group_cluster import MODELS, GroupCluster
from tests.faults.group_cluster import world as groups_world
from tests.faults.peer_cluster import PeerCluster, world

QUICK = LinkRules(delay=0.2, jitter=0.2)
#: Ticks of the deadline of one slice, and of the federation's; the former in seconds.
SOON, LATE, SOON_S = 20, 800, 0.5


def went_on(simulator: Simulator) -> list[tuple[float, str, object]]:
    """Return a list that will have, for each wait that ends with a deadline, its tick, the group, and who was late."""
    found: list[tuple[float, str, object]] = []
    said = simulator.on_effect

    def on_event(peer: str, effect: Effect) -> None:
        said(peer, effect)
        if isinstance(effect, Note) and (effect.what, effect.level) == ("went_on_without", "info"):
            found.append((simulator.now, str(effect.fields["group"]), effect.fields["without"]))

    simulator.on_effect = on_event
    return found


@pytest.mark.slow
def test_shares_of_a_slice_are_waited_for_until_its_own_deadline() -> None:
    models: dict[str, Any] = {
        "core": {"neurons": {"hidden1": 1}, "gossip": {"deadline": SOON_S}},
        "rest": {"neurons": {"input": "all", "output": "all"}},
    }
    made = world.__wrapped__(4, partial_models=models, gossip__deadline=20.0)
    cluster = PeerCluster(made, Faults(links=QUICK), look_every=10.0)
    simulator = cluster.simulator
    simulator.start()
    cluster.run(70.0)
    found, killed = went_on(simulator), simulator.now
    deadline = cluster.node("peer1").state.deadline
    assert (deadline("core"), deadline("rest")) == (SOON, LATE)
    simulator.kill("peer4")
    cluster.run(killed + 100.0)
    assert {group for _, group, _ in found} == {"core"}
    first, _, late = found[0]
    assert (late, first - killed < 4 * SOON) == (["peer4"], True)
    cluster.judge()


@pytest.mark.slow
def test_a_coordinator_waits_until_the_deadline_of_its_slice() -> None:
    """One of three trains for 100 ticks, and the others for 10: it is too late in each round of one group only.

    Rounds wait for the other two, although the group's round opens long before they begin to train: their other group
    is not done before.
    """
    models = {**MODELS, "left": {**MODELS["left"], "gossip": {"deadline": SOON_S}}}
    made = groups_world.__wrapped__(partial_models=models, gossip__deadline=20.0)
    cluster = GroupCluster(made, Faults(links=QUICK))
    cluster.node_factory.pace["peer2"] = 10.0
    found = went_on(cluster.simulator)
    cluster.simulator.start()
    assert cluster.reach(3, 2000.0)
    assert [(group, late) for _, group, late in found] == [("left", ["peer2"])] * len(found)
    assert len(found) >= 2
    cluster.judge()
