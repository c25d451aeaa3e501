"""Tests without a cluster: rejected requests, which peer is on which shard, and that nothing else imports Ray."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedpeer.config.choice import ChoiceError, parse_choice
from fedpeer.config.problems import ConfigError
from fedpeer.runs.folder import RunFolder
from fedpeer.sims.checks import check_engine
from fedpeer.sims.events import Remark, SimulationEvent
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.request import MethodSeed, SimulationRequest
from fedpeer.sims.simulate import _spread, _Stage, unused_settings
from fedpeer.sims.vector.pool import Stopped
from tests.forked import python
from tests.sims.worlds import federation

if TYPE_CHECKING:
    from fedpeer.sims.ray.remote_run import RemoteRun


def request(method: str = "partial-averaging", **settings: Any) -> SimulationRequest:
    return SimulationRequest(federation=federation(**settings), methods=(parse_choice(method),), engine="ray")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (request(learning__mode="asynchronous"), "the ray engine does not support learning.mode: asynchronous"),
        (request(gossip__wire="int8"), 'the ray engine does not support gossip.wire = int8; use engine="network"'),
        (request(gossip__privacy="noise"), 'the ray engine does not support gossip.privacy; use engine="vector"'),
        (request(gossip__drift=0.1), 'the ray engine does not support gossip.drift; use engine="vector"'),
        (request("global"), 'use engine="vector"'),
        (replace(request(), device="cuda"), "the ray engine trains on CPUs; leave out the device cuda"),
        (replace(request(), faults="7"), "the ray engine has no network"),
        (replace(request(), address="head"), '"head" is not an address; write HOST:PORT'),
        (replace(request(), address="ray://head:10001"), "is not an address; write HOST:PORT"),
        (replace(request(), engine="vector", shards=2), 'not for the vector engine; use engine="ray"'),
        (replace(request(), engine="network", address="auto"), 'not for the network engine; use engine="ray"'),
    ],
)
def test_what_cannot_be_played_is_refused_with_the_way_out(wanted: SimulationRequest, words: str) -> None:
    with pytest.raises((ChoiceError, ConfigError)) as refusal:
        prepare_simulation(wanted)
    assert words in " ".join(str(refusal.value).split())


def test_who_has_no_ray_reads_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else there(name))
    with pytest.raises(ChoiceError, match=r"the ray engine needs Ray; run pip install 'fedpeer\[ray\]', or use the v"):
        prepare_simulation(request())


@pytest.mark.slow
def test_a_run_of_one_method_does_not_remark_on_what_another_method_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    from fedpeer.sims.ray import cells

    class Sweep:
        """Instead of a cluster: runs that remark on unused settings, and do not finish."""

        def __init__(self, *options: Any) -> None:
            self._on_event = options[2]

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def begin(self, run: RemoteRun) -> None:
            for text in unused_settings(run.request):
                self._on_event(run, Remark(text=text))

        def finished(self) -> list[object]:
            return []

    monkeypatch.setattr(cells, "Sweep", Sweep)
    methods = tuple(map(parse_choice, ("fedavg", "full-averaging")))
    options = replace(request(learning__participation=0.5), methods=methods)
    said: list[SimulationEvent] = []
    run = RunFolder.create(tmp_path, name="test", settings=options.to_json(), environment={})
    simulation = prepare_simulation(options)
    with pytest.raises(Stopped):
        _spread(
            _Stage(simulation, cast(Any, SimpleNamespace()), run, said.append, threading.Event()), simulation.cells, ()
        )
    assert said == []


@pytest.mark.slow
def test_a_finished_run_brings_its_best_models_in_place_of_earlier_ones(tmp_path: Path) -> None:
    """The simulation was begun with shards, and its first run stopped after some rounds."""
    pytest.importorskip("ray")
    from fedpeer.sims.ray.cells import _take_over

    run, part = (RunFolder.create(tmp_path / name, name="test", settings={}, environment={}) for name in "ab")
    for folder, best in ((run, 1.0), (part, 2.0)):
        folder.save_models("local", 0, {"peer1/w": np.full(1, best)}, {}, best=True)
    part.save_models("local", 0, {"peer1/w": np.full(1, 3.0)}, {})
    _take_over(run, part, MethodSeed("local", 0))
    found = [load_file(run.models("local", 0, best=best)) for best in (True, False)]
    assert [each["peer1/w"].tolist() for each in found] == [[2.0], [3.0]]


def test_an_address_at_which_nobody_listens_is_told_before_anything_begins() -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "127.0.0.1:{1}".format(*server.getsockname())
    with pytest.raises(ChoiceError, match=rf"no Ray cluster answers at {address} .*ray start --head"):
        prepare_simulation(replace(request(), address=address))


@pytest.mark.parametrize("settings", [{"gossip__privacy": "noise"}, {"gossip__drift": 0.1}])
def test_runs_that_are_spread_whole_play_what_the_vector_engine_plays(settings: dict[str, Any]) -> None:
    pytest.importorskip("ray")
    several = replace(request("partial-averaging", **settings), seeds=(0, 1))
    check_engine(several, ())
    check_engine(replace(request("global"), seeds=(0, 1)), ())
    with pytest.raises(ConfigError, match="the ray engine does not support"):
        check_engine(replace(several, shards=2), ())
    with pytest.raises(ConfigError, match="does not support learning"):
        check_engine(replace(request(learning__mode="asynchronous"), seeds=(0, 1)), ())
    with pytest.raises(ConfigError, match="the ray engine trains on CPUs"):
        check_engine(replace(several, device="cuda"), ())
    with pytest.raises(ChoiceError, match='"head" is not an address'):
        check_engine(replace(several, address="head"), ())


def test_several_runs_are_spread_and_one_is_cut() -> None:
    one = request()
    assert not one.spread
    assert replace(one, seeds=(0, 1)).spread
    assert replace(one, methods=(parse_choice("local"), parse_choice("fedavg"))).spread
    assert not replace(one, seeds=(0, 1), shards=2).spread
    assert not replace(one, seeds=(0, 1), engine="vector").spread
    alone = replace(one, seeds=(0, 1), address="auto").alone(parse_choice("local"), 1)
    assert (alone.engine, alone.address, alone.device, alone.workers) == ("vector", "", "cpu", 1)
    assert alone.only == ("local", 1)


def test_a_request_keeps_its_cluster_and_others_know_of_none() -> None:
    options = replace(request(), address="192.0.2.7:6379", shards=3)
    assert SimulationRequest.from_json(options.to_json()) == options
    assert not {"address", "shards"} & replace(request(), engine="vector").to_json().keys()


def test_ray_is_imported_by_nobody_who_did_not_ask_for_it() -> None:
    """Neither the check whether Ray is installed imports it, nor any module that runs of other engines import."""
    code = """
import sys
import fedpeer, fedpeer.sims.api, fedpeer.cli.simulate, fedpeer.cli.experiment_progress
import fedpeer.sims.simulate, fedpeer.experiments.runner
from fedpeer.sims.checks import check_engine
from fedpeer.sims.request import SimulationRequest
from fedpeer.config.federation import Federation
fedpeer.simulate
for engine in ("vector", "ray"):
    check_engine(SimulationRequest(federation=Federation(), engine=engine), ())
print([name for name in sys.modules if name.split(".")[0] == "ray"])
"""
    pytest.importorskip("ray")
    done = subprocess.run([*python(), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def job(steps: list[int], block: int) -> Any:
    peers = tuple(f"peer{number}" for number in range(len(steps)))
    same = (SimpleNamespace(block=block),), (0,) * len(steps)
    return SimpleNamespace(
        peers=peers, steps_P=tuple(steps), batch_P=(1,) * len(steps), networks=same[0], network_P=same[1]
    )


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("block", [1, 2, 5])
def test_shards_have_whole_blocks_and_about_as_much_to_do(shards: int, block: int) -> None:
    pytest.importorskip("ray")
    from fedpeer.sims.ray.ray_worker_pool import dealt
    from fedpeer.sims.vector.rounds import blocks_of_peers

    options = job([3] * 10 + [7] * 4 + [1] * 6, block)
    blocks = blocks_of_peers(options, range(20))
    found = dealt(options, shards)
    assert sorted(peer for peers in found for peer in peers) == list(range(20))
    assert len(found) == min(shards, len(blocks))
    assert all(any(set(each) <= set(peers) for peers in found) for each in blocks)
    work = [sum(options.steps_P[peer] for peer in peers) for peers in found]
    assert max(work) - min(work) <= max(options.steps_P[each[0]] * len(each) for each in blocks)


def test_transfers_hold_every_block_of_columns_once_and_are_neither_many_nor_large() -> None:
    pytest.importorskip("ray")
    from fedpeer.sims.ray.ray_worker_pool import SHARE_SCALARS_MAX, as_shares

    blocks = [("a", at, at + 1024) for at in range(0, 300 * 1024, 1024)] + [("b", 0, 7)]
    members = {"a": 256, "b": 3}
    for shards in (1, 4, 100):
        shares = as_shares(blocks, members, shards)
        assert [(each.group, *span) for each in shares for span in each.blocks] == blocks
        sizes = [(each.span.stop - each.span.start) * members[each.group] for each in shares]
        assert max(sizes) <= SHARE_SCALARS_MAX
        assert len(shares) >= min(shards, 300)
    assert len(as_shares(blocks, members, 1)) < 50


def test_patches_whose_clients_have_all_trained_again_are_let_go() -> None:
    pytest.importorskip("ray")
    from fedpeer.sims.ray.ray_worker_pool import needed_snapshots

    patches = [((0, 1, 2), (0, 0, 0), "a"), ((0, 1), (1, 1), "b"), ((1,), (0,), "c"), ((0, 2), (0, 1), "d")]
    assert [each[2] for each in needed_snapshots(patches[:1])] == ["a"]
    assert [each[2] for each in needed_snapshots(patches[:2])] == ["a", "b"]
    assert [each[2] for each in needed_snapshots(patches)] == ["c", "d"]
