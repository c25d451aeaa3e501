"""A peer is revoked and readmitted under the same name, with another key: on its old disk, or on an empty one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedpeer.peer.state.events import NewRoster
from fedpeer.peer.wire.roster import Roster, sign
from fedpeer.sims.network.faults import Act, FaultKind, Faults
from fedpeer.sims.network.links import LinkRules
from tests.faults.peer_cluster import AUTHORITY, BACK_TICKS, PeerCluster, world

#: Tick at which the peer goes, ticks in which the others receive the roster without it, and ticks until it is back.
GOES, HEARD, COMES = 200.0, 150.0, 300.0
KINDS: Sequence[FaultKind] = ("kill", "lose", "old")


def readmitted(seed: int) -> None:
    """A readmitted peer comes back as a later incarnation or as a new peer; all others meet it and average with it,
    including those that were away meanwhile or receive both rosters at once, and its weight is accounted for."""
    made = world(4, gossip__topology=("complete", "ring")[seed % 2], gossip__wire=("float32", "int8")[seed // 2 % 2])
    acts = [Act(GOES, KINDS[seed // 2 % 3], "peer2", COMES)]
    if seed % 2:
        acts.append(Act(GOES - 5.0, "kill", "peer3", COMES - 20.0))
    links = LinkRules(delay=0.2, jitter=0.3 * (seed % 4), loss=0.05 * (seed % 3))
    faults = Faults(seed=seed, links=links, acts=tuple(acts), heal=GOES + COMES)
    cluster = PeerCluster(made, faults, forgetful=True, roster=made.peers)
    simulator = cluster.simulator
    simulator.start()
    cluster.run(GOES + 10.0)
    before = cluster.durable_states()["peer2"].incarnation
    rest = [peer for peer in made.peers if peer != "peer2"]
    _distribute(cluster, cluster.signed(2, rest), rest)
    cluster.run(simulator.now + HEARD)
    again = cluster.signed(3, made.peers)
    cluster.node_factory.keys["peer2"] = key = bytes(range(32))
    entries = tuple(replace(each, key=key) if each.id == "peer2" else each for each in again.entries)
    _distribute(cluster, sign(replace(again, entries=entries), AUTHORITY), made.peers)
    cluster.healed()
    assert cluster.run(simulator.now + BACK_TICKS, cluster.together), cluster.phases()
    now = cluster.durable_states()["peer2"].incarnation
    assert now > before or KINDS[seed // 2 % 3] == "lose", "it comes back as a later incarnation"
    cluster.look()
    cluster.exchange(2 * cluster.predicted(1e-6))
    cluster.look()
    cluster.judge(strangers=["peer2"])
    assert cluster.disagreement() <= 1e-6


def _distribute(cluster: PeerCluster, roster: Roster, peers: Sequence[str]) -> None:
    cluster.admit(roster, peers)
    for peer in peers:
        if peer in cluster.simulator.machines():
            cluster.simulator.feed(peer, NewRoster(roster))


#: By name.
READMITTED = {readmitted.__name__: readmitted}
