"""One question to all voters, and the waits of an election: values only, no machine here."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedpeer.peer.wire.ballots import VoterSet


@dataclass(frozen=True, slots=True)
class ElectionTiming:
    """All waits, in ticks (25 ms by default), for messages that take up to 4 ticks one way, 30 % of them lost.

    beat       between two heartbeats
    shortest   without a heartbeat until a peer may stand; the lease of who was heard since. More than 5 beats: at 30 %
               loss six in a row are lost once in 1,400 times
    refused    the same, where connections to the coordinator are refused: its process has ended
    longest    the same, where a coordinator was silent for longer and lived: its machine stands still for up to 3 s
    slow       until that is half forgotten
    spread     more, for the most patient peer (`patience` 1): a poll takes about 10, so of two peers whose patience
               differs by more than half of the range one is elected before the other asks
    jitter     below this drawn on top, for those whose patience is the same
    repeat     between two rounds of questions to those who have not said yes
    answer     until those who are there have answered a question: two ways of 4 ticks, and a question more
    pre_poll   until asking for promises is given up: two leases, so that those of all others end meanwhile
    poll       until asking for votes is: two ways of 4 ticks, and four more questions
    deference  that who promised a vote lets the other try: two ways, and a question more
    gone       without an answer until the coordinator waits for nobody's update any more: 12 heartbeats, which somebody
               leaves unanswered at 30 % loss (there and back) once in 3,000 times
    quorum     without a majority's answers until a coordinator steps down, as slow as they may be: meanwhile others are
               elected, if they do not hear it
    pause      more ticks at once than this mean that this process did not run: the rest of them is not counted. What
               arrived meanwhile is heard in the next passes of the event loop, each of which brings a tick; so a lease
               lasts for 12 passes at least, and who has not listened takes nobody for silent
    """

    beat: int = 4
    shortest: int = 24
    refused: int = 8
    longest: int = 144
    slow: int = 4800
    spread: int = 16
    jitter: int = 8
    repeat: int = 3
    answer: int = 12
    pre_poll: int = 48
    poll: int = 20
    deference: int = 12
    gone: int = 48
    quorum: int = 96
    pause: int = 2

    def __post_init__(self) -> None:
        assert self.shortest > 5 * self.beat, "a lease lasts more than five heartbeats"


@dataclass(slots=True)
class Poll:
    """Votes, or promises (`pre`), that are asked for under one voter set.

    It is asked `since` a tick `until` another, and next at `again`.

    `granted` has the signatures of those who said yes (of promises: empty).
    """

    term: int
    pre: bool
    voter_set: VoterSet
    since: int
    until: int
    again: int
    granted: dict[str, bytes] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
