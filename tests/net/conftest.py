"""Hosts and a federation on them for each test, and one undisturbed run for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.net.groups import LABEL, WARDS, write_tables
from tests.net.hosts import Hosts, missing
from tests.net.peers import Peer, finish, mean_accuracy, settle, until
from tests.net.relay import Relay

#: Rounds of a small part of a second each; a peer that is done waits for the other peers.
ROUNDS = 20
#: Rounds of the undisturbed run: its accuracy is the same from the eighth on.
CALM_ROUNDS = 10
#: Settings of rounds that no test waits for, each as short as it can be.
ENDLESS: dict[str, Any] = {"rounds": 100_000, "steps": 50}
#: Settings of rounds of about a second each, long enough that a fault of the network takes effect in the middle.
LONG: dict[str, Any] = {"steps": 4000, "lr": 0.01}


def federation(
    *,
    rounds: int = ROUNDS,
    deadline: float = 20,
    mode: str = "synchronous",
    steps: int = 250,
    lr: float = 0.1,
    protocol: str = "push-sum",
    averaging: str = "",
) -> str:
    """Return a federation file as a practitioner would write it; `averaging` adds settings of gossip."""
    return f"""\
name: wards
network: {{mlp: {{layers: [64, 50, 10], activation: relu}}}}
partial_models:
  everyone: {{neurons: {{input: all, hidden1: 40, output: all}}}}
learning:
  {{optimizer: {{sgd: {{lr: {lr}}}}}, batch_size: 10, steps_between_averaging: {steps}, rounds: {rounds}, mode: {mode}}}
gossip: {{protocol: {protocol}, deadline: {deadline:g}, gather: 30{averaging}}}
"""


@pytest.fixture(scope="session")
def can_have_hosts() -> None:
    if lacks := missing():
        pytest.skip(f"no hosts: {lacks}")


@pytest.fixture
def hosts(can_have_hosts: None, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Yield the four wards' hosts and one outside the federation.

    A relay that a test names is between them; each host that it names is behind a router.
    """
    named: Relay | tuple[str, ...] | None = getattr(request, "param", None)
    relay, behind = (None, named) if isinstance(named, tuple) else (named, ())
    if relay and (lacks := missing(relay)):
        pytest.skip(f"no relay: {lacks}")
    with Hosts([*WARDS, "guest"], relay, behind=behind) as found:
        yield found


@pytest.fixture
def made(hosts: Hosts, tmp_path: Path) -> Callable[..., dict[str, Peer]]:
    """Return a function that makes the wards as peers, from the settings of their federation."""

    def make(**settings: Any) -> dict[str, Peer]:
        return settle(hosts, tmp_path, write_tables(tmp_path), federation(**settings), LABEL)

    return make


@dataclass(frozen=True)
class Calm:
    """The undisturbed run, when it is over."""

    peers: list[Peer]
    accuracy: float


@pytest.fixture(scope="session")
def calm(can_have_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calm]:
    folder = tmp_path_factory.mktemp("calm")
    with Hosts(WARDS) as hosts:
        peers = list(settle(hosts, folder, write_tables(folder), federation(rounds=CALM_ROUNDS), LABEL).values())
        for peer in peers:
            peer.start()
        finish(peers)
        yield Calm(peers, mean_accuracy(peers))


def started(peers: dict[str, Peer], round: int = 1) -> list[Peer]:
    """Start all of these peers; return them once each has finished this round."""
    for peer in peers.values():
        peer.start()
    for peer in peers.values():
        peer.reaches(round)
    return list(peers.values())


def all_reach(peers: list[Peer], round: int) -> None:
    until(lambda: all(peer.done >= round for peer in peers), lambda: f"rounds {[peer.done for peer in peers]}")
