"""Whether this machine has the IPv6 loopback address, which a container may lack."""

from __future__ import annotations

import socket

import pytest


def _has_loopback() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_loopback(), reason="needs the IPv6 loopback address ::1")
