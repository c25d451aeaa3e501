"""bob in coordinated rounds, with a clock that a test moves on, and messages that the others can sign."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpeer.algorithms.leaves import leaves_of, rebuilt
from fedpeer.peer.consensus.round_consensus import RoundConsensus
from fedpeer.peer.node.server_side import ServerSide
from fedpeer.peer.runtime.process import PeerProcess
from fedpeer.peer.state.events import Tick
from fedpeer.peer.state.voters import EVERYONE
from fedpeer.peer.wire.consensus_messages import (
    Certificate,
    Commit,
    Heartbeat,
    HeartbeatReply,
    LeaderCertificate,
    Progress,
    Proposal,
    VoteReply,
    acceptance_text,
    vote_text,
)
from fedpeer.peer.wire.leaf_bytes import content_of
from fedpeer.peer.wire.messages import ConsensusMessage, Message, Update
from fedpeer.peer.wire.roster import sign_statement
from fedpeer.peer.wire.tails import content_digest
from tests.peer.runtime.bob import Bob, bob_at
from tests.sims import worlds

#: Peers that are there besides bob; eve is away.
OTHERS = ("ann", "cas", "dan")


class RoundBob(Bob):
    """bob in the consensus group of all, and messages that the others can sign."""

    @property
    def consensus(self) -> RoundConsensus:
        return self.peer.process._node.consensus_by_group[EVERYONE]

    @property
    def server_side(self) -> ServerSide:
        served = self.peer.process._prepared.trainer.server_side
        assert served is not None
        return served

    @property
    def term(self) -> int:
        return self.peer.inside(lambda: self.consensus.round_commit.election.hard_state.term)

    def hears(self, message: Message, sender: str = "ann") -> None:
        """Send a message to bob and check that his port accepts it."""
        assert self.say(self.framed(message, sender), sender) is None

    def ballot(self, said: Any) -> ConsensusMessage:
        return ConsensusMessage(group=EVERYONE, message=said)

    def signed_by(self, who: str, text: bytes) -> bytes:
        return sign_statement(self.keys[who].key, "claim", self.people.roster.federation_id, text)

    def lead(self, candidate: str, term: int, *voters: str, signed: int = 0, roster: int = 0) -> ConsensusMessage:
        """Return the heartbeat of a coordinator with these votes; with `signed` they are signed for another term."""
        scope, number = self.consensus.round_commit.election.scope, roster or self.people.roster.number
        votes = {who: self.signed_by(who, vote_text(scope, who, signed or term, number, candidate)) for who in voters}
        return self.ballot(
            Heartbeat(LeaderCertificate(term, candidate, number, tuple(sorted(votes.items()))), Progress())
        )

    def proposal(self, term: int, round: int, digest: bytes) -> Proposal:
        return Proposal(term, round, self.people.roster.number, digest)

    def commit(
        self, proposal: Proposal, *, signed: Proposal | None = None, voters: Sequence[str] = OTHERS
    ) -> ConsensusMessage:
        """Return the commit of a proposal by three of five peers; with `signed` they accepted another proposal."""
        scope = self.consensus.round_commit.election.scope
        by = {who: self.signed_by(who, acceptance_text(scope, who, signed or proposal)) for who in voters}
        return self.ballot(Commit(Certificate(proposal, tuple(sorted(by.items())))))

    def update(self, sender: str = "ann", *, late: int = 0, of: str = "", times: float = 1.0, **changed: Any) -> Update:
        """Return an update for bob's round or `late` rounds before it, as client `of`; the model is `times` ones."""
        template = self.server_side.update.template
        number = torch.tensor(self.consensus.clients.index(of or sender))
        values = {"model_n": times * torch.ones_like(template.model_n), "number": number}
        values |= {"examples": torch.tensor(40), "precision": torch.tensor(1.0)}
        values |= {name: torch.tensor(value) for name, value in changed.items()}
        typed = {name: values[name].to(leaf.dtype) for name, leaf in leaves_of(template).items()}
        content = self.server_side.update.written(rebuilt(template, typed))
        term, round = self.term, self.consensus.applied + 1 - late
        return Update(group=EVERYONE, term=term, round=round, digest=content_digest(content), content=content)

    def model(self, value: float) -> bytes:
        """Return a content whose server has this number in every place."""
        template = self.server_side.server.template
        server = rebuilt(template, {"model_n": torch.full_like(template.model_n, value)})
        return content_of({}, self.server_side.server.written(server))

    # ------------------------------------------------------------------------------------------------- how far he is

    def coordinates(self) -> None:
        """Elect bob, and wait until he has his own update."""
        self.is_elected()
        self.waits(lambda: self.consensus._gathering.updates.keys() >= {"bob"})

    def is_elected(self) -> None:
        """Elect bob, and answer his heartbeats."""
        election, now = self.consensus.round_commit.election, self.peer.state.now
        while not self.peer.inside(lambda: election.leading):
            now += 1
            assert now < 1000, "nobody stands in his way"
            self.peer.inside(partial(self.peer.process.feed, Tick(now)))
            poll = self.peer.inside(lambda: election._poll)
            if poll is None:
                continue
            for who in ("ann", "cas"):
                text = vote_text(election.scope, who, poll.term, self.people.roster.number, "bob")
                vote = b"" if poll.pre else self.signed_by(who, text)
                self.hears(self.ballot(VoteReply(poll.term, poll.pre, True, vote)), who)
        for who in OTHERS:
            self.hears(self.ballot(HeartbeatReply(self.term, Progress())), who)

    def waits(self, done: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is checked in bob's own thread."""

        async def until() -> None:
            while not done():
                await asyncio.sleep(0.005)

        self.peer.wait(until())

    def follows(self) -> int:
        """Make ann the coordinator in a new term, after round 1 is in force; return the term."""
        assert self.consensus.applied == 1
        term = self.term + 1
        self.hears(self.lead("ann", term, "ann", "cas", "eve"))
        assert self.peer.inside(lambda: self.consensus.coordinator) == "ann"
        self.waits(lambda: not self.peer.process._node.client.working)  # type: ignore[union-attr]
        return term


@contextmanager
def round_bob_at(folder: Path, **settings: Any) -> Iterator[RoundBob]:
    """Run bob among five peers with these settings of the federation, until he has met the others."""

    async def still(process: PeerProcess) -> None:
        """Advance the time only until bob has met the others."""
        state = process._node.state
        while not all(state.others[peer].knows_us for peer in OTHERS):
            process.feed(Tick(state.now + 1))
            await asyncio.sleep(0.02)
        await asyncio.sleep(3600.0)

    usual = {
        "network": "mlp:64+3+10",
        "learning__algorithm": "python:tests.peer.runtime.everything:Everything",
        "learning__farthest": 100,
        "learning__rounds": 1000,
        "gossip__gather": 0.0,
        "simulation__peers": 5,
    }
    federation = worlds.federation(**{**usual, **settings})
    with pytest.MonkeyPatch.context() as standing:
        standing.setattr(PeerProcess, "_tick", still)
        with bob_at(folder, federation, RoundBob) as bob:
            assert isinstance(bob, RoundBob)
            for other in OTHERS:  # bob may vote once each of them has received from this process
                assert bob.say(bob.hello(other, known_generation=bob.peer.state.durable.generation), other) is None
            yield bob
