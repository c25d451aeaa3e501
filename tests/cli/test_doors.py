"""Federation, `fedpeer.simulate`, the file and the command line reject the same settings with the same sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import fedpeer
from fedpeer.cli.config import ConfigSource, load
from fedpeer.cli.setting_options import OPTIONS, read_number
from fedpeer.cli.simulate_options import flag, options_of
from fedpeer.config.federation import Federation
from fedpeer.config.problems import ConfigError, ConfigProblem
from fedpeer.config.rules import RULES
from fedpeer.config.settings import RunOptions
from fedpeer.sims import api

#: A rule and its sentence, with settings named as in a file.
Said = tuple[str, str]

KEY_OF = {flag(option): ".".join(map(str, path)) for option, path in OPTIONS.items()}
KEY_OF |= {flag(option): option for option in RunOptions.model_fields}
#: Rules that hold whichever engine runs the peers.
EVERYWHERE = {"", *(rule.name for rule in RULES if not rule.engines)}


class AcceptedError(Exception):
    """Raised instead of preparing a simulation: the settings were accepted."""


def plain(text: str) -> str:
    """Return a sentence with settings named by their keys, whichever interface it came from."""
    text = re.sub(r'(\w+)="(\w+)"', r"\1 \2", text)
    for option, key in KEY_OF.items():
        text = re.sub(rf"(?<!\S){option}\b", key, text)
    return re.sub(r"\b([a-z_]+(\.[a-z_]+)?): ", r"\1 ", text)


def said(problems: list[ConfigProblem]) -> set[Said]:
    return {(problem.rule, plain(problem.text)) for problem in problems}


def refused(door: Callable[[], object]) -> list[ConfigProblem]:
    try:
        door()
    except ConfigError as error:
        return error.problems
    except AcceptedError:
        pass
    return []


def by_python(settings: Mapping[str, Any], methods: list[str], **options: Any) -> list[ConfigProblem]:
    with mock.patch.object(api, "prepare_simulation", side_effect=AcceptedError):
        return refused(lambda: fedpeer.simulate(federation=settings, methods=methods, **options))


def by_file(folder: Path, settings: Mapping[str, Any], methods: list[str], **options: Any) -> list[ConfigProblem]:
    file = folder / "federation.yaml"
    file.write_text(json.dumps({"name": "doors", **settings}), encoding="utf-8")
    return refused(lambda: options_of({"compare": ",".join(methods), **options}, file))


def by_options(folder: Path, settings: Mapping[str, Any], methods: list[str], **options: Any) -> list[ConfigProblem]:
    """Return the problems when settings that have an option are passed by it and the other ones by the file."""
    rest = {section: dict(inside) for section, inside in settings.items()}
    for option, path in OPTIONS.items():
        section, *key = map(str, path)
        if key and option != "algorithm" and key[0] in rest.get(section, {}):
            options[option] = read_number(str(rest[section].pop(key[0])))
    return by_file(folder, rest, methods, **options)


CHOSEN: dict[str, st.SearchStrategy[Any]] = {
    "learning.mode": st.sampled_from(["synchronous", "asynchronous"]),
    "learning.passes": st.sampled_from([1, 3]),
    "learning.steps_between_averaging": st.sampled_from([5, "pass"]),
    "learning.weights": st.sampled_from(["uniform", "samples", "bytes"]),
    "learning.aggregation": st.sampled_from(["mean", "median", "krum:1", "krum"]),
    "learning.privacy": st.sampled_from(["none", "gaussian", "gaussian,where=client"]),
    "learning.farthest": st.sampled_from([None, 3.0]),
    "learning.optimizer": st.sampled_from(["sgd,lr=0.1", "sgd,lr=-1", "sdg"]),
    "learning.rounds": st.sampled_from([3, 0]),
    "gossip.protocol": st.sampled_from(["push-sum", "push-pull", "exact", "coordinator"]),
    "gossip.wire": st.sampled_from(["float32", "int8", "top-k:0.1", "float16"]),
    "gossip.tolerance": st.sampled_from([1e-3, 0.0]),
    "gossip.exchanges": st.sampled_from([1, 4]),
    "gossip.drift": st.sampled_from([None, 0.1]),
    "gossip.privacy": st.sampled_from(["none", "noise", "noise,pushes=0"]),
    "gossip.deadline": st.sampled_from([30.0, 0.001]),
    "simulation.peers": st.sampled_from([4, 70]),
    "simulation.validation": st.sampled_from([0.0, 0.2]),
}


@st.composite
def settings_of(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    for key in draw(st.lists(st.sampled_from(sorted(CHOSEN)), max_size=6, unique=True)):
        section, name = key.split(".")
        made.setdefault(section, {})[name] = draw(CHOSEN[key])
    return made


METHODS = ["local", "partial-averaging", "full-averaging", "fedavg", "pfedvem-gossip", "global", "fedawg"]


@pytest.mark.slow
@hypothesis_settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    settings=settings_of(),
    methods=st.lists(st.sampled_from(METHODS), min_size=1, max_size=3),
    engine=st.sampled_from(["vector", "ray", "network", "processes", "cloud"]),
    device=st.sampled_from(["auto", "cuda"]),
    faults=st.sampled_from(["", "7"]),
)
def test_python_file_and_options_say_the_same(
    tmp_path: Path, settings: dict[str, Any], methods: list[str], engine: str, device: str, faults: str
) -> None:
    options = {"engine": engine, "device": device, "faults": faults}
    wanted = said(by_python(settings, methods, **options))
    assert said(by_file(tmp_path, settings, methods, **options)) == wanted
    assert said(by_options(tmp_path, settings, methods, **options)) == wanted


@pytest.mark.slow
@hypothesis_settings(max_examples=80, deadline=None)
@given(settings=settings_of(), method=st.sampled_from(METHODS))
def test_a_federation_says_what_its_file_says(settings: dict[str, Any], method: str) -> None:
    whole = {**settings, "learning": {"algorithm": method, **settings.get("learning", {})}}
    by_name = said(refused(lambda: Federation(**whole)))
    assert said(refused(lambda: Federation.model_validate(whole))) == by_name
    for_peers = said(refused(lambda: load(ConfigSource(whole))))
    assert {each for each in for_peers if each[0] in EVERYWHERE} == by_name


@pytest.mark.parametrize(
    ("settings", "place", "text"),
    [
        (
            {"learning": {"passes": 3}},
            "learning.passes",
            "a round has 87 local steps; leave learning.passes out, or write learning.steps_between_averaging: pass",
        ),
        (
            {"learning": {"algorithm": "full-averaging", "aggregation": "median"}},
            "learning.aggregation",
            (
                "full-averaging has no server, which this setting needs; write learning.aggregation: mean, or choose "
                "an algorithm with a server"
            ),
        ),
        (
            {"learning": {"mode": "asynchronous"}, "gossip": {"protocol": "push-pull"}},
            "learning.mode",
            (
                "asynchronous averaging needs push-sum; write gossip.protocol: push-sum or learning.mode: synchronous, "
                "or for a slice protocol: push-sum or mode: synchronous"
            ),
        ),
        (
            {"gossip": {"protocol": "coordinator", "wire": "int8"}},
            "gossip.wire",
            (
                "a coordinator sends and receives values as float32; write gossip.wire: float32, or "
                "gossip.protocol: push-sum"
            ),
        ),
        (
            {"learning": {"optimizer": "sgd,lr=-1"}},
            "learning.optimizer",
            "lr = -1: write a number above 0, such as sgd,lr=0.1",
        ),
    ],
    ids=["passes", "aggregation", "asynchronous", "coordinator", "rate"],
)
def test_every_door_refuses_what_some_took(settings: dict[str, Any], place: str, text: str, tmp_path: Path) -> None:
    method = settings.get("learning", {}).get("algorithm", "partial-averaging")
    engine = "network" if place in ("learning.mode", "gossip.wire") else "vector"
    for problems in (
        refused(lambda: Federation(**settings)),
        refused(lambda: load(ConfigSource(settings))),
        by_python(settings, [method], engine=engine),
        by_file(tmp_path, settings, [method], engine=engine),
    ):
        assert [(problem.dotted, problem.text) for problem in problems] == [(place, text)]
    assert said(by_options(tmp_path, settings, [method], engine=engine)) == {(problems[0].rule, plain(text))}


def test_python_is_told_keywords_and_the_command_line_options(tmp_path: Path) -> None:
    settings = {"gossip": {"wire": "int8"}}
    (by_keyword,) = by_python(settings, ["full-averaging"])
    (by_option,) = by_file(tmp_path, settings, ["full-averaging"])
    assert by_keyword.text.endswith('use engine="network"')
    assert by_option.text.endswith("use --engine network")
    assert (by_keyword.dotted, by_option.place) == ("gossip.wire", "line 1:38")


def test_all_mistakes_of_a_call_come_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        fedpeer.simulate(
            "digitz",
            "mpl:64+10",
            federation={"learning": {"passes": 2, "roundz": 3}, "gossip": {"exchanges": 0}},
            methods=["local", "locl", "local"],
            engine="cloud",  # type: ignore[arg-type]
        )
    assert {problem.dotted for problem in refusal.value.problems} == {
        "data",
        "network",
        "learning.passes",
        "learning.roundz",
        "gossip.exchanges",
        "methods",
        "engine",
    }
    assert "pydantic" not in str(refusal.value)


@pytest.mark.parametrize("rule", ["faults", "device"])
def test_what_a_run_has_beside_its_federation_is_shown_by_its_option(rule: str, tmp_path: Path) -> None:
    given = {"faults": "7"} if rule == "faults" else {"engine": "network", "device": "cuda"}
    (problem,) = by_file(tmp_path, {}, ["local"], **given)
    assert problem.place == flag(rule)
