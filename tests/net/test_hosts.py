"""The hosts themselves: nothing of them is left on this machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.net.hosts import REPOSITORY

#: Makes hosts, starts a program on one, says in whose process, and kills itself.
KILLED = """
import os, signal
from pathlib import Path
from tests.net.hosts import Hosts
with Hosts(["ann", "bob"], behind=["bob"]) as hosts:
    hosts.start("ann", ["sleep", "1000"], folder=Path())
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_no_namespace(can_have_hosts: None) -> None:
    """Whoever removes them has the run's output open, so that it ends when they are gone."""
    run = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stdout, run.stderr
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert f"fp{run.stdout.strip()}n" not in spaces.stdout
