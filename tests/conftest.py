"""For all tests: one fork server that has everything, as a run with torch's optimisers would have it."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing import forkserver

import pytest


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> None:
    """The first run in a process decides what its fork server preloads; tests of all kinds share this process."""
    if sys.platform != "win32":
        multiprocessing.get_context("forkserver").set_forkserver_preload(["fedpeer.sims.vector.preload_autograd"])
        forkserver.ensure_running()
