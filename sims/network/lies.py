"""Lies by name: messages that a lying peer sends besides its regular ones, with its own key over its own connections.

A lie is a function that yields messages from the liar's node, the victim's node, and a number that rises each time. It
uses only what acknowledgements and Hellos reveal of the victim. Its messages take the usual way: as bytes, through the
codec and the admission policy of the recipient.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from fedpeer.gossip.claims import Claim, ClaimedState, claim_text
from fedpeer.gossip.proofs import channel_text
from fedpeer.gossip.reductions import FLOAT32
from fedpeer.gossip.transfers import Incoming, NumberedTransfer, Outgoing
from fedpeer.peer.consensus.election import Election
from fedpeer.peer.node.node import Node
from fedpeer.peer.node.reminders import own_signature
from fedpeer.peer.state.events import Send
from fedpeer.peer.wire.consensus_messages import (
    ConsensusContent,
    Heartbeat,
    HeartbeatReply,
    LeaderCertificate,
    Progress,
    VoteReply,
    VoteRequest,
)
from fedpeer.peer.wire.messages import (
    Ack,
    ChannelState,
    ConsensusMessage,
    Contract,
    Hello,
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

#: What a liar sends to one victim, from its own node, the victim's node and a rising number.
Lie = Callable[[Node, Node, int], Iterator[Send]]

#: Depth of nesting of a contract.
_NESTED = 962
#: Of every SHARES shares of later rounds, the first POSSIBLE have a valid exchange.
SHARES, POSSIBLE = 40, 30
#: Distance of a poisoned share from the estimate, as a fraction of the estimate.
_POISON = 0.5
#: Claims per message.
_CLAIMS = 8


def _send(me: Node, to: Node, message: Message, *, version: int = NEWEST, to_incarnation: int | None = None) -> Send:
    """Return the message as sent between the incarnations that the victim knows, whatever the liar's node believes."""
    known = to.durable.met.get(me.state.me, me.durable.incarnation)
    return Send(to.state.me, message, known, to_incarnation or to.durable.incarnation, version)


# ------------------------------------------------------------------------------------------- incarnations and processes


def incarnation_lies(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Send Hellos that refer to later incarnations and generations of the victim, or to transfers it never made."""
    later = to.durable.incarnation + 1 + number % 100
    for version in VERSIONS:
        yield _send(me, to, _hello(me, to, version), version=version, to_incarnation=2**62)
        yield _send(me, to, _hello(me, to, version), version=version, to_incarnation=later)
        yield _send(me, to, _hello(me, to, version, known_generation=2**40 + number), version=version)
        yield _send(me, to, _hello(me, to, version, taken=1 + number), version=version)


def _hello(
    me: Node,
    to: Node,
    version: int,
    *,
    known_generation: int | None = None,
    taken: int = 0,
    round: int | None = None,
) -> Hello:
    state, other = me.state, to.state.me
    round = state.durable.round if round is None else round
    groups = tuple(id for id, group in state.peer_groups.groups.items() if other in group.members)
    return Hello(
        generation=state.durable.generation,
        nonce=state.setup.nonce,
        known_generation=state.others[other].generation if known_generation is None else known_generation,
        contract=state.setup.contract,
        groups=tuple((group, state.digest_of(group)) for group in groups),
        channels=tuple(_channel_state(me, to, group, taken) for group in groups),
        round=round,
        begun=round > 0,
        roster=state.peer_groups.roster.number,
        answer=True,
        capabilities=CAPABILITIES if version > 1 else (),
        signature=own_signature(state) if version > 1 else b"",
    )


def _channel_state(me: Node, to: Node, group: str, more: int) -> ChannelState:
    """Return the true state of the channel, but with `more` transfers taken beyond those that the victim made."""
    out, into = _ends(to, me, group)
    return ChannelState(
        group=group,
        made=into.taken,
        acked=into.taken,
        taken=out.made + more if more else out.acked,
        made_weight=into.taken_weight,
        taken_weight=out.weight_until(out.acked) + more,
    )


def _ends(of: Node, other: Node, group: str) -> tuple[Outgoing, Incoming]:
    state = of.durable.groups[group]
    return state.out.get(other.state.me, Outgoing()), state.into.get(other.state.me, Incoming())


def duplicates(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Claim that the victim was started a second time."""
    for version in VERSIONS:
        reject = RejectMessage(code="duplicate_peer", group="", seq=0, text="a later process has your identity")
        yield _send(me, to, reject, version=version)


# ------------------------------------------------------------------------------------------------------------- rounds


def last_rounds(me: Node, to: Node, number: int) -> Iterator[Send]:
    """State that the liar is in the last round, or has finished: in Hellos, acknowledgements and statements."""
    last = me.state.setup.federation.learning.rounds
    for version in VERSIONS:
        yield _send(me, to, _hello(me, to, version, round=last), version=version)
    for group in _shared(me, to):
        yield _send(me, to, Ack(group=group, taken=0, round=last + 1, total=0.0, signature=b""))
    state: ClaimedState = ("alive", "finished")[number % 2]
    known = to.state.membership.last_statement(me.state.me) or me.state.membership.statement
    assert known.advert is not None, "a statement has an advert"
    advert = replace(known.advert, round=last + 1, begun=True)
    following = replace(known, advert=advert, state=state, version=known.version + 1)
    yield _send(me, to, Ping(number=number, claims=(_signed(me, following),)))


def _signed(me: Node, unsigned: Claim) -> Claim:
    return replace(unsigned, signature=me.state.sign(claim_text(me.state.peer_groups.roster.federation_id, unsigned)))


# ------------------------------------------------------------------------------------------------------------- shares


def weight_lies(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Send shares of weight 1, one after the other."""
    for group in _shared(me, to):
        yield _share(me, to, group, weight=1.0)


def exchanges(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Send shares of rounds to come, each later than the one before, and of exchanges that do not exist."""
    for group in _shared(me, to):
        most = to.state.exchanges_max(group)
        at = (to.durable.round + 1 + number // 2, number % most)
        yield _share(me, to, group, weight=1e-3, at=at if number % SHARES < POSSIBLE else (at[0], most + number))


def values(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Send shares whose values are off by a little or a lot, or are NaN."""
    for group in _shared(me, to):
        value_D = to.durable.estimate_D(group)
        away = (1 + _POISON, 1 + _POISON, 100.0, float("nan"))[number % 4]
        yield _share(me, to, group, weight=1e-2, value_D=value_D * away)


def _shared(me: Node, to: Node) -> list[str]:
    """Return the groups of both, if the victim has met the liar."""
    return [group for group in me.durable.groups if me.state.me in to.durable.met and group in to.durable.groups]


def _share(
    me: Node,
    to: Node,
    group: str,
    *,
    weight: float,
    value_D: Tensor | None = None,
    at: tuple[int, int] = (0, 0),
) -> Send:
    """Return the next share on the channel, signed."""
    _, channel = _ends(to, me, group)
    round, exchange = max(channel.place, to.durable.groups[group].at, at)
    value_D = me.durable.estimate_D(group) if value_D is None else value_D
    total = channel.taken_weight + weight
    share = NumberedTransfer(
        seq=channel.taken + 1,
        round=round,
        exchange=exchange,
        weight=weight,
        form=FLOAT32.name,
        payload=(value_D * weight).to(torch.float32),
    )
    federation, own = me.state.peer_groups.roster.federation_id, (me.state.me, to.durable.met[me.state.me])
    victim = to.state.me, to.durable.incarnation
    signature = me.state.sign(channel_text(federation, group, own, victim, "made", share.seq, total))
    return _send(me, to, Transfer(group=group, share=share, total=total, signature=signature))


# ----------------------------------------------------------------------------------------- claims, contracts, rosters


def verdicts(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Claim that all other peers, including the victim, are dead or suspect."""
    state: ClaimedState = ("dead", "suspect")[number % 2]
    statements = (me.state.membership.last_statement(peer) for peer in me.state.others)
    claims = [
        _signed(me, replace(last, state=state, author=me.state.me, advert=None))
        for last in statements
        if last is not None
    ]
    for first in range(0, len(claims), _CLAIMS):
        yield _send(me, to, Ping(number=number, claims=tuple(claims[first : first + _CLAIMS])))


def contracts(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Send a contract whose nesting exceeds the stack of a recursive parser."""
    yield _send(me, to, Contract(text=b"[" * _NESTED + b"]" * _NESTED))


def rosters(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Send a later roster, signed by an authority of the liar's own."""
    yield _send(me, to, RosterNews(number=2**20, text=_foreign(me.state.peer_groups.roster)))


@cache
def _foreign(roster: Roster) -> bytes:
    key = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
    authority = key.public_key().public_bytes_raw()
    foreign = Roster(federation=roster.federation, authority=authority, number=2**20, entries=roster.entries)
    return to_bytes(sign(foreign, key))


# -------------------------------------------------------------------------------------------------------------- terms

FAR = Progress(10**6, 10**6, 10**6)
#: Messages of an election, from the liar's own election and the number.
ElectionLie = Callable[[Election, int], Iterator[ConsensusContent]]


def unsigned_terms(election: Election, number: int) -> Iterator[ConsensusContent]:
    """Send higher terms without a signature."""
    term = election.hard_state.term + 1 + number % 40
    yield HeartbeatReply(term, Progress())
    yield VoteReply(term, bool(number % 2), False, b"")


def endless_candidacy(election: Election, number: int) -> Iterator[ConsensusContent]:
    """Request votes, each time in a higher term."""
    yield VoteRequest(election.hard_state.term + 1 + number % 15, False, election.voter_set.number, FAR)


def withdrawn_votes(election: Election, number: int) -> Iterator[ConsensusContent]:
    """Promise a vote in the next term, and then refuse it."""
    yield VoteReply(election.hard_state.term + 1, True, True, b"")
    yield VoteReply(election.hard_state.term, False, False, b"")


def lone_leader(election: Election, number: int) -> Iterator[ConsensusContent]:
    """Act as coordinator with its own vote alone."""
    me = election.me
    yield Heartbeat(
        LeaderCertificate(election.hard_state.term + 1, me, election.voter_set.number, ((me, bytes(64)),)), Progress()
    )


ELECTION_LIES: tuple[ElectionLie, ...] = (unsigned_terms, endless_candidacy, withdrawn_votes, lone_leader)


def term_lies(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Send all lies about terms, in each group that has a coordinator."""
    for group, consensus in me.consensus_by_group.items():
        election = consensus.round_commit.election
        if to.state.me in election.voter_set.members:
            for lie in ELECTION_LIES:
                for message in lie(election, number):
                    yield _send(me, to, ConsensusMessage(group=group, message=message))


# ----------------------------------------------------------------------------------------------------------- by name


def nothing(me: Node, to: Node, number: int) -> Iterator[Send]:
    """Send nothing: this lie only withholds messages (`withheld`)."""
    return iter(())


#: All lies by name.
LIES: Mapping[str, Lie] = {
    "life": incarnation_lies,
    "duplicate": duplicates,
    "weight": weight_lies,
    "exchange": exchanges,
    "value": values,
    "verdict": verdicts,
    "contract": contracts,
    "roster": rosters,
    "term": term_lies,
    "silent": nothing,
    "ahead": last_rounds,
}
assert tuple(LIES) == LIE_NAMES, "each lie that a user can ask for"


def lies_to(names: Collection[str], me: Node, to: Node, number: int) -> Iterator[Send]:
    """Yield all messages of these lies to one victim at this time."""
    if to.state.me in me.state.others:
        for name in names:
            yield from LIES[name](me, to, number)


def withheld(names: Collection[str], message: Message) -> bool:
    """Return whether a liar withholds this regular message: answers to pings and acknowledgements."""
    return "silent" in names and isinstance(message, Pong | Ack)
