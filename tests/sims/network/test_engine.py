"""Whole nodes in the simulated town, against the vector engine and against the laws that faults must not break."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from fedpeer.peer.core.assembly import method_of
from fedpeer.peer.core.choice import parse
from fedpeer.peer.core.node import Node
from fedpeer.peer.core.refusals import REFUSALS
from fedpeer.sims.network import history
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.network.faults import Faults, drawn
from fedpeer.sims.network.links import LinkRules
from fedpeer.sims.network.residents import Residents
from fedpeer.sims.network.town import Town
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.vector.pool import EngineError, Stopped
from fedpeer.sims.world import World, plan_of
from tests.sims import worlds
from tests.sims.worlds import relative

METHOD = "partial-averaging"


def network(made: World, method: str = METHOD, **more: Any) -> NetworkEngine:
    choice = parse(method)
    return NetworkEngine(made, plan_of(made, method_of(choice)), choice, **more)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (METHOD, {}),
        (METHOD, {"gossip__protocol": "exact"}),
        (METHOD, {"gossip__topology": "k-regular:4", "gossip__exchanges": None, "gossip__tolerance": 1e-7}),
        (METHOD, {"gossip__protocol": "push-pull"}),
        (METHOD, {"learning__weights": "samples", "simulation__split": "dirichlet:0.5"}),
        ("full-averaging", {"learning__optimizer": "sgd,lr=0.1,momentum=0.9"}),
        ("local", {}),
    ],
)
def test_nodes_give_what_the_vector_engine_gives(method: str, settings: dict[str, Any]) -> None:
    made = worlds.world(worlds.federation(**settings))
    with worlds.engine(made, method) as vector, network(made, method) as nodes:
        for _ in range(3):
            vector.step()
            nodes.step()
            results = nodes.evaluate()
            assert relative(nodes.x_Pn, vector.x_Pn) <= 1e-5
            for (score, loss), (vector_score, vector_loss) in zip(results, vector.evaluate(), strict=True):
                assert score == pytest.approx(vector_score, abs=0.021), "one example of fifty may tip over"
                assert loss == pytest.approx(vector_loss, rel=1e-4)
            assert nodes.weights.keys() == vector.weights.keys()
            for group, weights in vector.weights.items():
                assert nodes.weights[group] == pytest.approx(weights, rel=1e-6)
            far = vector.disagreement()
            assert nodes.disagreement() == {group: pytest.approx(far[group], rel=1e-3, abs=1e-6) for group in far}
