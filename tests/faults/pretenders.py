"""Members that lie about terms: whole peers that follow the protocol, and also send lies at each tick.

The lies travel like all messages: as bytes, through the codec and the policy of the receiver.
"""

from __future__ import annotations

from collections.abc import Collection

from fedpeer.peer.node.node import Node
from fedpeer.peer.state.events import Send
from fedpeer.peer.wire.messages import ConsensusMessage
from fedpeer.sims.network.driver import Driver
from fedpeer.sims.network.lies import ElectionLie
from fedpeer.sims.network.simulator import Simulator


def pretend(simulator: Simulator, driver: Driver, liars: dict[str, Collection[ElectionLie]], until: float) -> None:
    """Let each liar send its lies to all other members of each of its groups, at each tick from now until this one."""
    for peer, lies in liars.items():
        machine = simulator.machines().get(peer)
        assert machine is None or isinstance(machine, Node)
        if machine is None:
            continue
        state = machine.state
        for group, consensus in machine.consensus_by_group.items():
            for to in sorted(consensus.round_commit.election.voter_set.members - {peer}):
                for lie in lies:
                    for said in lie(consensus.round_commit.election, int(simulator.now)):
                        message = ConsensusMessage(group=group, message=said)
                        send = Send(to, message, state.durable.incarnation, state.durable.met.get(to, 0))
                        simulator._travel(peer, to, driver.encode(peer, send), simulator._arrived)
    if simulator.now + 1 < until:
        simulator.agenda.at(simulator.now + 1, lambda: pretend(simulator, driver, liars, until))
