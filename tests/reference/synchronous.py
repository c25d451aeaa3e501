"""One member's part in the averaging of one round, message by message.

A pure state machine: `begin` and `take` return the new state and the shares to send, without a clock or a network.
In exchange e a member sends shares of the mass with which it entered e, waits until the share of exchange e of every
peer that it expects is there, adds them in peer order, and enters e + 1. Shares of neighbors that are ahead
wait. So in any order of arrival the result is the same to the last bit, and it is `Averaging.matrix`
times the masses at the beginning. Deadlines, repeats and losses are the business of the code that carries the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpeer.gossip.averaging import Averaging, Turn, turn
from fedpeer.gossip.mass import Mass
from tests.reference.push_sum import receive, share_of

#: (exchange, sender)
Arrival = tuple[int, str]


@dataclass(frozen=True)
class Sent:
    """A share for `to`, made in this exchange."""

    to: str
    exchange: int
    mass: Mass


@dataclass(frozen=True)
class Member:
    """The state of one peer in one averaging.

    held       the mass that it keeps; with the arrivals and the sent shares, all that it began with
    exchange   the exchange in which it waits; `policy.exchanges` when the averaging is done
    turn       its part in this exchange; None when the averaging is done
    arrived    shares that are not added yet, of this exchange and of later ones
    """

    policy: Averaging
    peer: str
    round: int
    wire: torch.dtype
    held: Mass
    exchange: int
    turn: Turn | None
    arrived: Mapping[Arrival, Mass]

    @property
    def done(self) -> bool:
        return self.turn is None

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the neighbors for whose share the member waits."""
        expected = self.turn.expect if self.turn else ()
        return tuple(peer for peer in expected if (self.exchange, peer) not in self.arrived)


def begin(
    policy: Averaging, peer: str, round: int, held: Mass, *, wire: torch.dtype = torch.float64
) -> tuple[Member, list[Sent]]:
    """Enter the averaging of a round; values travel as `wire`."""
    return _advance(*_enter(Member(policy, peer, round, wire, held, 0, None, {})))


def take(member: Member, sender: str, exchange: int, mass: Mass) -> tuple[Member, list[Sent]]:
    """Take the share that `sender` made in `exchange`, once; later exchanges may begin on it."""
    assert (exchange, sender) not in member.arrived, "each share is taken once"
    assert member.exchange <= exchange < member.policy.exchanges, "a share of an exchange that is not over"
    return _advance(replace(member, arrived={**member.arrived, (exchange, sender): mass}), [])


def _advance(member: Member, sent: list[Sent]) -> tuple[Member, list[Sent]]:
    """Go on through exchanges as long as everything that they wait for is there."""
    while member.turn and not member.missing:
        arrived, held = dict(member.arrived), member.held
        for peer in member.turn.expect:
            held = receive(held, arrived.pop((member.exchange, peer)))
        member, more = _enter(replace(member, held=held, exchange=member.exchange + 1, arrived=arrived))
        sent = sent + more
    return member, sent


def _enter(member: Member) -> tuple[Member, list[Sent]]:
    """Begin the exchange in which the member now is: send shares of all of the mass held now."""
    if member.exchange == member.policy.exchanges:
        return replace(member, turn=None), []
    plan = turn(member.policy, member.peer, member.round, member.exchange)
    if not plan.to:
        return replace(member, turn=plan), []
    kept, each = share_of(member.held, plan.fraction, copies=len(plan.to), wire=member.wire)
    return replace(member, held=kept, turn=plan), [Sent(to, member.exchange, each) for to in plan.to]


def synchronous_round(mass_PD: Mass, matrix_PP: Tensor) -> Mass:
    """Let all P peers give their shares at once: value (P, D) and weight (P,) both times a column-stochastic matrix.

    matrix_PP: float64, [dst, src] the fraction that src gives to dst; dense, or sparse CSR.
    """
    return Mass(matrix_PP @ mass_PD.value_D, matrix_PP @ mass_PD.weight)
