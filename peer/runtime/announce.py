"""Telling running peers of a new roster or contract: the authority speaks to some as itself, gossip does the rest.

A roster carries its own signature, so it does not matter who brings it. But until a peer has the roster that lets
another one in, it refuses that one; so the authority, whom every peer knows by its key, is the one who can begin.
"""

from __future__ import annotations

import asyncio
import contextlib

from fedpeer.peer.runtime.authority import Authority
from fedpeer.peer.runtime.client import DeliveryReceipt, LinkDown, Outcome, PeerLinks
from fedpeer.peer.runtime.identity import client_context
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import Contract, RejectMessage, RosterNews
from fedpeer.peer.wire.roster import AUTHORITY, Roster, to_bytes
from fedpeer.peer.wire.signed_contract import SignedContract, contract_bytes
from fedpeer.peer.wire.versions import NEWEST, OLDEST

#: Peers that are told. One would do, since each passes it on; so many are not all down or cut off at once.
_TOLD_MAX = 32
#: Seconds for all of them: a machine that is off takes the five seconds of a connection attempt.
_ANNOUNCE_SECONDS = 15.0


async def announce(
    authority: Authority, roster: Roster, *, without: str = "", contract: SignedContract | None = None
) -> dict[str, str]:
    """Bring the roster, or a contract, to the peers in it; for each, "" if it took it, else why not.

    Never raises for a peer.
    """
    entries = [entry for entry in roster.entries if entry.id != without][:_TOLD_MAX]
    found: dict[str, str] = {}
    done = asyncio.Event()
    news: Contract | RosterNews = RosterNews(number=roster.number, text=to_bytes(roster))
    if contract is not None:
        news = Contract(text=contract_bytes(contract))
    older: set[str] = set()  # who was told again in the oldest version of the wire

    def tell(peer: str, version: int) -> None:
        envelope = Envelope(
            federation=roster.federation_id,
            sender=AUTHORITY,
            recipient=peer,
            incarnation=1,
            to_incarnation=0,
            version=version,
        )
        links.send(peer, roster.by_id[peer].address, *codec.encode(envelope, news))

    def report(peer: str, outcome: Outcome) -> None:
        match outcome:
            case RejectMessage(code="version_unsupported") if peer not in older:
                older.add(peer)
                tell(peer, OLDEST)
                return
            case LinkDown(reason=reason):
                found[peer] = reason
            case RejectMessage(text=text):
                found[peer] = f"refused: {text}"
            case RosterNews(number=number):
                found[peer] = f"it answered with roster {number}, as if the authority were put out"
            case DeliveryReceipt():
                found[peer] = ""
        if len(found) == len(entries):
            done.set()

    links = PeerLinks(lambda peer: client_context(authority.identity, roster.by_id[peer].key), report)
    try:
        for entry in entries:
            tell(entry.id, NEWEST)
        if entries:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), _ANNOUNCE_SECONDS)
    finally:
        await links.close()
    return {entry.id: found.get(entry.id, "no answer in time") for entry in entries}
