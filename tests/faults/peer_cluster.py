"""Whole peers that learn nothing, in a simulated network: what they average is known, so the truth is a closed form.

Every peer begins with values of its own and training leaves them as they are (or adds a known drift), so each group's
true average is the mean of its members' first values, and what is there is always what they put in. A `PeerCluster`
checks all durable states after every step in which one has changed (or less often, where a scenario asks for it): those
of living peers in memory, those of dead peers on disk. A run in which anything is missing, or there twice, ends at that
step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from fedpeer.algorithms.draws import Draws
from fedpeer.config.choice import parse_choice
from fedpeer.gossip.mass import Mass
from fedpeer.peer.node.node import Node
from fedpeer.peer.node.node_setup import setup_of
from fedpeer.peer.node.trainer import Training
from fedpeer.peer.state.durable_state import DurableState, GroupState
from fedpeer.peer.state.entries import Adopted
from fedpeer.peer.state.events import Effect, Note, Persist
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.peer.wire.roster import Roster, sign
from fedpeer.sims.network.disk import DiskRules
from fedpeer.sims.network.driver import Machine
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.node_factory import NodeFactory
from fedpeer.sims.network.simulator import Simulator
from fedpeer.sims.world import World
from fedpeer.topology.prediction import predicted_rounds
from tests.reference import audit, judges
from tests.sims import worlds

#: Key that signs the rosters of scenarios in which they change.
AUTHORITY = Ed25519PrivateKey.from_private_bytes(bytes(32))
#: More rounds than any run reaches: all peers stay, so that every durable state can be checked.
ENDLESS = 100_000
#: Relative error of weights and values that are sums of some ten thousand float64 numbers of size 1.
EXACT = 1e-9
#: Rounding of float32 values of size 1, through some hundred shares.
HULL_SLACK = 1e-5
#: Training steps of a round, so that training takes 10 ticks: about as long as averaging.
STEPS = 250
#: Ticks after the end of all faults within which every edge delivers again: a Hello is sent at least every 400, a
#: repeat every 200, and a message of a peer that was considered dead has to arrive first.
BACK_TICKS = 800.0
#: Ticks after that within which all peers are in the same round: a peer that ran ahead while it was alone waits a
#: deadline in each of its rounds until the others have reached it, since no peer follows a single one.
TOGETHER_TICKS = 1600.0


@cache
def world(peers: int = 4, **settings: Any) -> World:
    """Return a world of peers of some hundred weights in one group on a ring, with five exchanges in a round."""
    return worlds.world(
        worlds.federation(
            **{
                "network": "mlp:64+1+10",
                "simulation__peers": peers,
                "learning__rounds": ENDLESS,
                "learning__evaluate_every": 1000,
                "gossip__exchanges": 5,
                "gossip__deadline": 2.0,
                "gossip__gather": 60.0,
            }
            | settings
        )
    )


@dataclass(frozen=True, eq=False)
class AddingTrainer(Training):
    """A trainer whose training adds `drift` to every parameter, and nothing else."""

    start_n: Tensor
    drift: float = 0.0
    examples: int = 1
    steps: int = STEPS
    state_size: int = 0

    def start(self) -> Tensor:
        return self.start_n

    def train(self, round: int, x_n: Tensor, s_k: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        return x_n + self.drift if self.drift else x_n, s_k

    def evaluate(self, x_n: Tensor) -> tuple[float, float]:
        return 0.0, 0.0


@dataclass
class Standings:
    """The states that peers assign to one another, from their notes of each change.

    now      by (peer, other peer), the tick since which the state holds, and the state
    dead     (peer, other peer, ticks) of each other peer that was considered dead and came back
    """

    now: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)
    dead: list[tuple[str, str, float]] = field(default_factory=list)

    def on_event(self, tick: float, peer: str, effect: Effect) -> None:
        if isinstance(effect, Note) and effect.what == "membership":
            key = (peer, str(effect.fields["peer"]))
            since, before = self.now.get(key, (tick, "unknown"))
            if before == "dead":
                self.dead.append((*key, tick - since))
            self.now[key] = (tick, str(effect.fields["state"]))

    def count(self, state: str) -> int:
        return sum(after == state for _, after in self.now.values())

    def burials(self, now: float, among: Collection[str] | None = None) -> list[float]:
        """Return the ticks for which one peer considered another one dead, until now if it still does; only for pairs
        within `among`, if that is given."""
        dead = [*self.dead, *((*key, now - since) for key, (since, state) in self.now.items() if state == "dead")]
        return [ticks for *pair, ticks in dead if among is None or set(pair) <= set(among)]


class PeerCluster:
    """One run of whole peers without a server.

    Attributes:
        forgetful  whether a peer may lose memory: weights are right only once all have met again, so `look` is left to
                   the scenario, and values are not compared
        look_every  ticks between two checks of what is there; 0 checks after every step that changed something
        far        the largest relative distance of weights and values from what was put in
    """

    def __init__(
        self,
        made: World,
        faults: Faults,
        *,
        seed: int | None = None,
        drift: float = 0.0,
        pace: Mapping[str, float] | None = None,
        forgetful: bool = False,
        look_every: float = 0.0,
        roster: Sequence[str] | None = None,
        fact: Callable[[str, Effect], object] = audit.took,
        method: str = "partial-averaging",
    ) -> None:
        self.made, self.seed, self.forgetful = made, faults.seed if seed is None else seed, forgetful
        node_factory = NodeFactory.of(made, parse_choice(method), dict(pace or {}))
        self.everybody = node_factory.roster
        self.start = {peer: self._drawn(peer, local_task.start()) for peer, local_task in node_factory.trainers.items()}
        adding = {peer: self._trainer(peer, AddingTrainer(start_n, drift)) for peer, start_n in self.start.items()}
        self.node_factory = replace(node_factory, trainers=adding)
        if roster is not None:
            first = self.signed(1, roster)
            self.node_factory = replace(self.node_factory, roster=first)
            self.admit(first, roster)
        self.simulator = Simulator(made.peers, self.node_factory.driver(fact=self._watched(fact)), faults, DiskRules())
        self.simulator.stepped = self._stepped
        self.far = 0.0
        self.outside: list[str] = []
        self._look_every, self._look_at = look_every, 0.0
        self._drifts = drift != 0.0
        self._seen: dict[str, tuple[GroupState, ...]] = {}
        self._parts: audit.Parts = {}
        self._dead: dict[str, DurableState] = {}
        self._joining: dict[str, DurableState] = {}  # as they were after their last step
        groups = self.node_factory.setups[made.peers[0]].peer_groups.groups
        self.groups = tuple(groups)
        began_MD = {
            group: torch.stack([self.start[p][self._places(p, group)].double() for p in groups[group].members])
            for group in groups
        }
        self.truth = {group: values_MD.mean(0) for group, values_MD in began_MD.items()}
        self._hull = {group: self._reach(group) for group in groups}

    def _drawn(self, peer: str, like_n: Tensor) -> Tensor:
        """Draw values between 0.5 and 1.5: apart, but by less than the length of the estimates, since more is
        implausible."""
        draws = Draws(self.seed).numpy("values", peer)
        return torch.from_numpy(draws.uniform(0.5, 1.5, len(like_n))).float()

    def _trainer(self, peer: str, adding: AddingTrainer) -> AddingTrainer:
        """Return the trainer of a peer; clusters whose training does more than `adding` override this."""
        return adding

    def _reach(self, group: str) -> tuple[Tensor, Tensor]:
        """Return the least and the most (D,) of all first values, of peers in the present or a later roster."""
        values_MD = torch.stack([self.start[p][self._places(p, group)].double() for p in self.made.peers])
        return values_MD.amin(0), values_MD.amax(0)

    def _places(self, peer: str, group: str) -> Tensor:
        return self.node_factory.setups[peer].peer_groups.groups[group].index_D

    def signed(self, number: int, peers: Sequence[str]) -> Roster:
        """Return a roster of these peers, signed by the cluster's authority."""
        public = AUTHORITY.public_key().public_bytes_raw()
        entries = tuple(entry for entry in self.everybody.entries if entry.id in peers)
        return sign(replace(self.everybody, authority=public, number=number, entries=entries), AUTHORITY)

    def admit(self, roster: Roster, peers: Iterable[str]) -> None:
        """Let these peers use this roster from their next start on."""
        for peer in peers:
            self.node_factory.setups[peer] = setup_of(self.made, roster, peer, nonce=0, method=self.node_factory.method)

    # ---- who there is

    def node(self, peer: str) -> Node:
        machine = self.simulator.machines()[peer]
        assert isinstance(machine, Node)
        return machine

    def nodes(self) -> dict[str, Node]:
        return {peer: self.node(peer) for peer in self.simulator.machines()}

    def durable_states(self) -> dict[str, DurableState]:
        """Return the states of living peers in memory, and those of the others on disk."""
        living = self.simulator.machines()
        for peer in self.simulator.peers:
            if peer in living:
                self._dead.pop(peer, None)
            elif peer not in self._dead:
                self._dead[peer] = self.node_factory.node(peer, self.simulator.kept(peer)).durable
        return {
            peer: self._dead[peer] if peer in self._dead else self.node(peer).durable for peer in self.simulator.peers
        }

    # ---- conservation

    def _stepped(self, peer: str, machine: Machine) -> None:
        assert isinstance(machine, Node)
        if machine.phase == "joining" and machine.durable.round == 0:
            self._joining[peer] = machine.durable.copy()
        elif self._joining.pop(peer, None):
            self._stay_inside(peer, machine.durable)
        held = tuple(machine.durable.groups.values())
        if held != self._seen.get(peer):
            self._seen[peer] = held
            if self.forgetful:
                self._stay_inside(peer, machine.durable)
            elif self.simulator.now >= self._look_at:
                self._look_at = self.simulator.now + self._look_every
                self.look()

    def look(self) -> None:
        """Compare what is there with what was put in."""
        durable_states = self.durable_states()
        for group, (there, put) in audit.weights(durable_states).items():
            self._compare(group, "weight", abs(there - put) / put)
        if self.forgetful or self._drifts:
            return
        for group, there_D in audit.values(durable_states, self._parts).items():
            put_D = self.truth[group] * len(
                self.node_factory.setups[self.simulator.peers[0]].peer_groups.groups[group].members
            )
            self._compare(group, "value", float((there_D - put_D).abs().max()))

    def _watched(self, fact: Callable[[str, Effect], object]) -> Callable[[str, Effect], object]:
        """Let the true mean follow a late joiner, which puts in the value that it adopts instead of its own."""

        def watch(peer: str, effect: Effect) -> object:
            if isinstance(effect, Persist) and effect.kind == "entry" and peer in self._joining:
                durable, entry = self._joining[peer], effect.content
                before = {group: holding.held for group, holding in durable.groups.items()}
                durable.apply(entry)  # type: ignore[arg-type]
                if isinstance(entry, Adopted):
                    self._count_adopted(peer, entry.group, durable.groups[entry.group].held - before[entry.group])
            return fact(peer, effect)

        return watch

    def _count_adopted(self, peer: str, group: str, change: Mass) -> None:
        """Add to the true mean the change of this peer's own part, which is now a value between those of the others."""
        (least_D, most_D), own_D = self._hull[group], self.start[peer][self._places(peer, group)].double()
        assert float(change.weight) == 0.0
        put_D = own_D + change.value_D / self.node(peer).durable.rules.start_weight
        assert float(torch.maximum(least_D - put_D, put_D - most_D).max()) <= HULL_SLACK, f"{peer} put in {put_D}"
        members = len(self.node_factory.setups[peer].peer_groups.groups[group].members)
        self.truth[group] = self.truth[group] + change.value_D / members

    def _compare(self, group: str, what: str, far: float) -> None:
        self.far = max(self.far, far)
        assert far <= EXACT, f"tick {self.simulator.now:.1f}: {far:.3g} of the {what} in {group} is not there, or twice"

    def _stay_inside(self, peer: str, durable: DurableState) -> None:
        """Record every estimate with an element outside the hull of the members' first values.

        int8 rounds up or down by as much as a 127th of the longest difference between two members.
        """
        rounds = any(form.name == "int8" for form in self.made.federation.gossip.wire)
        for group, (least_D, most_D) in self._hull.items():
            estimate_D = durable.estimate_D(group)
            out = float(torch.maximum(least_D - estimate_D, estimate_D - most_D).max())
            if out > HULL_SLACK + (float((most_D - least_D).max()) / 127 if rounds else 0.0):
                self.outside.append(f"tick {self.simulator.now:.1f}: {peer}'s estimate of {group} is {out:.3g} outside")

    # ---- progress

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> bool:
        return self.simulator.run(until, done)

    def together(self) -> bool:
        """Return whether all peers live and learn in about the same round, and consider all others available in their
        groups."""
        nodes = self.nodes()
        rounds = [node.durable.round for node in nodes.values()]
        if len(nodes) < len(self.simulator.peers) or max(rounds) - min(rounds) > 1:
            return False
        return all(
            node.phase == "learning"
            and all(
                node.state.others.available(other, group)
                for group in node.durable.groups
                for other in nodes
                if other != me
            )
            for me, node in nodes.items()
        )

    def exchanged(self) -> dict[str, int]:
        """Return, by peer, the least number of exchanges that it has closed in any of its groups."""
        found = {}
        for peer, node in self.nodes().items():
            per_round = {group: node.state.peer_groups.averaging[group].exchanges for group in node.durable.groups}
            found[peer] = min(
                holding.at[0] * per_round[group] + holding.at[1] for group, holding in node.durable.groups.items()
            )
        return found

    def all_edges(self) -> set[tuple[str, str]]:
        """Return all (sender, receiver) along all overlays."""
        edges = set()
        for peer, setup in self.node_factory.setups.items():
            for policy in setup.peer_groups.averaging.values():
                members = policy.overlay.members
                me = members.index(peer)
                edges |= {(peer, members[other]) for other in policy.overlay.union.neighbors(me)}
        return edges

    def healed(self) -> None:
        """Run until faults are over, every edge has delivered a share again, and all peers are together again."""
        self.run(self.simulator.faults.heal)
        waiting, seen = self.all_edges(), len(self.simulator.rows)

        def delivered() -> bool:
            nonlocal seen
            for _, what, receiver, *rest in self.simulator.rows[seen:]:
                if what == "heard" and rest[0] == "Transfer":
                    waiting.discard((rest[1], receiver))
            seen = len(self.simulator.rows)
            return not waiting

        text = f"ticks after the faults nothing came along {sorted(waiting)}"
        assert self.run(self.simulator.now + BACK_TICKS, delivered), f"{BACK_TICKS:.0f} {text}: {self.phases()}"
        again = self.run(self.simulator.now + TOGETHER_TICKS, self.together)
        assert again, f"{TOGETHER_TICKS:.0f} ticks later they are still in different rounds: {self.phases()}"

    def exchange(self, times: int) -> None:
        """Run until every peer has closed so many more exchanges; each takes a deadline at most."""
        begun = self.exchanged()
        patience = times * self.made.federation.gossip.deadline / self.made.federation.gossip.tick

        def done() -> bool:
            now = self.exchanged()
            return len(now) == len(begun) and all(now[peer] - begun[peer] >= times for peer in begun)

        assert self.run(self.simulator.now + patience, done), f"no progress after {patience:.0f} ticks: {self.phases()}"

    def predicted(self, tolerance: float) -> int:
        """Return the number of exchanges after which disagreement is below this tolerance, from the graphs alone."""
        policies = self.node_factory.averaging()
        return max(predicted_rounds(policy.overlay, policy.mixing, tolerance) for policy in policies)

    def error(self) -> float:
        """Return the largest distance of an estimate from the true mean, in any element of any group."""
        return max(
            float((durable.estimate_D(group) - self.truth[group]).abs().max())
            for durable in self.durable_states().values()
            for group in durable.groups
        )

    def disagreement(self) -> float:
        """Return the largest distance between two estimates, in any element of any group."""
        durable_states = self.durable_states().values()
        return max(
            float((torch.stack(each).amax(0) - torch.stack(each).amin(0)).max())
            for each in ([durable.estimate_D(group) for durable in durable_states] for group in self.groups)
        )

    def weight(self, peers: Iterable[str], group: str) -> float:
        """Return the weight that these peers hold, and that waits with them, in one group."""
        durable_states = self.durable_states()
        return sum(durable_states[peer].groups[group].weight for peer in peers)

    def notes(self, what: str, since: float = 0.0) -> list[tuple[float, str]]:
        """Return (tick, peer) of all notes of this name since a tick."""
        return [
            (row[0], row[2]) for row in self.simulator.rows if row[1] == "note" and row[3] == what and row[0] >= since
        ]

    def standings(self) -> Standings:
        """Return a record of the states that the peers assign to one another from now on."""
        found = Standings()
        self.simulator.on_effect = lambda peer, effect: found.on_event(self.simulator.now, peer, effect)
        return found

    def phases(self) -> dict[str, str]:
        return {peer: f"{node.phase} {node.durable.round}" for peer, node in self.nodes().items()}

    # ---- judgement

    def judge(self, *, also: Iterable[str] = (), strangers: Iterable[str] = ()) -> None:
        """Raise AssertionError with all that is wrong; rejections by or of strangers may have any name."""
        rows = [row for row in self.simulator.rows if row[1] != "refused" or not {row[2], row[-1]} & set(strangers)]
        channels = [] if self.forgetful else judges.taken_once_and_in_order(judges.durable(rows))
        judges.judged(
            self.outside[: judges.SHOWN_MAX],
            judges.saved_before_said(rows),
            channels,
            judges.only_harmless(rows, {code: refusal.kind for code, refusal in REJECTIONS.items()}),
            list(also),
        )
