"""Peers of two releases in one federation: each pair finds the wire version that both know, in any order of upgrades,
and averages in it.

An older release is one that knows no newer frames: it rejects them by name, and sends none.
"""

from __future__ import annotations

import pytest

from fedpeer.peer.state.events import Effect, MessageReceived, Note
from fedpeer.peer.state.neighbor import HELLO_MAX
from fedpeer.peer.wire.messages import RejectMessage
from fedpeer.peer.wire.versions import NEWEST, OLDEST
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from tests.faults.peer_cluster import PeerCluster, world

PEERS = world(4).peers


def cluster(seed: int, *old: str, links: LinkRules | None = None, heal: float = 0.0) -> PeerCluster:
    """Return a cluster in which these peers have the older release."""
    rules = links or LinkRules(delay=0.2, jitter=1.0)
    made = PeerCluster(world(4), Faults(seed=seed, links=rules, heal=heal), look_every=20.0)
    made.node_factory.speaks.update(dict.fromkeys(old, OLDEST))
    made.simulator.start()
    return made


def spoken(made: PeerCluster) -> dict[tuple[str, str], int]:
    """Return the version in which each peer sends to each other one that it has met."""
    return {
        (one, other): known.version
        for one, node in made.nodes().items()
        for other, known in node.state.others.items()
        if known.met
    }


def warned(effect: Effect) -> bool:
    """Return whether this is a warning about versions."""
    return isinstance(effect, Note) and effect.level == "warning" and "version" in f"{effect.what} {effect.text}"


@pytest.mark.parametrize("old", [(), PEERS[:1], PEERS[:2], pytest.param(PEERS, marks=pytest.mark.soak)])
def test_each_pair_speaks_what_both_know_and_averages(old: tuple[str, ...]) -> None:
    made = cluster(1, *old)
    made.run(100.0)
    found = spoken(made)
    assert len(found) == 12
    for (one, other), version in found.items():
        assert version == (OLDEST if other in old else NEWEST) or one in old
    assert min(node.durable.round for node in made.nodes().values()) > 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_peers_are_upgraded_one_after_the_other_while_all_go_on(seed: int) -> None:
    """An upgraded peer sends in the newer version first, from which a peer that took it for an old one learns of the
    upgrade. Packets are lost, and overtake one another, all the while."""
    links = LinkRules(delay=0.2, jitter=2.0, loss=0.1, repeat=0.1, reorder=0.3)
    made = cluster(seed, *PEERS, links=links, heal=600.0)
    warnings: list[str] = []
    made.simulator.on_effect = lambda peer, effect: warnings.append(str(effect)) if warned(effect) else None
    for number, peer in enumerate(PEERS):
        made.run(120.0 * (number + 1))
        rounds = {each: node.durable.round for each, node in made.nodes().items()}
        assert min(rounds.values()) > number, "averaging goes on"
        made.simulator.kill(peer)
        del made.node_factory.speaks[peer]
        made.simulator.start(peer)
    made.run(800.0)
    assert set(spoken(made).values()) == {NEWEST}
    assert len(spoken(made)) == 12
    assert made.far < 1e-9
    assert warnings == [], "who finds the version that both speak has nothing to warn of"


def test_who_goes_back_to_the_older_release_is_spoken_to_in_its_version() -> None:
    made = cluster(0)
    made.run(60.0)
    made.simulator.kill(PEERS[0])
    made.node_factory.speaks[PEERS[0]] = OLDEST
    made.simulator.start(PEERS[0])
    made.run(200.0)
    found = spoken(made)
    assert {found[other, PEERS[0]] for other in PEERS[1:]} == {OLDEST}
    assert {found[one, other] for one in PEERS[1:] for other in PEERS[1:] if one != other} == {NEWEST}


def test_a_release_that_speaks_neither_version_is_warned_of() -> None:
    """A release that rejects both versions is warned of only later: rejections soon after the first one concern
    messages that were in transit in the newer version; a later rejection concerns one in the older version."""
    made = cluster(0)
    made.run(50.0)
    node, other = made.node(PEERS[0]), PEERS[1]

    def refuses() -> list[Note]:
        refused = RejectMessage(
            code="version_unsupported", group="", seq=0, text="version 2; this release speaks 3 and 4"
        )
        effects = node.step(MessageReceived(other, 1, node.durable.incarnation, refused))
        return [effect for effect in effects if isinstance(effect, Note)]

    for each in PEERS[1:]:
        made.simulator.kill(each)
    made.run(60.0)
    assert [note.what for note in refuses()] == ["older_version"]
    assert refuses() == []
    made.run(made.simulator.now + HELLO_MAX + 1)
    assert [note.level for note in refuses() if warned(note)] == ["warning"]
