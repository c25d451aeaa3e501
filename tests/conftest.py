"""For all tests: one fork server that has everything, as a run with torch's optimisers would have it; examples that
may take their time, since how fast a machine is that does much else says nothing about the code; and files with slow
tests first where several workers share them, so that none is left alone with a minute's work when the others are done.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator
from multiprocessing import forkserver

import pytest
from hypothesis import HealthCheck, settings

from tests.forked import as_executable
from tests.kept.release import OldRelease, installed

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


# A test that starts programs starts many: compiling the same modules again is a quarter of what each of them computes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> None:
    """The first run in a process decides what its fork server preloads; tests of all kinds share this process."""
    if sys.platform != "win32":
        multiprocessing.get_context("forkserver").set_forkserver_preload(["fedpeer.sims.vector.preload_autograd"])
        forkserver.ensure_running()


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs that our own code starts are forks of one that has imported torch."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform != "win32":
            patch.setattr(sys, "executable", str(as_executable(tmp_path_factory.mktemp("forked"))))
        yield


@pytest.fixture(scope="session")
def old_release(tmp_path_factory: pytest.TempPathFactory) -> OldRelease:
    """The release before this one, installed in a folder of its own; `tests/kept/release.py` says how it is used."""
    return installed(tmp_path_factory.mktemp("old-release"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers take whole files in this order: by how many slow tests are in them, and otherwise as they are found."""
    if hasattr(config, "workerinput"):
        slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
        items.sort(key=lambda item: -slow[item.path])
