"""Kills without end: four peers on hosts of their own, packets dropped, one after another killed at random moments.

    python -m tests.net.soak [--kills 50] [--loss 0.3] [--seed 0]

Prints the mass error, the accuracy beside that of a run without any fault, and the time. By hand, as root; minutes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from random import Random

from tests.net.conftest import federation
from tests.net.hosts import Hosts
from tests.net.masses import mass_errors
from tests.net.peers import Peer, finish, mean_accuracy, settle, until
from tests.net.wards import LABEL, WARDS, write_tables

#: Seconds between two kills, at random: from before a peer has read its file to some rounds after it.
APART_S = (1.0, 12.0)
#: Seconds for the run, or for its end when nothing disturbs it any more.
PATIENCE_S = 3600.0


def soak(folder: Path, *, kills: int, loss: float, seed: int, rounds: int) -> list[Peer]:
    """Run the wards to their end, with so many kills on the way."""
    draws = Random(seed)
    with Hosts(WARDS) as hosts:
        peers = list(settle(hosts, folder, write_tables(folder), federation(rounds=rounds), LABEL).values())
        for peer in peers:
            peer.start()
        hosts.lose(loss)
        for number in range(kills):
            ready = time.monotonic() + draws.uniform(*APART_S)
            until(lambda ready=ready: time.monotonic() > ready, "time passes")  # type: ignore[misc]
            victim = draws.choice(peers)
            ended = not victim.runs
            if not ended:
                victim.kill()
                victim.start()
            print(f"kill {number + 1}: {victim.id}{' (it had finished)' if ended else ''}", flush=True)
        hosts.heal()
        finish(peers, PATIENCE_S)
    return peers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--loss", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=100)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        began = time.monotonic()
        accuracies = []
        for name, kills, loss in (("calm", 0, 0.0), ("soak", asked.kills, asked.loss)):
            folder = Path(place) / name
            folder.mkdir()
            peers = soak(folder, kills=kills, loss=loss, seed=asked.seed, rounds=asked.rounds)
            accuracies.append(mean_accuracy(peers))
            error = max(mass_errors([peer.file for peer in peers]).values())
            print(f"{name}: accuracy {accuracies[-1]:.4f}, mass error {error:.1e}", flush=True)
        print(f"difference {100 * (accuracies[1] - accuracies[0]):+.2f} points, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
