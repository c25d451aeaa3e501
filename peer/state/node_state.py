"""State that the parts of a node share: setup, durable state, other peers, phase, and the current step's effects.

`write` is the only way to change the durable state: the entry is applied and at once becomes an effect, before any
message that follows from it.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from fedpeer.config.contract import contract_digest
from fedpeer.gossip.claims import Sign, Verify
from fedpeer.gossip.membership import Advert, Claim, Membership
from fedpeer.gossip.noise_phase import noise_key
from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.durable_state import DurableState
from fedpeer.peer.state.entries import (
    ClientStateSaved,
    Entry,
    LocalTrained,
    MaskedShares,
    ModelStored,
    ShareApplied,
    Started,
    UpdateMade,
    VoteLost,
)
from fedpeer.peer.state.events import Effect, Evaluate, Note, Persist, RejectEffect, Send, Stop
from fedpeer.peer.state.neighbors import Clock, Neighbors
from fedpeer.peer.state.own_process import Contracts, OwnStarts
from fedpeer.peer.state.phases import TRANSITIONS, Phase
from fedpeer.peer.state.setup import PeerGroups, Setup
from fedpeer.peer.wire.codec import rejection_message
from fedpeer.peer.wire.messages import Message, spoken_in
from fedpeer.rejection import Rejection

#: Ticks within which a process that was started on an old disk learns of its later generations from living peers (10 s
#: at 25 ms), unless it has met all of them before.
YOUNG_TICKS = 400
#: Rejections of a peer that may have forgotten its own state: they carry its own last statement.
_SHOWN = {"duplicate_peer", "stale_incarnation"}
#: A journal may grow to this many times the size of a snapshot before the next one is taken, so that snapshots add at
#: most a quarter to what is written; and to this many bytes in any case, so that small peers take them rarely.
JOURNAL_TIMES, JOURNAL_BYTES_MIN = 4, 4 << 20


@dataclass
class NodeState:
    """State of one process of the peer, from its start to its end.

    clock        ticks since the start; `since`: tick of running time at which `waited` was first asked in this phase
    effects      of the step under way
    journal_bytes  written since the last snapshot
    averages     by group, (D,) as its last averaging left it
    score        of the last evaluation
    evaluating   number of evaluations that were requested and have no result yet
    specs        by consensus group
    enrolled_at  tick at which this process adopted its roster; None: it started with it
    exchanges    by group, the most exchanges under an earlier roster
    """

    setup: Setup
    durable: DurableState
    membership: Membership
    peer_groups: PeerGroups
    others: Neighbors
    sign: Sign
    verify: Verify
    clock: Clock
    starts: OwnStarts
    contracts: Contracts
    phase: Phase = "starting"
    since: int | None = None
    effects: list[Effect] = field(default_factory=list)
    journal_bytes: int = 0
    averages: dict[str, Tensor] = field(default_factory=dict)
    score: float | None = None
    evaluating: int = 0
    specs: dict[str, AlgorithmSpec] = field(default_factory=dict)
    enrolled_at: int | None = None
    exchanges: dict[str, int] = field(default_factory=dict)

    @property
    def me(self) -> str:
        return self.setup.me

    @property
    def young(self) -> bool:
        """True if the process has just started, so that any other process with this identity started before it.

        Once it has met all peers of its groups, they know this process; one with a later generation started since then.
        """
        self.starts.known_to_all = self.starts.known_to_all or all(self.others[peer].met for peer in self.group_peers)
        return self.now < YOUNG_TICKS and not self.starts.known_to_all

    @property
    def group_peers(self) -> frozenset[str]:
        """Ids of the other peers that share a group with this one."""
        return self.peer_groups.group_peers - {self.me}

    def models(self) -> tuple[Tensor, Tensor | None]:
        """Return the model (n,) that this peer predicts with, and the estimate (n,) if that is another one."""
        return self.setup.reader.models(self.durable.x_n, self.durable.s_k, self.durable.fresh)

    def evaluate(self, round: int, x_n: Tensor, estimate_n: Tensor | None) -> None:
        """Request an evaluation, which also writes the model file: a peer does not end before it."""
        self.evaluating += 1
        self.effects.append(Evaluate(round, x_n, estimate_n))

    def enter(self, phase: Phase) -> None:
        """Enter a phase that may follow this one by the table in `phases.py`."""
        assert phase in TRANSITIONS[self.phase], f"no transition from {self.phase} to {phase}"
        self.phase, self.since = phase, None

    @property
    def now(self) -> int:
        """Ticks since this process began."""
        return self.clock.now

    @property
    def ran(self) -> int:
        """Ticks in which this process ran."""
        return self.clock.ran

    def waited(self) -> int:
        """Return the ticks since this was first asked in this phase, less those in which this process stood still."""
        if self.since is None:
            self.since = self.ran
        return self.ran - self.since

    def stop(self, code: int, text: str, *, again: bool = False) -> None:
        """End this process, unless the same step has ended it already."""
        if self.phase != "stopped":
            self.enter("stopped")
            self.effects.append(Stop(code, text, again))

    @property
    def in_rounds(self) -> list[str]:
        """Groups in which this peer exchanges shares in rounds, and not while it trains."""
        return [group for group in self.durable.groups if group not in self.peer_groups.asynchronous]

    @property
    def round_peers(self) -> frozenset[str]:
        """Ids of the other peers that have rounds in common with this one."""
        return self.peer_groups.round_peers - {self.me}

    @property
    def synchronous(self) -> bool:
        """True unless all groups of this peer average while it trains."""
        return bool(self.in_rounds or self.peer_groups.consensus_by_group) or not self.durable.groups

    def deadline(self, group: str, parts: int = 1) -> int:
        """Return the ticks to wait for a late peer in a group, divided by `parts`."""
        return self.setup.ticks(self.peer_groups.gossip[group].deadline / parts)

    @property
    def longest_deadline(self) -> int:
        """Ticks of the longest deadline of this peer's groups."""
        own = self.setup.ticks(self.setup.federation.gossip.deadline)
        return max(map(self.deadline, self.peer_groups.gossip), default=own)

    def start(self, generation: int) -> None:
        """Start this process under this generation, durably."""
        self.starts.numbers.add(generation)
        self.write(Started(generation=generation))

    def write(self, entry: Entry) -> dict[str, NumberedTransfer]:
        """Apply an entry and persist it; return the transfers that it made, by recipient."""
        made = self.durable.apply(entry)
        self.effects.append(Persist("entry", entry))
        self.journal_bytes += _bytes_of(entry)
        return made

    def lose_vote(self, roster: int = 0) -> None:
        """Give up the vote in all groups with a coordinator, since this peer has forgotten what it promised there.

        This is written before anything else that follows from the loss, so that no crash in between hides it.

        Args:
            roster: number of a roster under which it promised something, if that is known.
        """
        number = max(roster, self.peer_groups.roster.number)
        for group, consensus_state in self.durable.consensus_states.items():
            if consensus_state.voting_allowed or consensus_state.lost < number:
                self.write(VoteLost(group=group, roster=number))

    def snapshot(self) -> None:
        """Persist the whole durable state."""
        self.effects.append(Persist("snapshot", self.durable.copy()))
        self.journal_bytes = 0

    def snapshot_if_due(self) -> None:
        """Take a snapshot if the journal has grown long; called between rounds, when least is under way."""
        held = 8 * sum(group.length for group in self.peer_groups.groups.values())
        size = held + self.durable.x_n.nbytes + self.durable.s_k.nbytes
        size += sum(consensus_state.size for consensus_state in self.durable.consensus_states.values())
        if self.journal_bytes > max(JOURNAL_TIMES * size, JOURNAL_BYTES_MIN):
            self.snapshot()

    def send(self, to: str, message: Message, stays_true: tuple[str, str, int] | None = None) -> None:
        """Send a message in the recipient's version of the wire; one that this version does not have is dropped."""
        version = self.others.version_of(to)
        if spoken_in(version, type(message)):
            known = self._incarnation_of(to)
            self.effects.append(Send(to, message, self.durable.incarnation, known, version, stays_true))

    def _incarnation_of(self, peer: str) -> int:
        """Return the incarnation under which a peer is addressed; 0: not known."""
        return self.durable.met.get(peer) or (self.others[peer].shown if peer in self.others else 0)

    def note(self, level: Literal["debug", "info", "warning", "error"], what: str, text: str, **fields: object) -> None:
        self.effects.append(Note(level, what, text, fields))

    def refuse(self, code: str, sender: str, text: str = "", *, group: str = "", seq: int = 0) -> None:
        """Count a rejection, charge the sender for it, and send it the reason."""
        self.count(code, sender, text)
        rejection = Rejection(code, text, sender, group, seq)
        self.send(sender, rejection_message(rejection, self.shows(sender) if code in _SHOWN else ()))

    def shows(self, peer: str) -> tuple[Claim, ...]:
        """Return a peer's last statement about itself, if known: proof for a process that a later one has replaced."""
        statement = self.membership.last_statement(peer)
        return () if statement is None else (statement,)

    def count(self, code: str, sender: str, text: str = "") -> None:
        """Count a rejection and charge the sender for it, without sending it anything."""
        self.effects.append(RejectEffect(Rejection(code, text, sender)))
        self.charge(code, sender)

    def charge(self, code: str, sender: str) -> None:
        """Charge the sender of something that was rejected."""
        paused = self.others.charge(code, sender, self.setup.federation.gossip.tick)
        if paused is not None:
            for_now = "permanently" if paused.closed else f"for {paused.paused_until - self.now} ticks"
            self.note("warning", "edge_paused", f"{sender} is blocked {for_now}", peer=sender)

    def unlike(self, peer: str) -> bool:
        """Return whether a peer uses another roster, or another contract whose text this peer does not have."""
        other = self.others[peer]
        contract = other.announced[0]
        unread = contract != self.setup.contract and contract != contract_digest(other.contract)
        return unread or other.roster != self.peer_groups.roster.number

    def goes_by(self, peer_groups: PeerGroups) -> None:
        """Use these groups from now on; transfers made under the earlier groups may still arrive."""
        self.exchanges = {group: self.exchanges_max(group) for group in self.peer_groups.averaging}
        self.peer_groups, self.enrolled_at = peer_groups, self.now

    def exchanges_max(self, group: str) -> int:
        """Return the highest exchange that a transfer can have: a peer that leaves gives after those of a round."""
        policy = self.peer_groups.averaging.get(group)
        return max(self.exchanges.get(group, 0), policy.exchanges if policy is not None else 0)

    def digest_of(self, group: str) -> bytes:
        """Return the digest (32 bytes) of a group's scalars and of the contract under which they are averaged."""
        return self.digest_under(self.setup.contract, group)

    def digest_under(self, contract: bytes, group: str) -> bytes:
        """Return the digest (32 bytes) that a peer has of a group under the contract with this digest."""
        scalars = (self.peer_groups.consensus_by_group.get(group) or self.peer_groups.groups[group]).digest
        return hashlib.blake2b(contract + scalars, digest_size=32).digest()

    def shown(self, group: str) -> Tensor | None:
        """Return the average (D,) of a group that other peers may be sent; None: there is none yet.

        With noise phases, an estimate is a peer's own before the phase and means nothing during it. After the last
        round the average is the result, to which late shares are not added.
        """
        if self.phase == "finished":
            return self.durable.x_n[self.durable.index[group]]
        if self.peer_groups.averaging[group].noise is None:
            return self.durable.estimate_D(group)
        return self.averages.get(group)

    def masked_shares(self, group: str, round: int, exchange: int, fraction: float, scale: float) -> MaskedShares:
        """Return shares whose values are drawn from a key that only this peer can derive."""
        assert self.setup.secret, "masked shares come from a secret"
        time = (group, round, exchange, self.durable.incarnation, self.setup.nonce)
        return MaskedShares(fraction, noise_key(self.setup.secret, *time), scale)

    def advertise(self, score: float | None = None) -> None:
        """Let the others know this peer's round, and whether they can still count on it.

        A peer that leaves announces that at once: as long as others give it shares, which it gives back, it is never
        empty.
        """
        if score is not None:
            self.score = score
        finite = self.score is not None and math.isfinite(self.score)  # others refuse a statement with NaN or infinity
        state: Literal["alive", "finished", "left"] = "finished" if self.phase == "finished" else "alive"
        if self.phase == "leaving" or self.durable.left:
            state = "left"
        advert = Advert(
            address=self.setup.address,
            roster=self.peer_groups.roster.number,
            generation=self.durable.generation,
            nonce=self.setup.nonce,
            round=self.durable.round,
            score=self.score if finite else None,
            begun=self.durable.round > 0,
            models=self.setup.models,
        )
        self.membership.advertise(advert, state=state, incarnation=self.durable.incarnation)


def _bytes_of(entry: Entry) -> int:
    """Return the approximate number of bytes of an entry in the journal."""
    match entry:
        case LocalTrained():
            return entry.x_n.nbytes + entry.s_k.nbytes
        case ModelStored():
            return len(entry.content) + 200
        case UpdateMade():
            return len(entry.update) + len(entry.client) + 200
        case ClientStateSaved():
            return len(entry.client) + 4 * len(entry.x_n) + 200
        case ShareApplied():
            return entry.share.payload.numel() * entry.share.payload.element_size() + 200
    return 200
