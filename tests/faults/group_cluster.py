"""Whole peers that learn nothing and whose groups average through coordinators: the result of a round is known.

No two trainings add the same numbers, so bytes that are made again are noticed. Each group and round may have only one
mean; it is the mean of the updates that it lists as counted, one of each peer; and every peer of the group that took it
over has it in the place of its own values. Groups beside them may exchange shares, whose weight is conserved.

A `GroupCluster` checks every effect that is carried out, and every node after each of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpeer.algorithms.draws import Draws
from fedpeer.config.choice import parse_choice
from fedpeer.peer.node.node import Node
from fedpeer.peer.node.node_setup import setup_of
from fedpeer.peer.node.trainer import Training
from fedpeer.peer.state.events import AggregateUpdates, Effect, Send
from fedpeer.peer.wire.consensus_messages import Accept, Commit, Heartbeat
from fedpeer.peer.wire.leaf_bytes import split_leaves
from fedpeer.peer.wire.messages import ConsensusMessage, Update
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.peer.wire.roster import Roster, sign
from fedpeer.sims.network.disk import DiskRules
from fedpeer.sims.network.driver import Machine
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.node_factory import NodeFactory
from fedpeer.sims.network.simulator import Simulator
from fedpeer.sims.world import World
from tests.faults.peer_cluster import AUTHORITY, ENDLESS, EXACT, STEPS
from tests.reference import audit, judges
from tests.sims import worlds

#: Ticks after the end of all faults within which all living peers are in one round of all their groups: a group that
#: was left behind catches up with the others, some ten ticks a round.
TOGETHER_TICKS = 3000.0
#: Bytes of a weight before the float32 values of an update.
WEIGHT_BYTES = 8
#: Partial models and the peers that implement them. Each group has a majority without any one of its members.
MODELS: dict[str, dict[str, Any]] = {
    "everyone": {"neurons": {"input": "all", "hidden1": 2, "output": "all"}},
    "left": {"depends_on": ["everyone"], "neurons": {"hidden1": 1}, "members": ["peer1", "peer2", "peer3"]},
    "right": {"depends_on": ["everyone"], "neurons": {"hidden1": 1}, "members": ["peer3", "peer4", "peer5"]},
}


#: The same models, but all peers exchange shares of the parameters that they have in common.
BESIDE_SHARES = {**MODELS, "everyone": {**MODELS["everyone"], "gossip": {"protocol": "push-sum"}}}


@cache
def world(**settings: Any) -> World:
    """Return a world of five small peers in three groups, whose rounds have a deadline of 80 ticks."""
    return worlds.world(
        worlds.federation(
            **{
                "network": "mlp:64+4+10",
                "partial_models": MODELS,
                "simulation__peers": 5,
                "simulation__split": "blocks:20,shuffle=true,test=20",
                "learning__rounds": ENDLESS,
                "learning__evaluate_every": 1000,
                "gossip__protocol": "coordinator",
                "gossip__deadline": 2.0,
                "gossip__gather": 60.0,
            }
            | settings
        )
    )


def world_with_shares(**settings: Any) -> World:
    """Return the same world, but with exchanges of shares in the group of all peers."""
    return world.__wrapped__(partial_models=BESIDE_SHARES, **settings)


@dataclass(eq=False)
class Restless(Training):
    """A trainer that adds different numbers in each training, even in trainings of the same round."""

    me: str
    start_n: Tensor
    trainings: int = 0
    examples: int = 1
    steps: int = STEPS
    state_size: int = 0

    def start(self) -> Tensor:
        return self.start_n

    def train(self, round: int, x_n: Tensor, s_k: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        self.trainings += 1
        drawn_n = Draws(self.trainings).numpy("change", self.me, round).random(len(x_n), dtype=np.float32)
        return x_n + torch.from_numpy(drawn_n), s_k

    def evaluate(self, x_n: Tensor) -> tuple[float, float]:
        return 0.0, 0.0


#: (group, round).
Place = tuple[str, int]


@dataclass
class Seen:
    """Record of the effects and states of a run.

    models     by place, the contents that any peer applied
    sent       by (peer, place), the updates that were sent
    closed     by place, the updates whose mean a coordinator took
    accepted   (peer, group, term, round) of each Accept that was sent
    leads      by (group, term), the peers that sent heartbeats as its coordinator
    wrong      violations, in words
    """

    models: dict[Place, set[bytes]] = field(default_factory=dict)
    sent: dict[tuple[str, Place], set[bytes]] = field(default_factory=dict)
    closed: dict[Place, list[dict[str, bytes]]] = field(default_factory=dict)
    accepted: set[tuple[str, str, int, int]] = field(default_factory=set)
    leads: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class GroupCluster:
    """One run of peers whose groups have coordinators."""

    def __init__(self, made: World, faults: Faults, *, roster: Sequence[str] | None = None) -> None:
        self.made = made
        node_factory = NodeFactory.of(made, parse_choice("partial-averaging"))
        restless = {peer: Restless(peer, local_task.start()) for peer, local_task in node_factory.trainers.items()}
        self.node_factory, self.everybody = replace(node_factory, trainers=restless), node_factory.roster
        self.admitted = made.peers
        if roster is not None:
            first = self.signed(1, roster)
            self.node_factory = replace(self.node_factory, roster=first)
            self.admit(first, roster)
        self.simulator = Simulator(made.peers, self.node_factory.driver(), faults, DiskRules())
        self.simulator.stepped, self.simulator.on_effect = self._stepped, self._said
        self.seen = Seen()
        self._last: dict[tuple[str, str], tuple[Node, int]] = {}

    def signed(self, number: int, peers: Sequence[str]) -> Roster:
        """Return a roster of these peers, signed by the cluster's authority."""
        public = AUTHORITY.public_key().public_bytes_raw()
        entries = tuple(entry for entry in self.everybody.entries if entry.id in peers)
        return sign(replace(self.everybody, authority=public, number=number, entries=entries), AUTHORITY)

    def admit(self, roster: Roster, peers: Sequence[str]) -> None:
        """Let these peers use this roster from their next start on."""
        self.admitted = tuple(peers)
        for peer in peers:
            self.node_factory.setups[peer] = setup_of(self.made, roster, peer, nonce=0, method=self.node_factory.method)

    # ---- who there is

    @property
    def groups(self) -> dict[str, Set[str]]:
        """Members of each group, by the newest roster with which peers were admitted."""
        circles = [self.node_factory.setups[peer].peer_groups for peer in self.admitted]
        return {
            group: consensus.members
            for peer_groups in circles
            for group, consensus in peer_groups.consensus_by_group.items()
        }

    def nodes(self) -> dict[str, Node]:
        found = {}
        for peer, machine in self.simulator.machines().items():
            assert isinstance(machine, Node)
            found[peer] = machine
        return found

    def rounds(self, group: str) -> dict[str, int]:
        """Return, by living member, the round of the group that it took over."""
        return {
            peer: node.durable.consensus_states[group].settled
            for peer, node in self.nodes().items()
            if group in node.durable.consensus_states
        }

    def leading(self, group: str) -> str | None:
        """Return the coordinator of a group in the highest term."""
        terms = {}
        for peer, node in self.nodes().items():
            if group in node.consensus_by_group and node.consensus_by_group[group].round_commit.election.leading:
                terms[node.consensus_by_group[group].round_commit.election.hard_state.term] = peer
        return terms[max(terms)] if terms else None

    def notes(self, what: str) -> list[str]:
        """Return the peers that noted this, once for each time."""
        return [row[2] for row in self.simulator.rows if row[1] == "note" and row[3] == what]

    # ---- what happens

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> bool:
        return self.simulator.run(until, done)

    def reach(self, round: int, ticks: float) -> bool:
        """Run until every living peer has reached this round of all groups."""
        return self.run(
            self.simulator.now + ticks, lambda: all(min(self.rounds(group).values()) >= round for group in self.groups)
        )

    def _stepped(self, peer: str, machine: Machine) -> None:
        assert isinstance(machine, Node)
        for group, consensus_state in machine.durable.consensus_states.items():
            applied, before = consensus_state.holding.applied, self._last.get((peer, group))
            round = applied.proposal.round if applied else 0
            if before is not None and before[0] is machine and round < before[1]:
                self.seen.wrong.append(f"{peer} goes back in {group} from round {before[1]} to {round}")
            if applied is None or before == (machine, round):
                continue
            self._last[peer, group] = machine, round
            content = consensus_state.models[applied.proposal.digest]
            if content not in self.seen.models.setdefault((group, round), set()):
                self.seen.models[group, round].add(content)
                self._weigh((group, round), content, len(machine.durable.places[group]))
        self._look_at_values(peer, machine)

    def _look_at_values(self, peer: str, node: Node) -> None:
        """Check that a mean that was taken over is in the parameters until they are trained."""
        if node.durable.trained:
            return
        for group, consensus_state in node.durable.consensus_states.items():
            content = consensus_state.content
            if (
                content is None
                or consensus_state.pending is not None
                or consensus_state.settled != consensus_state.holding.round
            ):
                continue
            values = node.durable.x_n[node.durable.places[group]].numpy().tobytes()
            if not content.endswith(values):
                self.seen.wrong.append(
                    f"{peer} has other values in {group} than round {consensus_state.settled} decreed"
                )

    def _weigh(self, place: Place, content: bytes, length: int) -> None:
        """Check that a mean is that of the updates that it lists as counted."""
        found = split_leaves(content, 4 * length)
        assert found is not None, "what is applied is a model"
        counted = {peer for peer, last in found[0].items() if last == place[1]}
        value_D = np.frombuffer(found[1], np.float32)
        for updates in self.seen.closed.get(place, []):
            values_MD = np.stack([np.frombuffer(each[WEIGHT_BYTES:], np.float32) for each in updates.values()])
            if updates.keys() == counted and np.allclose(values_MD.mean(0, dtype=np.float64), value_D, rtol=1e-6):
                return
        self.seen.wrong.append(f"{place}: no mean of {sorted(counted)}")

    def _said(self, peer: str, effect: Effect) -> None:
        seen = self.seen
        match effect:
            case Send(message=Update() as update):
                seen.sent.setdefault((peer, (update.group, update.round)), set()).add(update.content)
            case AggregateUpdates():
                seen.closed.setdefault((effect.group, effect.round), []).append(dict(effect.updates))
                for sender, content in effect.updates.items():
                    if sender == peer:
                        seen.sent.setdefault((peer, (effect.group, effect.round)), set()).add(content)
                    elif content not in seen.sent.get((sender, (effect.group, effect.round)), ()):
                        seen.wrong.append(f"{peer} counts what {sender} did not send for {effect.group} {effect.round}")
            case Send(message=ConsensusMessage(group=group, message=Accept(term, round))):
                seen.accepted.add((peer, group, term, round))
            case Send(message=ConsensusMessage(group=group, message=Commit(certificate))):
                proposal, authors = certificate.proposal, [author for author, _ in certificate.acceptances]
                silent = [a for a in authors if (a, group, proposal.term, proposal.round) not in seen.accepted]
                voters = self.nodes()[peer].durable.consensus_states[group].voter_sets[proposal.roster].voters
                if 2 * len(authors) <= len(voters) or not voters >= set(authors):
                    seen.wrong.append(f"round {proposal.round} of {group} is in force by {authors}")
                if len(silent) > 1:  # the coordinator's own acceptance is never sent
                    seen.wrong.append(f"round {proposal.round} of {group}: {silent} did not accept it")
            case Send(message=ConsensusMessage(group=group, message=Heartbeat(leader_certificate))):
                seen.leads.setdefault((group, leader_certificate.term), set()).add(peer)

    # ---- judgement

    def judge(self, *, strangers: Sequence[str] = ()) -> None:
        """Raise AssertionError with all that is wrong; rejections by or of strangers may have any name."""
        seen = self.seen
        rows = [row for row in self.simulator.rows if row[1] != "refused" or not {row[2], row[-1]} & set(strangers)]
        forks = [f"{place} has {len(models)} means" for place, models in seen.models.items() if len(models) > 1]
        twice = [f"{p} sent {len(sent)} updates of {place}" for (p, place), sent in seen.sent.items() if len(sent) > 1]
        rivals = [f"{place} had {sorted(peers)}" for place, peers in seen.leads.items() if len(peers) > 1]
        judges.judged(
            [*seen.wrong, *forks, *twice, *rivals][: judges.SHOWN_MAX],
            judges.saved_before_said(rows),
            judges.only_harmless(rows, {code: refusal.kind for code, refusal in REJECTIONS.items()}),
        )
        for group in self.groups:
            rounds = sorted(round for each, round in seen.models if each == group)
            assert rounds == list(range(1, len(rounds) + 1)), f"{group}: a round is left out"

    def settle_down(self) -> None:
        """Run until faults are over and all peers are in one round of all groups, and check the run."""
        if self.simulator.faults.heal < math.inf:
            self.run(self.simulator.faults.heal)
        goal = 2 + max(round for group in self.groups for round in self.rounds(group).values())
        together = self.run(
            self.simulator.now + TOGETHER_TICKS,
            lambda: (
                len(self.nodes()) == len(self.made.peers)
                and all(min(self.rounds(group).values()) >= goal for group in self.groups)
            ),
        )
        places = {group: (self.rounds(group), self.leading(group)) for group in self.groups}
        assert together, f"in {TOGETHER_TICKS:.0f} ticks not all came to round {goal}: {places}"
        for group, (there, put) in audit.weights({p: node.durable for p, node in self.nodes().items()}).items():
            assert abs(there - put) <= EXACT * put, f"{there} of {put} in {group}"
        self.judge()
