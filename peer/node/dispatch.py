"""Dispatch of messages: whether the sender is listened to now, and which part of the node handles the message.

The connection has verified the sender, and the message was read and admitted. What is left to check is memory:
`MessageSpec.when` says when a message is taken. Each kind has its case in `_dispatch`: membership, channels,
coordinated rounds, peer-to-peer rounds. A Hello clears up a rejection that is caused by different memories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

import torch

from fedpeer.gossip.mass import Mass
from fedpeer.peer.consensus import voting
from fedpeer.peer.consensus.round_consensus import RoundConsensus
from fedpeer.peer.node.amending import on_signed_contract
from fedpeer.peer.node.channels import on_ack, on_transfer, resend_open
from fedpeer.peer.node.handshake import on_contract, on_hello
from fedpeer.peer.node.lifecycle import NodeParts
from fedpeer.peer.node.membership_effects import attend
from fedpeer.peer.node.reminders import on_reminder
from fedpeer.peer.state.events import MessageReceived
from fedpeer.peer.state.neighbor import HELLO_MAX
from fedpeer.peer.wire.messages import (
    Ack,
    ConsensusMessage,
    Contract,
    Hello,
    Message,
    ModelReply,
    ModelRequest,
    Ping,
    PingRequest,
    Pong,
    RejectMessage,
    Reminder,
    RosterNews,
    Transfer,
    Update,
    Value,
    ValueRequest,
)
from fedpeer.peer.wire.roster import AUTHORITY, Roster

#: Rejections that only mean that a peer is a little ahead or behind.
_USUAL = {"early", "no_room", "repeated", "round_closed", "round_gap", "stale_term"}
#: Rejections that come from different memories of channels, generations and edges.
_CLEARED_UP_BY_HELLO = {
    "stale_incarnation",
    "early",
    "sequence_reused",
    "sequence_jump",
    "duplicate_peer",
    "not_a_neighbour",
}


class Dispatch:
    """The part of a node that takes messages in and passes them to the part that handles them.

    consensus_by_group   consensus groups of this peer; the node may change the mapping
    enrol                adopts a later roster
    """

    def __init__(
        self, work: NodeParts, consensus_by_group: Mapping[str, RoundConsensus], enrol: Callable[[Roster], None]
    ) -> None:
        self.work, self.consensus_by_group, self._enrol = work, consensus_by_group, enrol

    def on_event(self, received: MessageReceived) -> None:
        """Handle a message, or drop or reject it."""
        state, peer = self.work.state, received.sender
        if peer == AUTHORITY and received.message.spec.from_authority:
            self._on_authority(received.message)
            return
        if peer not in state.others:
            state.count("unknown_peer", peer)
            return
        if state.others[peer].spoke(received.version):
            state.others.changed()
            state.note("info", "newer_version", f"{peer} speaks version {received.version} of the wire", peer=peer)
        if not state.others.listens(peer):
            return
        state.others[peer].received_at, state.others[peer].received_ran = state.now, state.ran
        attend(state, state.membership.received(peer))
        message = received.message
        if message.spec.when == "handshake":
            self._shake_hands(received, message)
            return
        known = state.durable.met.get(peer)
        if known is not None and received.incarnation < known:
            state.refuse("stale_incarnation", peer, f"incarnation {received.incarnation}, but {known} is known")
            return
        if received.incarnation != known:
            state.others[peer].greet_soon(state.now)
            if message.spec.when != "any time":
                return
        self._dispatch(peer, message)

    def _on_authority(self, message: Message) -> None:
        match message:
            case RosterNews():
                self._news(AUTHORITY, message)
            case Contract():
                on_signed_contract(self.work.state, AUTHORITY, message.text)

    def _shake_hands(self, received: MessageReceived, message: Message) -> None:
        state, peer = self.work.state, received.sender
        match message:
            case Hello():
                if on_hello(state, received, message):
                    resend_open(state, self.work.repeats, peer)
                    for consensus in self.consensus_by_group.values():
                        if peer in state.peer_groups.consensus_by_group[consensus.group].members:
                            voting.introduce(consensus, peer)
                state.others.changed()
            case Reminder():
                on_reminder(state, received, message)

    def _dispatch(self, peer: str, message: Message) -> None:
        state = self.work.state
        match message:
            case Transfer():
                if message.group in state.durable.groups and on_transfer(state, peer, message):
                    self.work.rounds.news.add(message.group)
            case Ack() if message.group in self.consensus_by_group:
                self.consensus_by_group[message.group].on_ack(peer, message)
            case Ack():
                if message.group in state.durable.groups:
                    on_ack(state, self.work.repeats, peer, message)
            case Ping():
                attend(state, state.membership.on_ping(peer, message.number, message.claims))
            case PingRequest():
                attend(state, state.membership.on_ping_request(peer, message.number, message.target, message.claims))
            case Pong():
                attend(
                    state,
                    state.membership.on_pong(peer, message.number, message.target, message.received, message.claims),
                )
            case ValueRequest():
                self._give_value(peer, message.group)
            case Value():
                self._on_value(peer, message)
            case Contract():
                on_contract(state, peer, message)
            case RosterNews():
                self._news(peer, message)
            case RejectMessage():
                self._refused(peer, message)
            case ConsensusMessage() | Update() | ModelRequest() | ModelReply():
                self._on_round_message(peer, message)
            case Hello() | Reminder():
                raise AssertionError("a message of the handshake is handled before")
            case _:
                assert_never(message)

    def _on_round_message(self, peer: str, message: ConsensusMessage | Update | ModelRequest | ModelReply) -> None:
        """Pass a message about coordinated rounds to its group, if the two peers agree on the group."""
        consensus = self.consensus_by_group.get(message.group)
        if consensus is None or message.group not in self.work.state.others[peer].agreed:
            return
        match message:
            case ConsensusMessage():
                consensus.on_consensus_message(peer, message)
            case Update():
                consensus.on_update(peer, message)
            case ModelRequest():
                consensus.on_model_request(peer, message)
            case ModelReply():
                consensus.on_model_reply(message)

    def _news(self, peer: str, news: RosterNews) -> None:
        state, known = self.work.state, self.work.state.peer_groups.roster.number
        if self.consensus_by_group and news.number < known:
            for consensus in self.consensus_by_group.values():
                voting.on_earlier_roster(consensus, peer, news)
        elif news.number > known and (roster := voting.read_news(state, peer, news)) is not None:
            self._enrol(roster)

    def _give_value(self, peer: str, group: str) -> None:
        state = self.work.state
        if group in state.durable.groups and group in state.others[peer].agreed and state.durable.round > 0:
            value_D = state.shown(group)
            if value_D is not None:
                state.send(peer, Value(group=group, round=state.durable.round, value_D=value_D.to(torch.float32)))

    def _speak_older(self, peer: str) -> bool:
        """Use an older version of the wire for a peer that rejected a frame; return whether that explains it.

        Several frames are under way when the first of them is rejected, and a rejection does not name its frame. So
        within the longest time between two Hellos it is taken to mean frames of the newer version.
        """
        state, other = self.work.state, self.work.state.others[peer]
        if not other.speak_older(state.now):
            return state.now - other.older_at <= HELLO_MAX
        state.others.changed()
        state.note("info", "older_version", f"{peer} speaks version {other.version} of the wire", peer=peer)
        other.compare, other.hello_at = True, state.now  # the rejected frame may have been the Hello
        return True

    def _on_value(self, peer: str, value: Value) -> None:
        """Take a value that this late joiner asked for, unless it is further away than others can have trained."""
        state, values = self.work.state, self.work.lifecycle.values
        if state.phase != "joining" or value.group not in values:
            return
        reach = state.durable.reach(value.group)
        if reach.steps:  # this peer was here before, and has missed their training since
            reach = reach.after(0.0, value.round)
        stated = Mass.of(value.value_D)
        far = reach.refusal(stated, stated)
        if far is not None:
            self.work.lifecycle.doubted.add((value.group, peer))
            state.refuse(far[0], peer, far[1], group=value.group)
            return
        values[value.group][peer] = value.value_D.clone()
        state.others[peer].seen_in(value.round, state.now)

    def _refused(self, peer: str, refused: RejectMessage) -> None:
        """Handle a neighbor's rejection; if it is about memory or generations, a Hello clears it up."""
        state = self.work.state
        if refused.code == "version_unsupported" and self._speak_older(peer):
            return
        if refused.group in self.consensus_by_group:
            self.consensus_by_group[refused.group].on_rejected(peer, refused)
        text = f"{peer} rejected a message of this peer: {refused.code}. {refused.text}"
        state.note(
            "debug" if refused.code in _USUAL else "warning",
            "refused",
            text,
            peer=peer,
            code=refused.code,
        )
        if refused.claims:
            attend(state, state.membership.on_claims(peer, refused.claims))
        elif refused.code == "duplicate_peer":
            state.count("unproven", peer, "it states without proof that a later process has this identity")
        if refused.code == "early":
            self.work.repeats.missed(peer, refused.group, refused.seq)
        if refused.code in _CLEARED_UP_BY_HELLO:
            state.others[peer].greet_soon(state.now)
