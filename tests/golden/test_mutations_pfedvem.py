"""Golden cases 05 and 11 turn red when one function that they call has a wrong sign, order or index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpeer.algorithms.coordinated import weighted_mean
from fedpeer.algorithms.pfedvem import Head, confidence
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.algorithms.servers.pfedvem import PFedVEM, PFedVEMClient, PFedVEMUpdate
from fedpeer.networks.bayesian import inverse_softplus
from tests.golden.adapters_pfedvem import ADAPTERS
from tests.golden.mutating import assert_turned_red, name_of, needs_golden
from tests.reference import metrics
from tests.reference.metrics import Scores, final_and_best, scores
from tests.reference.pfedvem import kl_of_heads, kl_up_to_constants

HERE = "tests.golden.adapters_pfedvem"
SERVER = "fedpeer.algorithms.servers.pfedvem"
VEM, METRICS = "05_pfedvem_confidence_and_aggregation", "11_metrics_s_and_mt"
#: The functions as they were before any mutation.
OVER_CLIENTS, POOLED = metrics.over_clients, metrics.pooled
TRAIN, CLOSE = PFedVEM.train, PFedVEM.close


def rho_squared(head: Head, w_D: Tensor, *terms: Any) -> Tensor:
    return 1 / confidence(head, w_D, *terms)


def of_a_standard_deviation(head: Head, w_D: Tensor, *terms: Any) -> Tensor:
    return confidence(head, w_D, *terms).sqrt()


def terms_exchanged(head: Head, w_D: Tensor, terms: str = "both") -> Tensor:
    other: dict[str, Any] = {"both": "both", "uncertainty": "deviation", "deviation": "uncertainty"}
    return confidence(head, w_D, other[terms])


def means_counted_alike(values_JD: Tensor, weights_J: Tensor) -> Tensor:
    return weighted_mean(values_JD, torch.ones_like(weights_J))


def weights_of_the_next(values_JD: Tensor, weights_J: Tensor) -> Tensor:
    return weighted_mean(values_JD, weights_J.roll(1))


def confidence_after_training(
    self: PFedVEM, client: PFedVEMClient, broadcast: ServerModel, *others: Any
) -> tuple[PFedVEMClient, PFedVEMUpdate]:
    kept, sent = TRAIN(self, client, broadcast, *others)
    return kept, replace(sent, tau=confidence(self.head_of(kept), self.parted(broadcast.model_n)[1]))


def heads_counted_by_examples(self: PFedVEM, server: ServerModel, updates: PFedVEMUpdate) -> ServerModel:
    return CLOSE(self, server, replace(updates, tau=updates.examples))


def exponential(head: Head) -> Tensor:
    return head.pi_D.exp()


def kl_with_the_paper_s_sign(head: Head, w_D: Tensor, tau: Tensor) -> Tensor:
    return -kl_of_heads(head, w_D, tau)


def kl_of_a_variance(head: Head, w_D: Tensor, tau: Tensor) -> Tensor:
    return kl_of_heads(head, w_D, 1 / tau)


def without_the_half(head: Head, w_D: Tensor, tau: Tensor) -> Tensor:
    return kl_up_to_constants(head, w_D, 2 * tau)


def softplus_for_its_inverse(sigma: Tensor) -> Tensor:
    return 2 * sigma - inverse_softplus(sigma)


def models_exchanged(server_right_J: Tensor, own_right_J: Tensor, tested_J: Tensor) -> Scores:
    return scores(own_right_J, server_right_J, tested_J)


def least_of_all_rounds(history_R: Sequence[float]) -> tuple[float, float]:
    return history_R[-1], min(history_R)


def first_round(history_R: Sequence[float]) -> tuple[float, float]:
    return final_and_best(history_R[::-1])


MUTATIONS: list[tuple[str, str, Any]] = [
    (VEM, f"{HERE}.confidence", rho_squared),
    (VEM, f"{HERE}.confidence", of_a_standard_deviation),
    (VEM, f"{HERE}.confidence", terms_exchanged),
    (VEM, f"{HERE}.weighted_mean", means_counted_alike),
    (VEM, f"{HERE}.weighted_mean", weights_of_the_next),
    (VEM, f"{SERVER}.confidence", rho_squared),
    (VEM, f"{SERVER}.PFedVEM.train", confidence_after_training),
    (VEM, f"{SERVER}.PFedVEM.close", heads_counted_by_examples),
    (VEM, "fedpeer.algorithms.pfedvem.Head.sigma_D", property(exponential)),
    (VEM, f"{HERE}.kl_of_heads", kl_with_the_paper_s_sign),
    (VEM, f"{HERE}.kl_of_heads", kl_of_a_variance),
    (VEM, f"{HERE}.kl_up_to_constants", without_the_half),
    (VEM, f"{HERE}.inverse_softplus", softplus_for_its_inverse),
    (METRICS, f"{HERE}.scores", models_exchanged),
    (METRICS, f"{HERE}.final_and_best", least_of_all_rounds),
    (METRICS, f"{HERE}.final_and_best", first_round),
    (METRICS, "tests.reference.metrics.pooled", OVER_CLIENTS),
    (METRICS, "tests.reference.metrics.over_clients", POOLED),
]


@needs_golden
@pytest.mark.parametrize(("stem", "target", "mutant"), MUTATIONS, ids=name_of)
def test_one_mistake_turns_the_case_red(stem: str, target: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_turned_red(stem, target, mutant, monkeypatch)


def test_every_adapter_has_a_mutation() -> None:
    assert {stem for stem, _, _ in MUTATIONS} == set(ADAPTERS)
