"""Bytes become a valid message or a named rejection, nothing else; and decoding gives what was encoded."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.config.capacity import METADATA_BYTES_MAX, NAME_LETTERS_MAX
from fedpeer.gossip.claims import Advert, Claim
from fedpeer.gossip.reductions import FORMS, Zstd, all_finite
from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.wire.codec import (
    ANSWER_BYTES_MAX,
    HEAD_BYTES,
    FrameHead,
    decode,
    decode_answer,
    encode,
    finish,
    frame_bytes_max,
    parse_head,
    parse_metadata,
    rejection_message,
)
from fedpeer.peer.wire.consensus_wire import CONSENSUS_LAYOUTS, TAGS
from fedpeer.peer.wire.message_policy import MessagePolicy
from fedpeer.peer.wire.message_spec import Envelope, ParsedMetadata
from fedpeer.peer.wire.messages import (
    CONTRACT_BYTES_MAX,
    KINDS,
    Ack,
    ChannelState,
    ConsensusMessage,
    Contract,
    Hello,
    Message,
    Ping,
    RejectMessage,
    RosterNews,
    Transfer,
    Value,
    spoken_in,
)
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.peer.wire.roster import ROSTER_BYTES_MAX
from fedpeer.peer.wire.versions import CAPABILITIES_MAX, VERSIONS
from fedpeer.peer.wire.wire_types import COUNT_MAX, NUMBER_MAX
from fedpeer.rejection import Rejection
from tests.peer import hostile
from tests.peer.examples import SPOKEN
from tests.peer.examples import frame as example
from tests.peer.frames import CLAIMS, ENVELOPE, HELLO, LENGTH, MESSAGES, PARTY, PLAIN, POLICY, TRANSFER, framed, spec
from tests.peer.hostile import (
    HOSTILE,
    REFUSED,
    ROSTER_NEWS,
    VALUE,
    Hostile,
    ack,
    craft_frame,
    numbers,
    packed,
    transfer,
)

#: Frames of each version of the wire, one per line in hexadecimal. They never change: peers of that version send them.
GOLDEN = {
    version: dict(
        line.split()
        for line in (Path(__file__).parent / f"wire-v{version}.txt").read_text(encoding="ascii").splitlines()
    )
    for version in VERSIONS
}


def refusal_of(frame: bytes, policy: MessagePolicy = POLICY) -> str:
    found = decode(frame, policy)
    return found.code if isinstance(found, Rejection) else f"taken: {found[1]}"


def message_of(frame: bytes, policy: MessagePolicy = POLICY) -> Message:
    found = decode(frame, policy)
    assert not isinstance(found, Rejection), found
    return found[1]


# ------------------------------------------------------------------------------------------------- what belongs there


def said_in(version: int, message: Message) -> bool:
    """Return whether this version of the wire has the message: its kind, and the kind of a consensus message in it."""
    said = CONSENSUS_LAYOUTS[TAGS[type(message.message)]].since if isinstance(message, ConsensusMessage) else version
    return spoken_in(version, type(message)) and said <= version


def in_version(version: int) -> Envelope:
    return replace(ENVELOPE, version=version)


EVERY_FRAME = [(version, name) for version in VERSIONS for name in GOLDEN[version]]


@pytest.mark.parametrize(("version", "name"), EVERY_FRAME)
def test_what_is_encoded_is_what_is_decoded(version: int, name: str) -> None:
    frame = framed(MESSAGES[name], in_version(version))
    found = decode(frame, POLICY)
    assert not isinstance(found, Rejection), found
    envelope, message = found
    assert envelope == in_version(version)
    assert type(message) is type(MESSAGES[name])
    assert framed(message, envelope) == frame


@pytest.mark.parametrize(("version", "name"), EVERY_FRAME)
def test_no_version_of_the_wire_ever_changes(version: int, name: str) -> None:
    assert framed(MESSAGES[name], in_version(version)).hex() == GOLDEN[version][name]


@pytest.mark.parametrize("version", VERSIONS)
def test_there_are_golden_bytes_of_every_kind_of_message(version: int) -> None:
    spoken = {name for name, message in MESSAGES.items() if said_in(version, message)}
    assert set(GOLDEN[version]) == spoken - ({"refused-duplicate"} if version == 1 else set())
    assert {type(MESSAGES[name]) for name in spoken} == {kind for kind in KINDS.values() if spoken_in(version, kind)}


def test_a_field_of_a_later_version_has_its_default_in_a_frame_of_an_older_one() -> None:
    hello = message_of(framed(HELLO, in_version(1)))
    assert hello == replace(HELLO, capabilities=(), signature=b"", before=())
    assert message_of(framed(HELLO, in_version(2))) == HELLO
    assert HELLO.capabilities, "else this shows nothing"


def test_capabilities_that_nobody_knows_are_read_and_too_many_are_not() -> None:
    known = replace(HELLO, capabilities=("proofs", "of-another-century"))
    assert message_of(framed(known)) == known
    assert refusal_of(framed(replace(HELLO, capabilities=("x",) * (CAPABILITIES_MAX + 1)))) == "bad_metadata"


def test_frames_are_the_bytes_that_the_page_on_the_wire_says() -> None:
    """The expected frames are built by hand: header, envelope, fields in their order, the tensor's bytes."""
    one = in_version(1)
    assert framed(MESSAGES["ack"], one) == ack(PARTY, "all", 8, 12)
    tail = numbers(*TRANSFER.share.payload.tolist())
    assert framed(TRANSFER, one) == transfer(PARTY, round=12, exchange=3, weight=0.2, tail=tail)
    assert framed(MESSAGES["value"], one) == craft_frame(PARTY, VALUE, ["all", 12, [LENGTH]], tail)
    assert framed(MESSAGES["roster-news"], one) == craft_frame(PARTY, ROSTER_NEWS, [2, b""], b'{"number":2}')


def test_a_tensor_is_neither_copied_when_sent_nor_when_received() -> None:
    payload = torch.arange(LENGTH, dtype=torch.float32)
    head, tail = encode(ENVELOPE, replace(TRANSFER, share=replace(TRANSFER.share, payload=payload)))
    assert np.frombuffer(tail, np.uint8).ctypes.data == payload.data_ptr()
    received = bytearray(tail)
    found = parse_head(head[:HEAD_BYTES])
    assert isinstance(found, FrameHead)
    parsed = parse_metadata(found, head[HEAD_BYTES:], POLICY)
    assert isinstance(parsed, ParsedMetadata)
    message = finish(parsed, memoryview(received))
    assert isinstance(message, Transfer)
    assert message.share.payload.data_ptr() == np.frombuffer(received, np.uint8).ctypes.data


def test_a_decoded_frame_shares_no_memory_with_it() -> None:
    frame = bytearray(framed(MESSAGES["value"]))
    found = decode(frame, POLICY)
    assert not isinstance(found, Rejection)
    message = found[1]
    assert isinstance(message, Value)
    frame[-4 * LENGTH :] = bytes(4 * LENGTH)
    assert message.value_D[0] == 1.5


def test_subnormal_numbers_and_minus_zero_are_taken_as_they_are() -> None:  # S13
    message = message_of(transfer(PARTY, tail=numbers(1e-40, -0.0, -1e-45, 0, 0, 0, 0)))
    assert isinstance(message, Transfer)
    payload = message.share.payload
    assert payload[0] == torch.tensor(1e-40)
    assert payload[0] != 0
    assert torch.signbit(payload[1])
    assert payload[2] < 0


NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=NAME_LETTERS_MAX)
COUNTS, COUNTED = st.integers(0, NUMBER_MAX), st.integers(0, COUNT_MAX)
AMOUNTS = st.floats(0, allow_nan=False, allow_infinity=False)
DIGESTS = st.binary(min_size=32, max_size=32)
CHANNELS = st.builds(
    ChannelState, group=NAMES, made=COUNTS, acked=COUNTS, taken=COUNTS, made_weight=AMOUNTS, taken_weight=AMOUNTS
)
HELLOS = st.builds(
    Hello,
    generation=COUNTED,
    nonce=COUNTS,
    known_generation=COUNTED,
    contract=DIGESTS,
    groups=st.lists(st.tuples(NAMES, DIGESTS), max_size=3, unique_by=lambda pair: pair[0]).map(tuple),
    channels=st.lists(CHANNELS, max_size=3, unique_by=lambda channel: channel.group).map(tuple),
    round=COUNTS,
    begun=st.booleans(),
    roster=COUNTS,
    answer=st.booleans(),
    capabilities=st.lists(st.just("proofs"), max_size=2).map(tuple),
)
PARCELS = st.builds(
    NumberedTransfer,
    seq=st.integers(1, NUMBER_MAX),
    round=COUNTS,
    exchange=COUNTS,
    weight=st.floats(0, 4, exclude_min=True),
    form=st.just("float32"),
    payload=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=LENGTH, max_size=LENGTH).map(
        lambda values: torch.tensor(values, dtype=torch.float32)
    ),
)
TRANSFERS = st.builds(Transfer, group=st.just("all"), share=PARCELS)


@pytest.mark.slow
@given(HELLOS | TRANSFERS, COUNTED.filter(bool))
@settings(max_examples=100, deadline=None)
def test_any_message_comes_back_as_it_was(message: Message, incarnation: int) -> None:
    envelope = replace(ENVELOPE, incarnation=incarnation)
    frame = framed(message, envelope)
    found = decode(frame, POLICY)
    assert not isinstance(found, Rejection), found
    assert found[0] == envelope
    if isinstance(message, Hello):
        assert found[1] == message
    assert framed(found[1], found[0]) == frame


def test_two_peers_that_share_thirty_groups_can_meet() -> None:
    """The groups have ids of 16 letters, and numbers as after years of running."""
    names = [f"partial-model-{number:02}" for number in range(30)]
    channels = [
        ChannelState(group=name, made=2**31, acked=2**31, taken=2**31, made_weight=0.3, taken_weight=0.7)
        for name in names
    ]
    hello = replace(HELLO, groups=tuple((name, bytes(32)) for name in names), channels=tuple(channels))
    assert message_of(framed(hello)) == hello


def test_a_message_of_membership_leaves_out_the_claims_that_find_no_room() -> None:
    told = Advert(
        address="https://a:1", roster=1, generation=1, nonce=1, round=1, score=None, begun=True, models=("m" * 100,) * 9
    )
    claims = tuple(
        Claim(about=name, incarnation=1, version=1, state="alive", author=name, advert=told, signature=bytes(64))
        for name in "abcdefgh"
    )
    frame = framed(Ping(number=1, claims=claims))
    kept = message_of(frame)
    assert isinstance(kept, Ping)
    assert 0 < len(kept.claims) < len(claims)
    assert kept.claims == claims[: len(kept.claims)]
    assert len(frame) <= HEAD_BYTES + METADATA_BYTES_MAX < len(frame) + 1100, "one more would not have fitted"


# ------------------------------------------------------------------------------------------------------- what does not


@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: case.id)
def test_what_bytes_and_policy_can_tell_is_refused_by_name(case: Hostile) -> None:
    assert refusal_of(case.build(PARTY)) == case.code
    assert case.id.split("-")[0] in REJECTIONS[case.code].ids or case.id in ELSEWHERE


#: Ids of cases that are rejected by a cheaper check than the row's own.
ELSEWHERE = {"M02-nested-100000", "M04-10000-letters"}


def test_the_good_frame_of_which_the_hostile_ones_are_variants_is_taken() -> None:
    assert isinstance(message_of(transfer(PARTY)), Transfer)
    assert isinstance(message_of(ack(PARTY)), Ack)


def test_what_is_wrong_names_the_transfer() -> None:
    found = decode(transfer(PARTY, weight=0.0, seq=9), POLICY)
    assert isinstance(found, Rejection)
    answer = rejection_message(found)
    assert (answer.code, answer.group, answer.seq) == ("bad_weight", "all", 9)
    assert answer.text.startswith(REJECTIONS["bad_weight"].advice)


def test_without_certificates_the_envelope_says_who_speaks_and_the_roster_who_may() -> None:
    plain = replace(POLICY, other=None)
    assert isinstance(message_of(ack(PARTY), plain), Ack)
    assert refusal_of(ack(PARTY, sender="cas"), plain).startswith("taken: Ack(group='all', taken=1, round=1,")
    assert refusal_of(ack(PARTY, sender="eve"), plain) == "unknown_peer"


def test_who_has_not_met_us_may_say_anything_but_what_belongs_to_channels() -> None:
    assert refusal_of(ack(PARTY, to_incarnation=0)) == "stale_incarnation"
    for name in ("hello", "ping", "fetch", "roster-news", "refused", "contract"):
        message_of(framed(MESSAGES[name], replace(ENVELOPE, to_incarnation=0)))


def test_an_earlier_incarnation_of_ours_hears_only_hello() -> None:
    stale = replace(ENVELOPE, to_incarnation=2)
    message_of(framed(MESSAGES["hello"], stale))
    for name in ("ping", "ack", "transfer", "value"):
        assert refusal_of(framed(MESSAGES[name], stale)) == "stale_incarnation"


def test_a_hello_about_another_contract_and_unknown_groups_is_heard() -> None:
    """Such a Hello is accepted so that the two peers can name the difference."""
    other = replace(HELLO, contract=b"x" * 32, groups=(("unheard-of", b"z" * 32),), channels=())
    assert message_of(framed(other)) == other


@pytest.mark.parametrize(
    ("group", "form", "payload", "code"),
    [
        ("bytes", "int8", b"\0\0\xc0\x7f" + bytes(7), "not_finite"),
        ("bytes", "int8", bytes(12), "wrong_shape"),
        ("few", "top-k:0.25", struct.pack("<2i2f", 6, 1, 1, 1), "wrong_shape"),
        ("few", "top-k:0.25", struct.pack("<2i2f", 1, 1, 1, 1), "wrong_shape"),
        ("few", "top-k:0.25", struct.pack("<2i2f", 1, 7, 1, 1), "wrong_shape"),
        ("few", "top-k:0.25", struct.pack("<2i2f", -1, 6, 1, 1), "wrong_shape"),
        ("few", "top-k:0.25", struct.pack("<2i2f", 1, 6, 1, float("inf")), "not_finite"),
        ("few", "int8", bytes(11), "wrong_dtype"),
    ],
)
def test_reductions_are_checked_inside(group: str, form: str, payload: bytes, code: str) -> None:
    frame = transfer(PARTY, group=group, form=form, shape=[len(payload)], tail=payload)
    assert refusal_of(frame) == code


@pytest.mark.parametrize(("name", "dtype"), [("wide", torch.float64), ("half", torch.bfloat16), ("all", torch.float32)])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_no_form_lets_nan_or_infinity_in(name: str, dtype: torch.dtype, bad: float) -> None:
    payload = torch.ones(LENGTH, dtype=dtype)
    payload[3] = bad
    form = str(dtype).removeprefix("torch.")
    message = Transfer(
        group=name, share=NumberedTransfer(seq=1, round=1, exchange=1, weight=1.0, form=form, payload=payload)
    )
    assert refusal_of(framed(message)) == "not_finite"


def zstd_policy(length: int) -> MessagePolicy:
    form = Zstd(FORMS["float32"](), 1)
    return replace(POLICY, groups={"all": spec(length=length, forms=PLAIN | {form.name: form})})


def test_a_compressed_bomb_is_refused_before_it_grows() -> None:
    zeros = bytes(64 << 20)
    bomb = bytes(Zstd(FORMS["float32"](), 1).pack(torch.zeros(len(zeros) // 4), np.random.default_rng(0)).numpy())
    frame = transfer(replace(PARTY, length=1000), form="float32/zstd", shape=[len(bomb)], tail=bomb)
    assert refusal_of(frame, zstd_policy(1000)) in ("tail_length_wrong", "wrong_shape")
    tracemalloc.start()
    refusal_of(frame, zstd_policy(1000))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    "case", [case for case in HOSTILE if len(case.build(PARTY)) < 10_000], ids=lambda case: case.id
)
def test_no_refusal_takes_memory(case: Hostile) -> None:
    frame = case.build(PARTY)
    decode(frame, POLICY)
    tracemalloc.start()
    decode(frame, POLICY)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_the_largest_metadata_that_passes_the_limits_takes_less_than_a_megabyte() -> None:
    """This metadata has arrays of as many elements as are allowed, nested as deep as 4 KiB allow."""
    deep = b"\xdc\x00\x40" * 1000
    frame = craft_frame(PARTY, hostile.TRANSFER, (), metadata=deep + b"\xc0" * (METADATA_BYTES_MAX - len(deep)))
    tracemalloc.start()
    assert refusal_of(frame) == "bad_metadata"
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_lengths_are_refused_before_anything_is_read_and_however_they_arrive() -> None:
    good = framed(MESSAGES["transfer"])
    assert isinstance(parse_head(good[:HEAD_BYTES]), FrameHead), "where the length of the whole is not known"
    found = parse_head(good[:HEAD_BYTES], len(good) - 1)
    assert isinstance(found, Rejection)
    assert found.code == "tail_length_wrong"
    head = parse_head(good[:HEAD_BYTES], len(good))
    assert isinstance(head, FrameHead)
    parsed = parse_metadata(head, good[HEAD_BYTES : HEAD_BYTES + head.metadata_bytes], POLICY)
    assert isinstance(parsed, ParsedMetadata)
    for tail, code in ((bytes(4 * LENGTH + 1), "trailing_bytes"), (bytes(4 * LENGTH - 1), "tail_length_wrong")):
        end = finish(parsed, memoryview(tail))
        assert isinstance(end, Rejection)
        assert end.code == code


def test_the_longest_frame_follows_from_what_is_shared() -> None:
    texts = HEAD_BYTES + METADATA_BYTES_MAX + ROSTER_BYTES_MAX
    assert frame_bytes_max(POLICY) == texts, "small groups: the roster is the longest"
    large = {"all": spec(length=1 << 20), "closed": spec(length=1 << 24, members=frozenset({"bob", "cas"}))}
    assert frame_bytes_max(replace(POLICY, groups=large)) == HEAD_BYTES + METADATA_BYTES_MAX + (4 << 20)
    wide = {"all": spec(length=1 << 20, forms=PLAIN | {"float64": FORMS["float64"]()})}
    assert frame_bytes_max(replace(POLICY, groups=wide)) == HEAD_BYTES + METADATA_BYTES_MAX + (8 << 20)


def test_texts_are_bounded() -> None:
    assert isinstance(message_of(framed(Contract(text=b"x" * CONTRACT_BYTES_MAX))), Contract)
    assert isinstance(message_of(framed(RosterNews(number=1, text=b"x" * ROSTER_BYTES_MAX))), RosterNews)
    with pytest.raises(AssertionError, match="65537"):
        framed(Contract(text=b"x" * (CONTRACT_BYTES_MAX + 1)))


@pytest.mark.parametrize(
    "claim",
    [
        replace(CLAIMS[0], author="cas"),
        replace(CLAIMS[1], advert=CLAIMS[0].advert),
        replace(CLAIMS[0], advert=None),
        replace(CLAIMS[0], signature=b""),
        replace(CLAIMS[0], state="asleep"),  # type: ignore[arg-type]
        replace(CLAIMS[0], about="\n"),
    ],
)
def test_claims_that_contradict_themselves_are_refused(claim: Claim) -> None:
    assert refusal_of(framed(Ping(number=1, claims=(claim,)))) == "bad_metadata"


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 1])
def test_a_score_is_a_finite_float_or_none(score: float) -> None:
    assert CLAIMS[0].advert is not None
    claim = replace(CLAIMS[0], advert=replace(CLAIMS[0].advert, score=score))
    assert refusal_of(framed(Ping(number=1, claims=(claim,)))) in ("field_out_of_range", "bad_metadata")


def test_names_that_stand_twice_in_a_hello_are_refused() -> None:
    assert refusal_of(framed(replace(HELLO, groups=HELLO.groups[:1] * 2))) == "bad_metadata"
    assert refusal_of(framed(replace(HELLO, channels=HELLO.channels * 2))) == "bad_metadata"
    channel = replace(HELLO.channels[0], made_weight=float("nan"))
    assert refusal_of(framed(replace(HELLO, channels=(channel,)))) == "field_out_of_range"


# ------------------------------------------------------------------------------------------------------------- answers


def test_the_answer_of_a_server_is_read_without_knowing_who_we_are_to_it() -> None:
    text = "a\x1b[2Jb\n" + "ж" * 10_000
    frame = framed(rejection_message(Rejection("unknown_peer", text)), replace(ENVELOPE, sender="?", recipient="?"))
    answer = decode_answer(frame)
    assert isinstance(answer, RejectMessage)
    assert answer.code == "unknown_peer"
    assert answer.text.isprintable()
    assert answer.text.startswith(REJECTIONS["unknown_peer"].advice)


def test_who_was_put_out_is_answered_with_the_roster() -> None:
    news = MESSAGES["roster-news"]
    assert decode_answer(framed(news)) == news
    whole = RosterNews(number=2, text=bytes(ROSTER_BYTES_MAX))
    assert decode_answer(framed(whole)) == whole
    assert len(framed(whole)) <= ANSWER_BYTES_MAX
    too_long = craft_frame(PARTY, ROSTER_NEWS, [2, b""], bytes(ROSTER_BYTES_MAX + 1))
    assert decode_answer(too_long) is None


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"<html>Bad Gateway</html>",
        framed(MESSAGES["ack"]),
        framed(MESSAGES["contract"]),
        framed(MESSAGES["refused"])[:-1],
        framed(MESSAGES["roster-news"])[:-1],
        craft_frame(PARTY, REFUSED, ["early", "", 0, ""], b"a tail"),
    ],
)
def test_what_is_no_answer_is_none(frame: bytes) -> None:
    assert decode_answer(frame) is None


# ------------------------------------------------------------------------------------------------------ finite numbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("seed", range(5))
def test_the_quick_check_for_finite_numbers_says_what_the_slow_one_says(dtype: torch.dtype, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    most = torch.finfo(dtype).max
    for length in (1, 2, 15, 64, 1000):
        values = (torch.rand(length, generator=draws, dtype=torch.float64) * most).to(dtype)  # their sum overflows
        for bad in (None, float("nan"), float("inf"), -float("inf")):
            for at in (0, length // 2, length - 1):
                if bad is not None:
                    values[at] = bad
                assert all_finite(values) is bool(torch.isfinite(values).all()) is (bad is None)
                values[at] = 1.0
    assert all_finite(torch.tensor([most, most, most], dtype=dtype))
    assert not all_finite(torch.tensor([float("inf"), -float("inf")], dtype=dtype))


# ---------------------------------------------------------------------------------------------------------------- fuzz


def checked(frame: bytes) -> bool:
    """Return whether a frame is accepted; raise if it becomes neither a valid message nor a named rejection."""
    found = decode(frame, POLICY)
    if isinstance(found, Rejection):
        assert found.code in REJECTIONS
        assert decode_answer(framed(rejection_message(found))) is not None, "every refusal can be answered"
        return False
    assert isinstance(decode(framed(found[1], found[0]), POLICY), tuple), "what is taken can be said again"
    match found[1]:
        case Transfer(share=NumberedTransfer(payload=tensor)) | Value(value_D=tensor) if tensor.is_floating_point():
            assert bool(torch.isfinite(tensor).all())
    return True


def fuzzed(cases: int, seed: int) -> None:
    draws = np.random.default_rng(seed)
    recorded = [framed(message) for message in MESSAGES.values()]
    recorded += [example(kind, version, draws) for version, kind in SPOKEN]
    taken = 0
    for _ in range(cases):
        frame = bytearray(recorded[draws.integers(len(recorded))])
        for _ in range(draws.integers(1, 4)):
            at, what = int(draws.integers(len(frame))), draws.integers(6)
            if what < 3:
                frame[at] ^= 1 << draws.integers(8)
            elif what == 3:
                frame[at] = draws.integers(256)
            elif what == 4:
                del frame[at : at + int(draws.integers(1, 9))]
            else:
                frame[at:at] = draws.bytes(int(draws.integers(1, 9)))
            if not frame:
                break
        taken += checked(bytes(frame))
    assert 0 < taken < cases / 2


@pytest.mark.slow
@pytest.mark.parametrize("cases", [5_000, pytest.param(20_000, marks=pytest.mark.soak)])
def test_changed_messages_are_messages_or_refusals(cases: int) -> None:
    fuzzed(cases, seed=0)


WHOLES = st.integers(-(2**63), 2**64 - 1)
PLAIN_VALUES = st.recursive(
    st.none() | st.booleans() | WHOLES | st.floats() | st.text(max_size=5) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.integers(1, len(KINDS)), st.lists(PLAIN_VALUES, max_size=6), st.binary(max_size=40), st.booleans())
@settings(max_examples=40, deadline=None)
def test_metadata_of_any_structure_is_a_message_or_a_refusal(
    kind: int, found: list[object], tail: bytes, sealed: bool
) -> None:
    metadata = None if sealed else packed(found)
    checked(craft_frame(PARTY, kind, found, tail, metadata=metadata))


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_a_refusal(data: bytes) -> None:
    assert not checked(data)
