"""pFedVEM without a server: the same result as with one; workers, deaths, stops, traffic.

The tests run it in the vector engine and by whole peers.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.config.choice import parse_choice
from fedpeer.config.problems import ConfigError
from fedpeer.config.rules import PEERS
from fedpeer.sims import api
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.vector.gossip_rounds import GossipRounds
from fedpeer.sims.vector.pool import Stopped
from fedpeer.sims.world import World
from fedpeer.slicing.models import SlicingError
from fedpeer.slicing.plan import Group
from tests.config.refusals import refusals
from tests.sims.worlds import engine, federation, relative, same_bits, world

PARITY = 1e-5
SETTINGS = "head_lr=0.001,head_epochs=3,samples=2"
METHOD = f"pfedvem-gossip,{SETTINGS}"
#: Four peers with different numbers of examples, so that weights by examples differ from plain means.
UNEVEN: dict[str, Any] = {"simulation__split": "slicing:10", "simulation__peers": 4}


def finished(running: VectorEngine, rounds: int = 3) -> tuple[Tensor, Tensor]:
    """Step until this round; return the peers' own models and their estimates after it."""
    while running.round < rounds:
        running.step()
    return running.x_Pn.clone(), running.estimate_Pn.clone()


def played(made: World, **settings: Any) -> tuple[Tensor, Tensor]:
    with engine(made, METHOD, **settings) as running:
        return finished(running)


def test_with_exact_averages_it_is_pfedvem_with_a_server_round_by_round() -> None:
    made = world(federation(gossip__protocol="exact", **UNEVEN))
    counts = [len(share.train_M) for share in made.split.shares]
    assert max(counts) > min(counts)
    with engine(made, METHOD) as equals, engine(made, f"pfedvem,{SETTINGS}") as led:
        for _ in range(3):
            equals.step()
            led.step()
            server_n = led.server_n
            assert server_n is not None
            assert relative(equals.x_Pn, led.x_Pn) < PARITY
            assert relative(equals.estimate_Pn, server_n.expand_as(equals.estimate_Pn)) < PARITY
            assert relative(equals.x_Pn, equals.estimate_Pn) > 1e-3, "own models are not the estimates"
            assert np.allclose(equals.evaluate(), led.evaluate(), atol=1e-4)
            estimated, model = equals.evaluate_server(), led.evaluate_server()
            assert estimated is not None
            assert model is not None
            assert np.allclose(estimated, model, atol=1e-4)
            ours, theirs = equals.statistics(), led.statistics()
            assert ours.keys() == theirs.keys() == {"confidence", "deviation", "uncertainty"}
            for name, values in ours.items():
                assert values == pytest.approx(theirs[name], rel=1e-4), name


@pytest.mark.parametrize("gossip", [{"topology": "star"}, {"protocol": "push-pull"}])
def test_by_gossip_estimates_come_as_near_to_the_servers_model_as_the_tolerance_says(gossip: dict[str, str]) -> None:
    tolerance = {"exchanges": None, "tolerance": 1e-8}
    made, exact = (
        world(federation(**UNEVEN, **{f"gossip__{k}": v for k, v in each.items()}))
        for each in (tolerance | gossip, {"protocol": "exact"})
    )
    (own, estimate), (own_exact, estimate_exact) = played(made), played(exact)
    assert relative(own, own_exact) < PARITY
    assert relative(estimate, estimate_exact) < PARITY


def test_few_exchanges_leave_estimates_apart_and_keep_the_weighted_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each averaging starts from n in the base's group and tau in the head's, and keeps the weighted means."""
    made = world(federation(**UNEVEN, gossip__exchanges=1))
    with engine(made, METHOD) as running:
        begun_with: dict[str, NDArray[np.float64]] = {}
        assert isinstance(running._rounds, GossipRounds)
        started = running._rounds._start_weights

        def noted(group: Group) -> NDArray[np.float64]:
            return begun_with.setdefault(group.id, started(group))

        monkeypatch.setattr(running._rounds, "_start_weights", noted)
        running.step()
        n_P = torch.tensor([len(share.train_M) for share in made.split.shares], dtype=torch.float64)
        for group in running._plan.groups:
            index = torch.from_numpy(group.indices["peer1"])
            trained, mixed = (running.workspace.x[side][:, index].double() for side in (1, 0))
            begun = torch.from_numpy(begun_with[group.id])
            ended = torch.from_numpy(running.weights[group.id])
            assert begun.mean() == pytest.approx(1)
            if group.id == "base":
                assert torch.allclose(begun, n_P / n_P.mean())
            assert torch.allclose(begun @ trained, ended @ mixed, atol=1e-5)
        assert min(running.disagreement().values()) > 1e-6


def test_neither_workers_nor_a_stop_between_rounds_change_a_bit() -> None:
    made = world(federation())
    one, two = played(made), played(made, workers=2)
    with engine(made, METHOD) as running:
        finished(running, 2)
        tensors, state = running.snapshot()
        kept = {name: value.clone() for name, value in tensors.items()}
    with engine(made, METHOD) as again:
        again.restore(kept, state)
        for first, second, third in zip(one, two, finished(again), strict=True):
            assert same_bits(first, second)
            assert same_bits(first, third)


@pytest.mark.parametrize("phase", ["training", "averaging"])
def test_a_stop_in_the_middle_goes_on_to_the_same_numbers(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, stop = world(federation()), threading.Event()
    with engine(made, METHOD, stop=stop) as running:
        before = finished(running, 1)
        if phase == "training":
            stop.set()
        else:
            monkeypatch.setattr(running._rounds, "_prepare_mixing", lambda number: stop.set())
        with pytest.raises(Stopped):
            running.step()
        assert same_bits(running.x_Pn, before[0])
        tensors, state = running.snapshot()
        kept = {name: value.clone() for name, value in tensors.items()}
    with engine(made, METHOD) as again:
        again.restore(kept, state)
        for whole, resumed in zip(played(made), finished(again), strict=True):
            assert same_bits(whole, resumed)


def test_a_dead_worker_is_replaced_and_the_result_is_the_same() -> None:
    made, said = world(federation()), list[tuple[str, str]]()
    with engine(made, METHOD, workers=2, replaced=lambda *each: said.append(each)) as running:
        running.step()
        os.kill(running.process_ids[0], signal.SIGKILL)
        disturbed = finished(running)
    assert said
    for whole, each in zip(played(made), disturbed, strict=True):
        assert same_bits(whole, each)


def test_a_device_of_its_own_gives_the_workers_numbers() -> None:
    made = world(federation())
    for one, other in zip(played(made, device="cpu:0"), played(made), strict=True):
        assert relative(one, other) < PARITY


def test_nothing_travels_beside_base_and_head() -> None:
    made = world(federation())
    with engine(made, METHOD) as ours, engine(made, "full-averaging") as plain:
        ours.step()
        plain.step()
        (messages, amount), (as_one, whole) = ours.traffic, plain.traffic
    assert messages == [2 * count for count in as_one]
    assert amount == [size + 300 * count for size, count in zip(whole, as_one, strict=True)]


def test_a_run_records_both_models_and_the_statistics(tmp_path: Path) -> None:
    settings = federation(simulation__validation=0.2, learning__rounds=2).model_dump(mode="json")
    found = api.simulate(federation=settings, methods=(METHOD, f"pfedvem,{SETTINGS}"), out=tmp_path)
    (scores,) = (each["scores"] for name, each in found.summary["methods"].items() if name.startswith("pfedvem-gossip"))
    assert set(scores) == {"PM", "MT", "GM", "S"}
    assert (Path(found.summary["report"])).is_file()


@pytest.mark.parametrize("sigma", [0.1, 10.0])
def test_whole_peers_give_the_same_models_weights_and_scores(sigma: float) -> None:
    """The peers form a star, in which the centre comes to hold twice the weight of the others.

    Confidences are near 100 or near 0.01: so small a weight is no reason to rest, because each averaging begins anew.
    """
    made, method = (
        world(federation(**UNEVEN, gossip__topology="star", gossip__deadline=120.0)),
        f"{METHOD},sigma={sigma}",
    )
    with engine(made, method) as expected, NetworkEngine(made, parse_choice(method)) as found:
        for _ in range(2):
            expected.step()
            found.step()
            scores = found.evaluate()
            assert relative(found.x_Pn, expected.x_Pn) < PARITY
            assert np.allclose(scores, expected.evaluate(), rtol=1e-5)
            estimated, wanted = found.evaluate_server(), expected.evaluate_server()
            assert estimated is not None
            assert wanted is not None
            assert np.allclose(estimated, wanted, rtol=1e-5)
            assert not np.allclose(estimated, scores, rtol=1e-3), "own models are not the estimates"
            assert found.traffic[0] >= expected.traffic[0], "everything that is given is said"
            for group, weights in expected.weights.items():
                assert np.allclose(found.weights[group], weights, rtol=1e-5), group


@pytest.mark.parametrize("where", ["network", "processes"])
def test_without_rounds_it_is_refused(where: Any, tmp_path: Path) -> None:
    """Each averaging begins anew, and asynchronous peers have no such beginning."""
    settings = federation(learning__mode="asynchronous").model_dump(mode="json")
    with pytest.raises(ConfigError) as refusal:
        api.simulate(federation=settings, methods=(METHOD,), engine=where, out=tmp_path)
    (problem,) = refusal.value.problems
    assert problem.text.startswith(f"{METHOD} starts each averaging with its own weights")
    assert "write learning.mode: synchronous" in problem.text
    asynchronous = refusals({"learning": {"algorithm": METHOD, "mode": "asynchronous"}}, PEERS)
    assert [problem.path for problem in asynchronous] == [("learning", "mode")]
    assert not refusals({"learning": {"algorithm": METHOD}}, PEERS)


@pytest.mark.parametrize(
    ("method", "learning", "words"),
    [
        ("pfedvem-gossip,sigma=0", {}, "sigma = 0"),
        ("pfedvem-gossip,head=nobody", {}, 'no module "nobody"'),
        ("pfedvem-gossip", {"loss": "squared-error"}, "write cross-entropy"),
        ("pfedvem-gossip,heads=3", {}, 'no setting "heads"'),
    ],
)
def test_what_does_not_fit_is_said_before_a_run(
    method: str, learning: dict[str, Any], words: str, tmp_path: Path
) -> None:
    settings = federation().model_dump(mode="json")
    settings["learning"] |= learning
    with pytest.raises((AlgorithmError, SlicingError, ConfigError), match=words):
        api.simulate(federation=settings, methods=(method,), out=tmp_path)
    assert not list(tmp_path.iterdir())
