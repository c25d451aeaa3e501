"""Keys by roster: which key a signature counts by, and under which rosters a peer signs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fedpeer.peer.consensus.roster_keys import RosterKeys
from fedpeer.peer.state.voters import EVERYONE, voter_set
from fedpeer.peer.wire.consensus_messages import VoterSet
from fedpeer.peer.wire.roster import Roster, RosterEntry, sign, to_bytes
from fedpeer.sims.network import node_factory
from tests.faults.peer_cluster import AUTHORITY

OLD, NEW, ANNS = b"o" * 32, b"n" * 32, b"a" * 32
PUBLIC = AUTHORITY.public_key().public_bytes_raw()


def roster(number: int, **keys: bytes) -> Roster:
    entries = (RosterEntry(id=peer, key=key, address=f"https://{peer}:7401") for peer, key in keys.items())
    return sign(Roster(federation="wards", authority=PUBLIC, number=number, entries=tuple(entries)), AUTHORITY)


#: Roster 2 puts bob out, and roster 3 admits him again with another key; roster 4 puts him out, and roster 5 does not.
ROSTERS = [
    roster(1, ann=ANNS, bob=OLD),
    roster(2, ann=ANNS),
    roster(3, ann=ANNS, bob=NEW),
    roster(4, ann=ANNS),
    roster(5, ann=ANNS, bob=NEW),
]


def keys_of(me: str, present: int = 5, first: int = 1) -> RosterKeys:
    texts = {each.number: to_bytes(each) for each in ROSTERS[first - 1 : present]}
    durable = SimpleNamespace(consensus_states={EVERYONE: SimpleNamespace(rosters=texts)})
    groups = SimpleNamespace(roster=ROSTERS[present - 1])
    state: Any = SimpleNamespace(me=me, durable=durable, peer_groups=groups)
    return RosterKeys(state, EVERYONE, node_factory._verify_by)


def signed(key: bytes) -> bytes:
    return node_factory._signed(b"text", key)


def under(keys: RosterKeys, author: str, key: bytes) -> list[int]:
    """Return the rosters under which a signature by this key counts as the author's."""
    return [each.number for each in ROSTERS if keys.verify_under(each.number)(author, b"text", signed(key))]


def test_a_signature_counts_by_the_key_of_the_roster_under_which_it_was_made() -> None:
    keys = keys_of("ann")
    assert under(keys, "ann", ANNS) == [1, 2, 3, 4, 5]
    assert under(keys, "bob", OLD) == [1, 2], "a roster that puts him out may be accepted by his key before it"
    assert under(keys, "bob", NEW) == [3, 4, 5]
    assert not under(keys, "cas", OLD)


def test_a_key_is_certain_where_the_roster_names_it() -> None:
    keys = keys_of("ann")
    assert [each.number for each in ROSTERS if keys.is_certain("bob", each.number)] == [1, 3, 5]
    assert not keys.is_certain("bob", 9)


def test_nobody_signs_under_a_roster_that_names_it_with_another_key() -> None:
    bob, ann = keys_of("bob"), keys_of("ann")
    assert [each.number for each in ROSTERS if bob.signs_under(each.number)] == [3, 4, 5]
    assert all(ann.signs_under(each.number) for each in ROSTERS)
    assert not keys_of("bob", first=2).signs_under(2), "its old key counts there, and it may not know of that"


def test_rosters_between_which_a_key_has_changed_are_not_near_however_their_voters_became_known() -> None:
    """The keys of a roster are known only from its text, which a state of an early release does not have."""
    first, _, again, *_ = map(voter_set, ROSTERS)
    assert not first.near(again)
    stored = [VoterSet(each.number, each.voters, each.members) for each in (first, again)]
    known, unknown = ([keys.named(each) for each in stored] for keys in (keys_of("ann"), keys_of("ann", present=2)))
    assert not known[0].near(known[1])
    assert unknown[0].near(unknown[1])


def test_without_the_text_of_a_roster_the_present_key_counts() -> None:
    """A state of an early release knows the voters of a roster, and not its text."""
    keys = keys_of("ann", present=3)
    assert keys.verify_under(9)("bob", b"text", signed(NEW))
    assert not keys.verify_under(9)("bob", b"text", signed(OLD))
