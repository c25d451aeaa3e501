"""Knowledge of a running process about itself: its starts, as others may know them, and its federation's contracts."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedpeer.config.contract import HeldContract
from fedpeer.peer.wire.signed_contract import SignedContract


@dataclass
class OwnStarts:
    """Starts of this peer that matter while this process runs.

    before        generations of the earlier processes on this disk; empty: this process found an empty disk, or a disk
                  from when the peer had another key
    numbers       generations under which it has run
    known_to_all  all peers of its groups have met this process
    signature     the last own numbers that were signed, with the signature (64 bytes)
    """

    before: range
    numbers: set[int] = field(default_factory=set)
    known_to_all: bool = False
    signature: tuple[tuple[int, ...], bytes] = ((), b"")


@dataclass
class Contracts:
    """The contract in force (`held`), the newest that the authority has signed, and contracts that do not fit.

    unfit   numbers of contracts to which this peer cannot change
    """

    held: HeldContract
    signed: SignedContract | None
    unfit: set[int] = field(default_factory=set)

    @property
    def number(self) -> int:
        """Number of the newest contract that is known, in force or not yet."""
        return max(self.held.number, 0 if self.signed is None else self.signed.number)
