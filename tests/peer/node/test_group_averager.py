"""Peers whose groups average through coordinators: what they keep and send, who decides, and who may send."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.peer.node.node_setup import group_voter_set
from fedpeer.peer.runtime.view import view_of
from fedpeer.peer.state.entries import Averaged, Began, LocalTrained, UpdateMade
from fedpeer.peer.state.events import Effect, Note, Persist, Send, Train, Unreachable
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import ModelRequest, Update
from fedpeer.peer.wire.roster import Entry, Roster
from fedpeer.peer.wire.tails import content_digest
from fedpeer.rejection import Rejection
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from tests.faults.group_cluster import MODELS, GroupCluster, world

QUICK = LinkRules(delay=0.2, jitter=0.2)


#: Rounds for which trainings were begun, by peer.
TRAINED: dict[str, list[int]] = {}


@pytest.fixture(scope="module")
def cluster() -> GroupCluster:
    """Return a cluster of five peers in three groups that have reached round 3."""
    made = GroupCluster(world(), Faults(links=QUICK))
    said = made.simulator.on_effect

    def on_event(peer: str, effect: Effect) -> None:
        said(peer, effect)
        if isinstance(effect, Train):
            TRAINED.setdefault(peer, []).append(effect.round)

    made.simulator.on_effect = on_event
    made.simulator.start()
    assert made.reach(3, 400.0)
    return made


def test_a_round_is_one_training_and_a_mean_in_each_group(cluster: GroupCluster) -> None:
    for peer, node in cluster.nodes().items():
        assert TRAINED[peer] == list(range(1, len(TRAINED[peer]) + 1))
        assert len(TRAINED[peer]) in (node.durable.round, node.durable.round - 1)
        assert set(node.durable.consensus_states) == {
            group for group, members in cluster.groups.items() if peer in members
        }


def test_a_peer_to_which_nobody_can_connect_coordinates_nothing_where_another_can(cluster: GroupCluster) -> None:
    first = cluster.nodes()["peer1"].consensus_by_group["everyone"].coordinator
    assert first is not None
    made = GroupCluster(world(), Faults(links=QUICK))
    made.simulator.start()
    made.simulator.feed(first, Unreachable())
    assert made.reach(3, 400.0)
    coordinators = {each.coordinator for node in made.nodes().values() for each in node.consensus_by_group.values()}
    assert coordinators
    assert first not in coordinators


def test_an_update_is_kept_before_it_is_sent() -> None:
    made = GroupCluster(world(), Faults(links=QUICK))
    kept: set[tuple[str, str, int, bytes]] = set()
    save = made.node_factory.driver().save

    def saving(peer: str, persist: Persist) -> bytes:
        if isinstance(persist.content, UpdateMade):
            place = peer, persist.content.group, persist.content.round
            assert place not in {each[:3] for each in kept}, "what is kept for a round is made once"
            kept.add((*place, persist.content.update))
        return save(peer, persist)

    sent = 0
    said = made.simulator.on_effect

    def on_event(peer: str, effect: Effect) -> None:
        nonlocal sent
        said(peer, effect)
        if isinstance(effect, Send) and isinstance(effect.message, Update):
            sent += 1
            told = effect.message
            assert (peer, told.group, told.round, told.content) in kept
            assert told.digest == content_digest(told.content)

    made.simulator._driver = replace(made.simulator._driver, save=saving)
    made.simulator.on_effect = on_event
    made.simulator.start()
    assert made.reach(2, 400.0)
    assert sent >= 2 * 8, "in each round all but the coordinators of their groups"


def test_among_equals_not_one_peer_coordinates_everything(cluster: GroupCluster) -> None:
    leading = {group: cluster.leading(group) for group in cluster.groups}
    assert all(leader in cluster.groups[group] for group, leader in leading.items())
    assert len(set(leading.values())) > 1


def test_what_is_kept_gives_the_same_peer_again(cluster: GroupCluster) -> None:
    """A peer that is restored from its disk is the same to the last bit."""
    for peer, node in cluster.nodes().items():
        cluster.run(cluster.simulator.now + 1.0)
        again = cluster.node_factory.node(peer, cluster.simulator.kept(peer)).durable
        assert again.places.keys() == node.durable.places.keys()
        if again.round == node.durable.round and again.trained == node.durable.trained:
            assert again.x_n.equal(node.durable.x_n)


def test_each_consensus_is_seen(cluster: GroupCluster) -> None:
    node = cluster.nodes()["peer3"]
    view = view_of(node, {})
    assert [consensus.id for consensus in view.consensus_by_group] == ["everyone", "left", "right"]
    assert [consensus.members for consensus in view.consensus_by_group] == [
        tuple(sorted(cluster.groups[c.id])) for c in view.consensus_by_group
    ]
    assert [consensus.coordinator for consensus in view.consensus_by_group] == [
        cluster.leading(c.id) for c in view.consensus_by_group
    ]
    assert view.groups == ()


def test_only_members_speak_in_a_consensus(cluster: GroupCluster) -> None:
    """A message is rejected by name if its sender or its recipient has no part in the group."""
    receiver = cluster.nodes()["peer4"]
    for group, code in (("left", "group_not_shared"), ("nothing", "unknown_group")):
        envelope = Envelope(
            federation=cluster.node_factory.roster.federation_id,
            sender="peer3",
            recipient="peer4",
            incarnation=1,
            to_incarnation=1,
        )
        data = b"".join(codec.encode(envelope, ModelRequest(group=group, digest=bytes(32))))
        found = codec.decode(data, receiver.policy("peer3"))
        assert isinstance(found, Rejection)
        assert found.code == code


def test_a_groups_voters_are_those_of_its_models() -> None:
    federation = Federation.model_validate({"partial_models": MODELS})
    plain = partial(group_voter_set, federation, parse_choice("partial-averaging"))
    roster = Roster(
        federation="f",
        authority=bytes(32),
        number=4,
        entries=(
            Entry(id="peer1", key=bytes(32), address="https://a:1"),
            Entry(id="peer2", key=bytes(32), address="https://a:2", voter=False),
            Entry(id="peer3", key=bytes(32), address="https://a:3"),
            Entry(id="peer4", key=bytes(32), address="https://a:4", voter=False),
            Entry(id="peer5", key=bytes(32), address="https://a:5", voter=False),
            Entry(id="new", key=bytes(32), address="https://a:6", models=("everyone", "left")),
        ),
    )
    assert plain("left", roster).members == {"peer1", "peer2", "peer3", "new"}
    assert plain("left", roster).voters == {"peer1", "peer3", "new"}
    assert plain("right", roster).voters == {"peer3"}
    assert plain("everyone", roster).members == set(roster.by_id)
    assert plain("left+right", roster).members == {"peer3"}
    alone = replace(roster, entries=tuple(each for each in roster.entries if each.id in ("peer4", "peer5")))
    assert plain("right", alone).voters == {"peer4", "peer5"}, "where none is a voter all are"
    everything = group_voter_set(federation, parse_choice("full-averaging"), "everyone", roster)
    assert everything.members == set(roster.by_id)


@pytest.mark.slow
def test_who_was_away_takes_the_newest_mean_over_and_goes_on_after_it() -> None:
    made = GroupCluster(world(), Faults(links=QUICK))
    simulator, entries, notes = made.simulator, list[object](), list[str]()
    simulator.start()
    assert made.reach(2, 400.0)
    simulator.kill("peer2")
    before = made.nodes()["peer1"].durable.round
    assert made.reach(before + 4, 2000.0), "the others go on"
    said = simulator.on_effect

    def on_event(peer: str, effect: Effect) -> None:
        said(peer, effect)
        if peer == "peer2" and isinstance(effect, Note):
            notes.append(effect.what)

    save = simulator._driver.save

    def saving(peer: str, persist: Persist) -> bytes:
        if peer == "peer2" and isinstance(persist.content, Averaged | Began | LocalTrained):
            entries.append(persist.content)
        return save(peer, persist)

    simulator.on_effect, simulator._driver = on_event, replace(simulator._driver, save=saving)
    simulator.start("peer2")
    assert made.run(simulator.now + 400.0, lambda: "caught_up" in notes)
    assert made.run(simulator.now + 100.0, lambda: any(isinstance(each, Began) for each in entries))
    began = next(each for each in entries if isinstance(each, Began))
    averaged = [each for each in entries[: entries.index(began)] if isinstance(each, Averaged)]
    assert began.round == 1 + max(each.round for each in averaged) > before + 4
    made.settle_down()


@pytest.mark.slow
def test_who_is_alone_pauses_in_all_groups() -> None:
    """A peer that is alone does not train round after round."""
    made = GroupCluster(world(), Faults(links=QUICK))
    simulator = made.simulator
    simulator.start()
    assert made.reach(2, 400.0)
    for peer in ("peer1", "peer2", "peer4", "peer5"):
        simulator.kill(peer)
    made.run(simulator.now + 100.0)
    round = made.nodes()["peer3"].durable.round
    made.run(simulator.now + 300.0)
    assert made.nodes()["peer3"].durable.round == round
    assert made.notes("rounds_paused") == ["peer3"] * 3, "in each of its groups"
    assert not made.notes("group_behind")
    simulator.start("peer1", "peer2")
    assert made.run(simulator.now + 800.0, lambda: min(made.rounds("left").values()) > round + 3), (
        "one of them is enough"
    )
