"""The law of conservation over whole peers: what is there is what was put in, less what was written off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from fedpeer.gossip.transfers import Incoming, Parcel
from fedpeer.peer.core.entries import Took
from fedpeer.peer.core.events import Effect, Persist
from fedpeer.peer.core.ledger import Ledger


def weights(ledgers: Mapping[str, Ledger]) -> dict[str, tuple[float, float]]:
    """Of each group: the push-sum weight that is there, and what was put in less what was written off.

    The ledgers of all peers at one moment: of the living as they are, of the others as they are on disk. While somebody
    who lost memory has not met everybody again the two may differ.
    """
    found: dict[str, tuple[float, float]] = {}
    for sender, ledger in ledgers.items():
        for group, holding in ledger.groups.items():
            there, put = found.get(group, (0.0, 0.0))
            there += holding.weight + sum(parcel.weight for parcel in _under_way(ledgers, sender, group))
            found[group] = there, put + holding.put - holding.written_off
    return found


def values(ledgers: Mapping[str, Ledger]) -> dict[str, Tensor]:
    """Of each group: the sum (D,) float64 of all values that are held, wait or are under way, in a plain form."""
    found: dict[str, Tensor] = {}
    for sender, ledger in ledgers.items():
        for group, holding in ledger.groups.items():
            there_D = holding.held.value_D
            for mass in holding.waiting.values():
                there_D = there_D + mass.value_D
            for parcel in _under_way(ledgers, sender, group):
                there_D = there_D + parcel.payload.double()
            found[group] = found[group] + there_D if group in found else there_D
    return found


def _under_way(ledgers: Mapping[str, Ledger], sender: str, group: str) -> Iterator[Parcel]:
    """What this peer has given and nobody has taken."""
    for receiver, lane in ledgers[sender].groups[group].out.items():
        taken = _taken(ledgers, sender, receiver, group)
        yield from (parcel for parcel in lane.open if parcel.seq > taken)


def _taken(ledgers: Mapping[str, Ledger], sender: str, receiver: str, group: str) -> int:
    """The last number on this lane that the receiver has; none where either does not know the other's incarnation, for
    then what is open comes back to the sender."""
    one, other = ledgers[sender], ledgers[receiver]
    if one.met.get(receiver) != other.incarnation or other.met.get(sender) != one.incarnation:
        return 0
    return other.groups[group].into.get(sender, Incoming()).taken


def took(peer: str, effect: Effect) -> tuple[str, tuple[str, str], int] | None:
    """The fact ("took", lane, number) for the history, if it is one. For runs in which nobody loses memory."""
    match effect:
        case Persist(content=Took(group=group, sender=sender, parcel=parcel)):
            return "took", (group, sender), parcel.seq
    return None
