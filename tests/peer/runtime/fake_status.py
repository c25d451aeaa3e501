"""A fake of a learning federation, as one of its peers would report it, for tests and for a look at the page.

`python -m tests.peer.runtime.fake_status [PEERS] [PORT]` serves it live and prints the address.
"""

from __future__ import annotations

import asyncio
import math
import sys
from typing import Literal

import numpy as np

from fedpeer.peer.runtime.dashboard.access import DashboardListener
from fedpeer.peer.runtime.dashboard.server import Dashboard
from fedpeer.peer.runtime.logs import Log
from fedpeer.peer.runtime.metrics import Metrics
from fedpeer.peer.runtime.status import About, ConsensusView, GroupView, NodeView, PeerState, PeerView, State, Status
from fedpeer.peer.state.events import Evaluated, Note, RejectEffect
from fedpeer.rejection import Rejection
from fedpeer.version import __version__

TOKEN = "0123456789abcdef0123456789abcdef"
ROUNDS = 100


class FakePeer:
    """A fake peer: `status` is that of a peer in a federation of `peers`, and each `round()` advances it by one round.

    With `served` the peers have a coordinator; otherwise they are peers without a server. With `led` one of their two
    groups has a coordinator.
    """

    def __init__(
        self,
        peers: int = 4,
        score_name: Literal["accuracy", "error"] = "accuracy",
        seed: int = 0,
        *,
        served: bool = False,
        led: bool = False,
    ) -> None:
        self.served, self.led = served, led
        self.now, self.number = 1_780_000_000.0, 0
        self.ids = tuple(f"peer{n}" for n in range(1, peers + 1))
        self.me = self.ids[min(2, peers - 1)]
        self.draws = np.random.default_rng(seed)
        self.skill = {id: self.draws.uniform(0.82, 0.97) for id in self.ids}
        self.pace = {id: self.draws.uniform(6, 14) for id in self.ids}
        about = About(
            federation="wards", peer=self.me, version=__version__, mode="synchronous", rounds=ROUNDS, device="cpu",
            transport="https", score_name=score_name,
        )  # fmt: skip
        self.status = Status(about, clock=lambda: self.now, ticking=lambda: self.now)
        self.log = Log([self.status.say], clock=lambda: self.now, ticking=lambda: self.now)

    def round(self) -> None:
        """Advance all peers by one round; some rounds also have a fault."""
        self.number += 1
        self.now += 7.3
        self.status.starts = 2
        self.log.tick()
        scores = {id: self.score(id) for id in self.ids}
        loss = 1.8 * math.exp(-self.number / 15) + 0.21
        server = (0.95 * scores[self.me], 1.1 * loss) if self.served else None
        self.status.evaluated(Evaluated(self.number, scores[self.me], loss, server, {"f1": 0.9, "auc": math.nan}))
        self.status.look(self.view(scores))
        if self.served:
            self.status.sent(43_210 * 4 + 120, "everyone")
            self.status.received(43_210 * 4 + 120, "everyone")
            self.status.took("close", 0.02)
            self.status.took("settle", 0.01)
        for group in self.groups():
            for _ in range(len(group.neighbours) * 8):
                self.status.sent(group.length * 4 + 120, group.id)
                self.status.received(group.length * 4 + 120, group.id)
        self.status.took("save", 0.012)
        self.status.took("train", 1.31)
        self.status.took("evaluate", 0.08)
        self.log_effect(
            Note("info", "round", f"round {self.number}: accuracy {scores[self.me]:.1%}", {"round": self.number})
        )
        if self.number % 9 == 0:
            self.log_effect(
                RejectEffect(Rejection("repeated", f"transfer 41 of everyone, round {self.number}", self.ids[0]))
            )
        if self.number == 20:
            self.log_effect(
                Note("info", "went_on_without", "round 20 of everyone went on without peer2", {"group": "everyone"})
            )
            self.log_effect(RejectEffect(Rejection("bad_signature", "a claim about peer1", self.ids[-1])))
        if self.number == 30:
            self.log_effect(Note("warning", "written_off", "peer2 lost its memory; 0.25 written off", {"weight": 0.25}))
            for _ in range(500):
                self.log_effect(RejectEffect(Rejection("not_fedpeer", "GET / HTTP/1.1")))

    def log_effect(self, effect: Note | RejectEffect) -> None:
        """Count and log the effect, as the running peer does."""
        if isinstance(effect, RejectEffect):
            self.status.refused(effect.rejection)
        else:
            self.status.noted(effect)
        self.log.on_effect(effect)

    def score(self, id: str) -> float:
        """Return an accuracy that rises to the peer's own limit, or an error that falls in the same way."""
        reached = self.skill[id] * (1 - 0.9 * math.exp(-self.number / self.pace[id])) + self.draws.normal(0, 0.004)
        return float(reached) if self.status.about.score_name == "accuracy" else float(4 * (1 - reached))

    def view(self, scores: dict[str, float]) -> NodeView:
        states: dict[str, PeerState] = dict.fromkeys(self.ids, "alive")
        if self.number > 15 and len(self.ids) > 3:
            states[self.ids[1]], states[self.ids[-1]] = "suspect", "dead"
        if len(self.ids) > 20:
            states |= {self.ids[7]: "left", self.ids[11]: "finished", self.ids[30]: "unknown"}
        states[self.me] = "me"
        peers = tuple(
            PeerView(
                id=id, state=states[id], address=f"https://10.0.0.{n}:7401", round=self.number, score=scores[id],
                heard_s=None if states[id] == "unknown" else 40.0 if states[id] == "dead" else 0.4,
            )
            for n, id in enumerate(self.ids, 1)
        )  # fmt: skip
        state: State = "finished" if self.number >= ROUNDS else "averaging"
        return NodeView(
            state=state, round=self.number, incarnation=1, life=2, roster=3, peers=peers, groups=self.groups(),
            lag_ms_p99=3.1, consensus_by_group=self.consensus_by_group(),
        )  # fmt: skip

    @property
    def ward(self) -> tuple[str, ...]:
        return tuple(id for n, id in enumerate(self.ids) if n % 2 == 0)

    def consensus_by_group(self) -> tuple[ConsensusView, ...]:
        if self.served:
            return (self.consensus("everyone", self.ids),)
        return (self.consensus("ward-a", self.ward),) if self.led else ()

    def consensus(self, id: str, members: tuple[str, ...]) -> ConsensusView:
        """Return a view whose peers coordinate in turn; from round 60 on half of them are away and none coordinates."""
        paused = self.number >= 60
        return ConsensusView(
            id=id, members=members,
            coordinator=None if paused else members[self.number // 20 % len(members)],
            term=1 + self.number // 20, round=self.number, counted=members[:-1], voters=members,
            voters_there=members[: len(members) // 2] if paused else members, votes=True, paused=paused,
            waiting_for=members[-1:] if self.number // 20 == 2 else (),
        )  # fmt: skip

    def groups(self) -> tuple[GroupView, ...]:
        if self.served:
            return ()
        everyone = self.group("everyone", self.ids, 43_210, 4)
        return (everyone,) if self.led else (everyone, self.group("ward-a", self.ward, 7_250, 2))

    def group(self, id: str, members: tuple[str, ...], length: int, degree: int) -> GroupView:
        size = len(members)
        hops = range(1, size // 2, max(1, size // degree))[: degree // 2] or (1,)
        edges = {(min(n, (n + hop) % size), max(n, (n + hop) % size)) for n in range(size) for hop in hops}
        mine = members.index(self.me)
        waiting = members[1:2] if self.number > 15 and mine != 1 else ()
        return GroupView(
            id=id, models=(id,), members=members, length=length,
            edges=tuple((members[a], members[b]) for a, b in sorted(edges)),
            neighbours=tuple(members[b if a == mine else a] for a, b in sorted(edges) if mine in (a, b)),
            round=self.number, exchange=5, weight=1 + 0.2 * math.sin(self.number / 3 + size),
            disagreement=0.5 * math.exp(-self.number / 9) + 0.001, waiting_for=waiting,
            audit=3e-16,
        )  # fmt: skip


async def serve(peers: int, port: int) -> None:
    peer = FakePeer(peers)
    for _ in range(40):
        peer.round()
    board = Dashboard(DashboardListener("127.0.0.1", port, TOKEN), peer.status.as_json, Metrics(peer.status.as_json))
    await board.start()
    print(board.listener.door.login, flush=True)
    while peer.number < ROUNDS:
        await asyncio.sleep(2)
        peer.round()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(*(int(each) for each in (sys.argv[1:] + ["4", "7599"][len(sys.argv) - 1 :]))))
