"""One `Membership` driven by hand: wrong, old or forged claims, its own answers, and the state that a flood leaves."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from functools import lru_cache
from typing import Any

import msgpack
import numpy as np
import pytest

from fedpeer.gossip.awareness import ProbeTiming, suspicion_wait
from fedpeer.gossip.claims import claim_bytes
from fedpeer.gossip.detector import RELAYS_MAX
from fedpeer.gossip.membership import (
    Claim,
    MemberChange,
    Membership,
    MembershipEffect,
    OtherSelf,
    SendProbe,
    claim_text,
)
from fedpeer.rejection import Rejection
from tests.gossip.swim import FEDERATION, a_claim, advert, ids, signature, verify


def machine(peers: int = 4, *, generation: int = 1, nonce: int = 5, incarnation: int = 1) -> Membership:
    """Return the state machine of peer001, one of a few peers, to be driven by hand."""
    return Membership(
        "peer001",
        federation=FEDERATION,
        roster=ids(peers),
        incarnation=incarnation,
        advert=advert("peer001", generation, nonce=nonce),
        draws=np.random.default_rng(0),
        sign=lambda text: signature("peer001", text),
        verify=lru_cache(verify),
    )


#: Ticks after which a death cannot be hidden any more, in a federation of four.
HIDDEN = 320


def tell(peer: Membership, *claims: Claim, sender: str = "peer002") -> list[MembershipEffect]:
    """Send the peer a ping with these claims; return its output without the pong."""
    *out, pong = peer.on_ping(sender, 7, claims)
    assert isinstance(pong, SendProbe)
    assert (pong.to, pong.kind, pong.number, pong.target, pong.received) == (sender, "pong", 7, "peer001", True)
    return out


def refusals(out: list[MembershipEffect]) -> list[str]:
    assert all(isinstance(item, Rejection) for item in out), "nothing but refusals"
    return [item.code for item in out if isinstance(item, Rejection)]


def view(peer: Membership) -> object:
    return peer.statement, [(other, peer.status(other), peer.last_statement(other)) for other in ids(4)]


def tampered() -> dict[str, Claim]:
    good = a_claim("peer003", "alive", author="peer003", version=5)
    verdict = a_claim("peer003", "suspect", author="peer002", version=4)
    told = good.advert
    assert told is not None
    flipped = bytes([good.signature[0] ^ 1]) + good.signature[1:]
    return {
        "signature, one bit": replace(good, signature=flipped),
        "no signature": replace(good, signature=b""),
        "another's signature": replace(good, signature=signature("peer002", b"")),
        "version": replace(good, version=6),
        "incarnation": replace(good, incarnation=2),
        "state": replace(good, state="left"),
        "about": replace(good, about="peer004", author="peer004"),
        "address": replace(good, advert=replace(told, address="evil:1")),
        "score": replace(good, advert=replace(told, score=0.0)),
        "models": replace(good, advert=replace(told, models=("every", "one"))),
        "another author": replace(verdict, author="peer004"),
        "a suspicion made a death": replace(verdict, state="dead"),
        "a statement by another": replace(a_claim("peer003", "alive", author="peer003"), author="peer002"),
        "a verdict by oneself": a_claim("peer003", "dead", author="peer003", version=4),
    }


@pytest.mark.parametrize("change", tampered())
def test_a_claim_changed_by_a_bit_is_a_bad_signature_and_changes_nothing(change: str) -> None:  # E07
    peer = machine()
    tell(peer, a_claim("peer003", "alive", author="peer003", version=4))
    before = view(peer)
    assert refusals(tell(peer, tampered()[change])) == ["bad_signature"]
    assert view(peer) == before


def test_a_claim_of_another_federation_is_a_bad_signature() -> None:
    peer = machine()
    foreign = replace(a_claim("peer003", "alive", author="peer003"), signature=signature("peer003", b"elsewhere"))
    assert refusals(tell(peer, foreign)) == ["bad_signature"]


def test_claims_about_or_by_strangers() -> None:
    peer = machine()
    tell(peer, a_claim("peer003", "alive", author="peer003"))
    before = view(peer)
    assert refusals(tell(peer, a_claim("stranger", "alive", author="stranger"))) == ["unknown_peer"]  # R03
    assert refusals(tell(peer, a_claim("peer003", "dead", author="stranger"))) == ["unknown_peer"]
    assert refusals(tell(peer, a_claim("peer001", "dead", author="stranger"))) == ["unknown_peer"]
    for out in (
        peer.on_ping("stranger", 1, ()),
        peer.on_ping_request("stranger", 1, "peer002", ()),
        peer.on_ping_request("peer002", 1, "stranger", ()),
        peer.on_pong("stranger", 1, "stranger", True, ()),
    ):
        assert refusals(out) == ["unknown_peer"]
    assert view(peer) == before


def test_a_replay_is_nothing_new_and_an_old_death_is_stale() -> None:
    peer = machine()
    old = a_claim("peer003", "alive", author="peer003", version=1)
    death = a_claim("peer003", "dead", author="peer002", version=1)
    assert tell(peer, old, death) == [MemberChange("peer003", "unknown", "suspect", "peer002")]
    new = a_claim("peer003", "alive", author="peer003", version=2)
    assert tell(peer, new) == [MemberChange("peer003", "suspect", "alive", "peer003")]
    before = view(peer)
    assert tell(peer, old) == []
    assert refusals(tell(peer, death)) == ["stale_incarnation"]  # R02
    assert tell(peer, new) == []
    assert view(peer) == before


def test_what_the_sender_knows_badly_is_put_right_in_the_answer() -> None:
    peer = machine()
    new = a_claim("peer003", "alive", author="peer003", version=2)
    tell(peer, new)
    *_, pong = peer.on_ping("peer002", 1, (a_claim("peer003", "alive", author="peer003", version=1),))
    assert isinstance(pong, SendProbe)
    assert pong.claims[0] == new


@pytest.mark.parametrize("state", ["suspect", "dead"])
def test_said_to_be_gone_a_peer_says_that_it_is_not(state: str) -> None:  # R01
    peer = machine()
    peer.tick(0)
    first = peer.statement
    assert refusals(tell(peer, a_claim("peer001", state, author="peer003"))) == ["refuted"]
    assert (peer.statement.version, peer.statement.state, peer.statement.advert) == (2, "alive", first.advert)
    assert verify("peer001", claim_text(FEDERATION, peer.statement), peer.statement.signature)
    *_, pong = peer.on_ping("peer003", 1, (a_claim("peer001", state, author="peer003"),))
    assert isinstance(pong, SendProbe)
    assert peer.statement in pong.claims
    assert peer.statement.version == 2, "once is enough"


def test_nobody_is_buried_under_a_number_that_it_never_used() -> None:
    """Otherwise a liar that claims a death with the largest number would leave the victim no number to answer with."""
    peer = machine()
    tell(peer, a_claim("peer003", "alive", author="peer003", version=5))
    for version, incarnation in ((6, 1), (2**63 - 1, 1), (1, 2)):
        assert tell(peer, a_claim("peer003", "dead", author="peer002", version=version, incarnation=incarnation)) == []
        assert tell(peer, a_claim("peer001", "dead", author="peer002", version=version, incarnation=incarnation)) == []
    assert peer.status("peer003") == "alive"
    assert peer.statement.version == 1


def test_order_of_claims_at_the_same_number() -> None:
    peer = machine()
    for state, after in (("alive", "alive"), ("suspect", "suspect"), ("dead", "suspect"), ("suspect", "suspect")):
        tell(peer, a_claim("peer003", state, author="peer003" if state == "alive" else "peer002", version=3))
        assert peer.status("peer003") == after
    tell(peer, a_claim("peer003", "finished", author="peer003", version=3))
    assert peer.status("peer003") == "finished"
    tell(peer, a_claim("peer003", "left", author="peer003", version=3))
    tell(peer, a_claim("peer003", "dead", author="peer002", version=3))
    tell(peer, a_claim("peer003", "alive", author="peer003", version=3))
    assert peer.status("peer003") == "left"
    tell(peer, a_claim("peer003", "alive", author="peer003", version=1, incarnation=2))
    assert peer.status("peer003") == "alive"


def test_two_processes_with_one_identity_the_later_incarnation_wins() -> None:  # E15
    earlier, later = machine(generation=1, nonce=9), machine(generation=2, nonce=1)
    theirs = later.statement
    assert tell(earlier, theirs) == [OtherSelf("duplicate", theirs)]
    assert tell(earlier, theirs) == [], "said once"
    assert earlier.statement.version == 1, "the earlier one does not fight"
    assert tell(later, earlier.statement) == []
    assert later.statement.version > earlier.statement.version
    assert (
        tell(machine(generation=2, nonce=1), a_claim("peer001", "alive", author="peer001", generation=2, nonce=2)) != []
    )
    assert (
        tell(machine(generation=2, nonce=3), a_claim("peer001", "alive", author="peer001", generation=2, nonce=2)) == []
    )


def test_a_later_incarnation_is_believed_before_it_knows_what_the_earlier_one_stated() -> None:  # E15
    peer = machine()
    for generation, nonce, version, known in (
        (1, 9, 60, (1, 9)),
        (2, 1, 1, (2, 1)),
        (2, 7, 1, (2, 7)),
        (1, 9, 61, (2, 7)),
    ):
        tell(peer, a_claim("peer003", "alive", author="peer003", version=version, generation=generation, nonce=nonce))
        statement = peer.last_statement("peer003")
        assert statement is not None
        assert statement.advert is not None
        assert (statement.advert.generation, statement.advert.nonce) == known


def test_memory_that_was_lost_unnoticed_is_named_and_a_new_incarnation_fences_it() -> None:
    peer = machine(generation=8)
    before = a_claim("peer001", "alive", author="peer001", incarnation=3, version=40, generation=7)
    assert tell(peer, before) == [OtherSelf("forgotten", before)]
    peer.advertise(advert("peer001", 8), incarnation=4)
    assert peer.statement.number == (4, 1)
    assert tell(peer, before) == []


def test_messages_fit_into_the_metadata_whatever_peers_advertise() -> None:
    """Names are the longest that a statement takes, and each dead peer has two claims: a statement and a verdict."""
    peer = machine(peers=40)
    told: dict[str, Any] = {"models": tuple(f"{'m' * 90}{i}" for i in range(25)), "address": "a" * 200}
    for other in ids(40)[1:]:
        by = "peer002" if other != "peer002" else "peer003"
        tell(peer, a_claim(other, "alive", author=other, **told), a_claim(other, "dead", author=by))
    full = 0
    for other in ids(40)[1:]:
        *_, pong = peer.on_ping(other, 1, ())
        assert isinstance(pong, SendProbe)
        packed = sum(len(msgpack.packb(astuple(claim))) for claim in pong.claims)
        assert packed <= sum(map(claim_bytes, pong.claims)) <= 3_500
        full = max(full, packed)
    assert full > 2_500
    assert all(peer.status(other) == "suspect" for other in ids(40)[1:])


def test_who_is_put_out_of_the_roster_is_not_answered_any_more() -> None:
    peer = machine()
    peer.tick(0)
    peer.on_ping_request("peer002", 1, "peer003", ())
    peer.on_ping_request("peer003", 2, "peer002", ())
    assert peer.set_roster(("peer001", "peer004")) == []
    for now in range(1, 100):
        assert all(out.to == "peer004" for out in peer.tick(now) if isinstance(out, SendProbe))


@pytest.mark.parametrize("verdict", ["suspect", "dead"])
@pytest.mark.parametrize("answers", [False, True])
def test_what_others_find_is_checked_and_confirmed_which_shortens_it(answers: bool, verdict: str) -> None:
    """A peer that answers this peer itself is not dead, whether others suspect it or are sure of its death."""
    peer = machine(peers=5)
    peer.tick(0)
    tell(peer, *(a_claim(other, "alive", author=other) for other in ids(5)[1:]))
    (change,) = tell(peer, doubt := a_claim("peer003", verdict, author="peer002"))
    assert change == MemberChange("peer003", "alive", "suspect", "peer002")
    ours = a_claim("peer003", "suspect", author="peer001")
    told: set[Claim] = set()
    dead_at = 0
    for now in range(1, 80):
        for out in peer.tick(now):
            if not dead_at and isinstance(out, SendProbe) and (out.to, out.kind) == ("peer003", "ping"):
                assert out.claims[0] in (doubt, ours), "the suspect hears what it has to answer"
                if answers:
                    peer.on_pong("peer003", out.number, "peer003", True, ())
            elif isinstance(out, SendProbe):
                told |= set(out.claims)
            elif isinstance(out, MemberChange) and (out.peer, out.after) == ("peer003", "dead"):
                dead_at = now
    assert (ours in told) is not answers
    assert dead_at == (0 if answers else 1 + math.ceil(suspicion_wait(ProbeTiming(), 1.0, 1, 3)))


def test_whoever_is_heard_is_not_dead_even_if_it_answers_no_ping() -> None:
    peer = machine(peers=5)
    peer.tick(0)
    tell(peer, *(a_claim(other, "alive", author=other) for other in ids(5)[1:]))
    tell(peer, a_claim("peer003", "dead", author="peer002"), a_claim("peer003", "dead", author="peer004"))
    for now in range(1, 400):
        if now % 10 == 0:
            peer.received("peer003")
        assert all(
            out.after != "dead" for out in peer.tick(now) if isinstance(out, MemberChange) and out.peer == "peer003"
        )
    assert peer.status("peer003") == "suspect"


def test_whoever_is_heard_after_it_was_found_dead_is_alive_at_once_and_nobody_lied() -> None:
    """Nobody waits until it has heard of the verdict and refuted it: both messages may be late by seconds.

    A peer that had found the same is believed afterwards: this peer could not reach the accused either.
    """
    peer, now = machine(peers=5), 0
    tell(peer, *(a_claim(other, "alive", author=other) for other in ids(5)[1:]))
    for version in range(1, 31):  # more marks than are forgiven on a bad network
        tell(peer, a_claim("peer003", "alive", author="peer003", version=version))
        found = tell(peer, a_claim("peer003", "dead", author="peer002", version=version))
        assert not any(isinstance(item, Rejection) for item in found), "peer002 is believed"
        while peer.status("peer003") != "dead":
            now += 1
            for other in ("peer002", "peer004", "peer005"):
                peer.received(other)
            peer.tick(now)
        assert peer.received("peer003") == [MemberChange("peer003", "dead", "alive", "peer003")]
        assert peer.received("peer003") == []
        assert "peer003" in peer.living
        tell(peer, a_claim("peer003", "dead", author="peer002", version=version))  # it is still on its way
        told = peer.on_ping("peer003", 1, ())
        claims = [claim for item in told if isinstance(item, SendProbe) for claim in item.claims]
        assert peer.statement in claims, "it may have missed much"
        assert not any(claim.state == "dead" and claim.author == peer.me for claim in claims), "and no verdict is left"


def test_whose_verdicts_are_refuted_is_not_believed_for_a_while() -> None:  # R18
    peer = machine(peers=5)
    peer.tick(0)
    for version in range(1, 9):
        tell(peer, a_claim("peer003", "alive", author="peer003", version=version))
        believed = version <= 3
        told = tell(peer, a_claim("peer003", "dead", author="peer002", version=version))
        assert ([item.code for item in told if isinstance(item, Rejection)] == ["false_accuser"]) is not believed
        assert (peer.status("peer003") == "suspect") is believed
    assert tell(peer, a_claim("peer003", "suspect", author="peer004", version=8)) != [], "others are believed"


def test_a_helper_that_vouches_for_the_dead_hides_no_death() -> None:
    """If helpers differ, the word of one counts only if a message of the target itself arrived recently."""
    peer = machine(peers=4)
    peer.tick(0)
    tell(peer, *(a_claim(other, "alive", author=other) for other in ids(4)[1:]))
    vouched = 0
    for now in range(1, HIDDEN):
        for out in peer.tick(now):
            if isinstance(out, SendProbe) and out.to in ("peer003", "peer004") and out.kind != "pong":
                by_request = out.kind == "ping-request"
                vouched += by_request
                peer.on_pong(out.to, out.number, out.target, out.to == "peer003" or not by_request, ())
    assert vouched > 3
    assert peer.status("peer002") == "dead"
    assert peer.status("peer003") == "alive"


def test_a_verdict_before_a_restart_was_no_lie() -> None:
    peer = machine(peers=5)
    peer.tick(0)
    for generation in range(1, 9):
        tell(peer, a_claim("peer003", "alive", author="peer003", version=generation, generation=generation))
        tell(peer, a_claim("peer003", "dead", author="peer002", version=generation))
        assert peer.status("peer003") == "suspect"


def test_accused_without_end_a_peer_answers_and_does_not_think_itself_slow() -> None:
    peer = machine(peers=5)
    peer.tick(0)
    for _ in range(50):
        accused = a_claim("peer001", "dead", author="peer002", version=peer.statement.version)
        assert refusals(tell(peer, accused)) == ["refuted"]
    assert peer.statement.version == 51
    assert peer.awareness.health == 3


def test_a_flood_of_requests_keeps_a_bounded_number_of_pings_under_way() -> None:
    peer = machine()
    peer.tick(0)
    pings = [item for n in range(500) for item in peer.on_ping_request("peer002", n, "peer003", ())]
    assert len(pings) == RELAYS_MAX
    nacks = [
        item for now in range(1, 9) for item in peer.tick(now) if isinstance(item, SendProbe) and item.kind == "pong"
    ]
    assert [(nack.to, nack.number, nack.target, nack.received) for nack in nacks] == [
        ("peer002", n, "peer003", False) for n in range(RELAYS_MAX)
    ]


def test_a_helper_passes_an_answer_on_and_only_the_targets_own() -> None:
    peer = machine()
    (ping,) = peer.on_ping_request("peer002", 77, "peer003", ())
    assert isinstance(ping, SendProbe)
    assert (ping.to, ping.kind) == ("peer003", "ping")
    assert peer.on_pong("peer004", ping.number, "peer003", True, ()) == []
    (answer,) = peer.on_pong("peer003", ping.number, "peer003", True, ())
    assert isinstance(answer, SendProbe)
    assert (answer.to, answer.number, answer.target, answer.received) == ("peer002", 77, "peer003", True)
