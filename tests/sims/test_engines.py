"""The common interface of the three engines.

A run that an engine cannot do is rejected before a run folder exists; a run keeps its engine.
"""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedpeer.config.choice import ChoiceError, parse_choice
from fedpeer.config.problems import ConfigError
from fedpeer.config.settings import EngineName
from fedpeer.runs.folder import RunFolder
from fedpeer.sims import api
from fedpeer.sims.events import RoundDone, SimulationEvent, SimulationStarted
from fedpeer.sims.network.faults import Faults, draw_faults, faults_from
from fedpeer.sims.network.links import LinkRules
from fedpeer.sims.prepare import prepare_simulation
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.simulate import run_prepared
from tests.sims.worlds import federation

PEERS = ("peer1", "peer2", "peer3")


def request(engine: EngineName, faults: str = "", device: str = "cpu", **settings: Any) -> SimulationRequest:
    return SimulationRequest(
        federation=federation(**settings),
        methods=(parse_choice("partial-averaging"),),
        device=device,
        workers=1,
        engine=engine,
        faults=faults,
    )


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (
            request("vector", learning__mode="asynchronous"),
            'learning.mode: asynchronous, nor a slice of this mode; use engine="network"',
        ),
        (
            request("vector", learning__algorithm="fedavg", learning__aggregation_goal=3),
            'the vector engine has no time, in which some updates come earlier than others; use engine="network"',
        ),
        (
            request("network", learning__algorithm="fedavg", learning__aggregation_goal=7),
            "6 peers cannot send 7 updates; write at most 6",
        ),
        (request("vector", gossip__wire="int8"), 'gossip.wire = int8; use engine="network"'),
        (
            replace(request("network", learning__mode="asynchronous"), methods=(parse_choice("fedavg"),)),
            "fedavg has synchronous rounds; write learning.mode: synchronous",
        ),
        (request("vector", faults="7"), 'the vector engine has no network; use engine="network"'),
        (request("processes", faults="7"), "the processes engine has no network"),
        (request("network", device="cuda"), "the network engine trains on the CPU"),
        (request("network", faults="links,loss=2"), "loss = 2: write a fraction below 1"),
        (
            request("processes", simulation__peers=65, simulation__split="iid"),
            "65 peers are too many processes for one machine; use 64",
        ),
    ],
)
def test_what_an_engine_cannot_play_is_refused_with_the_way_out(wanted: SimulationRequest, words: str) -> None:
    with pytest.raises((ChoiceError, ConfigError)) as refusal:
        prepare_simulation(wanted)
    assert words in " ".join(str(refusal.value).split())


def test_python_objects_cannot_go_to_processes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        api.simulate("digits", nn.Linear(64, 10), engine="processes", out=tmp_path)
    (problem,) = refusal.value.problems
    assert "network came as a Python object" in problem.text
    assert problem.text.endswith('name code (python:module:function), or use engine="network"')
    assert not list(tmp_path.iterdir())


def test_faults_are_a_seed_a_choice_or_a_line() -> None:
    assert faults_from("7", PEERS) == draw_faults(7, PEERS, 1200.0)
    assert faults_from("seed:7,heal=50", PEERS) == draw_faults(7, PEERS, 50.0)
    links = faults_from("links,loss=0.3,delay=2", PEERS)
    assert links == Faults(links=LinkRules(loss=0.3, delay=2.0), heal=math.inf)
    assert faults_from(links.line(), PEERS) == links
    assert faults_from(draw_faults(3, PEERS, 100.0).line(), PEERS) == draw_faults(3, PEERS, 100.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kill:1", ['"kill" needs at and for; write kill:1,at=...,for=...']),
        ("kill:9,at=1,for=2/slow:8/foo:1/links,loss=2", ["kill,on=9", "slow,on=8", '"foo"', "loss = 2"]),
        ("cut:1,at=-1,for=2/cut:1-3,at=1,for=2", ["at=-1", "cut names all peers"]),
        ("links,loss=0.1/links,delay=2", ["links is given twice"]),
        ("7/8", ["seed is given twice"]),
        ("links,loss=0.3/7", ["a seed draws the links too"]),
        ("7/cut:1,at=40,for=30", ["begins at 40 s, and all faults end at 30 s"]),
        ("links,heal=-5", ["heal = -5"]),
        (draw_faults(3, [*PEERS, "peer99"], 100.0).line(), ["about peer99, and the peers are peer1 to"]),
    ],
)
def test_mistakes_in_faults_are_told_together(text: str, words: list[str]) -> None:
    with pytest.raises(ChoiceError) as told:
        faults_from(text, PEERS)
    assert [word for word in words if word not in str(told.value)] == []


def test_faults_are_laid_over_one_another() -> None:
    slow = (("peer1", 10.0), ("peer3", 10.0))
    assert faults_from("slow:1+3", PEERS) == Faults(paces=slow)
    both = Faults(links=LinkRules(loss=0.1, bytes_per_tick=1e5), paces=slow)
    assert faults_from("links,loss=0.1,bytes_per_tick=1e5/slow:1+3", PEERS) == both
    assert faults_from("slow:1+3/links,loss=0.1,bytes_per_tick=1e5", PEERS) == both
    assert faults_from("slow:1-3,times=2/slow:2,times=7", PEERS).paces == (
        ("peer1", 2.0),
        ("peer2", 7.0),
        ("peer3", 2.0),
    )
    assert (
        faults_from("7/slow:1+3", PEERS)
        == faults_from("slow:1+3/7", PEERS)
        == replace(draw_faults(7, PEERS, 1200.0), paces=slow)
    )
    assert faults_from(both.line(), PEERS) == both
    older = json.loads(both.line())
    del older["paces"]
    assert faults_from(json.dumps(older), PEERS) == replace(both, paces=()), "a line of an earlier version"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"seed": 1}', "cannot be read"),
        ('{"seed": 1', "cannot be read"),
        ("storm", 'there is no kind of faults "storm"'),
        ("links,loss=x", "loss = x: write a number"),
        ("links,delay=0", "delay = 0"),
        ("links,reorder=1", "reorder = 1"),
        ("seed:-1", "seed = -1"),
        ("-1", "no kind of faults"),
        ("seed", "needs seed"),
        ("slow", "needs on"),
        ("slow:1-4", "slow,on=1-4: the peers are 1 to 3"),
        ("slow:x", "on=x: write peers by number"),
        ("slow:1,times=0", "times = 0: write a number from above 0"),
        ("slow:1,times=1e9", "times = 1e"),
        ("links,bytes_per_tick=0", "bytes_per_tick = 0: write 1 or more"),
        ("links/", "has no name"),
    ],
)
def test_wrong_faults_are_the_users_mistake(text: str, words: str) -> None:
    with pytest.raises(ChoiceError, match=words):
        faults_from(text, PEERS)


def test_a_run_keeps_its_engine_and_faults_and_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    wanted = request("network", faults="links,loss=0.2,jitter=0.5", simulation__peers=4)
    assert SimulationRequest.from_json(wanted.to_json()) == wanted
    stop, events = threading.Event(), list[SimulationEvent]()

    def on_event(event: SimulationEvent) -> None:
        events.append(event)
        if isinstance(event, RoundDone) and event.round == 2:
            stop.set()

    whole, broken = (
        RunFolder.create(tmp_path, name=name, settings=wanted.to_json(), environment={}) for name in ("a", "b")
    )
    run_prepared(prepare_simulation(wanted), whole)
    run_prepared(prepare_simulation(wanted), broken, on_event, stop)
    assert isinstance(events[0], SimulationStarted)
    assert events[0].workers == 1
    assert broken.status == "interrupted"
    settings = broken.read("settings")
    assert settings is not None
    again = RunFolder.open(tmp_path, broken.id)
    run_prepared(prepare_simulation(SimulationRequest.from_json(settings)), again)
    seconds = {"seconds": 0.0}
    assert [row | seconds for row in again.rows()] == [row | seconds for row in whole.rows()]
    assert len(whole.rows()) == 3
