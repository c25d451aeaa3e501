"""Dispatch of messages: whether a peer listens to the sender now, and which part of the peer handles the message.

The connection has named the sender, and the message was read and admitted. What is left to check is memory: when a
message is taken in, its declaration says (`MessageSpec.heard`). Each kind has its case in `_dispatch`: membership,
lanes, coordinated rounds, the rounds of equals. A refusal that comes of different memories is cleared up by a Hello.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

import torch

from fedpeer.peer.consensus import voting
from fedpeer.peer.consensus.round_consensus import RoundConsensus
from fedpeer.peer.node.amending import hear_signed
from fedpeer.peer.node.channels import hear_ack, hear_transfer, say_all_open
from fedpeer.peer.node.handshake import hear_contract, hear_hello, hear_roster
from fedpeer.peer.node.lifecycle import NodeParts
from fedpeer.peer.node.membership_effects import attend
from fedpeer.peer.node.reminders import hear_reminder
from fedpeer.peer.state.events import Heard
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

#: Refusals that say no more than that somebody is a little ahead or behind.
USUAL = {"early", "no_room", "repeated", "round_closed", "round_gap", "stale_term"}
#: Refusals that come from different memories of lanes, lives and edges.
CLEARED_UP_BY_HELLO = {
    "stale_incarnation",
    "early",
    "sequence_reused",
    "sequence_jump",
    "duplicate_peer",
    "not_a_neighbour",
}


class Dispatch:
    """The part of a node that takes messages in and hands them on.

    councils   by group, those that the peer sits in; whoever changes the mapping changes who is asked
    enrol      goes over to a roster that is news
    """

    def __init__(
        self, work: NodeParts, councils: Mapping[str, RoundConsensus], enrol: Callable[[Roster], None]
    ) -> None:
        self.work, self.councils, self._enrol = work, councils, enrol

    def hear(self, heard: Heard) -> None:
        life, peer = self.work.life, heard.sender
        if peer == AUTHORITY and heard.message.spec.from_authority:
            self._hear_authority(heard.message)
            return
        if peer not in life.others:
            life.count("unknown_peer", peer)
            return
        if life.others[peer].spoke(heard.version):
            life.changed()
            life.note("info", "newer_version", f"{peer} speaks version {heard.version} of the wire", peer=peer)
        if not life.listens(peer):
            return
        life.others[peer].heard_at = life.now
        life.membership.heard(peer)
        message = heard.message
        if message.spec.heard == "handshake":
            self._shake_hands(heard, message)
            return
        known = life.ledger.met.get(peer)
        if known is not None and heard.incarnation < known:
            life.refuse("stale_incarnation", peer, f"incarnation {heard.incarnation}, and {known} is known")
            return
        if heard.incarnation != known:
            life.others[peer].greet_soon(life.now)
            if message.spec.heard != "any time":
                return
        self._dispatch(peer, message)

    def _hear_authority(self, message: Message) -> None:
        match message:
            case RosterNews():
                self._news(AUTHORITY, message)
            case Contract():
                hear_signed(self.work.life, AUTHORITY, message.text)

    def _shake_hands(self, heard: Heard, message: Message) -> None:
        life, peer = self.work.life, heard.sender
        match message:
            case Hello():
                if hear_hello(life, heard, message):
                    say_all_open(life, self.work.repeats, peer)
                    for council in self.councils.values():
                        if peer in life.circle.councils[council.group].members:
                            voting.introduce(council, peer)
                life.changed()
            case Reminder():
                hear_reminder(life, heard, message)

    def _dispatch(self, peer: str, message: Message) -> None:
        life = self.work.life
        match message:
            case Transfer():
                if message.group in life.ledger.groups and hear_transfer(life, peer, message):
                    self.work.rounds.news.add(message.group)
            case Ack() if message.group in self.councils:
                self.councils[message.group].hear_ack(peer, message)
            case Ack():
                if message.group in life.ledger.groups:
                    hear_ack(life, self.work.repeats, peer, message)
            case Ping():
                attend(life, life.membership.heard_ping(peer, message.number, message.claims))
            case PingRequest():
                attend(life, life.membership.heard_ping_request(peer, message.number, message.target, message.claims))
            case Pong():
                attend(
                    life,
                    life.membership.heard_pong(peer, message.number, message.target, message.heard, message.claims),
                )
            case ValueRequest():
                self._give_value(peer, message.group)
            case Value():
                self._hear_value(peer, message)
            case Contract():
                hear_contract(life, peer, message)
            case RosterNews():
                self._news(peer, message)
            case RejectMessage():
                self._refused(peer, message)
            case ConsensusMessage() | Update() | ModelRequest() | ModelReply():
                self._sit(peer, message)
            case Hello() | Reminder():
                raise AssertionError("a message of the handshake is handled before")
            case _:
                assert_never(message)

    def _sit(self, peer: str, message: ConsensusMessage | Update | ModelRequest | ModelReply) -> None:
        """Something about coordinated rounds, by somebody who learns the same."""
        council = self.councils.get(message.group)
        if council is None or message.group not in self.work.life.others[peer].agreed:
            return
        match message:
            case ConsensusMessage():
                council.hear_ballot(peer, message)
            case Update():
                council.hear_update(peer, message)
            case ModelRequest():
                council.hear_wanted(peer, message)
            case ModelReply():
                council.hear_model(message)

    def _news(self, peer: str, news: RosterNews) -> None:
        if self.councils and news.number < self.work.life.circle.roster.number:
            for council in self.councils.values():
                voting.hear_earlier(council, peer, news)
            return
        roster = hear_roster(self.work.life, peer, news)
        if roster is not None:
            self._enrol(roster)

    def _give_value(self, peer: str, group: str) -> None:
        life = self.work.life
        if group in life.ledger.groups and group in life.others[peer].agreed and life.ledger.round > 0:
            value_D = life.shown(group)
            if value_D is not None:
                life.send(peer, Value(group=group, round=life.ledger.round, value_D=value_D.to(torch.float32)))

    def _speak_older(self, peer: str) -> bool:
        """Speak an older version of the wire with a peer that refused a frame; whether that explains the refusal.

        Several frames are on their way when the first of them is refused. Which one a refusal is about it does not say,
        so for as long as two Hellos are apart at most those of the newer version are taken to be meant.
        """
        life, other = self.work.life, self.work.life.others[peer]
        if not other.speak_older(life.now):
            return life.now - other.older_at <= HELLO_MAX
        life.changed()
        life.note("info", "older_version", f"{peer} speaks version {other.version} of the wire", peer=peer)
        other.compare, other.hello_at = True, life.now  # what it refused may have been the Hello
        return True

    def _hear_value(self, peer: str, value: Value) -> None:
        """What a late joiner asked for, if it is no further away than anything can be that others have trained."""
        life, values = self.work.life, self.work.passage.values
        if life.phase != "joining" or value.group not in values:
            return
        reach = life.ledger.reach(value.group)
        if reach.steps:  # it was here before, and has missed what they trained since
            reach = reach.after(0.0, value.round)
        far = reach.refusal(value.value_D, value.value_D)
        if far is not None:
            self.work.passage.doubted.add((value.group, peer))
            life.refuse(far[0], peer, far[1], group=value.group)
            return
        values[value.group][peer] = value.value_D.clone()
        life.others[peer].seen_in(value.round, life.now)

    def _refused(self, peer: str, refused: RejectMessage) -> None:
        """A neighbour did not take something. Whatever has to do with memory or lives is cleared up by a Hello."""
        life = self.work.life
        if refused.code == "version_unsupported" and self._speak_older(peer):
            return
        if refused.group in self.councils:
            self.councils[refused.group].hear_refused(peer, refused)
        text = f"{peer} refused what this peer sent: {refused.code}. {refused.text}"
        life.note(
            "debug" if refused.code in USUAL else "warning",
            "refused",
            text,
            peer=peer,
            code=refused.code,
        )
        if refused.claims:
            attend(life, life.membership.heard_claims(peer, refused.claims))
        elif refused.code == "duplicate_peer":
            life.count("unproven", peer, "it says that a later process has this identity, and shows nothing")
        if refused.code == "early":
            self.work.repeats.missed(peer, refused.group, refused.seq)
        if refused.code in CLEARED_UP_BY_HELLO:
            life.others[peer].greet_soon(life.now)
