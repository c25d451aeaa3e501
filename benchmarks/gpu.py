"""Small convolutional networks on an NVIDIA GPU: a round of a thousand peers beside a hand-written batched program.

`python -m benchmarks.gpu [--quick]` measures, prints, and writes gpu.json and gpu.md into docs/results. `FEDPEER_DATA`
has CIFAR-10; a sub-sample is repeated until there are as many images as in the whole data set, 50 for each of a
thousand peers.
"""

from __future__ import annotations

import argparse
import copy
import gc
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.data.dataset import Dataset
from fedpeer.learning.holdings import load_dataset
from fedpeer.sims.memory import engine_of, job_of
from fedpeer.sims.vector.engine import VectorEngine
from fedpeer.sims.world import World, build_world

COMMAND = "python -m benchmarks.gpu"
FOLDER, NAME = Path(__file__).parents[1] / "docs" / "results", "gpu"
PEERS, STEPS, BATCH, IMAGES, TESTED, RATE = 1_000, 10, 50, 50, 20, 0.05
#: Name of a network in the table -> network.
NETWORKS = {
    "LeNet: 6 and 16 5x5 channels, 120, 84": "python:benchmarks.gpu:lenet",
    "8 and 16 5x5 channels, 100": "cnn:8+16,hidden=100",
    "32 and 64 3x3 channels, 100": "cnn:32+64,hidden=100,kernel=3",
}
#: Peers that the hand-written program computes at once; the faster choice counts.
AT_ONCE = (125, 1_000)
MANY, MANY_NETWORK = 10_000, list(NETWORKS)[1]
SECONDS, OF_FLOOR, GIB = 1.0, 0.6, 40.0


def lenet() -> nn.Module:
    """The network of PyTorch's tutorial on CIFAR-10: 62,006 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def world_of(network: str, peers: int, *, optimizer: str = "sgd,lr=0.05") -> World:
    wanted = Federation.model_validate(
        {
            "network": network,
            "learning": {"batch_size": BATCH, "steps_between_averaging": STEPS, "optimizer": optimizer},
            "gossip": {"topology": "k-regular:4", "exchanges": 1, "tolerance": None},
            "simulation": {"peers": peers, "dataset": "cifar10", "split": f"blocks:{IMAGES},test={TESTED}"},
        }
    )
    return build_world(wanted, enough(load_dataset(wanted.simulation.dataset), peers * IMAGES), 0)


def enough(dataset: Dataset, wanted: int) -> Dataset:
    """Return `wanted` training images, repeated from the first where they end, and all test images."""
    assert dataset.test_N is not None
    rows = np.concatenate([np.resize(np.flatnonzero(~dataset.test_N), wanted), np.flatnonzero(dataset.test_N)])
    return replace(dataset, x=dataset.x[rows], y=dataset.y[rows], test_N=np.arange(len(rows)) >= wanted)


class ByHand:
    """The program that a user would write: vmap of the gradient for some peers, a step of SGD, one matrix product.

    Batches are drawn on the GPU, and torch's defaults apply, so convolutions round their inputs to ten bits (TF32).
    """

    def __init__(self, world: World, engine: VectorEngine, at_once: int) -> None:
        self._x_Pn, self._at_once = engine.x_Pn.clone(), at_once
        workspace = engine.workspace
        self._x_NF, self._index_PM = workspace.x_NF, workspace.train.index_T.view(len(self._x_Pn), -1)
        self._y_PM = workspace.train.y_T.view(self._index_PM.shape)
        (group,) = engine._plan.groups
        mixing = scipy.sparse.csr_array(engine._averaging[group.id].matrix(0)).toarray()
        self._mixing_PP = torch.from_numpy(mixing).float().cuda()
        module, layout = copy.deepcopy(world.module).cuda(), world.layout

        def loss(x_n: Tensor, images: Tensor, classes: Tensor) -> Tensor:
            return functional.cross_entropy(functional_call(module, layout.unflatten(x_n), (images,)), classes)

        self._gradient = vmap(grad(loss))

    def round(self) -> None:
        peers = len(self._x_Pn)
        for first in range(0, peers, self._at_once):
            some = slice(first, first + self._at_once)
            x_Bn, index_BM, y_BM = self._x_Pn[some], self._index_PM[some], self._y_PM[some]
            for _ in range(STEPS):
                place_Bb = torch.randint(index_BM.shape[1], (len(x_Bn), BATCH), device="cuda")
                images = self._x_NF[index_BM.gather(1, place_Bb)]
                x_Bn -= RATE * self._gradient(x_Bn, images, y_BM.gather(1, place_Bb))
        self._x_Pn = self._mixing_PP @ self._x_Pn


def seconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def compared(name: str, laps: int) -> dict[str, Any]:
    """Measure rounds of one network, alternating with the hand-written program."""
    world = world_of(NETWORKS[name], PEERS)
    job = job_of(world, "cuda")
    with engine_of(world, parse_choice("full-averaging"), job=job, device="cuda") as engine:
        programs = {at_once: ByHand(world, engine, at_once) for at_once in AT_ONCE}
        works: dict[Any, Callable[[], object]] = {"round": engine.step, "evaluation": engine.evaluate}
        works |= {at_once: program.round for at_once, program in programs.items()}
        found: dict[Any, list[float]] = {key: [] for key in works}
        for lap in range(laps + 1):
            for key, work in works.items():
                spent = seconds(work)
                if lap:  # the first one compiles and chooses kernels
                    found[key].append(spent)
    floor = min((found[at_once] for at_once in AT_ONCE), key=median)
    return {
        "network": name,
        "parameters": world.layout.n,
        "way": job.network.way,
        "block": job.network.block,
        **{key: median(found[key]) for key in ("round", "evaluation")},
        "by_hand": median(floor),
        "by_hand_at_once": next(at_once for at_once in AT_ONCE if found[at_once] is floor),
    }


def many() -> dict[str, Any]:
    """Measure the memory of many peers, each with its own state (momentum)."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    world = world_of(NETWORKS[MANY_NETWORK], MANY, optimizer="sgd,lr=0.05,momentum=0.9")
    with engine_of(world, parse_choice("partial-averaging"), device="cuda") as engine:
        spent = [seconds(engine.step) for _ in range(2)]
        evaluated = seconds(engine.evaluate)
        free, whole = torch.cuda.mem_get_info()
    return {
        "peers": MANY,
        "parameters": world.layout.n,
        "round": spent[-1],
        "evaluation": evaluated,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "used_gib": (whole - free) / 2**30,
        "examples_gib": engine.workspace.x_NF.nbytes / 2**30,
    }


def page(found: Mapping[str, Any]) -> str:
    """Return the whole page in Markdown."""
    rows: Sequence[Mapping[str, Any]] = found["rounds"]
    head = ["network", "parameters", "fedpeer, s", "by hand, s", "by hand / fedpeer", "evaluation, s"]
    lines = [
        [
            row["network"], f"{row['parameters']:,}", f"{row['round']:.2f}",
            f"{row['by_hand']:.2f} ({row['by_hand_at_once']:,} at once)",
            f"{row['by_hand'] / row['round']:.2f}", f"{row['evaluation']:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    large = found["many"]
    texts = [
        "# On a GPU",
        _paragraph(
            f"""A round of {PEERS:,} peers on one GPU: each takes {STEPS} steps of {BATCH} images, and all make one
            exchange on a 4-regular graph. Each has {IMAGES} images of CIFAR-10; *evaluation* tests each on {TESTED}.
            Figures are medians of {found["laps"]} rounds; the two programs take turns. Targets: at most {SECONDS:g} s,
            and at least {OF_FLOOR:g} of the speed of the program by hand."""
        ),
        _paragraph(
            """The program *by hand* computes `vmap` of the gradient for some peers at once, then a step of SGD, then
            one matrix product for the exchange. It draws its batches on the GPU and takes torch's defaults, by which
            convolutions round their inputs to ten bits (TF32). fedpeer computes in float32, so that a GPU gives the
            numbers of a CPU (`make gpu`); its batches are those of all engines; and its convolutions give the same
            bits in every run."""
        ),
        _table(head, lines),
        _paragraph(
            f"""**Memory.** {large["peers"]:,} peers with momentum of their own and the second network take
            {large["peak_gib"]:.1f} GiB at the peak, {large["used_gib"]:.1f} GiB with all that torch and CUDA hold
            (target: at most {GIB:g} GiB); of it {large["examples_gib"]:.1f} GiB are images. A round takes
            {large["round"]:.1f} s and its evaluation {large["evaluation"]:.1f} s. Parameters and states exist twice: a
            round reads one side and writes the other, so a run that is stopped goes on where it was."""
        ),
        f"```console\n$ {COMMAND}\n```",
        f"Measured on {found['date']} on one {found['card']}; torch {found['torch']}.",
    ]
    return "\n\n".join(texts) + "\n"


def _paragraph(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, [":--", *["--:"] * (len(head) - 1)], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round each; writes nothing")
    options = parser.parse_args()
    from datetime import date

    from fedpeer.runs.disk import write_json, write_text

    laps = 1 if options.quick else 7
    rounds = []
    for name in NETWORKS:
        rounds.append(compared(name, laps))
        print(rounds[-1], flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    found = {
        "rounds": rounds, "many": many(), "laps": laps, "date": date.today().isoformat(),
        "card": torch.cuda.get_device_name(), "torch": torch.__version__,
    }  # fmt: skip
    print(found["many"], flush=True)
    if not options.quick:
        write_json(FOLDER / f"{NAME}.json", found)
        write_text(FOLDER / f"{NAME}.md", page(found))


if __name__ == "__main__":
    main()
