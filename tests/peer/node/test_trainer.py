"""A peer's own state as bytes: the algorithm's own numbers, to disk and back, and journals of earlier versions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpeer.algorithms.confident_peers import Trusting
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.leaves import leaves_of
from fedpeer.algorithms.local_training import FullAveraging, TrainingState
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.config.choice import parse_choice
from fedpeer.data.own.code import imported
from fedpeer.gossip.reductions import FLOAT32
from fedpeer.peer.node.node_setup import outer_rules_of
from fedpeer.peer.node.trainer import LocalTrainer
from fedpeer.peer.state.durable_state import DurableState, Rules
from fedpeer.peer.state.entries import Began, Entry, LocalTrained, Opened, RealShares
from fedpeer.peer.state.journal import durable_state_of, entry_bytes, entry_of, snapshot_bytes
from fedpeer.peer.wire.framing import FrameError, frame
from fedpeer.sims.network.node_factory import NodeFactory
from fedpeer.sims.peers import local_tasks
from fedpeer.sims.world import plan_of
from tests.sims.worlds import federation, trainer_of, world

METHOD = "pfedvem-gossip,head_lr=0.001,head_epochs=2,samples=2"
#: Two `Opened` of round 3 as version 0.2 wrote them: an exchange that begins from the peer's own weight, as a first
#: exchange does, and one that carries on, as any other.
AFRESH = (
    "46445046010000005d000000000000000000000093a64f70656e656488a567726f7570a865766572796f6e65a5726f756e6403a8657863"
    "68616e676500a2746f92a162a163a665787065637491a163a86672616374696f6ecb3fd0000000000000a6616672657368c3a577686f6c"
    "65c290277911b34917630da31eca4599f1184e"
)
CARRIED_ON = (
    "46445046010000005d000000000000000000000093a64f70656e656488a567726f7570a865766572796f6e65a5726f756e6403a8657863"
    "68616e676500a2746f92a162a163a665787065637491a163a86672616374696f6ecb3fd0000000000000a6616672657368c2a577686f6c"
    "65c29064af2a06fd84817e7a961d78b2864327"
)


def trainer_by(method: str = METHOD, **settings: Any) -> LocalTrainer:
    made = world(federation(simulation__peers=3, **settings))
    return trainer_of(made, "peer2", method)


def two_rounds(one: LocalTrainer) -> tuple[Tensor, Tensor, Trusting]:
    """Return a node's vectors after two rounds, the second from half of the trained values, and the state itself."""
    x_n, s_k, state = one.start(), torch.zeros(0), None
    for round in (1, 2):
        estimate_n = x_n if round == 1 else x_n / 2
        before = one.algorithm.start_client(estimate_n, torch.tensor(one.examples)) if state is None else state
        batches, keys = one.local_task.batches(round), [one.local_task.key(round)]
        state, sent = one.algorithm.train(before, ServerModel(estimate_n), batches, keys)
        x_n, s_k = one.train(round, estimate_n, s_k, fresh=round == 1)
        assert torch.equal(x_n, sent.model_n)
    assert isinstance(state, Trusting)
    return x_n, s_k, state


@pytest.mark.slow
def test_bytes_between_rounds_change_no_number() -> None:
    one = trainer_by()
    x_n, s_k, state = two_rounds(one)
    assert s_k.dtype == torch.uint8
    assert bytes(s_k.tolist()) == one.form.written(state)
    assert len(s_k) == sum(leaf.nbytes for leaf in leaves_of(state).values())
    own_n, estimate_n = one.models(x_n, s_k, False)
    assert torch.equal(own_n, state.model_n)
    assert estimate_n is not None
    assert torch.equal(estimate_n, x_n)
    made = world(federation(simulation__peers=3))
    plan = plan_of(made, parse_choice(METHOD))
    base, head = (torch.from_numpy(group.indices["peer2"]) for group in plan.groups)
    assert one.weight(s_k, base) == 40 == one.examples
    assert one.weight(s_k, head) == pytest.approx(float(state.tau), rel=1e-12)
    assert one.weight(s_k, head) != pytest.approx(100, rel=1e-3), "it is no longer the first, 1 / sigma^2"


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto", "scaffold", "virtual", "local", "full-averaging"])
def test_every_peer_has_a_model_to_evaluate_whenever_it_is_started(method: str) -> None:
    """A restarted peer may have an evaluation left to do, under an algorithm with a server, too."""
    one = trainer_by(method)
    own_n, estimate_n = one.models(one.start(), torch.zeros(0), True)
    assert own_n.shape == one.local_task.start().shape
    assert estimate_n is None or estimate_n.shape == own_n.shape


@dataclass(frozen=True, eq=False)
class Momentum(TrainingState):
    """A state with one more leaf than that of local training."""

    before_n: Tensor


class WithMomentum(FullAveraging):
    """Full averaging that remembers the model of the last round."""

    def start_client(self, values_n: Tensor, examples: Tensor) -> Momentum:
        state = super().start_client(values_n, examples)
        return Momentum(state.optimizer_k, state.trained, values_n)

    def train(self, client: TrainingState, received: ServerModel, *work: Any) -> tuple[Momentum, ServerModel]:
        state, sent = super().train(client, received, *work)
        return Momentum(state.optimizer_k, state.trained, received.model_n), sent


def test_all_leaves_of_a_state_are_stored_whatever_it_derives_from(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(_method: Any, _learning: Any, context: TrainingContext, *_: Any, **__: Any) -> WithMomentum:
        return WithMomentum(context)

    monkeypatch.setattr("fedpeer.peer.node.trainer.algorithm_of", build)
    one = trainer_by("full-averaging")
    x_n, s_k = one.train(1, one.start(), torch.zeros(0), fresh=True)
    state = one._state(s_k)
    assert isinstance(state, Momentum)
    assert torch.equal(state.before_n, one.start())
    _, s_k = one.train(2, x_n, s_k, fresh=False)
    assert torch.equal(one._state(s_k).before_n, x_n)


def test_a_peer_that_was_alone_takes_outer_steps_once_others_join_it() -> None:
    """Its state has the same form, and the first step begins from its last round alone, not from its first one."""
    made = world(federation(simulation__peers=3, learning__outer="nesterov,lr=0.7,momentum=0.9"))
    method, task = parse_choice("partial-averaging"), local_tasks(made)["peer2"]
    roster = NodeFactory.of(made, method).roster

    def among(*peers: str) -> LocalTrainer:
        now = replace(roster, entries=tuple(each for each in roster.entries if each.id in peers))
        return LocalTrainer(task, method, imported, peers, outer=outer_rules_of(made, now, "peer2", method))

    one, all_of_them, plain = among("peer2"), among(*made.peers), LocalTrainer(task, method, imported, made.peers)
    received_n, s_k = one.start(), torch.zeros(0)
    for round in (1, 2, 3):
        before_n = received_n
        received_n, s_k = one.train(round, before_n, s_k, fresh=round == 1)
        assert torch.equal(received_n, plain.train(round, before_n, torch.zeros(0), fresh=True)[0])
    found_n, _ = all_of_them.train(4, received_n, s_k, fresh=False)
    change_n = before_n - received_n
    averaged = outer_rules_of(made, roster, "peer2", method)
    assert averaged is not None
    started_n = torch.where(averaged.rule_Cn[0] < 0, received_n, before_n - 0.7 * (change_n + 0.9 * change_n))
    assert torch.allclose(found_n, plain.train(4, started_n, torch.zeros(0), fresh=True)[0], atol=1e-6)


def test_a_durable_state_holds_it_through_a_journal_and_a_snapshot() -> None:
    one = trainer_by()
    x_n, s_k, _ = two_rounds(one)
    rules, index = Rules("peer2", Draws(0), FLOAT32), {"everyone": torch.arange(len(x_n))}
    durable = DurableState.blank(rules, index, one.start(), one.state_size)
    blank = snapshot_bytes(durable, {})
    entries: list[Entry] = [Began(round=1), LocalTrained(round=1, x_n=x_n, s_k=s_k)]
    entries.append(
        Opened(
            group="everyone", round=1, exchange=0, to=("peer1",), expect=(), shares=RealShares(0.25), start_weight=30.0
        )
    )
    for entry in entries:
        durable.apply(entry)
    assert durable.groups["everyone"].put == 30.0
    assert float(durable.groups["everyone"].held.weight) == 22.5
    journalled = durable_state_of(blank, [entry_bytes(entry) for entry in entries], rules, index, {})
    again = durable_state_of(snapshot_bytes(durable, {}), (), rules, index, {})
    for each in (journalled, again):
        assert torch.equal(each.s_k, s_k)
        assert not each.fresh
        assert snapshot_bytes(each, {}) == snapshot_bytes(durable, {})


@pytest.mark.parametrize(("written", "begins"), [(AFRESH, 7.0), (CARRIED_ON, None)], ids=["afresh", "carried on"])
def test_what_version_0_2_wrote_is_read(written: str, begins: float | None) -> None:
    found = entry_of(bytes.fromhex(written), 7.0)
    options: dict[str, Any] = {"group": "everyone", "round": 3, "exchange": 0, "to": ("b", "c"), "expect": ("c",)}
    assert found == Opened(**options, shares=RealShares(0.25), start_weight=begins)
    assert entry_of(entry_bytes(found)) == found


def test_what_no_version_wrote_is_not() -> None:
    with pytest.raises(FrameError, match="unknown or missing fields"):
        entry_of(frame("Opened", {"group": "everyone", "anew": True}, {}))


def test_what_does_not_fit_is_said_before_anybody_is_met() -> None:
    with pytest.raises(AlgorithmError, match="write cross-entropy"):
        trainer_by(learning__loss="squared-error")
