"""bob in his own process, to whom ann sends shares for future exchanges: `python -m tests.peer.runtime.hoarding`.

It prints as JSON the process's memory before the shares and at its peak, as the operating system reports it (bytes),
how many shares ann sent and their total weight, how many bob took, the weight that he holds, and the codes with which
he rejected shares for exchanges that no averaging has.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from fedpeer.config.federation import Federation
from tests.peer.hostile import numbers
from tests.peer.runtime.bob import Bob, bob_at
from tests.sims import worlds

#: Hidden neurons of the group, for shares of 1.3 MB on the wire and 2.6 MB in memory; and the number of shares, which
#: would take 156 MB if all of them waited, nearly twice what is allowed.
HIDDEN, TIMES = 4300, 60
#: Number of exchanges in an averaging; the shares are for two of them.
EXCHANGES = 40
WEIGHT = 2.0**-10
STATUS = Path("/proc/self/status")


def memory(field: str) -> int:
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def federation() -> Federation:
    models = {
        "all": {"neurons": {"input": "all", "hidden1": HIDDEN}, "members": ["ann", "bob", "cas", "dan"]},
        "closed": {"neurons": {"hidden1": 1}, "members": ["bob", "eve"]},
    }
    return worlds.federation(
        network=f"mlp:64+{HIDDEN + 2}+10",
        gossip__gather=3600.0,
        gossip__exchanges=EXCHANGES,
        partial_models=models,
        simulation__peers=None,
    )


def give(bob: Bob, tail: bytes, number: int, seq: int) -> None:
    """Send ann's share for the exchange with this number, counted over the rounds to come."""
    round, exchange = divmod(number, EXCHANGES)
    bob.say(bob.next(seq=seq, round=1 + round, exchange=exchange, weight=WEIGHT, tail=tail))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, bob_at(Path(folder), federation()) as bob:
        tail = numbers(*[WEIGHT] * bob.party().length)
        for number in range(3):  # memory of first uses counts as an idle peer's
            give(bob, tail, number, number + 1)
        bob.taken()
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        idle = memory("VmRSS")
        for number in range(3, TIMES):
            give(bob, tail, number, number + 1)
        taken, weight = bob.taken(), bob.peer.inside(lambda: bob.peer.state.durable.groups["all"].weight)
        peak, refused = memory("VmHWM"), []
        for exchange in (EXCHANGES + 1, 2**40):
            before = bob.peer.counted("epoch_too_early")
            bob.say(bob.next(round=3, exchange=exchange, weight=WEIGHT, tail=tail))
            refused += ["epoch_too_early"] * (bob.peer.counted("epoch_too_early") - before)
        found = {
            "idle": idle, "peak": peak, "asked": TIMES, "given": TIMES * WEIGHT, "taken": taken, "weight": weight,
            "refused_exchange": refused,
        }  # fmt: skip
        print(json.dumps(found))


if __name__ == "__main__":
    main()
