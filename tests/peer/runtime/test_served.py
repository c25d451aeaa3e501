"""Parts of a real peer that an algorithm with a server needs.

They are allowed code, a secret that is kept, work in the peer's own thread, and the use of the peer's own model.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpeer.algorithms.answer_metrics import f1
from fedpeer.algorithms.private import Private
from fedpeer.config.peer_file import PeerFile
from fedpeer.data.dataset import DataError
from fedpeer.data.own.code import imported
from fedpeer.learning import models
from fedpeer.learning.device import device_memory
from fedpeer.peer.node.node_setup import VOTERS_MAX, setup_of
from fedpeer.peer.runtime.job_runner import JobRunner
from fedpeer.peer.runtime.prepared import Prepared, initial_status, prepare_peer
from fedpeer.peer.runtime.secret import SECRET_BYTES, keep_secret, secret_in
from fedpeer.peer.runtime.store import StateError
from fedpeer.peer.state.events import (
    AggregateUpdates,
    ClientTrained,
    Evaluate,
    Evaluated,
    FinishRound,
    RoundFinished,
    TrainClient,
    UpdatesAggregated,
)
from fedpeer.peer.wire.leaf_bytes import split_leaves
from fedpeer.peer.wire.roster import RosterError, to_bytes
from tests.peer.runtime.people import People
from tests.peer.runtime.whole import whole
from tests.sims import worlds

Prepare = Callable[..., Prepared]


@pytest.fixture
def prepared(tmp_path: Path) -> Prepare:
    """A function that prepares ann, one of three peers, from settings of the federation."""
    people = People.at(tmp_path / "people")
    for peer in ("ann", "bob", "cas"):
        people.identity(peer)
    (tmp_path / "roster.json").write_bytes(to_bytes(people.roster))

    def made(
        allow: tuple[str, ...] = (), bandwidth: float = 100.0, metrics: Sequence[str] = (), **settings: Any
    ) -> Prepared:
        federation = worlds.federation(simulation__peers=3, **{"learning__algorithm": "fedper", **settings})
        file = PeerFile.model_validate(
            {
                "id": "ann",
                "federation": "federation.yaml",
                "roster": str(tmp_path / "roster.json"),
                "state": str(tmp_path / "state"),
                "transport": "plain-http",
                "listen": "127.0.0.1:7401",
                "data": {"simulation": 1},
                "allow_python": list(allow),
                "bandwidth": bandwidth,
                "metrics": list(metrics),
            }
        )
        return prepare_peer(file, federation)

    return made


def test_who_can_send_more_or_has_more_memory_or_an_accelerator_stands_earlier(
    prepared: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = {"cpu": 2**34, "cuda": 2**34}
    monkeypatch.setattr("fedpeer.peer.runtime.prepared.device_memory", memory.get)
    usual, slow, quick = prepared(), prepared(bandwidth=1.0), prepared(bandwidth=1000.0)
    waits = [each.patience for each in (replace(usual, device="cuda"), quick, usual, slow)]
    assert waits == sorted(set(waits))
    assert quick.trainer.spec is not None
    assert quick.trainer.spec.patience == quick.patience
    memory["cpu"] = 2**30
    assert usual.patience > waits[2]


def test_the_consensus_of_averaging_groups_know_it_too(prepared: Prepare) -> None:
    def waits(bandwidth: float) -> list[float]:
        made = prepared(bandwidth=bandwidth, learning__algorithm="partial-averaging", gossip__protocol="coordinator")
        with whole(made) as peer:
            consensus_by_group = peer.process._node.consensus_by_group.values()
            return peer.inside(lambda: [consensus.round_commit.election.patience for consensus in consensus_by_group])

    slow, quick = waits(1.0), waits(1000.0)
    assert slow
    assert all(one > other for one, other in zip(slow, quick, strict=True))


def test_a_bandwidth_is_above_nought(prepared: Prepare) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        prepared(bandwidth=0.0)


def test_its_memory_is_the_machines() -> None:
    assert device_memory("cpu") > 2**28


class Logged(AbstractContextManager[None]):
    """A turn at training that logs its beginnings and ends."""

    def __init__(self) -> None:
        self.log = list[str]()

    def __enter__(self) -> None:
        self.log.append("begins")

    def __exit__(self, *exception: object) -> None:
        self.log.append("ends")


def test_a_round_is_played_and_the_peers_own_model_is_the_one_that_is_used(prepared: Prepare, tmp_path: Path) -> None:
    """In FedPer the head stays at the peer, so the server has another model."""
    ann = prepared()
    spec, status = ann.trainer.spec, initial_status(ann)
    assert spec is not None
    (tmp_path / "state").mkdir()
    turn = Logged()
    context = JobRunner(ann, tmp_path / "state", status, lambda what, text: pytest.fail(text), turn=turn)
    clients = ("ann", "bob", "cas")
    client_trained = context.work(TrainClient(1, spec.client, spec.server, clients))
    assert turn.log == ["begins", "ends"]
    assert isinstance(client_trained, ClientTrained)
    assert client_trained.client != spec.client
    aggregated = context.work(AggregateUpdates(1, 1, spec.server, {}, {"ann": client_trained.update}, clients))
    assert isinstance(aggregated, UpdatesAggregated)
    assert aggregated.content is not None
    found = split_leaves(aggregated.content, spec.server_bytes)
    assert found is not None
    assert found[0] == {"ann": 1}
    assert found[1] != spec.server
    settled = context.work(FinishRound(1, spec.client, client_trained.client, found[1], True))
    assert isinstance(settled, RoundFinished)
    evaluated = context.work(Evaluate(1, settled.x_n, ann.outfit.local_task.start()))
    assert isinstance(evaluated, Evaluated)
    assert (evaluated.score, evaluated.loss) == ann.outfit.local_task.evaluate(settled.x_n)
    assert evaluated.server == ann.outfit.local_task.evaluate(ann.outfit.local_task.start())
    state = tmp_path / "state"
    kept = models.load_model(state / "model.safetensors", state / "model.json", None, imported)
    assert torch.equal(ann.outfit.assembly.layout.flatten(kept.module), settled.x_n)
    timings = status.as_json()["timings"]
    assert [timings[what]["count"] for what in ("train", "close", "settle", "evaluate")] == [1, 1, 1, 1]


def test_equals_have_neither_server_nor_secret(prepared: Prepare) -> None:
    ann = prepared(learning__algorithm="partial-averaging")
    assert (ann.trainer.server_side, ann.secret) == (None, b"")


def test_the_noise_of_a_peer_comes_from_a_secret_that_it_keeps(prepared: Prepare, tmp_path: Path) -> None:
    private = {"learning__algorithm": "fedavg", "learning__privacy": "gaussian,noise=1,clip=1"}
    first, second = prepared(**private), prepared(**private)
    assert first.secret != second.secret, "nothing was kept yet"
    first.folder.mkdir()
    keep_secret(first.folder, first.secret)
    keep_secret(first.folder, second.secret)
    again = prepared(**private)
    assert again.secret == first.secret
    assert len(again.secret) == SECRET_BYTES
    assert stat.S_IMODE((first.folder / "secret").stat().st_mode) == 0o600

    def update(ann: Prepared) -> bytes:
        spec = ann.trainer.spec
        assert spec is not None
        done = ann.trainer.work(TrainClient(1, spec.client, spec.server, ("ann", "bob", "cas")))
        assert isinstance(done, ClientTrained)
        return done.update

    assert isinstance(again.trainer.algorithm, Private)
    assert update(again) == update(first), "the same bytes after a restart"
    assert update(again) != update(second)


def test_a_secret_that_was_damaged_is_the_users_business(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(StateError, match="secret is damaged; remove it"):
        secret_in(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="needs modes of files (POSIX)")
def test_a_secret_that_others_can_read_is_not_taken(tmp_path: Path) -> None:
    keep_secret(tmp_path, bytes(SECRET_BYTES))
    assert secret_in(tmp_path) == bytes(SECRET_BYTES)
    (tmp_path / "secret").chmod(0o640)
    with pytest.raises(StateError, match="chmod 600"):
        secret_in(tmp_path)


def test_code_of_the_federation_file_runs_only_where_it_is_allowed(prepared: Prepare) -> None:
    own = "python:fedpeer.algorithms.servers.fedavg:FedAvg"
    with pytest.raises(DataError, match=r"allow_python: \[fedpeer\]"):
        prepared(learning__algorithm=own)
    assert prepared(allow=("fedpeer",), learning__algorithm=own).trainer.server_side is not None


def test_more_voters_than_can_sign_are_refused_at_the_start(prepared: Prepare, tmp_path: Path) -> None:
    ann = prepared()
    entry, people = ann.roster.by_id["ann"], np.random.default_rng(0)
    others = [replace(entry, id=f"peer{number}", key=people.bytes(32)) for number in range(VOTERS_MAX)]

    def start(count: int, voter: bool) -> object:
        entries = (entry, *(replace(other, voter=voter) for other in others[:count]))
        return setup_of(ann.outfit.assembly, replace(ann.roster, entries=entries), "ann", nonce=0)

    with pytest.raises(RosterError, match="2,048 peers that vote, and more than 2,047 cannot sign"):
        start(VOTERS_MAX, voter=True)
    start(8, voter=True)


def test_metrics_of_its_own_file_are_measured_and_one_that_fails_stops_nothing(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_metric.py").write_text("def broken(y, answers):\n    return {10: 0.5}[len(y)]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ann = prepared(metrics=["f1", "python:own_metric:broken"])
    (tmp_path / "state").mkdir()
    warned = list[tuple[str, str]]()
    runner = JobRunner(ann, tmp_path / "state", initial_status(ann), lambda *warning: warned.append(warning))
    start_n = ann.outfit.local_task.start()
    evaluated = runner.work(Evaluate(1, start_n, None))
    assert isinstance(evaluated, Evaluated)
    model = models.load_model(tmp_path / "state/model.safetensors", tmp_path / "state/model.json", None, pytest.fail)
    x, y = ann.outfit.held.tested(ann.outfit.dataset)
    assert evaluated.metrics["f1"] == pytest.approx(f1(y, model.answers(x)))
    assert np.isnan(evaluated.metrics["python:own_metric:broken"])
    assert [code for code, _ in warned] == ["metric_failed"]
    assert "KeyError" in warned[0][1]


def test_the_model_of_the_best_round_is_kept_also_over_a_restart(prepared: Prepare, tmp_path: Path) -> None:
    """Only the examples held out for validation decide; test examples do not."""
    ann = prepared(simulation__validation=0.3)
    dataset, held = ann.outfit.dataset, ann.outfit.held
    assert len(held.valid_M)
    assert not np.isin(held.valid_M, held.train_M).any()
    folder, draws = tmp_path / "state", torch.Generator().manual_seed(0)
    folder.mkdir()
    start_n, found = ann.outfit.local_task.start(), list[tuple[float, float]]()
    for round in range(1, 7):
        if round in (1, 4):  # a new process
            runner = JobRunner(ann, folder, initial_status(ann), lambda what, text: pytest.fail(text))
        x_n = start_n + torch.randn(len(start_n), generator=draws)
        evaluated = runner.work(Evaluate(round, x_n, None))
        assert isinstance(evaluated, Evaluated)
        assert evaluated.validation is not None
        last = models.load_model(folder / "model.safetensors", folder / "model.json", None, pytest.fail)
        by_hand = last.evaluate(dataset.x[held.valid_M], held.valid_y)
        assert evaluated.validation == pytest.approx(by_hand, rel=1e-5)
        found.append(evaluated.validation)
        best = max(range(round), key=lambda each: (found[each][0], -found[each][1]))
        kept = models.best_round(folder / "best.json")
        assert kept is not None
        assert (kept.round, kept.score, kept.loss) == (best + 1, *found[best])
        model = models.load_model(folder / "best.safetensors", folder / "model.json", None, pytest.fail)
        assert model.evaluate(dataset.x[held.valid_M], held.valid_y) == pytest.approx(found[best], rel=1e-5)
    assert len({found.index(max(found[:count])) for count in range(1, 7)}) > 1, "the draws are such that it changes"
    assert max(found[3:]) != max(found), "the last process did not have the best round"


def test_a_damaged_note_of_the_best_round_is_told_and_not_overwritten(prepared: Prepare, tmp_path: Path) -> None:
    ann, folder, warned = prepared(simulation__validation=0.3), tmp_path / "state", list[str]()
    folder.mkdir()
    (folder / "best.json").write_text('{"round": 3, "sco')
    runner = JobRunner(ann, folder, initial_status(ann), lambda code, text: warned.append(text))
    evaluated = runner.work(Evaluate(7, ann.outfit.local_task.start(), None))
    assert isinstance(evaluated, Evaluated)
    assert evaluated.validation is not None
    assert "best.json is damaged" in warned[0]
    assert (folder / "best.json").read_text() == '{"round": 3, "sco'
    assert (folder / "model.safetensors").exists(), "the last model is kept all the same"


def test_without_examples_for_it_no_best_model_is_kept(prepared: Prepare, tmp_path: Path) -> None:
    ann = prepared()
    (tmp_path / "state").mkdir()
    runner = JobRunner(ann, tmp_path / "state", initial_status(ann), lambda what, text: pytest.fail(text))
    evaluated = runner.work(Evaluate(1, ann.outfit.local_task.start(), None))
    assert isinstance(evaluated, Evaluated)
    assert evaluated.validation is None
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["model.json", "model.safetensors"]
