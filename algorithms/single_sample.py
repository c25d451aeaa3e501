"""Single-sample SGD of a stack of linear layers as one compiled loop.

With one example an update, the time of a torch loop is spent in calls, not in arithmetic (114 us a sample against
44 us compiled, for 784-300-100-10). This module holds that loop, compiled by numba and cached per user; the
arithmetic is that of `linear_stack.train` with a batch of one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedpeer.algorithms.linear_stack import Layer
from fedpeer.algorithms.losses import Loss

_CODES = {"identity": 0, "sigmoid": 1, "tanh": 2, "relu": 3}


def table(layers: tuple[Layer, ...]) -> NDArray[np.int64]:
    """(layers, 5) int64 for the compiled loop: fan_in, fan_out, weight offset, bias offset or -1, activation code."""
    rows = [(y.fan_in, y.fan_out, y.weight, -1 if y.bias is None else y.bias, _CODES[y.activation]) for y in layers]
    return np.array(rows, np.int64)


def train(
    layers: NDArray[np.int64], loss: Loss, x_n: NDArray[np.float32], inputs_SF: NDArray[np.float32], y_S: Any, lr: float
) -> None:
    """One update for each of the S examples, in order, in place on x_n (n,) float32.

    y_S is (S,) int64 classes, or (S, outputs) numbers for regression.
    """
    assert loss.code >= 0, f"{loss.name} has no compiled loop"
    numbers = np.zeros((1, 1), np.float32) if loss.classifies else np.ascontiguousarray(y_S, np.float32)
    classes = np.ascontiguousarray(y_S, np.int64) if loss.classifies else np.zeros(1, np.int64)
    _train(
        layers,
        loss.code,
        x_n,
        np.ascontiguousarray(inputs_SF),
        classes,
        numbers.reshape(len(numbers), -1),
        np.float32(lr),
    )


@njit(cache=True, fastmath={"reassoc", "contract", "nsz", "arcp"}, boundscheck=False, nogil=True)
def _train(layers, code, x, inputs, classes, numbers, lr):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    depth = layers.shape[0]
    widest = 0
    for k in range(depth):
        widest = max(widest, layers[k, 0], layers[k, 1])
    seen = np.zeros((depth + 1, widest), np.float32)
    delta = np.zeros(widest, np.float32)
    below = np.zeros(widest, np.float32)
    for sample in range(inputs.shape[0]):
        for i in range(layers[0, 0]):
            seen[0, i] = inputs[sample, i]
        for k in range(depth):
            fan_in, fan_out, at, bias, activation = layers[k]
            a, result = seen[k, :fan_in], seen[k + 1]
            for o in range(fan_out):
                row = x[at + o * fan_in : at + (o + 1) * fan_in]
                z = np.float32(0.0) if bias < 0 else x[bias + o]
                for i in range(fan_in):
                    z += row[i] * a[i]
                if activation == 1:
                    z = np.float32(1.0) / (np.float32(1.0) + np.exp(-z))
                elif activation == 2:
                    z = np.tanh(z)
                elif activation == 3:
                    z = max(z, np.float32(0.0))
                result[o] = z
        outputs = layers[depth - 1, 1]
        _output_delta(code, seen[depth, :outputs], classes, numbers, sample, delta)
        for k in range(depth - 1, -1, -1):
            fan_in, fan_out, at, bias, _ = layers[k]
            a = seen[k, :fan_in]
            if k > 0:
                for i in range(fan_in):
                    below[i] = 0.0
            for o in range(fan_out):
                row = x[at + o * fan_in : at + (o + 1) * fan_in]
                d = delta[o]
                step = lr * d
                if k > 0:
                    for i in range(fan_in):
                        below[i] += d * row[i]
                        row[i] -= step * a[i]
                else:
                    for i in range(fan_in):
                        row[i] -= step * a[i]
                if bias >= 0:
                    x[bias + o] -= step
            if k > 0:
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


@njit(cache=True, boundscheck=False, nogil=True)
def _output_delta(code, z, classes, numbers, sample, delta):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """`Loss.delta` for one example; the codes are those of `losses.LOSSES`."""
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
        target = np.float32(classes[sample]) if outputs == 1 else np.float32(classes[sample] == o)
        a = np.float32(1.0) / (np.float32(1.0) + np.exp(-z[o]))
        delta[o] = a - target
        if code == 1:
            delta[o] *= a * (np.float32(1.0) - a)
