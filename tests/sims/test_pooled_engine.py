"""All examples in one place, compared with an obvious loop over what all peers hold, as they see it.

Further tests are of stops and of engines that may not pool.
"""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpeer.algorithms.batches import round_order
from fedpeer.config.choice import parse_choice
from fedpeer.config.problems import ConfigError
from fedpeer.config.settings import EngineName
from fedpeer.sims import api
from fedpeer.sims.memory import job_of, workspace_of
from fedpeer.sims.vector.pool import Stopped
from fedpeer.sims.vector.pooled import PooledEngine
from fedpeer.sims.world import World, plan_of
from tests.sims.worlds import federation, relative, same_bits, world

PARITY = 1e-5


def pooled(made: World, **settings: Any) -> PooledEngine:
    memory = workspace_of(made, plan_of(made, parse_choice("global")), "cpu")()
    return PooledEngine(job_of(made, "cpu"), memory, made.drawn(""), **settings)


def obvious(made: World, rounds: int) -> Tensor:
    """Concatenate the examples as the peers see them, and train one module on them."""
    numbers = range(len(made.peers))
    x = torch.cat([torch.from_numpy(np.asarray(made.split.inputs(made.dataset, peer))) for peer in numbers])
    y = torch.cat([torch.from_numpy(np.asarray(made.split.labels(made.dataset, peer))) for peer in numbers])
    learning, module = made.federation.learning, copy.deepcopy(made.module).train()
    assert isinstance(learning.steps_between_averaging, int)
    with torch.no_grad():
        for name, value in made.layout.unflatten(made.drawn("")).items():
            dict(module.named_parameters())[name].copy_(value)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for number in range(1, rounds + 1):
        steps = learning.steps_between_averaging * len(made.peers)
        for batch in round_order(len(x), number, steps, learning.batch_size, made.draws, ""):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(module(x[batch]), y[batch]))
            optimizer.step()
    return made.layout.flatten(module)


@pytest.mark.parametrize("difference", ["swap:8+9,on=1-2", "pixels"])
def test_it_is_one_model_on_what_all_peers_see(difference: str) -> None:
    made = world(
        federation(
            simulation__split=f"blocks:40,shuffle=true,test=50/{difference}",
            learning__optimizer="sgd,lr=0.1,momentum=0.9",
            learning__batch_size=5,
        )
    )
    with pooled(made) as running:
        running.step()
        running.step()
        assert relative(running.x_Pn[:1], obvious(made, 2)[None]) < PARITY
        scores = running.evaluate()
    assert len(scores) == 6
    module, right = copy.deepcopy(made.module).eval(), []
    with torch.no_grad():
        for name, value in made.layout.unflatten(running.x_Pn[0]).items():
            dict(module.named_parameters())[name].copy_(value)
        for peer in range(6):
            x = torch.from_numpy(np.asarray(made.split.inputs(made.dataset, peer, test=True)))
            y = torch.from_numpy(np.asarray(made.split.labels(made.dataset, peer, test=True)))
            right.append(float((module(x).argmax(-1) == y).double().mean()))
    assert [score for score, _ in scores] == pytest.approx(right)


def test_the_optimizer_begins_anew_with_a_round_and_not_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(federation(learning__optimizer="sgd,lr=0.1,momentum=0.9", learning__optimizer_state="reset"))
    found = []
    for steps in (1_000, 10):
        monkeypatch.setattr("fedpeer.sims.vector.pooled._UPDATES_AT_ONCE", steps)
        with pooled(made) as running:
            running.step()
            running.step()
            found.append(running.x_Pn[:1])
    assert same_bits(*found)


def test_a_stop_leaves_the_state_before_the_round_and_a_checkpoint_goes_on() -> None:
    made, stop = world(federation(learning__optimizer="adam,lr=0.01")), threading.Event()
    with pooled(made, stop=stop) as running:
        running.step()
        tensors, state = running.snapshot()
        stop.set()
        with pytest.raises(Stopped):
            running.step()
        assert same_bits(tensors["x"][None], running.x_Pn[:1])
        stop.clear()
        running.step()
    with pooled(made) as resumed:
        resumed.restore(tensors, state)
        resumed.step()
        assert resumed.round == 2
        assert same_bits(resumed.x_Pn, running.x_Pn)


def test_it_is_compared_like_any_other_and_sends_nothing(tmp_path: Path) -> None:
    found = api.simulate(
        federation=federation(simulation__validation=0.2), methods=("local", "global", "fedavg"), out=tmp_path
    )
    result = found.summary["methods"]["global"]
    assert result["bytes_sent"] == 0
    assert set(result["scores"]) == {"PM", "MT"}
    assert result["scores"]["PM"]["best_by"] == "validation"


@pytest.mark.parametrize("engine", ["network", "processes"])
def test_peers_do_not_pool(engine: EngineName, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keeps apart"):
        api.simulate(federation=federation(), methods=("global",), engine=engine, out=tmp_path)
