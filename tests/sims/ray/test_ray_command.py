"""`fedpeer simulate --engine ray` as a user runs it: a cluster of this machine is started and stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

COMMAND = ["simulate", "--engine", "ray", "--shards", "1", "--peers", "4", "--network", "mlp:64+20+10", "--json"]
COMMAND += ["--compare", "partial-averaging", "--rounds", "1000000", "--steps", "20", "--batch-size", "5"]


@pytest.mark.soak
def test_ctrl_c_ends_run_and_cluster_and_nothing_of_rays_is_said(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "fedpeer", *COMMAND, "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        said = []
        for line in run.stderr:
            said.append(line)
            if ": round " in line:
                break
        processes = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=300)
    text = "".join(said) + err
    assert run.returncode == 130, text
    assert "note: starting Ray on this machine" in text
    assert "1 worker on cpu" in text
    assert "raylet" not in text
    assert json.loads(out)["methods"]["partial-averaging"]["rounds"] >= 1
    assert len(processes) > 2
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
