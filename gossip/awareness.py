"""When to give up on a peer: the waits of membership, and the two measurements by which they stretch. Pure functions.

Four things stretch a wait, each for its own reason:

* **Health**: a peer that is itself slow, so that its helpers' nacks are missing and others suspect it, probes more
  slowly and waits longer (Lifeguard's local health multiplier).
* **Loss**: a peer measures which share of its first pings is not answered in time although their target lives, and
  waits for as many more tries as make an answer just as likely as on a good network. Plain SWIM buries the living
  at 30 % loss.
* **Round trips**: what a wait was chosen for is an answer within 8 ticks. Of whom answers take longer is waited for
  longer in proportion (`round_trips.py`). Over TCP nothing is lost, and everything is late.
* **Dogpile**: a suspicion begins with a long wait, which shrinks with the logarithm of the number of others that found
  the same independently.

Sources: Das, Gupta, Motivala, SWIM, 2002; Dadgar, Phillips, Currey, Lifeguard, 2018. The rules for loss and for round
trips are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProbeTiming:
    """All waits, in ticks (25 ms by default), for messages that take up to 4 ticks one way.

    The bound that they were chosen for: at most 16 peers, 10 % loss, known to all within 100 ticks. The successor in
    the ring is probed every second time, so a death is probed within 2 * probe + answer ticks; the probe fails
    `helped` ticks later, the others hear of it within about 15, ask for themselves, and bury it when it has answered
    none of them for `suspicion_min`.

    probe            between two probes of one peer
    answer           until a ping counts as unanswered: two ways of 4 ticks each
    helped           then, until the answers by way of helpers must be there: four ways of 4 ticks
    helpers          asked to ping in one's stead; at 10 % loss all three of them fail one time in 25
    check            between two pings to a suspect: of six, all are lost one time in 20,000 at 10 % loss both ways
    suspicion_min    without an answer of the suspect, when `confirmations` others suspect it as well
    suspicion_max    the same, when nobody does, though others could
    confirmations    independent findings that shrink the one wait to the other (memberlist: multiplier 4, less 2)
    gossip           between two handfuls of pings that carry news; `fan_out` pings each
    revisit          between two pings to somebody dead or never heard, so that partitions heal without a restart
    restate          between two statements in which only round and score differ; at least four times the number of
                     peers, since each has to reach everyone on the back of messages that are there anyway
    pause            more ticks at once than this mean that this process did not run: the rest of them is not counted
    """

    probe: int = 10
    answer: int = 8
    helped: int = 16
    helpers: int = 3
    check: int = 3
    suspicion_min: int = 24
    suspicion_max: int = 54
    confirmations: int = 2
    gossip: int = 2
    fan_out: int = 2
    revisit: int = 40
    restate: int = 40
    pause: int = 8


#: Highest health score: waits of up to 8 times (memberlist's awareness maximum).
HEALTH_MAX = 7

#: Unanswered share of first pings up to which waits are not stretched: what 19 % of loss one way does. At 10 % it is
#: 0.19, and a mean over _SAMPLES_MAX samples is seldom so far off by chance.
UNANSWERED_FREE = 0.35
#: Share beyond which waits stretch no further: 70 % one way would be 0.91; there nothing can be told any more.
_UNANSWERED_MAX = 0.75
#: Samples that the measurement remembers, the probes of 640 ticks; and how many samples of _UNANSWERED_START it begins
#: with, so that the first lost ping does not stretch everything.
_SAMPLES_MAX = 64
_SAMPLES_START = 8
_UNANSWERED_START = 0.1


@dataclass(frozen=True, slots=True)
class Awareness:
    """What a peer knows of itself and its network.

    health       0 (well) to HEALTH_MAX
    unanswered   share of first pings without an answer in time, of those whose target turned out to live
    samples      that it rests on, at most _SAMPLES_MAX
    """

    health: int = 0
    unanswered: float = _UNANSWERED_START
    samples: int = _SAMPLES_START

    def worse(self, by: int) -> Awareness:
        """After `by` signs of bad health, or of good health where negative."""
        return Awareness(min(max(self.health + by, 0), HEALTH_MAX), self.unanswered, self.samples)

    def sampled(self, lost: bool) -> Awareness:
        """After one more first ping whose target lives: a running mean over about the last _SAMPLES_MAX."""
        samples = min(self.samples + 1, _SAMPLES_MAX)
        return Awareness(self.health, self.unanswered + (lost - self.unanswered) / samples, samples)

    @property
    def patience(self) -> int:
        """By how much to multiply what depends on this peer's own speed."""
        return self.health + 1

    @property
    def stretch(self) -> float:
        """By how much to multiply the tries, from 1 to 3.7: the chance that all of n tries fail is unanswered ** n, so
        n tries at UNANSWERED_FREE are worth n * log(UNANSWERED_FREE) / log(unanswered) tries here."""
        share = min(max(self.unanswered, UNANSWERED_FREE), _UNANSWERED_MAX)
        return math.log(UNANSWERED_FREE) / math.log(share)


def suspicion_wait(timing: ProbeTiming, stretch: float, confirmed: int, possible: int) -> float:
    """Ticks from the beginning of a suspicion to the verdict, when `confirmed` others found the same.

    max - (max - min) * log(confirmed + 1) / log(k + 1), with k the confirmations that there can be (Lifeguard, 2018,
    section IV-B); the shortest wait where nobody else is there to confirm (memberlist).
    """
    wanted = min(timing.confirmations, possible)
    share = math.log(min(confirmed, wanted) + 1) / math.log(wanted + 1) if wanted > 0 else 1.0
    return stretch * (timing.suspicion_max - (timing.suspicion_max - timing.suspicion_min) * share)
