"""A contract that changes under whole peers: all go over to it, whatever was under way, and none goes back.

The peers of an `Amended` village begin with one contract, and its authority signs the next one, which holds from a
round on. Conservation is looked at after every step, as in any village.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from tests.faults.group_cluster import GroupCluster
from tests.faults.group_cluster import world as groups_world
from tests.faults.peer_cluster import AUTHORITY, PeerCluster, world

#: What changes, from these settings to those.
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
#: The round from which the next contract holds; and ticks in which all go over to it.
STARTS, OVER_TICKS = 5, 2000.0


def signed_contract(residents: NodeFactory, before: World, after: World) -> SignedContract:
    """The next contract, signed; whoever goes over to it lives in that world."""
    text = text_of(succeeding(contract_of(before.asked), contract_of(after.asked)), str(residents.method))
    public = AUTHORITY.public_key().public_bytes_raw()
    residents.later[text] = after
    return sign_contract(SignedContract(authority=public, number=1, starts=STARTS, text=text), AUTHORITY)


class Amended(PeerCluster):
    """One run.

    Attributes:
        trained  by peer, (number of the contract, round) of each training, in their order
    """

    def __init__(self, before: World, after: World, faults: Faults, roster: Sequence[str] = ()) -> None:
        # Who comes in takes over values, and adds none of its own.
        super().__init__(before, faults, roster=roster or before.peers, forgetful=bool(roster))
        self.trained: dict[str, list[tuple[int, int]]] = {peer: [] for peer in before.peers}
        self.town.said = self._said
        self.contract = signed_contract(self.residents, before, after)

    def admit(self, roster: Roster, peers: Iterable[str]) -> None:
        for peer in peers:
            held, signed = (self.residents.setups[peer].held, self.residents.setups[peer].signed)
            made = self.residents.later.get(held.text, self.made)
            method = self.residents.method
            setup = setup_of(made, roster, peer, nonce=0, method=method, held=held, signed=signed)
            self.residents.setups[peer] = setup

    def _said(self, peer: str, effect: Effect) -> None:
        if isinstance(effect, Train):
            self.trained[peer].append((self.node(peer).setup.held.number, effect.round))

    def gone_over(self) -> bool:
        """Whether all live and go by the newest contract, as does what their disks hold."""
        nodes = self.nodes()
        return len(nodes) == len(self.town.peers) and all(
            node.setup.held.number == self.contract.number and node.phase == "learning" for node in nodes.values()
        )

    def judge_change(self) -> None:
        """After all have gone over: they average, to the true mean, and no one went back."""
        self.healed()
        self.exchange(2 * self.predicted(1e-6))
        self.judge()
        for peer, trained in self.trained.items():
            assert trained == sorted(trained), f"{peer} went back: {trained}"
            assert all(round >= STARTS for number, round in trained if number), trained
        assert self.error() <= 1e-6, f"{self.error()} from the true mean"


def amended(seed: int) -> None:
    """Running peers go over to another contract in the round from which it holds: mass is exact at every step, and
    the average is the true one under either."""
    before, after = list(CHANGES.values())[seed % len(CHANGES)]
    links = LinkRules(delay=0.2, jitter=0.5 * (seed % 4), loss=0.1 * (seed % 3), repeat=0.1)
    village = Amended(world(4, **before), world(4, **after), Faults(seed=seed, links=links, heal=600.0))
    village.town.start()
    village.run(100.0)
    village.town.tell("peer1", NewContract(village.contract))
    assert village.run(village.town.now + OVER_TICKS, village.gone_over), village.phases()
    village.judge_change()


def amended_newcomer(seed: int) -> None:
    """One that is let in after a change, and has the first contract only, goes over before it begins: it takes over
    the values of the others and averages with them, and mass is exact."""
    before, after = list(CHANGES.values())[seed % len(CHANGES)]
    village = Amended(
        world(4, **before),
        world(4, **after),
        Faults(seed=seed, links=LinkRules(delay=0.2, jitter=0.5, loss=0.05 * (seed % 3))),
        roster=["peer1", "peer2", "peer3"],
    )
    town = village.town
    town.start("peer1", "peer2", "peer3")
    village.run(100.0)
    town.tell("peer1", NewContract(village.contract))

    def there() -> bool:
        rounds = [node.ledger.round for node in village.nodes().values() if node.setup.held.number]
        return len(rounds) == 3 and min(rounds) > STARTS

    assert village.run(town.now + OVER_TICKS, there), village.phases()
    everybody = village.signed(2, village.made.peers)
    village.admit(everybody, village.made.peers)
    for peer in ("peer1", "peer2", "peer3"):
        town.tell(peer, NewRoster(everybody))
    town.start("peer4")
    assert village.run(town.now + OVER_TICKS, village.together), village.phases()
    assert village.gone_over()
    village.look()
    village.exchange(2 * village.predicted(1e-6))
    village.judge()
    assert {number for number, _ in village.trained["peer4"]} == {1}, "it trains under the newest from the first on"
    assert "joined" in {row[3] for row in town.rows if row[1:3] == ("note", "peer4")}
    assert village.disagreement() <= 1e-6


#: Effects that a peer carries out in some two rounds, before and after the change; ticks that it is away.
AROUND, AWAY = 120, 30.0
#: Tick at which one is cut off that has not heard of the next contract.
CUT = 400.0


def amended_killed(seed: int) -> None:
    """Killed after any effect around the change, once or twice, and started again: mass is exact at every step, all go
    by the new contract in the end, and nobody by the old one after it has begun the new one."""
    before, after = list(CHANGES.values())[seed % len(CHANGES)]
    faults = Faults(seed=seed, links=LinkRules(delay=0.2, jitter=0.3, loss=0.05 * (seed % 3)), heal=400.0)
    village = Amended(world(4, **before), world(4, **after), faults)
    town, victim = village.town, f"peer{1 + seed // len(CHANGES) % 4}"
    town.start()
    assert village.run(OVER_TICKS, lambda: max(node.ledger.round for node in village.nodes().values()) == STARTS - 2)
    town.tell(f"peer{1 + seed % 4}", NewContract(village.contract))
    for again in range(1 + seed % 2):
        town.kill_after(victim, town.carried[victim] + 1 + (7 * seed + 11 * again) % AROUND, AWAY)
        assert village.run(town.now + OVER_TICKS, lambda: victim not in town.machines()), "it was not killed"
        assert village.run(town.now + 10 * AWAY, lambda: victim in town.machines())
    assert village.run(town.now + OVER_TICKS, village.gone_over), village.phases()
    village.judge_change()


def amended_groups(seed: int) -> None:
    """Change the contract where a coordinator leads each group: each round has one mean, no peer is left behind, and
    where the contracts differ in what concerns a group, no mean is of updates that were sent under both."""
    changed = ({"learning__batch_size": 4}, {"gossip__exchanges": 3})[seed % 2]
    before, after = groups_world(), groups_world(**changed)
    links = LinkRules(delay=0.2, jitter=0.3 * (seed % 3), loss=0.05 * (seed % 4))
    victim = f"peer{1 + seed % 5}"
    rest = [peer for peer in before.peers if peer != victim]
    cuts = partition(CUT, CUT + 10 * AWAY, [victim], rest) if seed % 4 == 3 else ()
    guild = GroupCluster(before, Faults(seed=seed, links=links, cuts=cuts, heal=1200.0), roster=before.peers)
    town = guild.town
    contract = signed_contract(guild.residents, before, after)
    told: dict[str, list[int]] = {peer: [] for peer in before.peers}
    stepped = town.stepped

    def look(peer: str, machine: Machine) -> None:
        stepped(peer, machine)
        assert isinstance(machine, Node)
        told[peer].append(machine.setup.held.number)

    under: dict[tuple[str, str, int, bytes], set[int]] = {}
    said = town.said

    def mixed(peer: str, effect: Effect) -> None:
        """By which contract each update was sent, and each mean made."""
        said(peer, effect)
        match effect:
            case Send(message=Update(group=group, round=round, content=content)):
                under.setdefault((peer, group, round, content), set()).add(guild.nodes()[peer].setup.held.number)
            case AggregateUpdates(group=group, round=round, updates=updates) if seed % 2:
                mine = guild.nodes()[peer].setup.held.number
                for sender in updates.keys() - {peer}:
                    if mine not in under[sender, group, round, updates[sender]]:
                        guild.seen.wrong.append(f"{peer} counts what {sender} sent under another contract")

    town.stepped, town.said = look, mixed
    town.start()
    late = STARTS - 2 + seed % 4  # some hear of it when they are past the round from which it holds
    assert guild.reach(late, OVER_TICKS), {each: guild.rounds(each) for each in guild.groups}
    guild.run(max(town.now, CUT + 10.0 if cuts else 0.0))
    teller = rest[seed // 2 % 4]
    town.tell(teller, NewContract(contract))
    town.kill_after(victim, town.carried[victim] + 1 + 7 * seed % (2 * AROUND), AWAY)
    over = guild.run(
        town.now + OVER_TICKS,
        lambda: len(guild.nodes()) == 5 and all(node.setup.held.number for node in guild.nodes().values()),
    )
    assert over, {peer: (node.setup.held.number, node.ledger.round) for peer, node in guild.nodes().items()}
    guild.settle_down()
    assert all(numbers == sorted(numbers) for numbers in told.values())


#: By name.
AMENDED = {scenario.__name__: scenario for scenario in (amended, amended_newcomer, amended_killed, amended_groups)}
