"""A federation file is valid, or one report lists everything that is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedpeer.cli.config import ConfigSource, load
from fedpeer.cli.errors import LINES_MIN, report_error
from fedpeer.cli.yaml_marks import parse_yaml
from fedpeer.config.capacity import METADATA_BYTES_MAX, hello_bytes
from fedpeer.config.choice import Choice
from fedpeer.config.federation import Federation
from fedpeer.config.problems import ConfigError, ConfigProblem
from fedpeer.config.reading import fields_at
from tests.cli.conftest import Fedpeer

RIGHT = """\
# federation.yaml
name: wards
network: {mlp: {layers: [561, 300, 100, 6], activation: sigmoid}}
partial_models:
  everyone: {neurons: {input: all, hidden1: 250, hidden2: 80, output: all}}
  ward-a:   {depends_on: [everyone], neurons: {hidden1: 50, hidden2: 20}, members: [peer1, peer3]}
learning: {algorithm: partial-averaging, loss: cross-entropy, optimizer: {sgd: {lr: 0.1}}, batch_size: 10,
           steps_between_averaging: 50, rounds: 100, evaluate_every: 5, weights: uniform, buffers: average,
           optimizer_state: keep}
gossip: {protocol: push-sum, topology: k-regular:4, tolerance: 1e-4}
seed: 0
simulation: {peers: 16, dataset: har, split: user}
"""

#: The example of the style guide: three mistakes in three places.
THREE_MISTAKES = """\
name: wards
seed: 0
partial_models:
  everyone: {}
  a: {depends_on: [everyon]}
learning:
  algoritm: local
gossip:
  topology: {k-regular: 20}
simulation: {peers: 16}
"""


def loaded(text: str) -> Federation:
    data, marks = parse_yaml(text, "federation.yaml")
    return load(ConfigSource(data, marks, {}, "federation.yaml"))


def problems(text: str) -> list[tuple[str, str, str]]:
    with pytest.raises(ConfigError) as caught:
        loaded(text)
    return [(problem.place, problem.dotted, problem.text) for problem in caught.value.problems]


def test_the_documented_example_is_right() -> None:
    federation = loaded(RIGHT)
    assert federation.name == "wards"
    assert federation.partial_models["ward-a"].members == ["peer1", "peer3"]
    assert federation.learning.optimizer == Choice("sgd", None, {"lr": 0.1})
    assert federation.gossip.tolerance == 1e-4, "YAML 1.1 would read text here"


def test_the_report_names_line_setting_problem_and_way_out() -> None:
    data, marks = parse_yaml(THREE_MISTAKES, "federation.yaml")
    with pytest.raises(ConfigError) as caught:
        load(ConfigSource(data, marks, {}, "federation.yaml"), ", so nothing was started")
    assert report_error(caught.value, width=120).splitlines() == [
        "federation.yaml has 3 problems, so nothing was started.",
        "",
        '  line 5:19  partial_models.a.depends_on  "everyon" is not a partial model here; did you mean "everyone"?',
        "  line  7:3  learning.algoritm            unknown setting; did you mean learning.algorithm?",
        "  line  9:3  gossip.topology              k-regular: degree = 20: there are only 16 peers; use 15 or less",
    ]


@pytest.mark.parametrize("width", [40, 80, 140])
def test_a_report_fits_one_screen_of_any_width_and_a_pipe_gets_all(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [
        ConfigProblem(("partial_models", f"model{n}", "neurons"), "word " * 30, f"line {n}:1") for n in range(1, 200)
    ]
    error = ConfigError("federation.yaml", many)
    assert all(f"model{n}.neurons" in report_error(error, 200) for n in range(1, 200))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    lines = report_error(error, width).splitlines()
    assert len(lines) <= LINES_MIN
    assert max(map(len, lines)) <= width
    assert "more" in lines[-1]
    assert "2>&1 | less" in lines[-1]


def test_a_setting_of_another_section_is_told_where_it_belongs() -> None:
    assert problems("gossip: {rounds: 3}") == [
        ("line 1:10", "gossip.rounds", "unknown setting; did you mean learning.rounds?")
    ]


def test_an_unknown_setting_of_a_slice_is_compared_with_those_of_its_section() -> None:
    found = problems("partial_models: {a: {gossip: {toplogy: ring, member: 3}}}")
    near, other = (text for _, _, text in found)
    assert near == "unknown setting; did you mean partial_models.a.gossip.topology?"
    assert "deadline" in other
    assert "depends_on" not in other


def test_a_value_that_may_be_several_things_gives_one_problem() -> None:
    found = problems("partial_models: {a: {neurons: {hidden1: 2.5, hidden2: [1, x], hidden3: -1}, members: 3}}")
    assert [(dotted, text) for _, dotted, text in found] == [
        ("partial_models.a.neurons.hidden1", 'found 2.5; write a whole number or "all" or a list'),
        ("partial_models.a.neurons.hidden2.1", 'found "x" (text); write a whole number'),
        ("partial_models.a.neurons.hidden3", "found -1; write 0 or more"),
        ("partial_models.a.members", 'found 3; write a list or "all" or alike'),
    ]


def test_checks_across_settings_go_on_with_what_is_right() -> None:
    found = problems("seed: x\nsimulation: {peers: 3}\npartial_models: {a: {members: [peer4]}}")
    assert [dotted for _, dotted, _ in found] == ["seed", "partial_models.a.members"]


def test_neurons_are_counted_over_the_models_of_one_peer() -> None:
    text = "network: mlp:4+8+2\nsimulation: {peers: 4}\npartial_models:\n"
    apart = "  a: {neurons: {hidden1: 5}, members: [peer1]}\n  b: {neurons: {hidden1: 5}, members: [peer2]}\n"
    assert loaded(text + apart).partial_models.keys() == {"a", "b"}
    together = apart.replace("peer2", "peer1")
    assert ["10 neurons are claimed, but hidden1 has 8" in words for _, _, words in problems(text + together)] == [True]


def test_names_with_dots_keep_their_line() -> None:
    assert problems("partial_models:\n  a.b: {depends_on: [c]}")[0][:2] == (
        "line 2:21",
        "partial_models.a.b.depends_on",
    )


def test_what_peers_have_no_room_to_tell_one_another_is_refused_before_anything_is_made(fedpeer: Fedpeer) -> None:
    names = [f"partial-model-{number:02}" for number in range(40)]
    wide = "\n".join(["name: wide", "partial_models:", *(f"  {name}: {{}}" for name in names)])
    told = f"which take {hello_bytes(names):,} bytes in a Hello of at most {METADATA_BYTES_MAX:,}"
    assert [(place, dotted, told in text) for place, dotted, text in problems(wide)] == [
        ("line 2:1", "partial_models", True)
    ]
    Path("wide.yaml").write_text(wide, encoding="utf-8")
    for words in (["config", "check", "wide.yaml"], ["init", "fed", "--peers", "2", "--federation", "wide.yaml"]):
        outcome = fedpeer(*words)
        assert outcome.code == 2
        assert told in " ".join(outcome.err.split())
    assert not Path("fed").exists()


def test_a_name_that_messages_have_no_room_for_has_its_line() -> None:
    (found,) = problems(f"partial_models:\n  short: {{}}\n  {'long' * 26}: {{}}")
    assert found[0] == "line 3:3"
    assert "at most 100 printable characters" in found[2]


def test_fields_at_knows_what_may_stand_where() -> None:
    assert "members" in fields_at(Federation, ["partial_models", "any"])
    assert fields_at(Federation, ["seed"]) == []


def test_equal_choices_written_differently_have_one_digest() -> None:
    texts = ["gossip: {topology: k-regular:4}", "gossip: {topology: {k-regular: 4}}", "simulation: {peers: 9}", ""]
    digests = {loaded(f"seed: 0\n{text}").digest() for text in texts}
    assert len(digests) == 1
    assert loaded("seed: 1").digest() not in digests


def test_settings_survive_json() -> None:
    federation = loaded(RIGHT)
    again = Federation.model_validate(json.loads(federation.model_dump_json()))
    assert again.model_dump(mode="json") == federation.model_dump(mode="json")


def test_check_and_schema(fedpeer: Fedpeer, tmp_path: Path) -> None:
    Path("right.yaml").write_text(RIGHT)
    Path("wrong.yaml").write_text(THREE_MISTAKES)
    assert fedpeer("config", "check", "right.yaml").code == 0
    both = fedpeer("config", "check", "wrong.yaml", "right.yaml")
    assert both.code == 2
    assert "wrong.yaml has 3 problems." in both.err
    assert "right.yaml is valid" in both.out

    schema: dict[str, Any] = json.loads(fedpeer("config", "schema").out)
    assert schema["properties"].keys() == Federation.model_fields.keys()
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["GossipSettings"]["properties"]["topology"]["default"] == "k-regular:4"
