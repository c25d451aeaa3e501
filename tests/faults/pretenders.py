"""Members that lie about terms: whole peers that do their part, and say more than that at each tick.

What they say goes the way of all messages: as bytes, through the codec and the policy of whoever hears it.
"""

from __future__ import annotations

from collections.abc import Collection

from fedpeer.peer.node.node import Node
from fedpeer.peer.state.events import Send
from fedpeer.peer.wire.messages import ConsensusMessage
from fedpeer.sims.network.driver import Driver
from fedpeer.sims.network.lies import Said
from fedpeer.sims.network.simulator import Simulator


def pretend(town: Simulator, craft: Driver, liars: dict[str, Collection[Said]], until: float) -> None:
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
                        ballot = ConsensusMessage(group=group, said=said)
                        send = Send(to, ballot, life.ledger.incarnation, life.ledger.met.get(to, 0))
                        town._travel(peer, to, craft.encode(peer, send), town._arrived)
    if town.now + 1 < until:
        town.agenda.at(town.now + 1, lambda: pretend(town, craft, liars, until))
