"""Tails of messages, which follow the metadata: a text, a tensor, signatures, the content of an update or a model.

Each kind of tail declares how long it may be, how it is written and read, and what is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from fedpeer.gossip.reductions import FLOAT32, NOTHING, Form
from fedpeer.gossip.sparse_words import pack_words, packed_bytes_min, restore_words, wire_bytes
from fedpeer.gossip.tensor_bytes import Bytes, raw
from fedpeer.peer.wire.consensus_wire import SIGNATURES_BYTES, has_signatures, tail_of, with_tail
from fedpeer.peer.wire.message_policy import ConsensusSpec, GroupSpec
from fedpeer.peer.wire.message_spec import ParsedMetadata, Tail, about, sized
from fedpeer.peer.wire.wire_types import Many, OneOf, Reader, Whole, WireType, Writer
from fedpeer.rejection import Rejection

#: Dimensions of a tensor: only one is valid; more are read so that the rejection can name the shape.
_DIMENSIONS_MAX = 8
#: Encodings of an update's content: as it is, or packed by `sparse_words.py`.
PLAIN, SPARSE = "plain", "sparse"


def content_digest(content: Bytes) -> bytes:
    """Return the digest (32 bytes) of an update's or a model's content."""
    return blake2b(content, digest_size=32).digest()


@dataclass(frozen=True)
class TextTail(Tail):
    """The field `text`, of at most `bytes_max` bytes; `what` describes it in docs/wire.md."""

    what: str
    bytes_max: int

    def __str__(self) -> str:
        return f"{self.what}, at most {self.bytes_max:,} bytes"

    def most(self, group: object) -> int:
        return self.bytes_max

    def packed(self, message: Any) -> memoryview:
        assert len(message.text) <= self.bytes_max, f"a {type(message).__name__} of {len(message.text)} bytes"
        return memoryview(message.text)

    def read(self, parsed: ParsedMetadata, tail: memoryview) -> Mapping[str, Any]:
        return {"text": bytes(tail)}


# ------------------------------------------------------------------------------------------------------------ tensors


@dataclass(frozen=True)
class Shape(WireType):
    """The shape of a tensor whose elements are the tail."""

    def reader(self, version: int) -> Reader:
        return Many(Whole(), _DIMENSIONS_MAX).reader(version)

    def writer(self, version: int) -> Writer | None:
        return lambda tensor: tuple(tensor.shape)


def _shaped(parsed: ParsedMetadata, shape: tuple[int, ...], form: Form, group: GroupSpec) -> ParsedMetadata | Rejection:
    """Return the metadata if the tail is one vector of the group's length, or of a length that `form` allows for it."""
    least, most = (bound // form.dtype.itemsize for bound in form.bytes_bounds(group.length))
    if len(shape) != 1 or not least <= shape[0] <= most:
        wanted = f"({least},)" if least == most else f"({least}..{most},)"
        return about(parsed, "wrong_shape", f"{shape} instead of {wanted}")
    if parsed.tail_bytes != shape[0] * form.dtype.itemsize:
        return about(parsed, "tail_length_wrong", f"{parsed.tail_bytes} bytes for {shape[0]} of {form.name}")
    return replace(parsed, form=form, length=group.length)


def _vector(parsed: ParsedMetadata, tail: memoryview) -> Tensor | Rejection:
    """Return the tail's vector, a view of the tail if that is writable, or what is wrong with it."""
    form = parsed.form
    assert form is not None, "a tail that was admitted has its form"
    payload = _viewed(tail, form)
    fault = form.fault(payload, parsed.length)
    if fault is not None:
        return about(parsed, fault, f"in {form.name} of a group of {parsed.length}")
    return payload


def _viewed(tail: memoryview, form: Form) -> Tensor:
    if not len(tail):  # torch cannot view nothing
        return torch.empty(0, dtype=form.dtype)
    return torch.frombuffer(bytearray(tail) if tail.readonly else tail, dtype=form.dtype)


class ValueTail(Tail):
    """The field `value_D`, float32."""

    def __str__(self) -> str:
        return "float32, 4 bytes a number"

    def most(self, group: GroupSpec) -> int:
        return FLOAT32.bytes_bounds(group.length)[1]

    def packed(self, message: Any) -> memoryview:
        return raw(message.value_D)

    def admitted(self, parsed: ParsedMetadata, group: GroupSpec) -> ParsedMetadata | Rejection:
        return _shaped(parsed, parsed.fields["value_D"], FLOAT32, group)

    def read(self, parsed: ParsedMetadata, tail: memoryview) -> Mapping[str, Any] | Rejection:
        value_D = _vector(parsed, tail)
        return value_D if isinstance(value_D, Rejection) else {"value_D": value_D}


class ShareTail(Tail):
    """The payload of the field `share`, in the wire encoding that its `form` names."""

    def __str__(self) -> str:
        return "the payload, encoded as `form` says"

    def most(self, group: GroupSpec) -> int:
        return max((form.bytes_bounds(group.length)[1] for form in group.forms.values()), default=0)

    def packed(self, message: Any) -> memoryview:
        return raw(message.share.payload)

    def admitted(self, parsed: ParsedMetadata, group: GroupSpec) -> ParsedMetadata | Rejection:
        form = group.forms.get(parsed.fields["form"])
        if form is None:
            return about(parsed, "wrong_dtype", f"{parsed.fields['form']}; allowed: {', '.join(group.forms)}")
        shaped = _shaped(parsed, parsed.fields["payload"], form, group)
        if isinstance(shaped, Rejection):
            return shaped
        weight = parsed.fields["weight"]
        if not (weight == 0 if form is NOTHING else 0 < weight <= group.weight_max):  # false for NaN too
            return about(parsed, "bad_weight", f"{weight}; at most {group.weight_max:g}")
        return shaped

    def read(self, parsed: ParsedMetadata, tail: memoryview) -> Mapping[str, Any] | Rejection:
        payload = _vector(parsed, tail)
        return payload if isinstance(payload, Rejection) else {"payload": payload}


# ------------------------------------------------------------------------------------------------- coordinated rounds


class SignaturesTail(Tail):
    """Signatures of a majority, if the message in the field `message` has them; else empty."""

    def __str__(self) -> str:
        return "the signatures of `lead` and `commit`"

    def most(self, group: ConsensusSpec) -> int:
        return SIGNATURES_BYTES[1]

    def packed(self, message: Any) -> memoryview:
        return memoryview(tail_of(message.message))

    def admitted(self, parsed: ParsedMetadata, group: ConsensusSpec) -> ParsedMetadata | Rejection:
        return sized(parsed, *(SIGNATURES_BYTES if has_signatures(parsed.fields["message"]) else (0, 0)))

    def read(self, parsed: ParsedMetadata, tail: memoryview) -> Mapping[str, Any] | Rejection:
        message = with_tail(parsed.fields["message"], tail)
        return about(parsed, "bad_metadata", message) if isinstance(message, str) else {"message": message}


class ContentTail(Tail):
    """The field `content` of a model, compared with its digest."""

    hashed = True

    def __str__(self) -> str:
        return "the content"

    def most(self, group: ConsensusSpec) -> int:
        return group.model_bytes[1]

    def packed(self, message: Any) -> memoryview:
        return memoryview(message.content)

    def admitted(self, parsed: ParsedMetadata, group: ConsensusSpec) -> ParsedMetadata | Rejection:
        return sized(replace(parsed, check=group.model_fault), *group.model_bytes)

    def read(self, parsed: ParsedMetadata, tail: memoryview) -> Mapping[str, Any] | Rejection:
        content = bytes(tail)
        if content_digest(content) != parsed.fields["digest"]:
            return _another(parsed, content)
        fault = parsed.check(content)
        return {"content": content} if fault is None else about(parsed, fault.code, fault.text)


class UpdateTail(ContentTail):
    """The field `content` of an update, plain or without zeros; the field `fault` says what is wrong with it."""

    def __str__(self) -> str:
        return "the content, encoded as `form` says"

    @property
    def beside(self) -> Mapping[str, WireType]:
        return {"form": OneOf((PLAIN, SPARSE)), "size": Whole()}

    def most(self, group: ConsensusSpec) -> int:
        return group.update_bytes[1]

    def packed(self, message: Any) -> memoryview:
        content = message.content
        return memoryview(pack_words(content) if wire_bytes(content) < len(content) else content)

    def values_beside(self, message: Any, tail_bytes: int) -> tuple[str, int]:
        size = len(message.content)
        return PLAIN if tail_bytes == size else SPARSE, size

    def admitted(self, parsed: ParsedMetadata, group: ConsensusSpec) -> ParsedMetadata | Rejection:
        form, size = parsed.fields["form"], parsed.fields["size"]
        wrong = sized(parsed, *group.update_bytes, size)
        if isinstance(wrong, Rejection):
            return wrong
        bounds = (size, size) if form == PLAIN else (packed_bytes_min(size), size - 1)
        return sized(replace(parsed, check=group.update_fault), *bounds)

    def read(self, parsed: ParsedMetadata, tail: memoryview) -> Mapping[str, Any] | Rejection:
        plain = parsed.fields["form"] == PLAIN
        content = bytes(tail) if plain else restore_words(tail, parsed.fields["size"])
        if content is None:
            return about(parsed, "wrong_shape", "invalid sparse words")
        if content_digest(content) != parsed.fields["digest"]:
            return _another(parsed, content)
        return {"content": content, "fault": parsed.check(content)}


def _another(parsed: ParsedMetadata, content: bytes) -> Rejection:
    return about(parsed, "digest_mismatch", f"{len(content)} bytes of a {parsed.kind.__name__}")
