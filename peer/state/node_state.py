"""What the parts of a node share: the setup, the durable state, who else there is, and the effects of the step under
way.

`write` is the only way to change the durable state: the entry is applied and at once among the effects, before whatever
is said because of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from torch import Tensor

from fedpeer.config.contract import HeldContract
from fedpeer.config.settings import FederationSettings
from fedpeer.gossip.averaging import Averaging
from fedpeer.gossip.awareness import ProbeTiming
from fedpeer.gossip.claims import Sign, Verify
from fedpeer.gossip.membership import Advert, Claim, Membership
from fedpeer.gossip.noise_phase import noise_key
from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.learning.groups import PeerGroup
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
)
from fedpeer.peer.state.events import Effect, Note, Persist, RejectEffect, Send, Stop
from fedpeer.peer.state.neighbor import Neighbor
from fedpeer.peer.state.phases import TRANSITIONS, Phase
from fedpeer.peer.state.reader import PLAIN, StateReader
from fedpeer.peer.state.reputation import Reputation
from fedpeer.peer.state.voters import ConsensusGroup
from fedpeer.peer.wire.codec import rejection_message
from fedpeer.peer.wire.message_policy import MessagePolicy
from fedpeer.peer.wire.messages import Message, spoken_in
from fedpeer.peer.wire.roster import Roster
from fedpeer.peer.wire.signed_contract import SignedContract
from fedpeer.peer.wire.versions import NEWEST
from fedpeer.rejection import Rejection
from fedpeer.slicing.plan import Group

#: Ticks in which a process that was started on an old disk has heard of its later generations from whoever is there (10
#: s at 25 ms); sooner, when it has met all.
YOUNG_TICKS = 400
#: Ticks for which one who is thought dead is still waited for, with a deadline as for anybody: within them a false
#: death is refuted (P8); who believed it at once would go on alone, rounds ahead of those who only lost some packets.
DOUBT_TICKS = 200
#: Refusals of who may have forgotten what it is: they show what it said of itself.
_SHOWN = {"duplicate_peer", "stale_incarnation"}
#: More ticks at once than this mean that this process stood still, as membership takes it: the rest of them was no time
#: in which others could have answered.
_PAUSE_TICKS = ProbeTiming().pause
#: A journal may grow to so many times the size of a snapshot before the next one is taken, so that saving whole
#: states costs at most a quarter more; and to this many bytes in any case, so that small peers save seldom.
JOURNAL_TIMES, JOURNAL_BYTES_MIN = 4, 4 << 20


@dataclass(frozen=True, eq=False)
class PeerGroups:
    """With whom a peer learns, by one roster: its groups, how each averages, and the groups of others; and the
    consensus groups
    in which rounds are coordinated."""

    roster: Roster
    groups: Mapping[str, PeerGroup]
    averaging: Mapping[str, Averaging]
    elsewhere: Mapping[str, Group]
    consensus_by_group: Mapping[str, ConsensusGroup] = field(default_factory=dict)

    @cached_property
    def mates(self) -> frozenset[str]:
        """All who are in some group or consensus group of this peer's."""
        members = [
            *(each.members for each in self.groups.values()),
            *(each.members for each in self.consensus_by_group.values()),
        ]
        return frozenset(peer for each in members for peer in each if peer in self.roster.by_id)

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(entry.id for entry in self.roster.entries)


@dataclass(frozen=True, eq=False, kw_only=True)
class Setup:
    """What is fixed for a process.

    federation   with everything filled in
    contract     (32 bytes) digest of the learning contract in force; `held` is it, and how it came
    circle       by the roster at the start; `peer_groups_of` makes it for a later roster
    address      the URL others reach this peer by
    models       partial models that it implements
    seeds        ids of those who are greeted first, and the others only when they are known to be there, or after a
                 while; none: all at once
    nonce        drawn at this start
    reader       what its algorithm says of the state that training leaves
    own_weights  whether each averaging begins anew, from the algorithm's own weights
    secret       what masked shares come from; b"" where there are none
    signed       the newest contract by the authority that is known; None: there is none but the file
    unfit        why it cannot go over to the contract of this spelling; "": it can
    part         what it does in the consensus groups of its circle: it is the client of a server, or one of the equals
                 of groups that are averaged by coordinators; None: there are no consensus groups
    """

    me: str
    federation: FederationSettings
    contract: bytes
    held: HeldContract
    peer_groups: PeerGroups
    peer_groups_of: Callable[[Roster], PeerGroups]
    address: str = ""
    models: tuple[str, ...] = ()
    seeds: frozenset[str] = frozenset()
    nonce: int = 0
    reader: StateReader = PLAIN
    own_weights: bool = False
    secret: bytes = b""
    signed: SignedContract | None = None
    unfit: Callable[[bytes], str] = lambda text: ""
    part: Literal["client", "averager"] | None = None

    def ticks(self, seconds: float) -> int:
        """As many ticks as these seconds, at least one."""
        return max(1, round(seconds / self.federation.gossip.tick))


@dataclass
class NodeState:
    """This life of the peer, from its start to its end."""

    setup: Setup
    durable: DurableState
    membership: Membership
    peer_groups: PeerGroups
    others: dict[str, Neighbor]
    sign: Sign
    verify: Verify
    phase: Phase = "starting"
    now: int = 0
    ran: int = 0  # ticks in which this process ran
    since: int | None = None
    effects: list[Effect] = field(default_factory=list)
    reputations: dict[str, Reputation] = field(default_factory=dict)
    journal_bytes: int = 0
    digests: dict[str, bytes] = field(default_factory=dict)
    # What follows from who is there, kept until that changes: it is asked for with every message.
    reachable: dict[tuple[str, str], bool] = field(default_factory=dict)
    expectable: dict[tuple[str, str], bool] = field(default_factory=dict)
    living: dict[str, Averaging] = field(default_factory=dict)
    policies: dict[str | None, MessagePolicy] = field(default_factory=dict)
    averages: dict[str, Tensor] = field(default_factory=dict)  # of each group, as its last averaging left it
    score: float | None = None
    specs: dict[str, AlgorithmSpec] = field(default_factory=dict)  # of the consensus groups, by group
    enrolled_at: int | None = None  # tick at which this process went over to its circle; None: it began with it
    exchanges: dict[str, int] = field(default_factory=dict)  # of each group, the most by an earlier circle
    new: bool = False  # this process found an empty disk
    signed: SignedContract | None = None  # the newest contract by the authority that is known
    unfit: set[int] = field(default_factory=set)  # numbers of contracts to which this peer cannot go over
    numbers: set[int] = field(default_factory=set)  # under which this process has lived
    known_to_all: bool = False  # all mates have met this process
    signed_as: tuple[tuple[int, ...], bytes] = ((), b"")  # own numbers and the signature of them, made once
    amnesia: bool = False  # others know of an earlier process that used that disk before

    @property
    def me(self) -> str:
        return self.setup.me

    @property
    def contract_number(self) -> int:
        """The number of the newest contract that is known, in force or not yet."""
        return max(self.setup.held.number, 0 if self.signed is None else self.signed.number)

    @property
    def young(self) -> bool:
        """Whether the process has just started, so that another one of this identity began before it.

        Who has met all its mates is known to them under this process; whatever claims a later one has begun since.
        """
        self.known_to_all = self.known_to_all or all(self.others[peer].met for peer in self.mates)
        return self.now < YOUNG_TICKS and not self.known_to_all

    @property
    def mates(self) -> frozenset[str]:
        """All others with whom this peer shares a group."""
        return self.peer_groups.mates - {self.me}

    def models(self) -> tuple[Tensor, Tensor | None]:
        """Return the model (n,) that this peer predicts with, and the estimate (n,) where that is another one."""
        return self.setup.reader.models(self.durable.x_n, self.durable.s_k, self.durable.fresh)

    def enter(self, phase: Phase) -> None:
        """Begin another phase; which may follow this one the table of `phases.py` says."""
        assert phase in TRANSITIONS[self.phase], f"no transition from {self.phase} to {phase}"
        self.phase, self.since = phase, None

    def passes(self, now: int) -> None:
        """Time has passed."""
        self.ran += min(now - self.now, _PAUSE_TICKS)
        self.now = now

    def waited(self) -> int:
        """Ticks since this was first asked in this phase, but for those in which this process stood still itself."""
        if self.since is None:
            self.since = self.ran
        return self.ran - self.since

    def stop(self, code: int, text: str, *, again: bool = False) -> None:
        """End with this effect, unless another one has ended this process in the same step."""
        if self.phase != "stopped":
            self.enter("stopped")
            self.effects.append(Stop(code, text, again))

    @property
    def synchronous(self) -> bool:
        return self.setup.federation.learning.mode == "synchronous"

    def outdone(self, generation: int) -> None:
        """Others know of later generations than this one: this is the next."""
        self.amnesia = self.amnesia or self.new
        self.starts(generation)

    def starts(self, generation: int) -> None:
        """This process goes by this number of a start."""
        self.numbers.add(generation)
        self.write(Started(generation=generation))

    def write(self, entry: Entry) -> dict[str, NumberedTransfer]:
        """Apply an entry and persist it; the shares that it made."""
        made = self.durable.apply(entry)
        self.effects.append(Persist("entry", entry))
        self.journal_bytes += _bytes_of(entry)
        return made

    def snapshot(self) -> None:
        """Persist the whole durable state."""
        self.effects.append(Persist("snapshot", self.durable.copy()))
        self.journal_bytes = 0

    def snapshot_if_due(self) -> None:
        """Where the journal has grown long; between rounds, when least is under way."""
        held = 8 * sum(group.length for group in self.peer_groups.groups.values())
        size = held + self.durable.x_n.nbytes + self.durable.s_k.nbytes
        size += sum(consensus_state.size for consensus_state in self.durable.chambers.values())
        if self.journal_bytes > max(JOURNAL_TIMES * size, JOURNAL_BYTES_MIN):
            self.snapshot()

    def send(self, to: str, message: Message, stays_true: tuple[str, str, int] | None = None) -> None:
        """Say this to a peer in the version of the wire that it speaks; what that version does not have is not said."""
        version = self.version_of(to)
        if spoken_in(version, type(message)):
            known = self._incarnation_of(to)
            self.effects.append(Send(to, message, self.durable.incarnation, known, version, stays_true))

    def _incarnation_of(self, peer: str) -> int:
        """Return the incarnation by which a peer is addressed; 0: not known."""
        return self.durable.met.get(peer) or (self.others[peer].shown if peer in self.others else 0)

    def version_of(self, peer: str) -> int:
        """Return the version of the wire in which this peer is spoken to."""
        return self.others[peer].version if peer in self.others else NEWEST

    def note(self, level: Literal["debug", "info", "warning", "error"], what: str, text: str, **fields: object) -> None:
        self.effects.append(Note(level, what, text, fields))

    def refuse(self, code: str, sender: str, text: str = "", *, group: str = "", seq: int = 0) -> None:
        """Count it, let it cost what it costs, and tell the one refused."""
        self.count(code, sender, text)
        rejection = Rejection(code, text, sender, group, seq)
        self.send(sender, rejection_message(rejection, self.shows(sender) if code in _SHOWN else ()))

    def shows(self, peer: str) -> tuple[Claim, ...]:
        """What a peer says of itself, as far as that is known, for who speaks in its name and is not it any more."""
        said = self.membership.last_statement(peer)
        return () if said is None else (said,)

    def count(self, code: str, sender: str, text: str = "") -> None:
        """The same without a word to the one refused."""
        self.effects.append(RejectEffect(Rejection(code, text, sender)))
        self.charge(code, sender)

    def charge(self, code: str, sender: str) -> None:
        """What a refusal does to the standing of the one refused."""
        before = self.reputations.get(sender, Reputation())
        after = before.after(code, self.now, self.setup.federation.gossip.tick)
        self.reputations[sender] = after
        if before.listens(self.now) != after.listens(self.now):
            self.changed()
        if before.listens(self.now) and not after.listens(self.now):
            for_now = "for good" if after.closed else f"for {after.paused_until - self.now} ticks"
            self.note("warning", "edge_paused", f"{sender} is not listened to {for_now}", peer=sender)

    def listens(self, peer: str) -> bool:
        """Whether messages of this peer are taken now."""
        return self.reputations.get(peer, Reputation()).listens(self.now)

    def available(self, peer: str, group: str) -> bool:
        """Whether shares can go to and come from this peer now, as far as one can know."""
        key = (peer, group)
        if key not in self.reachable:
            self.reachable[key] = self._available(peer, group)
        return self.reachable[key]

    def expected(self, peer: str, group: str) -> bool:
        """Whether averaging counts on this peer: it is available, or was until a moment ago."""
        key = (peer, group)
        if key not in self.expectable:
            buried_at = self.others[peer].buried_at if peer in self.others else None
            self.expectable[key] = self.available(peer, group) or (
                buried_at is not None and self.agrees(peer, group) and self.membership.status(peer) == "dead"
            )
        return self.expectable[key]

    def goes_by(self, peer_groups: PeerGroups) -> None:
        """Another circle counts from now on; what was made by the earlier one may still come."""
        self.exchanges = {group: self.exchanges_max(group) for group in self.peer_groups.averaging}
        self.peer_groups, self.enrolled_at = peer_groups, self.now

    def exchanges_max(self, group: str) -> int:
        """The number of the last exchange for which anything can be made: who leaves gives behind those of a round."""
        policy = self.peer_groups.averaging.get(group)
        return max(self.exchanges.get(group, 0), policy.exchanges if policy is not None else 0)

    def parts(self, peer: str) -> bool:
        """Whether it leaves, and has not said yet that it has handed everything over."""
        return peer in self.others and self.others[peer].met and self.membership.status(peer) == "left"

    def received_since(self, peer: str, tick: int) -> bool:
        """Whether anything came from this peer itself since then."""
        return peer in self.others and self.others[peer].received_at >= tick

    def reconsider(self) -> None:
        """Time has passed: pauses of edges and doubts may be over."""
        over = [each for each in self.others.values() if self.now - (each.buried_at or self.now) >= DOUBT_TICKS]
        for other in over:
            other.buried_at = None
        if over or any(not each.listens(self.now) or each.pauses for each in self.reputations.values()):
            self.changed()

    def changed(self) -> None:
        """Somebody came, went, met us, is listened to or not, or we are somebody else."""
        self.reachable.clear()
        self.expectable.clear()
        self.living.clear()
        self.policies.clear()

    def _available(self, peer: str, group: str) -> bool:
        return self.agrees(peer, group) and self.membership.status(peer) not in ("dead", "left")

    def agrees(self, peer: str, group: str) -> bool:
        """Whether this peer has been met, learns the same in the group, and is listened to."""
        other = self.others.get(peer)
        return other is not None and other.met and group in other.agreed and self.listens(peer)

    def digest_of(self, group: str) -> bytes:
        """(32 bytes) of what the group's scalars are and under which contract they are averaged."""
        if group not in self.digests:
            self.digests[group] = self.digest_under(self.setup.contract, group)
        return self.digests[group]

    def digest_under(self, contract: bytes, group: str) -> bytes:
        """The same, as a peer says it that goes by the contract of this digest."""
        scalars = (self.peer_groups.consensus_by_group.get(group) or self.peer_groups.groups[group]).digest
        return hashlib.blake2b(contract + scalars, digest_size=32).digest()

    def shown(self, group: str) -> Tensor | None:
        """(D,) what others may be told of a group's average; None: nothing yet.

        With phases of noise an estimate is a peer's own before the phase, and means nothing in it. After the last round
        it is the result, to which what comes late is not added.
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
        """Let the others know how far this peer is, and whether they can still count on it.

        Who leaves says so at once: as long as others give to it, and it gives that back, it has never nothing.
        """
        if score is not None:
            self.score = score
        state: Literal["alive", "finished", "left"] = "finished" if self.phase == "finished" else "alive"
        if self.phase == "leaving" or self.durable.left:
            state = "left"
        advert = Advert(
            address=self.setup.address,
            roster=self.peer_groups.roster.number,
            generation=self.durable.generation,
            nonce=self.setup.nonce,
            round=self.durable.round,
            score=self.score,
            begun=self.durable.round > 0,
            models=self.setup.models,
        )
        self.membership.advertise(advert, state=state, incarnation=self.durable.incarnation)

    def round_of(self, peer: str) -> int:
        """Return the latest round in which a peer was seen, or says that it is: one that is no neighbour is seen only
        when it is met."""
        said = self.membership.last_statement(peer)
        told = said.advert.round if said is not None and said.advert is not None else 0
        return max(self.others[peer].round, told)


def _bytes_of(entry: Entry) -> int:
    """About what an entry takes in the journal."""
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
