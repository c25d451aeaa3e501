"""The timeline of one network run: the peers' rounds and weights over virtual time, and its faults.

The report draws it if faults were requested. Times are virtual seconds after the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from fedpeer.sims.network.faults import Faults

#: Most points of one line: more than a plot has pixels.
_POINTS_MAX = 1000


@runtime_checkable
class Timed(Protocol):
    """An engine with a timeline in virtual time."""

    @property
    def timeline(self) -> Timeline: ...


@dataclass
class Timeline:
    """The ends of all rounds of all peers.

    tick_s    seconds of a tick
    faults    the planned faults
    """

    tick_s: float
    faults: Faults
    _peers: dict[str, list[tuple[float, int, Mapping[str, float]]]] = field(default_factory=dict)

    def finished(self, peer: str, tick: float, round: int, weights: Mapping[str, float]) -> None:
        """Record that a peer has finished a round with these weights, by group."""
        self._peers.setdefault(peer, []).append((tick * self.tick_s, round, dict(weights)))

    def to_json(self) -> dict[str, Any]:
        """Return the content of `timeline.json` (`runs/report.py` describes it)."""
        return {
            "peers": {peer: _thinned(points) for peer, points in self._peers.items()},
            "faults": [
                {"begin": begin * self.tick_s, "end": end * self.tick_s, "text": text}
                for begin, end, text in self._spans()
            ],
        }

    def _over(self) -> float:
        """Return the tick at which the last round ended."""
        return max((points[-1][0] / self.tick_s for points in self._peers.values()), default=0.0)

    def _spans(self) -> list[tuple[float, float, str]]:
        """Return begin, end and description of each cut, fault and liar, as far as the run lasted."""
        last = min(self.faults.heal, self._over())
        cuts = [
            (cut.begin, cut.end, f"nothing from {_listed(cut.senders)} reaches {_listed(cut.receivers)}")
            for cut in self.faults.cuts
        ]
        acts = [(act.tick, act.tick + act.ticks, f"{act.peer}: {act.kind}") for act in self.faults.acts]
        lies = [
            (each.begin, each.end, f"{each.peer} lies ({_listed(each.lies, 'lies')})") for each in self.faults.liars
        ]
        spans = ((begin, min(end, last), text) for begin, end, text in (*cuts, *acts, *lies))
        return sorted((begin, end, text) for begin, end, text in spans if begin < end)


def _thinned(points: Sequence[tuple[float, int, Mapping[str, float]]]) -> dict[str, Any]:
    step = -(-len(points) // _POINTS_MAX)
    kept = [*points[::step], *points[-1:]] if (len(points) - 1) % step else points[::step]
    groups = sorted({group for _, _, weights in kept for group in weights})
    return {
        "seconds": [seconds for seconds, _, _ in kept],
        "rounds": [round for _, round, _ in kept],
        "weights": {group: [weights.get(group) for _, _, weights in kept] for group in groups},
    }


def _listed(peers: Sequence[str], what: str = "peers") -> str:
    return ", ".join(peers) if len(peers) <= 3 else f"{len(peers)} {what}"
