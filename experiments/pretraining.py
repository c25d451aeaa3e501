"""A small language model of characters that is pretrained on Shakespeare's comedies, as a network to put adapters on.

It is trained when it is built, by itself and not by peers: the same numbers for every seed of a run, on one kind of
machine. A process trains it once.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import nn

from fedpeer.algorithms.draws import Draws, guarded
from fedpeer.algorithms.losses import LOSSES
from fedpeer.data.shakespeare import shakespeare
from fedpeer.networks.registry import NetworkError, transformer

#: Pieces of text in a step, and the rate at the first one, which falls to zero along a line.
_BATCH, _RATE = 32, 0.003


def character_model(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    width: int = 64,
    heads: int = 4,
    layers: int = 2,
    steps: int = 3000,
) -> nn.Module:
    """Return a causal transformer that was trained for `steps` steps on the comedies.

    Raises:
        NetworkError: the data are not texts of the same characters.
    """
    if len(input_shape) != 1:
        raise NetworkError(f"character_model reads text, and one example here has shape {input_shape}")
    return _trained(input_shape[0], outputs, width, heads, layers, steps)


@functools.cache
def _trained(length: int, characters: int, width: int, heads: int, layers: int, steps: int) -> nn.Module:
    comedies = shakespeare(users=None, samples=None, plays=("comedies",), each=True)
    x, y = (torch.from_numpy(np.ascontiguousarray(each)) for each in (comedies.x, comedies.y))
    if (x.shape[1], comedies.vocabulary) != (length, characters):
        raise NetworkError(
            f"character_model has pieces of {x.shape[1]} characters, of {comedies.vocabulary} kinds, and the data "
            f"{length} of {characters}; take shakespeare,each=true"
        )
    draws = Draws(0)
    with guarded(draws.key("start")):
        model = transformer((length,), characters, width=width, heads=heads, layers=layers, causal=True)
    order, loss = draws.torch("batches"), LOSSES["next-token"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1.0 / steps, steps)
    for _ in range(steps):
        rows = torch.randint(len(x), (_BATCH,), generator=order)
        optimizer.zero_grad()
        torch.autograd.backward(loss.value(model(x[rows]), y[rows]))
        optimizer.step()
        falling.step()
    return model.eval()
