"""Lies by name: messages that a lying peer sends beside its regular ones, with its own key over its own connections.

A lie is a function of the liar's node, the node to which it lies, and a number that rises each time; it gives messages.
It uses what acknowledgements and Hellos tell it of the other node, and no more. Its messages take the way of all
messages: as bytes, through the codec and the admission policy of the recipient.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from fedpeer.gossip.claims import Claim, State, claim_text
from fedpeer.gossip.proofs import lane_text
from fedpeer.gossip.reductions import FLOAT32
from fedpeer.gossip.transfers import Incoming, NumberedTransfer, Outgoing
from fedpeer.peer.consensus.election import Election
from fedpeer.peer.node.node import Node
from fedpeer.peer.node.reminders import own_signature
from fedpeer.peer.state.events import Send
from fedpeer.peer.wire import ballots
from fedpeer.peer.wire.ballots import Heartbeat, HeartbeatReply, LeaderCertificate, Progress, VoteReply, VoteRequest
from fedpeer.peer.wire.messages import (
    Ack,
    ConsensusMessage,
    Contract,
    Hello,
    LaneState,
    Message,
    Ping,
    Pong,
    RejectMessage,
    RosterNews,
    Transfer,
)
from fedpeer.peer.wire.roster import Roster, sign, to_bytes
from fedpeer.peer.wire.versions import CAPABILITIES, NEWEST, VERSIONS
from fedpeer.sims.network.faults import LIE_NAMES

#: What a liar sends to one other, by its own node, the other's and a number that rises.
Lie = Callable[[Node, Node, int], Iterator[Send]]

#: How deep a contract is nested.
NESTED = 962
#: Of so many shares with exchanges that rise, so many are of exchanges that there may be.
SHARES, POSSIBLE = 40, 30
#: Parts of the estimate by which a poisoned share is away from it.
POISON = 0.5
#: Claims in one message.
CLAIMS = 8


def _send(me: Node, to: Node, message: Message, *, version: int = NEWEST, to_incarnation: int | None = None) -> Send:
    """The message, between the incarnations as which the other knows the two: whatever the liar's own node has come to
    believe of its lanes meanwhile."""
    known = to.ledger.met.get(me.life.me, me.ledger.incarnation)
    return Send(to.life.me, message, known, to_incarnation or to.ledger.incarnation, version)


# ------------------------------------------------------------------------------------------------- lives and processes


def lives(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Hellos that know of later incarnations and lives of the other, or of transfers that it has never made."""
    later = to.ledger.incarnation + 1 + number % 100
    for version in VERSIONS:
        yield _send(me, to, _hello(me, to, version), version=version, to_incarnation=2**62)
        yield _send(me, to, _hello(me, to, version), version=version, to_incarnation=later)
        yield _send(me, to, _hello(me, to, version, known_life=2**40 + number), version=version)
        yield _send(me, to, _hello(me, to, version, taken=1 + number), version=version)


def _hello(me: Node, to: Node, version: int, *, known_life: int | None = None, taken: int = 0) -> Hello:
    life, other = me.life, to.life.me
    groups = tuple(id for id, group in life.circle.groups.items() if other in group.members)
    return Hello(
        life=life.ledger.life,
        nonce=life.setup.nonce,
        known_life=life.others[other].life if known_life is None else known_life,
        contract=life.setup.contract,
        groups=tuple((group, life.digest_of(group)) for group in groups),
        lanes=tuple(_lane(me, to, group, taken) for group in groups),
        round=life.ledger.round,
        begun=life.ledger.round > 0,
        roster=life.circle.roster.number,
        answer=True,
        capabilities=CAPABILITIES if version > 1 else (),
        signature=own_signature(life) if version > 1 else b"",
    )


def _lane(me: Node, to: Node, group: str, more: int) -> LaneState:
    """As it is, but for so many that were taken more than were made."""
    out, into = _ends(to, me, group)
    return LaneState(
        group=group,
        made=into.taken,
        acked=into.taken,
        taken=out.made + more if more else out.acked,
        made_weight=into.taken_weight,
        taken_weight=out.weight_until(out.acked) + more,
    )


def _ends(of: Node, other: Node, group: str) -> tuple[Outgoing, Incoming]:
    holding = of.ledger.groups[group]
    return holding.out.get(other.life.me, Outgoing()), holding.into.get(other.life.me, Incoming())


def duplicates(me: Node, to: Node, number: int) -> Iterator[Send]:
    """The other was started a second time."""
    for version in VERSIONS:
        said = RejectMessage(code="duplicate_peer", group="", seq=0, text="a later process has your identity")
        yield _send(me, to, said, version=version)


# ------------------------------------------------------------------------------------------------------------- shares


def weight_lies(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Shares of weight 1, one after the other."""
    for group in _shared(me, to):
        yield _share(me, to, group, weight=1.0)


def exchanges(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Shares of rounds to come, each later than the one before, and of exchanges that there are not."""
    for group in _shared(me, to):
        most = to.life.exchanges_max(group)
        at = (to.ledger.round + 1 + number // 2, number % most)
        yield _share(me, to, group, weight=1e-3, at=at if number % SHARES < POSSIBLE else (at[0], most + number))


def values(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Shares whose values lead away, by a little or by much, or are no numbers."""
    for group in _shared(me, to):
        value_D = to.ledger.estimate_D(group)
        away = (1 + POISON, 1 + POISON, 100.0, float("nan"))[number % 4]
        yield _share(me, to, group, weight=1e-2, value_D=value_D * away)


def _shared(me: Node, to: Node) -> list[str]:
    """Groups of both, if the other knows the liar."""
    return [group for group in me.ledger.groups if me.life.me in to.ledger.met and group in to.ledger.groups]


def _share(
    me: Node,
    to: Node,
    group: str,
    *,
    weight: float,
    value_D: Tensor | None = None,
    at: tuple[int, int] = (0, 0),
) -> Send:
    """The next share on the lane, signed."""
    _, lane = _ends(to, me, group)
    round, exchange = max(lane.place, to.ledger.groups[group].at, at)
    value_D = me.ledger.estimate_D(group) if value_D is None else value_D
    total = lane.taken_weight + weight
    parcel = NumberedTransfer(
        seq=lane.taken + 1,
        round=round,
        exchange=exchange,
        weight=weight,
        form=FLOAT32.name,
        payload=(value_D * weight).to(torch.float32),
    )
    federation, ends = me.life.circle.roster.federation_id, ((me.life.me, to.ledger.met[me.life.me]), _named(to))
    signature = me.life.sign(lane_text(federation, group, *ends, "made", parcel.seq, total))
    return _send(me, to, Transfer(group=group, parcel=parcel, total=total, signature=signature))


def _named(peer: Node) -> tuple[str, int]:
    return peer.life.me, peer.ledger.incarnation


# ------------------------------------------------------------------------------------------------- verdicts and papers


def verdicts(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Everybody else is dead, or suspect, and so is the other itself."""
    state: State = ("dead", "suspect")[number % 2]
    statements = (me.life.membership.last_statement(peer) for peer in me.life.others)
    claims = [_verdict(me, said, state) for said in statements if said is not None]
    for first in range(0, len(claims), CLAIMS):
        yield _send(me, to, Ping(number=number, claims=tuple(claims[first : first + CLAIMS])))


def _verdict(me: Node, said: Claim, state: State) -> Claim:
    numbers = {"incarnation": said.incarnation, "version": said.version}
    unsigned = Claim(about=said.about, state=state, author=me.life.me, advert=None, signature=b"", **numbers)
    text = claim_text(me.life.circle.roster.federation_id, unsigned)
    signature = me.life.sign(text)
    return Claim(about=said.about, state=state, author=me.life.me, advert=None, signature=signature, **numbers)


def contracts(me: Node, to: Node, number: int) -> Iterator[Send]:
    """A contract whose reading takes more stack than there is."""
    yield _send(me, to, Contract(text=b"[" * NESTED + b"]" * NESTED))


def rosters(me: Node, to: Node, number: int) -> Iterator[Send]:
    """A later roster, by an authority of its own."""
    yield _send(me, to, RosterNews(number=2**20, text=_foreign(me.life.circle.roster)))


@cache
def _foreign(roster: Roster) -> bytes:
    key = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
    authority = key.public_key().public_bytes_raw()
    theirs = Roster(federation=roster.federation, authority=authority, number=2**20, entries=roster.entries)
    return to_bytes(sign(theirs, key))


# -------------------------------------------------------------------------------------------------------------- terms

FAR = Progress(10**6, 10**6, 10**6)
#: What is said in an election, by the liar's own machine and the number.
Said = Callable[[Election, int], Iterator[ballots.Message]]


def rising(election: Election, number: int) -> Iterator[ballots.Message]:
    """Higher terms without a signature."""
    term = election.stand.term + 1 + number % 40
    yield HeartbeatReply(term, Progress())
    yield VoteReply(term, bool(number % 2), False, b"")


def standing(election: Election, number: int) -> Iterator[ballots.Message]:
    """It stands, one term higher each time."""
    yield VoteRequest(election.stand.term + 1 + number % 15, False, election.electorate.number, FAR)


def promising(election: Election, number: int) -> Iterator[ballots.Message]:
    """It promises its vote to whoever may ask, and then refuses it."""
    yield VoteReply(election.stand.term + 1, True, True, b"")
    yield VoteReply(election.stand.term, False, False, b"")


def crowned(election: Election, number: int) -> Iterator[ballots.Message]:
    """It coordinates by its own vote."""
    me = election.me
    yield Heartbeat(
        LeaderCertificate(election.stand.term + 1, me, election.electorate.number, ((me, bytes(64)),)), Progress()
    )


TERMS: tuple[Said, ...] = (rising, standing, promising, crowned)


def terms(me: Node, to: Node, number: int) -> Iterator[Send]:
    """All that can be said of terms, in each group that has a coordinator."""
    for group, council in me.councils.items():
        election = council.decrees.election
        if to.life.me in election.electorate.members:
            for said in TERMS:
                for message in said(election, number):
                    yield _send(me, to, ConsensusMessage(group=group, said=message))


# ----------------------------------------------------------------------------------------------------------- by name


def nothing(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Say nothing; what is withheld says it."""
    return iter(())


#: All lies by name.
LIES: Mapping[str, Lie] = {
    "life": lives,
    "duplicate": duplicates,
    "weight": weight_lies,
    "exchange": exchanges,
    "value": values,
    "verdict": verdicts,
    "contract": contracts,
    "roster": rosters,
    "term": terms,
    "silent": nothing,
}
assert tuple(LIES) == LIE_NAMES, "each lie that a user can ask for"


def lies_to(names: Collection[str], me: Node, to: Node, number: int) -> Iterator[Send]:
    """All that these lies say to one other at this time."""
    if to.life.me in me.life.others:
        for name in names:
            yield from LIES[name](me, to, number)


def withheld(names: Collection[str], message: Message) -> bool:
    """Whether a liar keeps this to itself, which it would say as any peer: answers and acknowledgements."""
    return "silent" in names and isinstance(message, Pong | Ack)
