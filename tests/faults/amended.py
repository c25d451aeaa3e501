"""A contract that changes under whole peers: all go over to it, whatever was under way, and none goes back.

The peers of an `Amended` village begin with one contract, and its authority signs the next one, which holds from a
round on. Conservation is looked at after every step, as in any village.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedpeer.peer.core.contract import contract_of, text_of
from fedpeer.peer.core.events import Effect, NewContract, NewRoster, Train
from fedpeer.peer.core.making import setup_of
from fedpeer.peer.core.roster import Roster
from fedpeer.peer.core.signed_contract import SignedContract, sign_contract
from fedpeer.peer.core.wire_forms import succeeding
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.links import LinkRules
from fedpeer.sims.world import World
from tests.faults.village import AUTHORITY, Village, world

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


class Amended(Village):
    """One run.

    Attributes:
        trained  by peer, (number of the contract, round) of each training, in their order
    """

    def __init__(self, before: World, after: World, faults: Faults, roster: Sequence[str] = ()) -> None:
        # Who comes in takes over values, and adds none of its own.
        super().__init__(before, faults, roster=roster or before.peers, forgetful=bool(roster))
        self.trained: dict[str, list[tuple[int, int]]] = {peer: [] for peer in before.peers}
        self.town.said = self._said
        self.number, self.before = 0, before
        self.sign(after)

    def sign(self, after: World) -> SignedContract:
        """The authority signs the next contract."""
        settings = succeeding(contract_of(self.before.asked), contract_of(after.asked))
        text = text_of(settings, str(self.residents.method))
        self.number += 1
        contract = SignedContract(
            authority=AUTHORITY.public_key().public_bytes_raw(), number=self.number, starts=STARTS, text=text
        )
        self.residents.later[text] = after
        self.contract = sign_contract(contract, AUTHORITY)
        return self.contract

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
            node.setup.held.number == self.number and node.phase == "learning" for node in nodes.values()
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


#: By name.
AMENDED = {scenario.__name__: scenario for scenario in (amended, amended_newcomer)}
