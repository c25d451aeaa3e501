"""Cost of a growing federation for each peer: meeting, membership, a death, and the coordinator's work.

Whole peers run in virtual time over links that lose nothing (the network engine's simulator), so counts of messages and
bytes do not depend on the machine. They learn a small network in rounds of two seconds; under a coordinator rounds are
longer, so that heartbeats are seen alone. `python -m benchmarks.scaling [--peers 16,32,64,100]` prints the table of
docs/scaling.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from benchmarks.measure import clocked
from benchmarks.transports import Fedpeer, Keys
from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.learning.holdings import load_dataset
from fedpeer.peer.node.node import Node
from fedpeer.peer.wire.roster import to_bytes
from fedpeer.runs.summary import count_text
from fedpeer.sims.network.node_factory import NodeFactory
from fedpeer.sims.network.simulator import Simulator
from fedpeer.sims.world import build_world

PEERS = (16, 32, 64, 100)
#: Parameters of the network, 64-10-10, which is averaged whole.
PARAMETERS = 760
#: Ticks of a training without a coordinator: a round takes slightly more than two seconds. Membership messages are
#: counted between the two ticks of `NEWS`, after the first news has spread.
ROUND, NEWS = 80, (400, 800)
#: Ticks of a training under a coordinator, and the two ticks between which its heartbeats are counted: by then it is
#: elected, and all peers are training.
LONG_ROUND, BEATS = 480, (200, 400)
#: Most ticks to wait for an event.
PATIENCE = 4000
TICK_S = 0.025
#: Messages that are sent to measure the processor time of one.
MESSAGES = 300
#: Kinds of membership messages.
MEMBERSHIP = ("Ping", "Pong", "PingRequest")
#: A message in the history of a simulator.
MESSAGE = ("tick", "said", "sender", "kind", "recipient", "bytes")


@dataclass(frozen=True)
class Sent:
    """Traffic of some peers in some period: messages and bytes."""

    messages: int
    bytes: int

    @staticmethod
    def of(simulator: Simulator, kinds: Sequence[str], peer: str = "") -> Sent:
        """Return the traffic of these kinds, by this peer or by all, since the history was cleared."""
        sent = (row for row in simulator.rows if row[1] == "said" and len(row) == len(MESSAGE))
        sizes = [int(str(size)) for _, _, who, kind, _, size in sent if kind in kinds and peer in ("", who)]
        return Sent(len(sizes), sum(sizes))


@dataclass(frozen=True)
class Costs:
    """Figures for one number of peers: bytes, messages, seconds.

    roster       bytes of its file
    meeting      of one peer, until all have met
    membership   of one peer in a second
    death        seconds until all peers know that a peer was killed
    beats        of the coordinator in a second, while all others train
    upward, downward   bytes that the coordinator is sent in a round, and sends, of updates and models
    """

    peers: int
    roster: int
    meeting: Sent
    membership: Sent
    death: float
    beats: Sent
    upward: int
    downward: int


def measure(peers: int) -> Costs:
    """Measure all costs for this number of peers, in two simulators."""
    node_factory, simulator = _simulator(peers, "full-averaging", ROUND)
    _until(simulator, lambda: _met(simulator) == peers * (peers - 1))
    meeting = Sent.of(simulator, ("Hello",))
    _between(simulator, NEWS)
    membership = Sent.of(simulator, MEMBERSHIP)
    gone, killed = node_factory.world.peers[-1], simulator.now
    simulator.kill(gone)
    _until(simulator, lambda: all(node.state.membership.status(gone) == "dead" for node in _nodes(simulator)))
    death = (simulator.now - killed) * TICK_S

    led, consensus = _simulator(peers, "fedavg", LONG_ROUND)
    _between(consensus, BEATS)
    first = _coordinator(consensus)
    beats = Sent.of(consensus, ("ConsensusMessage",), first)
    consensus.rows.clear()
    _until(consensus, lambda: all(node.durable.round > 1 for node in _nodes(consensus)))
    assert _coordinator(consensus) == first, "nobody took over in between"
    return Costs(
        peers=peers,
        roster=len(to_bytes(node_factory.roster)),
        meeting=_each(meeting, peers),
        membership=_each(membership, peers * _seconds(NEWS)),
        death=death,
        beats=_each(beats, _seconds(BEATS)),
        upward=sum(Sent.of(consensus, ("Update",), peer).bytes for peer in led.world.peers if peer != first),
        downward=Sent.of(consensus, ("ModelReply",), first).bytes,
    )


def _simulator(peers: int, method: str, training: int) -> tuple[NodeFactory, Simulator]:
    """Return this number of peers, just started; `training`: ticks of a training in each round."""
    federation = Federation.model_validate(
        {
            "network": "mlp:64+10+10",
            "learning": {"batch_size": 10, "steps_between_averaging": 20, "evaluate_every": 1000},
            "gossip": {"exchanges": 1, "tick": TICK_S},
            "simulation": {"peers": peers, "split": "iid"},
        }
    )
    world = build_world(federation, load_dataset(federation.simulation.dataset), federation.seed)
    node_factory = NodeFactory.of(world, parse_choice(method))
    node_factory.pace.update(dict.fromkeys(world.peers, training / node_factory.longest_ticks()))
    simulator = Simulator(world.peers, node_factory.driver())
    simulator.start()
    return node_factory, simulator


def _nodes(simulator: Simulator) -> Iterator[Node]:
    for machine in simulator.machines().values():
        assert isinstance(machine, Node), "a town of residents"
        yield machine


def _met(simulator: Simulator) -> int:
    return sum(other.met for node in _nodes(simulator) for other in node.state.others.values())


def _coordinator(simulator: Simulator) -> str:
    """Return the coordinator, if all peers see the same one."""
    found = {consensus.coordinator for node in _nodes(simulator) for consensus in node.consensus_by_group.values()}
    assert len(found) == 1, f"they do not agree on one: {found}"
    return found.pop() or ""


def _between(simulator: Simulator, ticks: tuple[int, int]) -> None:
    """Limit the history to the events between these ticks."""
    simulator.run(ticks[0])
    simulator.rows.clear()
    simulator.run(ticks[1])


def _until(simulator: Simulator, done: Callable[[], bool]) -> None:
    end = simulator.now + PATIENCE
    while not done():
        assert simulator.now < end, f"not within {PATIENCE} ticks"
        simulator.run(simulator.now + 1)


def _seconds(ticks: tuple[int, int]) -> float:
    return (ticks[1] - ticks[0]) * TICK_S


def _each(sent: Sent, by: float) -> Sent:
    return Sent(round(sent.messages / by), round(sent.bytes / by))


HEAD = (
    "peers",
    "roster",
    "to meet",
    "membership",
    "a death is known",
    "heartbeats",
    "updates in",
    "models out",
)


def line(costs: Costs) -> str:
    """Return a line of the table in Markdown."""
    cells = (
        f"{costs.peers}",
        count_text(costs.roster, "B"),
        f"{costs.meeting.messages}, {count_text(costs.meeting.bytes, 'B')}",
        f"{costs.membership.messages}/s, {count_text(costs.membership.bytes, 'B')}/s",
        f"{costs.death:.1f} s",
        f"{costs.beats.messages:,}/s, {count_text(costs.beats.bytes, 'B')}/s",
        count_text(costs.upward, "B"),
        count_text(costs.downward, "B"),
    )
    return "| " + " | ".join(cells) + " |"


def message_ms() -> float:
    """Return the processor time of a small message by mutual TLS, of sender and receiver together."""
    keys, value_D = Keys(), torch.zeros(100)
    transport = Fedpeer("moved", len(value_D), keys)
    laps = [clocked(lambda: _send(transport, value_D), [transport.receiver.pid]).cpu for _ in range(5)]
    transport.close()
    transport.receiver.close()
    keys.close()
    return 1000 * min(laps) / MESSAGES


def _send(transport: Fedpeer, value_D: torch.Tensor) -> None:
    for _ in range(MESSAGES):
        transport.send(value_D)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--peers", default=",".join(map(str, PEERS)), help="how many, with commas between")
    torch.set_num_threads(1)
    print("| " + " | ".join(HEAD) + " |\n" + "| ---: " * len(HEAD) + "|")
    for peers in parser.parse_args().peers.split(","):
        print(line(measure(int(peers))), flush=True)
    print(f"\nA small message takes its sender and its receiver {message_ms():.1f} ms of processor time together.")


if __name__ == "__main__":
    main()
