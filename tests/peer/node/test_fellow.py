"""Peers whose groups average through coordinators: what they keep, what they say, who decides, and who may speak."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.methods import method_of
from fedpeer.peer.node.node_setup import group_electorate
from fedpeer.peer.runtime.view import view_of
from fedpeer.peer.state.entries import Averaged, Began, LocalTrained, UpdateMade
from fedpeer.peer.state.events import Effect, Note, Persist, Send, Train
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


#: Rounds of which somebody had a training begun, by peer.
TRAINED: dict[str, list[int]] = {}


@pytest.fixture(scope="module")
def guild() -> GroupCluster:
    """Five peers in three groups that have come to round 3."""
    made = GroupCluster(world(), Faults(links=QUICK))
    said = made.town.said

    def hear(peer: str, effect: Effect) -> None:
        said(peer, effect)
        if isinstance(effect, Train):
            TRAINED.setdefault(peer, []).append(effect.round)

    made.town.said = hear
    made.town.start()
    assert made.reach(3, 400.0)
    return made


def test_a_round_is_one_training_and_a_mean_in_each_group(guild: GroupCluster) -> None:
    for peer, node in guild.nodes().items():
        assert TRAINED[peer] == list(range(1, len(TRAINED[peer]) + 1))
        assert len(TRAINED[peer]) in (node.ledger.round, node.ledger.round - 1)
        assert set(node.ledger.chambers) == {group for group, members in guild.groups.items() if peer in members}


def test_an_update_is_kept_before_it_is_sent() -> None:
    made = GroupCluster(world(), Faults(links=QUICK))
    kept: set[tuple[str, str, int, bytes]] = set()
    save = made.residents.craft().save

    def saving(peer: str, persist: Persist) -> bytes:
        if isinstance(persist.content, UpdateMade):
            place = peer, persist.content.group, persist.content.round
            assert place not in {each[:3] for each in kept}, "what is kept for a round is made once"
            kept.add((*place, persist.content.update))
        return save(peer, persist)

    sent = 0
    said = made.town.said

    def hear(peer: str, effect: Effect) -> None:
        nonlocal sent
        said(peer, effect)
        if isinstance(effect, Send) and isinstance(effect.message, Update):
            sent += 1
            told = effect.message
            assert (peer, told.group, told.round, told.content) in kept
            assert told.digest == content_digest(told.content)

    made.town._craft = replace(made.town._craft, save=saving)
    made.town.said = hear
    made.town.start()
    assert made.reach(2, 400.0)
    assert sent >= 2 * 8, "in each round all but the coordinators of their groups"


def test_among_equals_not_one_peer_coordinates_everything(guild: GroupCluster) -> None:
    leading = {group: guild.leading(group) for group in guild.groups}
    assert all(leader in guild.groups[group] for group, leader in leading.items())
    assert len(set(leading.values())) > 1


def test_what_is_kept_gives_the_same_peer_again(guild: GroupCluster) -> None:
    """To the last bit, from what is on its disk."""
    for peer, node in guild.nodes().items():
        guild.run(guild.town.now + 1.0)
        again = guild.residents.node(peer, guild.town.kept(peer)).ledger
        assert again.places.keys() == node.ledger.places.keys()
        if again.round == node.ledger.round and again.trained == node.ledger.trained:
            assert again.x_n.equal(node.ledger.x_n)


def test_each_council_is_seen(guild: GroupCluster) -> None:
    node = guild.nodes()["peer3"]
    view = view_of(node, {})
    assert [council.id for council in view.councils] == ["everyone", "left", "right"]
    assert [council.members for council in view.councils] == [tuple(sorted(guild.groups[c.id])) for c in view.councils]
    assert [council.coordinator for council in view.councils] == [guild.leading(c.id) for c in view.councils]
    assert view.groups == ()


def test_only_members_speak_in_a_council(guild: GroupCluster) -> None:
    """Who has no part in a group is told so, and so is a member who speaks to one who has none."""
    receiver = guild.nodes()["peer4"]
    for group, code in (("left", "group_not_shared"), ("nothing", "unknown_group")):
        envelope = Envelope(
            federation=guild.residents.roster.federation_id,
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
    plain = partial(group_electorate, federation, method_of(parse_choice("partial-averaging")))
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
    everything = group_electorate(federation, method_of(parse_choice("full-averaging")), "everyone", roster)
    assert everything.members == set(roster.by_id)


@pytest.mark.slow
def test_who_was_away_takes_the_newest_mean_over_and_goes_on_after_it() -> None:
    made = GroupCluster(world(), Faults(links=QUICK))
    town, entries, notes = made.town, list[object](), list[str]()
    town.start()
    assert made.reach(2, 400.0)
    town.kill("peer2")
    before = made.nodes()["peer1"].ledger.round
    assert made.reach(before + 4, 2000.0), "the others go on"
    said = town.said

    def hear(peer: str, effect: Effect) -> None:
        said(peer, effect)
        if peer == "peer2" and isinstance(effect, Note):
            notes.append(effect.what)

    save = town._craft.save

    def saving(peer: str, persist: Persist) -> bytes:
        if peer == "peer2" and isinstance(persist.content, Averaged | Began | LocalTrained):
            entries.append(persist.content)
        return save(peer, persist)

    town.said, town._craft = hear, replace(town._craft, save=saving)
    town.start("peer2")
    assert made.run(town.now + 400.0, lambda: "caught_up" in notes)
    assert made.run(town.now + 100.0, lambda: any(isinstance(each, Began) for each in entries))
    began = next(each for each in entries if isinstance(each, Began))
    averaged = [each for each in entries[: entries.index(began)] if isinstance(each, Averaged)]
    assert began.round == 1 + max(each.round for each in averaged) > before + 4
    made.settle_down()


@pytest.mark.slow
def test_who_is_alone_pauses_in_all_groups() -> None:
    """It does not train round after round by itself."""
    made = GroupCluster(world(), Faults(links=QUICK))
    town = made.town
    town.start()
    assert made.reach(2, 400.0)
    for peer in ("peer1", "peer2", "peer4", "peer5"):
        town.kill(peer)
    made.run(town.now + 100.0)
    round = made.nodes()["peer3"].ledger.round
    made.run(town.now + 600.0)
    assert made.nodes()["peer3"].ledger.round == round
    assert made.notes("rounds_paused") == ["peer3"] * 3, "in each of its groups"
    assert not made.notes("group_behind")
    town.start("peer1", "peer2")
    assert made.run(town.now + 800.0, lambda: min(made.rounds("left").values()) > round + 3), "one of them is enough"
