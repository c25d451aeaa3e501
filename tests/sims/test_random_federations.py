"""Random federations, without what the rule book refuses, have the same numbers with whole peers as without."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.config.choice import ChoiceError
from fedpeer.config.problems import ConfigError
from fedpeer.config.settings import EngineName
from fedpeer.runs.folder import RunFolder
from fedpeer.sims import api
from fedpeer.slicing.models import SlicingError

ENGINES: tuple[EngineName, ...] = ("vector", "network")
OTHERS = (
    "local", "full-averaging", "dfedavgm", "dfedalt", "noloco", "choco-sgd", "dispfl", "gradient-tracking", "fedavg",
    "pfedvem-gossip", "fedprox", "fedyogi", "scaffold", "fedper", "fedrep", "ifca", "per-fedavg", "pfedme", "ditto",
    "apfl", "fedala", "pfedbayes", "virtual", "pfedvem",
)  # fmt: skip
Draw = Callable[[random.Random], Any]


def one_of(*values: Any) -> Draw:
    return lambda draw: draw.choice(values)


#: By section the chance of each setting, and what it is then.
SETTINGS: dict[str, dict[str, tuple[float, Draw]]] = {
    "learning": {
        "rounds": (1, one_of(2, 3, 4)),
        "steps_between_averaging": (1, one_of(3, 5, "pass")),
        "batch_size": (1, one_of(2, 4, 8)),
        # Without a momentum of gradients that are 0 but for rounding, as Adam has for a bias before a normalisation.
        "optimizer": (1, one_of("sgd,lr=0.1", "sgd,lr=0.02,momentum=0.9")),
        "optimizer_state": (0.2, one_of("reset")),
        "class_weights": (0.3, one_of("balanced", "auto", {"ill": 3})),
        "evaluate_every": (0.2, one_of(2)),
        "evaluate_last": (0.2, one_of(2)),
        "weights": (0.3, one_of("restart", "samples")),
        "buffers": (0.3, one_of("local")),
        "outer": (0.2, one_of("nesterov,lr=0.7,momentum=0.9", "sgd,lr=1.0,momentum=0.5")),
        "start": (0.2, one_of("torch", "uniform:0.3")),
        "common_start": (0.1, one_of(False)),
        "participation": (0.3, one_of(0.5, 0.7)),
        "everyone_trains": (0.3, one_of(True, "evaluated")),
        "aggregation": (0.2, one_of("median", "trimmed-mean:1", "krum:1", "centred-clipping", "geometric-median")),
        "farthest": (0.1, one_of(3.0)),
        "frozen": (0.1, one_of(["*.bias"])),
        "lora": (0.1, one_of({"rank": 2, "targets": ["*"]})),
    },
    "gossip": {
        "exchanges": (0.5, one_of(1, 2, 5)),
        "topology": (0.8, one_of("complete", "ring", "k-regular:2", "exponential", "one-peer-exponential", "el-oracle",
                                 "el-local", "star", "hierarchy", "small-world:2")),
        "protocol": (0.3, one_of("push-pull", "exact", "coordinator")),
        "every": (0.2, one_of(2)),
        "drift": (0.1, one_of(0.02)),
    },
    "simulation": {
        "validation": (0.4, one_of(0.2)),
        "metrics": (0.3, one_of(["auc"], ["log-loss", "f1"])),
        "normalise": (0.2, one_of("none", "minmax")),
    },
}  # fmt: skip
#: Settings of a slice of its own.
OF_SLICE: dict[str, tuple[float, Draw]] = {
    "every": (0.4, one_of(1, 2)),
    "exchanges": (0.4, one_of(1, 3)),
    "topology": (0.3, one_of("complete", "star", "el-local")),
    "protocol": (0.2, one_of("coordinator", "exact")),
}


def drawn(draw: random.Random, settings: dict[str, tuple[float, Draw]]) -> dict[str, Any]:
    return {name: value(draw) for name, (chance, value) in settings.items() if draw.random() < chance}


def drawn_federation(draw: random.Random, table: Path) -> dict[str, Any]:
    """Return random settings, some of which may be refused together."""
    made: dict[str, Any] = {name: drawn(draw, settings) for name, settings in SETTINGS.items()}
    network, neurons = draw.choice(
        [("mlp,hidden=12", {"hidden1": 8}), ("mlp,hidden=12,dropout=0.2", {"hidden1": 8}), ("linear", {}),
         ("mlp,hidden=12+6,activation=relu", {"hidden1": 6, "hidden2": 4})]
    )  # fmt: skip
    split = draw.choice(["blocks:40", "blocks:110", "dirichlet:0.5,least=15"])
    made["simulation"] |= {"peers": draw.choice([3, 4, 5]), "dataset": f"csv:{table},label=label", "split": split}
    if draw.random() < 0.5:
        slices: dict[str, dict[str, Any]] = {"all": {"neurons": {"input": "all", "output": "all", **neurons}}}
        if neurons and draw.random() < 0.5:
            few = dict.fromkeys(neurons, 2)
            slices["some"] = {"depends_on": ["all"], "neurons": few, "members": ["peer1", "peer2"]}
        made["partial_models"] = {
            name: {**each, "gossip": drawn(draw, OF_SLICE)} if draw.random() < 0.5 else each
            for name, each in slices.items()
        }
    return {"seed": draw.randrange(100), "network": network, **made}


def without(settings: dict[str, Any], dotted: str) -> dict[str, Any]:
    """Return the settings without this one, or without the section that is refused as a whole."""
    name, _, rest = dotted.partition(".")
    if rest and isinstance(settings.get(name), dict):
        return {**settings, name: without(settings[name], rest)}
    assert name in settings, f"{dotted} is refused, and is not in {settings}"
    return {key: value for key, value in settings.items() if key != name}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a table of two classes."""
    draws, path = np.random.default_rng(0), tmp_path_factory.mktemp("table") / "ward.csv"
    x = draws.normal(size=(600, 5))
    ill = x @ [1, -1, 0.5, 0, 0] + draws.normal(size=600) > 0.8
    rows = [
        ",".join([*(f"{value:.4f}" for value in row), "ill" if each else "well"])
        for row, each in zip(x, ill, strict=True)
    ]
    path.write_text("\n".join(["a,b,c,d,e,label", *rows]) + "\n")
    return path


def numbers(engine: EngineName, method: str, settings: dict[str, Any], folder: Path) -> dict[str, float] | str:
    """Return losses and disagreements by round and peer or group; or why the method does not go with the rest.

    Raises:
        ConfigError: the rule book refuses the settings.
    """
    try:
        found = api.simulate(
            federation=settings, methods=[method], engine=engine, workers=1, device="cpu", out=folder, progress=False
        )
    except (AlgorithmError, ChoiceError, SlicingError) as refusal:
        return str(refusal)
    measured = dict[str, float]()
    for row in RunFolder(found.folder).rows():
        for name in row:
            if row[name] and name.endswith(("loss", "disagreement")):
                each = row[name] if isinstance(row[name], dict) else dict(enumerate(row[name]))
                measured |= {
                    f"{row['round']} {name} {key}": math.nan if value is None else value for key, value in each.items()
                }
    return measured


def allowed(method: str, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the settings without those that the rule book refuses on an engine."""
    for engine in ENGINES:
        try:
            numbers(engine, method, {**settings, "learning": settings["learning"] | {"rounds": 1}}, folder)
        except ConfigError as refusal:
            for dotted in {problem.dotted for problem in refusal.problems}:
                settings = without(settings, dotted)
            return allowed(method, settings, folder)
    return settings


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(60))
def test_a_random_federation_has_the_same_numbers_everywhere(seed: int, table: Path, tmp_path: Path) -> None:
    draw = random.Random(seed)
    method = draw.choice(["partial-averaging", draw.choice(OTHERS)])
    settings = allowed(method, drawn_federation(draw, table), tmp_path)
    mine, theirs = (numbers(engine, method, settings, tmp_path) for engine in ENGINES)
    assert mine == (theirs if isinstance(theirs, str) else pytest.approx(theirs, rel=1e-3, abs=1e-5, nan_ok=True)), (
        settings
    )
