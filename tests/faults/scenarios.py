"""What goes wrong, and what has to be true all the same: one function a promise, of a seed and nothing else.

Each draws the faults and their rates from the seed, lets anything happen and checks safety at every step; then faults
end, and progress is required within a bound. `python -m tests.faults.soak NAME FIRST LAST` plays seeds again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedpeer.sims.network.faults import Act, Faults, Kind, drawn
from tests.faults.village import Village, world

#: Ticks in which all meet and begin; messages are lost, repeated and late from the first one on.
CALM = 150.0
#: Ticks behind it in which anything may happen.
STORM = 300.0
#: On the wire, and how far from the true mean an estimate may be once it is healed (P2).
FIGURES = {"float32": 1e-6, "bfloat16": 1e-3, "float64": 1e-9}


def stormy(seed: int, peers: Sequence[str], kinds: Sequence[Kind]) -> Faults:
    """The faults of this seed, after a calm beginning, so that everybody has put in its values before."""
    faults = drawn(seed, peers, STORM, kinds)
    return replace(
        faults,
        cuts=tuple(replace(cut, begin=cut.begin + CALM, end=cut.end + CALM) for cut in faults.cuts),
        acts=tuple(replace(act, tick=act.tick + CALM) for act in faults.acts),
        heal=CALM + STORM,
    )


def truth(seed: int) -> None:
    """P1, P2: nothing is lost at any step, and after heal the average is the true one."""
    wire = list(FIGURES)[seed % len(FIGURES)]
    made = world(4 + seed % 3, gossip__wire=wire)
    village = Village(made, stormy(seed, made.peers, ("kill", "flip", "pause", "step", "full")))
    village.town.start()
    village.healed()
    village.exchange(2 * village.predicted(FIGURES[wire]))
    village.judge()
    error = village.error()
    assert error <= FIGURES[wire], f"{error} from the true mean over {wire}"
