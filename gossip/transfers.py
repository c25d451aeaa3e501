"""Channels: numbered transfers of mass along one directed edge in one averaging group; none is lost or taken twice.

A sender gives a share away by making the next transfer of a channel. It debits exactly what the payload restores to, so
a transfer is the mass that travels, and a repeat has the same bytes. A transfer stays open until the receiver
acknowledges that it has taken it. At most WINDOW transfers are open on a channel; then the channel rests and only
repeats, so that a cut edge cannot drain its peer. The receiver takes each number once and in order. So at every moment,
for all channels together:

    held + open transfers not yet taken = put in

All functions are deterministic in their arguments, draws included, so that replaying a journal gives the same channels
and masses, and a transfer made again has the same bytes.

`incarnations.py` covers peers that have lost their memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor
from xxhash import xxh3_64

from fedpeer.gossip.limits import REST_BELOW, REST_BELOW_SYNCHRONOUS, UNDER_WAY_MAX
from fedpeer.gossip.limits import WINDOW as WINDOW
from fedpeer.gossip.mass import Mass
from fedpeer.gossip.proofs import Signed
from fedpeer.gossip.reductions import NOTHING, Form, as_reference, pack_values, restore
from fedpeer.gossip.successive import made_in, next_form

#: Hashes of transfers by the bytes of their digests; 16: in states from before version 0.3.
_HASHES: Mapping[int, Callable[[], Any]] = {8: xxh3_64, 16: lambda: blake2b(digest_size=16)}
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NumberedTransfer:
    """One transfer, as it is journalled and sent.

    seq        1, 2, 3, ... on this channel and incarnation; never used for two different shares
    round      round for which it was made
    exchange   exchange of that round; (round, exchange) is never smaller than in the transfer before it
    weight     push-sum weight, finite, > 0; 0 if the form is "nothing"
    form       name of the payload's form: the group's current or an earlier one (`successive.py`), plain float32, or
               "nothing", a share that is not given
    payload    the encoded values in the wire's own type: (D,) for plain types, else (bytes,) uint8
    """

    seq: int
    round: int
    exchange: int
    weight: float
    form: str
    payload: Tensor

    @property
    def nothing(self) -> bool:
        """True if it only announces that no share comes."""
        return self.form == NOTHING.name


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """The sender's end of a channel.

    made          highest number made
    open          transfers made and not known to be taken, oldest first
    acked_weight  sum of the weights of all transfers before the open ones
    reference_D   (D,) float32, the receiver's reference before the open ones; None before the first transfer, and
                  always if the form needs none
    signed        the receiver's latest signed progress in taking; None: it has signed nothing
    """

    made: int = 0
    open: tuple[NumberedTransfer, ...] = ()
    acked_weight: float = 0.0
    reference_D: Tensor | None = None
    signed: Signed | None = None

    @property
    def acked(self) -> int:
        """Highest number that is known to be taken."""
        return self.made - len(self.open)

    def weight_until(self, seq: int) -> float:
        """Return the sum of the weights of the transfers up to `seq`, which is not below `acked`.

        Weights are added in the order in which the receiver adds them, so that both sums have the same bits.
        """
        weight = self.acked_weight
        for share in self.open[: seq - self.acked]:
            weight += share.weight
        return weight


@dataclass(frozen=True, slots=True, eq=False)
class Incoming:
    """The receiver's end of a channel.

    taken         highest number taken
    taken_weight  sum of the weights of all transfers taken
    recent        digests of the last WINDOW transfers taken, oldest first
    place         (round, exchange) of the last transfer taken
    reference_D   (D,) float32, equal to the sender's after the same transfer
    signed        the sender's latest signed progress in making, among what was taken; None: it has signed nothing
    """

    taken: int = 0
    taken_weight: float = 0.0
    recent: tuple[bytes, ...] = ()
    place: tuple[int, int] = (0, 0)
    reference_D: Tensor | None = None
    signed: Signed | None = None


class TransferDecision(StrEnum):
    """The decision on a transfer that arrived; all but TAKE are codes of rejections."""

    TAKE = "take"
    REPEATED = "repeated"
    EARLY = "early"
    JUMP = "sequence_jump"
    REUSED = "sequence_reused"
    STALE = "stale_epoch"


# ------------------------------------------------------------------------------------------------------------- giving


def resting(channel: Outgoing) -> bool:
    """Return whether the window is full, so that the channel only repeats."""
    return len(channel.open) >= WINDOW


def exhausted(held: Mass, start_weight: float, *, synchronous: bool = False) -> bool:
    """Return whether a peer that started with this weight rests all its channels until it has received a share.

    Args:
        synchronous: whether neighbors wait for its shares.
    """
    return float(held.weight) < (REST_BELOW_SYNCHRONOUS if synchronous else REST_BELOW) * start_weight


def overdrawn(held: Mass, channels: Iterable[Outgoing]) -> bool:
    """Return whether so much of a peer's weight is under way that it should wait for acknowledgements before it gives.

    In a partition, the window alone lets a peer give two shares along each cut edge and not get them back for hours.
    With this bound, halves of 12 peers on 4-regular graphs keep 0.33 to 0.62 of their weight, however they are cut (80
    cuts); without it, 0.12 to 0.67. A peer of degree d cut off from all others keeps 1 / (d + 1); without it, the
    square of that.
    """
    return sum(share.weight for channel in channels for share in channel.open) > UNDER_WAY_MAX * float(held.weight)


def give(
    held: Mass,
    channels: Mapping[str, Outgoing],
    fraction: float,
    form: Form,
    at: tuple[int, int],
    draws: np.random.Generator,
    *,
    whole: bool = False,
) -> tuple[Mass, dict[str, Outgoing], dict[str, NumberedTransfer]]:
    """Give an equal share of what is held on each channel; return (mass kept, channels, shares by peer).

    Exactly what travels is debited. Plain forms make one payload for all channels, equal to plain push-sum with as
    many copies to the last bit. A channel without a reference gets plain float32 if the form needs a reference.

    Args:
        channels: channels by peer; none may rest.
        fraction: fraction of what is held that each channel gets, before the form's `pace`.
        at: (round, exchange) for which the shares are made.
        whole: send plain float32 on every channel and ignore `pace`: for the last shares of a peer that leaves, in
            which compression would keep value without weight.
    """
    assert fraction > 0, "a share is a part of what is held"
    assert len(channels) * fraction <= 1, "no one can give more than is held"
    assert not any(resting(channel) for channel in channels.values()), "a channel whose window is full rests"
    share = held.scaled(fraction if whole else fraction * form.pace)
    same: dict[str, Tensor] = {}
    shares = {}
    for peer, channel in channels.items():
        reference_D = _reference(channel, form)
        one = next_form(form, begun=reference_D is not None, whole=whole)
        payload = same.get(one.name)
        if payload is None:
            payload = pack_values(one, share.value_D, float(share.weight), reference_D, draws)
            if not one.relative:
                same[one.name] = payload
        shares[peer] = NumberedTransfer(
            seq=channel.made + 1,
            round=at[0],
            exchange=at[1],
            weight=float(share.weight),
            form=one.name,
            payload=payload,
        )
    opened = {
        peer: replace(channel, made=channel.made + 1, open=(*channel.open, shares[peer]))
        for peer, channel in channels.items()
    }
    return _debited(held, channels, shares, form), opened, shares


def give_nothing(
    channels: Mapping[str, Outgoing], at: tuple[int, int]
) -> tuple[dict[str, Outgoing], dict[str, NumberedTransfer]]:
    """Announce on channels, none of which rests, that no share comes now; return (channels, transfers by peer)."""
    assert not any(resting(channel) for channel in channels.values()), "a channel whose window is full rests"
    payload = torch.empty(0, dtype=NOTHING.dtype)
    shares = {
        peer: NumberedTransfer(
            seq=channel.made + 1, round=at[0], exchange=at[1], weight=0.0, form=NOTHING.name, payload=payload
        )
        for peer, channel in channels.items()
    }
    opened = {
        peer: replace(channel, made=channel.made + 1, open=(*channel.open, shares[peer]))
        for peer, channel in channels.items()
    }
    return opened, shares


def _debited(held: Mass, channels: Mapping[str, Outgoing], shares: Mapping[str, NumberedTransfer], form: Form) -> Mass:
    """Return the mass left after these shares, all of one weight, each debited as its receiver will restore it."""
    values: dict[str, Tensor] = {}
    copies: Counter[str] = Counter()
    for peer, share in shares.items():
        one = peer if form.relative and share.form == form.name else share.form
        if one not in values:
            reference_D = _reference(channels[peer], form)
            values[one], _ = carried(share, form, held.value_D.shape[-1], reference_D)
        copies[one] += 1
    for one, value_D in values.items():
        held = Mass(held.value_D - value_D * copies[one], held.weight)
    weight = max((share.weight for share in shares.values()), default=0.0)
    return Mass(held.value_D, held.weight - weight * len(shares))


class Receipt(StrEnum):
    """The result of an acknowledgement."""

    NEWS = "news"
    NOTHING = "nothing"
    #: It names transfers that this peer does not remember making, or that were never made.
    UNKNOWN = "unknown"


def acknowledged(channel: Outgoing, taken: int, form: Form) -> tuple[Outgoing, Receipt]:
    """Close the transfers up to `taken`, which are taken and durable; a result other than NEWS changes nothing."""
    if taken > channel.made:
        return channel, Receipt.UNKNOWN
    if taken <= channel.acked:
        return channel, Receipt.NOTHING
    done = taken - channel.acked
    reference_D = _reference(replace(channel, open=channel.open[:done]), form)
    weight = channel.weight_until(taken)
    return replace(channel, open=channel.open[done:], acked_weight=weight, reference_D=reference_D), Receipt.NEWS


# ------------------------------------------------------------------------------------------------------------- taking


def judge(channel: Incoming, share: NumberedTransfer) -> TransferDecision:
    """Decide on a transfer whose form and numbers were found valid."""
    if _known(channel, share):
        return TransferDecision.REPEATED if _same(channel, share) else TransferDecision.REUSED
    if share.seq > channel.taken + WINDOW:
        return TransferDecision.JUMP
    if not _next(channel, share):
        return TransferDecision.EARLY
    return TransferDecision.TAKE if (share.round, share.exchange) >= channel.place else TransferDecision.STALE


def take(channel: Incoming, share: NumberedTransfer, form: Form, length: int) -> tuple[Incoming, Mass]:
    """Take a transfer whose decision is TAKE, in a group of this length; return (channel, the receiver's new mass)."""
    assert judge(channel, share) is TransferDecision.TAKE, "each transfer is taken once and in order"
    carried_D, reference_D = carried(share, form, length, channel.reference_D)
    taken = Incoming(
        taken=share.seq,
        taken_weight=channel.taken_weight + share.weight,
        recent=(*channel.recent, _digest(share))[-WINDOW:],
        place=(share.round, share.exchange),
        reference_D=reference_D,
        signed=channel.signed,
    )
    return taken, _mass(share, carried_D)


def brought(channel: Incoming, share: NumberedTransfer, form: Form, length: int) -> Mass:
    """Return the mass that a transfer would bring if it were taken; an empty one brings none."""
    assert not share.nothing, "an empty transfer brings nothing"
    return _mass(share, carried(share, form, length, channel.reference_D)[0])


def _mass(share: NumberedTransfer, carried_D: Tensor) -> Mass:
    return Mass(carried_D, torch.tensor(share.weight, dtype=torch.float64))


def _known(channel: Incoming, share: NumberedTransfer) -> bool:
    return share.seq <= channel.taken


def _next(channel: Incoming, share: NumberedTransfer) -> bool:
    return share.seq == channel.taken + 1


def _same(channel: Incoming, share: NumberedTransfer) -> bool:
    """Return whether a transfer that was taken came again with the same content.

    True for transfers older than the digests kept, which cannot be compared; an honest sender does not repeat them,
    since it knew that they were taken when it made the last one.
    """
    back = channel.taken - share.seq
    if back >= len(channel.recent):
        return True
    digest = channel.recent[-1 - back]
    return digest == _digest(share, len(digest))


def _digest(share: NumberedTransfer, size: int = _DIGEST_BYTES) -> bytes:
    """Return the digest, of so many bytes, of all that a repeat must not change.

    A sender gains nothing by another transfer with the same digest: it counts as a repeat, and is not taken.
    """
    digest = _HASHES[size]()
    digest.update(f"{share.round} {share.exchange} {share.weight.hex()} {share.form} ".encode())
    digest.update(share.payload.contiguous().view(torch.uint8).numpy().data)
    return bytes(digest.digest())


# -------------------------------------------------------------------------------------------------------------- forms


def carried(
    share: NumberedTransfer, form: Form, length: int, reference_D: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the value of a share on a channel of this form, (D,) float64, and the reference after it."""
    if share.nothing:
        return NOTHING.unpack(share.payload, length), reference_D
    found, begins = made_in(form, share.form)
    if found.relative:
        return restore(found, share.payload, length, share.weight, reference_D)
    carried_D = found.unpack(share.payload, length)
    return carried_D, as_reference(carried_D / share.weight) if begins else None


def _reference(channel: Outgoing, form: Form) -> Tensor | None:
    """Return the reference after the last transfer made."""
    reference_D = channel.reference_D
    for share in channel.open:
        found, begins = (NOTHING, False) if share.nothing else made_in(form, share.form)
        if found.relative or begins:
            length = len(share.payload if reference_D is None else reference_D)
            reference_D = carried(share, form, length, reference_D)[1]
        elif not share.nothing:
            reference_D = None
    return reference_D
