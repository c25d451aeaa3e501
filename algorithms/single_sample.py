"""Single-sample SGD of a stack of linear layers as one compiled loop.

With one example an update, a torch loop spends its time in calls, not in arithmetic (114 us a sample against 44 us
compiled, for 784-300-100-10). This module is that loop, compiled by numba and cached per user; the arithmetic is the
same as in `linear_stack.train_stack` with a batch of one.

Where most inputs are zero, as in images with a dark background, weights that read a zero neither add to a sum nor
change. The first layer is then transposed once, so that the weights of an input are adjacent, and the weights of zeros
are not touched. A step then takes a third of the time on MNIST, where a fifth of the pixels are not zero. `python -m
benchmarks.run --only single_sample` measures both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedpeer.algorithms.linear_stack import Layer
from fedpeer.algorithms.losses import Loss

#: The first layer is transposed if at most this fraction of all inputs of a call differs from zero; above it, reading
#: all weights in order is faster.
SPARSE_MOST = 0.5

_CODES = {"identity": 0, "sigmoid": 1, "tanh": 2, "relu": 3}


def example_table(layers: tuple[Layer, ...]) -> NDArray[np.int64]:
    """Return the layers for the compiled loop, (layers, 5) int64.

    Columns: fan_in, fan_out, weight offset, bias offset or -1, activation code.
    """
    rows = [(y.fan_in, y.fan_out, y.weight, -1 if y.bias is None else y.bias, _CODES[y.activation]) for y in layers]
    return np.array(rows, np.int64)


def train_single_samples(
    layers: NDArray[np.int64], loss: Loss, x_n: NDArray[np.float32], inputs_SF: NDArray[np.float32], y_S: Any, lr: float
) -> None:
    """Take one step for each of the S examples, in order, in place on x_n (n,) float32.

    Args:
        layers: the table of `example_table`.
        y_S: (S,) int64 classes, or (S, outputs) numbers, or labels of 0 and 1.
    """
    assert loss.code >= 0, f"{loss.name} has no compiled loop"
    numbers = np.zeros((1, 1), np.float32) if loss.classifies else np.ascontiguousarray(y_S, np.float32)
    classes = np.ascontiguousarray(y_S, np.int64) if loss.classifies else np.zeros(1, np.int64)
    sparse = np.count_nonzero(inputs_SF) <= SPARSE_MOST * inputs_SF.size
    _train(
        layers,
        loss.code,
        x_n,
        np.ascontiguousarray(inputs_SF),
        classes,
        numbers.reshape(len(numbers), -1),
        np.float32(lr),
        sparse,
    )


_compiled = njit(cache=True, fastmath={"reassoc", "contract", "nsz", "arcp"}, boundscheck=False, nogil=True)


@_compiled
def _train(layers, code, x, inputs, classes, numbers, lr, sparse):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    depth = layers.shape[0]
    widest = 0
    for k in range(depth):
        widest = max(widest, layers[k, 0], layers[k, 1])
    seen = np.zeros((depth + 1, widest), np.float32)
    delta = np.zeros(widest, np.float32)
    below = np.zeros(widest, np.float32)
    features, hidden, first = layers[0, 0], layers[0, 1], layers[0, 2]
    turned = np.empty((features, hidden) if sparse else (0, 0), np.float32)
    if sparse:
        _turn(x[first : first + features * hidden], turned)
    active = np.empty(features, np.int64)
    for sample in range(inputs.shape[0]):
        for i in range(features):
            seen[0, i] = inputs[sample, i]
        count = _not_zero(seen[0, :features], active) if sparse else 0
        for k in range(depth):
            fan_in, fan_out, at, bias, activation = layers[k]
            a, result = seen[k, :fan_in], seen[k + 1, :fan_out]
            for o in range(fan_out):
                result[o] = np.float32(0.0) if bias < 0 else x[bias + o]
            if k == 0 and sparse:
                _add_active(turned, a, active[:count], result)
            else:
                for o in range(fan_out):
                    row = x[at + o * fan_in : at + (o + 1) * fan_in]
                    z = result[o]
                    for i in range(fan_in):
                        z += row[i] * a[i]
                    result[o] = z
            for o in range(fan_out):
                if activation == 1:
                    result[o] = np.float32(1.0) / (np.float32(1.0) + np.exp(-result[o]))
                elif activation == 2:
                    result[o] = np.tanh(result[o])
                elif activation == 3:
                    result[o] = max(result[o], np.float32(0.0))
        outputs = layers[depth - 1, 1]
        _output_delta(code, seen[depth, :outputs], classes, numbers, sample, delta)
        for k in range(depth - 1, -1, -1):
            fan_in, fan_out, at, bias, _ = layers[k]
            a = seen[k, :fan_in]
            if bias >= 0:
                for o in range(fan_out):
                    x[bias + o] -= lr * delta[o]
            if k == 0:
                if sparse:
                    _step_active(turned, a, active[:count], delta[:fan_out], lr)
                else:
                    for o in range(fan_out):
                        row = x[at + o * fan_in : at + (o + 1) * fan_in]
                        step = lr * delta[o]
                        for i in range(fan_in):
                            row[i] -= step * a[i]
                continue
            for i in range(fan_in):
                below[i] = 0.0
            for o in range(fan_out):
                row = x[at + o * fan_in : at + (o + 1) * fan_in]
                d = delta[o]
                step = lr * d
                for i in range(fan_in):
                    below[i] += d * row[i]
                    row[i] -= step * a[i]
            activation = layers[k - 1, 4]
            for i in range(fan_in):
                if activation == 1:
                    delta[i] = below[i] * a[i] * (np.float32(1.0) - a[i])
                elif activation == 2:
                    delta[i] = below[i] * (np.float32(1.0) - a[i] * a[i])
                elif activation == 3:
                    delta[i] = below[i] if a[i] > 0 else np.float32(0.0)
                else:
                    delta[i] = below[i]
    if sparse:
        _turn_back(turned, x[first : first + features * hidden])


#: Inputs whose weights are transposed together: as many float32 as a cache line holds.
_LINE = 16


@_compiled
def _turn(rows, turned):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Transpose (outputs * inputs,) to (inputs, outputs)."""
    inputs, outputs = turned.shape
    for start in range(0, inputs, _LINE):
        for o in range(outputs):
            for i in range(start, min(start + _LINE, inputs)):
                turned[i, o] = rows[o * inputs + i]


@_compiled
def _turn_back(turned, rows):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    inputs, outputs = turned.shape
    for start in range(0, inputs, _LINE):
        for o in range(outputs):
            for i in range(start, min(start + _LINE, inputs)):
                rows[o * inputs + i] = turned[i, o]


@_compiled
def _not_zero(a, active):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Return how many inputs are not zero; their numbers go into `active`."""
    count = 0
    for i in range(len(a)):
        if a[i] != 0:
            active[count] = i
            count += 1
    return count


@_compiled
def _add_active(turned, a, active, result):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Add up four inputs at a time, so that sums are loaded and stored a quarter as often."""
    fours = len(active) // 4 * 4
    for j in range(0, fours, 4):
        i0, i1, i2, i3 = active[j], active[j + 1], active[j + 2], active[j + 3]
        row0, row1, row2, row3 = turned[i0], turned[i1], turned[i2], turned[i3]
        a0, a1, a2, a3 = a[i0], a[i1], a[i2], a[i3]
        for o in range(len(result)):
            result[o] += a0 * row0[o] + a1 * row1[o] + a2 * row2[o] + a3 * row3[o]
    for i in active[fours:]:
        row = turned[i]
        for o in range(len(result)):
            result[o] += a[i] * row[o]


@_compiled
def _step_active(turned, a, active, delta, lr):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    for i in active:
        row = turned[i]
        step = lr * a[i]
        for o in range(len(delta)):
            row[o] -= step * delta[o]


@njit(cache=True, boundscheck=False, nogil=True)
def _output_delta(code, z, classes, numbers, sample, delta):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Write `Loss.delta` for one example; the codes are those of `losses.LOSSES`."""
    outputs = z.shape[0]
    if code == 0:
        top = z[0]
        for o in range(outputs):
            top = max(top, z[o])
        total = np.float32(0.0)
        for o in range(outputs):
            delta[o] = np.exp(z[o] - top)
            total += delta[o]
        for o in range(outputs):
            delta[o] /= total
        delta[classes[sample]] -= np.float32(1.0)
        return
    for o in range(outputs):
        if code == 3:
            delta[o] = (np.float32(2.0) / np.float32(outputs)) * (z[o] - numbers[sample, o])
            continue
        a = np.float32(1.0) / (np.float32(1.0) + np.exp(-z[o]))
        if code == 4:
            delta[o] = (a - numbers[sample, o]) / np.float32(outputs)
            continue
        target = np.float32(classes[sample]) if outputs == 1 else np.float32(classes[sample] == o)
        delta[o] = a - target
        if code == 1:
            delta[o] *= a * (np.float32(1.0) - a)
