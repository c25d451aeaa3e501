"""The contents of a simulation's run folder: rows of measurements, descriptions for the report, the summary."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch

from fedpeer.algorithms.answer_metrics import AnswerMetric, answer_scores, confusion, reliability
from fedpeer.algorithms.coordinated import same_draws
from fedpeer.algorithms.privacy import epsilon
from fedpeer.algorithms.registry import updates_awaited
from fedpeer.config.building import privacy_of
from fedpeer.config.settings import FederationSettings
from fedpeer.data.held import PeerExamples
from fedpeer.data.splits import summary as split_summary
from fedpeer.gossip.averaging import Averaging
from fedpeer.learning.device import device_name
from fedpeer.learning.groups import averaging_of
from fedpeer.learning.models import Card, Model
from fedpeer.runs.disk import RunError, dumps, json_value, write_text
from fedpeer.runs.environment import environment
from fedpeer.runs.folder import RunFolder, file_stem
from fedpeer.runs.summary import NUMBERS_MAX, summarise
from fedpeer.sims.engine import Engine
from fedpeer.sims.footprint import check_disk
from fedpeer.sims.linear_baseline import linear_scores
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.timeline import Timed
from fedpeer.sims.simulation import Simulation
from fedpeer.sims.vector.workspace import Job
from fedpeer.sims.world import World
from fedpeer.slicing.describe import describe_slices, slices_svg
from fedpeer.slicing.flat import trainable_copy
from fedpeer.slicing.plan import Plan
from fedpeer.topology.describe import layout_of_graph

#: Settings of the machine, which may differ when a run is carried on.
_HERE = ("device", "workers", "address")
#: Folder in the run's folder that holds the folders of distributed cells until all of them are finished.
CELLS = "cells"

#: (score, loss) of each peer, from an evaluation.
_Scores = list[tuple[float, float]]


def begin_record(root: Path, simulation: Simulation, command: str, objects: Sequence[str] = ()) -> RunFolder:
    """Make the folder of a run, with its settings (open ones filled in) and its environment.

    Args:
        command: the command line that repeats the run.
        objects: the inputs given as Python objects ("data", "network"); such a run can be repeated from Python only.

    Raises:
        RunError: the disk has too little space, or the folder cannot be made.
    """
    check_disk(simulation, root)
    settings = {**_settings(simulation, objects), "command": command}
    where = environment(simulation.device, device_name(simulation.device))
    return RunFolder.create(root, name=simulation.dataset.name, settings=settings, environment=where)


def continued_record(root: Path, run_id: str, simulation: Simulation, objects: Sequence[str]) -> RunFolder:
    """Return the folder of an interrupted run that is carried on with the same settings.

    Args:
        run_id: its id, the beginning of it, or "last".
        objects: as in `begin_record`.

    Raises:
        RunError: there is no such run, it is finished or running, or its settings differ.
    """
    run = RunFolder.open(root, run_id)
    if run.status in ("finished", "running"):
        raise RunError(f"run {run.id} is {run.status}; only an interrupted or failed run can be carried on")
    stored, now = _dotted(run.read("settings") or {}), _dotted(json_value(_settings(simulation, objects)))
    # A setting by name, such as a partial model's, may be in one of them only.
    compared = [key for key in {**now, **stored} if key not in (*_HERE, "command")]
    changed = [key for key in compared if stored.get(key) != now.get(key)]
    if changed:
        listed = "; ".join(f"{key} is {dumps(now.get(key))} and was {dumps(stored.get(key))}" for key in changed)
        raise RunError(f"run {run.id} was begun with other settings: {listed}")
    return run


def _settings(simulation: Simulation, objects: Sequence[str]) -> dict[str, Any]:
    settings = simulation.resolved.to_json()
    return {**settings.pop("federation"), **settings, "objects": list(objects)}


def _dotted(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return each setting by its dotted path."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _dotted(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return found


def record_row(world: World, engine: Engine, seconds: float, results: _Scores | None) -> dict[str, Any]:
    """Return a line of `metrics.jsonl` without method and seed. Scores are null in rounds that were not evaluated."""
    messages, amount = engine.traffic
    score = "error" if world.dataset.task == "regression" else "accuracy"
    return {
        "round": engine.round,
        "seconds": seconds,
        score: results and [each[0] for each in results],
        "loss": results and [each[1] for each in results],
        **(_evaluated(world, engine, score) if results else {}),
        "messages_sent": messages,
        "bytes_sent": amount,
        "disagreement": engine.disagreement() if results else {},
        "weight": {group: [float(np.min(w)), float(np.max(w))] for group, w in engine.weights.items()},
    }


def _evaluated(world: World, engine: Engine, score: str) -> dict[str, Any]:
    """Return the further entries of an evaluated round: server scores, validation scores, the algorithm's statistics.

    Each is there only if the run has it.

    `tested` is the number of each peer's test examples.
    """
    found: dict[str, Any] = {"tested": [len(share.test_M) for share in world.split.shares]}
    kept_back = world.split.validates
    for prefix, validation in (("", False), *((("validation_", True),) if kept_back else ())):
        server = engine.evaluate_server(validation=validation)
        if server is not None:
            found |= {f"{prefix}server_{score}": [s for s, _ in server], f"{prefix}server_loss": [x for _, x in server]}
        if validation:
            own = engine.evaluate(validation=True)
            found |= {f"validation_{score}": [s for s, _ in own], "validation_loss": [x for _, x in own]}
    statistics = engine.statistics()
    return found | ({"statistics": statistics} if statistics else {})


@dataclass(frozen=True, kw_only=True)
class Answered:
    """How the peers' last models answered on their own test parts.

    values     by metric, one number per peer; None: not defined there
    failed     by metric of the user's own, why it failed
    described  for classes: "confusion" (C, C) and, with metrics, "reliability" (bins, 3) over all peers' examples; else
               empty
    """

    values: dict[str, list[float | None]]
    failed: dict[str, str]
    described: dict[str, Any]


#: Most test examples of all peers together that are answered for the confusion matrix alone: one process answers them,
#: in a tenth of a second with a perceptron and in some seconds with a convolutional network.
ANSWERS_MAX = 20_000


def answers_of(
    world: World, job: Job, engine: Engine, metrics: Mapping[str, AnswerMetric], *, validation: bool = False
) -> Answered:
    """Measure the answers of all peers' models as they are now, on their test or validation parts.

    Args:
        job: its networks are copied on their device: on a GPU the models answer there.
    """
    holdings = world.holdings()
    card = _card(world, holdings)
    # Peers with the same network take turns with one copy: copying takes longer than answering.
    pairs = zip(world.assemblies, job.networks, strict=True)
    copies = {id(assembly): trainable_copy(network.module) for assembly, network in pairs}
    values, failed = {name: list[float | None]() for name in metrics}, dict[str, str]()
    tested = []
    for (peer, holding), x_n in zip(holdings.items(), engine.x_Pn, strict=True):
        x, y = holding.tested(world.dataset, validation=validation)
        if not len(y):  # a peer with one training example holds none out
            for each in values.values():
                each.append(None)
            continue
        own = world.assembly_of(peer)
        answers = Model.of(card, peer, copies[id(own)], own.layout, x_n[: own.layout.n]).answers(x)
        found = answer_scores(metrics, y, answers)
        for name, value in found.values.items():
            values[name].append(value if math.isfinite(value) else None)
        failed |= found.failed
        tested.append((y, answers))
    described = dict[str, Any]()
    if world.dataset.task == "classification" and tested:
        y_N, answer_NC = (np.concatenate(each) for each in zip(*tested, strict=True))
        described["confusion"] = confusion(y_N, answer_NC).tolist()
        if metrics:  # importing scikit-learn and drawing one more figure take a tenth of a short run
            described["reliability"] = reliability(y_N, answer_NC).tolist()
    return Answered(values=values, failed=failed, described=described)


def shows_confusion(world: World) -> bool:
    """Return whether a report has a confusion matrix though no metrics are wanted.

    It has one if there are classes, few enough for numbers in the matrix's cells, and answering costs next to nothing.
    """
    if world.dataset.task != "classification" or world.shape.classes > NUMBERS_MAX:
        return False
    return sum(len(share.test_M) for share in world.split.shares) <= ANSWERS_MAX


def models(world: World, x_n_by_peer: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the parameters of peers by names such as "peer1/hidden1.weight"."""
    found = dict[str, torch.Tensor]()
    for peer, x_n in x_n_by_peer.items():
        layout = world.assembly_of(peer).layout
        found |= {f"{peer}/{name}": value for name, value in layout.unflatten(x_n[: layout.n]).items()}
    return found


def card(world: World) -> dict[str, Any]:
    """Return the description that is needed to use these models."""
    return _card(world, world.holdings()).model_dump(mode="json")


def _card(world: World, holdings: Mapping[str, PeerExamples]) -> Card:
    return Card.of(world, world.dataset, holdings, world.federation.own_networks())


def describe_run(run: RunFolder, simulation: Simulation) -> None:
    """Record what the report draws: the split, and the slices of the first method that slices, or else averages."""
    run.describe("split", split_summary(simulation.dataset, simulation.world.split))
    for method in _drawn_methods(simulation):
        described = describe_slices(simulation.plans[method], simulation.world.networks)
        run.describe("plan", {"method": method, **described.to_json(), "svg": slices_svg(described)})


def describe_graphs(run: RunFolder, simulation: Simulation) -> None:
    """Record the graphs of the same method. Laying them out takes longer than a short round, so runs do it last."""
    for method in _drawn_methods(simulation):
        run.describe("graphs", {"groups": _graphs(simulation.plans[method], simulation)})


def _drawn_methods(simulation: Simulation) -> list[str]:
    """Return the method whose slices and graphs the report draws, if any averages."""
    shared = {method: plan for method, plan in simulation.plans.items() if plan.groups}
    sliced = [method for method, plan in shared.items() if any(len(plan.local[peer]) for peer in plan.peers)]
    return [*sliced, *shared][:1]


def describe_relations(run: RunFolder, engine: Engine, world: World, method: str) -> None:
    """Record the relations between the peers' tasks by method, if it has learnt any; the last seed's are kept."""
    relations_PP = engine.relations_PP
    if relations_PP is not None:
        known = run.read("relations") or {}
        run.describe("relations", known | {method: {"peers": list(world.peers), "matrix": relations_PP.tolist()}})


def describe_answers(run: RunFolder, world: World, method: str, described: Mapping[str, Any]) -> None:
    """Record the confusion matrix and the reliability diagram by method, if there are any; the last seed's are kept."""
    if described:
        described = {"classes": list(world.dataset.classes), **described}
        run.describe("answers", (run.read("answers") or {}) | {method: described})


def describe_timeline(run: RunFolder, engine: Engine, method: str) -> None:
    """Record the peers' timeline in virtual time by method, if faults were requested; the last seed's is kept."""
    if isinstance(engine, Timed) and engine.timeline.faults != Faults():
        run.describe("timeline", (run.read("timeline") or {}) | {method: engine.timeline.to_json()})


def describe_groups(run: RunFolder, method: str, seed: int, world: World, decided: FederationSettings) -> str:
    """Write the groups that clustering found into a file, and return a sentence that names the groups and the file.

    The file has the partial models for a federation file (each written as JSON, which is valid YAML).
    """
    written = world.federation.partial_models
    found = {name: each for name, each in decided.partial_models.items() if name not in written}
    path = run.path / "models" / f"{file_stem(method, seed)}-partial_models.yaml"
    path.parent.mkdir(exist_ok=True)
    lines = [
        f"  {dumps(name)}: {dumps(each.model_dump(mode='json', exclude_defaults=True))}"
        for name, each in decided.partial_models.items()
    ]
    write_text(path, "\n".join(["partial_models:", *lines, ""]))
    groups = [f"{name} of {', '.join(each.members)}" for name, each in found.items()]
    result = f"{method}, seed {seed}: {'; '.join(groups) or 'no groups found'}"
    return f"{result}; as partial models in {path.relative_to(run.path)} of the run's folder"


def _graphs(plan: Plan, simulation: Simulation) -> list[dict[str, Any]]:
    averaging = averaging_of(plan, simulation.request.federation, simulation.world.seed)
    found = []
    for group, policy in averaging.items():
        union = _carrying(policy)
        positions = layout_of_graph(union)
        found.append(
            {
                "group": group,
                "nodes": list(policy.overlay.members),
                "edges": [[int(a), int(b)] for a, b in union.edges],
                "directed": union.is_directed(),
                "positions": [[float(x) for x in positions[node]] for node in sorted(union.nodes)],
                "exchanges": policy.exchanges,
            }
        )
    return found


def _carrying(policy: Averaging) -> nx.Graph:
    """Return the graph along which values of a group travel: a star around the coordinator, if there is one."""
    members = policy.overlay.members
    if policy.coordinator is None:
        return policy.overlay.union
    middle = members.index(policy.coordinator)
    return nx.star_graph([middle, *(other for other in range(len(members)) if other != middle)])


def run_summary(run: RunFolder, simulation: Simulation) -> dict[str, Any]:
    """Return the `--json` object, computed from the run folder."""
    found = {
        "schema": 1,
        "run": run.id,
        "dataset": simulation.dataset.name,
        "peers": len(simulation.world.peers),
        "seeds": list(simulation.request.seeds),
        "methods": summarise(run.rows()),
        "report": str(run.path / "report.html"),
    }
    spent, linear = _privacy(simulation), _linear(simulation)
    found |= ({"privacy": spent} if spent else {}) | ({"linear": linear} if linear else {})
    return dict(json_value(found))  # a peer that diverged has scores that are no numbers: null, as in the file


def _linear(simulation: Simulation) -> dict[str, Any] | None:
    """Return the scores of a linear model of each peer's own, mean over seeds, where the data are a table."""
    found_S = [found for world in simulation.worlds.values() if (found := linear_scores(world)) is not None]
    if not found_S:
        return None
    score_P = np.mean([each.scores for each in found_S], axis=0)
    balanced = [each.balanced for each in found_S if each.balanced is not None]
    model = "ridge regression" if simulation.dataset.task == "regression" else "logistic regression"
    weighted = {"balanced_accuracy": float(np.mean(balanced))} if balanced else {}
    return {"model": model, "mean": float(score_P.mean()), "per_peer": score_P.tolist(), **weighted}


def _privacy(simulation: Simulation) -> dict[str, float | None] | None:
    """Return the privacy budget spent by the peer that was drawn most often, or None without noise on updates.

    With several seeds it is that of the run in which a peer was drawn most often. It does not count on the noise of
    peers without which a round may close.
    """
    learning, peers = simulation.request.federation.learning, len(simulation.world.peers)
    options = privacy_of(learning.privacy)
    if options is None:
        return None
    most = 0
    for world in simulation.worlds.values():
        rounds = range(1, learning.rounds + 1)
        draws = [same_draws(number, peers, learning.participation, world.draws) for number in rounds]
        most = max(most, *Counter(client for clients in draws for client in clients).values())
    awaited = updates_awaited(peers, learning.participation, learning.aggregation_goal)
    # In engines with a clock, a round closes at its deadline with the updates so far, perhaps with this peer's alone.
    certain = awaited if simulation.request.engine in ("vector", "ray") else 1
    noise = options.multiplier(awaited, certain)
    reached = epsilon(rounds=most, noise=noise, delta=options.delta)
    promised = {"epsilon": reached if math.isfinite(reached) else None, "delta": options.delta, "rounds": most}
    return {**promised, "noise": noise}
