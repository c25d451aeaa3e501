"""Candidacies of each voter that led to no committed round: values and counting, no clock here.

A vote request raises the terms of the peers that grant it, and a peer that raises them again and again ends the
elections of all others. So after each candidacy a peer gets no votes during a pause, twice as long as its last one;
when a round comes into force all pauses end. An honest candidate whose vote was split stands again only after its first
pause is over.

A candidate within its pause is refused, and not charged. By its own timers an honest candidate could stand some hundred
times a minute if it loses each election at once (it backs off for 7.5 ticks on average), and a liar gains nothing by
standing more often than once per pause. So a charge by rate that spares the honest would spare every liar that matters;
what such a liar costs the others is measured (`tests/peer/consensus/test_election.py -k only_stands`).
"""

from __future__ import annotations

from dataclasses import dataclass

#: Doublings of the first pause; with a lease of 0.6 s the longest is ten seconds.
_DOUBLINGS_MAX = 4


@dataclass(slots=True)
class _Candidacies:
    """Candidacies of one voter.

    term    newest term in which it stood; `taken`: whether it may be voted for in that term
    times   number of candidacies outside a pause; `until`: tick at which its pause ends
    """

    term: int = 0
    taken: bool = False
    times: int = 0
    until: int = 0


class FailedCandidacies:
    """Candidacies of all other voters.

    first   ticks of the first pause
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._of: dict[str, _Candidacies] = {}

    def rests(self, author: str, now: int) -> bool:
        """Return whether this voter is within its pause, and gets no votes."""
        known = self._of.get(author)
        return known is not None and now < known.until

    def stands(self, author: str, term: int, now: int) -> bool | None:
        """Note a candidacy in a term; return whether the candidate may be voted for, None for a repeat of a refusal."""
        known = self._of.setdefault(author, _Candidacies())
        again = term <= known.term
        if again and known.taken:
            return True
        if now < known.until:
            known.term, known.taken = max(term, known.term), False
            return None if again else False
        known.term, known.taken = term, True
        known.until = now + (self._first << min(known.times, _DOUBLINGS_MAX))
        known.times += 1
        return True

    def begin_anew(self) -> None:
        """Forget all candidacies: a round came into force."""
        self._of.clear()
