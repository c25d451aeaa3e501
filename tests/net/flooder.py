"""A client that fills the places of a peer's port: it connects from several addresses, sends nothing, and reconnects.

    python tests/net/flooder.py HOST PORT ADDRESS...

It prints "full" once it has tried as often as it wants to hold connections, and ends after `LONGEST_S`. It imports
nothing of fedpeer.
"""

from __future__ import annotations

import socket
import sys
import time
from contextlib import suppress

#: Connections that are held from each address: as many as a peer allows each address to have in progress.
HELD = 8
#: Seconds between two rounds of replacing closed connections, and seconds after which the program ends.
PAUSE_S, LONGEST_S = 0.2, 240.0


def flood(host: str, port: str, *addresses: str) -> None:
    held: dict[tuple[str, int], socket.socket | None] = {
        (address, number): None for address in addresses for number in range(HELD)
    }
    end, told = time.monotonic() + LONGEST_S, False
    while time.monotonic() < end:
        for key, line in held.items():
            if line is None or _ended(line):
                held[key] = _connected(host, int(port), key[0])
        if not told:
            print("full", flush=True)
            told = True
        time.sleep(PAUSE_S)


def _connected(host: str, port: int, address: str) -> socket.socket | None:
    with suppress(OSError):
        line = socket.create_connection((host, port), 1.0, (address, 0))
        line.setblocking(False)
        return line
    return None


def _ended(line: socket.socket) -> bool:
    try:
        return line.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


if __name__ == "__main__":
    flood(*sys.argv[1:])
