"""Messages of others change none of a peer's own numbers: generation and incarnation follow from its own starts, and
from what it signed itself.

One member lies, in any message of the wire, and the victim keeps its generation and its incarnation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpeer.peer.state.events import MessageReceived, RejectEffect, Stop
from fedpeer.peer.wire.messages import ChannelState, Hello, RejectMessage
from tests.faults.peer_cluster import PeerCluster
from tests.peer.node.test_node import met

#: Amounts by which stated generations and incarnations exceed the victim's own.
FAR = (1, 2, 1000, 2**16, 2**16 + 1, 2**31, 2**40, 2**62, 2**63 - 2)
#: Codes with which an honest peer rejects such lies.
NAMES = {"unproven", "incarnation_jump"}


class Victim:
    """A peer in the middle of a run, and one member that lies to it."""

    def __init__(self, known: bool, peers: int = 3) -> None:
        self.cluster: PeerCluster
        self.cluster, self.node, self.liar = met(peers)
        self.before = self.numbers()
        for other in self.node.state.others.values():
            other.met = known

    def numbers(self) -> tuple[int, int]:
        return self.node.durable.generation, self.node.durable.incarnation

    def hears(self, message: Any, *, by: str = "", to_incarnation: int = 0) -> set[str]:
        """Return the codes with which the victim rejects a message; check that it keeps its numbers and goes on."""
        received = MessageReceived(by or self.liar, 1, to_incarnation or self.node.durable.incarnation, message)
        effects = self.node.step(received)
        assert not [each for each in effects if isinstance(each, Stop)]
        assert self.node.phase != "stopped"
        assert self.numbers() == self.before
        return {each.rejection.code for each in effects if isinstance(each, RejectEffect)}

    def hello(self, **changed: Any) -> Hello:
        other = self.node.state.others[self.liar]
        setup = self.node.setup
        groups = tuple((group, self.node.state.digest_of(group)) for group in self.cluster.groups)
        hello = Hello(
            generation=other.generation, nonce=other.nonce, known_generation=self.node.durable.generation,
            contract=setup.contract,
            groups=groups, channels=(self.channel(),), round=1, begun=True, roster=1, answer=True,
        )  # fmt: skip
        return replace(hello, **changed)

    def channel(self, **changed: Any) -> ChannelState:
        """Return the state of the channels that the liar would send if it were honest, with these changes."""
        (group,) = self.cluster.groups
        holding = self.node.durable.groups[group]
        out, into = holding.out[self.liar], holding.into[self.liar]
        true = ChannelState(
            group=group, made=into.taken, acked=into.taken, taken=out.made, made_weight=into.taken_weight,
            taken_weight=out.weight_until(out.made),
        )  # fmt: skip
        return replace(true, **changed)


@pytest.fixture(scope="module", params=[True, False], ids=["known to all", "just started"])
def victim(request: pytest.FixtureRequest) -> Victim:
    return Victim(request.param)


Lie = Callable[[Victim, int], set[str]]
LIES: dict[str, Lie] = {
    "its incarnation": lambda victim, far: victim.hears(victim.hello(), to_incarnation=victim.before[1] + far),
    "its life": lambda victim, far: victim.hears(victim.hello(known_generation=victim.before[0] + far)),
    "its life and an incarnation that is over": lambda victim, far: victim.hears(
        victim.hello(known_generation=victim.before[0] + far), to_incarnation=victim.before[1] - 1
    ),
    "what it made": lambda victim, far: victim.hears(
        victim.hello(channels=(victim.channel(taken=victim.channel().taken + far),))
    ),
    "what it took": lambda victim, far: victim.hears(
        victim.hello(channels=(victim.channel(acked=victim.channel().acked + far),))
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("lie", LIES)
def test_a_hello_moves_no_number_of_who_hears_it(victim: Victim, lie: str, far: int) -> None:
    for _ in range(3):
        found = LIES[lie](victim, far)
        assert found <= NAMES
        assert found or lie == "its life and an incarnation that is over"
        victim.node.state.others.reputations.clear()


@pytest.mark.slow
@pytest.mark.parametrize("lie", ["its life", "its incarnation"])
def test_nor_does_one_that_is_said_a_thousand_times(victim: Victim, lie: str) -> None:
    for _ in range(1000):
        assert LIES[lie](victim, 1) == {"unproven"}


@pytest.mark.slow
def test_no_number_of_members_says_that_a_later_process_has_our_identity(victim: Victim) -> None:
    refused = RejectMessage(code="duplicate_peer", group="", seq=0, text="There is a later one.")
    for _ in range(10):
        for peer in victim.cluster.simulator.peers:
            if peer != victim.node.state.me:
                assert victim.hears(refused, by=peer) == {"unproven"}
    victim.node.state.others.reputations.clear()


@pytest.mark.slow
@given(st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_one_member_says_of_us_we_are_who_we_are(victim: Victim, data: st.DataObject) -> None:
    far = st.one_of(st.integers(-2, 3), st.integers(0, 2**63 - 3))
    channel = victim.channel()
    number = st.integers(0, 2**63 - 1)
    channels = st.builds(
        ChannelState,
        group=st.just(channel.group),
        made=number,
        acked=st.one_of(number, st.just(channel.acked)),
        taken=st.one_of(st.just(channel.taken), number),
        made_weight=st.floats(0, 1e9),
        taken_weight=st.one_of(st.just(channel.taken_weight), st.floats(0, 1e9)),
    )
    hello = victim.hello(
        known_generation=max(0, victim.before[0] + data.draw(far)),
        channels=(data.draw(channels),),
        answer=data.draw(st.booleans()),
    )
    victim.hears(hello, to_incarnation=max(1, victim.before[1] + data.draw(far)))
    victim.node.state.others.reputations.clear()
