"""Tests of the signed text, the waits and the table's limits, against closed formulas and bytes recorded once."""

from __future__ import annotations

import math
from dataclasses import replace
from hashlib import sha256

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.gossip.awareness import HEALTH_MAX, UNANSWERED_FREE, Awareness, ProbeTiming, suspicion_wait
from fedpeer.gossip.claims import CLAIMS_MAX, Advert, Claim, claim_bytes, claim_text, well_formed
from fedpeer.gossip.credit import HALF_TICKS, MARKS_MAX, Credit
from fedpeer.gossip.dissemination import MemberRecord, MemberTable
from fedpeer.gossip.round_trips import GROWTH_MAX, KEPT_MAX, KEPT_TICKS, RoundTrips
from tests.gossip.swim import FEDERATION, a_claim, ids, verify

NAMES = st.text(max_size=4)
NUMBERS = st.integers(0, 3)
ADVERTS = st.builds(
    Advert,
    address=NAMES,
    roster=NUMBERS,
    generation=NUMBERS,
    nonce=NUMBERS,
    round=NUMBERS,
    score=st.one_of(st.none(), st.floats(allow_nan=False)),
    begun=st.booleans(),
    models=st.lists(NAMES, max_size=3).map(tuple),
)
CLAIMS = st.builds(
    Claim,
    about=NAMES,
    incarnation=NUMBERS,
    version=NUMBERS,
    state=st.sampled_from(("alive", "suspect", "dead", "finished", "left")),
    author=NAMES,
    advert=st.one_of(st.none(), ADVERTS),
    signature=st.just(b""),
)


@pytest.mark.slow
@given(CLAIMS, CLAIMS)
def test_no_two_claims_have_one_text(first: Claim, second: Claim) -> None:
    same = repr(first) == repr(second)  # 0.0 and -0.0 are equal, but the claims differ
    assert (claim_text(FEDERATION, first) == claim_text(FEDERATION, second)) is same


def test_names_that_run_together_are_told_apart() -> None:
    claim = a_claim("peer001", "alive", author="peer001", models=("ab", "c"))
    assert claim.advert is not None
    other = replace(claim, advert=replace(claim.advert, models=("a", "bc")))
    assert claim_text(FEDERATION, claim) != claim_text(FEDERATION, other)
    assert claim_text(FEDERATION, claim) != claim_text(bytes(16), claim)


def test_the_text_is_what_it_was_in_version_1() -> None:
    claim = a_claim("peer001", "alive", author="peer001", version=3, score=0.5, models=("everyone", "näher"))
    text = claim_text(FEDERATION, claim)
    assert text.startswith(b"\x0f\0\0\0fedpeer claim 1\x10\0\0\0" + FEDERATION + b"\x07\0\0\0peer001")
    assert sha256(text).hexdigest() == "0341ffbfdb508fe94bb6565dd7e5c7923066a3dee8aebfe6c785a0ea59c98a38"


def test_with_real_keys() -> None:
    key = Ed25519PrivateKey.generate()
    claim = a_claim("peer001", "dead", author="peer002")
    text = claim_text(FEDERATION, claim)
    key.public_key().verify(key.sign(text), text)
    with pytest.raises(InvalidSignature):
        key.public_key().verify(key.sign(text), claim_text(FEDERATION, replace(claim, version=2)))


@pytest.mark.parametrize(
    ("state", "author", "advert", "well"),
    [
        ("alive", "peer001", True, True),
        ("left", "peer001", True, True),
        ("dead", "peer002", False, True),
        ("alive", "peer002", True, False),
        ("alive", "peer001", False, False),
        ("dead", "peer001", False, False),
        ("suspect", "peer002", True, False),
    ],
)
def test_who_may_say_what(state: str, author: str, advert: bool, well: bool) -> None:
    own = a_claim("peer001", "alive", author="peer001").advert
    claim = replace(a_claim("peer001", state, author=author), advert=own if advert else None)
    assert well_formed(claim) is well


# -------------------------------------------------------------------------------------------------------------- waits


@given(st.floats(0, 1), st.integers(1, 20))
def test_the_stretch_makes_an_answer_as_likely_as_on_a_good_network(unanswered: float, tries: int) -> None:
    stretch = Awareness(unanswered=unanswered).stretch
    assert 1 <= stretch <= 4
    if unanswered <= UNANSWERED_FREE:
        assert stretch == 1
    elif unanswered <= 0.7:
        assert math.isclose(unanswered ** (tries * stretch), UNANSWERED_FREE**tries)


def test_the_share_of_unanswered_pings_is_measured() -> None:
    awareness = Awareness()
    for i in range(400):
        awareness = awareness.sampled(lost=i % 2 == 0)
    assert awareness.unanswered == pytest.approx(0.5, abs=0.02)


def test_health_stays_within_its_bounds() -> None:
    assert Awareness().worse(-3).patience == 1
    assert Awareness().worse(100).patience == HEALTH_MAX + 1
    assert Awareness(health=2).worse(-1) == Awareness(health=1)


def test_a_suspicion_shrinks_with_the_logarithm_of_its_confirmations() -> None:
    timing = ProbeTiming(suspicion_min=30, suspicion_max=60, confirmations=3)
    assert suspicion_wait(timing, 1.0, 0, 10) == 60
    assert suspicion_wait(timing, 1.0, 1, 10) == pytest.approx(60 - 30 * math.log(2) / math.log(4))
    assert suspicion_wait(timing, 1.0, 3, 10) == suspicion_wait(timing, 1.0, 9, 10) == 30
    assert suspicion_wait(timing, 1.0, 1, 1) == 30, "nobody else is there"
    assert suspicion_wait(timing, 1.0, 0, 0) == 30
    assert suspicion_wait(timing, 2.0, 3, 10) == 60


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30))
def test_waits_follow_how_long_answers_take(took: list[int]) -> None:
    trips, clock = RoundTrips(), 0
    for number, ticks in enumerate(took):
        trips.sent(number, "peer002", clock)
        clock += ticks
        assert trips.answered(number, "peer002", clock)
        assert not trips.answered(number, "peer002", clock), "once"
    assert 1 <= trips.slowness("peer002", 8) <= GROWTH_MAX
    assert min(took) <= trips.mean["peer002"] <= max(took)
    if max(took) <= 4:  # a deviation is also below the largest time
        assert trips.slowness("peer002", 8) == 1
    if min(took) > 12:
        assert trips.slowness("peer002", 8) > 1
    assert trips.slowness("peer003", 8) == 1, "of whom nothing is known"


def test_an_answer_counts_for_its_own_ping_and_from_whom_it_went_to() -> None:
    trips = RoundTrips()
    trips.sent(1, "peer002", 0)
    trips.sent(2, "peer002", 30)
    assert not trips.answered(2, "peer003", 40), "a liar makes nobody else quick or slow"
    assert trips.answered(1, "peer002", 40), "nobody waits for it any more, and it tells how slow the link is"
    assert trips.mean["peer002"] == 40
    for number in range(3, 3 * KEPT_MAX):
        trips.sent(number, "peer002", 50)
    assert len(trips.under_way) <= KEPT_MAX
    trips.sent(4 * KEPT_MAX, "peer002", 50 + KEPT_TICKS + 1)
    assert len(trips.under_way) == 1


# -------------------------------------------------------------------------------------------------------------- table


def member_table(peers: int) -> MemberTable:
    table = MemberTable("peer001", FEDERATION, verify, confirmations=2)
    table.set_roster(ids(peers))
    table.put(MemberRecord(a_claim("peer001", "alive", author="peer001")), urgent=True)
    return table


def test_news_is_told_a_bounded_number_of_times_and_the_least_told_first() -> None:
    table = member_table(16)
    for peer in ids(16)[2:]:
        table.take(a_claim(peer, "alive", author=peer))
    told = [table.choose("peer002") for _ in range(200)]
    assert all(len(claims) == len(set(claims)) <= CLAIMS_MAX for claims in told)
    assert len({claim for claims in told[:2] for claim in claims}) >= 15, "nobody waits for a second telling of others"
    assert not table.urgent
    assert len(told[-1]) == 2, "then only what fills up"


def test_what_is_no_longer_held_is_not_told() -> None:
    """No statement is sent after a later one, and no claim about a peer that has left the roster."""
    table = member_table(16)
    first, later = (a_claim("peer002", "alive", author="peer002", version=version) for version in (1, 2))
    for claim in (first, later, a_claim("peer009", "alive", author="peer009")):
        table.take(claim)
    table.set_roster([peer for peer in ids(16) if peer != "peer009"])
    told = {claim for _ in range(50) for claim in table.choose("peer003")}
    assert {(claim.about, claim.version) for claim in told} == {("peer001", 1), ("peer002", 2)}
    assert not table.urgent


def test_only_so_many_suspicions_of_one_peer_are_kept() -> None:
    table = member_table(16)
    table.take(a_claim("peer002", "alive", author="peer002"))
    taken = [table.take(a_claim("peer002", "suspect", author=author)) for author in ids(16)[2:8]]
    assert taken == ["new", "new", "new", "known", "known", "known"]
    assert table.take(a_claim("peer002", "dead", author="peer009")) == "known"
    assert table.take(a_claim("peer002", "dead", author="peer004")) == "new", "who suspected may be sure by now"
    standings = [table["peer002"].status]
    assert table.find(a_claim("peer002", "dead", author="peer001"))
    assert [claim.state for claim in table["peer002"].claims] == ["alive", "dead", "suspect", "suspect", "dead"]
    assert [*standings, table["peer002"].status] == ["suspect", "dead"], "dead is who this peer itself finds dead"


def test_a_verdict_of_its_own_is_found_and_not_told() -> None:
    """A verdict of its own that comes back from others may be from an earlier generation."""
    table = member_table(16)
    table.take(a_claim("peer002", "alive", author="peer002"))
    assert table.take(a_claim("peer002", "dead", author="peer001")) == "known"
    assert table["peer002"].status == "alive"


def test_marks_fade_and_who_has_too_many_is_not_believed() -> None:
    credit = Credit()
    for _ in range(3):
        assert credit.believes("peer002", 0)
        credit.refuted("peer002", 0)
    assert not credit.believes("peer002", 0)
    assert credit.believes("peer002", 0, stretch=1.5), "where many answers are lost"
    assert credit.of("peer002", HALF_TICKS) == pytest.approx(1.5)
    assert credit.believes("peer002", HALF_TICKS)
    believed = 0
    for clock in range(10 * HALF_TICKS):  # peer003 never stops
        if credit.believes("peer003", clock):
            believed += 1
            credit.refuted("peer003", clock)
    assert believed == pytest.approx(MARKS_MAX + 10 / math.log2(4 / 3), abs=2)


def test_a_verdict_travels_with_the_statement_that_it_is_about() -> None:
    table = member_table(8)
    table.take(a_claim("peer002", "alive", author="peer002"))
    for _ in range(50):
        table.choose("peer003")
    table.take(a_claim("peer002", "dead", author="peer004"))
    assert [claim.state for claim in table.choose("peer003")[:2]] == ["alive", "dead"]


def test_the_accused_hears_it_first_and_a_newcomer_hears_everything() -> None:
    table = member_table(8)
    for peer in ids(8)[1:]:
        table.take(a_claim(peer, "alive", author=peer))
    table.take(a_claim("peer005", "suspect", author="peer004"))
    assert table.choose("peer005")[0].state == "suspect"
    for _ in range(50):
        table.choose("peer003")
    told = table.choose("peer008", newcomer=True)
    assert told[0].about == "peer001"
    assert {claim.about for claim in told} >= set(ids(8)[:5]) or len(told) == CLAIMS_MAX
    assert sum(map(claim_bytes, told)) <= 3_500
