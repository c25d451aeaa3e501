"""Messages out: in which envelope, to which address, and what became of them."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable

from fedpeer.peer.node.node import Node
from fedpeer.peer.runtime.client import DeliveryReceipt, LinkDown, Outcome, PeerLinks
from fedpeer.peer.runtime.identity import client_context
from fedpeer.peer.runtime.limits import Limits
from fedpeer.peer.runtime.prepared import Prepared
from fedpeer.peer.runtime.roster_file import RosterFile
from fedpeer.peer.runtime.rows import Rows
from fedpeer.peer.runtime.status import Status
from fedpeer.peer.state.events import Event, MessageReceived, NobodyListens, Note, Send
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import RejectMessage, RosterNews, group_of


class MessageSender:
    """Made on the running loop, and closed there. `found`: URLs of peers that discovery has seen."""

    def __init__(
        self,
        prepared: Prepared,
        members: RosterFile,
        node: Callable[[], Node],
        status: Status,
        rows: Rows,
        say: Callable[[Note], None],
        feed: Callable[[Event], None],
    ) -> None:
        self._prepared, self._members, self._node = prepared, members, node
        self._status, self._rows, self._say, self._feed = status, rows, say, feed
        self._links = PeerLinks(self._context, self._reported, Limits.among(len(members.roster.entries)))
        self._down: dict[str, set[str]] = {}  # who cannot be reached, and for what reasons
        self.found: dict[str, str] = {}

    def send(self, send: Send) -> None:
        """Put a message on its way; who repeats is the node."""
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
        self._links.send(send.to, address, head, tail, urgent=spec.urgent)

    def received(self, peer: str) -> None:
        """A message came from this peer."""
        self._links.received(peer)

    def forget(self, peers: Iterable[str]) -> None:
        """These are gone, or have other keys."""
        for peer in peers:
            self._links.forget(peer)

    async def close(self) -> None:
        await self._links.close()

    def _address(self, peer: str) -> str | None:
        """Where a peer says it is; before it has said anything, where it was found, or where the roster says."""
        entry = self._members.roster.by_id.get(peer)
        if entry is None or peer not in self._node().state.peer_groups.roster.by_id:
            return None  # put out while this waited for the disk
        said = self._node().state.membership.last_statement(peer)
        if said is not None and said.advert is not None and said.advert.address:
            return said.advert.address
        return self.found.get(peer, entry.address)

    def _context(self, peer: str) -> ssl.SSLContext | None:
        identity = self._prepared.identity
        return client_context(identity, self._members.roster.by_id[peer].key) if identity is not None else None

    def _reported(self, peer: str, outcome: Outcome) -> None:
        """What became of a message: an answer goes to the node; why a link is down is told once for each reason."""
        match outcome:
            case RejectMessage() | RosterNews():
                durable = self._node().durable
                self._feed(MessageReceived(peer, durable.met.get(peer, 0), durable.incarnation, outcome))
            case LinkDown(reason=reason, refused=refused):
                if refused and self._node().consensus_by_group:
                    self._feed(NobodyListens(peer))
                reasons = self._down.setdefault(peer, set())
                if reason not in reasons:  # "connection refused" while it starts, then that its certificate is foreign
                    reasons.add(reason)
                    self._say(Note("info", "link_down", f"{peer} cannot be reached: {reason}", {"peer": peer}))
            case DeliveryReceipt():
                if self._down.pop(peer, None):
                    self._say(Note("info", "link_up", f"{peer} is reached again", {"peer": peer}))
