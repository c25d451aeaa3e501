"""Hand-written programs that do one job each and nothing else: the floors with which fedpeer's speed is compared.

They do not use fedpeer. The network is always 784-300-100-10 with sigmoids, cross-entropy and plain SGD; a peer's
parameters are one flat row, layer after layer, weight before bias. `TwoProcesses` is the common job: worker processes
with one torch thread each, parameters in shared memory, a hand-written backward pass, and neighbor averaging by a
mixing matrix.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor, nn

SIZES = (784, 300, 100, 10)
PARAMETERS = sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(SIZES))

#: (peer, round counted from 1) -> the order of the peer's examples in that round.
Order = Callable[[int, int], NDArray[np.int64]]


def layers(x_n: Tensor, sizes: tuple[int, ...] = SIZES) -> list[tuple[Tensor, Tensor]]:
    """Return weight (out, in) and bias (out,) of each layer, as views of a row."""
    views, at = [], 0
    for fan_in, fan_out in pairwise(sizes):
        weight = x_n[at : at + fan_out * fan_in].view(fan_out, fan_in)
        at += fan_out * (fan_in + 1)
        views.append((weight, x_n[at - fan_out : at]))
    return views


@torch.no_grad()
def manual_pass(x_n: Tensor, images_NF: Tensor, labels_N: Tensor, index_S: Tensor, batch: int, lr: float) -> None:
    """Take steps of SGD over the examples `index_S` in that order, with a hand-written backward pass, in place."""
    (w1, b1), (w2, b2), (w3, b3) = layers(x_n)
    rows, rate = torch.arange(batch), -lr / batch
    for first in range(0, len(index_S), batch):
        index = index_S[first : first + batch]
        a0 = images_NF.index_select(0, index)
        a1 = torch.addmm(b1, a0, w1.t()).sigmoid_()
        a2 = torch.addmm(b2, a1, w2.t()).sigmoid_()
        d3 = torch.addmm(b3, a2, w3.t()).softmax(1)
        d3[rows, labels_N[index]] -= 1
        d2 = torch.ops.aten.sigmoid_backward(d3 @ w3, a2)
        d1 = torch.ops.aten.sigmoid_backward(d2 @ w2, a1)
        for weight, bias, delta, a in ((w3, b3, d3, a2), (w2, b2, d2, a1), (w1, b1, d1, a0)):
            weight.addmm_(delta.t(), a, alpha=rate)
            bias.add_(delta.sum(0), alpha=rate)


@torch.no_grad()
def two_layer_pass(x_n: Tensor, images_NF: Tensor, labels_N: Tensor, index_S: Tensor, batch: int, lr: float) -> None:
    """Take the same steps for 784-100-10 with ReLU."""
    (w1, b1), (w2, b2) = layers(x_n, (784, 100, 10))
    rows, rate = torch.arange(batch), -lr / batch
    for first in range(0, len(index_S), batch):
        index = index_S[first : first + batch]
        a0 = images_NF.index_select(0, index)
        a1 = torch.addmm(b1, a0, w1.t()).relu_()
        d2 = torch.addmm(b2, a1, w2.t()).softmax(1)
        d2[rows, labels_N[index]] -= 1
        d1 = torch.ops.aten.threshold_backward(d2 @ w2, a1, 0)
        for weight, bias, delta, a in ((w2, b2, d2, a1), (w1, b1, d1, a0)):
            weight.addmm_(delta.t(), a, alpha=rate)
            bias.add_(delta.sum(0), alpha=rate)


@torch.no_grad()
def accuracy(x_n: Tensor, images_NF: Tensor, labels_N: Tensor) -> float:
    """Return the fraction of right answers."""
    (w1, b1), (w2, b2), (w3, b3) = layers(x_n)
    a2 = torch.addmm(b2, torch.addmm(b1, images_NF, w1.t()).sigmoid_(), w2.t()).sigmoid_()
    return float((torch.addmm(b3, a2, w3.t()).argmax(1) == labels_N).float().mean())


def autograd_pass(
    module: nn.Module, images_NF: Tensor, labels_N: Tensor, index_S: Tensor, batch: int, lr: float
) -> None:
    """Run the loop of every tutorial, without torch's DataLoader: slices of tensors, autograd, torch's SGD."""
    optimizer, loss = torch.optim.SGD(module.parameters(), lr=lr), nn.CrossEntropyLoss()
    for first in range(0, len(index_S), batch):
        index = index_S[first : first + batch]
        optimizer.zero_grad()
        loss(module(images_NF[index]), labels_N[index]).backward()
        optimizer.step()


@njit(cache=True, fastmath=True)
def compiled_pass(x, images, labels, index, lr):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Take steps of single-sample SGD for exactly this network; float32 arrays, int64 labels and indices."""
    w1 = x[:235200].reshape(300, 784)
    b1 = x[235200:235500]
    w2 = x[235500:265500].reshape(100, 300)
    b2 = x[265500:265600]
    w3 = x[265600:266600].reshape(10, 100)
    b3 = x[266600:266610]
    one = np.float32(1.0)
    a1, a2, z = np.empty(300, np.float32), np.empty(100, np.float32), np.empty(10, np.float32)
    d1, d2 = np.empty(300, np.float32), np.empty(100, np.float32)
    for sample in index:
        a0 = images[sample]
        for o in range(300):
            a1[o] = one / (one + np.exp(-(b1[o] + _dot(w1[o], a0))))
        for o in range(100):
            a2[o] = one / (one + np.exp(-(b2[o] + _dot(w2[o], a1))))
        for o in range(10):
            z[o] = b3[o] + _dot(w3[o], a2)
        z = np.exp(z - z.max())
        z /= z.sum()
        z[labels[sample]] -= one
        d2[:] = 0
        for o in range(10):
            _descend(w3[o], b3, o, z[o], a2, d2, lr)
        d2 *= a2 * (one - a2)
        d1[:] = 0
        for o in range(100):
            _descend(w2[o], b2, o, d2[o], a1, d1, lr)
        d1 *= a1 * (one - a1)
        for o in range(300):
            step = lr * d1[o]
            b1[o] -= step
            for i in range(784):
                w1[o, i] -= step * a0[i]


@njit(inline="always", fastmath=True)
def _dot(row, a):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    total = np.float32(0.0)
    for i in range(row.shape[0]):
        total += row[i] * a[i]
    return total


@njit(inline="always", fastmath=True)
def _descend(row, bias, o, delta, a, below, lr):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    step = lr * delta
    bias[o] -= step
    for i in range(row.shape[0]):
        below[i] += delta * row[i]
        row[i] -= step * a[i]


@dataclass(frozen=True)
class Memory:
    """Shared memory of the processes of `TwoProcesses`; peer p trains on images held_PS[p], all test on the same ones.

    x   parameters (peers, n) twice: averaging reads one side and writes the other
    """

    x: tuple[Tensor, Tensor]
    images_NF: Tensor
    labels_N: Tensor
    held_PS: Tensor
    test_NF: Tensor
    test_N: Tensor
    matrix_PP: Tensor


class TwoProcesses:
    """Worker processes that train their peers, average their columns, and evaluate. Use as a context manager."""

    def __init__(self, memory: Memory, order: Order, *, batch: int, lr: float, workers: int = 2) -> None:
        self._memory, self._round, self._side = memory, 0, 0
        for tensor in (*memory.x, *(value for value in vars(memory).values() if isinstance(value, Tensor))):
            tensor.share_memory_()  # type: ignore[no-untyped-call]
        context = multiprocessing.get_context("forkserver")  # a plain fork hangs once torch has used threads
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(workers):
            ours, theirs = context.Pipe()
            arguments = (theirs, number, workers, memory, order, batch, lr)
            self._processes.append(context.Process(target=_serve, args=arguments, daemon=True))
            self._processes[-1].start()
            self._pipes.append(ours)

    def __enter__(self) -> TwoProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    @property
    def pids(self) -> list[int]:
        return [process.pid or 0 for process in self._processes]

    @property
    def x_Pn(self) -> Tensor:
        return self._memory.x[self._side]

    def train(self) -> None:
        self._round += 1
        self._all("train")

    def average(self) -> None:
        self._all("average")
        self._side = 1 - self._side

    def evaluate(self) -> list[float]:
        """Return the accuracy of each peer."""
        return [score for part in self._all("evaluate") for score in part]

    def _all(self, what: str) -> list[list[float]]:
        for pipe in self._pipes:
            pipe.send((what, self._round, self._side))
        return [pipe.recv() for pipe in self._pipes]


@torch.no_grad()
def _serve(pipe: Connection, number: int, workers: int, memory: Memory, order: Order, batch: int, lr: float) -> None:
    """Run worker `number`: it trains and evaluates consecutive peers, and averages consecutive columns."""
    torch.set_num_threads(1)
    peers, columns = memory.x[0].shape
    mine = range(number * peers // workers, (number + 1) * peers // workers)
    block = slice(number * columns // workers, (number + 1) * columns // workers)
    while True:
        try:
            what, round, side = pipe.recv()
        except EOFError:
            return
        scores: list[float] = []
        x_Pn, other_Pn = memory.x[side], memory.x[1 - side]
        if what == "train":
            for peer in mine:
                index_S = memory.held_PS[peer][torch.from_numpy(order(peer, round))]
                manual_pass(x_Pn[peer], memory.images_NF, memory.labels_N, index_S, batch, lr)
        elif what == "average":
            torch.mm(memory.matrix_PP, x_Pn[:, block], out=other_Pn[:, block])
        else:
            scores = [accuracy(x_Pn[peer], memory.test_NF, memory.test_N) for peer in mine]
        pipe.send(scores)
