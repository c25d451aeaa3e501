"""One slice that is averaged while peers train, beside others that are averaged in rounds: its mass, and its mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedpeer.config.choice import parse_choice
from fedpeer.config.contract import contract_of, text_of
from fedpeer.learning.groups import is_asynchronous
from fedpeer.peer.node.node import Node
from fedpeer.peer.node.node_setup import rules_of
from fedpeer.peer.state.events import Effect, Send
from fedpeer.peer.wire.messages import Transfer
from fedpeer.sims.network.engine import SECONDS, NetworkEngine
from fedpeer.sims.network.faults import Act, Faults
from fedpeer.sims.network.links import LinkRules
from fedpeer.sims.processes.engine import ProcessesEngine
from fedpeer.sims.world import plan_of
from tests.faults.group_cluster import MODELS as GROUPS
from tests.faults.group_cluster import GroupCluster
from tests.faults.group_cluster import world as groups_world
from tests.faults.peer_cluster import EXACT, PeerCluster
from tests.faults.peer_cluster import world as peer_world
from tests.net.masses import mass_errors
from tests.reference import audit
from tests.sims.in_step import METHOD
from tests.sims.processes.test_coordinated import ended, wait_for
from tests.sims.worlds import federation, world

QUICK = LinkRules(delay=0.2, jitter=0.3)
#: All peers have both slices: one without rounds, one with five exchanges in each round.
BOTH: dict[str, Any] = {
    "eager": {"neurons": {"hidden1": 1}, "gossip": {"mode": "asynchronous"}},
    "waiting": {"neurons": {"input": "all", "output": "all"}},
}
#: One of four peers has no slice with rounds.
SOME: dict[str, Any] = {
    "everyone": {"neurons": {"input": "all", "hidden1": 6, "output": "all"}, "gossip": {"mode": "asynchronous"}},
    "ward": {
        "depends_on": ["everyone"],
        "neurons": {"hidden1": 4},
        "members": ["peer1", "peer2", "peer3"],
        "gossip": {"protocol": "exact"},
    },
}


def test_a_slice_has_its_own_mode_or_the_federations() -> None:
    for mode, own in (("synchronous", "asynchronous"), ("asynchronous", "synchronous")):
        models = {**BOTH, "eager": {"neurons": {"hidden1": 1}, "gossip": {"mode": own}}}
        made = world(federation(network="mlp:64+1+10", partial_models=models, learning__mode=mode))
        plan, rules = plan_of(made, METHOD), rules_of(made.federation, 0, "peer1", 1)
        for group, found in (("eager", own), ("waiting", mode), ("eager+waiting", mode)):
            assert is_asynchronous(plan, made.federation, group) is (found == "asynchronous")
            assert rules.eager_in(group) is (found == "asynchronous")
        full = parse_choice("full-averaging")
        assert is_asynchronous(plan_of(made, full), made.federation, "everyone") is (mode == "asynchronous")
        text = text_of(contract_of(made.federation), "full-averaging")
        assert rules_of(made.federation, 0, "peer1", 1, text).eagers == {}, "its group may have the name of a model"


@pytest.mark.slow
def test_both_slices_come_to_their_mean_and_nothing_is_lost() -> None:
    """One peer is killed twice in the middle. Shares of one slice are sent during trainings, too."""
    acts = (Act(80.0, "kill", "peer2", 20.0), Act(150.0, "kill", "peer2", 20.0))
    made = peer_world.__wrapped__(3, partial_models=BOTH)
    cluster = PeerCluster(made, Faults(links=QUICK, acts=acts), look_every=10.0)
    places: dict[str, set[tuple[int, bool]]] = {group: set() for group in BOTH}

    def on_event(peer: str, effect: Effect) -> None:
        if isinstance(effect, Send) and isinstance(effect.message, Transfer) and peer in cluster.simulator.machines():
            training = cluster.node(peer).rounds.training
            places[effect.message.group].add((effect.message.share.exchange, training))

    cluster.simulator.on_effect = on_event
    cluster.simulator.start()
    cluster.run(350.0)
    assert places["eager"] == {(0, True), (0, False)}
    assert {exchange for exchange, _ in places["waiting"]} == {0, 1, 2, 3, 4}
    assert cluster.error() <= 1e-6
    cluster.judge()


def test_who_has_no_slice_with_rounds_is_not_waited_for_and_waits_for_nobody() -> None:
    made = world(federation(partial_models=SOME, simulation__peers=4, learning__rounds=6))
    with NetworkEngine(made, METHOD, faults=Faults(links=QUICK, paces=(("peer4", 100.0),))) as network:
        for _ in range(4):
            network.step()
        *together, slow = network.statistics()[SECONDS]
        apart = network.disagreement()
        states = {p: node.durable for p, node in network._simulator.machines().items() if isinstance(node, Node)}
        finished = network._simulator.stopped
    assert max(together) < slow / 2
    assert apart["ward"] < 1e-6, "the exact mean of those who are in it"
    assert apart["everyone"] < 0.5
    if not finished:  # the weight of a peer that has stopped is on its disk
        for group, (there, put) in audit.weights(states).items():
            assert there == pytest.approx(put, rel=EXACT), group


@pytest.mark.slow
def test_a_slice_without_rounds_beside_slices_with_coordinators() -> None:
    models = {**GROUPS, "everyone": {**GROUPS["everyone"], "gossip": {"mode": "asynchronous", "protocol": "push-sum"}}}
    cluster = GroupCluster(groups_world.__wrapped__(partial_models=models), Faults(links=QUICK))
    cluster.simulator.start()
    assert cluster.reach(3, 400.0)
    cluster.simulator.kill("peer1")
    cluster.run(cluster.simulator.now + 30.0)
    cluster.simulator.start("peer1")
    cluster.settle_down()


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_real_peers_lose_no_mass_of_a_slice_without_rounds(tmp_path: Path) -> None:
    rounds = 3
    made = world(federation(partial_models=SOME, simulation__peers=4, learning__rounds=rounds, gossip__gather=10.0))
    with ProcessesEngine(made, METHOD, folder=tmp_path / "run") as running:
        for _ in range(rounds):
            running.step()
        scores = running.evaluate()
        wait_for(lambda: ended(running), "all end by themselves")
        errors = mass_errors([tmp_path / "run" / "peers" / peer / f"{peer}.yaml" for peer in made.peers])
    assert errors.keys() == {"everyone", "ward"}
    assert all(each <= EXACT for each in errors.values()), errors
    assert all(0 <= score <= 1 for score, _ in scores)
