"""Draws `crossed.svg`: sixteen real peers learn across two hierarchies, and five of them are killed on the way.

    python docs/pictures/draw_crossed.py          plays `examples/crossed.yaml` with real peers, then draws
    python docs/pictures/draw_crossed.py --again  draws from `crossed.json`, which the last play wrote

Each peer is a process with its own keys and disk (`fedpeer simulate --engine processes`). After five of the rounds
one of them gets SIGKILL; it is started again, and goes on from its disk. Beside it are the same peers, each alone.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from draw import framed
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

import fedpeer
from fedpeer.cli.simulate_options import options_of
from fedpeer.learning.holdings import load_dataset
from fedpeer.runs.canvas import INK, draw_axes, end_labels, method_colour
from fedpeer.sims.events import RoundDone, SimulationEvent
from fedpeer.sims.world import build_world

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "crossed.yaml"
FACTS = HERE / "crossed.json"
CROSSED, ALONE = "partial-averaging", "local"
#: Rounds after which a peer is killed.
KILLED_AFTER = (18, 34, 50, 66, 82)
#: Side of a peer's square, in units.
SIDE = 46
ALONE_COLOUR, CROSSED_COLOUR, KILL_COLOUR = (method_colour(number) for number in (0, 1, 2))


def play(root: Path) -> dict[str, Any]:
    """Play both methods; return what the picture shows."""
    federation = options_of({}, EXAMPLE).federation
    draws = random.Random(0)
    victims = dict(zip(KILLED_AFTER, draws.sample(range(federation.simulation.peers), len(KILLED_AFTER)), strict=True))
    kills: list[dict[str, int]] = []

    def kill(event: SimulationEvent) -> None:
        if isinstance(event, RoundDone) and event.method == CROSSED and event.round in victims:
            peer = victims[event.round]
            [lock] = root.glob(f"crossed/*/peers-{CROSSED}-seed0/peers/peer{peer + 1}/*-state/lock")
            os.kill(int(lock.read_text()), signal.SIGKILL)
            kills.append({"round": event.round, "peer": peer})

    real = fedpeer.simulate(
        federation=federation, methods=[CROSSED], seeds=[0], engine="processes", out=root / "crossed", on_event=kill
    )
    alone = fedpeer.simulate(federation=federation, methods=[ALONE], seeds=[0], out=root / "alone")
    found: dict[str, Any] = {}
    for name, results, method in (("crossed", real, CROSSED), ("alone", alone, ALONE)):
        history = results.history(method)
        found[name] = {"rounds": history.round_R.tolist(), "accuracy": np.round(history.score_RP, 4).tolist()}
    return {**found, "kills": kills}


def called() -> tuple[int, list[int]]:
    """Return the digit that has the most names, and what each row of peers calls it."""
    federation = options_of({}, EXAMPLE).federation
    shares = build_world(federation, load_dataset(federation.simulation.dataset), 0).split.shares
    codes = [shares[4 * row].label_map_C for row in range(4)]
    names_CR = np.stack([np.arange(10) if code_C is None else code_C for code_C in codes], axis=1)
    digit = max(range(10), key=lambda each: len(set(names_CR[each])))
    return digit, names_CR[digit].tolist()


def curves(facts: dict[str, Any]) -> str:
    """Return the accuracy of all peers by round, the mean of those who are alone, and the kills."""
    crossed_RP, alone_RP = (np.array(facts[name]["accuracy"]) for name in ("crossed", "alone"))
    rounds_R = np.array(facts["crossed"]["rounds"])

    def draw(axes: Axes) -> None:
        axes.plot(rounds_R, crossed_RP, color=INK, alpha=0.25, linewidth=0.8)
        axes.plot(facts["alone"]["rounds"], alone_RP.mean(axis=1), color=ALONE_COLOUR)
        axes.plot(rounds_R, crossed_RP.mean(axis=1), color=CROSSED_COLOUR, linewidth=2.4)
        for kill in facts["kills"]:
            height = float(np.interp(kill["round"], rounds_R, crossed_RP[:, kill["peer"]]))
            axes.plot([kill["round"]], [height], color=KILL_COLOUR, marker="X", markersize=9)
            first = kill is facts["kills"][0]
            axes.annotate(
                f"peer{kill['peer'] + 1}" + (" is killed" if first else ""),
                (kill["round"], height),
                (kill["round"] + (4 if first else 0), height - (0.02 if first else 0.2)),
                color=KILL_COLOUR,
                ha="left" if first else "center",
                arrowprops={"arrowstyle": "-", "color": KILL_COLOUR, "linewidth": 0.7},
            )
        axes.set_xlabel("round")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
        ends = [(crossed_RP, CROSSED_COLOUR, "crossed"), (alone_RP, ALONE_COLOUR, "alone")]
        end_labels(axes, [(float(RP[-1].mean()), f"{name} {100 * RP[-1].mean():.1f} %", c) for RP, c, name in ends])

    return draw_axes(draw, 290, "Accuracy of sixteen peers by round", right=92)


def squares(facts: dict[str, Any]) -> str:
    """Return the peers as squares: a column sees alike, a row calls alike, and all share the middle layer."""
    killed, (digit, names) = {kill["peer"] for kill in facts["kills"]}, called()
    drawn = []
    for peer in range(16):
        column, row = peer % 4, peer // 4
        x, y = 30 + column * (SIDE + 6), 34 + row * (SIDE + 6)
        drawn.append(f'<rect x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" rx="4" fill="none" stroke="currentColor"/>')
        centre = x + SIDE / 2, y + SIDE / 2 - 6
        drawn.append(
            f'<text x="{centre[0]}" y="{centre[1] + 7}" font-size="20" text-anchor="middle" '
            f'transform="rotate({-90 * column} {centre[0]} {centre[1]})">{digit}</text>'
        )
        drawn.append(
            f'<text x="{centre[0]}" y="{y + SIDE - 5}" font-size="10" text-anchor="middle">“{names[row]}”</text>'
        )
        if peer in killed:
            drawn.append(f'<text x="{x + SIDE - 9}" y="{y + 13}" font-size="12" fill="var(--m2)">✖</text>')
    width = 4 * (SIDE + 6)
    drawn.append(f'<text x="{30 + width / 2}" y="14" text-anchor="middle">a column sees alike:</text>')
    drawn.append(f'<text x="{30 + width / 2}" y="28" text-anchor="middle">it shares the first layer</text>')
    drawn.append(
        f'<text x="18" y="{34 + width / 2}" text-anchor="middle" transform="rotate(-90 18 {34 + width / 2})">'
        "a row calls alike: the last layer</text>"
    )
    drawn.append(
        f'<text x="{30 + width / 2}" y="{34 + width + 14}" text-anchor="middle">all share the middle layer</text>'
    )
    return "".join(drawn)


def picture(facts: dict[str, Any]) -> str:
    """Return both side by side."""
    plot = curves(facts).replace("<svg ", '<svg x="260" width="400" height="290" ', 1)
    return framed(f'<svg viewBox="0 0 660 290">{squares(facts)}{plot}</svg>')


def main(*words: str) -> None:
    """Play unless told to draw again, and draw."""
    if "--again" not in words:
        with tempfile.TemporaryDirectory() as place:
            FACTS.write_text(json.dumps(play(Path(place))) + "\n", encoding="utf-8")
    (HERE / "crossed.svg").write_text(picture(json.loads(FACTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
