"""The table of phases contains exactly the transitions that nodes make."""

from __future__ import annotations

import pytest

from fedpeer.peer.node.node import Node
from fedpeer.peer.state.events import Note, OperatorCommand, Stop
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.state.phases import TRANSITIONS, Phase
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules, partition
from tests.faults.peer_cluster import PeerCluster, world
from tests.faults.scenarios import CALM

CALM_LINKS = LinkRules(delay=0.2)
IN_ANY_PHASE = {(phase, to) for phase in TRANSITIONS for to in ("leaving", "stopped")}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[tuple[Phase, Phase]]:
    """Return a set that collects every transition of every node as it happens."""
    found: set[tuple[Phase, Phase]] = set()
    enter = NodeState.enter

    def watched(self: NodeState, phase: Phase) -> None:
        found.add((self.phase, phase))
        enter(self, phase)

    monkeypatch.setattr(NodeState, "enter", watched)
    return found


def woken(phase: Phase) -> Node:
    """Return a node that has met another one, put into this phase."""
    cluster = PeerCluster(world(2), Faults(seed=1, links=CALM_LINKS))
    cluster.simulator.start()
    assert cluster.run(CALM, lambda: all(node.durable.round == 2 for node in cluster.nodes().values()))
    node = cluster.node("peer1")
    node.state.phase = phase
    return node


@pytest.mark.slow
def test_nodes_go_through_all_transitions_of_the_table_but_those_of_a_person(seen: set[tuple[Phase, Phase]]) -> None:
    """One peer is cut off until the others have finished; another one is started again after its last round."""
    made = world(3, learning__rounds=20, gossip__gather=2.0)
    cut = partition(350.0, 650.0, made.peers[:1], made.peers[1:])
    cluster = PeerCluster(made, Faults(seed=1, links=CALM_LINKS, cuts=cut), forgetful=True)
    simulator = cluster.simulator
    simulator.start("peer1", "peer2")
    cluster.run(250.0)
    simulator.start("peer3")  # joins late
    cluster.run(300.0)
    simulator.kill("peer3")
    simulator.start("peer3")
    assert cluster.run(700.0, lambda: cluster.node("peer2").phase == "finished"), cluster.phases()
    cluster.run(simulator.now + 20.0)
    simulator.kill("peer2")
    simulator.start("peer2")
    assert cluster.run(3000.0, lambda: len(simulator.stopped) == 3), cluster.phases()
    table = {(before, after) for before, row in TRANSITIONS.items() for after in row}
    assert seen <= table
    assert table - IN_ANY_PHASE <= seen


@pytest.mark.parametrize("phase", [phase for phase, row in TRANSITIONS.items() if "leaving" in row])
def test_a_person_may_have_a_node_leave_in_these_phases(phase: Phase, seen: set[tuple[Phase, Phase]]) -> None:
    node = woken(phase)
    node.step(OperatorCommand("leave"))
    assert (phase, "leaving") in seen


@pytest.mark.parametrize("phase", [phase for phase, row in TRANSITIONS.items() if "stopped" in row])
def test_a_node_may_be_stopped_in_these_phases(phase: Phase, seen: set[tuple[Phase, Phase]]) -> None:
    """A person stops the node, or it stops before its first step is over (`voting.learn_roster`)."""
    node = woken(phase)
    node.state.stop(0, "paused")
    assert (phase, "stopped") in seen
    assert not node.step(OperatorCommand("pause"))[1:], "nothing follows but that effect"


def test_a_node_that_is_stopped_by_its_own_start_does_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    node = woken("starting")
    monkeypatch.setattr("fedpeer.peer.node.node.close_books", lambda state: state.stop(2, "it does not fit"))
    node.state.effects.clear()
    effects = node.step(OperatorCommand("pause"))
    assert isinstance(effects[-1], Stop)
    assert [each.text for each in effects if isinstance(each, Stop | Note)] == ["it does not fit"]


def test_no_other_transition_is_taken() -> None:
    state = woken("stopped").state
    with pytest.raises(AssertionError, match="no transition from stopped to learning"):
        state.enter("learning")
