"""`client.py SOCKET WORDS...`: have the server fork a Python for these words, and end as it ends.

`python -I -S` runs it, which starts in milliseconds, so it imports little.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

#: The signal that the program gets for each signal of the client.
PASSED_ON = {
    **{each: each for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT)},
    signal.SIGUSR1: signal.SIGKILL,
    signal.SIGUSR2: signal.SIGSTOP,
}
NAMESPACES = ("net", "mnt") if sys.platform == "linux" else ()
NUMBER_BYTES = 8


def main(path: str, words: list[str]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    request = json.dumps({"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        spaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in NAMESPACES]
        socket.send_fds(line, [number_bytes(len(request))], [0, 1, 2, *spaces])
        line.sendall(request)
        pid = number(line)
        for each in PASSED_ON:
            signal.signal(each, lambda received, _: os.kill(pid, PASSED_ON[signal.Signals(received)]))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        code = os.waitstatus_to_exitcode(number(line))
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def number_bytes(value: int) -> bytes:
    return value.to_bytes(NUMBER_BYTES, "big")


def number(line: socket.socket) -> int:
    return int.from_bytes(received(line, NUMBER_BYTES), "big")


def received(line: socket.socket, count: int) -> bytes:
    """Return so many bytes; end this process if the other side is gone."""
    found = b""
    while len(found) < count:
        more = line.recv(count - len(found))
        if not more:
            os._exit(255)
        found += more
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
