"""How often each voter stood for coordinator and nothing came of it: values and counting, no clock here.

A vote request raises the terms of those who vote, and whoever raises them again and again ends the elections of all
others. So each time that an author stands it is not voted for during a while, twice as long as the time before, until a
round comes into force; then everybody begins anew. An honest candidate whose vote was split stands again later than the
first of these whiles is over.

Whoever stands within such a while is refused, and not charged. By its own timers an honest candidate could stand some
hundred times a minute where each of its elections is lost at once (it backs off for 7.5 ticks on average), and a liar
gains nothing by standing more often than once in each while. So a charge by rate that spares the honest would spare
every liar that counts; what it costs the others is measured (`tests/peer/consensus/test_election.py -k only_stands`).
"""

from __future__ import annotations

from dataclasses import dataclass

#: Doublings of the first while; with a lease of 0.6 s the longest is ten seconds.
_DOUBLINGS_MAX = 4


@dataclass(slots=True)
class _Ambition:
    """One author's candidacies: the newest term in which it stood, whether that was in time, how often, and until when
    it is not voted for."""

    term: int = 0
    taken: bool = False
    times: int = 0
    until: int = 0


class FailedCandidacies:
    """The candidacies of all voters but this one.

    first   ticks of the first while
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._of: dict[str, _Ambition] = {}

    def rests(self, author: str, now: int) -> bool:
        """Whether this author stood so lately that it is not voted for."""
        known = self._of.get(author)
        return known is not None and now < known.until

    def stands(self, author: str, term: int, now: int) -> bool | None:
        """Note that it stands in a term: whether it may be voted for; None: it may not, and it said so before."""
        known = self._of.setdefault(author, _Ambition())
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
        """A round came into force."""
        self._of.clear()
