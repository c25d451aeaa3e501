"""Settings for all tests.

There is one fork server that has everything preloaded, as a run with torch's optimizers would have it. Hypothesis
examples have no deadline, because the speed of a busy machine says nothing about the code. Where several workers share
the tests, files with slow tests come first, so that no worker is left with a minute's work when the others are done.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from multiprocessing import forkserver
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.forked import as_executable, share

if TYPE_CHECKING:
    from tests.kept.release import OldRelease

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("patient"), max_examples=20)  # for `make quick`
settings.load_profile("patient")


# A test that starts programs starts many; compiling the same modules again would be a quarter of their work.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> None:
    """Start the fork server with the preloads of a run with torch's optimizers.

    The first run in a process decides what its fork server preloads, and tests of all kinds share this process.
    """
    if sys.platform != "win32":
        multiprocessing.get_context("forkserver").set_forkserver_preload(["fedpeer.sims.vector.preload_autograd"])
        forkserver.ensure_running()


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make the programs that our own code starts forks of one that has imported torch."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform != "win32":
            patch.setattr(sys, "executable", str(as_executable(tmp_path_factory.mktemp("forked"))))
        yield


@pytest.fixture(scope="session")
def old_release(tmp_path_factory: pytest.TempPathFactory) -> OldRelease:
    """Return the release before this one, installed in its own folder; `tests/kept/release.py` says how it is used."""
    from tests.kept.release import installed  # needs torch, and the process that hands out the tests has none

    return installed(tmp_path_factory.mktemp("old-release"))


def pytest_configure(config: pytest.Config) -> None:
    """Let workers share the server that forks programs: each would import torch for one of its own."""
    if config.getoption("numprocesses", None):
        share()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules are imported, and never search the objects of these modules again.

    The imports make hundreds of thousands of objects that all stay; a search of these takes seconds each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order files by their number of slow tests, otherwise as found; workers take whole files in this order."""
    if hasattr(config, "workerinput"):
        slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
        items.sort(key=lambda item: -slow[item.path])
