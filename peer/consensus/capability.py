"""What a peer can do for others, and who should therefore coordinate first. An order, not a rule: whoever lives may.

Light on purpose: no torch here.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedpeer.config.peer_file import MUCH_BANDWIDTH

#: With so much a peer is halfway to the most capable one of its kind: of bytes and examples.
MUCH_MEMORY, MANY_EXAMPLES = 16 * 2**30, 1000
#: What each counts for in the waiting time. An accelerator counts for as much as all others together, so that whoever
#: has one stands before those without.
_ACCELERATOR, _MEMORY, _BANDWIDTH, _EXAMPLES = 0.5, 0.2, 0.2, 0.1


@dataclass(frozen=True, kw_only=True)
class Capability:
    """What a peer can do; the defaults are those of a usual machine about which nothing is known.

    examples     that it trains on: who trains on many has the machine for it
    accelerator  whether it trains on one
    memory       in bytes, where it trains: of the accelerator, or of the machine
    bandwidth    that it can send, in Mbit/s

    >>> Capability(examples=1000).patience
    0.75
    >>> Capability(examples=1000, accelerator=True).patience
    0.25
    """

    examples: int
    accelerator: bool = False
    memory: int = MUCH_MEMORY
    bandwidth: float = MUCH_BANDWIDTH

    @property
    def patience(self) -> float:
        """How long it waits before it stands for coordinator: 0 the most capable peer, 1 the least (`gossip.polls`)."""
        return (
            (0.0 if self.accelerator else _ACCELERATOR)
            + _MEMORY / (1 + self.memory / MUCH_MEMORY)
            + _BANDWIDTH / (1 + self.bandwidth / MUCH_BANDWIDTH)
            + _EXAMPLES / (1 + self.examples / MANY_EXAMPLES)
        )
