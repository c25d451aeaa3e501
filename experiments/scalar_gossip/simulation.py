"""One large-scale simulation, run until its peers agree, with its time and memory (`fedpeer topology simulate`).

Peers begin with numbers from a normal distribution and exchange until their relative disagreement is at most the
tolerance, the exchanges are used up, or a stop is requested. Everything random follows from the seed; up to
SAME_MEMBERS_MAX peers the graph is the one that `fedpeer topology` shows for that seed. Time is processor time, which
does not depend on the machine's other work; memory is the peak size of arrays.
"""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fedpeer.config.choice import Choice, bind_settings, lookup
from fedpeer.experiments.scalar_gossip.averaging import ScalarGossip, ScalarProtocol
from fedpeer.experiments.scalar_gossip.channels import ScalarTraffic
from fedpeer.gossip.averaging import ACK_BYTES, SHARE_HEAD_BYTES
from fedpeer.topology.graphs import GRAPHS, TopologyError
from fedpeer.topology.theory import Theory, theory
from fedpeer.topology.wide import COMPLETE_MEMBERS_MAX, wide


@dataclass(frozen=True, kw_only=True)
class ScalarGossipOptions:
    """Settings of a simulation.

    graph           the graph
    peers           number of peers
    protocol        how they average
    loss            probability that a message is lost
    channels        whether shares are repeated until acknowledged; otherwise lost ones are gone
    churn           probability that a peer leaves before an exchange, hands over its mass, and is replaced
    gone            the same for peers that lose their disks, and their mass with it
    to              relative disagreement at which the simulation ends
    seed            seed of everything random
    exchanges_max   most exchanges
    """

    graph: Choice
    peers: int
    protocol: ScalarProtocol = "push-sum"
    loss: float = 0.0
    channels: bool = True
    churn: float = 0.0
    gone: float = 0.0
    to: float = 1e-6
    seed: int = 0
    exchanges_max: int = 10_000


@dataclass(frozen=True, kw_only=True)
class ScalarGossipOutcome:
    """Outcome of a simulation.

    options            its settings
    left               relative disagreement at the start and after each exchange
    drift              distance that the limit of all estimates moved, in standard deviations of the start
    weight             total weight per peer: 1 at the start, less if mass was lost, more if newcomers added theirs
    newcomers          number of newcomers
    traffic            messages of all peers
    channels           number of directed edges
    phases             number of phases of the graph
    seconds            processor time in s, including graph and theory
    exchange_seconds   mean processor time of an exchange in s
    peak_bytes         peak size of arrays
    theory             prediction without losses and churn
    remarks            sentences about the graph
    """

    options: ScalarGossipOptions
    left: tuple[float, ...]
    drift: float
    weight: float
    newcomers: int
    traffic: ScalarTraffic
    channels: int
    phases: int
    seconds: float
    exchange_seconds: float
    peak_bytes: int
    theory: Theory
    remarks: tuple[str, ...]

    @property
    def exchanges(self) -> int:
        return len(self.left) - 1

    @property
    def agreed(self) -> bool:
        return self.left[-1] <= self.options.to

    def messages(self) -> float:
        """Return the number of shares that a peer sends, with repeats."""
        return (self.traffic.shares + self.traffic.repeats) / self.options.peers

    def bytes_sent(self, numbers: int) -> float:
        """Return the bytes that a peer sends if it averages this many numbers in float32, with acknowledgements."""
        shares = self.messages() * (4 * numbers + SHARE_HEAD_BYTES)
        return shares + self.traffic.answers / self.options.peers * ACK_BYTES


#: Called after each exchange with the disagreement left.
OnProgress = Callable[[float], None]


def simulate_scalar(
    options: ScalarGossipOptions, on_progress: OnProgress = lambda _: None, stop: threading.Event | None = None
) -> ScalarGossipOutcome:
    """Run one large-scale simulation.

    Raises:
        ChoiceError, TopologyError: an invalid graph or number; the message names the way out.
    """
    _check_scalar_request(options)
    stop = stop or threading.Event()
    began = time.process_time()
    with _peak() as peak:
        build = lookup(options.graph, GRAPHS, "topology")
        graph = wide(
            options.graph.name, options.peers, bind_settings(options.graph, build), np.random.default_rng(options.seed)
        )
        if not graph.phases and (options.loss or options.churn or options.gone):
            raise TopologyError(
                f"complete with {options.peers:,} peers keeps no edges, so messages cannot be lost and peers cannot "
                f"leave; use {COMPLETE_MEMBERS_MAX:,} peers or fewer"
            )
        known = theory(graph, options.protocol, options.to)
        draws = np.random.default_rng([options.seed, 1])
        start_P = draws.standard_normal(options.peers)
        simulation = ScalarGossip(graph, options.protocol, start_P, loss=options.loss, channels=options.channels)
        left, traffic, newcomers = [simulation.disagreement()], ScalarTraffic(), 0
        exchanging = time.process_time()
        while left[-1] > options.to and len(left) <= options.exchanges_max and not stop.is_set():
            for share, handed_over in ((options.churn, True), (options.gone, False)):
                if share:
                    newcomers += simulation.replace(share, draws, handed_over=handed_over)
            traffic += simulation.exchange(len(left) - 1, draws)
            left.append(simulation.disagreement())
            on_progress(left[-1])
        ended = time.process_time()
    return ScalarGossipOutcome(
        options=options,
        left=tuple(left),
        drift=simulation.drift(),
        weight=float(simulation.everything()[1]) / options.peers,
        newcomers=newcomers,
        traffic=traffic,
        channels=graph.channels,
        phases=max(1, len(graph.phases)),
        seconds=ended - began,
        exchange_seconds=(ended - exchanging) / max(1, len(left) - 1),
        peak_bytes=peak[0],
        theory=known,
        remarks=graph.remarks,
    )


def _check_scalar_request(options: ScalarGossipOptions) -> None:
    """Check the numbers of a simulation's settings.

    Raises:
        TopologyError: a number is invalid; the message names it and the valid ones.
    """
    for name in ("loss", "churn", "gone"):
        share = getattr(options, name)
        if not 0 <= share < 1:
            raise TopologyError(f"{name} = {share}: write a number from 0 to below 1")
    if options.exchanges_max < 1:
        raise TopologyError(f"exchanges-max = {options.exchanges_max}: write 1 or more")
    if not options.channels and not options.loss:
        raise TopologyError("--no-lanes makes a difference only if messages are lost; add the loss, such as --loss 0.1")


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Yield a list that has, after the block, the peak bytes that Python and numpy allocated in it."""
    found = [0]
    before = tracemalloc.is_tracing()
    if not before:
        tracemalloc.start()
    tracemalloc.reset_peak()
    start = tracemalloc.get_traced_memory()[0]
    try:
        yield found
    finally:
        found[0] = tracemalloc.get_traced_memory()[1] - start
        if not before:
            tracemalloc.stop()
