"""How a peer goes. That nothing is lost where others take it, whatever the links do: `tests/faults/scenarios.py`."""

from __future__ import annotations

from fedpeer.peer.core.events import Asked
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules, partition
from tests.faults.scenarios import CALM
from tests.faults.village import Village, world

#: Ticks of the 5 s in which somebody may take what a leaver holds, and of its farewell.
PATIENCE, FAREWELL = 200, 13


def test_who_leaves_alone_says_that_nobody_took_it() -> None:
    village = Village(world(2), Faults(seed=1, links=LinkRules(delay=0.2)))
    town = village.town
    town.start()
    village.run(CALM)
    town.kill("peer2")
    asked = town.now
    town.tell("peer1", Asked("leave"))
    assert village.run(asked + PATIENCE + FAREWELL + 1, lambda: "peer1" in town.stopped)
    assert town.stopped["peer1"].text == "left; what nobody took is written off"
    assert [peer for _, peer in village.notes("written_off", since=asked + PATIENCE - 1)] == ["peer1"]
    assert len(village.notes("written_off")) == 1


def test_who_finds_takers_goes_before_its_time_and_says_so() -> None:
    village = Village(world(2), Faults(seed=1, links=LinkRules(delay=0.2)))
    town = village.town
    town.start()
    village.run(CALM)
    asked = town.now
    town.tell("peer1", Asked("leave"))
    assert village.run(asked + PATIENCE / 4, lambda: "peer1" in town.stopped)
    assert town.stopped["peer1"].text == "left; what was held is handed over"
    (group,) = village.groups
    assert village.weight(["peer2"], group) == 2.0


def test_who_leaves_and_is_not_heard_loses_no_more_than_its_own() -> None:
    """The others go on giving to it, since they cannot know; it takes nothing of that."""
    (mute, _) = partition(CALM, CALM + 2 * PATIENCE, ["peer1"], ["peer2"])
    village = Village(world(2), Faults(seed=1, links=LinkRules(delay=0.2), cuts=(mute,)))
    town = village.town
    town.start()
    village.run(CALM)
    (group,) = village.groups

    def own() -> float:
        holding = village.ledgers()["peer1"].groups[group]
        return holding.weight + sum(parcel.weight for lane in holding.out.values() for parcel in lane.open)

    before = own()
    town.tell("peer1", Asked("leave"))
    assert village.run(town.now + PATIENCE + FAREWELL + 1, lambda: "peer1" in town.stopped)
    heard = [row for row in town.rows if row[0] > CALM and row[1:] == ("heard", "peer1", "Transfer", "peer2")]
    assert heard, "the other one gave"
    assert own() == before
