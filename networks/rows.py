"""Images for networks over sequences: an image is the sequence of its rows."""

from __future__ import annotations

from torch import Tensor


def sequence_shape(input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of one example as a sequence.

    An image (C, H, W) becomes (H, C * W); all other shapes stay.
    """
    if len(input_shape) != 3:
        return input_shape
    channels, height, width = input_shape
    return height, channels * width


def as_sequences(x: Tensor, *, tokens: bool) -> Tensor:
    """Return images, (B, C, H, W), as sequences of their rows, (B, H, C * W); sequences stay as they are.

    Args:
        tokens: whether the network reads numbers of tokens.

    Raises:
        ValueError: the network reads tokens, and x has other numbers.
    """
    if tokens and x.is_floating_point():
        raise ValueError(
            f"it reads sequences, and an example is a row of {x.shape[1]} numbers; give sequences (T, F), or images "
            "(such as shape=image), whose rows it reads"
        )
    return x.transpose(1, 2).flatten(2) if x.dim() == 4 else x
