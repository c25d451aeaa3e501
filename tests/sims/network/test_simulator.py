"""The simulator, tested with peers that pass coins on: nothing is lost, order holds, and a run is its seed."""

from __future__ import annotations

import pytest
import torch
from _pytest.mark.structures import ParameterSet

from fedpeer.peer.state.events import Effect, Event, Note, OperatorCommand, Persist, Send, Stop, Tick, Train, Trained
from fedpeer.peer.wire.messages import Ack
from fedpeer.rejection import Rejection
from fedpeer.sims.network.disk import DiskRules
from fedpeer.sims.network.driver import Machine
from fedpeer.sims.network.faults import Act, Faults, draw_faults
from fedpeer.sims.network.links import LinkRules, partition
from fedpeer.sims.network.simulator import Simulator
from tests.reference import judges
from tests.sims.network import bank
from tests.sims.network.bank import COINS, Bank

PEERS = ("p1", "p2", "p3", "p4")


def banks(simulator: Simulator) -> list[Bank]:
    """Return the states of all peers: of living peers in memory, of the others on their disks."""
    living = simulator.machines()
    found = []
    for peer in simulator.peers:
        machine = living.get(peer) or bank.recovered(peer, simulator.peers, simulator.kept(peer))
        assert isinstance(machine, Bank)
        found.append(machine)
    return found


def checked(simulator: Simulator) -> None:
    """Add a row with the sum of all coins after every step at which all peers live."""

    def count(peer: str, machine: Machine) -> None:
        if len(simulator.machines()) == len(PEERS):
            simulator.rows.append((simulator.now, "mass", "coins", bank.total(banks(simulator)), COINS * len(PEERS)))

    simulator.stepped = count


def judge(simulator: Simulator) -> None:
    judges.judged(
        judges.saved_before_said(simulator.rows),
        judges.taken_once_and_in_order(judges.durable(simulator.rows)),
        judges.conserved(simulator.rows, 0.0),
    )
    assert any(row[1] == "mass" for row in simulator.rows)


def sweep(count: int, usual: range) -> list[ParameterSet]:
    """Return the numbers below `count`: the usual ones run always, all others with `make soak`."""
    return [pytest.param(each, marks=[] if each in usual else pytest.mark.soak) for each in range(1, count)]


@pytest.mark.parametrize("seed", sweep(30, range(2, 30, 12)))
def test_coins_are_kept_whatever_happens(seed: int) -> None:
    faults = draw_faults(seed, PEERS, heal=150.0, kinds=("kill", "pause", "step", "full", "flip"))
    simulator = Simulator(PEERS, bank.driver(PEERS), faults)
    checked(simulator)
    simulator.start()
    simulator.run(200.0)
    judge(simulator)
    assert set(simulator.machines()) == set(PEERS), "faults end"
    made = {machine.me: dict(machine.made) for machine in banks(simulator)}
    simulator.run(260.0)
    for machine in banks(simulator):
        for to in machine.others:
            assert machine.made[to] > made[machine.me].get(to, 0), f"coins travel again; replay {faults.line()}"


@pytest.mark.parametrize("effects", sweep(60, range(1, 60, 7)))
def test_killed_after_each_effect_nothing_is_lost(effects: int) -> None:
    simulator = Simulator(PEERS, bank.driver(PEERS), Faults(links=LinkRules(delay=0.3), seed=effects))
    checked(simulator)
    simulator.kill_after("p2", effects, ticks=5.0)
    simulator.start()
    simulator.run(30.0)
    assert [row[1] for row in simulator.rows if row[2] == "p2" and row[1] in ("start", "kill")] == [
        "start",
        "kill",
        "start",
    ]
    judge(simulator)


@pytest.mark.slow
def test_speaking_before_the_save_is_found_and_costs_coins() -> None:
    lost = 0
    for effects in range(1, 60, 4):
        simulator = Simulator(PEERS, bank.driver(PEERS, hasty=True), Faults(links=LinkRules(delay=0.05), seed=effects))
        checked(simulator)
        simulator.kill_after("p2", effects, ticks=1.0)
        simulator.start()
        simulator.run(20.0)
        assert not judges.saved_before_said(simulator.rows), "the outbox keeps the order it was given"
        lost += bool(judges.conserved(simulator.rows, 0.0))
    assert lost > 2, "of fifteen"


def test_a_run_is_its_seed() -> None:
    def played(seed: int) -> str:
        simulator = Simulator(
            PEERS, bank.driver(PEERS), draw_faults(seed, PEERS, heal=40.0, kinds=("kill", "pause", "full"))
        )
        simulator.start()
        simulator.run(50.0)
        return judges.digest(simulator.rows)

    assert played(3) == played(3)
    assert played(3) != played(4)


def test_lost_memory_is_lost() -> None:
    """After the fault "lose" a disk is empty, and after "old" it is an older one."""
    for kind in ("lose", "old"):
        acts = (Act(230.0, kind, "p2", 2.0),)
        simulator = Simulator(PEERS, bank.driver(PEERS), Faults(links=LinkRules(jitter=1.0), acts=acts, heal=260.0))
        simulator.start()
        simulator.run(229.0)
        checked(simulator)
        (before,) = (machine for machine in banks(simulator) if machine.me == "p2")
        made = dict(before.made)
        simulator.run(232.5)
        (after,) = (machine for machine in banks(simulator) if machine.me == "p2")
        assert sum(after.made.values()) < sum(made.values())
        assert (sum(after.made.values()) > 10) == (kind == "old")
        assert judges.conserved(simulator.rows, 0.0)


def test_a_cut_edge_carries_nothing_until_it_heals() -> None:
    faults = Faults(cuts=partition(10.0, 30.0, ("p1", "p2"), ("p3", "p4")), heal=1e9)
    simulator = Simulator(PEERS, bank.driver(PEERS), faults)
    simulator.start()
    simulator.run(60.0)
    across = {
        row[0] for row in simulator.rows
        if row[1] == "heard" and len({row[2], row[4]} & {"p1", "p2"}) == 1
    }  # fmt: skip
    within = {row[0] for row in simulator.rows if row[1] == "heard"}
    assert not [tick for tick in across if 10.2 < tick < 30.0]
    assert [tick for tick in within if 10.2 < tick < 30.0]
    assert [tick for tick in across if tick > 30.0]


def test_who_stands_still_says_nothing_and_hears_all_afterwards() -> None:
    simulator = Simulator(PEERS, bank.driver(PEERS), Faults(acts=(Act(10.0, "pause", "p1", 20.0),), heal=1e9))
    checked(simulator)
    simulator.start()
    simulator.run(50.0)
    said = [row[0] for row in simulator.rows if row[1:3] == ("said", "p1")]
    assert not [tick for tick in said if 10.3 < tick < 30.0]
    assert [tick for tick in said if tick > 30.0]
    judge(simulator)


def test_who_had_no_time_is_told_the_time_before_it_has_read_what_arrived() -> None:
    """A stalled peer gets the time before the messages that arrived, as an event loop does after a stall: its timer is
    due at once, while reading its sockets takes some passes."""
    said: list[Effect] = [Send("p1", Ack(group="", taken=1, round=0), 1, 1)]
    machines = {"p1": Script([]), "p2": Script([said] * 40)}
    driver = bank.driver(("p1", "p2"))
    started = {"start": lambda peer, kept: machines[peer], "encode": lambda sender, send: b"nonsense"}
    driver = type(driver)(**{**vars(driver), **started})
    simulator = Simulator(("p1", "p2"), driver, Faults(acts=(Act(10.5, "stall", "p1", 20.0),), heal=1e9))
    simulator.start()
    simulator.run(60.0)
    received = machines["p1"].received
    leap = next(n for n, event in enumerate(received) if isinstance(event, Tick) and event.now >= 30)
    before = [event for event in received[:leap] if not isinstance(event, Tick)]
    assert len(before) <= 11, "nothing was read in between"
    assert sum(not isinstance(event, Tick) for event in received) >= 39, "and all of it afterwards"


def test_a_full_disk_silences_a_peer_and_no_other() -> None:
    simulator = Simulator(PEERS, bank.driver(PEERS), Faults(acts=(Act(10.0, "full", "p1", 20.0),), heal=1e9))
    checked(simulator)
    simulator.start()
    simulator.run(60.0)
    said = {peer: [row[0] for row in simulator.rows if row[1:3] == ("said", peer)] for peer in PEERS}
    assert not [tick for tick in said["p1"] if 10.5 < tick < 30.0]
    assert [tick for tick in said["p2"] if 10.5 < tick < 30.0]
    assert [tick for tick in said["p1"] if tick > 30.0]
    assert judges.refused(simulator.rows)["persist_failed"] > 1
    judge(simulator)


class Script:
    """A state machine that answers each tick with the next effects of a list, and keeps the events that it receives."""

    def __init__(self, effects: list[list[Effect]]) -> None:
        self.effects, self.received = effects, list[Event]()

    def step(self, event: Event) -> list[Effect]:
        self.received.append(event)
        return self.effects.pop(0) if self.effects and isinstance(event, Tick) else []


def scripted(*effects: list[Effect], faults: Faults | None = None, **changes: object) -> tuple[Simulator, Script]:
    script = Script(list(effects))
    driver = bank.driver(("p1",))
    driver = type(driver)(**{**vars(driver), "start": lambda peer, kept: script, **changes})
    simulator = Simulator(("p1",), driver, faults, DiskRules(flush=1.0, bytes_per_tick=1e9))
    simulator.start()
    return simulator, script


def test_saving_and_training_take_their_time() -> None:
    train = Train(1, 1, torch.zeros(1), torch.zeros(0), True)
    simulator, script = scripted(
        [Persist("entry", []), Note("info", "behind", ""), train, train], work_ticks=lambda peer, effect: 7.0
    )
    simulator.run(30.0)
    (noted,) = (row[0] for row in simulator.rows if row[1] == "note")
    assert noted == pytest.approx(1.0, abs=1e-6)
    done = [place for place, event in enumerate(script.received) if isinstance(event, Trained)]
    ticks = [len([e for e in script.received[:place] if isinstance(e, Tick)]) for place in done]
    assert ticks == [9, 16], "one after the other, in one thread"


def test_a_stop_is_the_end() -> None:
    simulator, script = scripted([Persist("snapshot", []), Stop(0, "done")], [])
    assert simulator.run(50.0, lambda: "p1" in simulator.stopped)
    assert simulator.stopped["p1"] == Stop(0, "done")
    received = len(script.received)
    simulator.start("p1")
    simulator.run(100.0)
    assert len(script.received) == received
    assert not simulator.machines()


def test_a_clock_runs_at_its_rate_and_leaps_forward() -> None:
    acts = (Act(10.5, "step", "p1", 144_000.0),)
    simulator, script = scripted(faults=Faults(acts=acts, rates=(("p1", 2.0),), heal=1e9))
    simulator.run(20.0)
    ticks = [event.now for event in script.received if isinstance(event, Tick)]
    assert ticks[:20] == list(range(20))
    assert ticks == sorted(ticks)
    assert ticks[-1] == pytest.approx(144_000 + 40, abs=2)


def test_what_is_refused_is_counted_and_answered() -> None:
    peers = ("p1", "p2")
    machines = {
        peer: Script([[Send("p2", Ack(group="", taken=1, round=0), 1, 1)]] if peer == "p1" else []) for peer in peers
    }
    driver = bank.driver(peers)
    driver = type(driver)(**{
        **vars(driver),
        "start": lambda peer, kept: machines[peer],
        "encode": lambda sender, send: b"nonsense",
        "answered": lambda sender, machine, receiver, data: OperatorCommand("pause") if data == b"refused" else None,
    })  # fmt: skip
    simulator = Simulator(peers, driver)
    simulator.start()
    simulator.run(5.0)
    assert judges.refused(simulator.rows) == {"not_fedpeer": 1}
    assert [e for e in machines["p2"].received if not isinstance(e, Tick)] == [Rejection("not_fedpeer", sender="p1")]
    assert [e for e in machines["p1"].received if not isinstance(e, Tick)] == [OperatorCommand("pause")]
