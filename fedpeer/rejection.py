"""Why something that a peer sent is not taken: one value, whatever finds it, and one exception where code has to leave.

Membership, elections, algorithms, the codec and the peer port all speak of it in this way. `peer/wire/rejections.py`
is the table of all codes, with what each costs and the words for it. A `RejectEffect` has it counted, a `RejectMessage`
tells it to the sender.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rejection:
    """What is wrong with something that was sent.

    code     of the table of rejections
    text     what exactly is wrong; "" where the code says it all
    sender   who handed it over; "" for a stranger, or where whoever asked knows
    group    and `seq`: which transfer it was; "" and 0 where it was none
    """

    code: str
    text: str = ""
    sender: str = ""
    group: str = ""
    seq: int = 0


class RejectionError(Exception):
    """Carries a rejection out of what reads bytes, or answers a request, to where it is counted and answered."""

    def __init__(self, rejection: Rejection) -> None:
        self.rejection = rejection
        super().__init__(f"{rejection.code}: {rejection.text}")
