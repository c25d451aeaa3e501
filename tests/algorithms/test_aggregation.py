"""Robust aggregation by choice: the results and refusals of a choice, and FedAvg, which learns with it among liars."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from statistics import NormalDist, median
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fedpeer.algorithms import robust
from fedpeer.algorithms.aggregation import AGGREGATIONS, Aggregation
from fedpeer.algorithms.batches import Batches, round_order
from fedpeer.algorithms.byzantine import RobustError
from fedpeer.algorithms.coordinated import AlgorithmError, weighted_mean
from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.leaves import leaves_of, rebuilt
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.private import Private
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import Local
from fedpeer.algorithms.servers.pfedbayes import PFedBayes
from fedpeer.algorithms.servers.scaffold import Scaffold
from fedpeer.algorithms.servers.virtual import Virtual
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.config.building import Coordinated, aggregation_of, coordinated_of
from fedpeer.config.choice import ChoiceError, parse_choice
from fedpeer.config.settings import LearningSettings
from tests.algorithms.client_factory import batches, mlp
from tests.algorithms.server_factory import bench_of

ROBUST = (
    "median,liars=2",
    "trimmed-mean,liars=2",
    "krum,liars=2",
    "multi-krum,liars=2",
    "centred-clipping,liars=2",
    "geometric-median,liars=2",
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def chosen(text: str) -> Aggregation:
    return aggregation_of(parse_choice(text))


VALUES_KD, WEIGHTS_K = normal(9, 5), torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8, 90])


def clipped_from_the_median(steps: int) -> Tensor:
    start_D = robust.coordinate_median(VALUES_KD)
    radius = median(float((row_D - start_D).norm()) for row_D in VALUES_KD.double())
    return robust.clip_centred(VALUES_KD, start_D, radius=radius, steps=steps)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("mean", lambda: weighted_mean(VALUES_KD, WEIGHTS_K)),
        ("median", lambda: robust.coordinate_median(VALUES_KD)),
        ("trimmed-mean,liars=2", lambda: robust.mean_trimmed(VALUES_KD, trim=2)),
        ("krum:3", lambda: robust.select_krum(VALUES_KD, liars=3)),
        ("multi-krum:2", lambda: robust.mean_of_krum(VALUES_KD, liars=2, kept=5)),
        ("multi-krum:2,kept=3", lambda: robust.mean_of_krum(VALUES_KD, liars=2, kept=3)),
        ("multi-krum:2,kept=30", lambda: robust.mean_of_krum(VALUES_KD, liars=2, kept=5)),
        ("centred-clipping:2", lambda: clipped_from_the_median(3)),
        (
            "centred-clipping,radius=0.5,steps=1",
            lambda: robust.clip_centred(VALUES_KD, robust.coordinate_median(VALUES_KD), radius=0.5),
        ),
        ("geometric-median", lambda: robust.weiszfeld_median(VALUES_KD)),
        ("geometric-median,weighted=true", lambda: robust.weiszfeld_median(VALUES_KD, WEIGHTS_K)),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_choice_is_its_rule(text: str, wanted: Callable[[], Tensor]) -> None:
    rule = chosen(text)
    found_D = rule(VALUES_KD, WEIGHTS_K)
    assert found_D.dtype == VALUES_KD.dtype
    torch.testing.assert_close(found_D, wanted().float(), rtol=0, atol=1e-7)
    assert torch.equal(pickle.loads(pickle.dumps(rule))(VALUES_KD, WEIGHTS_K), found_D), "workers are sent it"
    alone_D = rule(VALUES_KD[:1], WEIGHTS_K[:1])
    assert torch.equal(alone_D, VALUES_KD[0]), "one update is all that there is to say"


@pytest.mark.parametrize("text", ROBUST)
def test_a_weight_that_a_liar_claims_moves_nothing(text: str) -> None:
    rule = chosen(text)
    claims_K = WEIGHTS_K.clone()
    claims_K[0] = 1e9
    assert torch.equal(rule(VALUES_KD, claims_K), rule(VALUES_KD, WEIGHTS_K))


@pytest.mark.parametrize("text", ROBUST)
def test_what_is_not_finite_is_left_out_and_counted_as_a_liar(text: str) -> None:
    rule, broken_KD = chosen(text), VALUES_KD.clone()
    broken_KD[2, 1], broken_KD[5, 0] = torch.nan, torch.inf
    left = [0, 1, 3, 4, 6, 7, 8]
    one_less = replace(rule, liars=0)
    assert torch.equal(rule(broken_KD, WEIGHTS_K), one_less(VALUES_KD[left], WEIGHTS_K[left]))


@pytest.mark.parametrize("text", ROBUST)
@pytest.mark.parametrize("came", [2, 4, 6])
def test_where_too_few_came_the_median_stands_what_can_be_stood(text: str, came: int) -> None:
    left_KD = VALUES_KD[:came]
    found_D = chosen(text)(left_KD, WEIGHTS_K[:came])
    assert torch.equal(found_D, robust.coordinate_median(left_KD).float())


def test_equal_updates_are_their_own_mean() -> None:
    same_KD = VALUES_KD[:1].expand(9, 5)
    for text in ("mean", *ROBUST):
        torch.testing.assert_close(chosen(text)(same_KD, WEIGHTS_K), VALUES_KD[0], rtol=1e-7, atol=0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("krumm,liars=2", 'did you mean "krum"'),
        ("krum", "needs liars"),
        ("krum,liars=-1", "krum: liars = -1: write 0 or more"),
        ("mean,liars=1", 'has no setting "liars"'),
        ("multi-krum,liars=1,kept=0", "kept = 0: write 1 or more"),
        ("centred-clipping,radius=0", "radius = 0: write a length above 0"),
        ("centred-clipping,steps=0", "steps = 0: write 1 or more"),
        ("trimmed-mean,liars=half", "write a whole number"),
    ],
)
def test_settings_out_of_range_are_the_users_mistake(text: str, words: str) -> None:
    with pytest.raises((ChoiceError, RobustError), match=words):
        chosen(text)


@pytest.mark.parametrize("text", ROBUST)
def test_two_of_six_could_win(text: str) -> None:
    chosen(text).check(7)
    with pytest.raises(
        RobustError, match=r"liars \+ 3 = 7 updates .* there are 6; lower liars to 1, or let more peers"
    ):
        chosen(text).check(6)


def test_without_liars_there_is_nothing_to_check() -> None:
    for text in ("mean", "median", "geometric-median", "trimmed-mean,liars=0"):
        chosen(text).check(1)


def test_names_and_settings_are_read_without_torch() -> None:
    code = "import sys, fedpeer.algorithms.aggregation as a; a.krum(liars=2); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_choice_is_here() -> None:
    assert [text.partition(",")[0] for text in ("mean", *ROBUST)] == list(AGGREGATIONS)


@cache
def context() -> TrainingContext:
    return TrainingContext.of(
        mlp(), LOSSES["cross-entropy"], OptimizerChoice("SGD", {"lr": 0.1}), way="stack", clients=9
    )


def of_a_federation(algorithm: str, clients: TrainingContext, **learning: str | float) -> Coordinated:
    def load(name: str) -> Callable[..., object]:
        raise AssertionError(f"{name} is nobody's own")

    return coordinated_of(parse_choice(algorithm), LearningSettings.model_validate(learning), clients, load)


def test_a_federation_gets_the_rule_that_it_asks_for() -> None:
    found = of_a_federation("fedavg", context(), aggregation="krum:3")
    assert isinstance(found, FedAvg)
    assert found.context.mean == chosen("krum:3")
    private = of_a_federation("fedprox", context(), privacy="gaussian,noise=2", participation=0.5)
    assert isinstance(private, Private)
    assert (private.privacy.noise, private.participants_count) == (2, 5)
    with pytest.raises(RobustError, match=r"needs 2 \* liars \+ 3 = 9 updates in a round, and there are 5"):
        of_a_federation("fedavg", context(), aggregation="krum:3", participation=0.5)


def test_an_algorithm_without_a_mean_is_not_said_to_stand_liars() -> None:
    linear = TrainingContext.of(
        nn.Linear(4, 1), LOSSES["binary"], OptimizerChoice("SGD", {"lr": 0.1}), way="loop", clients=9
    )
    assert of_a_federation("mocha", linear)
    with pytest.raises(AlgorithmError, match="mocha does not average updates"):
        of_a_federation("mocha", linear, aggregation="median")


# FedAvg on the digits: all clients have the same distribution, and 2 of 11 clients lie (reliability, P16).

PEERS, LIARS, ROUNDS, STEPS, BATCH = 11, 2, 12, 12, 10
LAYERS = (64, 10)


def sign_flip(honest_KD: Tensor, start_D: Tensor) -> Tensor:
    """Return a model moved by ten times the honest clients' mean change, in the opposite direction."""
    return start_D - 10 * (honest_KD.mean(0) - start_D)


def constant(honest_KD: Tensor, start_D: Tensor) -> Tensor:
    return torch.full_like(start_D, 1e6)


def not_a_number(honest_KD: Tensor, start_D: Tensor) -> Tensor:
    return torch.full_like(start_D, torch.nan)


def a_little_is_enough(honest_KD: Tensor, start_D: Tensor) -> Tensor:
    """Return an update as far from the mean as enough honest ones (Baruch, Baruch, Goldberg 2019, algorithm 3)."""
    supporters = PEERS // 2 + 1 - LIARS
    z_max = NormalDist().inv_cdf((PEERS - LIARS - supporters) / (PEERS - LIARS))
    return honest_KD.mean(0) - z_max * honest_KD.std(0)


Attack = Callable[[Tensor, Tensor], Tensor]
ATTACKS: list[Attack] = [sign_flip, constant, not_a_number, a_little_is_enough]


@cache
def digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    return torch.from_numpy(found.data / 16).float(), torch.from_numpy(found.target)


@cache
def learnt(text: str, attack: Attack | None, seed: int) -> float:
    """Return the accuracy in [0, 1] on the 360 test examples after all rounds."""
    x_NF, y_N = digits()
    draws = Draws(seed)
    shuffled_N = torch.from_numpy(draws.numpy("split").permutation(len(y_N)))
    train, test_M = shuffled_N[360:].tensor_split(PEERS), shuffled_N[:360]
    module = nn.Sequential(nn.Linear(*LAYERS))
    own = TrainingContext.of(module, LOSSES["cross-entropy"], OptimizerChoice("SGD", {"lr": 0.3}), way="stack")
    algorithm = FedAvg(replace(own, mean=chosen(text)))
    x_n = torch.zeros(own.layout.n)
    server = algorithm.start_server(x_n)
    shards = [np.asarray(train[peer]) for peer in range(PEERS)]
    examples_B = torch.tensor([len(shard) for shard in shards])
    clients = algorithm.start_client(x_n.expand(PEERS, -1), examples_B)
    for round in range(1, ROUNDS + 1):
        orders = [round_order(len(shard), round, STEPS, BATCH, draws, str(p)) for p, shard in enumerate(shards)]
        index = torch.from_numpy(np.stack([shard[order] for shard, order in zip(shards, orders, strict=True)]))
        block = Batches(x_NF, index, y_N[index])
        clients, updates = algorithm.train(clients, algorithm.open(server, round), block, range(PEERS))
        if attack is not None:
            lie_n = attack(updates.model_n[LIARS:], server.model_n)
            said_Kn = torch.cat((lie_n.expand(LIARS, -1), updates.model_n[LIARS:]))
            updates = Local(said_Kn, updates.examples)
        server = algorithm.close(server, updates)
    guess_M = own.stepper.logits(server.model_n[None], x_NF[test_M][None])[0].argmax(-1)
    return float((guess_M == y_N[test_M]).double().mean())


def lost(text: str, attack: Attack | None, seeds: range) -> float:
    """Return the accuracy of FedAvg with the plain mean and without liars minus the rule's, averaged over seeds."""
    return sum(learnt("mean", None, seed) - learnt(text, attack, seed) for seed in seeds) / len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("text", ROBUST)
def test_two_liars_cost_less_than_two_points(text: str) -> None:
    assert max(lost(text, attack, range(1)) for attack in ATTACKS) < 0.02


@pytest.mark.soak
@pytest.mark.parametrize("text", ROBUST)
def test_two_liars_cost_less_than_two_points_over_ten_seeds(text: str) -> None:
    assert max(lost(text, attack, range(10)) for attack in (None, *ATTACKS)) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("attack", [sign_flip, constant, not_a_number])
@pytest.mark.parametrize("text", ["mean", "trimmed-mean,liars=0"])
def test_who_expects_no_liars_learns_nothing(text: str, attack: Attack) -> None:
    """Rows that are not finite are the exception: every rule except the plain mean leaves them out."""
    if attack is not_a_number and text != "mean":
        assert lost(text, attack, range(2)) < 0.02
    else:
        assert lost(text, attack, range(2)) > 0.2


@pytest.mark.parametrize("kind", [Virtual, PFedBayes, Scaffold])
def test_krum_takes_all_of_one_update(kind: Callable[..., Any]) -> None:
    """Leaf by leaf it would take the first of client 0 and the second of client 1; together client 2 is the best."""
    context = replace(bench_of("stack"), mean=aggregation_of(parse_choice("krum,liars=1")))
    algorithm, x_n = kind(context), bench_of("stack").draw("")
    server = algorithm.start_server(x_n)
    clients = algorithm.start_client(x_n.expand(5, -1), torch.arange(1, 6))
    _, sent = algorithm.train(clients, algorithm.open(server, 1), batches(peers=5), tuple(range(5)))
    names = [name for name in leaves_of(sent) if name != "examples"]
    levels = torch.tensor([[8.0, 9, 4, 1, 7], [8, 7, 4, 6, 1]])
    told = {name: level[:, None].expand(5, len(x_n)) for name, level in zip(names, levels, strict=True)}
    after = algorithm.close(server, rebuilt(sent, {**leaves_of(sent), **told}))
    if kind is Virtual:
        taken = after.posterior / server.posterior
        found = [taken.chi_D, taken.xi_D]
    elif kind is PFedBayes:
        found = [after.mu_n, after.sigma_n]
    else:
        found = [after.model_n - server.model_n, after.control_n]
    for values_n in found:
        torch.testing.assert_close(values_n, torch.full_like(x_n, 4.0), rtol=1e-4, atol=1e-4)
