"""Keys by roster: a vote or an acceptance is signed under a numbered roster, and counts by the key that it names.

A coordinator's votes and a round's acceptances are passed on while they matter. A peer that signed them may be revoked
meanwhile, or admitted again with another key. Peers that were members at the time checked the signatures then; peers
that come or return later check them with the earlier rosters that their consensus group keeps. So no peer signs under a
roster that names it with another key than its present one: until a round names the roster with its new key, it is no
voter.

A voter with another key is another voter. No majority counts both, since each roster names one key, and two rosters
between which a key has changed differ by two voters (`VoterSet.near`): first a round names the roster without the old
key, then another round names a roster with the new key. So enough of the remaining voters know every promise of the old
key, as when one voter leaves and a stranger joins, and only its own promises bind the new key. Promises of the old
key that are on the peer's disk bind the peer, too, which harms nothing; nobody needs the promises that are not. If the
roster without the old key were left out, an acceptance by the new key would count for a majority of the roster with the
old one, and two models could be in force after one round.

An acceptance may come from a voter that the named roster puts out. Its key is in an earlier roster, which may not be
known here; then a signature that does not fit proves nothing against the peer that passes it on (`is_certain`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import chain

from fedpeer.gossip.claims import Verify
from fedpeer.peer.state.node_state import NodeState
from fedpeer.peer.state.voters import with_keys
from fedpeer.peer.wire.consensus_messages import VoterSet
from fedpeer.peer.wire.roster import Roster, RosterEntry, from_bytes

#: Returns whether the peer of an entry signed a text with the key that the entry names: (entry, text, signature).
VerifyBy = Callable[[RosterEntry, bytes, bytes], bool]


class RosterKeys:
    """Keys of the peers of a consensus group, under each roster that it knows."""

    def __init__(self, state: NodeState, group: str, verify_by: VerifyBy) -> None:
        self._state, self._group, self._verify_by = state, group, verify_by

    def verify_under(self, number: int) -> Verify:
        """Return the function that verifies what was signed under the roster of this number."""

        def verify(author: str, text: bytes, signature: bytes) -> bool:
            entry = self._entry(author, number)
            return entry is not None and self._verify_by(entry, text, signature)

        return verify

    def known(self, number: int) -> bool:
        """Return whether the roster of this number is known with its keys."""
        return self._roster(number) is not None

    def is_certain(self, author: str, number: int) -> bool:
        """Return whether the author's key under this roster is known beyond doubt: the roster itself names it."""
        roster = self._roster(number)
        return roster is not None and author in roster.by_id

    def signs_under(self, number: int) -> bool:
        """Return whether this peer may sign under a roster: its present key is the one that counts there."""
        me = self._state.me
        entry = self._entry(me, number)
        return entry is not None and entry.key == self._state.peer_groups.roster.by_id[me].key

    def named(self, voter_set: VoterSet) -> VoterSet:
        """Return a voter set with the keys of its roster, if that is known."""
        roster = self._roster(voter_set.number)
        return voter_set if roster is None else with_keys(voter_set, roster)

    def _entry(self, author: str, number: int) -> RosterEntry | None:
        """Return the entry that names the author's key: that of this roster, else of the newest one before it."""
        roster = self._roster(number)
        if roster is None:  # a state of an early release has no texts
            return self._state.peer_groups.roster.by_id.get(author)
        earlier = sorted((each for each in self._texts if each < number), reverse=True)
        rosters = chain([roster], map(self._roster, earlier))
        return next((each.by_id[author] for each in rosters if each is not None and author in each.by_id), None)

    def _roster(self, number: int) -> Roster | None:
        present = self._state.peer_groups.roster
        if number == present.number:
            return present
        text = self._texts.get(number)
        return _read(text) if text else None

    @property
    def _texts(self) -> Mapping[int, bytes]:
        return self._state.durable.consensus_states[self._group].rosters


@lru_cache(maxsize=16)
def _read(text: bytes) -> Roster:
    return from_bytes(text)
