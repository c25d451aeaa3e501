"""Slices with a rhythm, exchanges and a graph of their own: the same numbers in all engines, and fewer bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedpeer.config.choice import parse_choice
from fedpeer.config.contract import EARLIER, EARLIER_OF_SLICES, contract_of, differences, group_digest, text_of
from fedpeer.config.federation import Federation
from fedpeer.gossip.successive import Successive
from fedpeer.learning.bandwidth import rhythms, sending
from fedpeer.learning.groups import averaging_of, gossip_of
from fedpeer.learning.wire_forms import succeeding
from fedpeer.peer.node.node import Node
from fedpeer.peer.node.node_setup import rules_of
from fedpeer.peer.state.events import Effect, NewContract, Send
from fedpeer.peer.wire.messages import Transfer
from fedpeer.sims.network.engine import NetworkEngine
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from fedpeer.sims.network.simulator import Simulator
from fedpeer.sims.vector.gossip_rounds import GossipRounds
from fedpeer.sims.world import plan_of
from tests.faults.amended import OVER_TICKS, Amended
from tests.faults.peer_cluster import world as peer_world
from tests.reference import audit
from tests.sims.in_step import METHOD, PARITY, check_real_peers, check_stop, check_whole_peers
from tests.sims.test_vector_engine import twin
from tests.sims.worlds import engine, federation, played, relative, world

#: Rounds after which each slice has been averaged, and one has waited again.
ROUNDS = 4
#: All of six peers average `everyone` in every third round, four of them `core` in each, two of them `pair` in every
#: second until they agree.
MODELS: dict[str, Any] = {
    "everyone": {"neurons": {"input": "all", "hidden1": 5, "output": "all"}, "gossip": {"every": 3}},
    "core": {
        "depends_on": ["everyone"],
        "neurons": {"hidden1": 4},
        "members": ["peer1", "peer2", "peer3", "peer4"],
        "gossip": {"topology": "star", "exchanges": 1},
    },
    "pair": {
        "depends_on": ["everyone"],
        "neurons": {"hidden1": 3},
        "members": ["peer5", "peer6"],
        "gossip": {"tolerance": 1e-6, "every": 2},
    },
}


def nodes_of(simulator: Simulator) -> dict[str, Node]:
    """Return the nodes of all living peers."""
    found = {peer: node for peer, node in simulator.machines().items() if isinstance(node, Node)}
    assert len(found) == len(simulator.peers)
    return found


def sliced(**settings: Any) -> Federation:
    return federation(partial_models=MODELS, learning__rounds=ROUNDS + 4, **settings)


def test_a_slice_averages_as_it_says_and_in_all_else_as_the_federation() -> None:
    options = sliced(gossip__protocol="push-pull")
    plan = plan_of(world(options), METHOD)
    everyone, core, pair = (gossip_of(plan, options, name) for name in MODELS)
    assert (everyone.every, everyone.exchanges, everyone.topology) == (3, 2, options.gossip.topology)
    assert (core.every, core.exchanges, str(core.topology)) == (1, 1, "star")
    assert (pair.every, pair.exchanges, pair.tolerance) == (2, None, 1e-6)
    assert {each.protocol for each in (everyone, core, pair)} == {"push-pull"}
    assert gossip_of(plan, options, "core+pair") == options.gossip, "they do not say the same"
    assert gossip_of(plan, options, "another") == options.gossip
    core = MODELS["core"] | {"gossip": {"deadline": 5.0, **MODELS["core"]["gossip"]}}
    late = federation(partial_models={**MODELS, "core": core}, gossip__deadline=20.0)
    assert [gossip_of(plan, late, name).deadline for name in MODELS] == [20.0, 5.0, 20.0]


@pytest.mark.parametrize("method", ["full-averaging", "fedper"])
def test_a_method_with_models_of_its_own_averages_as_the_federation_says(method: str) -> None:
    """Full averaging's one group has the name of a model of the file."""
    made = world(sliced())
    plan = plan_of(made, parse_choice(method))
    assert all(gossip_of(plan, made.federation, name) == made.federation.gossip for name in MODELS)
    if method == "full-averaging":
        assert relative(played(made, ROUNDS, method=method), twin(made, method, ROUNDS)) < PARITY
        assert [policy.every for policy in averaging_of(plan, made.federation, 0).values()] == [1]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gossip__protocol": "push-pull"},
        {"gossip__protocol": "exact"},
        {"learning__optimizer": "sgd,lr=0.1,momentum=0.9"},
    ],
    ids=str,
)
def test_the_engine_computes_what_an_obvious_loop_computes(settings: dict[str, Any]) -> None:
    """The loop averages each group in the rounds in which it is due, and no group in the others."""
    made = world(sliced(**settings))
    averaging = averaging_of(plan_of(made, METHOD), made.federation, made.seed)
    assert {id: policy.every for id, policy in averaging.items()} == {"everyone": 3, "core": 1, "pair": 2}
    assert relative(played(made, ROUNDS), twin(made, "partial-averaging", ROUNDS)) < PARITY


#: One slice by pairs, one exactly, one as the federation says.
PROTOCOLS: dict[str, Any] = {
    **MODELS,
    "core": {**MODELS["core"], "gossip": {"protocol": "push-pull", "topology": "complete"}},
    "pair": {**MODELS["pair"], "gossip": {"protocol": "exact"}},
}


def test_slices_with_protocols_of_their_own_are_what_an_obvious_loop_computes() -> None:
    made = world(federation(partial_models=PROTOCOLS))
    averaging = averaging_of(plan_of(made, METHOD), made.federation, made.seed)
    assert {id: policy.protocol for id, policy in averaging.items()} == {
        "everyone": "push-sum", "core": "push-pull", "pair": "exact"
    }  # fmt: skip
    assert relative(played(made, ROUNDS), twin(made, "partial-averaging", ROUNDS)) < PARITY


@pytest.mark.slow
@pytest.mark.parametrize("models", [MODELS, PROTOCOLS], ids=["rhythms", "protocols"])
def test_whole_peers_have_the_same_numbers(models: dict[str, Any]) -> None:
    check_whole_peers(world(federation(partial_models=models, learning__rounds=ROUNDS + 4)), ROUNDS)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_real_peers_have_the_same_numbers(tmp_path: Path) -> None:
    models = {**MODELS, "core": {**MODELS["core"], "members": ["peer1", "peer2"]},
              "pair": {**MODELS["pair"], "members": ["peer3", "peer4"]}}  # fmt: skip
    settings = {"simulation__peers": 4, "learning__rounds": ROUNDS, "learning__evaluate_every": ROUNDS}
    check_real_peers(world(federation(partial_models=models, **settings)), ROUNDS, tmp_path / "peers")


def test_a_run_that_was_stopped_goes_on_in_step() -> None:
    check_stop(world(sliced()), ROUNDS, stop=1)


@pytest.mark.slow
@pytest.mark.parametrize("drift", [1e-9, 0.02])
def test_slices_that_have_not_moved_keep_their_own_rhythm(drift: float) -> None:
    models = {**MODELS, "core": {**MODELS["core"], "gossip": {"every": 2}}}
    made = world(federation(partial_models=models, learning__rounds=ROUNDS + 4, gossip__drift=drift))
    with engine(made) as vector, NetworkEngine(made, METHOD) as network:
        for _ in range(ROUNDS):
            vector.step()
            network.step()
        assert relative(network.x_Pn, vector.x_Pn) < PARITY


def test_what_is_foretold_of_each_rhythm_is_what_is_sent() -> None:
    made = world(sliced())
    plan = plan_of(made, METHOD)
    found = rhythms(plan, made.federation, made.seed)
    assert found == {1: ("core",), 2: ("pair",), 3: ("everyone",)}
    foretold = {
        every: [each.messages for each in sending(plan, made.federation, made.seed, groups).values()]
        for every, groups in found.items()
    }
    with engine(made) as running:
        for number in range(1, 7):
            running.step()
            due = [foretold[every] for every in foretold if number % every == 0]
            assert running.traffic[0] == torch.tensor(due).sum(0).tolist(), f"round {number}"


# ---------------------------------------------------------------------------------- encodings and drift of one slice

#: `core` is sent as int8, `pair` as float64, and `everyone` as the federation says.
ENCODED: dict[str, Any] = {
    **MODELS,
    "core": {**MODELS["core"], "gossip": {"wire": "int8", "exchanges": 2}},
    "pair": {**MODELS["pair"], "gossip": {"wire": "float64/zstd"}},
}


def test_each_group_has_the_encoding_that_its_slice_names() -> None:
    made = world(federation(partial_models=ENCODED, gossip__wire="bfloat16"))
    found = rules_of(made.federation, made.seed, "peer1", 1)
    names = {group: found.form_of(group).name for group in (*ENCODED, "core+pair")}
    assert names == {"everyone": "bfloat16", "core": "int8", "pair": "float64/zstd", "core+pair": "bfloat16"}
    alike = {**MODELS, **{name: {**MODELS[name], "gossip": {"wire": "int8", "every": 2}} for name in ("core", "pair")}}
    both = world(federation(partial_models=alike))
    between = gossip_of(plan_of(both, METHOD), both.federation, "core+pair")
    assert (between.every, between.wire) == (2, both.federation.gossip.wire), "they say the same, but for the encoding"
    full = text_of(contract_of(made.federation), "full-averaging")
    assert rules_of(made.federation, made.seed, "peer1", 1, full).forms == {}, "its group has the name of a model"


@pytest.mark.slow
def test_each_share_is_in_its_groups_encoding_and_nothing_is_lost() -> None:
    """A channel of int8 begins with a share of float32, to which the later ones are relative."""
    made = world(federation(partial_models=ENCODED))
    forms: dict[str, set[str]] = {group: set() for group in ENCODED}
    with NetworkEngine(made, METHOD) as network:
        simulator = network._simulator
        before = simulator.on_effect

        def on_effect(peer: str, effect: Effect) -> None:
            before(peer, effect)
            if isinstance(effect, Send) and isinstance(effect.message, Transfer):
                forms[effect.message.group].add(effect.message.share.form)

        simulator.on_effect = on_effect
        for _ in range(3):
            network.step()
        states = {peer: nodes_of(simulator)[peer].durable for peer in made.peers}
    assert forms == {"everyone": {"float32"}, "core": {"float32", "int8"}, "pair": {"float64/zstd"}}
    for group, (there, put) in audit.weights(states).items():
        assert there == pytest.approx(put, rel=1e-12), group


def test_what_is_foretold_follows_the_encoding_of_each_slice() -> None:
    plain = federation(partial_models={**ENCODED, "core": {**MODELS["core"], "gossip": {"exchanges": 2}}})
    encoded, four = federation(partial_models=ENCODED), ("peer1", "peer2", "peer3", "peer4")
    plan = plan_of(world(encoded), METHOD)
    length = next(group.length for group in plan.groups if group.id == "core")
    few, many = (sending(plan, options, 0, ["core"]) for options in (encoded, plain))
    for peer in four:
        assert few[peer].messages == many[peer].messages
        assert (many[peer].bytes - few[peer].bytes) / few[peer].messages == pytest.approx(3 * length, rel=0.05)


@pytest.mark.slow
def test_a_slice_takes_another_encoding_while_peers_run_and_mass_is_exact_at_every_step() -> None:
    """Once to int8, once back from it; the other slice keeps its encoding, and so do shares that are under way."""
    core: dict[str, Any] = {"core": {"neurons": {"hidden1": 1}}, "rest": {"neurons": {"input": "all", "output": "all"}}}
    changed = {**core, "core": {**core["core"], "gossip": {"wire": "int8"}}}
    for before, after in ((core, changed), (changed, core)):
        links = LinkRules(delay=0.2, jitter=2.0, loss=0.1, repeat=0.1)  # shares are late, some until after the change
        made, later = (peer_world.__wrapped__(3, partial_models=models) for models in (before, after))
        cluster = Amended(made, later, Faults(seed=5, links=links, heal=300.0))
        cluster.simulator.start()
        cluster.run(100.0)
        cluster.simulator.feed("peer1", NewContract(cluster.contract))
        assert cluster.run(cluster.simulator.now + OVER_TICKS, cluster.gone_over), cluster.phases()
        rules = cluster.node("peer2").durable.rules
        assert rules.form_of("core").name == ("int8" if after is changed else "float32")
        assert not isinstance(rules.form_of("rest"), Successive), "it has always been float32"
        assert isinstance(rules.form_of("core"), Successive)
        cluster.judge_change()


def test_the_encodings_of_a_slice_are_written_down_from_its_first_own_one_on() -> None:
    def contract(wire: str | None, **settings: Any) -> dict[str, Any]:
        gossip: dict[str, Any] = {"wire": wire} if wire else {"exchanges": 1}
        own = {"core": {**MODELS["core"], "gossip": gossip}}
        return contract_of(federation(partial_models={**MODELS, **own}, **settings))

    first = succeeding(contract(None), contract("int8"))
    assert (EARLIER in first, first[EARLIER_OF_SLICES]) == (False, {"core": ["float32"]})
    second = succeeding(first, contract("int8", gossip__wire="bfloat16"))
    assert (second[EARLIER], second[EARLIER_OF_SLICES]) == (["float32"], {"core": ["float32"]})
    third = succeeding(second, contract(None, gossip__wire="bfloat16"))
    assert (third[EARLIER], third[EARLIER_OF_SLICES]) == (["float32"], {"core": ["float32", "int8"]})
    assert group_digest(third, "core", has_server=False) != group_digest(second, "core", has_server=False)
    assert group_digest(third, "pair", has_server=False) == group_digest(second, "pair", has_server=False), (
        "it does not concern them"
    )


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["push-sum", "exact"])
def test_one_slice_alone_waits_until_it_has_moved(protocol: str) -> None:
    """Its members average it in fewer rounds, and all other slices as before; whole peers and vector engine agree."""
    models = {**MODELS, "everyone": {**MODELS["everyone"], "gossip": {"drift": 0.3}}}
    made = world(federation(partial_models=models, learning__rounds=ROUNDS + 4, gossip__protocol=protocol))
    still = 0
    with engine(made) as vector, NetworkEngine(made, METHOD) as network:
        for _ in range(ROUNDS):
            vector.step()
            network.step()
            assert isinstance(vector._rounds, GossipRounds)
            triggers = vector._rounds._triggers
            assert triggers is not None
            still += triggers.inactive("everyone")
            assert not triggers.inactive("core")
        assert relative(network.x_Pn, vector.x_Pn) < PARITY
    assert still > 0, "else nothing is shown"


#: `core` hides its values, and the other slices do not.
HIDDEN: dict[str, Any] = {**MODELS, "core": {**MODELS["core"], "gossip": {"privacy": "noise", "topology": "ring"}}}


def test_a_slice_with_a_noise_phase_takes_as_many_exchanges_as_its_noise_needs() -> None:
    made = world(federation(partial_models=HIDDEN, gossip={}))
    averaging = averaging_of(plan_of(made, METHOD), made.federation, made.seed)
    noisy = world(federation(partial_models=MODELS, gossip={"privacy": "noise", "topology": "ring"}))
    like = averaging_of(plan_of(noisy, METHOD), noisy.federation.model_copy(update={"partial_models": {}}), made.seed)
    assert averaging["core"].exchanges == like["core"].exchanges > averaging["everyone"].exchanges
    assert {id for id, policy in averaging.items() if policy.noise is not None} == {"core"}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["push-sum", "exact"])
def test_noise_of_one_slice_averages_away_and_nobody_sees_its_values(protocol: str) -> None:
    made = world(federation(partial_models=HIDDEN, gossip={"protocol": protocol, "tolerance": 1e-6}))
    seen: dict[str, list[float]] = {group: [] for group in MODELS}
    with engine(made) as vector, NetworkEngine(made, METHOD) as network:
        simulator = network._simulator
        before = simulator.on_effect

        def on_effect(peer: str, effect: Effect) -> None:
            before(peer, effect)
            if isinstance(effect, Send) and isinstance(effect.message, Transfer):
                share = effect.message.share
                if (share.round, share.exchange) == (1, 0) and effect.message.group in seen:
                    mean_D = share.payload.double() / max(share.weight, 1e-9)
                    own_D = nodes_of(simulator)[peer].durable.estimate_D(effect.message.group)
                    seen[effect.message.group].append(float((mean_D - own_D).norm() / own_D.norm()))

        simulator.on_effect = on_effect
        for _ in range(2):
            vector.step()
            network.step()
        assert relative(network.x_Pn, vector.x_Pn) < 1e-4
    assert min(seen["core"]) > 0.5, "the first shares show nothing of it"


def test_a_slices_noise_phase_is_a_promise_that_does_not_change() -> None:
    plain, hidden = (contract_of(federation(partial_models=models)) for models in (MODELS, HIDDEN))
    (change,) = differences(plain, hidden)
    assert (change.path, change.changes) == ("partial_models.core.gossip", False)
    assert "promise of privacy" in change.way()
    slower = {**HIDDEN, "core": {**HIDDEN["core"], "gossip": {**HIDDEN["core"]["gossip"], "every": 2}}}
    (change,) = differences(hidden, contract_of(federation(partial_models=slower)))
    assert change.changes, "the rest of it may change"
