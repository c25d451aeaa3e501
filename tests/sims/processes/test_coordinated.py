"""An algorithm with a server on real processes: the coordinator is killed, all are paused, one peer comes late.

The tests read the events from the peers' disks: the journals have each committed round that was put in force and each
settled round, in order.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from fedpeer.config.choice import parse_choice
from fedpeer.peer.runtime import blocks
from fedpeer.peer.state.entries import ClientStateSaved, CommitStateChanged, Entry, UpdateMade
from fedpeer.peer.state.journal import entry_of
from fedpeer.peer.wire.framing import unframe
from fedpeer.sims.peers import local_tasks
from fedpeer.sims.processes import engine as module
from fedpeer.sims.processes.engine import ProcessesEngine
from fedpeer.sims.processes.process_pool import ProcessPool
from fedpeer.sims.processes.settling import settle, tick_of
from fedpeer.sims.processes.watch import Watched
from fedpeer.sims.vector.pool import Stopped
from fedpeer.sims.world import World
from tests.sims import worlds
from tests.sims import worlds as vector
from tests.sims.processes.starved import starve
from tests.sims.worlds import relative

pytestmark = pytest.mark.usefixtures("forked")

METHOD = "scaffold"
#: Ticks within which another peer coordinates after a kill (promise P5).
ANOTHER_TICKS = 200
#: Seconds after which a wait counts as hanging, on a busy machine.
PATIENCE = 120.0


def world(peers: int = 3, rounds: int = 4, **settings: Any) -> World:
    return worlds.world(
        worlds.federation(
            **{
                "learning__rounds": rounds,
                "simulation__peers": peers,
                "gossip__tick": 0.05,
                "gossip__deadline": 120.0,
                "gossip__topology": "complete",
                **settings,
            }
        )
    )


def engine(made: World, folder: Path, **more: Any) -> ProcessesEngine:
    choice = parse_choice(METHOD)
    return ProcessesEngine(made, choice, folder=folder, **more)


def reference(made: World, rounds: int) -> tuple[Tensor, list[float]]:
    """Run the vector engine; return the peers' own models (P, n) and the losses of the server's model."""
    with vector.engine(made, METHOD) as running:
        for _ in range(rounds):
            running.step()
        scores = running.evaluate_server()
        assert scores is not None
        return running.x_Pn.clone(), [loss for _, loss in scores]


def states(folder: Path, made: World) -> dict[str, Path]:
    return {peer: folder / "peers" / peer / f"{peer}-state" for peer in made.peers}


def entries(state: Path) -> Iterator[Entry]:
    """Yield all entries that a peer wrote since its first snapshot.

    Its journal exists until it has paused or ended. A file that is being created has another name, with a leading dot.
    """
    for path in sorted((state / "journal").glob("[0-9]*")):
        for batch in blocks.scan(path, int(path.stem)).batches:
            yield from map(entry_of, batch.entries())


def in_force(journal: Iterable[Entry]) -> list[tuple[int, str]]:
    """Return (round, digest) of the committed rounds that were put in force at this peer, in order."""
    found = [each.applied[0] for each in journal if isinstance(each, CommitStateChanged) and each.applied is not None]
    told = [(round, digest.hex()) for _, round, _, digest in found]
    return [each for number, each in enumerate(told) if number == 0 or each != told[number - 1]]


def settled(journal: Iterable[Entry]) -> list[int]:
    return [each.round for each in journal if isinstance(each, ClientStateSaved)]


def server_of(state: Path) -> bytes:
    """Return the content of the last committed round in force, from the newest snapshot."""
    path = max((state / "snapshots").glob("[0-9]*"))
    fields, _ = unframe("snapshot", blocks.read_snapshot(path, int(path.stem)))
    consensus_state = fields["chambers"]["everyone"]
    content = dict(consensus_state["models"])[consensus_state["holding"][2][0][3]]
    assert isinstance(content, bytes)
    return content


def log_of(state: Path, what: str) -> list[dict[str, Any]]:
    try:
        text = (state / "log.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in lines if line["what"] == what]


def certificates(folders: dict[str, Path]) -> list[tuple[int, str, float]]:
    """Return (term, coordinator, seconds since 1970) as any of the peers logged it, by time."""
    lines = [line for state in folders.values() for line in log_of(state, "coordinator")]
    told = [(line["fields"]["term"], line["fields"]["coordinator"], line["t"]) for line in lines]
    return sorted((each for each in told if each[1] is not None), key=lambda each: each[2])


def wait_for(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> None:
    until = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def play(running: ProcessesEngine, rounds: int) -> None:
    while running.round < rounds:
        running.step()


def ended(running: ProcessesEngine) -> bool:
    return all(pool._process.poll() is not None for pool in running._pools)


class Witness(threading.Thread):
    """A thread that keeps each peer's journals by links, because a peer that ends replaces them with a snapshot."""

    def __init__(self, folders: dict[str, Path], kept: Path) -> None:
        super().__init__(daemon=True)
        self._folders, self._over = folders, threading.Event()
        self._kept = {peer: kept / peer for peer in folders}
        for folder in self._kept.values():
            (folder / "journal").mkdir(parents=True)

    def run(self) -> None:
        while not self._over.wait(0.02):
            self._link()

    def _link(self) -> None:
        for peer, state in self._folders.items():
            for path in (state / "journal").glob("[0-9]*"):
                with suppress(FileExistsError, FileNotFoundError):  # it is linked, or gone by now
                    os.link(path, self._kept[peer] / "journal" / path.name)

    def furthest(self) -> int:
        """Return the number of rounds that are in force at the peer that is furthest."""
        numbers = [0]
        for folder in self._kept.values():
            with suppress(blocks.DamagedError):  # a file that is incomplete
                numbers.append(len(in_force(entries(folder))))
        return max(numbers)

    def entries(self) -> dict[str, list[Entry]]:
        """Return all entries of each peer."""
        return {peer: list(entries(folder)) for peer, folder in self._kept.items()}

    def __enter__(self) -> Witness:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def judge(seen: Witness, rounds: int) -> None:
    """Assert that every round was put in force once, in order, as the same model everywhere, and settled once."""
    models: dict[int, set[str]] = {}
    found = seen.entries()
    for peer, journal in found.items():
        round_commit = in_force(journal)
        numbers = [round for round, _ in round_commit]
        assert numbers == sorted(set(numbers)), f"{peer}: {numbers}"
        assert numbers[-1] == rounds, peer
        for round, digest in round_commit:
            models.setdefault(round, set()).add(digest)
    assert models.keys() == set(range(1, rounds + 1))
    assert all(len(each) == 1 for each in models.values()), models
    for numbers in map(settled, found.values()):
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == rounds


@pytest.mark.soak  # ten elections and ten starts of a process, one after the other
def test_whoever_coordinates_is_killed_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL comes at any moment; the killed peer is started again, and the result does not change."""
    # From one kill to the next some two rounds are done, on a fast machine ten. Nobody is killed late: once all rounds
    # are done nobody coordinates.
    kills, rounds, last = 10, 200, 170
    # With long ticks a killed peer is back before the others declare it dead and close a round without it.
    made, draws = world(peers=4, rounds=rounds, gossip__tick=0.2), random.Random(0)
    folders = states(tmp_path / "peers", made)
    monkeypatch.setattr(module, "DEATHS_MAX", kills)
    replaced: list[str] = []
    waits: list[float] = []
    with (
        Witness(folders, tmp_path / "kept") as seen,
        engine(made, tmp_path / "peers", replaced=lambda peer, how: replaced.append(peer)) as running,
    ):
        while running.round < rounds:
            running.step()
            if len(waits) == kills or seen.furthest() > last:
                continue
            time.sleep(draws.uniform(0.0, 0.5))
            term, coordinator, _ = certificates(folders)[-1]
            number = running.process_ids[made.peers.index(coordinator)]
            killed = time.time()
            os.kill(number, signal.SIGKILL)

            def after(term: int = term) -> list[float]:
                return [at for later, _, at in certificates(folders) if later > term]

            until = time.monotonic() + PATIENCE
            while not after():
                running._look()  # starts the killed peer again
                assert time.monotonic() < until, "nobody coordinates"
                time.sleep(0.05)
            waits.append(after()[0] - killed)
        x_Pn = running.x_Pn
        scores = running.evaluate_server()
        wait_for(lambda: ended(running), "all end by themselves")
        assert len({server_of(state) for state in folders.values()}) == 1
        judge(seen, rounds)
    assert len(replaced) == len(waits) == kills
    assert max(waits) <= ANOTHER_TICKS * tick_of(made), waits
    expected_Pn, losses = reference(made, rounds)
    assert relative(x_Pn, expected_Pn) <= 1e-5
    assert scores is not None
    assert [loss for _, loss in scores] == pytest.approx(losses, rel=1e-5)


@pytest.mark.soak  # ten minutes, and some more
def test_on_a_starved_machine_one_peer_coordinates_and_after_a_kill_rounds_go_on(tmp_path: Path) -> None:
    found = starve(tmp_path / "made", minutes=10.0, load=20, kills=5)
    print(found.table())
    assert found.kept, found.table()


@pytest.mark.slow
def test_all_pause_and_go_on_where_they_were(tmp_path: Path) -> None:
    made, stop = world(), threading.Event()
    folders = states(tmp_path / "peers", made)
    with engine(made, tmp_path / "peers", stop=stop) as running:
        running.step()
        running.step()
        # Read before the stop: the row of an unfinished round lacks the bytes that earlier processes sent.
        assert all(sum(each) > 0 for each in running.traffic), "models and updates are counted"
        tensors, state = running.snapshot()
        stop.set()
        with pytest.raises(Stopped):
            play(running, 4)
    with engine(made, tmp_path / "peers") as again:
        again.restore(tensors, state)
        play(again, 4)
        expected_Pn, losses = reference(made, 4)
        assert relative(again.x_Pn, expected_Pn) <= 1e-5
        scores = again.evaluate_server()
        assert scores is not None
        assert [loss for _, loss in scores] == pytest.approx(losses, rel=1e-5)
        wait_for(lambda: ended(again), "all end")
        assert len({server_of(state) for state in folders.values()}) == 1


@pytest.mark.slow
def test_rounds_close_after_some_updates_and_all_peers_end_with_one_model(tmp_path: Path) -> None:
    rounds = 6
    made = world(4, rounds, learning__algorithm="fedavg", learning__aggregation_goal=2)
    with ProcessesEngine(made, parse_choice("fedavg"), folder=tmp_path / "run") as running:
        for _ in range(rounds):
            running.step()
        ended = running.evaluate_server()
        trained = {
            peer: [each.round for each in entries(state) if isinstance(each, UpdateMade)]
            for peer, state in states(tmp_path / "run", made).items()
        }
    assert ended is not None
    start = [task.evaluate(made.drawn("")) for task in local_tasks(made).values()]
    assert all(loss < before for (_, before), (_, loss) in zip(start, ended, strict=True))
    assert all(each == sorted(set(each)) and each[0] == 1 for each in trained.values()), "no round is trained twice"


@pytest.mark.slow
def test_who_comes_late_takes_the_newest_model_over(tmp_path: Path) -> None:
    made = world(peers=4, rounds=5000, gossip__gather=1.0)
    files = settle(tmp_path / "made", made, parse_choice(METHOD), "cpu")
    folders = states(tmp_path / "made", made)
    watched = {peer: Watched(peer, state) for peer, state in folders.items()}

    def done(peer: str) -> int:
        watched[peer].look()
        return watched[peer].done

    crews = [ProcessPool({peer: files[peer] for peer in ("peer1", "peer2", "peer3")}, 1)]
    try:
        wait_for(lambda: done("peer1") >= 3, "three of four are a majority")
        crews.append(ProcessPool({"peer4": files["peer4"]}, 1))
        wait_for(lambda: done("peer4") and len(watched["peer4"].rows) >= 3, "it learns too")
    finally:
        for pool in crews:
            pool.pause()
        for pool in crews:
            pool.wait()
    models = {peer: dict(in_force(entries(state))) for peer, state in folders.items()}
    first = min(models["peer4"])
    assert first > 1, "it did not play again what it had missed"
    common = models["peer1"].keys() & models["peer4"].keys()
    assert len(common) >= 3
    assert all(models["peer1"][round] == models["peer4"][round] for round in common)
    assert settled(entries(folders["peer4"]))[-1] >= first
