"""Messages of coordinated rounds: their bytes, which of them are rejected, and which rejections need memory.

Ids are those of the table of bad inputs. The decoder rejects what bytes and policy reveal; `RoundCommit`, to which each
message comes through the decoder, rejects the rest (R04 to R12, R19, R20).
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.config.capacity import METADATA_BYTES_MAX, NAME_LETTERS_MAX, SIGNATURES_MAX
from fedpeer.gossip.sparse_words import pack_words, wire_bytes
from fedpeer.peer.consensus.election import TERM_JUMP_MAX
from fedpeer.peer.consensus.round_commit import RoundCommit
from fedpeer.peer.wire.codec import HEAD_BYTES, decode, frame_bytes_max
from fedpeer.peer.wire.consensus_messages import (
    Accept,
    ApplyModel,
    Certificate,
    Commit,
    CommitState,
    HardState,
    Heartbeat,
    HeartbeatReply,
    LeaderCertificate,
    PersistConsensus,
    Progress,
    Proposal,
    Propose,
    SendConsensus,
    ShortHeartbeat,
    VoteReply,
    VoteRequest,
    VoterSet,
    acceptance_text,
    vote_text,
)
from fedpeer.peer.wire.consensus_wire import SIGNATURES_BYTES
from fedpeer.peer.wire.message_policy import ConsensusSpec
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import KINDS, ConsensusMessage, Message, ModelReply, ModelRequest, Update
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.peer.wire.tails import content_digest
from fedpeer.peer.wire.wire_types import NUMBER_MAX
from fedpeer.rejection import Rejection
from tests.gossip.swim import ids, signature
from tests.peer.consensus.consensus_cluster import SCOPE, Disk, machine
from tests.peer.frames import ENVELOPE, FEDERATION, MESSAGES, MODEL_BYTES, PARTY, POLICY, UPDATE_BYTES, framed
from tests.peer.hostile import ACK, Hostile, Party, craft_frame

#: Envelope of version 1 of the wire, to which the frames that are built by hand belong.
ONE = replace(ENVELOPE, version=1)
_NUMBER_OF = {kind: number for number, kind in KINDS.items()}
BALLOT, UPDATE, WANTED, MODEL = (_NUMBER_OF[kind] for kind in (ConsensusMessage, Update, ModelRequest, ModelReply))
DIGEST = b"m" * 32
Builder = Callable[[Party], bytes]
CONTENT = bytes(range(1, UPDATE_BYTES + 1))


def message_of(frame: bytes) -> Message:
    found = decode(frame, POLICY)
    assert not isinstance(found, Rejection), found
    return found[1]


# --------------------------------------------------------------------------------------------------- what belongs there

TERMS, SOME = st.integers(1, NUMBER_MAX), st.integers(0, NUMBER_MAX)
NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=NAME_LETTERS_MAX)
SIGNED = st.binary(min_size=64, max_size=64)
ROLLS = st.dictionaries(NAMES, SIGNED, min_size=1, max_size=5).map(lambda each: tuple(sorted(each.items())))
PROGRESS = st.builds(Progress, SOME, SOME, SOME)
PROPOSALS = st.builds(Proposal, TERMS, TERMS, TERMS, st.binary(min_size=32, max_size=32))
CONTENTS = st.one_of(
    st.builds(VoteRequest, TERMS, st.booleans(), TERMS, PROGRESS),
    st.builds(VoteReply, SOME, st.just(False), st.just(True), SIGNED),
    st.builds(VoteReply, SOME, st.booleans(), st.just(False), st.just(b"")),
    st.builds(VoteReply, SOME, st.just(True), st.just(True), st.just(b"")),
    st.builds(Heartbeat, st.builds(LeaderCertificate, TERMS, NAMES, TERMS, ROLLS), PROGRESS),
    st.builds(ShortHeartbeat, TERMS, st.binary(min_size=32, max_size=32), PROGRESS),
    st.builds(HeartbeatReply, SOME, PROGRESS),
    st.builds(Propose, PROPOSALS),
    st.builds(Accept, TERMS, TERMS, SIGNED),
    st.builds(Commit, st.builds(Certificate, PROPOSALS, ROLLS)),
)
UPDATES = st.lists(st.sampled_from([bytes(4), b"\0\0\x80\x3f", b"\xff\0\0\1"]), min_size=5, max_size=7).map(b"".join)
SENT = st.one_of(
    st.builds(ConsensusMessage, group=st.just("all"), message=CONTENTS),
    UPDATES.map(lambda content: Update(group="all", term=1, round=2, digest=content_digest(content), content=content)),
)


@pytest.mark.slow
@given(SENT)
@settings(max_examples=80, deadline=None)
def test_whatever_is_said_comes_back_as_it_was(message: Message) -> None:
    assert message_of(framed(message)) == message


@pytest.mark.parametrize("name", [name for name in MESSAGES if name.split("-")[0] in ("ballot", "update", "model")])
def test_each_kind_comes_back_as_it_was(name: str) -> None:
    assert message_of(framed(MESSAGES[name])) == MESSAGES[name]


def test_frames_are_the_bytes_that_the_page_on_the_wire_says() -> None:
    """The expected frames are built by hand: flat fields after the kind of consensus message, signatures one after the
    other, the bitmap of the words."""
    votes = b"".join(msgpack.packb([name, name[:1].encode() * 64]) for name in ("ann", "cas", "dot"))
    assert framed(MESSAGES["ballot-lead"], ONE) == craft_frame(
        PARTY, BALLOT, ["all", "lead", 5, "ann", 2, 11, 12, 4], votes
    )
    assert framed(MESSAGES["ballot-commit"], ONE) == craft_frame(
        PARTY, BALLOT, ["all", "commit", 5, 12, 2, DIGEST], votes
    )
    assert framed(MESSAGES["ballot-canvass"], ONE) == craft_frame(
        PARTY, BALLOT, ["all", "canvass", 5, True, 2, 11, 12, 4]
    )
    assert framed(MESSAGES["wanted"], ONE) == craft_frame(PARTY, WANTED, ["all", DIGEST])
    assert framed(MESSAGES["update"], ONE) == update_of("plain", len(CONTENT), CONTENT)(PARTY)
    content = bytes(8) + CONTENT[8:16] + bytes(8) + CONTENT[24:]
    tail = b"\x4c" + CONTENT[8:16] + CONTENT[24:]
    assert framed(MESSAGES["update-sparse"], ONE) == update_of("sparse", len(content), tail, content_digest(content))(
        PARTY
    )


def test_an_update_takes_the_bytes_that_are_counted_without_a_network() -> None:
    for content in (CONTENT, bytes(UPDATE_BYTES), bytes(4) + CONTENT[4:], CONTENT[:4] + bytes(20)):
        message = Update(group="all", term=1, round=1, digest=content_digest(content), content=content)
        tail = framed(message)[8:20]
        assert int.from_bytes(tail[4:], "little") == wire_bytes(content)
        assert message_of(framed(message)) == message
    assert wire_bytes(bytes(UPDATE_BYTES)) == 2


def test_as_many_voters_as_there_may_be_with_the_longest_names_fit() -> None:
    names = sorted(f"{number:04}".rjust(NAME_LETTERS_MAX, "🂡") for number in range(SIGNATURES_MAX))
    votes = tuple((name, bytes(64)) for name in names)
    leader_certificate = LeaderCertificate(NUMBER_MAX, names[0], NUMBER_MAX, votes)
    told = ConsensusMessage(
        group="all", message=Heartbeat(leader_certificate, Progress(NUMBER_MAX, NUMBER_MAX, NUMBER_MAX))
    )
    frame = framed(told)
    assert message_of(frame) == told
    metadata = int.from_bytes(frame[8:12], "little")
    assert metadata < METADATA_BYTES_MAX / 2
    assert len(frame) - HEAD_BYTES - metadata < SIGNATURES_BYTES[1]
    more = replace(leader_certificate, votes=(*votes, ("🃏", bytes(64))))
    assert refusal_of(framed(replace(told, message=Heartbeat(more, Progress())))) == "bad_metadata"


def test_the_longest_frame_follows_from_the_consensus_of_both() -> None:
    spec = ConsensusSpec(members=frozenset({"ann", "bob"}), update_bytes=(1, 3 << 20), model_bytes=(1, 2 << 20))
    start = HEAD_BYTES + METADATA_BYTES_MAX
    assert frame_bytes_max(replace(POLICY, consensus_by_group={"all": spec})) == start + (3 << 20)
    heavy = replace(spec, model_bytes=(1, 5 << 20))
    assert frame_bytes_max(replace(POLICY, consensus_by_group={"all": heavy})) == start + (5 << 20)
    elsewhere = replace(spec, members=frozenset({"bob", "cas"}))
    assert frame_bytes_max(replace(POLICY, consensus_by_group={"all": elsewhere})) < start + (2 << 20)


# ------------------------------------------------------------------------------------------------------- what does not


def refusal_of(frame: bytes) -> str:
    found = decode(frame, POLICY)
    return found.code if isinstance(found, Rejection) else f"taken: {found[1]}"


def ballot(kind: str, *fields: Any, tail: bytes = b"", group: str = "all") -> Builder:
    return lambda party: craft_frame(party, BALLOT, [group, kind, *fields], tail)


def signed(*authors: str) -> bytes:
    return b"".join(msgpack.packb([author, bytes(64)]) for author in authors)


def lead(tail: bytes) -> Builder:
    return ballot("lead", 5, "ann", 2, 11, 12, 4, tail=tail)


def update_of(form: str, size: int, tail: bytes, digest: bytes | None = None, **changed: Any) -> Builder:
    fields = {
        "group": "all",
        "term": 5,
        "round": 12,
        "digest": digest or content_digest(tail),
        "form": form,
        "size": size,
    }
    return lambda party: craft_frame(party, UPDATE, [*(fields | changed).values()], tail)


def model(size: int, digest: bytes = DIGEST, group: str = "all") -> Builder:
    return lambda party: craft_frame(party, MODEL, [group, digest], bytes(size))


ZEROS = content_digest(bytes(24))

HOSTILE = (
    Hostile("S01-ballot", "unknown_group", ballot("follow", 1, 0, 0, 0, group="nobody-knows")),
    Hostile("S01-no-council", "unknown_group", ballot("follow", 1, 0, 0, 0, group="wide")),
    Hostile("S01-update", "unknown_group", update_of("plain", 24, bytes(24), group="wide")),
    Hostile("S01-wanted", "unknown_group", lambda p: craft_frame(p, WANTED, ["wide", DIGEST])),
    Hostile("S02-ballot", "group_not_shared", ballot("follow", 1, 0, 0, 0, group="closed")),
    Hostile("S02-model", "group_not_shared", model(8, group="closed")),
    Hostile("E05-ballot-with-a-tail", "tail_length_wrong", ballot("follow", 1, 0, 0, 0, tail=b"1")),
    Hostile("E05-no-signatures", "tail_length_wrong", lead(b"")),
    Hostile("E05-too-many-signatures", "tail_length_wrong", lead(bytes(SIGNATURES_BYTES[1] + 1))),
    Hostile("E05-wanted", "tail_length_wrong", lambda p: craft_frame(p, WANTED, ["all", DIGEST], b"1")),
    Hostile("E05-model-short", "tail_length_wrong", model(29)),
    Hostile("E05-model-long", "tail_length_wrong", model(MODEL_BYTES + 1)),
    Hostile("E05-update-short", "tail_length_wrong", update_of("plain", 19, bytes(19))),
    Hostile("E05-update-long", "tail_length_wrong", update_of("plain", UPDATE_BYTES + 1, bytes(UPDATE_BYTES + 1))),
    Hostile("E05-update-less-than-it-says", "tail_length_wrong", update_of("plain", 24, bytes(23))),
    Hostile("E05-sparse-huge", "tail_length_wrong", update_of("sparse", 2**62, bytes(25))),
    Hostile("E05-sparse-as-long-as-plain", "tail_length_wrong", update_of("sparse", 24, bytes(24))),
    Hostile("E05-sparse-without-its-bitmap", "tail_length_wrong", update_of("sparse", 24, b"")),
    Hostile("S04-sparse-words", "wrong_shape", update_of("sparse", 24, b"\x01", ZEROS)),
    Hostile("S04-sparse-zeros", "wrong_shape", update_of("sparse", 24, b"\x01" + bytes(4), ZEROS)),
    Hostile("R10-update", "digest_mismatch", update_of("plain", 24, bytes(24), DIGEST)),
    Hostile("R10-sparse", "digest_mismatch", update_of("sparse", 24, pack_words(bytes(24)))),
    Hostile("R10-model", "digest_mismatch", model(MODEL_BYTES)),
    Hostile("M01-signatures-cut", "bad_metadata", lead(signed("ann", "cas")[:-1])),
    Hostile("M01-signatures-no-msgpack", "bad_metadata", lead(b"\xc1" * 100)),
    Hostile("M02-signatures-nested", "bad_metadata", lead(b"\x91" * 100_000)),
    Hostile("M03-signatures-wide-arrays-in-arrays", "bad_metadata", lead(b"\xdc\x04\x00" * 1000)),
    Hostile("M03-signatures", "bad_metadata", lead(b"\xdd\xff\xff\xff\xff" + bytes(100))),
    Hostile("M03-signatures-a-map", "bad_metadata", lead(b"\xdf\xff\xff\xff\xff" + bytes(100))),
    Hostile("M03-a-signature", "bad_metadata", lead(b"\x92\xa3ann\xc6\xff\xff\xff\xff" + bytes(100))),
    Hostile("M04-author", "bad_metadata", lead(signed("a\nn"))),
    Hostile("M05-signatures", "bad_metadata", lead(msgpack.packb({"ann": bytes(64)}))),
    Hostile("M06-signatures-as-one-array", "bad_metadata", lead(msgpack.packb([["ann", bytes(64)]] * 2))),
    Hostile("M06-short-signature", "bad_metadata", lead(msgpack.packb(["ann" * 5, bytes(63)]))),
    Hostile("M06-the-same-author-twice", "bad_metadata", lead(signed("ann", "ann"))),
    Hostile("M06-authors-out-of-order", "bad_metadata", lead(signed("cas", "ann"))),
    Hostile("M06-nothing-said", "bad_metadata", lambda p: craft_frame(p, BALLOT, ["all"])),
    Hostile("M06-unknown-saying", "bad_metadata", ballot("veto", 1)),
    Hostile("M06-a-beat-in-version-1", "bad_metadata", ballot("beat", 5, DIGEST, 11, 12, 4)),
    Hostile("M06-fields-of-another", "bad_metadata", ballot("follow", 1, True, 2, 0, 0, 0)),
    Hostile("M06-a-vote-unsigned", "bad_metadata", ballot("answer", 5, False, True, b"")),
    Hostile("M06-a-promise-signed", "bad_metadata", ballot("answer", 5, True, True, bytes(64))),
    Hostile("M06-a-no-signed", "bad_metadata", ballot("answer", 5, False, False, bytes(64))),
    Hostile("M06-acceptance-unsigned", "bad_metadata", ballot("accept", 5, 12, b"")),
    Hostile("M06-digest", "bad_metadata", ballot("propose", 5, 12, 2, bytes(31))),
    Hostile("M06-form", "bad_metadata", update_of("top-k", 24, bytes(24))),
    Hostile("M08-term-0", "field_out_of_range", ballot("propose", 0, 12, 2, DIGEST)),
    Hostile("M08-round-0", "field_out_of_range", ballot("accept", 5, 0, bytes(64))),
    Hostile("M08-roster-0", "field_out_of_range", ballot("canvass", 5, True, 0, 0, 0, 0)),
    Hostile("M08-term-2^63", "field_out_of_range", ballot("follow", 2**63, 0, 0, 0)),
    Hostile("M08-negative-progress", "field_out_of_range", ballot("follow", 1, -1, 0, 0)),
    Hostile("M08-update-of-round-0", "field_out_of_range", update_of("plain", 24, bytes(24), round=0)),
    Hostile("M08-update-of-term-0", "field_out_of_range", update_of("plain", 24, bytes(24), term=0)),
)  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: case.id)
def test_what_bytes_and_policy_can_tell_is_refused_by_name(case: Hostile) -> None:
    frame = case.build(PARTY)
    tracemalloc.start()
    assert refusal_of(frame) == case.code
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (1 << 20) + 2 * len(frame)
    assert case.id.split("-")[0] in REJECTIONS[case.code].ids


def test_the_good_frames_of_which_the_hostile_ones_are_variants_are_taken() -> None:
    for build in (
        ballot("follow", 1, 0, 0, 0),
        lead(signed("ann", "cas")),
        ballot("answer", 5, False, True, bytes(64)),
        update_of("plain", 24, bytes(24)),
        update_of("sparse", 24, pack_words(bytes(24)), ZEROS),
        model(MODEL_BYTES, content_digest(bytes(MODEL_BYTES))),
    ):
        message_of(build(PARTY))


def test_an_update_is_acknowledged_in_its_consensus_whether_or_not_a_group_has_its_name() -> None:
    policy, acknowledged = replace(POLICY, groups={}), MESSAGES["ack"]
    found = decode(framed(acknowledged), policy)
    assert not isinstance(found, Rejection)
    assert found[1] == acknowledged
    for group, tail, code in [
        ("all", b"1", "tail_length_wrong"),
        ("closed", b"", "group_not_shared"),
        ("wide", b"", "unknown_group"),
    ]:
        wrong = decode(craft_frame(PARTY, ACK, [group, 5, 12], tail), policy)
        assert isinstance(wrong, Rejection)
        assert wrong.code == code


def test_where_peers_average_there_is_no_consensus() -> None:
    found = decode(framed(MESSAGES["wanted"]), replace(POLICY, consensus_by_group={}))
    assert isinstance(found, Rejection)
    assert found.code == "unknown_group"


# ----------------------------------------------------------------------------- what only a node with a memory can tell

A, B, C, D, E = ids(5)
ALL = VoterSet(1, frozenset((A, B, C, D, E)), frozenset((A, B, C, D, E)))
X, Y = bytes([1]) * 32, b"y" * 32


def leader_certificate(candidate: str, term: int, *voters: str, roster: int = 1) -> LeaderCertificate:
    votes = ((who, signature(who, vote_text(SCOPE, who, term, roster, candidate))) for who in voters)
    return LeaderCertificate(term, candidate, roster, tuple(votes))


def certificate(proposal: Proposal, *who: str) -> Certificate:
    signatures = ((each, signature(each, acceptance_text(SCOPE, each, proposal))) for each in who)
    return Certificate(proposal, tuple(signatures))


FIRST = certificate(Proposal(4, 1, 1, X), A, B, C)


def follower() -> RoundCommit:
    """Return E, which follows A in term 5 and has applied round 1; it has the models X and Y."""
    round_commit = machine(E, [ALL], Disk(CommitState(1, None, FIRST), HardState(4, A)), np.random.default_rng(0))
    round_commit.received(A, Heartbeat(leader_certificate(A, 5, A, B, C), Progress(1, 1, 4)))
    round_commit.holds(Y)
    return round_commit


def coordinator() -> RoundCommit:
    """Return E, which coordinates round 2 in term 5, and has the update X of A."""
    round_commit = machine(E, [ALL], Disk(CommitState(1, None, FIRST), HardState(4, A)), np.random.default_rng(0))
    now = 0
    while not round_commit.election.leading:
        now += 1
        for said in round_commit.tick(now, ()):
            if (
                isinstance(said, SendConsensus)
                and isinstance(said.message, VoteRequest)
                and not round_commit.election.leading
            ):
                pre, vote = said.message.pre, vote_text(SCOPE, said.to, 5, 1, E)
                round_commit.received(said.to, VoteReply(5, pre, True, b"" if pre else signature(said.to, vote)))
    round_commit.on_update(A, 5, 2, X)
    return round_commit


def proposing() -> RoundCommit:
    round_commit = coordinator()
    round_commit.propose(Y)
    return round_commit


def stood_against() -> RoundCommit:
    """Return E after B has just been a candidate, while A coordinates."""
    round_commit = follower()
    assert not any(
        isinstance(each, Rejection) for each in round_commit.received(B, VoteRequest(6, False, 1, Progress()))
    )
    return round_commit


#: Rosters of a federation that A began alone, and that the others joined one by one.
GROWN = [VoterSet(number, frozenset(ids(number)), ALL.members) for number in range(1, 6)]
UNDER_5 = certificate(Proposal(4, 1, 5, X), A, B, C, D)


def one_of_five(holding: CommitState | None = None) -> RoundCommit:
    """Return E, which follows A under roster 5 in term 5 and has applied round 1; it has the models X and Y."""
    disk = Disk(holding or CommitState(5, None, UNDER_5), HardState(4, A))
    round_commit = machine(E, GROWN, disk, np.random.default_rng(0))
    round_commit.received(A, Heartbeat(leader_certificate(A, 5, A, B, C, roster=5), Progress(1, 1, 4)))
    round_commit.holds(Y)
    return round_commit


@dataclass(frozen=True)
class Wrong:
    """A message that a peer must not believe: its recipient, its sender, and the code of its rejection."""

    id: str
    code: str
    to: Callable[[], RoundCommit]
    sender: str
    message: Message


def said(message: Any) -> ConsensusMessage:
    return ConsensusMessage(group="everyone", message=message)


def trained(term: int, round: int, content: bytes) -> Update:
    return Update(group="everyone", term=term, round=round, digest=content_digest(content), content=content)


SECOND = certificate(Proposal(5, 2, 1, Y), A, B, C)
FAR = 5 + TERM_JUMP_MAX + 1
WRONG = (
    Wrong("R04", "double_vote", follower, D, said(Heartbeat(leader_certificate(D, 5, C, D, E), Progress()))),
    Wrong("R05-lead", "two_coordinators", follower, B, said(Heartbeat(leader_certificate(B, 5, B, C, D), Progress()))),
    Wrong("R05-propose", "two_coordinators", follower, B, said(Propose(Proposal(5, 2, 1, Y)))),
    Wrong("R06-lead", "stale_term", follower, B, said(Heartbeat(leader_certificate(B, 4, B, C, D), Progress()))),
    Wrong("R06-beat", "stale_term", follower, B, said(ShortHeartbeat(4, DIGEST, Progress()))),
    Wrong("R06-propose", "stale_term", follower, A, said(Propose(Proposal(4, 2, 1, Y)))),
    Wrong("R06-update", "stale_term", coordinator, B, trained(4, 2, b"new")),
    Wrong("R06-update-to-another", "stale_term", follower, B, trained(5, 2, b"new")),
    Wrong("R07-lead", "term_jump", follower, B, said(Heartbeat(leader_certificate(B, FAR, B, C, D), Progress()))),
    Wrong("R07-beat", "term_jump", follower, B, said(ShortHeartbeat(FAR, DIGEST, Progress()))),
    Wrong("R07-canvass", "term_jump", follower, B, said(VoteRequest(FAR, True, 1, Progress()))),
    Wrong("R07-answer", "term_jump", follower, B, said(VoteReply(FAR, False, False, b""))),
    Wrong("R07-follow", "term_jump", follower, B, said(HeartbeatReply(FAR, Progress()))),
    Wrong("R07-propose", "term_jump", follower, A, said(Propose(Proposal(FAR, 2, 1, Y)))),
    Wrong("R07-commit", "term_jump", follower, A, said(Commit(certificate(Proposal(FAR, 2, 1, Y), A, B, C)))),
    Wrong("R08", "already_applied", follower, A, said(Propose(Proposal(5, 1, 1, Y)))),
    Wrong("R09-propose", "round_gap", follower, A, said(Propose(Proposal(5, 3, 1, Y)))),
    Wrong("R09-roster", "round_gap", follower, A, said(Propose(Proposal(5, 2, 7, Y)))),
    Wrong("R09-commit", "round_gap", follower, A, said(Commit(certificate(Proposal(5, 3, 1, b"z" * 32), A, B, C)))),
    Wrong("R09-update", "round_gap", coordinator, B, trained(5, 3, b"new")),
    Wrong("R10-commit", "digest_mismatch", follower, A, said(Commit(certificate(Proposal(5, 1, 1, Y), A, B, C)))),
    Wrong("R11-before", "round_closed", coordinator, B, trained(5, 1, b"new")),
    Wrong("R11-proposed", "round_closed", proposing, B, trained(5, 2, b"new")),
    Wrong("R12", "second_update", coordinator, A, trained(5, 2, b"new")),
    Wrong("R19", "too_many_terms", stood_against, B, said(VoteRequest(7, False, 1, Progress()))),
    Wrong("R20-lead", "stale_roster", one_of_five, A, said(Heartbeat(leader_certificate(A, 6, A), Progress()))),
    Wrong(
        "R20-lead-3", "stale_roster", one_of_five, A,
        said(Heartbeat(leader_certificate(A, 6, A, B, roster=3), Progress()))
    ),
    Wrong("R20-canvass", "stale_roster", one_of_five, A, said(VoteRequest(6, False, 1, Progress(9, 9, 9)))),
    Wrong("R20-pre-vote", "stale_roster", one_of_five, A, said(VoteRequest(6, True, 3, Progress(9, 9, 9)))),
    Wrong("R20-propose", "stale_roster", one_of_five, A, said(Propose(Proposal(5, 2, 4, Y)))),
    Wrong("R20-commit", "stale_roster", one_of_five, A, said(Commit(certificate(Proposal(5, 9, 1, Y), A)))),
    Wrong(
        "R20-commit-next", "stale_roster", one_of_five, A,
        said(Commit(certificate(Proposal(5, 2, 4, Y), A, B, C, D)))
    ),
    Wrong(
        "E07-vote", "bad_signature", follower, B,
        said(Heartbeat(replace(leader_certificate(B, 6, B, C, D), term=7), Progress()))
    ),
    Wrong("E07-decree", "bad_signature", follower, A, said(Commit(replace(SECOND, proposal=Proposal(5, 2, 1, X))))),
    Wrong("E07-acceptance", "bad_signature", proposing, B, said(Accept(5, 2, bytes(64)))),
)  # fmt: skip


def received(round_commit: RoundCommit, sender: str, message: Message) -> list[str]:
    """Return the codes with which a message that comes as bytes is rejected."""
    spec = ConsensusSpec(members=ALL.members, update_bytes=(0, 64), model_bytes=(0, 64))
    policy = replace(POLICY, me=E, other=sender, peers=ALL.members, groups={}, consensus_by_group={"everyone": spec})
    envelope = Envelope(federation=FEDERATION, sender=sender, recipient=E, incarnation=2, to_incarnation=3)
    found = decode(framed(message, envelope), policy)
    assert not isinstance(found, Rejection), found
    told = found[1]
    if isinstance(told, Update):
        out = round_commit.on_update(sender, told.term, told.round, told.digest)
    else:
        assert isinstance(told, ConsensusMessage)
        out = round_commit.received(sender, told.message)
    assert not any(isinstance(each, PersistConsensus | ApplyModel) for each in out)
    return [each.code for each in out if isinstance(each, Rejection)]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.id)
def test_what_only_memory_can_tell_is_refused_by_name_and_changes_nothing(case: Wrong) -> None:
    round_commit = case.to()
    before = round_commit.holding, round_commit.election.hard_state
    assert case.code in received(round_commit, case.sender, case.message)
    assert (round_commit.holding, round_commit.election.hard_state) == before
    assert case.id.split("-")[0] in REJECTIONS[case.code].ids


def test_the_good_messages_of_which_the_wrong_ones_are_variants_are_taken() -> None:  # R20: rosters that overlap
    def taken(round_commit: RoundCommit, sender: str, message: Any) -> bool:
        return not any(isinstance(each, Rejection) for each in round_commit.received(sender, message))

    assert taken(follower(), A, Heartbeat(leader_certificate(A, 5, A, B, C), Progress()))
    assert taken(follower(), B, Heartbeat(leader_certificate(B, 6, B, C, D), Progress()))
    assert taken(follower(), A, Propose(Proposal(5, 2, 1, Y)))
    assert taken(follower(), A, Commit(SECOND))
    assert received(coordinator(), B, trained(5, 2, b"new")) == []
    four = leader_certificate(B, 6, A, B, C, roster=4)
    assert taken(one_of_five(), B, Heartbeat(four, Progress(1, 1, 4)))
    assert taken(one_of_five(), A, Propose(Proposal(5, 2, 5, Y)))
    assert taken(one_of_five(), A, Commit(certificate(Proposal(5, 2, 5, Y), A, B, C)))
    behind = CommitState(1, None, certificate(Proposal(4, 1, 1, X), A))
    assert taken(one_of_five(behind), A, Commit(certificate(Proposal(5, 9, 5, Y), A, B, C))), "later rosters count"
    blank = CommitState(5)
    assert taken(one_of_five(blank), A, Commit(certificate(Proposal(6, 2, 1, Y), A))), "no round has named a roster"
    assert taken(one_of_five(blank), A, Heartbeat(leader_certificate(A, 6, A), Progress()))
