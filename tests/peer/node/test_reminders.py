"""Reminders of what a peer signed: it checks its own signature, and knows whether it has lost memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fedpeer.gossip.proofs import ChannelProof, GenerationProof, generation_text
from fedpeer.gossip.transfers import Incoming, Outgoing
from fedpeer.peer.node.handshake import send_hello
from fedpeer.peer.node.reminders import begin_incarnation
from fedpeer.peer.state.entries import Returned
from fedpeer.peer.state.events import MessageReceived, RejectEffect, Send
from fedpeer.peer.wire.messages import Hello, Reminder
from tests.peer.node.test_lies_about_us import Victim


def shown(victim: Victim) -> tuple[ChannelProof, ChannelProof]:
    """Return the proofs that its neighbor holds: how many transfers it signed to have made, and to have taken."""
    (group,) = victim.cluster.groups
    neighbor = victim.cluster.node(victim.liar).durable.groups[group]
    made, taken = neighbor.into[victim.node.state.me].signed, neighbor.out[victim.node.state.me].signed
    assert made is not None
    assert taken is not None
    return (
        ChannelProof(group=group, way="made", number=made.number, weight=made.weight, signature=made.signature),
        ChannelProof(group=group, way="taken", number=taken.number, weight=taken.weight, signature=taken.signature),
    )


def reminded(victim: Victim, reminder: Reminder) -> list[str]:
    """Return the codes with which it rejects a reminder to its first incarnation."""
    effects = victim.node.step(MessageReceived(victim.liar, 1, 1, reminder))
    return [each.rejection.code for each in effects if isinstance(each, RejectEffect)]


@pytest.fixture
def victim() -> Victim:
    """Return a victim with one neighbor; no peer lies to it in this file."""
    return Victim(known=True, peers=2)


@pytest.mark.slow
def test_both_ends_keep_what_the_other_signed_and_it_is_what_it_was(victim: Victim) -> None:
    (group,) = victim.cluster.groups
    mine = victim.node.durable.groups[group]
    for proof in shown(victim):
        number = mine.out[victim.liar].made if proof.way == "made" else mine.into[victim.liar].taken
        assert 0 < proof.number <= number
        assert reminded(victim, Reminder(generation=None, channels=(proof,))) == []
    assert victim.numbers() == victim.before


@pytest.mark.slow
@pytest.mark.parametrize("way", [0, 1], ids=["made", "taken"])
def test_what_it_signed_and_does_not_know_it_has_forgotten(victim: Victim, way: int) -> None:
    (group,) = victim.cluster.groups
    proof = shown(victim)[way]
    holding = victim.node.durable.groups[group]
    victim.node.durable.groups[group] = replace(
        holding,
        out={**holding.out, victim.liar: Outgoing()},
        into={**holding.into, victim.liar: Incoming()},
    )
    assert reminded(victim, Reminder(generation=None, channels=(proof,))) == []
    assert victim.numbers() == (victim.before[0], 2)
    assert reminded(victim, Reminder(generation=None, channels=(proof,))) == [], "it is of the incarnation before"
    assert victim.numbers() == (victim.before[0], 2)


CHANGES: dict[str, Callable[[ChannelProof], ChannelProof]] = {
    "number": lambda proof: replace(proof, number=proof.number + 1),
    "weight": lambda proof: replace(proof, weight=proof.weight + 1e-9),
    "way": lambda proof: replace(proof, way="taken"),
    "signature": lambda proof: replace(proof, signature=bytes(64)),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_shows_nothing(victim: Victim, change: str) -> None:
    assert reminded(victim, Reminder(generation=None, channels=(CHANGES[change](shown(victim)[0]),))) == ["unproven"]
    assert victim.numbers() == victim.before


@pytest.mark.slow
def test_numbers_are_never_used_again_after_what_was_open_was_returned(victim: Victim) -> None:
    """Otherwise a signature of the first use would show a loss of memory."""
    (group,) = victim.cluster.groups
    channel = victim.node.durable.groups[group].out[victim.liar]
    victim.node.durable.apply(Returned(group=group, peer=victim.liar))
    after = victim.node.durable.groups[group].out[victim.liar]
    assert (after.made, after.open, after.acked_weight) == (channel.made, (), channel.acked_weight)
    assert reminded(victim, Reminder(generation=None, channels=shown(victim))) == []
    assert victim.numbers() == victim.before


@pytest.mark.slow
def test_statements_of_its_earlier_starts_move_nothing(victim: Victim) -> None:
    state, before = victim.node.state, victim.before[0]
    state.starts.before = range(before - 1, before)
    federation = victim.cluster.node_factory.roster.federation_id
    for number in (before, before - 1):
        text = generation_text(federation, state.me, 1, number, 0)
        proof = GenerationProof(incarnation=1, generation=number, nonce=0, signature=state.sign(text))
        assert reminded(victim, Reminder(generation=proof, channels=())) == []
    assert victim.numbers() == victim.before


@pytest.mark.slow
def test_who_says_less_than_it_signed_is_shown_it(victim: Victim) -> None:
    """The neighbor has lost memory: the reminder is enough for it to know that."""
    channel = replace(victim.channel(), made=0, acked=0, taken=0, made_weight=0.0, taken_weight=0.0)
    hello = replace(victim.hello(), channels=(channel,))
    effects = victim.node.step(MessageReceived(victim.liar, 1, 1, hello))
    (reminder,) = (each.message for each in effects if isinstance(each, Send) and isinstance(each.message, Reminder))
    assert {proof.way for proof in reminder.channels} == {"made", "taken"}
    neighbor = victim.cluster.node(victim.liar)
    blank = replace(neighbor.durable.groups[reminder.channels[0].group], out={}, into={})
    neighbor.durable.groups[reminder.channels[0].group] = blank
    neighbor.step(MessageReceived(victim.node.state.me, 1, 1, reminder))
    assert neighbor.durable.incarnation == 2


def test_who_forgets_itself_while_it_reminds_another_greets_that_one_as_a_stranger(victim: Victim) -> None:
    """Two peers lose their memory at once: the proof is gone with the account that it was about."""
    state = victim.node.state
    state.others[victim.liar].reminded = True
    begin_incarnation(state, 2, "others know more")
    send_hello(state, victim.liar, answer=False)
    (hello,) = [e.message for e in state.effects if isinstance(e, Send) and isinstance(e.message, Hello)]
    assert hello.known_generation == 0
