"""Links, disks, fault plans and the judges of histories, each on its own."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from fedpeer.config.choice import ChoiceError
from fedpeer.peer.state.events import RejectEffect
from fedpeer.peer.state.saving import Recovered
from fedpeer.rejection import Rejection
from fedpeer.sims.network.agenda import Agenda
from fedpeer.sims.network.disk import DiskRules, MemoryDisk
from fedpeer.sims.network.faults import Faults, Lying, draw_faults, faults_from, parse_faults
from fedpeer.sims.network.lies import LIES
from fedpeer.sims.network.links import Cut, LinkRules, SimulatedLinks, partition
from fedpeer.sims.network.timeline import Timeline
from tests.reference import judges

PEERS = ("a", "b", "c", "d")
MANY = 20_000
DRAWS = np.random.default_rng(0)

# ------------------------------------------------------------------------------------------------------------- agenda


def test_things_happen_in_their_order_and_ties_as_planned() -> None:
    agenda, seen = Agenda(), list[str]()
    for time, name in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.5, "b")):
        agenda.at(time, lambda name=name: seen.append(name))  # type: ignore[misc]
    while agenda.step(1.9):
        pass
    assert (seen, agenda.now) == (["a", "b"], 1.9)
    agenda.at(2.0, lambda: seen.append("e"))
    while agenda.step(5.0):
        pass
    assert (seen, agenda.now) == (["a", "b", "c", "d", "e"], 5.0)


# -------------------------------------------------------------------------------------------------------------- links


def counted(rules: LinkRules, seed: int = 1, **more: object) -> list[list[float]]:
    links = SimulatedLinks(rules, seed, **more)  # type: ignore[arg-type]
    return [links.arrivals("a", "b", 100, float(tick)) for tick in range(MANY)]


def test_rates_are_what_they_say() -> None:
    found = counted(LinkRules(delay=0.5, jitter=2.0, loss=0.2, repeat=0.1))
    arrived = [times for times in found if times]
    sigma = 1 / math.sqrt(MANY)
    assert len(arrived) / MANY == pytest.approx(0.8, abs=4 * sigma)
    assert sum(len(times) == 2 for times in arrived) / len(arrived) == pytest.approx(0.1, abs=4 * sigma)


def test_delays_are_at_least_the_delay_and_beyond_it_exponential() -> None:
    found = counted(LinkRules(delay=0.5, jitter=2.0, reorder=0.999999))
    late = np.array([times[0] - tick - 0.5 for tick, times in enumerate(found)])
    assert late.min() >= 0
    assert late.mean() == pytest.approx(2.0, rel=0.05)
    assert late.std() == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("reorder", [0.0, 0.3])
def test_messages_keep_their_order_unless_they_may_be_overtaken(reorder: float) -> None:
    first = [times[0] for times in counted(LinkRules(jitter=5.0, reorder=reorder))]
    overtaken = sum(later < sooner for sooner, later in pairwise(first))
    assert (overtaken > 0.02 * MANY) == (reorder > 0)
    if not reorder:
        assert overtaken == 0


def test_a_narrow_link_queues_what_it_cannot_carry() -> None:
    links = SimulatedLinks(LinkRules(delay=1.0, bytes_per_tick=50.0), seed=0)
    assert [links.arrivals("a", "b", 100, 0.0) for _ in range(3)] == [[3.0], [5.0], [7.0]]
    assert links.arrivals("b", "a", 100, 0.0) == [3.0], "the way back is another link"
    assert links.arrivals("a", "b", 100, 10.0) == [13.0]


def test_each_edge_has_a_stream_of_its_own() -> None:
    rules = LinkRules(jitter=1.0, loss=0.3, repeat=0.3, reorder=0.5)
    alone, busy = SimulatedLinks(rules, 5), SimulatedLinks(rules, 5)
    for tick in range(200):
        busy.arrivals("b", "a", 10, float(tick))
        assert alone.arrivals("a", "b", 10, float(tick)) == busy.arrivals("a", "b", 10, float(tick))


def test_a_cut_stops_one_direction_and_what_is_under_way() -> None:
    links = SimulatedLinks(LinkRules(delay=2.0), 0, [Cut(begin=10, end=20, senders=("a",), receivers=("b", "c"))])
    assert links.arrivals("a", "b", 1, 7.0) == [9.0]
    assert links.arrivals("a", "b", 1, 9.0) == []
    assert links.arrivals("a", "b", 1, 15.0) == []
    assert links.arrivals("b", "a", 1, 15.0) == [17.0]
    assert links.arrivals("a", "d", 1, 15.0) == [17.0]
    assert links.arrivals("a", "b", 1, 20.0) == [22.0]


def test_a_partition_of_three_sides_cuts_all_six_ways() -> None:
    links = SimulatedLinks(LinkRules(), 0, partition(0, 10, ("a",), ("b",), ("c", "d")))
    open_ways = {(s, r) for s in PEERS for r in PEERS if s != r and not links.cut(s, r, 5.0)}
    assert open_ways == {("c", "d"), ("d", "c")}


def test_healed_links_deliver_everything_once_and_in_order() -> None:
    rules = LinkRules(jitter=3.0, loss=0.3, repeat=0.3, reorder=0.5)
    links = SimulatedLinks(rules, 3, [Cut(begin=0, end=1e9, senders=PEERS, receivers=PEERS)], heal=100.0)
    found = [links.arrivals("a", "b", 1, 100.0 + tick) for tick in range(2000)]
    assert all(len(times) == 1 for times in found)
    assert [times[0] for times in found] == sorted(times[0] for times in found)


# --------------------------------------------------------------------------------------------------------------- disk


def saved(disk: MemoryDisk, *what: bytes | list[bytes]) -> MemoryDisk:
    for each in what:
        assert (disk.snapshot(each) if isinstance(each, bytes) else disk.append(each)) > 0
        disk.finish()
    return disk


def content(recovered: Recovered) -> tuple[bytes | None, list[bytes]]:
    return recovered.snapshot, list(recovered.entries)


def test_what_is_finished_is_there_and_what_is_not_may_be() -> None:
    outcomes = set()
    for seed in range(20):
        disk = saved(MemoryDisk(DiskRules(), DRAWS), [b"1"], b"s", [b"2", b"3"])
        disk.append([b"4", b"5"])
        survived = disk.crash(np.random.default_rng(seed))
        recovered = disk.recover()
        assert content(recovered) == (b"s", [b"2", b"3", *([b"4", b"5"] if survived else [])])
        assert bool(recovered.remarks) == (not survived)
        assert not disk.recover().remarks
        outcomes.add(survived)
    assert outcomes == {True, False}


def test_a_damaged_snapshot_is_replaced_by_the_one_before_and_its_entries() -> None:
    disk = saved(MemoryDisk(DiskRules(), DRAWS), b"s1", [b"1"], b"s2", [b"2"])
    disk.damage()
    recovered = disk.recover()
    assert content(recovered) == (b"s1", [b"1", b"2"])
    assert recovered.remarks == (
        RejectEffect(Rejection("snapshot_corrupt", "the newest snapshot; the one before is used")),
    )
    assert content(saved(disk, [b"3"]).recover()) == (b"s1", [b"1", b"2", b"3"])
    assert content(saved(disk, b"s3", b"s4", [b"4"]).recover()) == (b"s4", [b"4"])


def test_a_first_snapshot_has_the_beginning_to_stand_in_for_it() -> None:
    disk = saved(MemoryDisk(DiskRules(), DRAWS), [b"1"], b"s", [b"2"])
    disk.damage()
    assert content(disk.recover()) == (None, [b"1", b"2"])


def test_a_backup_does_not_change_any_more() -> None:
    disk = saved(MemoryDisk(DiskRules(), DRAWS), b"s", [b"1"])
    backup = disk.copy()
    saved(disk, [b"2"], b"t")
    assert content(backup.recover()) == (b"s", [b"1"])


def test_a_save_takes_as_long_as_its_bytes() -> None:
    disk = MemoryDisk(DiskRules(flush=0.5, bytes_per_tick=100.0), DRAWS)
    assert disk.append([bytes(100), bytes(150)]) == pytest.approx(3.0)


# ------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("seed", range(50))
def test_one_line_replays_the_faults(seed: int) -> None:
    faults = draw_faults(seed, PEERS, 300.0, ("kill", "pause", "step", "full", "flip", "old", "lose"))
    assert parse_faults(faults.line()) == faults
    assert "\n" not in faults.line()
    assert faults == draw_faults(seed, PEERS, 300.0, ("kill", "pause", "step", "full", "flip", "old", "lose"))
    assert all(0 <= act.tick <= 300 and act.peer in PEERS for act in faults.acts)
    assert faults.links.loss <= 0.3
    assert faults.links.repeat <= 0.3


def test_a_liar_is_a_fault_like_others() -> None:
    faults = faults_from("liar:2,lies=life+verdict,at=5,for=10/liar:1/kill:1,at=99,for=9/cut:1,at=101,for=9", PEERS)
    assert faults.liars[0] == Lying(200.0, 600.0, PEERS[1], ("life", "verdict"))
    assert set(faults.liars[1].lies) == set(LIES), "in all ways"
    assert parse_faults(faults.line()) == faults
    assert parse_faults(faults.line().replace("liars", "other")).liars == (), "older lines have none"
    timeline = Timeline(0.025, faults)
    timeline.finished(PEERS[0], 4000.0, 7, {})
    spans = timeline.to_json()["faults"]
    assert {"begin": 5.0, "end": 15.0, "text": f"{PEERS[1]} lies (life, verdict)"} in spans
    assert {"begin": 5.0, "end": 100.0, "text": f"{PEERS[0]} lies ({len(LIES)} lies)"} in spans
    assert spans[2:] == [{"begin": 99.0, "end": 100.0, "text": f"{PEERS[0]}: kill"}], "the run was over before the cut"
    with pytest.raises(ChoiceError, match="there is no lie"):
        faults_from("liar:2,lies=live", PEERS)


def test_rare_mixes_appear() -> None:
    found = [draw_faults(seed, PEERS, 300.0) for seed in range(200)]
    assert any(not faults.acts for faults in found)
    assert any(not faults.cuts for faults in found)
    assert any(len(faults.cuts) == 1 for faults in found), "one-way"
    assert any(len(cut.receivers) == 1 for faults in found for cut in faults.cuts)
    assert {act.kind for faults in found for act in faults.acts} == {"kill", "pause", "step"}
    assert max(faults.links.loss for faults in found) > 0.28
    assert parse_faults(Faults().line()) == Faults()


# ------------------------------------------------------------------------------------------------------------ history


def rows(*each: tuple[object, ...]) -> list[tuple[object, ...]]:
    return [(float(place), *row) for place, row in enumerate(each)]


SAVE, SAY = ("asked", "a", "entry", None), ("asked", "a", "say", None)
SAID = ("said", "a", "Send")


@pytest.mark.parametrize(
    ("each", "good"),
    [
        ([SAVE, SAY, ("saved", "a", 1), SAID], True),
        ([SAVE, SAY, SAID, ("saved", "a", 1)], False),
        ([SAY, SAVE, SAID, ("saved", "a", 1)], True),
        ([SAVE, SAVE, SAY, ("saved", "a", 1), SAID], False),
        ([SAVE, SAY, ("kill", "a", 0), SAY, SAID], True),
        ([SAID], False),
        ([SAVE, SAY, ("saved", "b", 1), SAID], False),
    ],
)
def test_the_judge_of_saving_before_speaking(each: list[tuple[object, ...]], good: bool) -> None:
    assert (judges.saved_before_said(rows(*each)) == []) == good


def took(number: int, channel: str = "x") -> tuple[object, ...]:
    return "asked", "a", "entry", ("took", channel, number)


@pytest.mark.parametrize(
    ("each", "good"),
    [
        ([took(1), took(2), ("saved", "a", 2), took(1, "y"), ("saved", "a", 1)], True),
        ([took(1), took(1), ("saved", "a", 2)], False),
        ([took(2), ("saved", "a", 1)], False),
        ([took(1), ("kill", "a", 0), took(1), ("saved", "a", 1)], True),
        ([took(1), ("kill", "a", 1), took(1), ("saved", "a", 1)], False),
        ([took(1), ("kill", "a", 1), took(2), ("saved", "a", 1)], True),
        ([took(1), took(2), ("saved", "a", 1), ("kill", "a", 0), took(2), ("saved", "a", 1)], True),
    ],
)
def test_the_judge_of_order(each: list[tuple[object, ...]], good: bool) -> None:
    assert (judges.taken_once_and_in_order(judges.durable(rows(*each))) == []) == good


def test_the_judges_of_mass_hull_and_refusals() -> None:
    mass = rows(("mass", "g", 4.0, 4.0), ("mass", "g", 4.1, 4.0), ("mass", "g", math.nan, 4.0))
    assert len(judges.conserved(mass, 1e-6)) == 2
    assert judges.conserved(mass[:2], 0.1) == []
    estimates = rows(
        ("estimate", "a", "g", -1.0, 1.0), ("estimate", "a", "g", -1.1, 1.0), ("estimate", "a", "g", 0, math.nan)
    )
    assert len(judges.inside(estimates, {"g": (-1.0, 1.0)})) == 2
    assert len(judges.inside(estimates, {"g": (-1.0, 1.0)}, slack=0.2)) == 1
    refusals = rows(
        ("refused", "a", "early", "b"), ("refused", "b", "early", "a"), ("refused", "a", "own_message", "a")
    )
    assert judges.refused(refusals) == {"early": 2, "own_message": 1}
    assert judges.only_harmless(refusals, {"early": "h", "own_message": "s"}) == ["own_message was uttered 1 times"]
    with pytest.raises(AssertionError, match="own_message"):
        judges.judged([], ["own_message was uttered 1 times"])
