"""Test network for coordinated rounds: peers with a disk each, and links that lose, repeat, delay and cut messages.

One seed determines everything. Outputs are carried out one by one, and a peer can be killed after each of them; after
that it knows only what was durable. Learning is simulated: a coordinator proposes the digest of a model that no other
coordinator would make. The history is every change of every disk, in order; most judges below read nothing else.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedpeer.gossip.claims import Verify
from fedpeer.peer.consensus.election import Election
from fedpeer.peer.consensus.round_commit import RoundCommit
from fedpeer.peer.wire.consensus_messages import (
    Accept,
    ApplyModel,
    Certificate,
    CommitState,
    ConsensusContent,
    ConsensusEffect,
    Fetch,
    HardState,
    LeaderChanged,
    PersistConsensus,
    Proposal,
    Scope,
    SendConsensus,
    VoteReply,
    VoterSet,
)
from fedpeer.rejection import Rejection
from tests.gossip.swim import FEDERATION, ids, signature, verify

SCOPE = Scope(FEDERATION, "everyone")
#: Ticks between two rounds: for the training, and for the updates in transit.
ROUND = 6


@dataclass
class Disk:
    """State of a peer that survives a kill."""

    holding: CommitState
    hard_state: HardState = field(default_factory=HardState)
    models: set[bytes] = field(default_factory=set)


@dataclass(frozen=True)
class Wanted:
    """Request for a model, or its delivery (`found`)."""

    digest: bytes
    found: bool


@dataclass(frozen=True)
class Saved:
    """Entry of the history: something that a peer made durable."""

    when: int
    peer: str
    what: HardState | CommitState


def machine(
    me: str,
    voter_sets: Collection[VoterSet],
    disk: Disk,
    rng: np.random.Generator,
    *,
    patience: float = 0.5,
    kind: type[RoundCommit] = RoundCommit,
    older: Collection[str] = (),
) -> RoundCommit:
    """Return the `RoundCommit` of a peer that starts from its disk."""

    def sign(text: bytes) -> bytes:
        return signature(me, text)

    def verify_under(number: int) -> Verify:
        return verify

    election = Election(
        me,
        scope=SCOPE,
        voter_sets=voter_sets,
        force=disk.holding.roster,
        hard_state=disk.hard_state,
        progress=disk.holding.progress,
        patience=patience,
        draws=rng,
        sign=sign,
        verify_under=verify_under,
        reads_short=lambda peer: peer not in older,
    )
    return kind(election, disk.holding, sign, verify_under)


#: Function that gives the messages of a lying member at a tick, each with its recipient.
Lie = Callable[["ConsensusCluster", str], Iterable[tuple[str, ConsensusContent]]]


class ConsensusCluster:
    """Peers and the links between them.

    loss, repeat   probability of each message to be lost, or to arrive twice
    delay          ticks one way, drawn from 1 to this many, so messages overtake one another
    apart          pairs (from, to) between which nothing passes
    doomed         a peer, and the number of outputs after which it is killed
    liars          functions that give these peers' messages at each tick; they have no `RoundCommit` in `alive`
    older          peers of an earlier release, which read no short heartbeats
    sent           every message: (tick, sender, recipient, message)
    """

    def __init__(
        self,
        seed: int,
        count: int,
        *,
        loss: float = 0.0,
        repeat: float = 0.0,
        delay: int = 4,
        kind: type[RoundCommit] = RoundCommit,
        voter_sets: Collection[VoterSet] = (),
        liars: Mapping[str, Lie] | None = None,
        older: Collection[str] = (),
    ) -> None:
        self.liars, self.older = dict(liars or {}), frozenset(older)
        self.rng = np.random.default_rng(seed)
        self.loss, self.repeat, self.delay, self.kind = loss, repeat, delay, kind
        self.peers = list(ids(count))
        everyone = frozenset(self.peers)
        self.voter_sets = list(voter_sets) or [VoterSet(1, everyone, everyone)]
        first = min(each.number for each in self.voter_sets)
        self.disks = {peer: Disk(CommitState(first)) for peer in self.peers}
        self.alive: dict[str, RoundCommit] = {}
        self.began: dict[str, int] = {}
        self.apart: frozenset[tuple[str, str]] = frozenset()
        self.doomed: tuple[str, int] | None = None
        self.history: list[Saved] = []
        self.turns: list[tuple[int, str, LeaderChanged]] = []
        self.applied: list[tuple[int, str, Proposal]] = []
        self.refused: Counter[str] = Counter()
        self.sent: list[tuple[int, str, str, ConsensusContent]] = []
        self.rash: list[tuple[int, str, ConsensusContent]] = []  # sent before it was durable
        self.now = self._order = self._models = 0
        self._due: dict[str, int] = {}
        self._mail: list[tuple[int, int, str, str, ConsensusContent | Wanted]] = []
        for peer in self.peers:
            if peer not in self.liars:
                self.start(peer)

    # ----------------------------------------------------------------------------------------------------- what happens

    def start(self, peer: str) -> None:
        """Start this peer, or start it again, from its disk."""
        patience = self.peers.index(peer) / len(self.peers)
        rng = np.random.default_rng(self.rng.integers(2**32))
        disk = self.disks[peer]
        round_commit = machine(peer, self.voter_sets, disk, rng, patience=patience, kind=self.kind, older=self.older)
        self.alive[peer], self.began[peer] = round_commit, self.now
        for digest in sorted(disk.models):
            self.carry_out(peer, round_commit.holds(digest))

    def kill(self, peer: str) -> None:
        self.alive.pop(peer, None)

    def step(self) -> None:
        """Advance one tick: deliver the messages that are due, tick each peer, let coordinators end their rounds."""
        self.now += 1
        while self._mail and self._mail[0][0] <= self.now:
            _, _, sender, to, message = heapq.heappop(self._mail)
            self._deliver(sender, to, message)
        for peer in self.peers:
            if peer in self.alive:
                others = [other for other in self.alive if other != peer]
                self.carry_out(peer, self.alive[peer].tick(self.now - self.began[peer], others))
            if peer in self.alive:
                self._learn(peer)
        for liar, lie in self.liars.items():
            for to, message in lie(self, liar):
                self._post(liar, to, message)

    def run(self, ticks: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Run for these ticks, or until the condition holds; return whether it does."""
        for _ in range(ticks):
            if until():
                return True
            self.step()
        return until()

    def carry_out(self, peer: str, outputs: Iterable[ConsensusEffect]) -> None:
        """Carry out the outputs in order; the doomed peer dies after its last output, and the rest is dropped."""
        for output in outputs:
            self._do(peer, output)
            if self.doomed is not None and self.doomed[0] == peer:
                self.doomed = peer, self.doomed[1] - 1
                if self.doomed[1] <= 0:
                    self.doomed = None
                    self.kill(peer)
                    return

    @property
    def coordinator(self) -> str | None:
        """Coordinator in the highest term; None if no peer coordinates."""
        leading = {d.election.hard_state.term: p for p, d in self.alive.items() if d.election.leading}
        return leading[max(leading)] if leading else None

    @property
    def term(self) -> int:
        """Highest term of a living peer."""
        return max(round_commit.election.hard_state.term for round_commit in self.alive.values())

    @property
    def rounds(self) -> int:
        """Last round that every living peer has applied."""
        return min(round_commit.holding.round for round_commit in self.alive.values())

    # -------------------------------------------------------------------------------------------------------------- how

    def _learn(self, peer: str) -> None:
        round_commit = self.alive[peer]
        if not round_commit.gathering:
            self._due.pop(peer, None)
        elif self.now >= self._due.setdefault(peer, self.now + ROUND):
            del self._due[peer]
            self._models += 1
            digest = self._models.to_bytes(32, "big")
            self.disks[peer].models.add(digest)
            self.carry_out(peer, round_commit.propose(digest))

    def _do(self, peer: str, output: ConsensusEffect) -> None:
        match output:
            case PersistConsensus(HardState() as hard_state):
                self.disks[peer].hard_state = hard_state
                self.history.append(Saved(self.now, peer, hard_state))
            case PersistConsensus(CommitState() as holding):
                self.disks[peer].holding = holding
                self.history.append(Saved(self.now, peer, holding))
            case SendConsensus(to, message):
                if not self._is_durable(peer, to, message):
                    self.rash.append((self.now, peer, message))
                self.sent.append((self.now, peer, to, message))
                self._post(peer, to, message)
            case Fetch(holder, digest):
                self._post(peer, holder, Wanted(digest, found=False))
            case ApplyModel(proposal):
                self.applied.append((self.now, peer, proposal))
            case LeaderChanged():
                self.turns.append((self.now, peer, output))
            case Rejection(code):
                self.refused[code] += 1

    def _is_durable(self, peer: str, to: str, message: ConsensusContent) -> bool:
        """Return whether a vote or an acceptance is on its sender's disk, with the model that it is about."""
        disk = self.disks[peer]
        match message:
            case VoteReply(term, False, True):
                return disk.hard_state == HardState(term, to)
            case Accept(term, round_):
                held = disk.holding.accepted
                return held is not None and (held.term, held.round) == (term, round_) and held.digest in disk.models
            case _:
                return True

    def _post(self, sender: str, to: str, message: ConsensusContent | Wanted) -> None:
        for _ in range(1 + (self.rng.random() < self.repeat)):
            if self.rng.random() >= self.loss and (sender, to) not in self.apart:
                self._order += 1
                due = self.now + int(self.rng.integers(1, self.delay + 1))
                heapq.heappush(self._mail, (due, self._order, sender, to, message))

    def _deliver(self, sender: str, to: str, message: ConsensusContent | Wanted) -> None:
        if to not in self.alive or (sender, to) in self.apart:
            return
        if not isinstance(message, Wanted):
            self.carry_out(to, self.alive[to].received(sender, message))
        elif message.found:
            self.disks[to].models.add(message.digest)
            self.carry_out(to, self.alive[to].holds(message.digest))
        elif message.digest in self.disks[to].models:
            self._post(to, sender, Wanted(message.digest, found=True))


def effects(count: int) -> int:
    """Return an upper bound of a coordinator's outputs from one proposal to the next, among so many peers: the messages
    of a round (proposals, certificates, heartbeats), two saves and an application."""
    return 4 * count + 4


def bereaved(consensus_cluster: ConsensusCluster, outputs: int) -> tuple[str, int | None]:
    """Kill the coordinator after so many more outputs; return it, and the ticks until another peer coordinates."""
    assert consensus_cluster.run(400, lambda: consensus_cluster.rounds >= 1), "a court begins"
    consensus_cluster.run(int(consensus_cluster.rng.integers(2 * ROUND)))
    assert consensus_cluster.run(200, lambda: consensus_cluster.coordinator is not None), (
        "a court has a coordinator again"
    )
    victim = consensus_cluster.coordinator
    assert victim is not None
    consensus_cluster.doomed = victim, outputs
    assert consensus_cluster.run(100, lambda: victim not in consensus_cluster.alive), "a coordinator goes on speaking"
    killed = consensus_cluster.now
    found = consensus_cluster.run(400, lambda: consensus_cluster.coordinator is not None)
    return victim, consensus_cluster.now - killed if found else None


# --------------------------------------------------------------------------------------------------------------- judges


def applications(history: Iterable[Saved]) -> list[tuple[Saved, Certificate]]:
    """Return each entry that made a round durable as applied, with the round's certificate."""
    found, last = [], dict[str, Certificate | None]()
    for saved in history:
        if isinstance(saved.what, CommitState):
            applied = saved.what.applied
            if applied is not None and applied != last.get(saved.peer):
                found.append((saved, applied))
            last[saved.peer] = applied
    return found


def forks(history: Iterable[Saved]) -> list[int]:
    """Return the rounds for which two different models were applied."""
    models: dict[int, set[bytes]] = {}
    for _, certificate in applications(history):
        models.setdefault(certificate.proposal.round, set()).add(certificate.proposal.digest)
    return [round_ for round_, digests in models.items() if len(digests) > 1]


def doubles(history: Iterable[Saved]) -> list[tuple[str, int]]:
    """Return the rounds that a peer applied twice, or after a later one."""
    last: Counter[str] = Counter()
    found = []
    for saved, certificate in applications(history):
        if certificate.proposal.round <= last[saved.peer]:
            found.append((saved.peer, certificate.proposal.round))
        last[saved.peer] = certificate.proposal.round
    return found


def unsupported(history: Iterable[Saved], voter_sets: Mapping[int, VoterSet]) -> list[int]:
    """Return the rounds that a peer applied before a majority had durably accepted exactly that proposal."""
    accepted: dict[Proposal, set[str]] = {}
    last: dict[str, Certificate | None] = {}
    found = []
    for saved in history:
        if not isinstance(saved.what, CommitState):
            continue
        if saved.what.accepted is not None:
            accepted.setdefault(saved.what.accepted, set()).add(saved.peer)
        applied = saved.what.applied
        if applied is not None and applied != last.get(saved.peer):
            voters = voter_sets[applied.proposal.roster].voters
            if 2 * len(accepted.get(applied.proposal, set()) & voters) <= len(voters):
                found.append(applied.proposal.round)
            last[saved.peer] = applied
    return found


def perjuries(history: Iterable[Saved]) -> list[str]:
    """Return the peers whose term decreased, or that gave two votes in one term."""
    last: dict[str, HardState] = {}
    found = []
    for saved in history:
        if isinstance(saved.what, HardState):
            before = last.get(saved.peer, HardState())
            fickle = saved.what.term == before.term and before.voted not in ("", saved.what.voted)
            if saved.what.term < before.term or fickle:
                found.append(saved.peer)
            last[saved.peer] = saved.what
    return found


def rivals(turns: Iterable[tuple[int, str, LeaderChanged]]) -> list[int]:
    """Return the terms in which two peers coordinated."""
    seen: dict[int, set[str]] = {}
    for _, peer, turn in turns:
        if turn.coordinator == peer:
            seen.setdefault(turn.term, set()).add(peer)
    return [term for term, peers in seen.items() if len(peers) > 1]


def judge(consensus_cluster: ConsensusCluster) -> dict[str, object]:
    """Return the violations in a run, by name; empty if there are none."""
    voter_sets = {each.number: each for each in consensus_cluster.voter_sets}
    findings: dict[str, object] = {
        "forks": forks(consensus_cluster.history),
        "doubles": doubles(consensus_cluster.history),
        "unsupported": unsupported(consensus_cluster.history, voter_sets),
        "perjuries": perjuries(consensus_cluster.history),
        "rivals": rivals(consensus_cluster.turns),
        "rash": consensus_cluster.rash,
    }
    return {name: found for name, found in findings.items() if found}
