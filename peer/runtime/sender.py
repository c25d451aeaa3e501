"""Sender of messages: makes the envelope, finds the address, and handles the outcome."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from functools import partial

from fedpeer.peer.node.node import Node
from fedpeer.peer.runtime.admission import MessageAdmission
from fedpeer.peer.runtime.carrier import Carrier
from fedpeer.peer.runtime.client import PeerLinks
from fedpeer.peer.runtime.found_addresses import FoundAddresses
from fedpeer.peer.runtime.identity import expecting, shared_client_context
from fedpeer.peer.runtime.outcomes import DeliveryReceipt, LinkDown, Outcome
from fedpeer.peer.runtime.prepared import Prepared
from fedpeer.peer.runtime.roster_file import RosterFile
from fedpeer.peer.runtime.rows import Rows
from fedpeer.peer.runtime.status import Status
from fedpeer.peer.runtime.two_way import TwoWayLink
from fedpeer.peer.state.events import Event, MessageReceived, NobodyListens, Note, Send
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import RejectMessage, RosterNews, group_of
from fedpeer.peer.wire.versions import CARRIES, LINKS, NEWEST


class MessageSender:
    """Sends the node's messages. Create and close it on the running event loop.

    `found` has the URLs of peers that discovery has seen.
    """

    def __init__(
        self,
        prepared: Prepared,
        members: RosterFile,
        node: Callable[[], Node],
        status: Status,
        rows: Rows,
        say: Callable[[Note], None],
        feed: Callable[[Event], None],
        admission: MessageAdmission,
        carrier: Carrier,
    ) -> None:
        self._prepared, self._members, self._node = prepared, members, node
        self._status, self._rows, self._say, self._feed = status, rows, say, feed
        shared = shared_client_context(prepared.identity) if prepared.identity is not None else None
        self._links = PeerLinks(
            partial(self._context, shared) if shared is not None else None,
            self._reported,
            admission.limits,
            me=prepared.file.id,
            receive=admission.take_over,
            strange=admission.strange,
            outbound=prepared.file.outbound,
            carrier=carrier,
            carried=self._carried,
        )
        self._down: dict[str, set[str]] = {}  # peers that cannot be reached, and the reasons
        self.found = FoundAddresses()

    def send(self, send: Send) -> None:
        """Send a message once; the node repeats it where needed."""
        address = self._address(send.to)
        if address is None:
            return
        envelope = Envelope(
            federation=self._members.roster.federation_id,
            sender=self._prepared.file.id,
            recipient=send.to,
            incarnation=send.incarnation,
            to_incarnation=send.to_incarnation,
            version=send.version,
        )
        head, tail = codec.encode(envelope, send.message)
        size, spec = len(head) + len(tail), send.message.spec
        self._status.sent(size, group_of(send.message))
        self._rows.sent(size, counts=spec.learning)
        both_ways = self._unmet(send.to) or self._node().state.others.can(send.to, LINKS)
        self._links.send(send.to, address, head, tail, urgent=spec.urgent, both_ways=both_ways)

    def _unmet(self, peer: str) -> bool:
        """Return whether this peer's capabilities are unknown, since it has sent nothing; maybe it cannot reach us."""
        others = self._node().state.others
        return peer in others and not others[peer].capabilities and others.version_of(peer) == NEWEST

    def linked(self, peer: str, link: TwoWayLink) -> None:
        """Take a connection that this peer opened to carry messages both ways."""
        self._links.linked(peer, link)

    def link(self, peer: str) -> TwoWayLink | None:
        """Return the open connection to a peer in which others can be carried; None: there is none."""
        return self._links.link(peer, direct=True) if self._node().state.others.can(peer, CARRIES) else None

    def _carried(self, peer: str, through: str) -> None:
        self._say(Note("info", "carried", f"{through} carries the connection to {peer}", {"peer": peer}))

    def received(self, peer: str) -> None:
        """Note that a message came from this peer, so that it can be reached again."""
        self._links.received(peer)

    def forget(self, peers: Iterable[str]) -> None:
        """Close the links to these peers, which were removed or have other keys; the next failure is logged anew."""
        for peer in peers:
            self._links.forget(peer)
            self._down.pop(peer, None)

    async def close(self) -> None:
        await self._links.close()

    def _address(self, peer: str) -> str | None:
        """Return a peer's address: its latest advert's, else where discovery found it, else the roster's.

        If discovery has found the peer, that address and the stated one are tried in turn.
        """
        entry = self._members.roster.by_id.get(peer)
        if entry is None or peer not in self._node().state.peer_groups.roster.by_id:
            return None  # revoked while this waited for the disk
        statement = self._node().state.membership.last_statement(peer)
        if statement is not None and statement.advert is not None and statement.advert.address:
            return self.found.choose(peer, statement.advert.address, by_itself=True)
        return self.found.choose(peer, entry.address, by_itself=False)

    def _context(self, shared: ssl.SSLContext, peer: str) -> ssl.SSLContext:
        return expecting(shared, self._members.roster.by_id[peer].key)

    def _reported(self, peer: str, outcome: Outcome) -> None:
        """Handle the outcome of a message: pass an answer to the node; log a link that is down once per reason."""
        match outcome:
            case RejectMessage() | RosterNews():
                durable = self._node().durable
                self._feed(MessageReceived(peer, durable.met.get(peer, 0), durable.incarnation, outcome))
            case LinkDown(reason=reason, refused=refused):
                self.found.failed(peer, asyncio.get_running_loop().time())
                if refused and self._node().consensus_by_group:
                    self._feed(NobodyListens(peer))
                reasons = self._down.setdefault(peer, set())
                if reason not in reasons:  # "connection refused" while it starts, then that its certificate is foreign
                    reasons.add(reason)
                    self._say(Note("info", "link_down", f"{peer} cannot be reached: {reason}", {"peer": peer}))
            case DeliveryReceipt():
                if self._down.pop(peer, None):
                    self._say(Note("info", "link_up", f"{peer} can be reached again", {"peer": peer}))
