"""Names under which journal entries and their fields are stored, whatever they are called in the program.

If a class or a field is renamed, its row keeps the old name, so that files of an earlier release are read as before. A
tag is never used for another kind of entry, nor a stored name for another field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedpeer.gossip.transfers import Incoming, NumberedTransfer, Outgoing
from fedpeer.peer.state import entries
from fedpeer.peer.state.outlier_check import OutlierCheck


@dataclass(frozen=True, slots=True)
class Schema:
    """Stored form of one class.

    made    the class
    names   stored name of each of its fields
    later   fields that were added after the first release that stored it; not stored while empty
    """

    made: Any
    names: Mapping[str, str]
    later: frozenset[str] = frozenset()

    def fields(self, value: Any) -> dict[str, Any]:
        """Return the values of its fields by their stored names."""
        found = {name: getattr(value, name) for name in self.names}
        return {self.names[name]: each for name, each in found.items() if name not in self.later or each}

    def put_together(self, stored: Mapping[str, Any]) -> Any:
        """Return the value that was stored; fields that were added later may be missing.

        Raises:
            TypeError: a stored name is unknown, or a required field is missing.
        """
        unknown = stored.keys() - set(self.names.values())
        if unknown:
            raise TypeError(f"{min(unknown)[:40]!r} is not a field of it")
        return self.made(**{name: stored[kept] for name, kept in self.names.items() if kept in stored})


class _OpenedSchema(Schema):
    """Stored form of an `Opened`: flat, with the fields of all kinds of shares, of which other kinds' are empty."""

    def fields(self, value: entries.Opened) -> dict[str, Any]:
        fraction, whole, key, scale = 0.0, False, b"", 0.0
        match value.shares:
            case entries.RealShares():
                fraction, whole = value.shares.fraction, value.shares.whole
            case entries.MaskedShares():
                fraction, key, scale = value.shares.fraction, value.shares.key, value.shares.scale
        return {
            "group": value.group,
            "round": value.round,
            "exchange": value.exchange,
            "to": value.to,
            "expect": value.expect,
            "fraction": fraction,
            "start_weight": value.start_weight,
            "whole": whole,
            "noise_key": key,
            "noise_scale": scale,
            "asleep": isinstance(value.shares, entries.NoShares),
        }

    def put_together(self, stored: Mapping[str, Any]) -> Any:
        found = dict(stored)
        fraction, whole = found.pop("fraction"), found.pop("whole", False)
        key, scale = found.pop("noise_key", b""), found.pop("noise_scale", 0.0)
        shares = entries.MaskedShares(fraction, key, scale) if key else entries.RealShares(fraction, whole)
        inactive = found.pop("asleep", False)
        return super().put_together({**found, "shares": entries.NoShares() if inactive else shares})


def _stored(made: Any, fields: str = "") -> Schema:
    """Return the schema of a class, its fields in the order in which they are stored.

    `field=name` is stored under another name; `field?` was added after the first release, and is stored unless empty.
    """
    pairs = [each.rstrip("?").partition("=") for each in fields.split()]
    later = frozenset(each.rstrip("?") for each in fields.split() if each.endswith("?"))
    return Schema(made, {name: stored or name for name, _, stored in pairs}, later)


#: Each kind of entry by its tag.
ENTRIES: Mapping[str, Schema] = {
    "Started": _stored(entries.Started, "generation=life"),
    "Began": _stored(entries.Began, "round"),
    "Learnt": _stored(entries.LocalTrained, "round x_n s_k fresh?"),
    "Opened": _OpenedSchema(
        entries.Opened,
        {name: name for name in ["group", "round", "exchange", "to", "expect", "shares", "start_weight"]},
    ),
    "Closed": _stored(entries.Closed, "group without"),
    "Took": _stored(entries.ShareApplied, "group sender share=parcel at_once signature?"),
    "Acked": _stored(entries.Acked, "group peer taken signature?"),
    "Met": _stored(entries.Met, "peer incarnation generation=life nonce signature?"),
    "Reborn": _stored(entries.Reborn, "incarnation"),
    "Adopted": _stored(entries.Adopted, "group value_D"),
    "Returned": _stored(entries.Returned, "group peer"),
    "Left": _stored(entries.Left),
    "Stood": _stored(entries.TermChanged, "group term voted"),
    "Bound": _stored(entries.CommitStateChanged, "group roster accepted applied"),
    "Stored": _stored(entries.ModelStored, "group digest content"),
    "Studied": _stored(entries.UpdateMade, "group round update client"),
    "Kept": _stored(entries.ClientStateSaved, "group round client x_n"),
    "Averaged": _stored(entries.Averaged, "group round"),
    "Called": _stored(entries.VoterSetKnown, "group number voters members text"),
    "Sworn": _stored(entries.VotingAllowed, "group lost"),
    "Revoked": _stored(entries.Revoked, "peer"),
    "VoteLost": _stored(entries.VoteLost, "group roster"),
    "OthersAhead": _stored(entries.OthersAhead, "group members"),
}
TAGS: Mapping[type, str] = {stored.made: tag for tag, stored in ENTRIES.items()}

#: One transfer in an entry or a snapshot, and the two ends of a channel in a snapshot.
PARCEL = _stored(NumberedTransfer, "seq round exchange weight form payload")
OUTGOING = _stored(Outgoing, "made open acked_weight signed? reference_D=reference")
INCOMING = _stored(Incoming, "taken taken_weight recent place signed? reference_D=reference")

#: The outlier check of a group in a snapshot.
REACH = _stored(OutlierCheck, "start first steps path away round")
