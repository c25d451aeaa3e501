"""Sixteen real peers that train adapters beside one frozen model: their memory in all, and the bytes of a share.

`python -m benchmarks.adapters [--quick]` prints this table alone. The job is that of the experiment `adapters`; the
frozen model is read from a file, and its weights are drawn, since memory and bytes do not depend on them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from safetensors.torch import save_file

from benchmarks.measure import proportional_bytes
from benchmarks.processes import door
from benchmarks.rows import Row, Section, show
from fedpeer.config.choice import parse_choice
from fedpeer.experiments.adapters import ADAPTERS
from fedpeer.learning.holdings import load_dataset
from fedpeer.networks.registry import transformer
from fedpeer.peer.runtime.dashboard.ask import ask
from fedpeer.sims.processes.engine import ProcessesEngine
from fedpeer.sims.world import build_world

#: Megabytes of memory of all peers together, and kilobytes of a share.
MEMORY_TARGET, SHARE_TARGET = 1200, 300
#: The line of the experiment whose peers send the most.
LABEL = "one common adapter"


def measure(quick: bool) -> Section:
    """Four rounds; quick: two."""
    size = ADAPTERS.sizes["default"]
    (request,) = next(cell for cell in ADAPTERS.cells(size) if cell.label == LABEL).variants.values()
    rounds = 2 if quick else 4
    with tempfile.TemporaryDirectory(prefix="fedpeer-bench-") as folder:
        file = Path(folder) / "model.safetensors"
        dataset = load_dataset(request.federation.simulation.dataset)
        save_file(transformer(dataset.x.shape[1:], dataset.vocabulary, causal=True).state_dict(), file)
        learning = request.federation.learning.model_copy(update={"start": parse_choice(f"file:{file}")})
        settings = {"network": parse_choice("transformer,causal=true"), "learning": learning}
        world = build_world(request.federation.model_copy(update=settings), dataset, 0)
        before = proportional_bytes()
        with ProcessesEngine(world, request.methods[0], folder=Path(folder) / "peers") as engine:
            for _ in range(rounds):
                engine.step()
            memory = proportional_bytes() - before
            groups = [ask(door(Path(folder) / "peers" / "peers" / peer))["groups"][0] for peer in world.peers]
    share = max(group["bytes_sent"] / group["messages_sent"] for group in groups)
    return Section(
        f"{len(world.peers)} real peers with adapters of rank 8 beside one frozen model of characters",
        "Each is a process, and all of them train when memory is measured. Memory counts pages that processes share "
        "once. The job is that of the experiment `adapters`, with the frozen model in a file.",
        [
            Row(name="memory of all peers", unit="MB", ours=memory / 1e6, target=MEMORY_TARGET),
            Row(name="a share on the wire", unit="kB", ours=share / 1e3, target=SHARE_TARGET),
        ],
    )


if __name__ == "__main__":
    show("adapters", __doc__, measure)
