"""Peers whose groups average through coordinators: what they keep and send, who decides, and who may send.

Some of them exchange shares in another group beside that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.peer.node.node_setup import group_voter_set
from fedpeer.peer.runtime.view import view_of
from fedpeer.peer.state.durable_state import DurableState
from fedpeer.peer.state.entries import Averaged, Began, LocalTrained, UpdateMade
from fedpeer.peer.state.events import Effect, Note, Persist, Reachability, Send, Train
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import Hello, ModelRequest, Update
from fedpeer.peer.wire.roster import Roster, RosterEntry
from fedpeer.peer.wire.tails import content_digest
from fedpeer.rejection import Rejection
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from fedpeer.sims.world import World
from tests.faults.group_cluster import MODELS, GroupCluster, world, world_with_shares

QUICK = LinkRules(delay=0.2, jitter=0.2)


class Watched(GroupCluster):
    """A cluster of five peers that has reached round 3 of its groups with coordinators.

    trained   rounds for which trainings were begun, by peer
    """

    def __init__(self, made: World) -> None:
        super().__init__(made, Faults(links=QUICK))
        self.trained: dict[str, list[int]] = {}
        said = self.simulator.on_effect

        def on_event(peer: str, effect: Effect) -> None:
            said(peer, effect)
            if isinstance(effect, Train):
                self.trained.setdefault(peer, []).append(effect.round)

        self.simulator.on_effect = on_event
        self.simulator.start()
        assert self.reach(3, 400.0)


@pytest.fixture(scope="module")
def cluster() -> Watched:
    return Watched(world())


@pytest.fixture(scope="module")
def beside() -> Watched:
    """Return a cluster whose peers exchange shares in the group of all."""
    return Watched(world_with_shares())


@pytest.fixture(params=["cluster", "beside"])
def either(request: pytest.FixtureRequest) -> Watched:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Watched)
    return found


@pytest.mark.slow
def test_a_round_is_one_training_and_a_mean_in_each_group(either: Watched) -> None:
    for peer, node in either.nodes().items():
        assert either.trained[peer] == list(range(1, len(either.trained[peer]) + 1))
        assert len(either.trained[peer]) in (node.durable.round, node.durable.round - 1)
        assert set(node.durable.consensus_states) == {
            group for group, members in either.groups.items() if peer in members
        }


@pytest.mark.slow
def test_a_round_is_over_when_the_mean_is_there_and_the_shares_are_exchanged(beside: Watched) -> None:
    """Peers that have begun a round have taken over the means of the one before, and closed all of its exchanges."""
    assert set(beside.groups) == {"left", "right"}
    for _ in range(40):
        beside.run(beside.simulator.now + 1.0)
        for peer, node in beside.nodes().items():
            exchanges, done = node.state.peer_groups.averaging["everyone"].exchanges, node.durable.round - 1
            assert node.durable.groups["everyone"].at >= (done, exchanges), peer
            assert all(each.settled >= done for each in node.durable.consensus_states.values()), peer
            assert node.durable.groups.keys() == {"everyone"}


def test_a_hello_lists_groups_in_the_plans_order() -> None:
    """The order of a set would depend on the interpreter's hash seed, and so would the bytes of a simulated run."""
    names = [f"part{number}" for number in range(8)]
    models = {name: {"neurons": {"hidden1": 1}} for name in names}
    parted = world.__wrapped__(network="mlp:64+12+10", partial_models=MODELS | models)
    made = GroupCluster(parted, Faults(links=QUICK))
    hellos: list[Hello] = []
    said = made.simulator.on_effect

    def on_event(peer: str, effect: Effect) -> None:
        said(peer, effect)
        if isinstance(effect, Send) and isinstance(effect.message, Hello):
            hellos.append(effect.message)

    made.simulator.on_effect = on_event
    made.simulator.start()
    made.run(20.0)
    order = list(made.nodes()["peer3"].state.peer_groups.consensus_by_group)
    listed = [[group for group, _ in hello.groups] for hello in hellos]
    assert max(map(len, listed)) > len(names)
    assert listed == [[group for group in order if group in each] for each in listed]


@pytest.mark.slow
def test_who_has_no_mean_goes_on_with_the_shares_after_a_while() -> None:
    """`right` has no majority: peer3 goes on in the two other groups, and says so once."""
    made = GroupCluster(world_with_shares(), Faults(links=QUICK))
    simulator = made.simulator
    simulator.start()
    assert made.reach(2, 400.0)
    simulator.kill("peer4")
    simulator.kill("peer5")
    left, right = made.rounds("left"), made.rounds("right")
    made.run(simulator.now + 300.0)
    assert min(made.rounds("left").values()) > max(left.values()) + 3
    assert made.rounds("right") == {"peer3": right["peer3"]}, "no round without a majority"
    assert made.notes("group_behind") == ["peer3"]
    simulator.start("peer4", "peer5")
    made.settle_down()


def test_a_mean_in_force_is_no_sign_that_a_neighbours_round_is_over(beside: Watched) -> None:
    """Peers still wait for the neighbor's shares of the round, and do not go on without them."""
    went = [row for row in beside.simulator.rows if row[1] == "note" and row[3] == "went_on_without"]
    assert not went


@pytest.mark.slow
def test_a_peer_to_which_nobody_can_connect_coordinates_nothing_where_another_can(cluster: Watched) -> None:
    first = cluster.nodes()["peer1"].consensus_by_group["everyone"].coordinator
    assert first is not None
    made = GroupCluster(world(), Faults(links=QUICK))
    made.simulator.start()
    made.simulator.feed(first, Reachability(False))
    assert made.reach(3, 400.0)
    coordinators = {each.coordinator for node in made.nodes().values() for each in node.consensus_by_group.values()}
    assert coordinators
    assert first not in coordinators


@pytest.mark.slow
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


def test_among_equals_not_one_peer_coordinates_everything(cluster: Watched) -> None:
    leading = {group: cluster.leading(group) for group in cluster.groups}
    assert all(leader in cluster.groups[group] for group, leader in leading.items())
    assert len(set(leading.values())) > 1


def place(durable: DurableState) -> tuple[object, ...]:
    """Return how far a peer has come: its round, whether it has trained, and the means that it has taken over."""
    return durable.round, durable.trained, {group: each.settled for group, each in durable.consensus_states.items()}


@pytest.mark.slow
def test_what_is_kept_gives_the_same_peer_again(either: Watched) -> None:
    """A peer that is restored from its disk is the same to the last bit."""
    for peer, node in either.nodes().items():
        either.run(either.simulator.now + 1.0)
        again = either.node_factory.node(peer, either.simulator.kept(peer)).durable
        assert again.places.keys() == node.durable.places.keys()
        assert again.groups.keys() == node.durable.groups.keys()
        if place(again) == place(node.durable):  # else something of it is not saved yet
            assert again.x_n.equal(node.durable.x_n)


def test_each_consensus_is_seen_beside_the_groups_that_have_none(beside: Watched) -> None:
    view = view_of(beside.nodes()["peer3"], {})
    assert [consensus.id for consensus in view.consensus_by_group] == ["left", "right"]
    assert [group.id for group in view.groups] == ["everyone"]
    assert view_of(beside.nodes()["peer3"], {}).state in ("training", "averaging")


def test_each_consensus_is_seen(cluster: Watched) -> None:
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


def test_only_members_speak_in_a_consensus(either: Watched) -> None:
    """A message is rejected by name if its sender or its recipient has no part in the group."""
    receiver = either.nodes()["peer4"]
    for group, code in (("left", "group_not_shared"), ("nothing", "unknown_group")):
        envelope = Envelope(
            federation=either.node_factory.roster.federation_id,
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
            RosterEntry(id="peer1", key=bytes(32), address="https://a:1"),
            RosterEntry(id="peer2", key=bytes(32), address="https://a:2", voter=False),
            RosterEntry(id="peer3", key=bytes(32), address="https://a:3"),
            RosterEntry(id="peer4", key=bytes(32), address="https://a:4", voter=False),
            RosterEntry(id="peer5", key=bytes(32), address="https://a:5", voter=False),
            RosterEntry(id="new", key=bytes(32), address="https://a:6", models=("everyone", "left")),
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
@pytest.mark.parametrize("build", [world, world_with_shares], ids=["means", "means and shares"])
def test_who_was_away_takes_the_newest_mean_over_and_goes_on_after_it(build: Callable[[], World]) -> None:
    made = GroupCluster(build(), Faults(links=QUICK))
    simulator, entries, notes = made.simulator, list[object](), list[str]()
    simulator.start()
    assert made.reach(2, 400.0)
    simulator.kill("peer2")
    before = made.nodes()["peer1"].durable.round
    assert made.reach(before + 2, 2000.0), "the others go on"
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
    assert began.round == 1 + max(each.round for each in averaged) > before + 2
    made.settle_down()


@pytest.mark.slow
def test_a_coordinators_rounds_do_not_lead_a_peer_away_from_those_with_which_it_exchanges_shares() -> None:
    """peer3 trains ten times as long as the others: one group goes on without it, and the other one waits for it."""
    models = {
        "left": {
            "neurons": {"input": "all", "hidden1": 1},
            "members": ["peer1", "peer2", "peer3"],
            "gossip": {"deadline": 0.5},
        },
        "right": {
            "neurons": {"hidden1": 1, "output": "all"},
            "members": ["peer3", "peer4", "peer5"],
            "gossip": {"protocol": "push-sum"},
        },
    }
    made = GroupCluster(world.__wrapped__(partial_models=models, gossip__deadline=20.0), Faults(links=QUICK))
    made.node_factory.pace["peer3"] = 10.0
    late: set[str] = set()
    said = made.simulator.on_effect

    def on_event(peer: str, effect: Effect) -> None:
        said(peer, effect)
        if isinstance(effect, Note) and effect.what == "went_on_without":
            late.add(str(effect.fields["group"]))

    made.simulator.on_effect = on_event
    made.simulator.start()
    made.run(700.0)
    rounds = {peer: node.durable.round for peer, node in made.nodes().items()}
    assert late == {"left"}
    assert max(rounds["peer1"], rounds["peer2"]) > 2 * rounds["peer3"] > 8
    assert max(rounds["peer4"], rounds["peer5"]) - rounds["peer3"] <= 1
    assert made.rounds("left")["peer3"] > rounds["peer3"], "it has the newest mean, whatever its own round"
    made.judge()


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
