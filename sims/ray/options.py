"""Checks of a request for Ray that need no Ray: whether it is installed, whether a cluster answers at the address."""

from __future__ import annotations

import importlib.util
import socket

from fedpeer.config.choice import ChoiceError

#: Seconds within which a cluster's head accepts a connection.
_ANSWER_SECONDS = 5.0
HERE = "leave out the address for a cluster on this machine alone"


def check_ray(address: str) -> None:
    """Check that a run on Ray can start.

    Args:
        address: HOST:PORT of a cluster's head; "auto" for the cluster of this machine; "" for a new one.

    Raises:
        ChoiceError: Ray is not installed, the address is invalid, or nothing answers there.
    """
    if importlib.util.find_spec("ray") is None:
        raise ChoiceError("the ray engine needs Ray; run pip install 'fedpeer[ray]', or use the vector engine")
    if address in ("", "auto"):
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal() or not 0 < int(port) < 65536:
        text = "write HOST:PORT of the cluster's head, such as 192.0.2.7:6379, or auto on one of its machines"
        raise ChoiceError(f'"{address}" is not an address; {text}')
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except OSError as error:
        way_out = f"start one there with ray start --head --port={port}, or {HERE}"
        raise ChoiceError(f"no Ray cluster answers at {address} ({error}); {way_out}") from None
