"""Preparation of a simulation from a request, which finds all of the user's mistakes.

Data are loaded, networks built and traced, plans compiled and graphs drawn before a run folder exists, so that a
mistake leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from fedpeer.algorithms.answer_metrics import BALANCED_ACCURACY, CALIBRATION, example_answers
from fedpeer.algorithms.coordinated import has_server
from fedpeer.algorithms.leaves import byte_count
from fedpeer.config.building import metrics_of
from fedpeer.config.choice import Choice, own_function
from fedpeer.config.methods import method_of
from fedpeer.config.rules import KEYWORDS, Vocabulary
from fedpeer.config.settings import FederationSettings
from fedpeer.data.dataset import Dataset
from fedpeer.data.own.code import loader_with
from fedpeer.learning.class_weights import weighs_classes
from fedpeer.learning.device import device_of
from fedpeer.learning.groups import averaging_of
from fedpeer.learning.holdings import load_dataset
from fedpeer.learning.wire_forms import form_of
from fedpeer.runs.trackers.registry import check_installed
from fedpeer.sims.checks import check_combination, check_engine, combination_of
from fedpeer.sims.memory import job_of, method_job, workspace_of
from fedpeer.sims.network.faults import Faults, faults_from
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.simulation import KeptFiles, Simulation
from fedpeer.sims.vector.clustering_task import clustering_tasks_of
from fedpeer.sims.vector.engine import dry_run
from fedpeer.sims.vector.workspace import Job
from fedpeer.sims.world import World, build_world, plan_of
from fedpeer.slicing.plan import Plan


def prepare_simulation(
    request: SimulationRequest,
    *,
    dataset: Dataset | None = None,
    module: nn.Module | None = None,
    code: Mapping[str, Callable[..., Any]] | None = None,
    words: Vocabulary = KEYWORDS,
) -> Simulation:
    """Load the data, build and trace the networks, compile the plans, and check all of it.

    Args:
        dataset: used instead of the data set that the federation names.
        module: used instead of the network that the federation names.
        code: loss, optimizer and metrics that came as Python objects, by the names that the federation gives them.
        words: how the user's interface names settings.

    Raises:
        ConfigError, DataError, NetworkError, SlicingError, TopologyError, ChoiceError, OptimizerError, AlgorithmError,
        AssignmentError, DeviceError, TrackingError: the user's mistakes, with the place and the way out.
    """
    passed = (("dataset", dataset), ("module", module), ("code", code or None))
    objects = {name: given for name, given in passed if given is not None}
    given = [named for name, named in (("dataset", "data"), ("module", "network")) if name in objects]
    given += code_objects(request.federation, code or {})
    check_engine(request, given, words)
    check_installed([each.name for each in request.federation.simulation.tracking], words.name("simulation.tracking"))
    form_of(request.federation.gossip.wire)
    device = "cpu" if request.engine in ("network", "ray") else device_of(request.device)
    found = dataset or load_dataset(request.federation.simulation.dataset)
    worlds = {seed: build_world(request.federation, found, seed, module, code or {}) for seed in request.seeds}
    first = worlds[request.seeds[0]]
    check_combination(combination_of(replace(request, federation=first.federation), given), words)
    plans = {str(method): plan_of(first, method) for method in request.methods}
    for plan in plans.values():
        averaging_of(plan, request.federation, request.seeds[0])
    faults = faults_from(request.faults, first.peers, first.federation.gossip.tick) if request.faults else Faults()
    jobs = {seed: job_of(world, device) for seed, world in worlds.items()}
    whole_peers, job = request.engine in ("network", "processes"), jobs[request.seeds[0]]
    kept = {
        str(method): _try_method(first, job, method, plans[str(method)], whole_peers=whole_peers)
        for method in request.methods
    }
    example = example_answers(found.task, found.y, len(found.classes))
    return Simulation(
        request=request,
        dataset=found,
        objects=objects,
        worlds=worlds,
        jobs=jobs,
        plans=plans,
        kept=kept,
        device=device,
        faults=faults,
        metrics={
            str(method): metrics_of(_wanted_metrics(first, method), found.task, loader_with(code or {}), example)
            for method in request.methods
        },
    )


def _try_method(world: World, job: Job, method: Choice, plan: Plan, *, whole_peers: bool) -> KeptFiles:
    """Try a method, so that mistakes are found before a run starts; return the size of a peer's states."""
    pairs = zip(job.networks, world.assemblies, strict=True)
    on_cpu = tuple(replace(network, module=assembly.module) for network, assembly in pairs)
    dry_job = replace(method_job(job, world, method, plan), device="cpu", networks=on_cpu)
    drawn = [assembly.drawn for assembly in world.assemblies]
    algorithm, forms = dry_run(dry_job, workspace_of(world, plan, "cpu")(), drawn, plan, whole_peers=whole_peers)
    clustering_tasks_of(world, method)
    if (linear := method_of(method).linear) is not None:
        from fedpeer.sims.vector.pooled_linear import PooledLinearEngine  # it compiles for half a second

        PooledLinearEngine(job, workspace_of(world, plan, job.device)(), world.drawn(""), *linear)
    own = byte_count(forms.client)
    if has_server(algorithm):
        return KeptFiles(own, byte_count(forms.sent), algorithm.everyone_trains, has_server=True)
    return KeptFiles(own)


def code_objects(federation: FederationSettings, code: Mapping[str, object]) -> list[str]:
    """Return which of "loss", "optimizer" and "metrics" came as Python objects."""
    learning, metrics = federation.learning, federation.simulation.metrics
    chosen = {"loss": (learning.loss,), "optimizer": (learning.optimizer,), "metrics": metrics}
    return [
        name
        for name, choices in chosen.items()
        if any(each is not None and each.name == "python" and own_function(each)[0] in code for each in choices)
    ]


def _wanted_metrics(world: World, method: Choice) -> list[Choice]:
    """Return the metrics of the settings, and those for weights of classes and for a Bayesian algorithm."""
    wanted = list(world.federation.simulation.metrics)
    always = [BALANCED_ACCURACY] if weighs_classes(world.federation.learning, world.criterion) else []
    always += CALIBRATION if method_of(method).bayesian and world.dataset.task == "classification" else ()
    return [*wanted, *(Choice(name) for name in always if name not in {each.name for each in wanted})]


class LastDataset:
    """Loader of data sets that keeps the last one, for consecutive runs on the same data."""

    def __init__(self) -> None:
        self._held: tuple[Choice, Dataset] | None = None

    def __call__(self, choice: Choice) -> Dataset:
        if self._held is None or self._held[0] != choice:
            self._held = choice, load_dataset(choice)
        return self._held[1]
