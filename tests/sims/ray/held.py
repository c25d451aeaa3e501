"""A network that waits after some training, and a data set that waits while it is loaded, as long as a file exists."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from fedpeer.data.dataset import DataError, Dataset

#: Environment variable that names the file, for the processes of a cluster that was started with it.
VARIABLE = "FEDPEER_TEST_HOLD"
#: Calls before the network waits: more than in a round, and fewer than in a run.
CALLS = 100


def held_data() -> Dataset:
    """Write the process's number into the file, and wait until that is removed."""
    hold = Path(os.environ[VARIABLE])
    hold.write_text(str(os.getpid()), encoding="utf-8")
    while hold.exists():
        time.sleep(0.01)
    raise DataError("the test is over")


class Held(nn.Module):
    """A network 64-10, which `Loop` trains, one peer after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(64, 10)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        float(x.sum())  # `vmap` has no rule for this
        hold = os.environ.get(VARIABLE)
        if hold and multiprocessing.parent_process() is not None and self.training and torch.is_grad_enabled():
            self.calls += 1
            while self.calls > CALLS and Path(hold).exists():
                time.sleep(0.01)
        answer: Tensor = self.output(x)
        return answer
