"""After the imports of the optimizers the first optimizer imports nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import torch
from fedpeer.algorithms import warm_up

before = len(sys.modules)
warm_up.import_optimizers()
imported = len(sys.modules)
torch.optim.Adam([torch.nn.Parameter(torch.zeros(3))])
print(before, imported, len(sys.modules), "numba" in sys.modules)
"""


@pytest.mark.slow
def test_the_first_optimizer_imports_nothing_any_more() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    *counts, numba = done.stdout.split()
    before, imported, after = map(int, counts)
    assert imported > before, "otherwise there is nothing to be done early"
    assert after == imported
    assert numba == "False", "it takes 60 MB in each process, for loops that no optimizer runs"
