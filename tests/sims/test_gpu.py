"""CPU against CUDA: the same federation and seed give the same parameters within 1e-4. Run by `make gpu`."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from fedpeer.data.dataset import Dataset
from fedpeer.learning.holdings import load_dataset
from fedpeer.sims.world import build_world
from tests.sims.worlds import federation, played, relative

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def digits(kind: Any) -> Dataset:
    found = load_dataset(federation().simulation.dataset)
    shape = {"features": (-1, 64), "image": (-1, 1, 8, 8), "tokens": (-1, 64)}[kind]
    x = found.x.reshape(shape)
    return dataclasses.replace(found, x=(x * 16).astype("int64") if kind == "tokens" else x, input_kind=kind)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("features", {}),
        ("features", {"learning__batch_size": 1}),
        ("features", {"learning__optimizer": "adam,lr=0.01"}),
        ("image", {"network": "cnn:4,hidden=8,kernel=3"}),
        ("image", {"network": "cnn:4,hidden=8,kernel=3,norm=batch"}),
        ("tokens", {"network": "lstm:6,embedding=4"}),
    ],
    ids=["stack", "single sample", "adam", "mapped", "loop with buffers", "lstm"],
)
@pytest.mark.parametrize("method", ["local", "partial-averaging"])
def test_a_gpu_gives_the_cpus_numbers(kind: str, settings: dict[str, Any], method: str) -> None:
    made = build_world(federation(**settings), digits(kind), 0)
    assert relative(played(made, method=method, device="cuda").cpu(), played(made, method=method)) < 1e-4
