"""Members that lie about terms: whole peers that do their part, and say more than that at each tick.

What they say goes the way of all messages: as bytes, through the codec and the gate of whoever hears it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from fedpeer.gossip.ballots import Answer, Canvass, Follow, Lead, Mandate, Message, Progress
from fedpeer.gossip.election import Election
from fedpeer.peer.core.events import Send
from fedpeer.peer.core.messages import Ballot
from fedpeer.peer.core.node import Node
from fedpeer.sims.network.craft import Craft
from fedpeer.sims.network.town import Town

FAR = Progress(10**6, 10**6, 10**6)
#: What a liar says to one member at a tick, by its own machine and the tick.
Lie = Callable[[Election, int], Iterator[Message]]


def rising(election: Election, now: int) -> Iterator[Message]:
    """Higher terms without a signature."""
    term = election.stand.term + 1 + now % 40
    yield Follow(term, Progress())
    yield Answer(term, bool(now % 2), False, b"")


def standing(election: Election, now: int) -> Iterator[Message]:
    """It stands, one term higher each time."""
    yield Canvass(election.stand.term + 1 + now % 15, False, election.electorate.number, FAR)


def promising(election: Election, now: int) -> Iterator[Message]:
    """It promises its vote to whoever may ask, and then refuses it."""
    yield Answer(election.stand.term + 1, True, True, b"")
    yield Answer(election.stand.term, False, False, b"")


def crowned(election: Election, now: int) -> Iterator[Message]:
    """It coordinates by its own vote."""
    me = election.me
    yield Lead(Mandate(election.stand.term + 1, me, election.electorate.number, ((me, bytes(64)),)), Progress())


LIES = (rising, standing, promising, crowned)


def pretend(town: Town, craft: Craft, liars: dict[str, Collection[Lie]], until: float) -> None:
    """From now on these say so to everybody, in each group of theirs, at each tick until this one."""
    for peer, lies in liars.items():
        machine = town.machines().get(peer)
        assert machine is None or isinstance(machine, Node)
        if machine is None:
            continue
        life = machine.life
        for group, council in machine.councils.items():
            for to in sorted(council.decrees.election.electorate.members - {peer}):
                for lie in lies:
                    for said in lie(council.decrees.election, int(town.now)):
                        ballot = Ballot(group=group, said=said)
                        send = Send(to, ballot, life.ledger.incarnation, life.ledger.met.get(to, 0))
                        town._travel(peer, to, craft.encode(peer, send), town._arrived)
    if town.now + 1 < until:
        town.agenda.at(town.now + 1, lambda: pretend(town, craft, liars, until))
