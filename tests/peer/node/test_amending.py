"""Switch to another contract: what a peer still has to do under the previous one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedpeer.config.choice import parse_choice
from fedpeer.config.contract import contract_of, text_of
from fedpeer.learning.wire_forms import succeeding
from fedpeer.peer.state.events import AggregateUpdates, Amend, Effect, NewContract, NewRoster, Note, Tick, Train
from fedpeer.peer.state.saving import Recovered
from fedpeer.peer.wire.signed_contract import SignedContract
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import Cut, LinkRules
from fedpeer.sims.network.node_factory import NodeFactory
from tests.faults.amended import OVER_TICKS, STARTS, Amended
from tests.faults.group_cluster import MODELS, GroupCluster
from tests.faults.group_cluster import world as groups_world
from tests.faults.peer_cluster import ENDLESS, world


@pytest.mark.slow
def test_the_evaluation_of_the_round_before_is_taken_by_the_process_that_goes_on() -> None:
    before = world(2, learning__evaluate_every=1)
    cluster = Amended(before, world(2, learning__evaluate_every=3), Faults())
    evaluated: dict[str, list[int]] = {peer: [] for peer in before.peers}

    def said(peer: str, effect: Effect) -> None:
        if isinstance(effect, Note) and effect.what == "evaluated":
            evaluated[peer].append(int(str(effect.fields["round"])))

    cluster.simulator.on_effect = said
    cluster.simulator.start()
    cluster.run(10.0)
    cluster.simulator.feed("peer1", NewContract(cluster.contract))
    assert cluster.run(OVER_TICKS, lambda: all(max(rounds, default=0) > STARTS for rounds in evaluated.values()))
    for rounds in evaluated.values():
        assert rounds == [*range(1, STARTS), 6], "every round by the first contract, every third by the second"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "anew"),
    [
        ({"learning__optimizer": "sgd,lr=0.2"}, True),
        ({"learning__outer": "nesterov"}, True),
        ({"gossip__exchanges": 3}, False),
    ],
    ids=str,
)
def test_a_changed_optimizer_begins_with_a_state_of_its_own(changed: dict[str, Any], *, anew: bool) -> None:
    before = world(2, learning__optimizer="sgd,lr=0.1,momentum=0.5")
    cluster = Amended(before, world(2, **{"learning__optimizer": "sgd,lr=0.1,momentum=0.5", **changed}), Faults())
    fresh: dict[str, list[bool]] = {peer: [] for peer in before.peers}

    def said(peer: str, effect: Effect) -> None:
        if isinstance(effect, Train) and cluster.node(peer).setup.held.number:
            fresh[peer].append(effect.fresh)

    cluster.simulator.on_effect = said
    cluster.simulator.start()
    cluster.run(10.0)
    cluster.simulator.feed("peer1", NewContract(cluster.contract))
    assert cluster.run(OVER_TICKS, lambda: all(len(each) > 2 for each in fresh.values()))
    assert [each[:3] for each in fresh.values()] == [[anew, False, False]] * 2


@pytest.mark.slow
def test_no_mean_counts_an_update_by_a_contract_that_says_otherwise_of_the_group() -> None:
    """So a committed round needs no contract number: all peers that decide on it agree on its group's settings."""
    cluster = GroupCluster(groups_world(), Faults())
    cluster.simulator.start()
    assert cluster.reach(3, OVER_TICKS)
    coordinator = cluster.leading("everyone")
    assert coordinator is not None
    other = next(peer for peer in cluster.made.peers if peer != coordinator)
    state = cluster.nodes()[coordinator].state
    counted: list[frozenset[str]] = []
    said = cluster.simulator.on_effect

    def look(peer: str, effect: Effect) -> None:
        said(peer, effect)
        if isinstance(effect, AggregateUpdates) and effect.group == "everyone" and peer == coordinator:
            counted.append(frozenset(effect.updates))

    cluster.simulator.on_effect = look
    state.others[other].agreed.discard("everyone")  # as after a Hello under another contract
    state.others.changed()
    begun = len(counted)
    assert cluster.run(cluster.simulator.now + OVER_TICKS, lambda: len(counted) >= begun + 4)
    assert all(other not in updates for updates in counted[begun + 1 :]), counted


def test_whether_a_contract_fits_is_asked_of_the_peers_that_there_are_now() -> None:
    """The middle one of three peers in a line is another one since this peer began, and so are the edges."""
    before, after = (
        world(4, gossip__topology=f"edges:{edges}")
        for edges in ("peer1-peer2+peer2-peer3+peer3-peer4", "peer1-peer4+peer4-peer3+peer3-peer2")
    )
    cluster = Amended(before, after, Faults(), roster=["peer1", "peer2", "peer3"])
    node = cluster.node_factory.node("peer1", Recovered(snapshot=None, entries=()))
    node.step(Tick(1))
    node.step(NewRoster(cluster.signed(2, ["peer1", "peer3", "peer4"])))
    effects = node.step(NewContract(cluster.contract))
    assert [each.contract for each in effects if isinstance(each, Amend)] == [cluster.contract]


@pytest.mark.parametrize(("dropped", "moved"), [("left", "right"), ("right", "")])
def test_a_model_cannot_be_dropped_where_another_would_take_its_neurons(dropped: str, moved: str) -> None:
    """Peer3 has hidden neuron 2 for the left model and 3 for the right one."""
    before = groups_world()
    rest = {name: each for name, each in MODELS.items() if name != dropped}
    after = groups_world.__wrapped__(partial_models=rest)
    made = NodeFactory.of(before, parse_choice("partial-averaging"))
    text = text_of(succeeding(contract_of(before.options), contract_of(after.options)), str(made.method))
    why = {peer: setup.unfit(text, made.roster) for peer, setup in made.setups.items()}
    said = f"the slices of {moved} would have other neurons" if moved else ""
    assert {each.partition(":")[0] for each in why.values()} == {said}, "all say the same"
    contract = SignedContract(authority=made.roster.authority, number=1, starts=1, text=text)
    made.setups["peer3"] = replace(made.setups["peer3"], signed=contract)
    node = made.node("peer3", Recovered(snapshot=None, entries=()))
    node.step(Tick(1))
    assert node.state.contracts.signed == (None if moved else contract), "nor at a start that finds the contract"


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [ENDLESS, 8], ids=["the others learn", "the others have finished"])
def test_a_peer_to_which_the_contract_was_lost_goes_over_after_the_cut(rounds: int) -> None:
    """The peer is restarted during a cut in one direction: the others receive its Hello, and their answers are lost."""
    heal = 250.0
    cut = Cut(begin=99.0, end=heal, senders=("peer1", "peer2"), receivers=("peer3",))
    cluster = Amended(
        world(3, learning__rounds=rounds),
        world(3, learning__rounds=rounds, gossip__exchanges=4),
        Faults(links=LinkRules(delay=0.2), cuts=(cut,), heal=heal),
    )
    simulator = cluster.simulator

    def numbers() -> dict[str, int]:
        return {peer: node.setup.held.number for peer, node in cluster.nodes().items()}

    simulator.start()
    cluster.run(100.0)
    simulator.feed("peer1", NewContract(cluster.contract))
    cluster.run(140.0)
    simulator.kill("peer3")
    cluster.run(160.0)
    simulator.start("peer3")
    cluster.run(heal)
    assert numbers() == {"peer1": 1, "peer2": 1, "peer3": 0}
    assert cluster.run(heal + OVER_TICKS, lambda: numbers() == dict.fromkeys(cluster.made.peers, 1)), cluster.phases()
