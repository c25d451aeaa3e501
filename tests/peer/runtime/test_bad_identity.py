"""P9: statements of a member to a running peer about that peer itself.

They concern the peer's generation, its incarnation, its channels, and a later process with its identity. Without the
peer's own signature a statement changes nothing, in every version of the wire; with the signature it takes effect. Ids
are those of the table of bad inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpeer.gossip.claims import Claim
from fedpeer.gossip.proofs import ChannelProof, GenerationProof, channel_text, generation_text
from fedpeer.peer.wire.messages import ChannelState, Hello, Message, RejectMessage, Reminder
from fedpeer.peer.wire.roster import sign_statement
from tests.peer.runtime.bob import LIFE, Bob, bob_at
from tests.peer.runtime.test_bad_order import telling

pytestmark = pytest.mark.slow

Case = Callable[[Bob], None]


def hello(bob: Bob, *, taken: int = 0, known_generation: int = 0) -> Hello:
    """Return ann's Hello, with her statements about bob's generation and channel."""
    state = bob.peer.state
    group = next(iter(state.peer_groups.groups))
    digest = bob.peer.inside(lambda: state.digest_of(group))
    channel = ChannelState(group=group, made=0, acked=0, taken=taken, made_weight=0.0, taken_weight=0.25)
    return Hello(
        generation=LIFE, nonce=1, known_generation=known_generation, contract=state.setup.contract,
        groups=((group, digest),),
        channels=(channel,) if taken else (), round=0, begun=False, roster=bob.people.roster.number, answer=True,
    )  # fmt: skip


def says(code: str, make: Callable[[Bob], Message], version: int = 2, **envelope: Any) -> Case:
    """Return a case in which bob sends ann a rejection of her message, and his numbers stay the same."""

    def case(bob: Bob) -> None:
        frame = bob.framed(make(bob), version=version, **envelope)
        before = numbers(bob)
        with bob.refuses(code), bob.tells("ann", telling(code)):
            assert bob.say(frame) is None
        assert numbers(bob) == before

    return case


def numbers(bob: Bob) -> tuple[int, int]:
    durable = bob.peer.inside(lambda: bob.peer.state.durable)
    return durable.generation, durable.incarnation


def at_the_door(number: int) -> Case:
    """Return a case in which a number that leaves no room for a next one is rejected in the answer."""

    def case(bob: Bob) -> None:
        frame = bob.framed(hello(bob), to_incarnation=number)
        with bob.refuses("field_out_of_range"):
            refused = bob.say(frame)
            assert refused is not None
            assert refused.code == "field_out_of_range"

    return case


def two_say_that_another_came(version: int) -> Case:
    def case(bob: Bob) -> None:
        said = RejectMessage(code="duplicate_peer", group="", seq=0, text="There is a later one.")
        for sender in ("ann", "cas", "dan", "ann"):
            with bob.refuses("unproven"):
                assert bob.say(bob.framed(said, sender, version=version), sender) is None

    return case


def of_his_life(bob: Bob, by: str, number: int) -> Reminder:
    federation = bob.people.roster.federation_id
    text = generation_text(federation, "bob", 1, number, 7)
    signature = sign_statement(bob.keys[by].key, "claim", federation, text)
    return Reminder(
        generation=GenerationProof(incarnation=1, generation=number, nonce=7, signature=signature), channels=()
    )


def of_his_lane(bob: Bob, by: str, number: int) -> Reminder:
    federation = bob.people.roster.federation_id
    text = channel_text(federation, "all", ("bob", 1), ("ann", 1), "made", number, 0.25)
    signature = sign_statement(bob.keys[by].key, "claim", federation, text)
    proof = ChannelProof(group="all", way="made", number=number, weight=0.25, signature=signature)
    return Reminder(generation=None, channels=(proof,))


LIES: dict[str, Case] = {
    "E13-ours": says("incarnation_jump", hello, to_incarnation=2**17),
    "E13-ours-far": says("incarnation_jump", hello, to_incarnation=2**62),
    "E17-incarnation": says("unproven", hello, to_incarnation=2),
    "E17-incarnation-of-version-1": says("unproven", hello, version=1, to_incarnation=2**16 + 1),
    "E17-life": says("unproven", lambda bob: hello(bob, known_generation=2**62)),
    "E17-life-of-version-1": says("unproven", lambda bob: hello(bob, known_generation=2**40), version=1),
    "E17-lane": says("unproven", lambda bob: hello(bob, taken=1)),
    "E17-lane-of-version-1": says("unproven", lambda bob: hello(bob, taken=2**40), version=1),
    "E17-duplicate": two_say_that_another_came(2),
    "E17-duplicate-of-version-1": two_say_that_another_came(1),
    "E17-life-signed-by-another": says("unproven", lambda bob: of_his_life(bob, "ann", 9)),
    "E17-lane-signed-by-another": says("unproven", lambda bob: of_his_lane(bob, "ann", 9)),
    "M08-2^63-1": at_the_door(2**63 - 1),
    "M08-2^62+1": at_the_door(2**62 + 1),
}


@pytest.mark.parametrize("case", LIES.values(), ids=LIES)
def test_no_word_about_a_peer_moves_its_own_numbers(bob: Bob, case: Case) -> None:
    case(bob)


# ----------------------------------------------------------------------------------------------- what he signed himself


@pytest.fixture
def another(tmp_path: Path) -> Iterator[Bob]:
    """A separate bob, whose state the test changes permanently."""
    with bob_at(tmp_path) as bob:
        yield bob


def test_a_channel_that_a_peer_signed_and_does_not_know_is_memory_that_it_lost(another: Bob) -> None:
    assert numbers(another)[1] == 1
    assert another.say(another.framed(of_his_lane(another, "bob", 3))) is None
    another.peer.line("reborn")
    assert numbers(another)[1] == 2


def test_leaps_are_bounded_in_what_he_signed_too(bob: Bob) -> None:
    before = numbers(bob)
    with bob.refuses("incarnation_jump"):
        assert bob.say(bob.framed(of_his_life(bob, "bob", 2**40))) is None
    assert numbers(bob) == before


@pytest.mark.parametrize("way", ["refused", "reminder"])
def test_a_later_process_that_shows_his_own_signature_stops_him(another: Bob, way: str) -> None:
    another.peer.inside(lambda: setattr(another.peer.state.starts, "known_to_all", True))
    number = numbers(another)[0] + 1
    said: Message = of_his_life(another, "bob", number)
    if way == "refused":
        claim = another.peer.inside(lambda: another.peer.state.membership.statement)
        assert claim.advert is not None
        later: Claim = replace(claim, version=1, advert=replace(claim.advert, generation=number, nonce=7))
        said = RejectMessage(
            code="duplicate_peer", group="", seq=0, text="It is so.", claims=(another.signed(later, "bob"),)
        )
    assert another.say(another.framed(said)) is None
    assert "started after this one" in another.peer.line("duplicate_peer").text
    another.peer.wait(another.peer.process._over.wait())
    assert another.peer.process._stopped is not None
    assert another.peer.process._stopped.code == 2
