"""The rosters before the newest one, in a file beside it: the authority's, and those that a peer got when it joined.

A consensus group goes from one roster to the next, by one voter at a time (`peer/consensus/round_commit.py`), so it
needs each of them. Running peers receive each, keep them, and pass them on. If no peer ran when several rosters came,
as when one of two peers is revoked and invited again, this file has those in between.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedpeer.peer.wire.json_text import parse_json
from fedpeer.peer.wire.roster import ROSTER_BYTES_MAX, Roster, RosterError, from_bytes, to_bytes
from fedpeer.runs.disk import replacing

#: Most rosters that are kept, and most bytes of them; the oldest ones go.
_EARLIER_MAX, _EARLIER_BYTES_MAX = 8, ROSTER_BYTES_MAX
#: Most bytes of a file: a text may take twice as many inside of JSON.
_FILE_BYTES_MAX = 2 * _EARLIER_BYTES_MAX + 1024


def history_file(roster: Path) -> Path:
    """Return the path of the earlier rosters, beside the roster's file."""
    return roster.with_name("earlier-rosters.json")


def read_history(path: Path, authority: bytes) -> tuple[Roster, ...]:
    """Return the earlier rosters in a file, by this authority (32 bytes), oldest first; () if there is no such file.

    Raises:
        RosterError: the file holds something else; the message names it.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise RosterError(
            "bad_roster", f"{path} cannot be read ({error.strerror}); make it readable for this user"
        ) from None
    try:
        return rosters_in(parse_json(text), authority)
    except ValueError:
        raise RosterError("bad_metadata", f"{path} holds no rosters; remove it") from None
    except RosterError as error:
        raise RosterError(error.code, f"{path}: {error}; remove it") from None


def rosters_in(texts: object, authority: bytes) -> tuple[Roster, ...]:
    """Return the rosters of a list of texts, by this authority (32 bytes).

    Raises:
        ValueError: it is not a list of texts.
        RosterError: one of them is not a roster of this authority.
    """
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise ValueError("not a list of texts")
    return tuple(from_bytes(each.encode(), authority) for each in texts)


def texts_of(rosters: Iterable[Roster]) -> list[str]:
    """Return the rosters as texts."""
    return [to_bytes(each).decode() for each in rosters]


def write_history(path: Path, rosters: Iterable[Roster]) -> None:
    """Write earlier rosters into a file, replacing whatever is there."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(texts_of(rosters), ensure_ascii=False), encoding="utf-8")


def with_next(earlier: Sequence[Roster], roster: Roster) -> tuple[Roster, ...]:
    """Return the earlier rosters and this one, as many of the newest as are kept."""
    kept, size = list[Roster](), 0
    for each in reversed([*earlier, roster][-_EARLIER_MAX:]):
        size += len(to_bytes(each))
        if size > _EARLIER_BYTES_MAX:
            break
        kept.insert(0, each)
    return tuple(kept)
