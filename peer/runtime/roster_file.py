"""The roster that a running peer goes by, and its file: written when the peers tell of a later one, and read again when
somebody on this machine (`fedpeer revoke`, or a person copying) has put a later one there.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from fedpeer.peer.runtime.identity import read_roster
from fedpeer.peer.wire.roster import Roster, to_bytes
from fedpeer.runs.disk import replacing


class RosterFile:
    """`roster` is the one that holds now."""

    def __init__(self, path: Path, roster: Roster) -> None:
        self.roster = roster
        self._addresses: tuple[Roster | None, frozenset[str]] = (None, frozenset())
        self._path, self._seen = path, changed_at(path)

    def expects(self, address: str) -> bool:
        """Whether a peer of the roster has its URL at this IP address; names are not looked up."""
        if self._addresses[0] is not self.roster:
            hosts = {urlsplit(entry.address).hostname or "" for entry in self.roster.entries}
            self._addresses = self.roster, frozenset(hosts | ({"127.0.0.1", "::1"} if "localhost" in hosts else set()))
        return address in self._addresses[1]

    def keep(self, roster: Roster) -> list[str]:
        """Go by this one from now on; ids of those who are gone or have another key. `write` keeps it on the disk."""
        before, self.roster = self.roster, roster
        return [
            entry.id
            for entry in before.entries
            if entry.id not in roster.by_id or roster.by_id[entry.id].key != entry.key
        ]

    def write(self) -> None:
        """Put the one that holds into the file.

        Raises:
            OSError: the disk is full, read-only or failing; the file is as it was.
        """
        with replacing(self._path) as temporary:
            temporary.write_bytes(to_bytes(self.roster))
        self._seen = changed_at(self._path)

    def changed(self) -> Roster | None:
        """A later roster of the same authority, if somebody has put one into the file since the last look.

        Raises:
            RosterError: what stands there is no roster.
        """
        at = changed_at(self._path)
        if at == self._seen:
            return None
        self._seen = at
        found = read_roster(self._path)
        return found if found.authority == self.roster.authority and found.number > self.roster.number else None


def changed_at(path: Path) -> int:
    """When a file was written last, in nanoseconds; 0: it is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
