"""Membership judged by its history: who is found dead and when, who is wrongly buried, what heals, what is refused."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from functools import lru_cache
from typing import Any

import msgpack
import numpy as np
import pytest

from fedpeer.gossip.awareness import Awareness, Timing, suspicion_wait
from fedpeer.gossip.claims import State, claim_bytes
from fedpeer.gossip.detector import RELAYS_MAX
from fedpeer.gossip.membership import Change, Claim, Membership, OtherSelf, Out, Refusal, Say, claim_text
from tests.gossip.swim import (
    FEDERATION,
    World,
    a_claim,
    advert,
    burials,
    detection,
    ids,
    settled,
    signature,
    verify,
)

#: Promise P8, in ticks: a death is known to all; a false one is taken back.
KNOWN = 100
REFUTED = 200


# ------------------------------------------------------------------------------------------------ finding the dead (P8)


@pytest.mark.parametrize(("count", "loss", "seeds"), [(2, 0.1, 30), (3, 0.1, 20), (5, 0.0, 10), (5, 0.1, 20)])
def test_a_killed_peer_is_soon_known_to_all(count: int, loss: float, seeds: int) -> None:
    late = {seed: ticks for seed in range(seeds) if (ticks := detection(count, seed, loss)) > KNOWN}
    assert not late, "seed: ticks"


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_a_killed_peer_is_soon_known_to_all_of_sixteen(loss: float) -> None:
    late = {seed: ticks for seed in range(4) if (ticks := detection(16, seed, loss)) > KNOWN}
    assert not late, "seed: ticks"


@pytest.mark.slow
@pytest.mark.parametrize(("count", "seeds"), [(2, 150), (4, 150), (8, 60), (16, 40)])
def test_a_killed_peer_is_soon_known_to_all_over_many_seeds(count: int, seeds: int) -> None:
    late = {seed: ticks for seed in range(seeds) if (ticks := detection(count, seed, 0.1)) > KNOWN}
    assert not late, "seed: ticks"


def test_a_third_of_all_killed_at_once() -> None:
    world = settled(12, seed=3, loss=0.1)
    world.kill(*(killed := world.roster[2:6]))
    assert world.run(2 * KNOWN, lambda: all(world.all_hold(peer, "dead") for peer in killed))
    assert {c.peer for _, _, c in world.history if c.after == "dead"} == set(killed)


@pytest.mark.parametrize(("count", "seeds"), [(2, 4), (5, 3), (16, 1)])
def test_nobody_is_buried_alive_at_ten_percent_loss(count: int, seeds: int) -> None:
    for seed in range(seeds):
        world = settled(count, seed, loss=0.1, repeat=0.1)
        world.run(3_000)
        assert burials(world) == [], f"replay with seed={seed}"


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 5, 16])
def test_nobody_is_buried_alive_at_ten_percent_loss_over_many_seeds(count: int) -> None:
    for seed in range(30 if count < 16 else 10):
        world = settled(count, seed, loss=0.1, repeat=0.1)
        world.run(3_000)
        assert burials(world) == [], f"replay with seed={seed}"


def suspicions_at_thirty_percent(seeds: int, *, timing: Timing | None = None, count: int = 5) -> tuple[int, list[int]]:
    """(how often somebody had to defend itself, how long burials of the living lasted) in 2,000 ticks a seed."""
    defended, lasted = 0, []
    for seed in range(seeds):
        world = settled(count, seed, loss=0.3, timing=timing or Timing())
        world.run(2_000)
        defended += sum(refusal.code == "refuted" for _, _, refusal in world.refusals)
        lasted += burials(world)
    return defended, lasted


#: Of 8 seeds; about 200 with the stretch, 300 without.
DEFENDED = 260


def test_at_thirty_percent_loss_few_are_suspected_and_false_deaths_are_taken_back() -> None:
    defended, lasted = suspicions_at_thirty_percent(8)
    assert defended < DEFENDED
    assert max(lasted, default=0) <= REFUTED


def test_without_the_stretch_the_test_above_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Awareness, "stretch", 1.0)
    assert suspicions_at_thirty_percent(8)[0] > DEFENDED


def test_with_a_short_suspicion_the_living_are_buried_and_dig_themselves_out() -> None:
    """The sabotage of the tests above, and the proof that false deaths are taken back: without it there are none."""
    _, lasted = suspicions_at_thirty_percent(2, timing=Timing(suspicion_min=3, suspicion_max=3))
    assert len(lasted) > 10
    assert max(lasted) <= REFUTED


@pytest.mark.slow
def test_at_thirty_percent_loss_over_many_seeds() -> None:
    for count, seeds in ((2, 30), (5, 30), (16, 5)):
        assert max(suspicions_at_thirty_percent(seeds, count=count)[1], default=0) <= REFUTED


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
def test_sixty_four_peers_find_one_another_and_a_death(loss: float) -> None:
    assert detection(64, seed=1, loss=loss) <= 2 * KNOWN


def test_few_messages_when_nothing_happens() -> None:
    world = settled(16, seed=0)
    world.run(100)  # the news of the start is told
    world.sent.clear()
    world.run(1_000)
    assert world.sent.total() / 1_000 / 16 <= 0.21, "a ping and a pong each ten ticks"


def test_nobody_goes_unprobed_by_chance() -> None:
    world = settled(16, seed=0)
    world.run(100)
    last = dict.fromkeys(world.roster, world.now)
    for _ in range(600):
        for when, _, _, to, say in world.under_way:
            if say.kind == "ping":
                last[to] = max(last[to], when)
        world.run(1)
        assert world.now - min(last.values()) <= 2 * world.timing.probe + world.delay


# ------------------------------------------------------------------------------------------- what heals without a hand


@pytest.mark.parametrize("seed", range(3))
def test_a_peer_paused_for_half_a_minute_comes_back_and_blames_nobody(seed: int) -> None:
    world = settled(8, seed)
    world.run(100)
    world.paused.add("peer003")
    assert world.run(KNOWN + 20, lambda: world.all_hold("peer003", "dead"))
    world.run(1_100)
    world.history.clear()
    world.resume("peer003")
    assert world.run(REFUTED, world.all_alive), f"replay with seed={seed}"
    world.run(300)
    blamed = [change for _, _, change in world.history if change.after in ("suspect", "dead")]
    assert [change for change in blamed if change.reason == "peer003"] == []


def test_a_machine_that_counts_a_pause_blames_others() -> None:
    """The sabotage of the test above."""
    world = settled(8, seed=0, timing=Timing(pause=1_000_000))
    world.paused.add("peer003")
    world.run(1_200)
    world.history.clear()
    world.paused.discard("peer003")  # its sockets are empty
    world.run(100)
    assert any(change.reason == "peer003" and change.after == "suspect" for _, _, change in world.history)


def blamed_by_a_slow_peer() -> int:
    """How often a peer whose messages take 1.5 s each way found another one suspect or dead, in 1,000 ticks."""
    world = settled(8, seed=0)
    world.slow["peer003"] = 60
    world.run(1_000)
    assert all(machine.awareness.health == 0 for peer, machine in world.peers.items() if peer != "peer003")
    findings = [change for _, by, change in world.history if by == change.reason == "peer003"]
    return sum(change.after in ("suspect", "dead") for change in findings)


def test_a_slow_peer_learns_that_it_is_slow_and_blames_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lifeguard's health: the helpers' nacks are missing too, so the fault is its own. Without health it blames all."""
    assert blamed_by_a_slow_peer() <= 10
    monkeypatch.setattr(Awareness, "patience", 1)
    assert blamed_by_a_slow_peer() > 50


def test_answers_after_half_a_second_are_late_but_count() -> None:
    world = settled(8, seed=0)
    world.slow["peer003"] = 8
    world.run(1_500)
    assert burials(world) == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("small", [1, 4])  # one alone thinks for a while that the fault is its own, and it is right
def test_a_partition_heals_with_no_restart(seed: int, small: int) -> None:
    world = settled(9, seed, loss=0.1)
    island = set(world.roster[:small])
    world.cut = lambda a, b: (a in island) != (b in island)
    world.run(500)
    for peer, machine in world.peers.items():
        for other in world.roster:
            if other != peer and not (small == 1 and peer in island):
                assert (machine.standing(other) == "dead") is ((peer in island) != (other in island))
    world.cut = lambda a, b: False
    assert world.run(400, world.all_alive), f"replay with seed={seed}"


def test_an_edge_cut_in_one_direction_buries_nobody() -> None:
    world = settled(6, seed=0)
    world.cut = lambda a, b: (a, b) == ("peer001", "peer002")
    world.run(2_000)
    assert burials(world) == []


@pytest.mark.parametrize("after", [5, 300])
@pytest.mark.parametrize("incarnation", [1, 2])
def test_a_restarted_peer_outdoes_what_it_said_before_and_what_is_said_of_it(after: int, incarnation: int) -> None:
    world = settled(6, seed=1, loss=0.1)
    for round in range(1, 6):  # versions that the next life does not know
        world.peers["peer004"].advertise(advert("peer004", round=round, address=f"host{round}:1"))
        world.run(10)
    world.kill("peer004")
    world.run(after)
    world.start("peer004", incarnation)

    def back() -> bool:
        said = [m.last_statement("peer004") for peer, m in world.peers.items() if peer != "peer004"]
        lives = [s.advert.life if s and s.advert else 0 for s in said]
        return lives == [2] * 5 and world.all_alive()

    assert world.run(REFUTED, back)
    assert not world.others, "one process after another is not two at a time"


def test_everybody_hears_what_a_peer_tells_of_itself_but_not_each_word() -> None:
    world = settled(16, seed=0)
    world.run(100)
    teller = world.peers["peer001"]
    first = teller.statement.version
    for round in range(1, 400):
        teller.advertise(advert("peer001", round=round))
        world.run(1)
    assert 4 <= teller.statement.version - first <= 400 // 64 + 1
    assert world.run(2 * 64 + 200, lambda: all(round_of(m, "peer001") == 399 for m in world.peers.values()))


def round_of(machine: Membership, peer: str) -> int:
    said = machine.last_statement(peer)
    assert said is not None
    assert said.advert is not None
    return said.advert.round


@pytest.mark.parametrize("state", ["finished", "left"])
def test_who_says_goodbye_is_not_missed(state: State) -> None:
    world = settled(6, seed=2, loss=0.1)
    world.peers["peer002"].advertise(advert("peer002"), state=state)  # type: ignore[arg-type]
    assert world.run(60, lambda: world.all_hold("peer002", state))
    world.kill("peer002")
    world.run(500)
    assert world.all_hold("peer002", state)
    world.start("peer002")
    assert world.run(REFUTED, world.all_alive)


def test_a_newcomer_to_the_roster_and_one_who_is_put_out() -> None:
    world = settled(5, seed=0)
    world.roster = (*world.roster[1:], "peer900")
    world.kill("peer001")
    for machine in world.peers.values():
        (change,) = machine.set_roster(world.roster)
        assert change == Change("peer001", "alive", "unknown", "roster")
        assert machine.standing("peer900") == "unknown"
    world.start("peer900")
    assert world.run(100, world.all_alive)


def test_alone_and_never_heard() -> None:
    world = World(1, seed=0)
    world.run(500)
    assert world.sent.total() == 0
    world = World(4, seed=0)
    world.kill("peer002", "peer003", "peer004")
    world.run(2_000)
    assert world.peers["peer001"].standing("peer002") == "unknown", "who was never heard is not dead"
    assert world.sent["peer001"] < 2_000 / 40 + 30, "a ping now and then"
    world.start("peer003")
    assert world.run(50, world.all_alive)


def test_the_same_seed_gives_the_same_history() -> None:
    first, again = (settled(6, seed=9, loss=0.3, repeat=0.3) for _ in range(2))
    for world in (first, again):
        world.run(500)
    assert first.history == again.history
    assert first.sent == again.sent


@pytest.mark.parametrize(("loss", "share"), [(0.0, 0.0), (0.1, 0.19), (0.3, 0.51)])
def test_peers_measure_the_loss(loss: float, share: float) -> None:
    """1 - (1 - loss) ** 2 of the pings have no answer; the mean over 8 peers of some 64 samples each."""
    world = settled(8, seed=0, loss=loss)
    world.run(1_500)
    measured = [machine.awareness.unanswered for machine in world.peers.values()]
    assert np.mean(measured) == pytest.approx(share, abs=0.06)


# ------------------------------------------------------------------------------- claims that are wrong, old or forged


def machine(peers: int = 4, *, life: int = 1, nonce: int = 5, incarnation: int = 1) -> Membership:
    """peer001 of a few, to be spoken to by hand."""
    return Membership(
        "peer001",
        federation=FEDERATION,
        roster=ids(peers),
        incarnation=incarnation,
        advert=advert("peer001", life, nonce=nonce),
        draws=np.random.default_rng(0),
        sign=lambda text: signature("peer001", text),
        verify=lru_cache(verify),
    )


def tell(peer: Membership, *claims: Claim, sender: str = "peer002") -> list[Out]:
    """What a ping with these claims brings, without the pong."""
    *out, pong = peer.heard_ping(sender, 7, claims)
    assert isinstance(pong, Say)
    assert (pong.to, pong.kind, pong.number, pong.target, pong.heard) == (sender, "pong", 7, "peer001", True)
    return out


def refusals(out: list[Out]) -> list[str]:
    assert all(isinstance(item, Refusal) for item in out), "nothing but refusals"
    return [item.code for item in out if isinstance(item, Refusal)]


def view(peer: Membership) -> object:
    return peer.statement, [(other, peer.standing(other), peer.last_statement(other)) for other in ids(4)]


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
def test_a_claim_changed_by_a_bit_is_a_bad_signature_and_changes_nothing(change: str) -> None:
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
        peer.heard_ping("stranger", 1, ()),
        peer.heard_ping_request("stranger", 1, "peer002", ()),
        peer.heard_ping_request("peer002", 1, "stranger", ()),
        peer.heard_pong("stranger", 1, "stranger", True, ()),
    ):
        assert refusals(out) == ["unknown_peer"]
    assert view(peer) == before


def test_a_replay_is_nothing_new_and_an_old_death_is_stale() -> None:
    peer = machine()
    old = a_claim("peer003", "alive", author="peer003", version=1)
    death = a_claim("peer003", "dead", author="peer002", version=1)
    assert tell(peer, old, death) == [Change("peer003", "unknown", "dead", "peer002")]
    new = a_claim("peer003", "alive", author="peer003", version=2)
    assert tell(peer, new) == [Change("peer003", "dead", "alive", "peer003")]
    before = view(peer)
    assert tell(peer, old) == []
    assert refusals(tell(peer, death)) == ["stale_incarnation"]  # R02
    assert tell(peer, new) == []
    assert view(peer) == before


def test_what_the_sender_knows_badly_is_put_right_in_the_answer() -> None:
    peer = machine()
    new = a_claim("peer003", "alive", author="peer003", version=2)
    tell(peer, new)
    *_, pong = peer.heard_ping("peer002", 1, (a_claim("peer003", "alive", author="peer003", version=1),))
    assert isinstance(pong, Say)
    assert pong.claims[0] == new


@pytest.mark.parametrize("state", ["suspect", "dead"])
def test_said_to_be_gone_a_peer_says_that_it_is_not(state: str) -> None:  # R01
    peer = machine()
    peer.tick(0)
    first = peer.statement
    assert refusals(tell(peer, a_claim("peer001", state, author="peer003"))) == ["refuted"]
    assert (peer.statement.version, peer.statement.state, peer.statement.advert) == (2, "alive", first.advert)
    assert verify("peer001", claim_text(FEDERATION, peer.statement), peer.statement.signature)
    *_, pong = peer.heard_ping("peer003", 1, (a_claim("peer001", state, author="peer003"),))
    assert isinstance(pong, Say)
    assert peer.statement in pong.claims
    assert peer.statement.version == 2, "once is enough"


def test_nobody_is_buried_under_a_number_that_it_never_used() -> None:
    """A liar who claims a death with the largest number would else leave no number to answer with."""
    peer = machine()
    tell(peer, a_claim("peer003", "alive", author="peer003", version=5))
    for version, incarnation in ((6, 1), (2**63 - 1, 1), (1, 2)):
        assert tell(peer, a_claim("peer003", "dead", author="peer002", version=version, incarnation=incarnation)) == []
        assert tell(peer, a_claim("peer001", "dead", author="peer002", version=version, incarnation=incarnation)) == []
    assert peer.standing("peer003") == "alive"
    assert peer.statement.version == 1


def test_order_of_claims_at_the_same_number() -> None:
    peer = machine()
    for state, after in (("alive", "alive"), ("suspect", "suspect"), ("dead", "dead"), ("suspect", "dead")):
        tell(peer, a_claim("peer003", state, author="peer003" if state == "alive" else "peer002", version=3))
        assert peer.standing("peer003") == after
    tell(peer, a_claim("peer003", "finished", author="peer003", version=3))
    assert peer.standing("peer003") == "finished"
    tell(peer, a_claim("peer003", "left", author="peer003", version=3))
    tell(peer, a_claim("peer003", "dead", author="peer002", version=3))
    tell(peer, a_claim("peer003", "alive", author="peer003", version=3))
    assert peer.standing("peer003") == "left"
    tell(peer, a_claim("peer003", "alive", author="peer003", version=1, incarnation=2))
    assert peer.standing("peer003") == "alive"


def test_two_processes_with_one_identity_the_later_life_wins() -> None:  # E15
    earlier, later = machine(life=1, nonce=9), machine(life=2, nonce=1)
    theirs = later.statement
    assert tell(earlier, theirs) == [OtherSelf("duplicate", theirs)]
    assert tell(earlier, theirs) == [], "said once"
    assert earlier.statement.version == 1, "the earlier one does not fight"
    assert tell(later, earlier.statement) == []
    assert later.statement.version > earlier.statement.version
    assert tell(machine(life=2, nonce=1), a_claim("peer001", "alive", author="peer001", life=2, nonce=2)) != []
    assert tell(machine(life=2, nonce=3), a_claim("peer001", "alive", author="peer001", life=2, nonce=2)) == []


def test_memory_that_was_lost_unnoticed_is_named_and_a_new_incarnation_fences_it() -> None:
    peer = machine(life=8)
    before = a_claim("peer001", "alive", author="peer001", incarnation=3, version=40, life=7)
    assert tell(peer, before) == [OtherSelf("forgotten", before)]
    peer.advertise(advert("peer001", 8), incarnation=4)
    assert peer.statement.number == (4, 1)
    assert tell(peer, before) == []


def test_messages_fit_into_the_metadata_whatever_peers_advertise() -> None:
    """With the longest names that a statement takes, and both halves of what is to be known of a dead peer."""
    peer = machine(peers=40)
    told: dict[str, Any] = {"models": tuple(f"{'m' * 90}{i}" for i in range(25)), "address": "a" * 200}
    for other in ids(40)[1:]:
        tell(peer, a_claim(other, "alive", author=other, **told), a_claim(other, "dead", author="peer001"))
    full = 0
    for other in ids(40)[1:]:
        *_, pong = peer.heard_ping(other, 1, ())
        assert isinstance(pong, Say)
        packed = sum(len(msgpack.packb(astuple(claim))) for claim in pong.claims)
        assert packed <= sum(map(claim_bytes, pong.claims)) <= 3_500
        full = max(full, packed)
    assert full > 2_500
    assert all(peer.standing(other) == "dead" for other in ids(40)[1:])


def test_who_is_put_out_of_the_roster_is_not_answered_any_more() -> None:
    peer = machine()
    peer.tick(0)
    peer.heard_ping_request("peer002", 1, "peer003", ())
    peer.heard_ping_request("peer003", 2, "peer002", ())
    assert peer.set_roster(("peer001", "peer004")) == []
    for now in range(1, 100):
        assert all(out.to == "peer004" for out in peer.tick(now) if isinstance(out, Say))


@pytest.mark.parametrize("answers", [False, True])
def test_a_suspicion_is_checked_and_confirmed_which_shortens_it(answers: bool) -> None:
    peer = machine(peers=5)
    peer.tick(0)
    tell(peer, *(a_claim(other, "alive", author=other) for other in ids(5)[1:]))
    (change,) = tell(peer, doubt := a_claim("peer003", "suspect", author="peer002"))
    assert change == Change("peer003", "alive", "suspect", "peer002")
    told: set[Claim] = set()
    dead_at = 0
    for now in range(1, 80):
        for out in peer.tick(now):
            if not dead_at and isinstance(out, Say) and (out.to, out.kind) == ("peer003", "ping"):
                assert out.claims[0] == doubt, "the suspect hears what it has to answer"
                if answers:
                    peer.heard_pong("peer003", out.number, "peer003", True, ())
            elif isinstance(out, Say):
                told |= set(out.claims)
            elif isinstance(out, Change) and (out.peer, out.after) == ("peer003", "dead"):
                dead_at = now
    ours = a_claim("peer003", "suspect", author="peer001")
    assert (ours in told) is not answers
    confirmed = 0 if answers else 1
    assert dead_at == math.ceil(suspicion_wait(Timing(), 1.0, confirmed, 3))


def test_a_flood_of_requests_keeps_a_bounded_number_of_pings_under_way() -> None:
    peer = machine()
    peer.tick(0)
    pings = [item for n in range(500) for item in peer.heard_ping_request("peer002", n, "peer003", ())]
    assert len(pings) == RELAYS_MAX
    nacks = [item for now in range(1, 9) for item in peer.tick(now) if isinstance(item, Say) and item.kind == "pong"]
    assert [(nack.to, nack.number, nack.target, nack.heard) for nack in nacks] == [
        ("peer002", n, "peer003", False) for n in range(RELAYS_MAX)
    ]


def test_a_helper_passes_an_answer_on_and_only_the_targets_own() -> None:
    peer = machine()
    (ping,) = peer.heard_ping_request("peer002", 77, "peer003", ())
    assert isinstance(ping, Say)
    assert (ping.to, ping.kind) == ("peer003", "ping")
    assert peer.heard_pong("peer004", ping.number, "peer003", True, ()) == []
    (answer,) = peer.heard_pong("peer003", ping.number, "peer003", True, ())
    assert isinstance(answer, Say)
    assert (answer.to, answer.number, answer.target, answer.heard) == ("peer002", 77, "peer003", True)
