"""Polls of all voters, and the waits of an election: values only, no machine here."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedpeer.peer.wire.consensus_messages import VoterSet


@dataclass(frozen=True, slots=True)
class ElectionTiming:
    """All waits, in ticks (25 ms by default), for messages that take up to 4 ticks one way, 30 % of them lost.

    beat       from one heartbeat to the next
    shortest   without a heartbeat until a peer may stand; also the lease of a coordinator that sent one. More than 5
               beats: at 30 % loss six in a row are lost once in 1,400 times
    refused    the same, if connections to the coordinator are refused: its process has ended
    longest    the same, if a coordinator was silent for longer and was alive: its machine stands still for up to 3 s
    slow       until the lease is halved again
    spread     added for the most patient peer (`patience` 1): a poll takes about 10, so of two peers whose patience
               differs by more than half of the range one is elected before the other asks
    jitter     upper bound of a random wait on top, for peers with the same patience
    last       added for a peer to which nobody can connect: all others have stood, and their polls are over
    repeat     from one vote request to the next, to voters that have not granted it
    answer     until reachable voters have answered a request: two ways of 4 ticks, and one more request
    pre_poll   until a pre-vote is given up: two leases, so that those of all others end meanwhile
    poll       until a vote is given up: two ways of 4 ticks, and four more requests
    deference  for which a voter that promised its vote lets the other peer try: two ways, and one more request
    known      after a member's last reply, for which it is taken to know the certificate: three heartbeats. A member
               that does not know it does not reply, and so gets it in half a lease; a process that was started again
               took longer than that to start, and gets it with the first heartbeat
    gone       without a reply until the coordinator no longer waits for a peer's update: 12 heartbeats, all of which
               stay unanswered at 30 % loss (there and back) once in 3,000 times
    quorum     without a majority's replies until a coordinator steps down, as slow as they may be: meanwhile peers that
               do not receive its heartbeats elect another
    pause      more ticks at once than this mean that this process did not run: the rest of them is not counted.
               Messages that arrived meanwhile are handled in the next passes of the event loop, each of which brings a
               tick; so a lease lasts for at least 12 passes, and a process that did not listen takes nobody for silent
    """

    beat: int = 4
    shortest: int = 24
    refused: int = 8
    longest: int = 144
    slow: int = 4800
    spread: int = 16
    jitter: int = 8
    last: int = 40
    repeat: int = 3
    answer: int = 12
    pre_poll: int = 48
    poll: int = 20
    deference: int = 12
    known: int = 12
    gone: int = 48
    quorum: int = 96
    pause: int = 2

    def __post_init__(self) -> None:
        assert self.last >= self.spread + self.jitter + self.answer, "it stands after all others"
        assert self.shortest > 5 * self.beat, "a lease lasts more than five heartbeats"
        assert self.known + 2 * self.beat < self.shortest, (
            "a member that has forgotten a certificate gets it within a lease"
        )


@dataclass(slots=True)
class Poll:
    """A vote, or a pre-vote (`pre`), under one voter set.

    since, until   ticks at which it began and is given up; `again`: tick of the next request
    granted        signature by voter that granted it (empty in a pre-vote)
    refused        voters that refused it
    """

    term: int
    pre: bool
    voter_set: VoterSet
    since: int
    until: int
    again: int
    granted: dict[str, bytes] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
