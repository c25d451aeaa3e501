"""Whole peers under a server that learns nothing: the result of a round is known, so the truth is a law.

The server holds a total, and so does each client; a round adds the change in each update to both. If each client keeps
what the server counted, and nothing else, the server's total is the sum of the clients' totals (as with SCAFFOLD's
control variates). No two trainings give the same update, not even of one round, so bytes that are made again are
noticed.

A `ServerCluster` checks every effect that is carried out, and every node after each of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpeer.algorithms.draws import Draws
from fedpeer.config.choice import parse_choice
from fedpeer.peer.consensus.round_results import server_result, training_result
from fedpeer.peer.node.node import Node
from fedpeer.peer.node.node_setup import setup_of
from fedpeer.peer.node.trainer import Training
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.events import (
    AggregateUpdates,
    ClientTrained,
    Effect,
    FinishRound,
    RejectEffect,
    RoundFinished,
    Send,
    TrainClient,
    UpdatesAggregated,
)
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.peer.wire.consensus_messages import Accept, Commit, Heartbeat
from fedpeer.peer.wire.leaf_bytes import split_leaves
from fedpeer.peer.wire.messages import ConsensusMessage, Update
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.peer.wire.roster import Roster, sign
from fedpeer.rejection import Rejection
from fedpeer.sims.network.disk import DiskRules
from fedpeer.sims.network.driver import Machine
from fedpeer.sims.network.faults import Faults
from fedpeer.sims.network.node_factory import NodeFactory
from fedpeer.sims.network.simulator import Simulator
from fedpeer.sims.world import World
from tests.faults.peer_cluster import AUTHORITY, ENDLESS, STEPS
from tests.reference import judges
from tests.sims import worlds

#: Bytes of a server [value, total], a client [total, rounds trained] and an update [value, change]: two float64 each.
BYTES = 16
#: Ticks within which there is a coordinator again (P5).
LED_TICKS = 200.0
#: Ticks after the end of all faults within which all living peers are in the round of the furthest one.
TOGETHER_TICKS = 1600.0


@cache
def world(peers: int = 5, **settings: Any) -> World:
    """Return a world of small peers whose rounds have a deadline of 80 ticks."""
    return worlds.world(
        worlds.federation(
            **{
                "network": "mlp:64+1+10",
                "simulation__peers": peers,
                "simulation__split": "blocks:20,shuffle=true,test=20",
                "learning__rounds": ENDLESS,
                "learning__evaluate_every": 1000,
                "gossip__deadline": 2.0,
                "gossip__gather": 60.0,
            }
            | settings
        )
    )


def pair(data: bytes) -> tuple[float, float]:
    first, second = np.frombuffer(data).tolist()
    return first, second


@dataclass(eq=False)
class VectorTrainer(Training):
    """A trainer of one peer, which follows the laws at the top of this file.

    liar   rounds in which its update is not finite
    huge   rounds in which its update is finite, and the mean with another such update is not
    fixed  whether its server is declared to have a place for each client
    goal   number of updates that close a round; None: those of all participants
    """

    me: str
    share: float = 1.0
    trainings: int = 0
    liar: frozenset[int] = frozenset()
    huge: frozenset[int] = frozenset()
    everyone: bool = False
    fixed: bool = False
    goal: int | None = None
    start_n: Tensor = field(default_factory=lambda: torch.zeros(1))
    examples: int = 1
    steps: int = STEPS
    state_size: int = 0

    def start(self) -> Tensor:
        return self.start_n

    def train(self, round: int, x_n: Tensor, s_k: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        raise AssertionError("who has a server trains for it")

    def evaluate(self, x_n: Tensor) -> tuple[float, float]:
        return 0.0, 0.0

    @property
    def spec(self) -> AlgorithmSpec:
        return AlgorithmSpec(
            server_bytes=BYTES,
            update_bytes=BYTES,
            server=bytes(BYTES),
            client=bytes(BYTES),
            takes_part=self._part,
            fault=lambda data: (
                None if np.isfinite(pair(data)).all() else Rejection("not_finite", "a number that is none")
            ),
            sound=lambda data: bool(np.isfinite(pair(data)).all()),
            everyone=lambda round: self.everyone,
            patience=int(self.me.removeprefix("peer")) / 20,
            fixed=self.fixed,
            goal=self.goal,
        )

    def _part(self, round: int, among: Sequence[str]) -> tuple[str, ...]:
        count = max(1, round_half_up(self.share * len(among)))
        drawn = Draws(1).numpy("part", round=round).choice(len(among), count, replace=False)
        return tuple(among[number] for number in sorted(drawn))

    def serve(
        self, job: TrainClient | AggregateUpdates | FinishRound
    ) -> ClientTrained | UpdatesAggregated | RoundFinished:
        match job:
            case TrainClient():
                self.trainings += 1
                drawn = Draws(self.trainings).numpy("change", self.me, job.round)
                value, change = drawn.random(2)
                total, trained = pair(job.client)
                if job.round in self.liar:
                    value = np.nan
                if job.round in self.huge:
                    value = np.finfo(np.float64).max
                update = np.array([pair(job.server)[0] + value, change]).tobytes()
                return training_result(job, np.array([total + change, trained + 1]).tobytes(), update, self.spec)
            case AggregateUpdates():
                values, changes = np.array([pair(each) for each in job.updates.values()]).T
                server = np.array([values.mean(), pair(job.server)[1] + changes.sum()])
                return server_result(job, server.tobytes(), sound=self.spec.sound(server.tobytes()))
            case FinishRound():
                client = job.before
                if job.trained is not None:
                    (total, _), (more, trained) = pair(job.before), pair(job.trained)
                    client = np.array([more if job.counted else total, trained]).tobytes()
                return RoundFinished(job.round, client, torch.tensor(pair(client)), torch.tensor(pair(job.server)))


def round_half_up(number: float) -> int:
    return int(number + 0.5)


@dataclass
class Seen:
    """Record of the effects and states of a run.

    models     by round, the digests of the contents that any peer applied
    sent       by (peer, round), the updates that were sent
    accepted   (peer, term, round) of each Accept that was sent
    wrong      violations, in words
    """

    models: dict[int, set[bytes]] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)
    sent: dict[tuple[str, int], set[bytes]] = field(default_factory=dict)
    accepted: set[tuple[str, int, int]] = field(default_factory=set)
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    leads: list[tuple[float, int, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class ServerCluster:
    """One run of peers that share a server."""

    def __init__(
        self,
        made: World,
        faults: Faults | None = None,
        *,
        share: float = 1.0,
        pace: Mapping[str, float] | None = None,
        liars: Mapping[str, frozenset[int]] | None = None,
        roster: Sequence[str] | None = None,
        disk: DiskRules | None = None,
        goal: int | None = None,
    ) -> None:
        self.made = made
        self.voters = {1: len(made.peers)}
        node_factory = NodeFactory.of(made, parse_choice("fedavg"), dict(pace or {}))
        self.trainers = {
            peer: VectorTrainer(
                peer, share, liar=(liars or {}).get(peer, frozenset()), start_n=trainer.start(), goal=goal
            )
            for peer, trainer in node_factory.trainers.items()
        }
        self.node_factory = replace(node_factory, trainers=self.trainers)
        self.everybody = node_factory.roster
        if roster is not None:
            first = self.signed(1, roster)
            self.node_factory = replace(self.node_factory, roster=first)
            self.admit(first, roster)
        self.simulator = Simulator(made.peers, self.node_factory.driver(), faults or Faults(), disk)
        self.simulator.stepped, self.simulator.on_effect = self._stepped, self._said
        self.seen = Seen()
        self._last: dict[str, tuple[Node, int]] = {}

    def signed(self, number: int, peers: Sequence[str]) -> Roster:
        """Return a roster of these peers, signed by the cluster's authority."""
        public = AUTHORITY.public_key().public_bytes_raw()
        entries = tuple(entry for entry in self.everybody.entries if entry.id in peers)
        self.voters[number] = len(entries)
        return sign(replace(self.everybody, authority=public, number=number, entries=entries), AUTHORITY)

    def admit(self, roster: Roster, peers: Sequence[str]) -> None:
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

    def rounds(self) -> dict[str, int]:
        """Return, by living peer, the round that it applied and settled."""
        return {peer: node.durable.consensus_states[EVERYONE].settled for peer, node in self.nodes().items()}

    def leading(self) -> str | None:
        """Return the coordinator in the highest term."""
        elections = {
            peer: node.consensus_by_group[EVERYONE].round_commit.election for peer, node in self.nodes().items()
        }
        terms = {each.hard_state.term: peer for peer, each in elections.items() if each.leading}
        return terms[max(terms)] if terms else None

    # ---- what happens

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> bool:
        return self.simulator.run(until, done)

    def reach(self, round: int, ticks: float) -> bool:
        """Run until every living peer has reached this round."""
        return self.run(self.simulator.now + ticks, lambda: all(each >= round for each in self.rounds().values()))

    def _stepped(self, peer: str, machine: Machine) -> None:
        assert isinstance(machine, Node)
        consensus_state = machine.durable.consensus_states[EVERYONE]
        applied = consensus_state.holding.applied
        before = self._last.get(peer)
        round = applied.proposal.round if applied else 0
        if before is not None and before[0] is machine and round < before[1]:
            self.seen.wrong.append(f"{peer} goes back from round {before[1]} to {round}")
        if applied is None or (before is not None and before == (machine, round)):
            return
        self._last[peer] = machine, round
        self.seen.models.setdefault(round, set()).add(applied.proposal.digest)
        self.seen.contents[round] = consensus_state.models[applied.proposal.digest]

    def _said(self, peer: str, effect: Effect) -> None:
        seen = self.seen
        match effect:
            case Send(message=Update() as update):
                seen.sent.setdefault((peer, update.round), set()).add(update.content)
            case Send(message=ConsensusMessage(message=Accept(term, round))):
                seen.accepted.add((peer, term, round))
            case Send(message=ConsensusMessage(message=Commit(certificate))):
                proposal, authors = certificate.proposal, [author for author, _ in certificate.acceptances]
                if 2 * len(authors) <= self.voters[proposal.roster]:
                    seen.wrong.append(f"round {proposal.round} is in force by {len(authors)} acceptances")
                silent = [a for a in authors if (a, proposal.term, proposal.round) not in seen.accepted]
                if len(silent) > 1:  # the coordinator's own acceptance is never sent
                    seen.wrong.append(f"round {proposal.round}: {silent} did not accept it")
            case Send(message=ConsensusMessage(message=Heartbeat(leader_certificate))):
                if not seen.leads or seen.leads[-1][1:] != (leader_certificate.term, peer):
                    seen.leads.append((self.simulator.now, leader_certificate.term, peer))
            case RejectEffect(rejection):
                seen.refused.append((peer, rejection.code, rejection.sender))

    # ---- judgement

    def law(self) -> list[str]:
        """Return an error unless the server's total is the sum of the clients' totals, where all are in one round.

        A client whose update has counted and is not settled yet keeps the total after that training.
        """
        consensus_states = {peer: node.durable.consensus_states[EVERYONE] for peer, node in self.nodes().items()}
        assert len(consensus_states) == len(self.made.peers), "everybody lives"
        (applied,) = {each.holding.round for each in consensus_states.values()}
        found = split_leaves(self.seen.contents[applied], BYTES)
        assert found is not None
        total, own = pair(found[1])[1], 0.0
        for peer, each in consensus_states.items():
            counted = each.pending is not None and found[0].get(peer, 0) == each.pending.round
            own += pair(each.pending.client if counted and each.pending is not None else each.client)[0]
        return [] if abs(total - own) < 1e-9 else [f"the server counted {total}, and the clients keep {own}"]

    def judge(self, *, also: Sequence[str] = (), strangers: Sequence[str] = ()) -> None:
        """Raise AssertionError with all that is wrong; rejections by or of strangers may have any name."""
        seen = self.seen
        rows = [row for row in self.simulator.rows if row[1] != "refused" or not {row[2], row[-1]} & set(strangers)]
        forks = [f"round {n} has {len(models)} models" for n, models in seen.models.items() if len(models) > 1]
        bytes_ = [f"{p} sent {len(sent)} updates of round {n}" for (p, n), sent in seen.sent.items() if len(sent) > 1]
        terms = {term: {peer for _, t, peer in seen.leads if t == term} for _, term, _ in seen.leads}
        rivals = [f"term {term} had {sorted(peers)}" for term, peers in terms.items() if len(peers) > 1]
        found = [*seen.wrong, *forks, *bytes_, *rivals, *also]
        judges.judged(
            found[: judges.SHOWN_MAX],
            judges.saved_before_said(rows),
            judges.only_harmless(rows, {code: refusal.kind for code, refusal in REJECTIONS.items()}),
        )

    def settle_down(self, *, strangers: Sequence[str] = ()) -> None:
        """Run until faults are over and all peers are in one round, and check the run and its law, as `judge` does."""
        if self.simulator.faults.heal < math.inf:
            self.run(self.simulator.faults.heal)
        goal = max(self.rounds().values(), default=0) + 2
        text = f"in {TOGETHER_TICKS:.0f} ticks not all came to round {goal}"
        assert self.run(
            self.simulator.now + TOGETHER_TICKS,
            lambda: len(self.nodes()) == len(self.made.peers) and min(self.rounds().values()) >= goal,
        ), f"{text}: {self.rounds()}, {self.leading()} leads"
        level = self.run(self.simulator.now + TOGETHER_TICKS, self.level)
        assert level, f"they are never in one round: {self.rounds()}"
        self.judge(also=self.law(), strangers=strangers)

    def level(self) -> bool:
        """Return whether all peers live and hold the model of one round."""
        rounds = [node.durable.consensus_states[EVERYONE].holding.round for node in self.nodes().values()]
        return len(rounds) == len(self.made.peers) and len(set(rounds)) == 1
