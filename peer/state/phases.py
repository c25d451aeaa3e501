"""The phases of a node, and the transitions between them.

The table is the only list of transitions: `NodeState.enter` refuses every other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

#: starting: has taken no event yet. gathering: waits for the others before the first round. joining: fetches values
#: from peers that are further. learning: trains and averages. finished: has done all rounds, and stays for the others.
#: leaving: hands everything over. stopped: has given its last effect.
Phase = Literal["starting", "gathering", "joining", "learning", "finished", "leaving", "stopped"]

_LEAVES = "the person at this machine has the peer leave"
#: What stops a node in any phase.
_ENDS = "paused, revoked, or replaced by a later process"

#: By phase, the phases that may follow it, and when each does.
TRANSITIONS: Mapping[Phase, Mapping[Phase, str]] = {
    "starting": {
        "gathering": "nothing is on the disk, or memory was lost",
        "learning": "the disk has a round to go on with",
        "finished": "all rounds are on the disk",
        "stopped": "the roster found at the start does not fit the server's state",
    },
    "gathering": {
        "learning": "all others have been met, or have been waited for long enough",
        "joining": "a peer that was met is beyond the first round",
        "leaving": _LEAVES,
        "stopped": f"{_ENDS}; or the next contract is due",
    },
    "joining": {
        "learning": "the values are here, or have been waited for long enough",
        "leaving": _LEAVES,
        "stopped": f"{_ENDS}; or the next contract is due",
    },
    "learning": {
        "finished": "all rounds are done",
        "joining": "the others have finished without this peer, which takes over their result",
        "leaving": _LEAVES,
        "stopped": f"{_ENDS}; or the next contract is due",
    },
    "finished": {
        "leaving": _LEAVES,
        "stopped": f"{_ENDS}; or nobody needs this peer any more, or the next contract is due",
    },
    "leaving": {"stopped": f"{_ENDS}; or everything is handed over or written off, and the farewells are sent"},
    "stopped": {},
}
