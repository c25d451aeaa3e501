"""Whole nodes in the simulator, against the vector engine and against the laws that faults must not break."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.mark.structures import ParameterSet

from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.peer.node.node import Node
from fedpeer.peer.state.durable_state import DurableState
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.sims.network.driver import Machine
from fedpeer.sims.network.engine import ALONE_S, SECONDS, NetworkEngine
from fedpeer.sims.network.faults import Act, Faults, draw_faults, faults_from
from fedpeer.sims.network.links import LinkRules
from fedpeer.sims.network.node_factory import NodeFactory
from fedpeer.sims.network.simulator import Simulator
from fedpeer.sims.vector.pool import EngineError, Stopped
from fedpeer.sims.world import World, plan_of
from tests.reference import audit, judges
from tests.sims import worlds
from tests.sims.worlds import relative

METHOD = "partial-averaging"


def network(made: World, method: str = METHOD, **more: Any) -> NetworkEngine:
    choice = parse_choice(method)
    return NetworkEngine(made, choice, **more)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (METHOD, {}),
        (METHOD, {"gossip__protocol": "exact", "learning__weights": "samples", "simulation__split": "dirichlet:0.5"}),
        (METHOD, {"gossip__topology": "k-regular:4", "gossip__exchanges": None, "gossip__tolerance": 1e-3}),
        (METHOD, {"gossip__protocol": "push-pull"}),
        (METHOD, {"learning__weights": "samples", "simulation__split": "dirichlet:0.5"}),
        ("full-averaging", {"learning__optimizer": "sgd,lr=0.1,momentum=0.9"}),
        ("local", {}),
    ],
)
def test_nodes_give_what_the_vector_engine_gives(method: str, settings: dict[str, Any]) -> None:
    made = worlds.world(worlds.federation(**settings))
    with worlds.engine(made, method) as vector, network(made, method) as nodes:
        for _ in range(2):
            vector.step()
            nodes.step()
            results = nodes.evaluate()
            assert relative(nodes.x_Pn, vector.x_Pn) <= 1e-5
            for (score, loss), (vector_score, vector_loss) in zip(results, vector.evaluate(), strict=True):
                assert score == pytest.approx(vector_score, abs=0.021), "one example of fifty may tip over"
                assert loss == pytest.approx(vector_loss, rel=1e-4)
            assert nodes.weights.keys() == vector.weights.keys()
            for group, weights in vector.weights.items():
                assert nodes.weights[group] == pytest.approx(weights, rel=1e-6)
            far = vector.disagreement()
            assert nodes.disagreement() == {group: pytest.approx(far[group], rel=1e-3, abs=1e-6) for group in far}


def test_links_that_reorder_delay_and_lose_do_not_change_the_average() -> None:
    """No peer is left out because acknowledgements come later than the shares of the next exchange, or never."""
    made = worlds.world(worlds.federation(gossip__exchanges=9, gossip__gather=10.0))
    rules = LinkRules(delay=0.1, jitter=3.0, reorder=0.9, loss=0.1, repeat=0.2)
    with worlds.engine(made) as vector, network(made, faults=Faults(seed=3, links=rules, heal=1e9)) as nodes:
        for _ in range(2):
            vector.step()
            nodes.step()
        nodes.evaluate()
        assert relative(nodes.x_Pn, vector.x_Pn) <= 1e-5


def test_a_checkpoint_is_a_number() -> None:
    made = worlds.world(worlds.federation())
    with network(made) as whole, network(made) as half:
        half.step()
        tensors, state = half.snapshot()
        for _ in range(2):
            whole.step()
        with network(made) as again:
            again.restore(tensors, state)
            again.step()
            assert again.round == 2
            again.evaluate()
            whole.evaluate()
            assert torch.equal(again.x_Pn, whole.x_Pn)
            assert again.traffic == whole.traffic
            assert not whole._simulator.rows, "they would fill the memory in a long run"


def test_a_lost_evaluation_is_waited_for_again_when_a_run_goes_on() -> None:
    """A peer dies while it evaluates itself, so that an evaluation of all lasts until the next round is over."""
    made = worlds.world(worlds.federation(learning__rounds=3, gossip__deadline=1.0))
    slow = tuple((peer, 300.0) for peer in made.peers)
    with network(made, faults=Faults(paces=slow)) as calm:
        calm.step()
        ended = calm.statistics()[SECONDS][2] / made.federation.gossip.tick
    faults = Faults(paces=slow, acts=(Act(ended + 1, "kill", "peer3", 2.0),))
    sent, state = list[object](), dict[str, Any]()
    with network(made, faults=faults) as whole:
        for _ in range(3):
            whole.step()
            now = whole._simulator.now
            whole.evaluate()
            if not sent:
                assert whole._simulator.now - now > 100, "it waits"
                state = whole.snapshot()[1]
            sent.append(whole.traffic)
    with network(made, faults=faults) as again:
        again.restore({}, state)
        for expected in sent[1:]:
            again.step()
            again.evaluate()
            assert again.traffic == expected


def test_traffic_is_what_went_over_the_links() -> None:
    """In each of two exchanges on a ring of six, a peer sends each of two neighbors a share and an acknowledgement."""
    made = worlds.world(worlds.federation())
    plan = plan_of(made, parse_choice(METHOD))
    with network(made) as nodes:
        for _ in range(2):
            nodes.step()
        messages, amount = nodes.traffic
        shares = 2 * 2 * sum(4 * group.length for group in plan.groups)
        assert all(shares < each < 1.5 * shares + 2000 for each in amount)
        assert all(2 * 2 * 2 * len(plan.groups) <= each <= 2 * 2 * 2 * len(plan.groups) + 20 for each in messages)


def test_a_slow_peer_makes_a_synchronous_round_wait_and_nothing_else() -> None:
    made = worlds.world(worlds.federation())
    slow = Faults(paces=(("peer3", 10.0),))
    with network(made) as even, network(made, faults=slow) as uneven:
        even.step()
        uneven.step()
        even.evaluate()
        uneven.evaluate()
        assert relative(uneven.x_Pn, even.x_Pn) < 1e-6
        # Eight updates take a millisecond each, and ten on the slow peer: the round lasts longer by the difference for
        # all within two steps on the ring, which is how far two exchanges reach; the sixth is three steps away.
        longer = np.array(uneven.statistics()[SECONDS]) - even.statistics()[SECONDS]
        assert longer[:5] == pytest.approx(np.full(5, 8 * 0.009), abs=0.03), "a look comes every 25 ms"
        assert longer[5] == pytest.approx(0.0, abs=0.03)


def test_a_slow_peer_is_not_left_behind_where_a_round_ends_without_an_averaging() -> None:
    """When it has trained in one round, all its neighbors are already in the next one, in which they wait for it."""
    made = worlds.world(worlds.federation(gossip__every=2, learning__rounds=4))
    slow = Faults(paces=(("peer3", 300.0),))
    with worlds.engine(made) as vector, network(made, faults=slow) as nodes:
        for _ in range(4):
            vector.step()
            nodes.step()
        nodes.evaluate()
        assert relative(nodes.x_Pn, vector.x_Pn) <= 1e-5


def test_slow_peers_take_longer_and_the_others_do_not_where_nobody_waits() -> None:
    made = worlds.world(worlds.federation(learning__mode="asynchronous", learning__steps_between_averaging=100))
    with network(made, faults=Faults(paces=(("peer2", 10.0), ("peer5", 10.0)))) as nodes:
        for _ in range(2):
            nodes.step()
        nodes.evaluate()
        seconds = dict(zip(made.peers, nodes.statistics()[SECONDS], strict=True))
        for peer in made.peers:
            trained = 2 * 0.1 * (10 if peer in ("peer2", "peer5") else 1)
            assert trained < seconds[peer] < trained + 0.1


@pytest.mark.slow
def test_who_waits_for_nobody_learns_nearly_as_well_as_who_does() -> None:
    """Asynchronous peers learn nearly as well as synchronous ones, where training moves far from a model that is
    averaged meanwhile: a peer that gave more than a half away would be moved past the others by what it learned, and
    the peers would oscillate about their mean."""

    def reached(mode: str) -> float:
        federation = Federation.model_validate(
            {
                "network": "mlp:64+30+10",
                "learning": {"rounds": 10, "evaluate_every": 10, "mode": mode},
                "gossip": {"topology": "k-regular:4", "exchanges": 2, "tolerance": None},
                "simulation": {"peers": 8, "split": "blocks:87"},
            }
        )
        with network(worlds.world(federation), "full-averaging") as nodes:
            for _ in range(10):
                nodes.step()
            return float(np.mean([score for score, _ in nodes.evaluate()]))

    assert reached("asynchronous") > reached("synchronous") - 0.1


def test_links_that_lose_a_third_cost_messages_and_time_and_hardly_change_the_average() -> None:
    """A share that comes long after the others went on is added in the next round."""
    made = worlds.world(worlds.federation())
    lossy = Faults(seed=1, links=LinkRules(loss=0.3), heal=1e9)
    with network(made) as clean, network(made, faults=lossy) as nodes:
        for _ in range(2):
            clean.step()
            nodes.step()
        clean.evaluate()
        nodes.evaluate()
        assert relative(nodes.x_Pn, clean.x_Pn) <= 0.01
        assert sum(nodes.traffic[0]) > 1.2 * sum(clean.traffic[0]), "what is lost is said again"
        assert min(nodes.statistics()[SECONDS]) > 1.5 * max(clean.statistics()[SECONDS])


def test_who_came_in_later_is_there_with_what_it_said_first() -> None:
    """At 50 % loss some peer meets the others when they are in their second or third round."""
    quick = {"learning__mode": "asynchronous", "simulation__peers": 8, "learning__rounds": 6}
    made = worlds.world(worlds.federation(**quick, learning__evaluate_every=3))
    with network(made, faults=Faults(links=LinkRules(loss=0.5), heal=1e9)) as nodes:
        for _ in range(3):
            nodes.step()
        assert len(nodes.evaluate()) == 8
        assert all(seconds > 0 for seconds in nodes.statistics()[SECONDS])


def test_who_was_away_when_the_others_were_evaluated_is_waited_for_until_it_is() -> None:
    """A peer that was away when the others were evaluated is waited for: training lasts for 320 ticks; the third peer
    dies at once, and comes back for a round that is not evaluated."""
    settings: dict[str, Any] = {"learning__rounds": 8, "learning__evaluate_every": 4, "gossip__deadline": 1.0}
    split = {"simulation__peers": 4, "simulation__split": "blocks:40,test=50"}
    made = worlds.world(worlds.federation(network="mlp:64+3+10", gossip__gather=1.0, **settings, **split))
    away = Faults(paces=tuple((peer, 1000.0) for peer in made.peers), acts=(Act(10.0, "kill", "peer3", 700.0),))
    with network(made, faults=away) as nodes:
        for _ in range(4):
            nodes.step()
        results, seconds = nodes.evaluate(), nodes.statistics()[SECONDS]
        assert all(loss > 0 for _, loss in results)
        assert seconds[2] > 700 * 0.025


def test_asked_to_stop_it_stops() -> None:
    stop = threading.Event()
    stop.set()
    slow = Faults(paces=tuple((f"peer{number}", 1e4) for number in range(1, 7)))
    with network(worlds.world(worlds.federation()), stop=stop, faults=slow) as nodes:
        with pytest.raises(Stopped):
            nodes.step()
        assert nodes.snapshot()[1]["round"] == 0, "the last finished round"


def test_a_federation_that_gets_no_further_is_an_error_and_no_hang() -> None:
    made = worlds.world(worlds.federation(gossip__gather=1.0, gossip__deadline=1.0))
    gone = tuple(Act(0.5, "kill", peer, 1e9) for peer in made.peers)
    with network(made, faults=Faults(acts=gone, heal=1e12)) as nodes, pytest.raises(EngineError, match="for peer1"):
        nodes.step()


def test_peers_that_all_stand_still_are_waited_for_also_after_some_have_got_further() -> None:
    """The others have finished a round without an averaging when all are paused, for longer than an exchange takes."""
    made = worlds.world(
        worlds.federation(gossip__gather=1.0, gossip__deadline=1.0, gossip__every=2, learning__alone_limit=1.0)
    )
    paused = tuple(Act(30.0, "pause", peer, 5_000.0) for peer in made.peers)
    with network(made, faults=Faults(acts=paused, paces=(("peer3", 300.0),))) as nodes:
        nodes.step()
        assert max(nodes.statistics()[SECONDS]) > 5_000 * 0.025


def test_peers_that_never_reach_one_another_go_on_alone_where_the_file_says_so() -> None:
    made = worlds.world(worlds.federation(gossip__gather=1.0, gossip__deadline=1.0, learning__alone_limit=1.0))
    with network(made, faults=Faults(links=LinkRules(delay=1e9))) as nodes, worlds.engine(made, "local") as alone:
        nodes.step()
        nodes.evaluate()
        alone.step()
        assert relative(nodes.x_Pn, alone.x_Pn) <= 1e-5


def test_who_is_cut_off_until_the_others_have_ended_goes_on_alone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a simulation no peer that has ended comes back, so the default of a day is ten minutes there; here, two."""
    assert ALONE_S == 600
    monkeypatch.setattr("fedpeer.sims.network.engine.ALONE_S", 120.0)
    made = worlds.world(worlds.federation(gossip__gather=1.0, gossip__deadline=1.0))
    with network(made, faults=faults_from("cut:1,at=0,for=3600", made.peers)) as nodes:
        for _ in range(made.federation.learning.rounds):
            nodes.step()
        first, others = nodes.statistics()[SECONDS][0], nodes.statistics()[SECONDS][1:]
    assert max(others) < 60 < 120 < first


# ------------------------------------------------------------------------------------------------- laws under faults


def small(**settings: Any) -> World:
    """Return a world of four peers of a few weights, with fifteen exchanges in all.

    A peer that is left when the others have ended goes on alone."""
    quick = {"gossip__exchanges": 5, "simulation__peers": 4, "gossip__deadline": 2.0, "gossip__gather": 5.0}
    quick |= {"learning__alone_limit": 20.0}
    return worlds.world(worlds.federation(network="mlp:64+3+10", **quick | settings))


class Watched:
    """A simulator of nodes whose masses are recorded every few ticks."""

    def __init__(self, made: World, faults: Faults) -> None:
        self.node_factory = NodeFactory.of(made, parse_choice(METHOD))
        self.simulator = Simulator(made.peers, self.node_factory.driver(fact=audit.took), faults)
        self.last: dict[str, DurableState] = {}
        self.simulator.stepped = self._note

    def _note(self, peer: str, machine: Machine) -> None:
        assert isinstance(machine, Node)
        self.last[peer] = machine.durable

    def durable_states(self) -> dict[str, DurableState]:
        living = self.simulator.machines()
        kept = {}
        for peer in self.simulator.peers:
            machine = living.get(peer) or self.node_factory.node(peer, self.simulator.kept(peer))
            assert isinstance(machine, Node)
            kept[peer] = machine.durable
        return kept

    def play(self, until: float) -> None:
        """Run until all have stopped, or fail; record the weights on the way."""
        self.simulator.start()
        while len(self.simulator.stopped) < len(self.simulator.peers):
            assert self.simulator.now < until, f"not over: {self.phases()}; replay {self.simulator.faults.line()}"
            self.simulator.run(self.simulator.now + 5.0)
            for group, (there, put) in audit.weights(self.durable_states()).items():
                self.simulator.rows.append((self.simulator.now, "mass", group, there, put))

    def phases(self) -> dict[str, str]:
        return {
            peer: f"{m.phase} {m.durable.round}" for peer, m in self.simulator.machines().items() if isinstance(m, Node)
        }

    def judge(self) -> None:
        rows = self.simulator.rows
        judges.judged(
            judges.saved_before_said(rows),
            judges.taken_once_and_in_order(judges.durable(rows)),
            judges.conserved(rows, 1e-9),
            judges.only_harmless(rows, {code: refusal.kind for code, refusal in REJECTIONS.items()}),
        )


@pytest.mark.parametrize(
    ("delay", "mode"),
    [
        (0.2, "synchronous"),
        (2.0, "asynchronous"),
        pytest.param(0.2, "asynchronous", marks=pytest.mark.soak),
        pytest.param(2.0, "synchronous", marks=pytest.mark.soak),
    ],
)
def test_in_an_undisturbed_run_nobody_is_refused_anything(delay: float, mode: str) -> None:
    watched = Watched(small(learning__mode=mode), Faults(seed=2, links=LinkRules(delay=delay)))
    watched.play(until=2000.0)
    assert judges.refused(watched.simulator.rows) == {}
    watched.judge()


@pytest.mark.slow
@pytest.mark.parametrize(
    "effects", [1, 210, *(pytest.param(effects, marks=pytest.mark.soak) for effects in (2, 5, 13, 34, 89))]
)
def test_a_node_killed_after_an_effect_loses_nothing(effects: int) -> None:
    watched = Watched(small(), Faults(seed=effects, links=LinkRules(delay=0.2, jitter=0.2)))
    watched.simulator.kill_after("peer2", effects, ticks=20.0)
    watched.play(until=2000.0)
    assert watched.simulator.carried["peer2"] > effects
    watched.judge()


def seeds() -> list[ParameterSet]:
    """Return the seeds: two run always, and two hundred with `make soak`."""
    return [pytest.param(seed, marks=[] if seed < 2 else pytest.mark.soak) for seed in range(200)]


@pytest.mark.parametrize("seed", seeds())
def test_nodes_under_faults_lose_nothing_and_finish(seed: int) -> None:
    made = small()
    watched = Watched(made, draw_faults(seed, made.peers, heal=400.0, kinds=("kill", "flip", "pause", "step", "full")))
    watched.play(until=6000.0)
    watched.judge()


@pytest.mark.slow
@pytest.mark.parametrize(("topology", "weights"), [("el-local:1", "uniform"), ("el-oracle:2", "restart")])
def test_graphs_that_are_drawn_anew_lose_nothing_under_faults(topology: str, weights: str) -> None:
    made = small(gossip__topology=topology, learning__weights=weights)
    watched = Watched(made, draw_faults(3, made.peers, heal=400.0, kinds=("kill", "flip", "pause", "step", "full")))
    watched.play(until=6000.0)
    watched.judge()


def test_a_run_of_nodes_is_its_seed() -> None:
    made = small()

    def played(seed: int) -> str:
        watched = Watched(made, draw_faults(seed, made.peers, heal=30.0))
        watched.simulator.start()
        watched.simulator.run(40.0)
        return judges.digest(watched.simulator.rows)

    assert played(5) == played(5)
    assert played(5) != played(6)
