"""The case of the server baselines turns red when one function that its adapter calls has a wrong sign or weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import weighted_mean
from fedpeer.algorithms.correction import Correction
from fedpeer.algorithms.local_training import fresh_steps
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local, ServerModel
from fedpeer.algorithms.servers.scaffold import ControlledModel, Scaffold, ScaffoldUpdate
from fedpeer.algorithms.steppers import Stepper
from tests.golden.adapters_servers import ADAPTERS
from tests.golden.mutating import assert_turned_red, name_of, needs_golden
from tests.reference.updates import in_peer_order

SERVERS = "fedpeer.algorithms.servers"
STEM = "08_fedavg_fedprox_scaffold_quadratic"
#: The functions as they were before any mutation.
TRAIN, CLOSE, FEDAVG_CLOSE = Scaffold.train, Scaffold.close, FedAvg.close


def all_clients_alike(self: FedAvg, server: ServerModel, updates: Local) -> ServerModel:
    return FEDAVG_CLOSE(self, server, replace(updates, examples=torch.ones_like(updates.examples)))


def last_client_first(self: FedAvg, server: ServerModel, updates: Local) -> ServerModel:
    return FEDAVG_CLOSE(self, server, replace(updates, examples=updates.examples.flip(0)))


def away_from(anchor_n: Tensor, strength: float) -> Correction:
    return Correction(strength * anchor_n, -strength)


def twice_the_pull(anchor_n: Tensor, strength: float) -> Correction:
    """Apply the penalty without its half."""
    return Correction(-2 * strength * anchor_n, 2 * strength)


def drift_negated(
    stepper: Stepper, start_n: Tensor, batches: Batches, keys: Sequence[int], drift: Correction
) -> Tensor:
    return fresh_steps(stepper, start_n, batches, keys, replace(drift, shift_n=-drift.shift_n))


def control_over_the_sampled(self: Scaffold, server: ControlledModel, updates: ScaffoldUpdate) -> ControlledModel:
    """Move the server's control variate by the mean over the participants, and not by |S| / N of it."""
    return CLOSE(replace(self, context=replace(self.context, clients=len(updates.model_n))), server, updates)


def weighted_like_fedavg(self: Scaffold, server: ControlledModel, updates: ScaffoldUpdate) -> ControlledModel:
    def mean(values_KD: Tensor, alike_K: Tensor) -> Tensor:
        return weighted_mean(values_KD, torch.arange(1.0, 1.0 + len(values_KD)))

    return CLOSE(replace(self, context=replace(self.context, mean=mean)), server, updates)


def without_the_servers_control(
    self: Scaffold, client: ControlledModel, *arguments: Any
) -> tuple[ControlledModel, ScaffoldUpdate]:
    """Do not subtract the server's control variate from the client's."""
    kept, sent = TRAIN(self, client, *arguments)
    server: ControlledModel = arguments[0]
    return replace(kept, control_n=kept.control_n + server.control_n), sent


def first_alone(updates: Mapping[str, Any]) -> Any:
    return in_peer_order({"": updates[min(updates)]})


#: Part of the case that is played, function, and mutant.
MUTATIONS: list[tuple[str, str, Callable[..., Any]]] = [
    ("fedavg", f"{SERVERS}.fedavg.FedAvg.close", all_clients_alike),
    ("fedavg", f"{SERVERS}.fedavg.FedAvg.close", last_client_first),
    ("fedprox", "fedpeer.algorithms.correction.Correction.towards", away_from),
    ("fedprox", "fedpeer.algorithms.correction.Correction.towards", twice_the_pull),
    ("scaffold", f"{SERVERS}.scaffold.fresh_steps", drift_negated),
    ("scaffold", f"{SERVERS}.scaffold.Scaffold.close", weighted_like_fedavg),
    ("scaffold", f"{SERVERS}.scaffold.Scaffold.close", control_over_the_sampled),
    ("scaffold", f"{SERVERS}.scaffold.Scaffold.train", without_the_servers_control),
    ("fedavg", "tests.golden.adapters_servers.in_peer_order", first_alone),
]


@needs_golden
@pytest.mark.parametrize(("part", "target", "mutant"), MUTATIONS, ids=name_of)
def test_one_mistake_turns_the_case_red(
    part: str, target: str, mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_turned_red(STEM, target, mutant, monkeypatch, part)


def test_every_adapter_has_a_mutation() -> None:
    assert set(ADAPTERS) == {STEM}
