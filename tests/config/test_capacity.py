"""Sizes that are computed before anything starts, compared with the encoder's largest messages."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedpeer.algorithms.local_training import FullAveraging, LocalTraining, PartialAveraging
from fedpeer.config.capacity import (
    ADDRESS_LETTERS_MAX,
    ARRAY_MAX,
    METADATA_BYTES_MAX,
    NAME_LETTERS_MAX,
    capacity_problem,
    hello_bytes,
    statement_bytes,
    weights_in_hello,
)
from fedpeer.gossip.claims import STATEMENT_BYTES_MAX, Advert, Claim
from fedpeer.gossip.membership import Membership
from fedpeer.peer.wire.codec import HEAD_BYTES, encode
from fedpeer.peer.wire.framing import pack
from fedpeer.peer.wire.message_spec import Envelope, layout_of
from fedpeer.peer.wire.messages import CLAIM, ChannelState, Hello
from fedpeer.peer.wire.versions import CAPABILITIES, NEWEST
from fedpeer.peer.wire.wire_types import NUMBER_MAX
from fedpeer.slicing.models import PartialModel

LONGEST = "i" * NAME_LETTERS_MAX
NAMES = st.lists(
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=NAME_LETTERS_MAX), max_size=ARRAY_MAX
)
ENVELOPE = Envelope(
    federation=bytes(16), sender=LONGEST, recipient=LONGEST, incarnation=NUMBER_MAX, to_incarnation=NUMBER_MAX
)


def hello(groups: list[str], before: Mapping[str, float] = {}) -> Hello:
    """Return a Hello with the largest numbers, and these weights from earlier incarnations."""
    channels = [
        ChannelState(
            group=group, made=NUMBER_MAX, acked=NUMBER_MAX, taken=NUMBER_MAX, made_weight=0.1, taken_weight=0.1
        )
        for group in groups
    ]
    return Hello(
        generation=NUMBER_MAX,
        nonce=NUMBER_MAX,
        known_generation=NUMBER_MAX,
        contract=bytes(32),
        groups=tuple((group, bytes(32)) for group in groups),
        channels=tuple(channels),
        round=NUMBER_MAX,
        begun=True,
        roster=NUMBER_MAX,
        answer=True,
        capabilities=CAPABILITIES,
        signature=bytes(64),
        before=tuple(sorted(before.items())),
    )


@pytest.mark.parametrize("letters", [1, 4, 16, NAME_LETTERS_MAX])
def test_the_largest_hello_fits_although_each_neighbor_has_lost_its_memory(letters: int) -> None:
    """It states the weights that earlier incarnations gave as far as there is room, the largest first."""
    most = max(
        count
        for count in range(ARRAY_MAX + 1)
        if hello_bytes([f"{number:0{letters}}" for number in range(count)]) <= METADATA_BYTES_MAX
    )
    for count in range(most + 1):
        groups = [f"{number:0{letters}}" for number in range(count)]
        weights = {group: 1.0 + number for number, group in enumerate(groups)}
        told = weights_in_hello(groups, weights)
        assert list(told) == list(reversed(groups))[: len(told)]
        head, _ = encode(ENVELOPE, hello(groups, told))
        assert len(head) <= HEAD_BYTES + METADATA_BYTES_MAX
    assert len(told) < most, "there are more than fit"
    with pytest.raises(AssertionError, match="bytes of metadata in a Hello"):
        encode(ENVELOPE, hello(groups, weights))
    few = groups[: len(groups) // 2]
    assert set(weights_in_hello(few, dict.fromkeys(few, 1.0))) == set(few), "with fewer groups all are told"


@pytest.mark.slow
@given(NAMES)
@example([f"{number:02}" + "😀" * (NAME_LETTERS_MAX - 2) for number in range(20)])
@settings(max_examples=40, deadline=None)
def test_no_hello_takes_more_and_none_much_less(groups: list[str]) -> None:
    takes = len(pack(layout_of(Envelope).writer(NEWEST)(ENVELOPE) + layout_of(Hello).writer(NEWEST)(hello(groups))))
    assert takes <= hello_bytes(groups) <= takes + 6 + 4 * len(groups)


@pytest.mark.slow
@given(NAMES)
@settings(max_examples=40, deadline=None)
def test_no_statement_takes_more(models: list[str]) -> None:
    advert = Advert(
        address="a" * ADDRESS_LETTERS_MAX,
        roster=NUMBER_MAX,
        generation=NUMBER_MAX,
        nonce=NUMBER_MAX,
        round=NUMBER_MAX,
        score=0.1,
        begun=True,
        models=tuple(models),
    )
    claim = Claim(
        about=LONGEST,
        incarnation=NUMBER_MAX,
        version=NUMBER_MAX,
        state="finished",
        author=LONGEST,
        advert=advert,
        signature=bytes(64),
    )
    assert len(pack(CLAIM.layout.writer(NEWEST)(claim))) <= statement_bytes(models)


def everyones(count: int, letters: int = 4) -> list[PartialModel]:
    return [PartialModel(f"{number:0{letters}}") for number in range(count)]


@pytest.mark.parametrize("letters", [4, 30, NAME_LETTERS_MAX])
def test_what_is_not_refused_can_be_said_and_one_more_is_refused(letters: int) -> None:
    most = max(
        count
        for count in range(ARRAY_MAX + 1)
        if capacity_problem(everyones(count, letters), PartialAveraging.method()) is None
    )
    names = [model.name for model in everyones(most, letters)]
    encode(ENVELOPE, hello(names))
    assert statement_bytes(names) <= STATEMENT_BYTES_MAX
    more = [model.name for model in everyones(most + 1, letters)]
    assert hello_bytes(more) > METADATA_BYTES_MAX or statement_bytes(more) > STATEMENT_BYTES_MAX


def test_who_averages_everything_or_nothing_tells_of_its_models_all_the_same() -> None:
    for method in (LocalTraining.method(), FullAveraging.method()):
        assert capacity_problem(everyones(ARRAY_MAX), method) is None
        problem = capacity_problem(everyones(ARRAY_MAX + 1), method)
        assert problem is not None
        assert problem.message.startswith(f"every peer implements {ARRAY_MAX + 1} of them, and a message has room for")


def stated(models: list[PartialModel]) -> None:
    """Make the first statement of the peer with the longest id and address."""
    advert = Advert(
        address="a" * ADDRESS_LETTERS_MAX,
        roster=1,
        generation=1,
        nonce=1,
        round=0,
        score=None,
        begun=False,
        models=tuple(model.name for model in models),
    )
    Membership(
        LONGEST,
        federation=bytes(16),
        roster=[LONGEST],
        incarnation=1,
        advert=advert,
        draws=np.random.default_rng(0),
        sign=lambda text: bytes(64),
        verify=lambda author, text, signature: True,
    )


def test_a_statement_is_refused_as_soon_as_it_could_not_be_made() -> None:
    fits = [capacity_problem(everyones(count, 40), FullAveraging.method()) is None for count in range(ARRAY_MAX + 1)]
    most = fits.index(False) - 1
    stated(everyones(most, 40))
    with pytest.raises(AssertionError, match="leaves no room"):
        stated(everyones(most + 1, 40))


def test_only_what_two_peers_share_stands_in_a_hello() -> None:
    groups = [PartialModel(f"w{number}", members=("hub", f"peer{number}")) for number in range(ARRAY_MAX)]
    assert capacity_problem(groups, PartialAveraging.method()) is None
    both = [PartialModel(model.name, members=("hub", "twin")) for model in groups]
    problem = capacity_problem(both, PartialAveraging.method())
    assert problem is not None
    assert problem.message.startswith(f"hub may share {ARRAY_MAX} groups with another peer")


def test_weights_between_unrelated_models_are_groups_too() -> None:
    unrelated = everyones(12)
    assert capacity_problem(unrelated, PartialAveraging.method()) is None
    problem = capacity_problem(unrelated, PartialAveraging.method(cross_model=True))
    assert problem is not None
    assert problem.message.startswith(f"every peer may share {12 + 12 * 11 // 2} groups")
    chain = [PartialModel(f"m{at}", depends_on=(f"m{at - 1}",) if at else ()) for at in range(12)]
    assert capacity_problem(chain, PartialAveraging.method(cross_model=True)) is None


@pytest.mark.parametrize("name", ["m" * (NAME_LETTERS_MAX + 1), "a\nb"])
def test_a_name_that_no_message_takes(name: str) -> None:
    problem = capacity_problem([PartialModel(name)], LocalTraining.method())
    assert problem is not None
    assert problem.place == f"partial_models.{name}"
