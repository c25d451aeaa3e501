"""Algorithms with a server in the network engine: whole peers give the numbers of the algorithm's own functions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpeer.algorithms.batches import Batches, round_order
from fedpeer.algorithms.leaves import stack_states
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.config.building import coordinated_of
from fedpeer.config.choice import parse_choice
from fedpeer.data.own.code import imported
from fedpeer.learning.local_task import LocalTask
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.peers import local_tasks
from fedpeer.sims.world import World
from tests.sims import worlds

#: The engine after the last round, and by peer its own model (n,).
Played = tuple[NetworkEngine, dict[str, Tensor]]
ROUNDS = 3


@cache
def world(**settings: Any) -> World:
    """Return a world of five peers of 40 digits."""
    split = {"simulation__peers": 5, "simulation__split": "blocks:40,shuffle=true,test=50"}
    return worlds.world(worlds.federation(**{**split, "learning__rounds": ROUNDS, **settings}))


def obvious(made: World, method: str) -> tuple[dict[str, Tensor], Tensor | None]:
    """Return each peer's own model (n,), and the server's, after the rounds.

    They are computed by the contract's functions, one after the other."""
    learning, draws, found = made.federation.learning, made.draws, local_tasks(made)
    order = sorted(made.peers)
    algorithms = {peer: algorithm(made, method, local_task) for peer, local_task in found.items()}
    first = algorithms[order[0]]
    server = first.start_server(made.drawn(""))
    clients = {
        peer: algorithms[peer].start_client(made.start(peer), torch.tensor(found[peer].examples)) for peer in order
    }
    for round in range(1, ROUNDS + 1):
        part = [order[number] for number in first.participants(round, len(order), learning.participation, draws)]
        broadcast = first.open(server, round)
        training = order if first.everyone_trains or learning.everyone_in(round) else part
        trained, updates = {}, {}
        for peer in training:
            keys = [draws.key("dropout", peer, round)]
            batches = batches_of(made, found[peer], peer, round)
            trained[peer], updates[peer] = algorithms[peer].train(clients[peer], broadcast, batches, keys)
        server = first.close(server, stack_states([updates[peer] for peer in part]))
        for peer in training:
            counted = torch.tensor(peer in part)
            clients[peer] = algorithms[peer].settle(clients[peer], trained[peer], server, counted)
    return {peer: first.personal_model(client) for peer, client in clients.items()}, first.server_model(server)


def algorithm(made: World, method: str, local_task: LocalTask) -> Any:
    optimizer = made.optimizer
    context = TrainingContext(
        module=made.module,
        layout=made.layout,
        loss=LOSSES[made.loss],
        optimizer=optimizer,
        stepper=local_task.stepper,
        clients=len(made.peers),
        examples_max=local_task.examples,
        draw=made.drawn,
    )
    return coordinated_of(parse_choice(method), made.federation.learning, context, imported)


def batches_of(made: World, local_task: LocalTask, peer: str, round: int) -> Batches:
    places = torch.from_numpy(
        round_order(local_task.examples, round, local_task.steps, local_task.batch, made.draws, peer).copy()
    )
    part = local_task.train_part
    number = torch.tensor(sorted(made.peers).index(peer))
    return Batches(part.x_NF, part.index_M[places], part.y_M[places], local_task.view, (part,), number)


def played(
    made: World, method: str, pace: Mapping[str, float] | None = None
) -> tuple[NetworkEngine, dict[str, Tensor]]:
    choice = parse_choice(method)
    faults = Faults(paces=tuple((pace or {}).items()))
    with NetworkEngine(made, choice, faults=faults) as engine:
        for _ in range(ROUNDS):
            engine.step()
        engine.evaluate()
        return engine, dict(zip(made.peers, engine.x_Pn, strict=True))


@pytest.mark.parametrize(
    ("method", "participation"),
    [
        ("fedavg", 1.0),
        ("scaffold", 0.6),
        ("fedper", 0.6),
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in (("fedavg", 0.6), ("scaffold", 1.0), ("fedper", 1.0))
        ),
    ],
)
def test_whole_peers_give_the_numbers_of_the_obvious_loop(method: str, participation: float) -> None:
    made = world(learning__participation=participation)
    own, server_n = obvious(made, method)
    engine, x_n = played(made, method)
    for peer in made.peers:
        assert torch.equal(x_n[peer], own[peer]), f"{peer}: {float((x_n[peer] - own[peer]).abs().max())}"
    scores = engine.evaluate_server()
    if server_n is None:
        assert scores is None
    else:
        expected = [local_task.evaluate(server_n) for local_task in local_tasks(made).values()]
        assert scores == expected


@pytest.mark.parametrize(("options", "method"), [(True, "scaffold"), ("evaluated", "fedper")])
def test_everyone_trains_if_asked_to(options: bool | str, method: str) -> None:
    settings = {"learning__everyone_trains": options, "learning__evaluate_every": 2}
    made = world(learning__participation=0.4, **settings)
    own, _ = obvious(made, method)
    _, x_n = played(made, method)
    assert all(torch.equal(x_n[peer], own[peer]) for peer in made.peers)


def test_peers_that_start_apart_meet_in_the_common_draw() -> None:
    made = world(learning__common_start=False, learning__participation=0.4)
    own, _ = obvious(made, "fedper")
    _, x_n = played(made, "fedper")
    assert all(torch.equal(x_n[peer], own[peer]) for peer in made.peers)


def test_numbers_do_not_depend_on_who_is_slow_nor_on_the_order_of_numbers() -> None:
    """Slow peers do not change the numbers, nor does the order of eleven peers, whose ids are ordered differently from
    their numbers; updates come in yet another order."""
    made = world(simulation__peers=11, learning__participation=0.5)
    own, _ = obvious(made, "fedavg")
    _, x_n = played(made, "fedavg", {"peer4": 30.0, "peer10": 7.0})
    assert all(torch.equal(x_n[peer], own[peer]) for peer in made.peers)
