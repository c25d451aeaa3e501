"""Channels whose form changes while transfers are under way: each transfer is read in the form in which it was made.

A transfer names its form, so a transfer made before a change is repeated, taken and acknowledged unchanged. The
*reference* of the sender's estimate must be the same on both ends, whenever each end changes its form, so it may depend
on the transfers alone. The name "float32" would be ambiguous: it begins a reference if the form needs one, and is the
form itself otherwise. So no transfer is made under that name after a change: plain float32 is then "float32/base",
which always begins a reference, and "float32" keeps the meaning that it had in the channel's first form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpeer.gossip.reductions import FLOAT32, Form, Plain

#: Plain float32 that begins a reference, whatever the channel's form is.
_BASE = Plain("float32/base", torch.float32, relative=False)


@dataclass(frozen=True)
class Successive:
    """A form that replaced others.

    now     the form of new shares
    before  earlier forms, oldest first; at least one
    """

    now: Form
    before: tuple[Form, ...]

    @property
    def name(self) -> str:
        return self.now.name

    @property
    def dtype(self) -> torch.dtype:
        return self.now.dtype

    @property
    def relative(self) -> bool:
        return self.now.relative

    @property
    def pace(self) -> float:
        return self.now.pace

    def bytes_bounds(self, length: int) -> tuple[int, int]:
        return self.now.bytes_bounds(length)

    def pack(self, value_D: Tensor, draws: np.random.Generator) -> Tensor:
        return self.now.pack(value_D, draws)

    def unpack(self, payload: Tensor, length: int) -> Tensor:
        return self.now.unpack(payload, length)

    def fault(self, payload: Tensor, length: int) -> str | None:
        return self.now.fault(payload, length)


def read_in(form: Form) -> dict[str, Form]:
    """Return the forms that a transfer on a channel of this form may have, by name."""
    forms = (FLOAT32, _BASE, *form.before, form.now) if isinstance(form, Successive) else (FLOAT32, form)
    return {each.name: each for each in forms}


def made_in(form: Form, name: str) -> tuple[Form, bool]:
    """Return the form that a transfer on a channel of `form` names, and whether the transfer begins a reference."""
    if not isinstance(form, Successive):
        assert name in (form.name, FLOAT32.name), "a channel knows its form and float32"
        return (form, False) if name == form.name else (FLOAT32, form.relative)
    if name == FLOAT32.name:
        return FLOAT32, form.before[0].relative
    return read_in(form)[name], name == _BASE.name


def next_form(form: Form, *, begun: bool, whole: bool) -> Form:
    """Return the form of a channel's next transfer.

    Args:
        begun: whether the channel has a reference.
        whole: whether the transfer must be uncompressed.
    """
    plain = FLOAT32 if not isinstance(form, Successive) else _BASE
    if whole:
        return form if form.dtype == torch.float64 else plain
    return plain if (form.relative and not begun) or form.name == FLOAT32.name else form
