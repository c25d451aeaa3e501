"""Rejections: why something that a peer sent was not accepted, as one value and one exception.

Membership, elections, algorithms, the codec and the peer port all use them. `peer/wire/rejections.py` is the table of
all codes, with the cost and the text of each. A `RejectEffect` counts a rejection, a `RejectMessage` reports it to the
sender.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rejection:
    """Named reason against something that a peer sent.

    code     code in the table of rejections
    text     what exactly is wrong; "" if the code says it all
    sender   the peer that handed it over; "" for a stranger, or if the caller knows the peer
    group    with `seq`, the transfer that was rejected; "" and 0 if it was no transfer
    """

    code: str
    text: str = ""
    sender: str = ""
    group: str = ""
    seq: int = 0


class RejectionError(Exception):
    """Carries a rejection from where bytes are read or a request is answered to where it is counted and answered."""

    def __init__(self, rejection: Rejection) -> None:
        self.rejection = rejection
        super().__init__(f"{rejection.code}: {rejection.text}")
