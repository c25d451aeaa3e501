"""Journal entries and snapshots as bytes, and back: what is on a peer's disk.

Each is one frame (`framing.py`) with a digest. Reading is strict: bytes that do not fit the types of the entries, or
were written for another peer, federation or plan, are rejected by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedpeer.config.contract import NEW_FEDERATION, HeldContract
from fedpeer.gossip.mass import Mass
from fedpeer.gossip.proofs import Signed
from fedpeer.peer.state.consensus_state import consensus_state_fields, consensus_state_of
from fedpeer.peer.state.durable_state import DurableState, GroupState, Rules
from fedpeer.peer.state.entries import Entry, Opened, ShareApplied
from fedpeer.peer.state.tags import ENTRIES, INCOMING, OUTGOING, PARCEL, REACH, TAGS, Schema
from fedpeer.peer.wire.framing import FrameError, frame, unframe, unframe_any


class SnapshotForeignError(Exception):
    """A snapshot belongs to another peer, federation or plan (D02). The message is a sentence for the user."""


def entry_bytes(entry: Entry) -> bytes:
    """Return the frame of a journal entry."""
    tag = TAGS[type(entry)]
    fields, tensors = _taken_apart(ENTRIES[tag], entry)
    if isinstance(entry, ShareApplied):
        fields["parcel"], inner = _taken_apart(PARCEL, entry.share)
        tensors |= inner
    return frame(tag, fields, tensors)


def entry_of(data: bytes, start_weight: float = 1.0) -> Entry:
    """Return the entry of a frame.

    Args:
        start_weight: the peer's own; before version 0.3 an `Opened` stated only whether it started with that weight.

    Raises:
        FrameError: these bytes are not an entry.
    """
    tag, fields, tensors = unframe_any(data)
    if tag not in ENTRIES:
        raise FrameError(f"a frame of kind {tag[:40]!r} is not a journal entry")
    stored = ENTRIES[tag]
    if stored.made is Opened and "afresh" in fields:
        fields = {key: value for key, value in fields.items() if key != "afresh"} | {
            "start_weight": start_weight if fields["afresh"] else None
        }
    given = {**fields, **tensors}
    try:
        if stored.made is ShareApplied:
            given["parcel"] = PARCEL.put_together({**given["parcel"], "payload": given.pop("payload")})
        made: Entry = stored.put_together(given)
    except (TypeError, KeyError) as error:
        raise FrameError(f"an entry of kind {tag} has unknown or missing fields: {error}") from None
    return made


def _taken_apart(stored: Schema, value: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the plain fields of a value and its tensors, by their stored names."""
    found = stored.fields(value)
    tensors = {name: each for name, each in found.items() if isinstance(each, Tensor)}
    return {name: each for name, each in found.items() if name not in tensors}, tensors


# ---------------------------------------------------------------------------------------------------------- snapshots


def snapshot_bytes(durable: DurableState, owner: Mapping[str, str], held: HeldContract | None = None) -> bytes:
    """Return the frame of a whole durable state.

    Args:
        owner: the peer and federation it belongs to; `durable_state_of` compares them.
        held: the contract in force.
    """
    tensors: dict[str, Tensor] = {"x": durable.x_n, "s": durable.s_k}
    groups = {
        name: _holding_fields(holding, f"group {number} ", tensors)
        for number, (name, holding) in enumerate(durable.groups.items())
    }
    contract = held and {"number": held.number, "text": held.text, "file": held.file, "before": held.before}
    fields = {
        "owner": dict(owner),
        **({"contract": contract} if contract else {}),
        "groups": groups,
        "fresh": durable.fresh,
        "round": durable.round,
        "trained": durable.trained,
        "incarnation": durable.incarnation,
        "life": durable.generation,
        "first": durable.first,
        "met": durable.met,
        "met_as": durable.met_as,
        "left": durable.left,
        "chambers": {
            name: consensus_state_fields(consensus_state) for name, consensus_state in durable.consensus_states.items()
        },
    }
    return frame("snapshot", fields, tensors)


def durable_state_of(
    snapshot: bytes,
    journal: Iterable[bytes],
    rules: Rules,
    index: Mapping[str, Tensor],
    owner: Mapping[str, str],
    places: Mapping[str, Tensor] | None = None,
    key: str = "",
) -> DurableState:
    """Return the durable state of a snapshot and the journal entries after it.

    Args:
        places: (D,) int64 of each group that a coordinator averages.
        key: the peer's own, in hex; snapshots from before version 0.3 do not have it.

    Raises:
        SnapshotForeignError: it belongs to another peer or federation, or its slices have other shapes. Its contract
            was compared with the file's before (`held_of`); a snapshot from before version 0.3 has only the contract's
            digest, and is read if the shapes fit.
        FrameError: the bytes are damaged; a caller that read them from a disk has checked that already.
    """
    fields, tensors = unframe("snapshot", snapshot)
    wrong = [f"{what} {fields['owner'].get(what)} and not {own}" for what, own in owner.items()
             if fields["owner"].get(what) != own]  # fmt: skip
    if wrong:
        raise SnapshotForeignError(
            f"the state belongs to {', '.join(wrong)}; name this peer's own folder with `state:`"
        )
    groups = {
        name: _holding(each, f"group {number} ", tensors)
        for number, (name, each) in enumerate(fields["groups"].items())
    }
    for group, place_D in index.items():
        if group in groups and groups[group].held.value_D.shape != place_D.shape:
            numbers = f"{len(groups[group].held.value_D):,} numbers, and the file says {len(place_D):,}"
            raise SnapshotForeignError(
                f'the slices of the group "{group}" in the state have {numbers}; write the old network and partial '
                f"models back, or {NEW_FEDERATION}"
            )
    durable = DurableState(
        rules,
        {name: place_D for name, place_D in index.items() if name in groups},
        tensors["x"],
        tensors["s"],
        groups,
        fresh=fields["fresh"],
        round=fields["round"],
        trained=fields["trained"],
        incarnation=fields["incarnation"],
        generation=fields["life"],
        first=fields.get("first", 0),  # missing in older states: any earlier generation may be of this disk
        met=dict(fields["met"]),
        met_as={peer: (*each, b"")[:3] for peer, each in fields.get("met_as", {}).items()},
        left=fields["left"],
        rekeyed=bool(key) and fields["owner"].get("key", key) != key,
        consensus_states={name: consensus_state_of(each) for name, each in fields.get("chambers", {}).items()},
        places=places or {},
    )
    for data in journal:
        durable.apply(entry_of(data, rules.start_weight))
    return durable


def held_of(fields: Mapping[str, Any]) -> HeldContract | None:
    """Return the contract in force in a snapshot; None: from before version 0.3, which stored only a digest."""
    kept = fields.get("contract")
    return HeldContract(kept["number"], kept["text"], kept["file"], kept.get("before", b"")) if kept else None


def _holding_fields(holding: GroupState, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    tensors[f"{prefix}held"] = holding.held.value_D
    if holding.settled_D is not None:
        tensors[f"{prefix}settled"] = holding.settled_D
    waiting = []
    for number, (place, mass) in enumerate(holding.waiting.items()):
        tensors[f"{prefix}waiting {number}"] = mass.value_D
        waiting.append((*place, float(mass.weight)))
    out = {}
    for number, (peer, channel) in enumerate(holding.out.items()):
        shares = []
        for at, share in enumerate(channel.open):
            fields, inner = _taken_apart(PARCEL, share)
            tensors[f"{prefix}out {number} open {at}"] = inner["payload"]
            shares.append(fields)
        if channel.reference_D is not None:
            tensors[f"{prefix}out {number} reference"] = channel.reference_D
        out[peer] = {
            "made": channel.made,
            "acked_weight": channel.acked_weight,
            "open": shares,
            "signed": _numbers(channel.signed),
        }
    into = {}
    for number, (peer, incoming) in enumerate(holding.into.items()):
        if incoming.reference_D is not None:
            tensors[f"{prefix}into {number} reference"] = incoming.reference_D
        into[peer] = {
            "taken": incoming.taken,
            "taken_weight": incoming.taken_weight,
            "recent": incoming.recent,
            "place": incoming.place,
            "signed": _numbers(incoming.signed),
        }
    return {
        "weight": float(holding.held.weight),
        "waiting": waiting,
        "out": out,
        "into": into,
        "at": holding.at,
        "expect": holding.expect,
        "told": sorted(holding.masked_to),
        "nothing": sorted(holding.nothing),
        "awake": holding.active,
        "reach": None if holding.reach is None else REACH.fields(holding.reach),
        "put": holding.put,
        "written_off": holding.written_off,
        "before": dict(holding.before),
    }


def _numbers(signed: Signed | None) -> tuple[int, float, bytes] | None:
    return None if signed is None else (signed.number, signed.weight, signed.signature)


def _signed(stored: tuple[int, float, bytes] | None) -> Signed | None:
    return None if stored is None else Signed(*stored)


def _holding(fields: Mapping[str, Any], prefix: str, tensors: Mapping[str, Tensor]) -> GroupState:
    def mass(name: str, weight: float) -> Mass:
        return Mass(tensors[f"{prefix}{name}"], torch.tensor(weight, dtype=torch.float64))

    waiting = {
        (round, exchange, sender): mass(f"waiting {number}", weight)
        for number, (round, exchange, sender, weight) in enumerate(fields["waiting"])
    }
    out = {}
    for number, (peer, channel) in enumerate(fields["out"].items()):
        shares = tuple(
            PARCEL.put_together({**each, "payload": tensors[f"{prefix}out {number} open {place}"]})
            for place, each in enumerate(channel["open"])
        )
        reference = tensors.get(f"{prefix}out {number} reference")
        signed = _signed(channel.get("signed"))
        out[peer] = OUTGOING.put_together({**channel, "open": shares, "reference": reference, "signed": signed})
    into = {}
    for number, (peer, channel) in enumerate(fields["into"].items()):
        reference = tensors.get(f"{prefix}into {number} reference")
        into[peer] = INCOMING.put_together(
            {**channel, "reference": reference, "signed": _signed(channel.get("signed"))}
        )
    reach: Mapping[str, Any] | None = fields.get("reach")  # older states have none
    return GroupState(
        mass("held", fields["weight"]),
        waiting,
        out,
        into,
        at=fields["at"],
        expect=fields["expect"],
        masked_to=frozenset(fields.get("told", ())),
        nothing=frozenset(tuple(place) for place in fields.get("nothing", ())),
        active=fields.get("awake", False),
        settled_D=tensors.get(f"{prefix}settled"),
        reach=None if reach is None else REACH.put_together(reach),
        put=fields["put"],
        written_off=fields["written_off"],
        before=fields.get("before", {}),
    )
