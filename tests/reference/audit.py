"""The law of conservation over whole peers: the mass that exists is the mass put in, less the mass written off."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedpeer.gossip.incarnations import reopened
from fedpeer.gossip.reductions import Form
from fedpeer.gossip.transfers import Incoming, acknowledged
from fedpeer.peer.state.durable_state import DurableState, GroupState
from fedpeer.peer.state.entries import ShareApplied
from fedpeer.peer.state.events import Effect, Persist


def weights(durable_states: Mapping[str, DurableState]) -> dict[str, tuple[float, float]]:
    """Return by group the push-sum weight that exists, and the weight put in less the weight written off.

    `durable_states` are those of all peers at one moment: of living peers in memory, of the others on disk. While a
    peer that lost memory has not met all others again, the two weights may differ. For some of the peers only, the
    weight that exists is the weight that they hold and that is in transit between them.
    """
    found: dict[str, tuple[float, float]] = {}
    for sender, durable in durable_states.items():
        for group, holding in durable.groups.items():
            there, put = found.get(group, (0.0, 0.0))
            there += holding.weight
            for receiver, channel in holding.out.items():
                if not channel.open or receiver not in durable_states:
                    continue
                taken = _taken(durable_states, sender, receiver, group)
                there += sum(share.weight for share in channel.open if share.seq > taken)
            found[group] = there, put + holding.put - holding.written_off
    return found


#: By sender and group: the objects that its part of the sum was made of, and the part.
Parts = dict[tuple[str, str], tuple[tuple[object, ...], Tensor]]


def values(durable_states: Mapping[str, DurableState], parts: Parts) -> dict[str, Tensor]:
    """Return by group the sum (D,) float64 of all values that are held, wait or are in transit.

    `parts` are those of an earlier call: a part is added up again only where something in it has changed.
    """
    found: dict[str, Tensor] = {}
    for sender, durable in durable_states.items():
        for group, holding in durable.groups.items():
            taken = {
                receiver: _taken(durable_states, sender, receiver, group)
                for receiver, channel in holding.out.items()
                if channel.open
            }
            made_of = (holding, durable.rules.form_of(group), taken)
            part = parts.get((sender, group))
            if part is None or part[0] != made_of:  # states of a group are frozen, and equal if they are the same
                part = parts[sender, group] = made_of, _part(holding, durable.rules.form_of(group), taken)
            found[group] = found[group] + part[1] if group in found else part[1]
    return found


def _part(holding: GroupState, form: Form, taken: Mapping[str, int]) -> Tensor:
    """Return what a peer holds of a group, (D,) float64, with its waiting shares and those that no receiver has."""
    there = holding.held
    for mass in holding.waiting.values():
        there = there + mass
    for receiver, last in taken.items():
        channel = holding.out[receiver]
        if any(share.seq > last for share in channel.open):
            rest, _ = acknowledged(channel, last, form)
            there, _ = reopened(there, rest, Incoming(), form)
    return there.value_D


def _taken(durable_states: Mapping[str, DurableState], sender: str, receiver: str, group: str) -> int:
    """Return the last number on this channel that the receiver has; 0 if either does not know the other's incarnation,
    since open transfers then return to the sender."""
    one, other = durable_states[sender], durable_states[receiver]
    if one.met.get(receiver) != other.incarnation or other.met.get(sender) != one.incarnation:
        return 0
    return other.groups[group].into.get(sender, Incoming()).taken


def took(peer: str, effect: Effect) -> tuple[str, tuple[str, str], int] | None:
    """Return the fact ("took", channel, number) for the history, if it is one, in runs without loss of memory."""
    match effect:
        case Persist(content=ShareApplied(group=group, sender=sender, share=share)):
            return "took", (group, sender), share.seq
    return None
