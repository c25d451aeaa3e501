"""Announcement of a new roster or contract: the authority sends it to some running peers, and gossip does the rest.

A roster carries its own signature, so it does not matter who brings it. But a peer rejects a newcomer until it has the
roster that admits it; so the authority, which every peer knows by its key, has to send it first.
"""

from __future__ import annotations

import asyncio
import contextlib

from fedpeer.config.address import PeerUrl
from fedpeer.peer.runtime.authority import Authority
from fedpeer.peer.runtime.client import PeerLinks
from fedpeer.peer.runtime.identity import expecting, shared_client_context
from fedpeer.peer.runtime.outcomes import DeliveryReceipt, LinkDown, Outcome
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import Contract, RejectMessage, RosterNews
from fedpeer.peer.wire.roster import AUTHORITY, Roster, to_bytes
from fedpeer.peer.wire.signed_contract import SignedContract, contract_bytes
from fedpeer.peer.wire.versions import NEWEST, OLDEST

#: Most peers to send it to, first those to which others can connect. One would do, since each passes it on; so many are
#: not all down or cut off at once.
_ANNOUNCED_MAX = 32
#: Seconds for all of them together; a machine that is off takes the five seconds of a connection attempt.
_ANNOUNCE_SECONDS = 15.0


async def announce(
    authority: Authority, roster: Roster, *, without: str = "", contract: SignedContract | None = None
) -> dict[str, str]:
    """Send the roster, or a contract, to the peers in the roster except `without`.

    Returns for each peer "" if it accepted, else why it did not; a peer's failure never raises.
    """
    others = [entry for entry in roster.entries if entry.id != without]
    entries = sorted(others, key=lambda entry: not PeerUrl.read(entry.address).reachable)[:_ANNOUNCED_MAX]
    found: dict[str, str] = {}
    done = asyncio.Event()
    news: Contract | RosterNews = RosterNews(number=roster.number, text=to_bytes(roster))
    if contract is not None:
        news = Contract(text=contract_bytes(contract))
    older: set[str] = set()  # peers that it was sent to again in the oldest version of the wire

    def send(peer: str, version: int) -> None:
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
                send(peer, OLDEST)
                return
            case LinkDown(reason=reason):
                found[peer] = reason
            case RejectMessage(text=text):
                found[peer] = f"rejected: {text}"
            case RosterNews(number=number):
                found[peer] = f"it answered with roster {number}, as if the authority had been revoked"
            case DeliveryReceipt():
                found[peer] = ""
        if len(found) == len(entries):
            done.set()

    shared = shared_client_context(authority.identity)
    links = PeerLinks(lambda peer: expecting(shared, roster.by_id[peer].key), report)
    try:
        for entry in entries:
            send(entry.id, NEWEST)
        if entries:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), _ANNOUNCE_SECONDS)
    finally:
        await links.close()
    return {entry.id: found.get(entry.id, "no answer in time") for entry in entries}
