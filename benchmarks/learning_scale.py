"""Learning with more peers: time and memory of a round for 16 to 10,000 peers, and the parts of the memory.

`python -m benchmarks.learning_scale [--peers 16,64,...]` measures, prints, and writes learning-scale.md, .svg and .json
into docs/results. Each cell runs in its own processes, so that cells share no memory, and cells in the JSON are not
measured again (`--again` measures all). Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import memory_parts, peak_memory

PEERS = (16, 64, 256, 1_024, 4_096, 10_000)
NETWORK, EXAMPLES, TESTED = "mlp:784+16+10", 6, 20
LAPS = 3
FOLDER = Path(__file__).parents[1] / "docs" / "results"
NAME = "learning-scale"
COMMAND = "python -m benchmarks.learning_scale"
#: Files of a workspace -> part of the memory; the rest are examples and places.
STATES = {"x": "parameters", "states": "peers' states and updates"}
PHASES = ("training", "averaging", "evaluation")


@dataclass(frozen=True)
class Line:
    """Job that is measured with every number of peers."""

    name: str
    method: str
    participation: float = 1.0


LINES = (
    Line("full averaging, one exchange", "full-averaging"),
    Line("FedAvg, all take part", "fedavg"),
    Line("FedAvg, 1 % take part", "fedavg", 0.01),
)


# ------------------------------------------------------------------------------------------------------------ measuring


def measured(line: Line, peers: int) -> dict[str, Any]:
    """Return the measurements of one cell, in this process and its workers."""
    import torch

    from benchmarks.worlds import Engine
    from fedpeer.algorithms.registry import taking_part
    from fedpeer.config.federation import Federation
    from fedpeer.learning.holdings import load_dataset
    from fedpeer.sims.world import build_world

    torch.set_num_threads(1)
    libraries = sum(memory_parts().values())
    federation = Federation.model_validate(
        {
            "network": NETWORK,
            "learning": {
                "batch_size": EXAMPLES,
                "steps_between_averaging": "pass",
                "optimizer": "sgd,lr=0.1,momentum=0.9",
                "participation": line.participation,
            },
            "gossip": {"topology": "k-regular:4", "exchanges": 1, "tolerance": None},
            "simulation": {"peers": peers, "dataset": "mnist", "split": f"blocks:{EXAMPLES},test={TESTED}"},
        }
    )

    with peak_memory() as seen:
        world = build_world(federation, load_dataset(federation.simulation.dataset), 0)
        with Engine(world, line.method, workers=2) as engine:
            engine.lap()  # touches memory for the first time
            largest = seen()
            laps = [engine.lap() for _ in range(LAPS)]
            parts = _named(memory_parts(), libraries)
            peak = max(largest, seen())
    return {
        "line": line.name,
        "peers": peers,
        "taking_part": taking_part(peers, line.participation),
        "parameters": world.layout.n,
        "seconds": {phase: median(lap[phase].cpu for lap in laps) for phase in PHASES},
        "peak_bytes": peak,
        "parts": parts,
    }


def _named(found: Mapping[str, int], libraries: int) -> dict[str, int]:
    """Return the bytes by part, from the names of files and of processes."""
    parts = {
        "libraries": libraries,
        "data set, split, plan": found["leader"] - libraries,
        "workers' own": found["others"],
    }
    parts |= dict.fromkeys(["examples in files", *STATES.values()], 0)
    for name, size in found.items():
        if name.startswith("file "):
            part = STATES.get(name.removeprefix("file ").split(".")[0], "examples in files")
            parts[part] += size
    return parts


# -------------------------------------------------------------------------------------------------------------- writing


def page(rows: Sequence[Mapping[str, Any]], facts: str) -> str:
    """Return the whole page in Markdown; `facts`: a sentence on machine and versions."""
    parameters = rows[0]["parameters"]
    texts = [
        "# Learning at scale",
        f"""\
Time and memory of a round as peers become more, on one machine with two workers: a small network ({NETWORK},
{parameters:,} parameters) on MNIST, {EXAMPLES} images and one update a peer and round, tested on {TESTED}; SGD with
momentum. Peers of *full averaging* are equals, who all train and then make one exchange on a 4-regular graph; FedAvg's
have a server. Larger networks, whose states are kept out of memory, are in [simulate.md](../simulate.md#memory).""",
        "![Processor time and memory by number of peers](learning-scale.svg)",
        "## Time",
        f"""\
Processor time of all processes together, the median of {LAPS} rounds; other work on the machine hardly changes it. *A
peer* is the whole round with its evaluation, divided by the peers.""",
        _table(
            ["method", "peers", "take part", *(f"{phase}, s" for phase in PHASES), "a peer, ms"],
            [[line["line"], f"{line['peers']:,}", f"{line['taking_part']:,}", *_seconds(line)] for line in rows],
        ),
        "## Memory",
        """\
All processes, a page that several of them share counted once (PSS). The peak is of the whole run, from the loading of
the data on; *a peer* is how much the peak grows, beside the line before, for each peer more.""",
        _table(["method", "peers", "peak, MB", "a peer, KB"], _grown(rows)),
        "## Where it goes",
        """\
At the end of a round, in MB, by what the kernel says of each process and each mapped file. *Libraries* are the leading
process with everything imported and nothing loaded; *workers' own* is the same of its workers, with what they need to
train a block. Files hold two sides of whatever is trained, and count with the pages that were touched. Parameters and
states that may exceed 1 GiB, as those of 10,000 peers, are released ([simulate.md](../simulate.md#memory)): there is
nothing of them at the end.""",
        _table(["method", "peers", *rows[0]["parts"]], [_parts(each) for each in rows]),
        f"```console\n$ {COMMAND}\n```",
        *_missing(rows),
        facts,
    ]
    return "\n\n".join(texts) + "\n"


def _missing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the figures that the command has not measured yet."""
    known = {(row["line"], row["peers"]) for row in rows}
    left = [f"{line.name}, {peers:,} peers" for line in LINES for peers in PEERS if (line.name, peers) not in known]
    return [f"Not measured yet: {'; '.join(left)}."] if left else []


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, [":--", *["--:"] * (len(head) - 1)], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _seconds(row: Mapping[str, Any]) -> list[str]:
    spent = row["seconds"]
    return [*(f"{spent[phase]:.3f}" for phase in PHASES), f"{1e3 * sum(spent.values()) / row['peers']:.2f}"]


def _grown(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    found = []
    for number, row in enumerate(rows):
        before = rows[number - 1] if number and rows[number - 1]["line"] == row["line"] else None
        each = "–" if before is None else f"{_slope(before, row) / 1e3:.1f}"
        found.append([row["line"], f"{row['peers']:,}", f"{row['peak_bytes'] / 1e6:,.0f}", each])
    return found


def _slope(before: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    """Return the bytes for each further peer."""
    return float((row["peak_bytes"] - before["peak_bytes"]) / (row["peers"] - before["peers"]))


def _parts(row: Mapping[str, Any]) -> list[str]:
    return [row["line"], f"{row['peers']:,}", *(f"{size / 1e6:,.0f}" for size in row["parts"].values())]


def picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG with processor time of a round above, and peak memory below; one line for each method."""
    from matplotlib.axes import Axes
    from matplotlib.ticker import FuncFormatter, NullFormatter

    from fedpeer.runs.canvas import INK, MARKERS, method_colour, panels, standalone

    def curves(axes: Axes, title: str, value: Callable[[Mapping[str, Any]], float]) -> None:
        for number, name in enumerate(dict.fromkeys(row["line"] for row in rows)):
            of = [row for row in rows if row["line"] == name]
            x, y = [row["peers"] for row in of], [value(row) for row in of]
            axes.plot(x, y, color=method_colour(number), marker=MARKERS[number], ms=4.5, label=name)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("peers")
        axes.set_ylabel(title)

    def above(axes: Axes) -> None:
        curves(axes, "processor seconds of a round", lambda row: sum(row["seconds"].values()))
        axes.legend(fontsize=8, frameon=False, labelcolor=INK, loc="upper left")

    def below(axes: Axes) -> None:
        curves(axes, "GB of memory at the peak", lambda row: float(row["peak_bytes"]) / 1e9)

    label = "Processor time of a round, and memory at its peak, by number of peers; the table has the numbers"
    return standalone(panels([above, below], 220, label, left=60, right=26))


def ordered(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows by method, and within a method by number of peers."""
    names = [line.name for line in LINES]
    return sorted(rows, key=lambda row: (names.index(row["line"]), row["peers"]))


def _cell(number: int, peers: int) -> dict[str, Any]:
    """Return the measurements of one cell, from a separate process."""
    options = [sys.executable, "-m", "benchmarks.learning_scale", "--cell", str(number), "--peers", str(peers)]
    found: dict[str, Any] = json.loads(subprocess.run(options, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--peers", default=",".join(map(str, PEERS)), metavar="N,N,...")
    parser.add_argument("--again", action="store_true", help="measure cells that the JSON holds, too")
    parser.add_argument("--cell", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [int(each) for each in options.peers.split(",")]
    if options.cell is not None:
        print(json.dumps(measured(LINES[options.cell], sizes[0])))
        return
    from fedpeer.runs.disk import write_json, write_text

    path = FOLDER / f"{NAME}.json"
    known = (
        {} if options.again or not path.exists() else {(r["line"], r["peers"]): r for r in json.loads(path.read_text())}
    )
    for peers in sizes:
        for number, line in enumerate(LINES):
            if (line.name, peers) not in known:
                known[line.name, peers] = _cell(number, peers)
                row = known[line.name, peers]
                spent = sum(row["seconds"].values())
                print(
                    f"{line.name}, {peers:,} peers: {spent:.2f} s a round, {row['peak_bytes'] / 1e6:,.0f} MB",
                    flush=True,
                )
                write_json(path, list(known.values()))
    rows = ordered(list(known.values()))
    write_text(FOLDER / f"{NAME}.md", page(rows, _facts()))
    write_text(FOLDER / f"{NAME}.svg", picture(rows))


def _facts() -> str:
    """Return a sentence on the machine and the versions."""
    from fedpeer.runs.environment import environment

    here = environment("cpu")
    machine = f"{here['machine']}, {here['processors']} processors, {here['system']}"
    return f"Measured on {machine}; {here['python']}, torch {here['packages']['torch']}."


if __name__ == "__main__":
    main()
