"""Five peers on an overloaded machine: how often the coordinator changes, and what a kill costs.

    python -m tests.sims.processes.starved [--minutes 10] [--load 20] [--kills 5]

Busy loops occupy the processors; the peers start beside them. When all have learned, no peer is killed for `--minutes`.
Then the coordinator is killed `--kills` times, each time after the previous one is back. The program prints one table,
with times from the peers' own logs, and exits with 1 if a promise was broken: without a kill at most one change of
coordinator; after a kill the next round within three times the shortest lease plus one training.

No wait is shorter because the machine is quick, and none is given up because it is slow: the time until the next round
is read from logs afterwards, and the patience of the waits grows with the load.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

from fedpeer.config.choice import parse_choice
from fedpeer.peer.consensus.polls import ElectionTiming
from fedpeer.sims.processes import settling
from fedpeer.sims.processes.process_pool import ProcessPool
from fedpeer.sims.processes.settling import settle
from fedpeer.sims.processes.watch import JsonLinesReader
from tests.sims import worlds

#: Seconds per tick, and number of peers.
TICK_S, PEERS = 0.025, 5
#: Most changes of coordinator while no peer is killed; limit until the round after a kill, in shortest leases, besides
#: one training.
CHANGES_MAX, LEASES = 1, 3
#: Seconds after which a wait counts as hanging, on an idle machine; and seconds between two looks.
PATIENCE_S, LOOK_S = 120.0, 0.2
#: A busy loop, which ends with the process that started it, however that process ends.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run this many busy loops.

    Each has its own session, so that a kernel that shares time among sessions gives it as much as it gives a peer.
    """
    with ExitStack() as stack:
        for _ in range(count):
            loop = subprocess.Popen([sys.executable, "-S", "-c", BUSY], start_new_session=True)
            stack.callback(loop.wait)
            stack.callback(loop.kill)
        yield


@dataclass(frozen=True)
class Line:
    """One line of a peer's log: seconds since 1970, the peer, the event and its fields."""

    t: float
    peer: str
    what: str
    fields: dict[str, Any]


@dataclass(eq=False)
class Logs:
    """The logs of all peers, as far as they have been read, and (`rounds`) the last round of each."""

    folders: dict[str, Path]
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._files = {peer: JsonLinesReader(folder / "log.jsonl") for peer, folder in self.folders.items()}
        self._rows = {peer: JsonLinesReader(folder / "metrics.jsonl") for peer, folder in self.folders.items()}
        self.rounds = dict.fromkeys(self.folders, 0)

    def look(self) -> None:
        """Read the new lines of all files."""
        for peer, file in self._files.items():
            self.lines += [Line(line["t"], peer, line["what"], line.get("fields", {})) for line in file.new()]
        self.lines.sort(key=lambda line: line.t)
        for peer, file in self._rows.items():
            self.rounds[peer] = max([self.rounds[peer], *(row["round"] for row in file.new())])

    def find(self, what: str, since: float = 0.0, *, but: str = "") -> list[Line]:
        """Return the lines of this event by time, without those of the peer `but`."""
        return [line for line in self.lines if line.what == what and line.t >= since and line.peer != but]

    def mandates(self, since: float = 0.0) -> list[tuple[int, str]]:
        """Return (term, coordinator) as any peer logged it, by term."""
        told = [line.fields for line in self.find("coordinator", since)]
        return sorted({(each["term"], each["coordinator"]) for each in told if each["coordinator"] is not None})

    def training_s(self, since: float) -> float:
        """Return the seconds of the longest training that ended since then."""
        return max((TICK_S * line.fields["ticks"] for line in self.find("trained", since)), default=0.0)


@dataclass(frozen=True)
class Kill:
    """Events after one kill, in seconds after it; None: the event did not happen.

    detected   a peer considers the coordinator gone; `all_detected`: all others do, or have another coordinator
    elected    another peer coordinates; `all_elected`: all others know
    closed     the new coordinator has the updates that it waits for
    round      one of its rounds is in force at the first peer; `training`: the longest training around then
    """

    victim: str
    detected: float | None
    all_detected: float | None
    elected: float | None
    all_elected: float | None
    closed: float | None
    round: float | None
    training: float

    @property
    def bound(self) -> float:
        return LEASES * ElectionTiming().shortest * TICK_S + self.training

    @property
    def in_time(self) -> bool:
        return self.round is not None and self.round <= self.bound

    @classmethod
    def read(cls, logs: Logs, victim: str, killed: float, term: int) -> Kill:
        """Read the events after the kill of this coordinator of this term."""
        others = logs.folders.keys() - {victim}
        turns = logs.find("coordinator", killed, but=victim)
        news: dict[str, float] = {}
        led: dict[str, float] = {}
        for line in turns:
            if line.fields["coordinator"] is None or line.fields["term"] > term:
                news.setdefault(line.peer, line.t)
            if line.fields["coordinator"] is not None and line.fields["term"] > term:
                led.setdefault(line.peer, line.t)
        own = [line.t for line in turns if line.fields["coordinator"] == line.peer and line.fields["term"] > term]
        closed = [line.t for line in logs.find("closed", killed) if line.fields["term"] > term]
        over = [line.t for line in logs.find("in_force", killed, but=victim) if line.fields["term"] > term]

        def after(times: Sequence[float]) -> float | None:
            return times[0] - killed if times else None

        return cls(
            victim,
            after(sorted(news.values())),
            after([max(news.values())]) if news.keys() == others else None,
            after(own),
            after([max(led.values())]) if led.keys() == others else None,
            after(closed),
            after(over),
            logs.training_s(killed - 30.0),
        )


@dataclass
class Found:
    """The result of a run.

    It has the coordinators by term, the rounds and the longest training while no peer was killed, and the kills.
    """

    leaders: list[str]
    terms: int
    rounds: int
    training: float
    kills: list[Kill] = field(default_factory=list)

    @property
    def changes(self) -> int:
        return sum(one != other for one, other in pairwise(self.leaders))

    @property
    def kept(self) -> bool:
        return self.changes <= CHANGES_MAX and all(kill.in_time for kill in self.kills)

    def table(self) -> str:
        """Return the result as text."""
        shortest = ElectionTiming().shortest * TICK_S
        heads = ("kill", "detected", "by all", "elected", "known", "closed", "round", "training", "bound", "")
        rows = [
            (str(number), *map(_seconds, (k.detected, k.all_detected, k.elected, k.all_elected, k.closed, k.round)),
             _seconds(k.training), _seconds(k.bound), "" if k.in_time else "late")
            for number, k in enumerate(self.kills, start=1)
        ]  # fmt: skip
        calm = f"with no kill: {self.changes} changes of coordinator ({' '.join(self.leaders)}), terms {self.terms}, "
        calm += f"rounds {self.rounds}, longest training {self.training:.2f} s"
        after = f"shortest lease {shortest:.2f} s; seconds after each kill:"
        return "\n".join([calm, after, *("".join(f"{cell:>10}" for cell in row) for row in (heads, *rows))])


def _seconds(number: float | None) -> str:
    return "never" if number is None else f"{number:.2f}"


def starve(folder: Path, *, minutes: float, load: int, kills: int) -> Found:
    """Run five peers beside `load` busy loops, and kill the coordinator `kills` times."""
    settings: dict[str, Any] = {"learning__rounds": 100_000, "simulation__peers": PEERS}
    gossip = {"gossip__topology": "complete", "gossip__tick": TICK_S, "gossip__deadline": 30.0}
    made = worlds.world(worlds.federation(**settings, **gossip))
    with mock.patch.object(settling, "tick_of", return_value=TICK_S):
        files = settle(folder, made, parse_choice("fedavg"), "cpu")
    logs = Logs({peer: folder / "peers" / peer / f"{peer}-state" for peer in files})
    patience = PATIENCE_S * (1 + load / (os.cpu_count() or 1))

    def wait(condition: Callable[[], bool], what: str = "", longest: float = patience) -> bool:
        """Look until the condition is true; return whether it is, or raise AssertionError if it has to be (`what`)."""
        until = time.monotonic() + longest
        while True:
            logs.look()
            if condition():
                return True
            if time.monotonic() > until:
                assert not what, f"{what}, after {longest:.0f} s: {logs.lines[-5:]}"
                return False
            time.sleep(LOOK_S)

    with ExitStack() as stack:
        crews: dict[str, ProcessPool] = {}
        stack.callback(_end, crews)
        stack.enter_context(busy(load))  # the loops end before the peers do, so that the peers can pause in time
        crews.update({peer: ProcessPool({peer: file}, 1) for peer, file in files.items()})
        wait(lambda: min(logs.rounds.values()) >= 2, "they do not begin")
        began, before, first = time.time(), max(logs.rounds.values()), logs.mandates()[-1]
        wait(lambda: False, longest=60 * minutes)
        leaders = [who for term, who in logs.mandates() if term >= first[0]]
        terms = 1 + max((line.fields["term"] for line in logs.find("coordinator", began)), default=first[0]) - first[0]
        found = Found(leaders, terms, max(logs.rounds.values()) - before, logs.training_s(began))
        for _ in range(kills):
            term, victim = logs.mandates()[-1]
            crews[victim]._process.kill()
            killed = time.time()

            def goes_on(victim: str = victim, killed: float = killed, term: int = term) -> bool:
                return Kill.read(logs, victim, killed, term).round is not None

            wait(goes_on)
            crews[victim].wait()
            round = max(logs.rounds.values())
            crews[victim] = ProcessPool({victim: files[victim]}, 1)
            wait(lambda victim=victim, round=round: logs.rounds[victim] > round, f"{victim} is not back")  # type: ignore[misc]
            found.kills.append(Kill.read(logs, victim, killed, term))
    return found


def _end(crews: dict[str, ProcessPool]) -> None:
    for pool in crews.values():
        pool.pause()
    for pool in crews.values():
        pool.wait()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10.0, help="in which nobody is killed")
    parser.add_argument("--load", type=int, default=20, help="busy loops")
    parser.add_argument("--kills", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = starve(Path(place) / "made", minutes=options.minutes, load=options.load, kills=options.kills)
    print(found.table(), flush=True)
    return int(not found.kept)


if __name__ == "__main__":
    sys.exit(main())
