"""Wrong command lines and wrong files: each report fits one screen, and names the place and the remedy.

A wrong command leaves no runs behind. Every row has the text that a user types (or writes into federation.yaml) and
words that the report must contain.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Fedpeer, Outcome

LINES_OF_A_SCREEN = 24

#: `fedpeer simulate` with these options.
OPTIONS: list[tuple[list[str], list[str]]] = [
    (["--peers", "0"], ["--peers", "found 0", "1 or more"]),
    (["--peers", "-3"], ["--peers", "found -3", "1 or more"]),
    (["--peers", "many"], ["--peers", '"many"', "whole number"]),
    (["--peers", "2.5"], ["--peers", "found 2.5", "whole number"]),
    (["--peers", ""], ["--peers", "empty text", "whole number"]),
    (["--peers", "1e9"], ["--peers", "whole number"]),
    (["--peers", "9" * 5000], ["--peers", "whole number"]),
    (["--peers"], ["--peers", "requires an argument", "--help"]),
    (["--peer", "4"], ["--peer", "--peers"]),
    (["--dataset", "digitz"], ["--dataset", "digitz", 'did you mean "digits"?']),
    (["--dataset", "digits,size=3"], ["--dataset", "size"]),
    (["--dataset", "csv:missing.csv,lable=y"], ["--dataset", "lable", 'did you mean "label"?']),
    (["--dataset", "csv:missing.csv,label=y"], ["missing.csv"]),
    (["--dataset", "python:nothing"], ["--dataset", "nothing"]),
    (["--split", "dirichlett:0.3"], ["--split", "dirichlett", 'did you mean "dirichlet"?']),
    (["--split", "dirichlet:few"], ["--split", "few", "number"]),
    (["--split", "dirichlet:nan"], ["--split", "nan", "finite number"]),
    (["--split", "iid/swop:8+9"], ["--split", "swop", 'did you mean "swap"?']),
    (["--split", "iid,"], ["--split", "key=value"]),
    (["--split", "labels:k:2"], ["--split", "labels"]),
    (["--split", "user"], ["digits", "iid"]),
    (["--split", "labels:99"], ["labels", "99"]),
    (["--peers", "2000", "--split", "iid"], ["2000", "peers"]),
    (["--algorithm", "fedawg"], ["--algorithm", "fedawg"]),
    (["--algorithm", "partial-averaging,cross_model=maybe"], ["--algorithm", "cross_model", "true or false"]),
    (["--algorithm", "local:3"], ["--algorithm", "takes no value"]),
    (["--compare", "local,partial"], ["--compare", '"partial"', "partial-averaging"]),
    (["--compare", "local,local"], ["--compare", "twice"]),
    (["--compare", ""], ["--compare", "has no name"]),
    (["--compare", "local", "--algorithm", "local"], ["--compare", "--algorithm", "leave one out"]),
    (["--network", "mpl:64+10"], ["--network", "mpl", 'did you mean "mlp"?']),
    (["--network", "mlp:64+x+10"], ["--network", "x", "whole number"]),
    (["--network", "mlp:60+10"], ["60+10", "64"]),
    (["--network", "mlp,activation=sigmod"], ["--network", "sigmod", "sigmoid"]),
    (["--network", "cnn"], ["cnn", "images"]),
    (["--network", "python:nets.build"], ["--network", "nets.build", "module:function"]),
    (["--network", "python:no_such_module:build"], ["no_such_module"]),
    (["--topology", "k-regular:16", "--peers", "16"], ["--topology", "16 peers", "15 or less"]),
    (["--topology", "k-regular:0"], ["degree", "1 or more"]),
    (["--topology", "circle"], ["--topology", "circle", "known:", "ring"]),
    (["--topology", "erdos-renyi:1.5"], ["probability", "1.5"]),
    (["--topology", "edges:peer1-peer2"], ["peer3"]),
    (["--topology", "edges:peer1-peer1", "--peers", "2"], ["--topology", "peer1"]),
    (["--topology", "edges:peer1-peer9", "--peers", "2"], ["--topology", "peer9"]),
    (["--protocol", "pushsum"], ["--protocol", "pushsum", "push-sum"]),
    (["--tolerance", "0"], ["--tolerance", "more than 0"]),
    (["--tolerance", "1"], ["--tolerance", "less than 1"]),
    (["--tolerance", ".nan"], ["--tolerance", "finite number"]),
    (["--tolerance", "1e-4", "--exchanges", "5"], ["--exchanges", "tolerance", "leave one out"]),
    (["--exchanges", "0"], ["--exchanges", "1 or more"]),
    (["--exchanges", "1000000"], ["--exchanges", "10000 or less"]),
    (["--rounds", "0"], ["--rounds", "1 or more"]),
    (["--rounds", "true"], ["--rounds", "true", "whole number"]),
    (["--steps", "0"], ["--steps", "1 or more"]),
    (["--steps", "epoch"], ["--steps", "epoch", "pass"]),
    (["--batch-size", "0"], ["--batch-size", "1 or more"]),
    (["--lr", "fast"], ["--lr", "fast", "number"]),
    (["--lr", "-1"], ["--lr", "-1", "above 0"]),
    (["--lr", "0.1", "--optimizer", "sgd,lr=0.2"], ["--lr", "leave one out"]),
    (["--optimizer", "addam"], ["--optimizer", "addam", 'did you mean "adam"?']),
    (["--optimizer", "sgd,momentun=0.9"], ["--optimizer", "momentun", 'did you mean "momentum"?']),
    (["--loss", "hinge"], ["--loss", "hinge", "cross-entropy"]),
    (["--loss", "huber"], ["huber", "cross-entropy"]),
    (["--seed", "-1"], ["--seed", "0 or more"]),
    (["--seed", "one"], ["--seed", '"one"', "whole number"]),
    (["--repeats", "0"], ["--repeats", "1 or more"]),
    (["--dataset", "clinic.csv"], ["--dataset", "csv:clinic.csv,label=NAME"]),
    (["--device", "tpu"], ["--device", "tpu", "cuda"]),
    (["--workers", "0"], ["--workers", "1 or more"]),
    (["--resume", "last"], ["no runs", "fedpeer simulate"]),
    (["--resume", "last", "--rounds", "3"], ["--rounds", "leave this out"]),
    (["--config", "missing.yaml"], ["missing.yaml", "no such file"]),
    (["--config", "."], ["folder"]),
    (["--fast"], ["--fast", "--help"]),
    (["digits"], ["digits", "--help"]),
]

#: federation.yaml with this content, for both `config check` and `simulate --config`.
FILES: list[Any] = [
    ("", ["empty", "key: value"]),
    ("- name: x", ["line 1:1", "a list"]),
    ("name: x\nname: y", ["line 2:1", "name", "line 1:1"]),
    ("name: !!python/object/apply:os.system [ls]", ["line 1:7", "os.system"]),
    ("name: &x y", ["line 1:7", "&x"]),
    ("name: [", ["line 1:8", "not YAML"]),
    ("name:\n\tx: 1", ["line 2:1", "not YAML"]),
    ("nmae: x", ["line 1:1", "nmae", "did you mean name?"]),
    ("1: x", ["line 1:1", '"1"']),
    ("name: 3", ["line 1:7", "found 3", "text"]),
    ("seed: 1.5", ["line 1:7", "found 1.5", "whole number"]),
    ("seed: yes", ["line 1:7", '"yes"', "whole number"]),
    ("learning:\n  batch_size: true", ["line 2:15", "learning.batch_size", "found true"]),
    ("learning: {common_start: yes}", ["line 1:26", '"yes"', "true or false"]),
    ("learning: 3", ["line 1:11", "learning", "settings (key: value)"]),
    ("learning: {rounds: .inf}", ["line 1:20", ".inf", "finite"]),
    ("learning: {algoritm: local}", ["line 1:12", "did you mean learning.algorithm?"]),
    (
        "learning: {optimizer: {sgd: {lr: 0.1}, adam: {}}}",
        ["line 1:12", "learning.optimizer", "found sgd, adam", "inside it"],
    ),
    ("learning: {weights: sample}", ["line 1:21", '"sample"', '"samples"']),
    ("learning: {aggregation: krumm}", ["line 1:25", "krumm", 'did you mean "krum"?']),
    ("learning: {aggregation: krum}", ["line 1:25", "needs liars", "krum,liars=..."]),
    ("learning: {aggregation: 'krum,liars=-1'}", ["line 1:25", "liars = -1", "0 or more"]),
    ("learning: {aggregation: 'centred-clipping,radius=0'}", ["line 1:25", "radius = 0", "above 0"]),
    ("learning: {privacy: gauss}", ["line 1:21", "gauss", 'did you mean "gaussian"?']),
    ("learning: {privacy: 'gaussian,noise=-1'}", ["line 1:21", "noise = -1", "0 or more"]),
    ("learning: {privacy: gaussian, aggregation: median}", ["line 1:21", "median does not compute", "where=client"]),
    ("learning: {start: uniform:wide}", ["line 1:19", "wide", "number"]),
    ('gossip: {tolerance: "0.1"}', ["line 1:21", '"0.1" (text)', "number"]),
    ("gossip: {tolerance: null}", ["line 1:21", "tolerance"]),
    ("gossip: {tolerance: 0.1, exchanges: 3}", ["line 1:37", "leave one out"]),
    ("gossip: {rounds: 3}", ["line 1:10", "did you mean learning.rounds?"]),
    ("gossip: {topology: k-regular:9}\nsimulation: {peers: 9}", ["line 1:20", "9 peers", "8 or less"]),
    pytest.param(
        "partial_models: {a: {depends_on: [b]}, b: {depends_on: [a]}}",
        ["partial_models.a", "a -> b -> a", "cycle"],
        id="C04",
    ),
    ("partial_models: {a: {depends_on: [everyon]}, everyone: {}}", ["line 1:34", "did you mean", "everyone"]),
    ("partial_models: {a&b: {}}", ["line 1:18", "&"]),
    ("partial_models: {a: {members: [peer9]}}\nsimulation: {peers: 4}", ["line 1:31", "peer9", "not a peer"]),
    pytest.param(
        "partial_models: {a: {depends_on: [b]}, b: {members: [peer1]}}\nsimulation: {peers: 2}",
        ["peer2", "a -> b", "add it"],
        id="C05-without-what-it-depends-on",
    ),
    pytest.param(
        "network: mlp:4+8+2\npartial_models: {a: {neurons: {hidden1: 9}}}",
        ["line 2:41", "hidden1 has 8"],
        id="C05-more-than-there-are",
    ),
    pytest.param(
        "learning: {aggregation: 'trimmed-mean,liars=2', participation: 0.5}\nsimulation: {peers: 12}",
        ["line 1:25", "liars = 2 needs 2 * liars + 3 = 7 updates in a round, and there are 6", "lower liars to 1"],
        id="C09-liars",
    ),
    pytest.param(
        "network: mlp:4+8+2\npartial_models: {a: {neurons: {hidden1: -1}}}",
        ["line 2:41", "hidden1", "0 or more"],
        id="C05-less-than-none",
    ),
    pytest.param(
        "network: mlp:4+8+2\npartial_models: {a: {neurons: {hiden1: 9}}}",
        ["line 2:40", "hiden1", "did you mean"],
        id="C05-no-such-layer",
    ),
    pytest.param(
        "gossip: {topology: 'edges:peer1-peer1+peer1-peer2'}\nsimulation: {peers: 2}",
        ["line 1:20", "peer1-peer1", "itself"],
        id="C07-self-edge",
    ),
    pytest.param(
        "gossip: {topology: 'edges:peer1-peer2+peer2-peer9'}\nsimulation: {peers: 2}",
        ["line 1:20", "peer2-peer9", "does not join two of the peers"],
        id="C07-unknown-peer",
    ),
    pytest.param(
        "gossip: {topology: 'edges:peer1-peer2'}\nsimulation: {peers: 3}",
        ["line 1:20", "no edge reaches peer3"],
        id="C07-peer-alone",
    ),
    pytest.param(
        "partial_models: {all: {}, kin: {neurons: {hidden1: 4}, members: 'alike,after=0'}}",
        ["line 1:65", "partial_models.kin.members", "after = 0", "1 or more"],
        id="alike-out-of-range",
    ),
    pytest.param(
        "partial_models: {all: {}, kin: {neurons: {hidden1: 4}, members: 'alike,aftr=3'}}",
        ["line 1:65", 'no setting "aftr"', 'did you mean "after"?'],
        id="alike-no-such-setting",
    ),
    pytest.param(
        "learning: {rounds: 9}\npartial_models: {all: {}, kin: {neurons: {hidden1: 4}, members: 'alike,after=9'}}",
        ["line 2:65", "after = 9 and there are 9 rounds", "write fewer"],
        id="alike-too-late",
    ),
    pytest.param(
        "gossip: {drift: 0.1}\npartial_models: {all: {}, kin: {neurons: {hidden1: 4}, members: alike}}",
        ["line 2:65", "leave out gossip.drift"],
        id="alike-asleep",
    ),
    pytest.param(
        "partial_models: {kin: {members: alike, neurons: {hidden1: 4}}}",
        ["line 1:33", "add a partial model that everyone implements"],
        id="alike-alone",
    ),
    pytest.param(
        "network: mlp:4+8+2\npartial_models: {all: {}, kin: {members: alike, neurons: {hidden1: 9}}}",
        ["line 2:68", "partial_models.kin.neurons.hidden1", "hidden1 has 8"],
        id="alike-more-than-there-are",
    ),
    ("network: mlp:4+8+2\npartial_models: {a: {modules: [conv1]}}", ["conv1", "no module"]),
    ("network: {python: 'os.system(1)'}", ["line 1:1", "module:function"]),
    ("simulation: {split: [iid, {swop: 3}]}", ["line 1:21", "swop", "swap"]),
    ("simulation: {dataset: {csv: {path: a.csv, lable: b}}}", ["line 1:14", "lable", "label"]),
    ("a: " + "[" * 100, ["nested deeper"]),
]


def check(outcome: Outcome, words: list[str]) -> None:
    assert outcome.code == 2
    for word in words:
        assert word in " ".join(outcome.err.split()), f"{word!r} is not in:\n{outcome.err}"
    assert "Traceback" not in outcome.err + outcome.out
    assert len(outcome.err.splitlines()) <= LINES_OF_A_SCREEN
    assert max(map(len, outcome.err.splitlines())) <= 80
    assert outcome.out == ""
    assert not Path("fedpeer-runs").exists(), "a wrong command leaves nothing behind"


@pytest.mark.parametrize(("options", "words"), OPTIONS, ids=lambda found: " ".join(found)[:40])
def test_options(options: list[str], words: list[str], fedpeer: Fedpeer) -> None:
    check(fedpeer("simulate", "--quiet", *options), words)


@pytest.mark.parametrize(("text", "words"), FILES, ids=lambda found: str(found)[:40])
def test_files(text: str, words: list[str], fedpeer: Fedpeer) -> None:
    Path("federation.yaml").write_text(text)
    check(fedpeer("config", "check", "federation.yaml"), ["federation.yaml", *words])
    check(fedpeer("simulate", "--quiet", "--config", "federation.yaml"), ["federation.yaml", *words])


#: Contents of federation.yaml whose mistakes are found after the networks are built and before a run begins.
WITH_NETWORKS = [
    pytest.param(
        "gossip: {topology: 'edges:peer1-peer2+peer3-peer4'}\nsimulation: {peers: 4}",
        ["in 2 parts: (peer1, peer2); (peer3, peer4)", "add edges"],
        id="C07-not-connected",
    ),
    pytest.param(
        "network: mlp:64+8+10\ngossip: {topology: 'edges:peer1-peer2+peer2-peer3'}\nsimulation: {peers: 3}\n"
        "partial_models: {ward: {members: [peer1, peer3], neurons: {input: all, hidden1: 4}}}",
        ['the averaging group "ward"', "(peer1); (peer3)", "add edges"],
        id="C08",
    ),
]


@pytest.mark.parametrize(("text", "words"), WITH_NETWORKS)
def test_what_the_networks_show(text: str, words: list[str], fedpeer: Fedpeer) -> None:
    Path("federation.yaml").write_text(text)
    check(fedpeer("simulate", "--quiet", "--config", "federation.yaml"), words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulat"], ["simulat", "--help"]),
        (["simulate", "--dataset", "CSV:ward.csv,label=y"], ["--dataset", "CSV", 'did you mean "csv"?']),
        (["topology", "rings"], ["NAME", "rings", 'did you mean "ring"?']),
        (["topology", "ring", "--peers", "x"], ["--peers", '"x"', "whole number"]),
        (["topology", "ring", "--svg", "no/such/folder.svg"], ["--svg", "cannot be written"]),
        (["data", "prepare", "minst"], ["minst", 'did you mean "mnist"?']),
        (["data", "preview", "--split", "dirichlet:0"], ["dirichlet", "0"]),
        (["runs", "show", "last"], ["no runs"]),
        (["runs", "compare", "last"], ["two runs"]),
        (["config", "check"], ["FILE", "--help"]),
        (["slices", "--network", "mlp:4"], ["mlp", "two sizes"]),
        (["slices", "--config", "missing.yaml"], ["missing.yaml", "no such file"]),
    ],
    ids=lambda found: " ".join(found)[:40],
)
def test_other_commands(arguments: list[str], words: list[str], fedpeer: Fedpeer) -> None:
    check(fedpeer(*arguments), words)


def test_mistakes_of_options_and_file_come_together(fedpeer: Fedpeer) -> None:
    Path("federation.yaml").write_text("learning: {rounds: x}\nseed: 1\n")
    outcome = fedpeer("simulate", "--config", "federation.yaml", "--peers", "0", "--workers", "none")
    check(outcome, ["3 problems", "line 1:20", "--peers", "--workers"])


def test_an_option_takes_the_place_of_the_files_value(fedpeer: Fedpeer) -> None:
    Path("federation.yaml").write_text("learning: {rounds: x}\n")
    outcome = fedpeer("simulate", "--config", "federation.yaml", "--rounds", "1", "--seed", "x")
    check(outcome, ["1 problem", "--seed"])
    assert "rounds" not in outcome.err
