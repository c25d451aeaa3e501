"""Algorithms with a server in the vector engine: obvious loops, workers, deaths, stops, a user's own algorithm."""

from __future__ import annotations

import copy
import math
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from torch import Tensor, nn

from fedpeer.algorithms.batches import round_order
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.leaves import leaves_of
from fedpeer.algorithms.privacy import epsilon
from fedpeer.algorithms.servers.models import Local
from fedpeer.cli.results import private
from fedpeer.config.settings import EngineName
from fedpeer.sims import api
from fedpeer.sims.vector.pool import Stopped
from fedpeer.sims.vector.server_rounds import _faults
from fedpeer.sims.vector.workspace import other
from fedpeer.sims.world import World
from tests.sims.worlds import engine, federation, relative, same_bits, world

PARITY = 1e-5


def played(made: World, algorithm: str, rounds: int = 3, **settings: Any) -> tuple[Tensor, Tensor | None]:
    """Run some rounds; return the clients' own models and the server's."""
    with engine(made, algorithm, **settings) as running:
        for _ in range(rounds):
            running.step()
        return running.x_Pn.clone(), running.server_n


def steps_of(made: World, peer: int, round: int, start_n: Tensor, shift_n: Tensor | None = None) -> Tensor:
    """Return a client's model after plain gradient steps, written as an obvious loop."""
    learning, module = made.federation.learning, copy.deepcopy(made.module).train()
    assert isinstance(learning.steps_between_averaging, int)
    x = torch.from_numpy(np.asarray(made.split.inputs(made.dataset, peer)))
    y = torch.from_numpy(np.asarray(made.split.labels(made.dataset, peer)))
    x_n = start_n.clone()
    steps, size = learning.steps_between_averaging, learning.batch_size
    for batch in round_order(len(x), round, steps, size, made.draws, made.peers[peer]):
        with torch.no_grad():
            for name, value in made.layout.unflatten(x_n).items():
                dict(module.named_parameters())[name].copy_(value)
        module.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(module(x[batch]), y[batch]))
        gradient_n = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
        x_n = x_n - 0.1 * (gradient_n if shift_n is None else gradient_n + shift_n)
    return x_n


def drawn(made: World, round: int) -> list[int]:
    """Return the participants as the engine draws them; peers are numbered in the order of their ids."""
    share, peers = made.federation.learning.participation, len(made.peers)
    order = sorted(range(peers), key=lambda peer: made.peers[peer])
    numbers = made.draws.numpy("participants", round=round).choice(peers, round_half_up(share * peers), replace=False)
    return sorted(order[number] for number in numbers)


def round_half_up(number: float) -> int:
    return int(number + 0.5)


def by_samples(made: World, peers: list[int], models: dict[int, Tensor]) -> Tensor:
    counts = {peer: len(made.split.shares[peer].train_M) for peer in peers}
    mean_n: Tensor = sum(models[p].double() * counts[p] for p in peers) / sum(counts.values())  # type: ignore[assignment]
    return mean_n.float()


@pytest.mark.parametrize("batch_size", [1, 5])
def test_fedavg_with_half_of_the_peers_is_what_an_obvious_loop_computes(batch_size: int) -> None:
    options = federation(
        learning__participation=0.5,
        learning__batch_size=batch_size,
        simulation__split="slicing:10",
        simulation__peers=4,
    )
    made = world(options)
    server_n = made.drawn("")
    own = dict.fromkeys(range(4), server_n)
    for number in (1, 2, 3):
        some = drawn(made, number)
        assert len(some) == 2
        own |= {peer: steps_of(made, peer, number, server_n) for peer in some}
        server_n = by_samples(made, some, own)
    x_Pn, found_n = played(made, "fedavg")
    assert found_n is not None
    assert relative(found_n[None], server_n[None]) < PARITY
    assert relative(x_Pn, torch.stack([own[peer] for peer in range(4)])) < PARITY


def test_scaffold_keeps_the_mean_of_all_control_variates() -> None:
    """The control variates are computed by hand; clients that do not participate keep theirs."""
    made = world(federation(learning__participation=0.5, simulation__peers=4))
    server_n, c_n = made.drawn(""), torch.zeros(made.layout.n)
    own = {peer: torch.zeros(made.layout.n) for peer in range(4)}
    for number in (1, 2, 3):
        some, changes = drawn(made, number), []
        for peer in some:
            end_n = steps_of(made, peer, number, server_n, c_n - own[peer])
            new_n = own[peer] - c_n - (end_n - server_n) / (8 * 0.1)
            changes.append((end_n - server_n, new_n - own[peer]))
            own[peer] = new_n
        server_n = server_n + torch.stack([x for x, _ in changes]).mean(0)
        c_n = c_n + torch.stack([c for _, c in changes]).sum(0) / 4
    _, found_n = played(made, "scaffold")
    assert found_n is not None
    assert relative(found_n[None], server_n[None]) < PARITY


def test_who_only_trains_along_does_not_move_the_server() -> None:
    settings = {"learning__participation": 0.5, "simulation__peers": 4}
    quiet, along = (world(federation(learning__everyone_trains=each, **settings)) for each in (False, True))
    for algorithm in ("fedavg", "fedper", "scaffold"):
        (own, server), (own_along, server_along) = (played(made, algorithm, rounds=1) for made in (quiet, along))
        assert server is None or server_along is None or same_bits(server[None], server_along[None])
        idle = [peer for peer in range(4) if peer not in drawn(quiet, 1)]
        assert bool((own[idle] == quiet.drawn("")).all())
        assert all(not torch.equal(own_along[peer], quiet.drawn("")) for peer in range(4))


def test_what_is_kept_in_step_with_the_server_stays_where_an_update_was_none() -> None:
    """A client that only trains along keeps its SCAFFOLD control variate, so that later rounds are the same."""
    settings = {"learning__participation": 0.5, "simulation__peers": 4}
    quiet, along = (world(federation(learning__everyone_trains=each, **settings)) for each in (False, True))
    (_, server_n), (_, same_n) = (played(made, "scaffold", rounds=4) for made in (quiet, along))
    assert server_n is not None
    assert same_n is not None
    assert same_bits(server_n[None], same_n[None])


@pytest.mark.parametrize(
    "algorithm",
    ["scaffold", "ifca", "fedper", *(pytest.param(each, marks=pytest.mark.soak) for each in ("fedavg", "pfedme"))],
)
def test_training_along_where_it_is_looked_at_is_enough_for_clients_that_keep_nothing(algorithm: str) -> None:
    """The models of such clients begin with the server's model of the round.

    FedPer's heads do not, and show that it matters.
    """
    settings = {"learning__participation": 0.5, "learning__rounds": 3, "learning__evaluate_every": 2}
    settings |= {"simulation__peers": 4, "learning__steps_between_averaging": 4}
    looked_at, always = (world(federation(learning__everyone_trains=each, **settings)) for each in ("evaluated", True))
    with engine(looked_at, algorithm) as one, engine(always, algorithm) as other:
        for number in (1, 2, 3):
            for each in (one, other):
                each.step()
            same = same_bits(one.x_Pn, other.x_Pn)
            assert same is (algorithm != "fedper" and number > 1), "nobody looks after the first round"
            if one.server_n is not None and other.server_n is not None:
                assert same_bits(one.server_n[None], other.server_n[None])


#: The first four keep all kinds of states: a client's control variate, head or model, and a server's several models.
ALGORITHMS = [
    *("scaffold", "fedrep", "ditto", "ifca"),
    *(
        pytest.param(each, marks=pytest.mark.soak)
        for each in ("fedavg", "fedper", "pfedme", "per-fedavg", "fedyogi", "apfl", "fedala")
    ),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_neither_workers_nor_stops_change_a_bit(algorithm: str) -> None:
    made = world(federation(learning__participation=0.5))
    one, _ = played(made, algorithm)
    two, _ = played(made, algorithm, workers=2)
    assert same_bits(one, two)
    with engine(made, algorithm) as running:
        running.step()
        tensors, state = running.snapshot()
        kept, sent = {name: value.clone() for name, value in tensors.items()}, running.traffic
    with engine(made, algorithm) as resumed:
        resumed.restore(kept, state)
        assert resumed.traffic == sent
        for _ in range(2):
            resumed.step()
        assert same_bits(one, resumed.x_Pn)


def test_a_stopped_round_does_not_reach_into_what_is_saved() -> None:
    """Workers go on writing the other side of their clients' states while a checkpoint is taken."""
    with engine(world(federation(learning__participation=0.5)), "fedper") as running:
        running.step()
        tensors, _ = running.snapshot()
        kept = {name: value.clone() for name, value in tensors.items()}
        states = running._session.states
        for peer, side in enumerate(running._session.sides):
            for leaf in leaves_of(states.clients[other(side)]).values():
                leaf[peer] = 7
        assert all(torch.equal(kept[name], value) for name, value in tensors.items())


def test_a_dead_worker_is_replaced_and_the_result_is_the_same() -> None:
    made, said = world(federation(learning__participation=0.5)), list[tuple[str, str]]()
    whole, _ = played(made, "scaffold")
    with engine(made, "scaffold", workers=2, replaced=lambda *each: said.append(each)) as running:
        for _ in range(3):
            os.kill(running.process_ids[0], signal.SIGKILL)
            running.step()
        assert same_bits(whole, running.x_Pn)
    assert said


def test_a_stop_leaves_the_state_before_the_round() -> None:
    made, stop = world(federation()), threading.Event()
    with engine(made, "fedavg", stop=stop) as running:
        running.step()
        before = running.x_Pn.clone()
        stop.set()
        with pytest.raises(Stopped):
            running.step()
        assert running.round == 1
        assert same_bits(before, running.x_Pn)


def test_a_message_of_a_round_is_a_model_down_and_an_update_up() -> None:
    made = world(federation(learning__participation=0.5))
    n = made.layout.n
    with engine(made, "fedavg") as running:
        assert running.traffic == ([0] * 6, [0] * 6)
        running.step()
        messages, amount = running.traffic
    some = [peer for peer in drawn(made, 1) if peer != 0]
    assert messages == [5 if peer == 0 else int(peer in some) for peer in range(6)]
    assert amount[0] - 5 * 4 * n == pytest.approx(5 * 64, abs=5 * 64)
    assert all(4 * n < amount[peer] < 4 * n + 256 for peer in some)


def test_best_is_chosen_on_what_was_kept_back(tmp_path: Path) -> None:
    settings = federation(simulation__validation=0.2, learning__participation=0.5).model_dump(mode="json")
    found = api.simulate(federation=settings, methods=("local", "fedavg"), seeds=(0, 1), out=tmp_path)
    scores = found.summary["methods"]["fedavg"]["scores"]
    assert set(scores) == {"PM", "MT", "GM", "S"}
    assert set(found.summary["methods"]["local"]["scores"]) == {"PM", "MT"}
    assert {each["best_by"] for each in scores.values()} == {"validation"}
    assert all(0 <= each[key] <= 1 for each in scores.values() for key in ("final", "best"))


def test_examples_that_are_kept_back_train_nobody() -> None:
    made = world(federation(simulation__validation=0.25))
    for number, share in enumerate(made.split.shares):
        assert len(share.valid_M) == 10
        assert len(share.train_M) == 30
        assert not set(share.valid_M) & set(share.train_M)
        held = made.held(number)
        assert np.array_equal(held.valid_y, made.split.labels_of(made.dataset, number, share.valid_M))
    alone = world(federation())
    assert all(
        set(cut.train_M) | set(cut.valid_M) == set(whole.train_M)
        for cut, whole in zip(made.split.shares, alone.split.shares, strict=True)
    )


OWN = '''
from dataclasses import KW_ONLY, dataclass
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.algorithms.training_context import TrainingContext


@dataclass(frozen=True)
class Slow(FedAvg):
    """Goes a part of the way."""

    _: KW_ONLY
    part: float = 0.5

    def close(self, server, updates):
        return ServerModel(server.model_n.lerp(super().close(server, updates).model_n, self.part))


class Lame:
    def __init__(self, bench: TrainingContext) -> None:
        pass
'''


def test_a_readers_own_algorithm_is_played_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_fedavg.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    made = world(federation())
    start_n = made.drawn("")
    _, whole_n = played(made, "fedavg", rounds=1)
    _, half_n = played(made, "python:slow_fedavg:Slow", rounds=1, workers=2)
    _, tenth_n = played(made, "python:slow_fedavg:Slow,part=0.1", rounds=1)
    assert whole_n is not None
    assert half_n is not None
    assert tenth_n is not None
    torch.testing.assert_close(half_n, start_n.lerp(whole_n, 0.5))
    torch.testing.assert_close(tenth_n, start_n.lerp(whole_n, 0.1))
    with pytest.raises(AlgorithmError, match=r"has no start_server.*subclass"):
        played(made, "python:slow_fedavg:Lame")
    with pytest.raises(AlgorithmError, match="unexpected keyword"):
        played(made, "python:slow_fedavg:Slow,parts=1")


@pytest.mark.parametrize(
    ("algorithm", "learning", "words"),
    [
        ("scaffold", {"optimizer": "adam,lr=0.01"}, "plain gradient steps"),
        ("fedrep,head_share=1", {}, "head_share = 1: write"),
        ("fedper,head=nobody", {}, 'no module "nobody"'),
        ("ifca,clusters=0", {}, "clusters = 0"),
        ("virtual", {"common_start": False}, "same start"),
    ],
)
def test_what_an_algorithm_cannot_do_is_said_before_a_run(
    algorithm: str, learning: dict[str, Any], words: str, tmp_path: Path
) -> None:
    settings = federation().model_dump(mode="json")
    settings["learning"] |= learning
    with pytest.raises(AlgorithmError, match=words):
        api.simulate(federation=settings, methods=(algorithm,), out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_updates_that_are_no_numbers_are_left_out_and_told() -> None:
    """One peer's update becomes NaN; the mean of the others goes on without it."""
    made, told = world(federation(simulation__peers=4)), list[tuple[str, str]]()
    with engine(made, "fedavg", refused=lambda *each: told.append(each)) as running:
        teach = running._run

        def spoilt(tasks: Any) -> Any:
            found = teach(tasks)
            running._session.states.sent.model_n[2, 5] = torch.nan
            return found

        running._run = spoilt  # type: ignore[method-assign]
        running.step()
        rows = running._session.states.sent.model_n[[0, 1, 3]]
        assert running.server_n is not None
        torch.testing.assert_close(running.server_n, rows.double().mean(0).float())
    assert told == [("peer3", "model_n: 1 of 910 numbers are NaN or infinite")]


def test_only_updates_with_infinite_numbers_or_none_are_faults_however_huge_the_others_are() -> None:
    huge = torch.finfo(torch.float32).max
    rows = [
        [1.0, -2.0, 3.0],
        [huge, huge, huge],
        [torch.nan, 0.0, 0.0],
        [torch.inf, 0.0, -torch.inf],
        [-huge, 0.0, 1.0],
    ]
    found = _faults(Local(torch.tensor(rows), torch.arange(1, 6)))
    assert [why and why.text for why in found] == [
        None,
        None,
        "model_n: 1 of 3 numbers are NaN or infinite",
        "model_n: 2 of 3 numbers are NaN or infinite",
        None,
    ]


def test_the_federations_aggregation_and_privacy_are_the_engines() -> None:
    settings: list[dict[str, Any]] = [{}, {"learning__aggregation": "median"}]
    settings += [{"learning__privacy": f"gaussian,clip=0.1,noise={each}"} for each in (0, 1)]
    plain, median, clipped, noisy = (
        world(federation(simulation__peers=5, learning__algorithm="fedavg", **each)) for each in settings
    )
    with engine(median, "fedavg") as running:
        running.step()
        rows = running._session.states.sent.model_n.clone()
        assert running.server_n is not None
        torch.testing.assert_close(running.server_n, rows.median(0).values)
    ends = [played(made, "fedavg", rounds=1)[1] for made in (plain, clipped, noisy)]
    whole_n, short_n, noisy_n = (end_n for end_n in ends if end_n is not None)
    start_n = plain.drawn("")
    assert (short_n - start_n).norm() <= 0.1 < (whole_n - start_n).norm()
    # Five shares of noise add up to one of standard deviation 0.1 on the sum, for each of 910 numbers.
    assert float((noisy_n - short_n).norm()) == pytest.approx(0.1 / 5 * 910**0.5, rel=0.1)


def test_what_the_noise_comes_to_is_told_for_whoever_was_asked_most(tmp_path: Path) -> None:
    settings = federation(
        learning__algorithm="fedavg",
        learning__participation=0.5,
        learning__privacy="gaussian,clip=1,noise=2,delta=1e-5",
        learning__rounds=4,
    )
    found = api.simulate(federation=settings, methods=("fedavg",), seeds=(0, 1), out=tmp_path)
    most_S = []
    for seed in (0, 1):
        options = [client for number in (1, 2, 3, 4) for client in drawn(world(settings, seed), number)]
        most_S.append(max(options.count(client) for client in options))
    assert most_S[0] < (most := max(most_S)), "in the run of another seed than the first"
    told = found.summary["privacy"]
    assert told["rounds"] == most
    assert told["epsilon"] == pytest.approx(epsilon(rounds=most, noise=2.0, delta=1e-5))
    plain = api.simulate(federation=federation(learning__rounds=1), methods=("fedavg",), out=tmp_path)
    assert "privacy" not in plain.summary


@pytest.mark.parametrize(
    ("engine_name", "where", "further", "noise", "known"),
    [
        ("vector", "sum", {}, 2.0, 1.99),  # all participants of a round answer
        ("network", "sum", {}, 1.0, 4.38),
        ("network", "sum", {"learning__aggregation_goal": 2}, 2.0 / 2**0.5, 2.95),
        ("network", "client", {}, 2.0, 1.99),
    ],
)
def test_noise_of_peers_that_may_be_absent_protects_nobody(
    engine_name: EngineName, where: str, further: dict[str, Any], noise: float, known: float, tmp_path: Path
) -> None:
    """Each of four peers makes a quarter of the variance, and a round may close with its update alone."""
    settings = federation(
        simulation__peers=4,
        learning__algorithm="fedavg",
        learning__privacy=f"gaussian,clip=1,noise=2,delta=1e-5,where={where}",
        learning__rounds=1,
        **further,
    )
    found = api.simulate(federation=settings, methods=("fedavg",), engine=engine_name, out=tmp_path)
    told, mu = found.summary["privacy"], 1 / noise
    reached = told["epsilon"]
    curve = ndtr(mu / 2 - reached / mu) - math.exp(reached) * ndtr(-mu / 2 - reached / mu)
    assert curve == pytest.approx(1e-5, rel=1e-6), "Balle and Wang 2018, theorem 8"
    assert reached == pytest.approx(known, abs=0.01)
    assert told["noise"] == pytest.approx(noise)
    assert f"epsilon {reached:.3g} at delta 1e-05" in (private(found.summary) or "")
