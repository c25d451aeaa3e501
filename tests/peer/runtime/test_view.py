"""The status of a node agrees with its state, at every moment and under faults."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from fedpeer.config.choice import parse_choice
from fedpeer.peer.node.node import Node
from fedpeer.peer.runtime.status import COUNTED, NodeView
from fedpeer.peer.runtime.view import audit, view_of
from fedpeer.peer.state.events import Note
from fedpeer.sims.network.driver import Machine
from fedpeer.sims.network.faults import Faults, draw_faults, faults_from
from fedpeer.sims.network.node_factory import NodeFactory
from fedpeer.sims.network.simulator import Simulator
from tests.sims import worlds

#: A run without faults takes some hundred ticks; with faults it may take several deadlines.
TICKS_MAX = 20_000.0


def simulator(faults: Faults | None = None, rounds: int = 3, pace: float = 1.0) -> Simulator:
    """Return a simulator with six started peers."""
    made = worlds.world(worlds.federation(learning__rounds=rounds))
    paces = dict.fromkeys(made.peers, pace)
    found = Simulator(made.peers, NodeFactory.of(made, parse_choice("partial-averaging"), paces).driver(), faults)
    found.start()
    return found


def node(machine: Machine) -> Node:
    assert isinstance(machine, Node)
    return machine


def scored(view: NodeView) -> bool:
    return all(peer.score is not None for peer in view.peers)


def test_a_run_is_seen_from_its_beginning_to_its_end() -> None:
    here, seen = simulator(), list[NodeView]()
    here.stepped = lambda peer, machine: (
        seen.append(view_of(node(machine), {"peer2": 0.5})) if peer == "peer1" else None
    )
    first = view_of(node(here.machines()["peer1"]), {})
    assert (first.state, first.round, {peer.state for peer in first.peers}) == ("gathering", 0, {"me", "unknown"})
    assert here.run(TICKS_MAX, lambda: bool(seen) and seen[-1].state == "finished" and scored(seen[-1]))
    assert {"gathering", "training", "averaging", "finished"} <= {view.state for view in seen}
    last = seen[-1]
    assert (last.round, last.life, last.roster, last.incarnation) == (3, 1, 1, 1)
    assert [peer.state for peer in last.peers if peer.id == "peer1"] == ["me"]
    assert {peer.id: peer.heard_s for peer in last.peers}["peer2"] == 0.5
    assert all(peer.address == f"https://{peer.id}:7500" for peer in last.peers)
    assert {peer.round for peer in last.peers} <= {2, 3}
    (group,) = last.groups
    assert group.members == tuple(f"peer{n}" for n in range(1, 7))
    assert group.neighbours == ("peer2", "peer6")
    assert len(group.edges) == 6
    assert group.weight == pytest.approx(1)
    assert group.disagreement is not None
    assert 0 < group.disagreement < 1
    assert any(view.groups[0].waiting_for for view in seen)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_the_account_of_weight_holds_at_every_moment(seed: int) -> None:
    peers = tuple(f"peer{n}" for n in range(1, 7))
    here = simulator(draw_faults(seed, peers, heal=600.0, kinds=("kill", "pause", "old", "lose")))
    errors: list[float] = []

    def stepped(peer: str, machine: Machine) -> None:
        errors.extend(audit(holding) for holding in node(machine).durable.groups.values())

    here.stepped = stepped
    here.run(1000.0)
    assert len(errors) > 1000
    assert max(errors) < 1e-9


def test_weight_that_is_not_accounted_for_is_seen() -> None:
    here = simulator()
    here.run(TICKS_MAX, lambda: node(here.machines()["peer1"]).durable.round == 2)
    durable = node(here.machines()["peer1"]).durable
    for holding in durable.groups.values():
        object.__setattr__(holding, "put", holding.put + 0.01)
        assert audit(holding) == pytest.approx(0.01, rel=0.02)


def test_the_notes_that_are_counted_are_said_somewhere() -> None:
    said = set()
    for source in (Path(__file__).parents[3] / "peer").rglob("*.py"):
        text = source.read_text(encoding="utf-8")
        if not re.search(r"\b[nN]ote\(", text):  # parsing all files would be most of the work
            continue
        for call in ast.walk(ast.parse(text)):
            name = getattr(call.func, "attr", getattr(call.func, "id", "")) if isinstance(call, ast.Call) else ""
            if isinstance(call, ast.Call) and name in ("note", "Note"):
                said |= {each.value for each in call.args[1:2] if isinstance(each, ast.Constant)}
    assert COUNTED.keys() <= said


def test_a_peer_that_nobody_answers_says_so_and_claims_no_agreement() -> None:
    """The peer keeps its round, and its earlier measurements of the others do not describe the present."""
    cut = faults_from("cut:1,at=2,for=22/links,delay=4", [f"peer{number}" for number in range(1, 7)])
    here = simulator(cut, rounds=100_000, pace=100.0)  # so slow that few rounds pass during the test
    log: list[str] = []
    here.on_effect = lambda peer, effect: (
        log.append(effect.what) if peer == "peer1" and isinstance(effect, Note) else None
    )
    here.run(23.0 / 0.025)
    alone, others = (view_of(node(here.machines()[peer]), {}) for peer in ("peer1", "peer2"))
    assert 5.0 < alone.alone_s < 21.0
    assert [group.disagreement for group in alone.groups] == [None]
    assert log.count("alone") == 1
    assert others.alone_s == 0.0
    here.run(28.0 / 0.025)
    assert log.count("company") == 1
    if (machine := here.machines().get("peer1")) is not None:
        assert view_of(node(machine), {}).alone_s == 0.0
