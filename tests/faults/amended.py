"""A contract that changes while whole peers run: all switch to it, whatever is in transit, and none goes back.

The peers of an `Amended` cluster begin with one contract, and its authority signs the next one, which holds from a
given round on. Conservation is checked after every step, as in any cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedpeer.config.contract import contract_of, text_of
from fedpeer.learning.wire_forms import succeeding
from fedpeer.peer.node.node import Node
from fedpeer.peer.node.node_setup import setup_of
from fedpeer.peer.state.events import AggregateUpdates, Effect, NewContract, NewRoster, Send, Train
from fedpeer.peer.wire.messages import Update
from fedpeer.peer.wire.roster import Roster
from fedpeer.peer.wire.signed_contract import SignedContract, sign_contract
from fedpeer.sims.network.driver import Machine
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules, partition
from fedpeer.sims.network.node_factory import NodeFactory
from fedpeer.sims.world import World
from tests.faults.group_cluster import GroupCluster, world_with_shares
from tests.faults.group_cluster import world as groups_world
from tests.faults.peer_cluster import AUTHORITY, PeerCluster, world

#: Changes by name: the settings before and after.
CHANGES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "exchanges": ({}, {"gossip__exchanges": 4}),
    "to int8": ({}, {"gossip__wire": "int8"}),
    "from int8": ({"gossip__wire": "int8"}, {}),
    "to bytes": ({"gossip__wire": "bfloat16"}, {"gossip__wire": "int8/zstd"}),
    "to float64": ({"gossip__wire": "float32/zstd"}, {"gossip__wire": "float64"}),
    "to top-k": ({"gossip__wire": "int8"}, {"gossip__wire": "top-k:0.5"}),
    "to push-pull": ({}, {"gossip__protocol": "push-pull"}),
    "from push-pull": ({"gossip__protocol": "push-pull"}, {}),
    "to exact": ({"gossip__wire": "int8"}, {"gossip__protocol": "exact"}),
    "to drift": ({}, {"gossip__drift": 0.05}),
    "from drift": ({"gossip__drift": 0.05}, {}),
}
#: The round from which the next contract holds; and ticks within which all peers switch to it.
STARTS, OVER_TICKS = 5, 2000.0


def signed_contract(node_factory: NodeFactory, before: World, after: World) -> SignedContract:
    """Return the next contract, signed; a peer that switches to it uses the world `after`."""
    text = text_of(succeeding(contract_of(before.options), contract_of(after.options)), str(node_factory.method))
    public = AUTHORITY.public_key().public_bytes_raw()
    node_factory.later[text] = after
    return sign_contract(SignedContract(authority=public, number=1, starts=STARTS, text=text), AUTHORITY)


class Amended(PeerCluster):
    """One run in which the contract changes.

    Attributes:
        trained  by peer, (number of the contract, round) of each training, in order
    """

    def __init__(self, before: World, after: World, faults: Faults, roster: Sequence[str] = ()) -> None:
        # A peer that comes in takes over values, and adds none of its own.
        super().__init__(before, faults, roster=roster or before.peers, forgetful=bool(roster))
        self.trained: dict[str, list[tuple[int, int]]] = {peer: [] for peer in before.peers}
        self.simulator.on_effect = self._said
        self.contract = signed_contract(self.node_factory, before, after)

    def admit(self, roster: Roster, peers: Iterable[str]) -> None:
        for peer in peers:
            held, signed = (self.node_factory.setups[peer].held, self.node_factory.setups[peer].signed)
            made = self.node_factory.later.get(held.text, self.made)
            method = self.node_factory.method
            setup = setup_of(made, roster, peer, nonce=0, method=method, held=held, signed=signed)
            self.node_factory.setups[peer] = setup

    def _said(self, peer: str, effect: Effect) -> None:
        if isinstance(effect, Train):
            self.trained[peer].append((self.node(peer).setup.held.number, effect.round))

    def gone_over(self) -> bool:
        """Return whether all peers live and use the newest contract."""
        nodes = self.nodes()
        return len(nodes) == len(self.simulator.peers) and all(
            node.setup.held.number == self.contract.number and node.phase == "learning" for node in nodes.values()
        )

    def judge_change(self) -> None:
        """Check, after all have switched, that they average to the true mean and that none went back."""
        self.healed()
        self.exchange(2 * self.predicted(1e-6))
        self.judge()
        for peer, trained in self.trained.items():
            assert trained == sorted(trained), f"{peer} went back: {trained}"
            assert all(round >= STARTS for number, round in trained if number), trained
        assert self.error() <= 1e-6, f"{self.error()} from the true mean"


def amended(seed: int) -> None:
    """Running peers switch to another contract in the round from which it holds: mass is exact at every step, and the
    average is the true one under either contract."""
    before, after = list(CHANGES.values())[seed % len(CHANGES)]
    links = LinkRules(delay=0.2, jitter=0.5 * (seed % 4), loss=0.1 * (seed % 3), repeat=0.1)
    cluster = Amended(world(4, **before), world(4, **after), Faults(seed=seed, links=links, heal=400.0))
    cluster.simulator.start()
    cluster.run(100.0)
    cluster.simulator.feed("peer1", NewContract(cluster.contract))
    assert cluster.run(cluster.simulator.now + OVER_TICKS, cluster.gone_over), cluster.phases()
    cluster.judge_change()


def amended_newcomer(seed: int) -> None:
    """A peer that is admitted after a change, and has only the first contract, switches before it begins: it takes over
    the values of the others and averages with them, and mass is exact."""
    before, after = list(CHANGES.values())[seed % len(CHANGES)]
    cluster = Amended(
        world(4, **before),
        world(4, **after),
        Faults(seed=seed, links=LinkRules(delay=0.2, jitter=0.5, loss=0.05 * (seed % 3))),
        roster=["peer1", "peer2", "peer3"],
    )
    simulator = cluster.simulator
    simulator.start("peer1", "peer2", "peer3")
    cluster.run(100.0)
    simulator.feed("peer1", NewContract(cluster.contract))

    def there() -> bool:
        rounds = [node.durable.round for node in cluster.nodes().values() if node.setup.held.number]
        return len(rounds) == 3 and min(rounds) > STARTS

    assert cluster.run(simulator.now + OVER_TICKS, there), cluster.phases()
    everybody = cluster.signed(2, cluster.made.peers)
    cluster.admit(everybody, cluster.made.peers)
    for peer in ("peer1", "peer2", "peer3"):
        simulator.feed(peer, NewRoster(everybody))
    simulator.start("peer4")
    assert cluster.run(simulator.now + OVER_TICKS, cluster.together), cluster.phases()
    assert cluster.gone_over()
    cluster.look()
    cluster.exchange(2 * cluster.predicted(1e-6))
    cluster.judge()
    assert {number for number, _ in cluster.trained["peer4"]} == {1}, "it trains under the newest from the first on"
    assert "joined" in {row[3] for row in simulator.rows if row[1:3] == ("note", "peer4")}
    assert cluster.disagreement() <= 1e-6


#: Effects that a peer carries out in some two rounds, before and after the change; ticks for which it is away.
AROUND, AWAY = 120, 30.0
#: Tick at which a peer that has not received the next contract is cut off.
CUT = 400.0


def amended_killed(seed: int) -> None:
    """A peer is killed after any effect around the change, once or twice, and restarted: mass is exact at every step,
    all peers use the new contract in the end, and none uses the old one after it has begun the new one."""
    before, after = list(CHANGES.values())[seed % len(CHANGES)]
    faults = Faults(seed=seed, links=LinkRules(delay=0.2, jitter=0.3, loss=0.05 * (seed % 3)), heal=400.0)
    cluster = Amended(world(4, **before), world(4, **after), faults)
    simulator, victim = cluster.simulator, f"peer{1 + seed // len(CHANGES) % 4}"
    simulator.start()
    assert cluster.run(OVER_TICKS, lambda: max(node.durable.round for node in cluster.nodes().values()) == STARTS - 2)
    simulator.feed(f"peer{1 + seed % 4}", NewContract(cluster.contract))
    for again in range(1 + seed % 2):
        simulator.kill_after(victim, simulator.carried[victim] + 1 + (7 * seed + 11 * again) % AROUND, AWAY)
        assert cluster.run(simulator.now + OVER_TICKS, lambda: victim not in simulator.machines()), "it was not killed"
        assert cluster.run(simulator.now + 10 * AWAY, lambda: victim in simulator.machines())
    assert cluster.run(simulator.now + OVER_TICKS, cluster.gone_over), cluster.phases()
    cluster.judge_change()


def amended_groups(seed: int) -> None:
    """The contract changes where a coordinator leads each group: each round has one mean, no peer is left behind, and
    where the contracts differ in something that concerns a group, no mean is of updates that were sent under both."""
    _amended_with_coordinators(groups_world, seed)


def amended_slices(seed: int) -> None:
    """Change a federation in which all peers exchange shares beside groups with coordinators."""
    _amended_with_coordinators(world_with_shares, seed)


def _amended_with_coordinators(made: Callable[..., World], seed: int) -> None:
    changed = ({"learning__batch_size": 4}, {"gossip__exchanges": 3})[seed % 2]
    before, after = made(), made(**changed)
    links = LinkRules(delay=0.2, jitter=0.3 * (seed % 3), loss=0.05 * (seed % 4))
    victim = f"peer{1 + seed % 5}"
    rest = [peer for peer in before.peers if peer != victim]
    cuts = partition(CUT, CUT + 10 * AWAY, [victim], rest) if seed % 4 == 3 else ()
    cluster = GroupCluster(
        before, Faults(seed=seed, links=links, cuts=cuts, heal=CUT + 10 * AWAY + 100.0), roster=before.peers
    )
    simulator = cluster.simulator
    contract = signed_contract(cluster.node_factory, before, after)
    told: dict[str, list[int]] = {peer: [] for peer in before.peers}
    stepped = simulator.stepped

    def look(peer: str, machine: Machine) -> None:
        stepped(peer, machine)
        assert isinstance(machine, Node)
        told[peer].append(machine.setup.held.number)

    under: dict[tuple[str, str, int, bytes], set[int]] = {}
    said = simulator.on_effect

    def mixed(peer: str, effect: Effect) -> None:
        """Record under which contract each update is sent, and check that each mean is of updates under its own."""
        said(peer, effect)
        match effect:
            case Send(message=Update(group=group, round=round, content=content)):
                under.setdefault((peer, group, round, content), set()).add(cluster.nodes()[peer].setup.held.number)
            case AggregateUpdates(group=group, round=round, updates=updates) if seed % 2:
                mine = cluster.nodes()[peer].setup.held.number
                for sender in updates.keys() - {peer}:
                    if mine not in under[sender, group, round, updates[sender]]:
                        cluster.seen.wrong.append(f"{peer} counts what {sender} sent under another contract")

    simulator.stepped, simulator.on_effect = look, mixed
    simulator.start()
    late = STARTS - 2 + seed % 4  # some receive it when they are past the round from which it holds
    assert cluster.reach(late, OVER_TICKS), {each: cluster.rounds(each) for each in cluster.groups}
    cluster.run(max(simulator.now, CUT + 10.0 if cuts else 0.0))
    teller = rest[seed // 2 % 4]
    simulator.feed(teller, NewContract(contract))
    simulator.kill_after(victim, simulator.carried[victim] + 1 + 7 * seed % (2 * AROUND), AWAY)
    over = cluster.run(
        simulator.now + OVER_TICKS,
        lambda: len(cluster.nodes()) == 5 and all(node.setup.held.number for node in cluster.nodes().values()),
    )
    assert over, {peer: (node.setup.held.number, node.durable.round) for peer, node in cluster.nodes().items()}
    cluster.settle_down()
    assert all(numbers == sorted(numbers) for numbers in told.values())


#: Scenarios by name.
AMENDED = {
    scenario.__name__: scenario
    for scenario in (amended, amended_newcomer, amended_killed, amended_groups, amended_slices)
}
