"""The fork server starts early only for runs that will need it, with the imports that their networks probably need."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest

from fedpeer.config.choice import parse_choice
from fedpeer.config.settings import FederationSettings
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.vector.fork_server import start_early
from tests.sims.worlds import federation


def of_data(dataset: str) -> FederationSettings:
    """Return a federation on a data set, with the network that fits it."""
    return federation(network=None, simulation__dataset=parse_choice(dataset), partial_models={})


REQUEST = SimulationRequest(federation=federation(), device="cpu")


@pytest.mark.skipif(sys.platform == "win32", reason="the system has no fork server")
@pytest.mark.parametrize(
    ("request_", "imports"),
    [
        pytest.param(REQUEST, "preload", id="perceptron, SGD"),
        pytest.param(replace(REQUEST, federation=federation(network="cnn")), "preload_autograd", id="CNN"),
        pytest.param(
            replace(REQUEST, federation=federation(learning__optimizer=parse_choice("adam"))),
            "preload_autograd",
            id="Adam",
        ),
        pytest.param(
            replace(REQUEST, federation=federation(learning__optimizer=parse_choice("sgd,lr=0.1,weight_decay=0.01"))),
            "preload_autograd",
            id="weight decay",
        ),
        pytest.param(replace(REQUEST, federation=federation(network="mlp:64+8+10,dropout=0.1")), None, id="dropout"),
        pytest.param(replace(REQUEST, federation=of_data("mnist")), "preload", id="flat images"),
        pytest.param(replace(REQUEST, federation=of_data("mnist,shape=image")), "preload_autograd", id="images"),
        pytest.param(replace(REQUEST, federation=of_data("cifar10")), "preload_autograd", id="images by default"),
        pytest.param(replace(REQUEST, federation=of_data("shakespeare")), None, id="text"),
        pytest.param(replace(REQUEST, device="cuda"), None, id="GPU"),
        pytest.param(replace(REQUEST, device="auto"), None, id="machine with a GPU"),
        pytest.param(replace(REQUEST, engine="network"), None, id="another engine"),
    ],
)
def test_the_fork_server_starts_early_where_it_is_needed(
    request_: SimulationRequest, imports: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[str]()
    server = vars(forkserver)["_forkserver"]
    monkeypatch.setattr(server, "_preload_modules", [])
    monkeypatch.setattr(resource_tracker, "ensure_running", lambda: None)
    monkeypatch.setattr(forkserver, "ensure_running", lambda: started.extend(vars(server)["_preload_modules"]))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    start_early(request_)
    assert started == ([] if imports is None else [f"fedpeer.sims.vector.{imports}"])


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which signals a process blocks")
def test_an_interrupt_does_not_reach_its_imports() -> None:
    """The server inherits a blocked SIGINT; this process has it as before."""
    code = (
        "import signal; from multiprocessing import forkserver;"
        "from fedpeer.sims.vector.fork_server import worker_context; worker_context(autograd=False);"
        "print(forkserver._forkserver._forkserver_pid, signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True);"
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        server, blocked = process.stdout.readline().split(maxsplit=1)
        status = Path(f"/proc/{server}/status").read_text()
        process.communicate("\n")
    mask = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")), 16)
    assert mask >> (signal.SIGINT - 1) & 1
    assert blocked.strip() == "set()"
