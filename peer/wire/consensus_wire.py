"""Consensus messages on the wire: their fields as metadata, the signatures of a majority as the tail.

The metadata has the message's tag (`canvass`, `lead`, ...) and then all its fields, without the signatures of a leader
certificate or a certificate: a majority of a hundred voters signs more bytes than metadata may have. These are the
tail: one msgpack array [author, signature] after the other, in rising order of authors, so that none counts twice.
`peer/consensus/` checks that each signature is its author's and that there are enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from fedpeer.config.capacity import NAME_LETTERS_MAX, SIGNATURES_MAX
from fedpeer.gossip.tensor_bytes import Bytes
from fedpeer.peer.wire.consensus_messages import (
    Accept,
    Certificate,
    Commit,
    ConsensusContent,
    Heartbeat,
    HeartbeatReply,
    LeaderCertificate,
    Progress,
    Proposal,
    Propose,
    ShortHeartbeat,
    Signatures,
    VoteReply,
    VoteRequest,
)
from fedpeer.peer.wire.framing import FrameError, pack, unpack_each
from fedpeer.peer.wire.versions import NEWEST
from fedpeer.peer.wire.wire_types import Array, Flag, Layout, NotInMetadata, Octets, Tagged, Text, Whole, inlined
from fedpeer.rejection import RejectionError

_SIGNATURE_BYTES = 64
#: A character has at most 4 bytes in UTF-8.
_AUTHOR_BYTES_MAX = 4 * NAME_LETTERS_MAX
#: Least and most bytes of one author's entry: msgpack's headers, the name and the signature.
_ENTRY_BYTES = 1 + 1 + 1 + 2 + _SIGNATURE_BYTES, 1 + 3 + _AUTHOR_BYTES_MAX + 2 + _SIGNATURE_BYTES
#: Least and most bytes of a tail of signatures.
SIGNATURES_BYTES = _ENTRY_BYTES[0], SIGNATURES_MAX * _ENTRY_BYTES[1]

# ------------------------------------------------------------------------------------------------------------- metadata

_NUMBER, _FIRST, _FLAG, _NAME = Whole(), Whole(1), Flag(), Text(NAME_LETTERS_MAX)
_SIGNATURE, _SIGNATURES, _DIGEST = Octets(_SIGNATURE_BYTES), NotInMetadata(until=()), Octets(32)
_PROGRESS = inlined(Progress, applied=_NUMBER, newest_round=_NUMBER, newest_term=_NUMBER)
_PROPOSAL = inlined(Proposal, term=_FIRST, round=_FIRST, roster=_FIRST, digest=_DIGEST)
_LEADER_CERTIFICATE = inlined(LeaderCertificate, term=_FIRST, candidate=_NAME, roster=_FIRST, votes=_SIGNATURES)
_CERTIFICATE = inlined(Certificate, proposal=_PROPOSAL, acceptances=_SIGNATURES)


def _is_signed_if_a_vote(reply: VoteReply) -> bool:
    return bool(reply.signature) is (reply.granted and not reply.pre)


#: Each consensus message's fields by its tag. A tag never changes, even when its class is renamed. A message that is
#: newer than its version of the wire is sent only to peers that state its capability (`versions.py`).
CONSENSUS_LAYOUTS: Mapping[str, Layout] = {
    "canvass": Layout(VoteRequest, {"term": _FIRST, "pre": _FLAG, "roster": _FIRST, "progress": _PROGRESS}),
    "answer": Layout(
        VoteReply,
        {"term": _NUMBER, "pre": _FLAG, "granted": _FLAG, "signature": Octets(_SIGNATURE_BYTES, may_lack=True)},
        fits=_is_signed_if_a_vote,
        unfit="a vote has to be signed, a pre-vote and a refusal must not be",
    ),
    "lead": Layout(Heartbeat, {"leader_certificate": _LEADER_CERTIFICATE, "progress": _PROGRESS}),
    "follow": Layout(HeartbeatReply, {"term": _NUMBER, "progress": _PROGRESS}),
    "propose": Layout(Propose, {"proposal": _PROPOSAL}),
    "accept": Layout(Accept, {"term": _FIRST, "round": _FIRST, "signature": _SIGNATURE}),
    "commit": Layout(Commit, {"certificate": _CERTIFICATE}),
    "beat": Layout(ShortHeartbeat, {"term": _FIRST, "digest": _DIGEST, "progress": _PROGRESS}, since=2),
}
#: Any consensus message, as the last field of a `ConsensusMessage`.
CONSENSUS_CONTENT = Tagged(CONSENSUS_LAYOUTS)
TAGS: Mapping[type[ConsensusContent], str] = {layout.made: tag for tag, layout in CONSENSUS_LAYOUTS.items()}

# ----------------------------------------------------------------------------------------------------------------- tail


def has_signatures(message: ConsensusContent) -> bool:
    """Return whether the message contains signatures of others and so has a tail."""
    return isinstance(message, Heartbeat | Commit)


def tail_of(message: ConsensusContent) -> bytes:
    """Return the signatures of the message's leader certificate or certificate as bytes; none for other messages."""
    match message:
        case (
            Heartbeat(leader_certificate=LeaderCertificate(votes=signatures))
            | Commit(certificate=Certificate(acceptances=signatures))
        ):
            return b"".join(map(pack, signatures))
    return b""


def with_tail(message: ConsensusContent, tail: Bytes) -> ConsensusContent | str:
    """Return the message with the signatures in the tail, or what is wrong with them."""
    try:
        entries = unpack_each(tail, str_max=_AUTHOR_BYTES_MAX, bin_max=_SIGNATURE_BYTES, array_max=2, map_max=0)
        signatures: Signatures = tuple(_entry(entry) for entry in entries)
    except FrameError as error:
        return str(error)
    except RejectionError as error:
        return error.rejection.text
    if len(signatures) > SIGNATURES_MAX:
        return f"{len(signatures)} signatures, more than {SIGNATURES_MAX}"
    if any(one >= other for (one, _), (other, _) in pairwise(signatures)):
        return "the authors of its signatures are not in ascending order"
    match message:
        case Heartbeat(leader_certificate):
            return replace(message, leader_certificate=replace(leader_certificate, votes=signatures))
        case Commit(certificate):
            return replace(message, certificate=replace(certificate, acceptances=signatures))
    return message


_entry = Array((_NAME, _SIGNATURE)).reader(NEWEST)
