"""The roster of a running peer, and its file.

The file is written when other peers send a later roster, and read again when somebody on this machine
(`fedpeer revoke`, or a person copying) has put a later one there.
"""

from __future__ import annotations

from pathlib import Path

from fedpeer.config.address import PeerUrl
from fedpeer.peer.runtime.identity import read_roster
from fedpeer.peer.wire.roster import Roster, to_bytes
from fedpeer.runs.disk import replacing


class RosterFile:
    """The roster file of a running peer; `roster` is the one in force."""

    def __init__(self, path: Path, roster: Roster) -> None:
        self.roster = roster
        self._addresses: tuple[Roster | None, frozenset[str]] = (None, frozenset())
        self._path, self._seen = path, changed_at(path)

    def expects(self, address: str) -> bool:
        """Return whether a peer of the roster has its URL at this IP address; names are not looked up."""
        if self._addresses[0] is not self.roster:
            hosts = {PeerUrl.read(entry.address).host for entry in self.roster.entries}
            self._addresses = self.roster, frozenset(hosts | ({"127.0.0.1", "::1"} if "localhost" in hosts else set()))
        return address in self._addresses[1]

    def keep(self, roster: Roster) -> list[str]:
        """Use this roster from now on; return the ids of peers that were removed or have another key.

        `write` saves it.
        """
        before, self.roster = self.roster, roster
        return [
            entry.id
            for entry in before.entries
            if entry.id not in roster.by_id or roster.by_id[entry.id].key != entry.key
        ]

    def write(self) -> None:
        """Write the roster in force into the file.

        Raises:
            OSError: the disk is full, read-only or failing; the file is unchanged.
        """
        with replacing(self._path) as temporary:
            temporary.write_bytes(to_bytes(self.roster))
        self._seen = changed_at(self._path)

    def changed(self) -> Roster | None:
        """Return a later roster of the same authority if somebody has put one into the file since the last call.

        Raises:
            RosterError: the file holds no valid roster.
        """
        at = changed_at(self._path)
        if at == self._seen:
            return None
        self._seen = at
        found = read_roster(self._path)
        return found if found.authority == self.roster.authority and found.number > self.roster.number else None


def changed_at(path: Path) -> int:
    """Return when a file was last written, in nanoseconds; 0 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
