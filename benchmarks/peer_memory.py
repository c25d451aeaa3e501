"""Memory of real peers on one machine: sixteen with adapters on one frozen model, and four with a large data set.

`python -m benchmarks.peer_memory [--quick]` prints this table alone. The first job is that of the experiment
`adapters`; the frozen model is read from a file with random weights, since memory and bytes do not depend on them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

from safetensors.torch import save_file

from benchmarks.measure import memory_lines, proportional_bytes
from benchmarks.processes import door
from benchmarks.rows import Row, Section, show
from fedpeer.config.choice import Choice, parse_choice
from fedpeer.config.federation import Federation
from fedpeer.experiments.adapters import ADAPTERS
from fedpeer.learning.holdings import load_dataset
from fedpeer.networks.registry import transformer
from fedpeer.peer.runtime.dashboard.ask import ask
from fedpeer.sims.processes.engine import ProcessesEngine
from fedpeer.sims.world import World, build_world

#: Most megabytes of memory of all peers with adapters together, and most kilobytes of a share.
MEMORY_TARGET, SHARE_TARGET = 1200, 300
#: The experiment's line whose peers send the most.
LABEL = "one common adapter"


def measure(quick: bool) -> Section:
    """Measure four rounds; quick: two."""
    rounds = 2 if quick else 4
    with tempfile.TemporaryDirectory(prefix="fedpeer-bench-") as folder:
        world, method = _with_adapters(Path(folder) / "model.safetensors")
        before = proportional_bytes()
        with _playing(world, method, rounds) as (engine, peers):
            memory = proportional_bytes() - before
            groups = [ask(door(peers / peer))["groups"][0] for peer in world.peers]
    share = max(group["bytes_sent"] / group["messages_sent"] for group in groups)
    with _playing(_with_images(), parse_choice("partial-averaging"), rounds) as (engine, _):
        own = fmean(map(_own_bytes, engine.process_ids))
    return Section(
        "Memory of real peers on one machine",
        f"{len(world.peers)} peers train adapters of rank 8 beside a frozen model of characters in a file; pages that "
        "processes share count once. 4 peers divide Fashion-MNIST, whose inputs take 220 MB; a peer's own memory is "
        "what it shares with nobody. All are in training when they are looked at, in turns.",
        [
            Row(name="adapters: memory of all", unit="MB", ours=memory / 1e6, target=MEMORY_TARGET),
            Row(name="adapters: a share on the wire", unit="kB", ours=share / 1e3, target=SHARE_TARGET),
            Row(name="Fashion-MNIST: a peer's own memory", unit="MB", ours=own / 1e6),
        ],
    )


@contextmanager
def _playing(world: World, method: Choice, rounds: int) -> Iterator[tuple[ProcessesEngine, Path]]:
    """Yield the peers after some rounds, and the parent of their folders; the peers go on running."""
    with (
        tempfile.TemporaryDirectory(prefix="fedpeer-bench-") as folder,
        ProcessesEngine(world, method, folder=Path(folder) / "peers") as engine,
    ):
        for _ in range(rounds):
            engine.step()
        yield engine, Path(folder) / "peers" / "peers"


def _with_adapters(file: Path) -> tuple[World, Choice]:
    """Return the world and the method of the experiment, after writing its frozen model to this file."""
    (request,) = next(
        cell for cell in ADAPTERS.cells(ADAPTERS.sizes["default"]) if cell.label == LABEL
    ).variants.values()
    dataset = load_dataset(request.federation.simulation.dataset)
    save_file(transformer(dataset.x.shape[1:], dataset.vocabulary, causal=True).state_dict(), file)
    learning = request.federation.learning.model_copy(update={"start": parse_choice(f"file:{file}")})
    settings = {"network": parse_choice("transformer,causal=true"), "learning": learning}
    return build_world(request.federation.model_copy(update=settings), dataset, 0), request.methods[0]


def _with_images() -> World:
    federation = Federation.model_validate(
        {
            "network": "mlp:784+50+10",
            "learning": {"batch_size": 50, "rounds": 10},
            "gossip": {"tolerance": 1e-2},
            "simulation": {"peers": 4, "dataset": "fashion-mnist", "split": "blocks:500,shuffle=true"},
        }
    )
    return build_world(federation, load_dataset(federation.simulation.dataset), 0)


def _own_bytes(pid: int) -> int:
    """Return the bytes of memory that a process has changed and shares with no other."""
    return sum(int(line.split()[1]) for line in memory_lines(pid) if line.startswith("Private_Dirty:")) * 1024


if __name__ == "__main__":
    show("peer_memory", __doc__, measure)
