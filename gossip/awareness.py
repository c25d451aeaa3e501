"""When to give up on a peer: the waits of membership, and the measurements that stretch them. Pure functions.

Four things change a wait, each for its own reason:

* **Health**: a peer that is itself slow (its helpers' nacks do not arrive, others suspect it) probes more slowly and
  waits longer (Lifeguard's local health multiplier).
* **Loss**: a peer measures the fraction of its first pings that are not answered in time although the target is alive,
  and allows as many more tries as make an answer just as likely as on a good network. At 30 % loss, plain SWIM
  declares living peers dead.
* **Round trips**: the waits were chosen for answers within 8 ticks. A peer whose answers take longer is waited for
  longer in proportion (`round_trips.py`). Over TCP nothing is lost, but everything may be late.
* **Dogpile**: a suspicion begins with a long wait, which shrinks with the logarithm of the number of others that
  suspect the same peer independently.

Sources: Das, Gupta, Motivala, SWIM, 2002; Dadgar, Phillips, Currey, Lifeguard, 2018. The rules for loss and for round
trips are fedpeer's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProbeTiming:
    """All waits, in ticks (25 ms by default), for messages that take up to 4 ticks one way.

    They were chosen for this bound: with at most 16 peers and 10 % loss, all peers know of a death within 100 ticks.
    Every second probe goes to the successor in the ring, so the dead peer's ping is unanswered within
    2 * probe + answer ticks; the probe fails `helped` ticks later, the others receive the news within about 15, ping
    for themselves, and declare the peer dead when it has answered none of them for `suspicion_min`.

    probe            from one probe of a peer's own to its next
    answer           until a ping counts as unanswered: two ways of 4 ticks each
    helped           from then until the answers through helpers must be there: four ways of 4 ticks
    helpers          number of peers asked to ping on one's behalf; at 10 % loss all three fail one time in 25
    check            between two pings to a suspect: six in a row are lost one time in 20,000 at 10 % loss both ways
    suspicion_min    wait without an answer of the suspect if `confirmations` others suspect it as well
    suspicion_max    the same wait if no other peer does, though others could
    confirmations    independent findings that shrink the one wait to the other (memberlist: multiplier 4, less 2)
    gossip           between two batches of pings that carry urgent news
    fan_out          number of pings in such a batch
    revisit          between two pings to a dead or unknown peer, so that partitions heal without a restart
    restate          between two statements that differ in round and score only; at least four times the number of
                     peers, since each statement must reach everyone on messages that are sent anyway
    pause            a gap of more ticks than this means that this process did not run: only this many are counted
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

#: Unanswered fraction of first pings up to which waits are not stretched: that of 19 % loss one way. At 10 % loss it is
#: 0.19, and a mean over _SAMPLES_MAX samples is seldom that far off by chance.
UNANSWERED_FREE = 0.35
#: Fraction above which waits stretch no further: 70 % loss one way would give 0.91, and there no verdict is reliable.
_UNANSWERED_MAX = 0.75
#: Samples that the measurement remembers, those of 640 ticks; and how many samples of _UNANSWERED_START it begins
#: with, so that the first lost ping does not stretch everything.
_SAMPLES_MAX = 64
_SAMPLES_START = 8
_UNANSWERED_START = 0.1


@dataclass(frozen=True, slots=True)
class Awareness:
    """A peer's measurements of itself and of its network.

    health       0 (well) to HEALTH_MAX
    unanswered   fraction of first pings without an answer in time, among those whose target turned out to be alive
    samples      number of samples behind `unanswered`, at most _SAMPLES_MAX
    """

    health: int = 0
    unanswered: float = _UNANSWERED_START
    samples: int = _SAMPLES_START

    def worse(self, by: int) -> Awareness:
        """Return the awareness after `by` signs of bad health; a negative number counts signs of good health."""
        return Awareness(min(max(self.health + by, 0), HEALTH_MAX), self.unanswered, self.samples)

    def sampled(self, lost: bool) -> Awareness:
        """Return the awareness after one more first ping to a living target: a mean over about _SAMPLES_MAX samples."""
        samples = min(self.samples + 1, _SAMPLES_MAX)
        return Awareness(self.health, self.unanswered + (lost - self.unanswered) / samples, samples)

    @property
    def patience(self) -> int:
        """Factor for waits that depend on this peer's own speed."""
        return self.health + 1

    @property
    def stretch(self) -> float:
        """Factor for the number of tries, from 1 to 3.7.

        All of n tries fail with probability unanswered ** n, so n tries at UNANSWERED_FREE are worth
        n * log(UNANSWERED_FREE) / log(unanswered) tries here.
        """
        share = min(max(self.unanswered, UNANSWERED_FREE), _UNANSWERED_MAX)
        return math.log(UNANSWERED_FREE) / math.log(share)


def suspicion_wait(timing: ProbeTiming, stretch: float, confirmed: int, possible: int) -> float:
    """Return the ticks from the beginning of a suspicion to the verdict if `confirmed` others suspect the same peer.

    max - (max - min) * log(confirmed + 1) / log(k + 1), where k is the number of confirmations that are possible
    (Lifeguard, 2018, section IV-B); the shortest wait if no other peer can confirm (memberlist).
    """
    wanted = min(timing.confirmations, possible)
    share = math.log(min(confirmed, wanted) + 1) / math.log(wanted + 1) if wanted > 0 else 1.0
    return stretch * (timing.suspicion_max - (timing.suspicion_max - timing.suspicion_min) * share)
