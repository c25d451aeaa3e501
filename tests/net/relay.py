"""A switch in Python: each packet between hosts is delayed by a time of its own, so that some overtake others.

    ann eth0 ---- port0 |                                             |
    bob eth0 ---- port1 | this process: frame in, a draw, frame out   |
    cyd eth0 ---- port2 |                                             |

It is for kernels that have no netem. It runs in the switch's namespace in place of the bridge, and reads and writes
whole Ethernet frames at the ports. Delay, loss and repeats are drawn for each frame and each port that it leaves by,
from one seed; which frame gets which draw depends on the machine. Frames carry the kernel's offload header with them
(`PACKET_VNET_HDR`), so checksums that the sending host has left to its device stay uncomputed, and nothing needs them.

    python -m tests.net.relay '{"delay": [0, 0.1], "lost": 0, "repeated": 0.1, "seed": 1}' port0 port1 port2
"""

from __future__ import annotations

import heapq
import itertools
import json
import selectors
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from random import Random

#: Line that is printed when packets pass.
READY = "packets pass"
#: Offload header (struct virtio_net_hdr), then addresses and type, then a payload of up to 64 KiB.
HEADER, FRAME_MAX = 10, 10 + 14 + 65536
#: Most frames in transit: some seconds of all that a few peers send. More are dropped, as at any switch.
UNDER_WAY_MAX = 20_000
#: From linux/socket.h, linux/if_packet.h and linux/if_ether.h; the module socket has no names for them.
SOL_PACKET, PACKET_VNET_HDR, ETH_P_ALL = 263, 15, 3


@dataclass(frozen=True)
class Relay:
    """Faults of packets: seconds of delay, uniform between two; probabilities to be lost, and to arrive twice."""

    delay: tuple[float, float] = (0.0, 0.0)
    lost: float = 0.0
    repeated: float = 0.0
    seed: int = 0

    def command(self, ports: list[str]) -> list[str]:
        return [sys.executable, "-m", "tests.net.relay", json.dumps(asdict(self)), *ports]


def opened(port: str) -> socket.socket:
    """Open a socket for all frames that come in at this port, and to send out of it; it does not receive what it
    sends."""
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    found.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    found.bind((port, ETH_P_ALL))
    found.setblocking(False)
    return found


def pass_on(relay: Relay, ports: list[socket.socket]) -> None:
    """Pass frames on until the process is killed."""
    draws, numbers = Random(relay.seed), itertools.count()
    under_way: list[tuple[float, int, socket.socket, bytes]] = []
    behind: dict[bytes, socket.socket] = {}
    waiting = selectors.DefaultSelector()
    for each in ports:
        waiting.register(each, selectors.EVENT_READ, data=each)
    while True:
        pause = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for key, _ in waiting.select(pause):
            port: socket.socket = key.data
            frame = port.recv(FRAME_MAX)
            to, sender = frame[HEADER : HEADER + 6], frame[HEADER + 6 : HEADER + 12]
            behind[sender] = port
            others = [other for other in ports if other is not port]
            for out in [behind[to]] if to in behind else others:
                copies = 0 if draws.random() < relay.lost else 2 if draws.random() < relay.repeated else 1
                for _ in range(min(copies, UNDER_WAY_MAX - len(under_way))):
                    due = time.monotonic() + draws.uniform(*relay.delay)
                    heapq.heappush(under_way, (due, next(numbers), out, frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, out, frame = heapq.heappop(under_way)
            with suppress(OSError):  # a full queue, or a host that is going: lost, as packets are
                out.send(frame)


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    sockets = [opened(port) for port in sys.argv[2:]]
    print(READY, flush=True)
    pass_on(Relay(**options), sockets)
