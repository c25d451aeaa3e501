"""Wire forms of a share's value: plain number types, and compressed forms that need fewer bytes.

A form turns numbers into a payload and back. The sender debits what the receiver restores, bit for bit, so mass is
conserved: whatever rounding loses or compression leaves out stays with the sender. `Form` names, packs and checks;
`pack_values` and `restore` add the reference.

What a coarse form leaves out is value without weight, and distorts the sender's estimate. A channel delivers every
transfer once and in order, so both its ends can hold the same *reference*: what the receiver already knows of the
sender's estimate. Only the difference, share - weight * reference, is packed; both ends then move the reference by
what was carried. Differences shrink as peers come to agree, and the error with them: 16 peers on a 4-regular graph come
as close to the true mean of normal vectors with int8 as with float32 (1e-7 after 100 exchanges), while bfloat16 of the
share itself stops at 3e-3. So all forms coarser than float32 use a reference. The price is a float32 vector (D,) for
each channel. A channel's first transfer is plain float32: before it there is no reference.

The receiver takes numbers that top-k leaves out to be unchanged, while the sender's remainder moves the other way. Each
number is sent about every 1 / share exchanges; if each exchange gave the full share, the remainder would diverge (on
digits top-k:0.1 ends at a disagreement of 1,000). So a top-k channel gives only the fraction `pace` of the usual share,
by default as much as `share`. Constant vectors then converge on rings, stars, regular and complete graphs; at 2.5 times
this pace they do not on all of them.

With w as the usual share, and the references as public copies of the estimates, an exchange of peers whose weights are
equal is x <- x + pace * (sum of w * (copy of a neighbor - copy of one's own)). That is the gossip of CHOCO (2019,
Algorithm 1), and the pace is its consensus step size. `algorithms/choco.py` compresses by itself, and takes pace 1.

Sources: Alistarh et al., QSGD, 2017 (stochastic rounding in blocks); Stich, Cordonnier, Jaggi, Sparsified SGD with
memory, 2018 (top-k, the rest is kept); Koloskova, Stich, Jaggi, Decentralized stochastic optimization and gossip
algorithms with compressed communication, 2019 (a public copy of each neighbor's value).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import zstandard
from torch import Tensor

#: Numbers that share one scale: the scale's 4 bytes are then under 2 % of the payload.
BLOCK = 256

#: A reference stays finite whatever weights and differences another peer sends, so that its products do too.
_REFERENCE_MAX = float(torch.finfo(torch.float32).max)


class FormError(ValueError):
    """The user's form is invalid; the message names it and the valid values."""


class Form(Protocol):
    """The encoding of one channel's values.

    name       its name on the wire and in messages
    dtype      type of the payload: the plain type itself, or uint8
    relative   whether the difference to the channel's reference is packed
    pace       fraction of the usual share that one exchange gives
    """

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def relative(self) -> bool: ...

    @property
    def pace(self) -> float: ...

    def bytes_bounds(self, length: int) -> tuple[int, int]:
        """Return the fewest and the most bytes of a payload of `length` numbers."""

    def pack(self, value_D: Tensor, draws: np.random.Generator) -> Tensor:
        """Encode values, (D,) float64, as a payload."""

    def unpack(self, payload: Tensor, length: int) -> Tensor:
        """Decode a payload in which `fault` finds nothing wrong to (D,) float64."""

    def fault(self, payload: Tensor, length: int) -> str | None:
        """Return the code of a rejection if a payload from another peer is invalid, else None."""


@dataclass(frozen=True)
class Plain:
    """Numbers of one type, one after the other, each rounded to nearest."""

    name: str
    dtype: torch.dtype
    relative: bool
    pace: float = 1.0

    def bytes_bounds(self, length: int) -> tuple[int, int]:
        return (length * self.dtype.itemsize,) * 2

    def pack(self, value_D: Tensor, draws: np.random.Generator) -> Tensor:
        return value_D.to(self.dtype)

    def unpack(self, payload: Tensor, length: int) -> Tensor:
        return payload.to(torch.float64)

    def fault(self, payload: Tensor, length: int) -> str | None:
        if payload.dtype != self.dtype:
            return "wrong_dtype"
        if payload.shape != (length,):
            return "wrong_shape"
        return None if all_finite(payload) else "not_finite"


FLOAT32 = Plain("float32", torch.float32, relative=False)


@dataclass(frozen=True)
class Int8:
    """A float32 scale for every BLOCK numbers, then one signed byte for each number, rounded at random without bias."""

    name: str = "int8"
    dtype: torch.dtype = torch.uint8
    relative: bool = True
    pace: float = 1.0

    def bytes_bounds(self, length: int) -> tuple[int, int]:
        return (length + 4 * _blocks(length),) * 2

    def pack(self, value_D: Tensor, draws: np.random.Generator) -> Tensor:
        blocks = _blocks(len(value_D))
        padded = np.zeros((blocks, BLOCK))
        padded.reshape(-1)[: len(value_D)] = value_D.numpy()
        scales = (np.abs(padded).max(axis=1) / 127).astype(np.float32)
        steps = padded / np.where(scales > 0, scales, 1).astype(np.float64)[:, None]
        steps = np.floor(steps + draws.random(padded.shape, dtype=np.float32)).clip(-127, 127).astype(np.int8)
        return _bytes(scales.tobytes() + steps.reshape(-1)[: len(value_D)].tobytes())

    def unpack(self, payload: Tensor, length: int) -> Tensor:
        scales, steps = self._parts(payload, length)
        return (scales.to(torch.float64).repeat_interleave(BLOCK)[:length]).mul_(steps)

    def fault(self, payload: Tensor, length: int) -> str | None:
        if payload.shape != (self.bytes_bounds(length)[0],):
            return "tail_length_wrong"
        scales, _ = self._parts(payload, length)
        return None if all_finite(scales) else "not_finite"

    @staticmethod
    def _parts(payload: Tensor, length: int) -> tuple[Tensor, Tensor]:
        return _split(payload, 4 * _blocks(length), torch.float32, torch.int8)


@dataclass(frozen=True)
class TopK:
    """The `share` of numbers largest in magnitude, as ascending int32 indices and float32 values; the rest is 0."""

    share: float
    pace: float
    dtype: torch.dtype = torch.uint8
    relative: bool = True

    @property
    def name(self) -> str:
        return f"top-k:{self.share:g}" + ("" if self.pace == self.share else f",pace={self.pace:g}")

    def count(self, length: int) -> int:
        return max(1, math.ceil(self.share * length))

    def bytes_bounds(self, length: int) -> tuple[int, int]:
        return (8 * self.count(length),) * 2

    def pack(self, value_D: Tensor, draws: np.random.Generator) -> Tensor:
        places = value_D.abs().topk(self.count(len(value_D)), sorted=False).indices.sort().values
        values = value_D[places].to(torch.float32)
        return torch.cat([places.to(torch.int32).view(torch.uint8), values.view(torch.uint8)])

    def unpack(self, payload: Tensor, length: int) -> Tensor:
        places, values = self._parts(payload, length)
        return torch.zeros(length, dtype=torch.float64).index_copy_(0, places.to(torch.int64), values.to(torch.float64))

    def fault(self, payload: Tensor, length: int) -> str | None:
        if payload.shape != (self.bytes_bounds(length)[0],):
            return "tail_length_wrong"
        places, values = self._parts(payload, length)
        if not (int(places[0]) >= 0 and int(places[-1]) < length and bool((places[1:] > places[:-1]).all())):
            return "wrong_shape"
        return None if all_finite(values) else "not_finite"

    def _parts(self, payload: Tensor, length: int) -> tuple[Tensor, Tensor]:
        return _split(payload, 4 * self.count(length), torch.int32, torch.float32)


@dataclass(frozen=True)
class Zstd:
    """Another form, compressed without loss."""

    inner: Form
    level: int
    dtype: torch.dtype = torch.uint8

    @property
    def name(self) -> str:
        return f"{self.inner.name}/zstd"

    @property
    def relative(self) -> bool:
        return self.inner.relative

    @property
    def pace(self) -> float:
        return self.inner.pace

    def bytes_bounds(self, length: int) -> tuple[int, int]:
        most = self.inner.bytes_bounds(length)[1]
        return 1, most + (most >> 8) + 128  # ZSTD_COMPRESSBOUND, zstd.h, with the most that it adds for short inputs

    def pack(self, value_D: Tensor, draws: np.random.Generator) -> Tensor:
        plain = self.inner.pack(value_D, draws).view(torch.uint8).numpy()
        return _bytes(zstandard.ZstdCompressor(level=self.level).compress(plain.data))

    def unpack(self, payload: Tensor, length: int) -> Tensor:
        inner = self._inside(payload, length)
        assert inner is not None, "`fault` finds nothing wrong with this payload"
        return self.inner.unpack(inner, length)

    def fault(self, payload: Tensor, length: int) -> str | None:
        fewest, most = self.bytes_bounds(length)
        if not fewest <= len(payload) <= most:
            return "tail_length_wrong"
        inner = self._inside(payload, length)
        return "tail_length_wrong" if inner is None else self.inner.fault(inner, length)

    def _inside(self, payload: Tensor, length: int) -> Tensor | None:
        """Return the payload of the inner form; None if this is no zstd frame, or not one of exactly the right size.

        The size is read from the frame's head before anything is decompressed.
        """
        packed, wanted = payload.numpy().data, self.inner.bytes_bounds(length)[1]
        try:
            if zstandard.get_frame_parameters(packed).content_size != wanted:
                return None
            plain = zstandard.ZstdDecompressor().decompress(packed, max_output_size=wanted, allow_extra_data=False)
        except zstandard.ZstdError:
            return None
        return _bytes(plain).view(self.inner.dtype) if len(plain) == wanted else None


@dataclass(frozen=True)
class Nothing:
    """The empty payload of a share that is not given (`event_trigger.py`); its weight is 0."""

    name: str = "nothing"
    dtype: torch.dtype = torch.uint8
    relative: bool = False
    pace: float = 1.0

    def bytes_bounds(self, length: int) -> tuple[int, int]:
        return 0, 0

    def pack(self, value_D: Tensor, draws: np.random.Generator) -> Tensor:
        return torch.empty(0, dtype=self.dtype)

    def unpack(self, payload: Tensor, length: int) -> Tensor:
        return torch.zeros(length, dtype=torch.float64)

    def fault(self, payload: Tensor, length: int) -> str | None:
        return None if payload.shape == (0,) else "wrong_shape"


NOTHING = Nothing()


def pack_values(
    form: Form, share_D: Tensor, weight: float, reference_D: Tensor | None, draws: np.random.Generator
) -> Tensor:
    """Encode a share of this value, (D,) float64, and weight for a channel with this reference."""
    if not form.relative:
        return form.pack(share_D, draws)
    return form.pack(share_D - weight * _known(reference_D, len(share_D)), draws)


def restore(
    form: Form, payload: Tensor, length: int, weight: float, reference_D: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the value that a payload carries, (D,) float64, and the next reference, which is the same on both ends."""
    carried_D = form.unpack(payload, length)
    if not form.relative:
        return carried_D, reference_D
    known_D = _known(reference_D, length)
    moved_D = as_reference(known_D + carried_D / weight)
    return carried_D.add_(weight * known_D), moved_D


def _known(reference_D: Tensor | None, length: int) -> Tensor:
    """Return the reference as float64; zero if another peer begins a channel with a difference."""
    return torch.zeros(length, dtype=torch.float64) if reference_D is None else reference_D.to(torch.float64)


def as_reference(estimate_D: Tensor) -> Tensor:
    """Round an estimate, (D,) float64, to a finite reference, (D,) float32, by clamping it to float32's range."""
    return estimate_D.clamp(-_REFERENCE_MAX, _REFERENCE_MAX).to(torch.float32)


def float64() -> Form:
    """8 bytes a number, exact"""
    return Plain("float64", torch.float64, relative=False)


def float32() -> Form:
    """4 bytes a number, the default"""
    return FLOAT32


def bfloat16() -> Form:
    """2 bytes a number, rounded differences from what was sent before"""
    return Plain("bfloat16", torch.bfloat16, relative=True)


def int8() -> Form:
    """1 byte a number and a scale for each 256, stochastically rounded differences from what was sent before"""
    return Int8()


def top_k(*, share: float, pace: float | None = None) -> Form:
    """only the fraction `share` of numbers that changed most, 8 bytes each; gives `pace` times the usual share"""
    pace = share if pace is None else pace
    for name, value in (("share", share), ("pace", pace)):
        if not 0 < value <= 1:
            raise FormError(f"top-k: {name} = {value:g}: write a number above 0 and up to 1, such as top-k:0.1")
    return TopK(share, pace)


def zstd(*, level: int = 3) -> Callable[[Form], Form]:
    """any of these forms, compressed without loss: float32/zstd, int8/zstd, top-k:0.1/zstd"""
    if not 1 <= level <= 19:
        raise FormError(f"zstd: level = {level}: write 1 (quick) to 19 (small)")
    return lambda inner: Zstd(inner, level)


#: Forms of a value on the wire, by name.
FORMS: dict[str, Callable[..., Form]] = {
    "float32": float32,
    "float64": float64,
    "bfloat16": bfloat16,
    "int8": int8,
    "top-k": top_k,
}

#: What may follow a form, after a slash.
PACKERS: dict[str, Callable[..., Callable[[Form], Form]]] = {"zstd": zstd}


def all_finite(values: Tensor) -> bool:
    """Return whether no number of a floating tensor is NaN or infinite; subnormal numbers and -0.0 are finite.

    A sum is finite only if every term is, and costs a fortieth of `isfinite().all()`, which writes a mask (25 million
    float32: 2 ms against 87). If the sum of finite numbers overflows, the smallest and the largest of them decide,
    which NaN passes through (4 ms).
    """
    return math.isfinite(values.sum().item()) or all(math.isfinite(end.item()) for end in values.aminmax())


def _blocks(length: int) -> int:
    return -(-length // BLOCK)


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _split(payload: Tensor, at: int, first: torch.dtype, second: torch.dtype) -> tuple[Tensor, Tensor]:
    """Split a payload into two arrays, copied because a message's bytes need not be aligned for the types."""
    return payload[:at].clone().view(first), payload[at:].clone().view(second)
