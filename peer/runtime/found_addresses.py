"""Addresses at which discovery has seen peers, beside those that the peers and the roster state.

Anybody on the network can announce a wrong address, and a right one may be the only one that still works. So if the
found or the stated address fails, the other one is tried, in turn. Without discovery the stated address is used.
"""

from __future__ import annotations

#: Seconds for which an address is tried before the other one: as long as it takes to connect, or to be refused.
TURN_S = 5.0


class FoundAddresses:
    """URLs of peers on the local network, by id; only of peers of the roster, which bounds them."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._other: dict[str, bool] = {}  # whether it is the other one's turn
        self._until: dict[str, float] = {}

    def see(self, peer: str, url: str | None) -> None:
        """Note the URL at which a peer was seen; None: it is no longer there."""
        if url is None:
            self._found.pop(peer, None)
        else:
            self._found[peer] = url

    def choose(self, peer: str, stated: str, *, by_itself: bool) -> str:
        """Return the address to try: at first the one that the peer has stated `by_itself`, else where it was seen."""
        found = self._found.get(peer, stated)
        return stated if by_itself is not self._other.get(peer, False) else found

    def failed(self, peer: str, now: float) -> None:
        """Try the other address from now on, unless this one's turn has just begun."""
        if peer in self._found and now >= self._until.get(peer, now):
            self._other[peer] = not self._other.get(peer, False)
            self._until[peer] = now + TURN_S
