"""Many kills: four peers on hosts of their own are killed one after another, packets are dropped, the network is cut.

    python -m tests.net.soak [--kills 50] [--loss 0.3] [--cut 30] [--rounds 200] [--seed 0]

The program prints the mass error, the accuracy beside that of a run without any fault, and the time. It exits with 1 if
mass was lost, if less was learned, or if the peers had finished before the last kill; where hosts are impossible, it
prints what is missing and exits with 0. It is run by hand, or as a part of `make soak`; as root; for many minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from tests.net.conftest import LONG, federation
from tests.net.groups import LABEL, WARDS, write_tables
from tests.net.hosts import Hosts, missing
from tests.net.masses import mass_errors
from tests.net.peers import Peer, finish, mean_accuracy, settle, until

#: Seconds between two kills, at random: from before a peer has read its file to some rounds after it.
APART_S = (1.0, 12.0)
#: Seconds for the run, or for its end when nothing disturbs it any more.
PATIENCE_S = 3600.0
#: Largest error, as a fraction of what was put in.
MASS_ERROR_MAX = 1e-6
#: One percentage point below the run without any fault.
ACCURACY_LOSS_MAX = 0.01


def soak(folder: Path, *, kills: int, loss: float, cut: float, seed: int, rounds: int) -> tuple[list[Peer], int]:
    """Run the wards to their end, with so many kills on the way and the cut in their middle; return the peers and the
    number of kills that came too late."""
    draws, late = Random(seed), 0

    def kill(number: int) -> None:
        nonlocal late
        running = [peer for peer in peers if peer.runs]
        if not running:
            late += 1
            return
        victim = draws.choice(running)
        victim.kill()
        victim.start()
        print(f"{clock():6.0f} s  kill {number}: {victim.id}; rounds {[peer.done for peer in peers]}", flush=True)

    def divide(*sides: tuple[str, ...]) -> None:
        hosts.cut(*sides)
        print(f"{clock():6.0f} s  {' | '.join(' '.join(side) for side in sides) or 'whole again'}", flush=True)

    with Hosts(WARDS) as hosts:
        peers = list(settle(hosts, folder, write_tables(folder), federation(rounds=rounds, **LONG), LABEL).values())
        for peer in peers:
            peer.start()
        began = time.monotonic()
        hosts.lose(loss)

        def clock() -> float:
            return time.monotonic() - began

        plan: list[tuple[float, Callable[[], None]]] = []
        moment = 0.0
        for number in range(1, kills + 1):
            moment += draws.uniform(*APART_S)
            plan.append((moment, partial(kill, number)))
        if cut:
            plan += [(moment / 2, partial(divide, WARDS[:2], WARDS[2:])), (moment / 2 + cut, divide)]
        for moment, act in sorted(plan, key=lambda each: each[0]):
            until(lambda moment=moment: clock() >= moment, "time passes")  # type: ignore[misc]
            act()
        hosts.heal()
        finish(peers, PATIENCE_S)
    return peers, late


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--loss", type=float, default=0.3)
    parser.add_argument("--cut", type=float, default=30.0, help="seconds in the middle; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    if lacks := missing():
        print(f"no soak between hosts: {lacks}")
        return 0
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for name, kills, loss, cut in (("calm", 0, 0.0, 0.0), ("soak", options.kills, options.loss, options.cut)):
            began, folder = time.monotonic(), Path(place) / name
            folder.mkdir()
            peers, late = soak(folder, kills=kills, loss=loss, cut=cut, seed=options.seed, rounds=options.rounds)
            error, accuracy = max(mass_errors([peer.file for peer in peers]).values()), mean_accuracy(peers)
            found[name] = accuracy
            print(
                f"{name}: mass error {error:.1e}, accuracy {accuracy:.4f}, {time.monotonic() - began:.0f} s", flush=True
            )
    below = found["calm"] - found["soak"]
    print(f"{100 * below:+.2f} points below the calm run; {late} of {options.kills} kills came after the end")
    return int(error > MASS_ERROR_MAX or below > ACCURACY_LOSS_MAX or late > 0)


if __name__ == "__main__":
    sys.exit(main())
