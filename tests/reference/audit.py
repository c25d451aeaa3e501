"""The law of conservation over whole peers: what is there is what was put in, less what was written off."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedpeer.gossip.incarnations import reopened
from fedpeer.gossip.transfers import Incoming, acknowledged
from fedpeer.peer.state.durable_state import DurableState
from fedpeer.peer.state.entries import ShareApplied
from fedpeer.peer.state.events import Effect, Persist


def weights(ledgers: Mapping[str, DurableState]) -> dict[str, tuple[float, float]]:
    """Of each group: the push-sum weight that is there, and what was put in less what was written off.

    The ledgers of all peers at one moment: of the living as they are, of the others as they are on disk. While somebody
    who lost memory has not met everybody again the two may differ. Of some peers only, what is there is what they hold
    and what is under way between them.
    """
    found: dict[str, tuple[float, float]] = {}
    for sender, ledger in ledgers.items():
        for group, holding in ledger.groups.items():
            there, put = found.get(group, (0.0, 0.0))
            there += holding.weight
            for receiver, lane in holding.out.items():
                if receiver not in ledgers:
                    continue
                taken = _taken(ledgers, sender, receiver, group)
                there += sum(parcel.weight for parcel in lane.open if parcel.seq > taken)
            found[group] = there, put + holding.put - holding.written_off
    return found


def values(ledgers: Mapping[str, DurableState]) -> dict[str, Tensor]:
    """Of each group: the sum (D,) float64 of all values that are held, wait or are under way."""
    found: dict[str, Tensor] = {}
    for sender, ledger in ledgers.items():
        for group, holding in ledger.groups.items():
            there = holding.held
            for mass in holding.waiting.values():
                there = there + mass
            for receiver, lane in holding.out.items():
                rest, _ = acknowledged(lane, _taken(ledgers, sender, receiver, group), ledger.rules.form)
                there, _ = reopened(there, rest, Incoming(), ledger.rules.form)
            found[group] = found[group] + there.value_D if group in found else there.value_D
    return found


def _taken(ledgers: Mapping[str, DurableState], sender: str, receiver: str, group: str) -> int:
    """The last number on this lane that the receiver has; none where either does not know the other's incarnation, for
    then what is open comes back to the sender."""
    one, other = ledgers[sender], ledgers[receiver]
    if one.met.get(receiver) != other.incarnation or other.met.get(sender) != one.incarnation:
        return 0
    return other.groups[group].into.get(sender, Incoming()).taken


def took(peer: str, effect: Effect) -> tuple[str, tuple[str, str], int] | None:
    """The fact ("took", lane, number) for the history, if it is one. For runs in which nobody loses memory."""
    match effect:
        case Persist(content=ShareApplied(group=group, sender=sender, parcel=parcel)):
            return "took", (group, sender), parcel.seq
    return None
