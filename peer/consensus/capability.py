"""Ranking of candidates for coordinator by what their machines can do: an order, since any peer may be elected.

Torch is not imported here, on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedpeer.config.peer_file import MUCH_BANDWIDTH

#: Bytes and examples with which a peer is halfway to the most capable one.
MUCH_MEMORY, MANY_EXAMPLES = 16 * 2**30, 1000
#: Parts of the waiting time. The accelerator's part equals all others together, so that peers with an accelerator stand
#: before peers without.
_ACCELERATOR, _MEMORY, _BANDWIDTH, _EXAMPLES = 0.5, 0.2, 0.2, 0.1


@dataclass(frozen=True, kw_only=True)
class Capability:
    """Capability of one peer; the defaults are those of a common machine about which nothing is known.

    examples     examples that it trains on: a peer that trains on many has the machine for it
    accelerator  whether it trains on one
    memory       bytes of the device on which it trains
    bandwidth    Mbit/s that it can send

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
        """Part of the longest wait before it stands for coordinator: 0 for the most capable peer, 1 for the least.

        `ElectionTiming.spread` is the longest wait.
        """
        return (
            (0.0 if self.accelerator else _ACCELERATOR)
            + _MEMORY / (1 + self.memory / MUCH_MEMORY)
            + _BANDWIDTH / (1 + self.bandwidth / MUCH_BANDWIDTH)
            + _EXAMPLES / (1 + self.examples / MANY_EXAMPLES)
        )
