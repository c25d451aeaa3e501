"""`fedpeer topology simulate` and `sweep`; `fedpeer topology` with a graph's name still draws the graph."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from fedpeer.experiments.scalar_gossip import scale
from tests.cli.conftest import Fedpeer
from tests.forked import python


def test_gossip_at_scale_averages(fedpeer: Fedpeer) -> None:
    done = fedpeer(
        "topology", "simulate", "--graph", "one-peer-exponential", "--peers", "1024", "--loss", "0.1", "--seed", "2"
    )
    assert done.code == 0
    assert "one-peer-exponential, 1,024 peers, 10,240 directed edges" in done.out
    assert "10% of messages lost, and repeated" in done.out
    assert "10 from a random start, 10 from the worst, without losses" in done.out
    assert "the peers agree on the mean of the start" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    again = fedpeer(
        "topology", "simulate", "--graph", "one-peer-exponential", "--peers", "1024", "--loss", "0.1", "--seed", "2",
        "--json",
    )  # fmt: skip
    found = json.loads(again.out)
    assert len(found["left"]) - 1 == int(re.findall(r"exchanges +(\d+) to", done.out)[0])
    assert found["left"][-1] <= 1e-6 < found["left"][-2]
    assert found["traffic"]["repeats"] > 0
    assert found["peak_bytes"] > 1024 * 16


def test_what_becomes_of_masses_is_told(fedpeer: Fedpeer) -> None:
    lost = fedpeer("topology", "simulate", "--peers", "200", "--loss", "0.2", "--no-lanes").out
    assert "20% of messages lost, for good" in lost
    assert "standard deviations" in lost
    assert re.search(r"weight a peer \d\.\d+e-", lost), "hardly any is left"
    churned = " ".join(
        fedpeer("topology", "simulate", "--peers", "200", "--churn", "0.02", "--gone", "0.01").out.split()
    )
    assert "2% of peers leave each time" in churned
    assert "1% of disks lost each time" in churned
    assert "newcomers" in churned
    short = fedpeer("topology", "simulate", "--graph", "ring", "--peers", "3000", "--exchanges-max", "5").out
    assert "1e-06 not reached within 5: 0." in short
    assert "from the worst" in short
    joined = fedpeer("topology", "simulate", "--graph", "erdos-renyi:0.001", "--peers", "1200", "--exchanges-max", "1")
    assert "the graph was in" in joined.out
    pulled = fedpeer("topology", "simulate", "--graph", "hierarchy", "--peers", "50", "--protocol", "push-pull").out
    assert "unknown from a random start, unknown from the worst" in " ".join(pulled.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--graph", "rings"], ['did you mean "ring"?']),
        (["--graph", "k-regular:x"], ["degree", "whole number"]),
        (["--graph", "erdos-renyi", "--peers", "1000000"], ["10,328 peers or fewer"]),
        (["--peers", "0"], ["from 1 to 10,000,000"]),
        (["--peers", "x"], ["--peers"]),
        (["--loss", "1"], ["loss = 1.0", "to below 1"]),
        (["--churn", "-0.1"], ["churn = -0.1"]),
        (["--gone", "nan"], ["gone = nan"]),
        (["--to", "0"], ["tolerance = 0.0"]),
        (["--exchanges-max", "0"], ["exchanges-max = 0"]),
        (["--no-lanes"], ["--loss 0.1"]),
        (["--graph", "complete", "--peers", "6000", "--loss", "0.1"], ["5,656 peers or fewer"]),
        (["--protocol", "exact"], ["--protocol", "push-sum"]),
    ],
)
def test_wrong_numbers_are_refused(fedpeer: Fedpeer, arguments: list[str], words: list[str]) -> None:
    done = fedpeer("topology", "simulate", "--peers", "100", *arguments)
    assert done.code == 2
    assert all(word in " ".join(done.err.split()) for word in words)


def test_graphs_are_drawn_under_both_names(fedpeer: Fedpeer) -> None:
    assert fedpeer("topology", "ring", "--peers", "5").out == fedpeer("topology", "draw", "ring", "--peers", "5").out
    assert "k-regular:4, 16 peers" in fedpeer("topology").out
    assert "5 peers" in fedpeer("topology", "--peers", "5").out


@pytest.mark.slow
def test_ctrl_c_shows_how_far_it_came() -> None:
    code = "from fedpeer.cli import main, topology_simulation; topology_simulation._LINE_EVERY = 0.1; main.main()"
    words = ["topology", "simulate", "--graph", "ring", "--peers", "50000", "--exchanges-max", "100000000"]
    with subprocess.Popen(
        [*python(), "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "exchange" in process.stderr.readline(), "a line is written every so often"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
    assert process.returncode == 130
    assert "1e-06 not reached within" in out


@pytest.mark.slow
def test_a_sweep_writes_its_page_and_goes_on_where_it_was(
    fedpeer: Fedpeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        scale.ScaleRow("one-peer-exponential"),
        scale.ScaleRow("ring", largest=10),
        scale.ScaleRow("k-regular:4", loss=0.1),
        scale.ScaleRow("one-peer-exponential", doubled=True, loss=0.3),
    )
    monkeypatch.setattr(scale, "LINES", lines)
    done = fedpeer("topology", "sweep", "--to", "out", "--most", "1000")
    assert done.code == 0
    assert len(done.err.splitlines()) >= 6, "three lines at two sizes; the ring is too large"
    page = (tmp_path / "out" / "scale.md").read_text()
    rows = json.loads((tmp_path / "out" / "scale.json").read_text())["cells"]
    assert [row["peers"] for row in rows] == [100, 100, 128, 1000, 1000, 1024]
    first = rows[0]
    assert f"| one-peer-exponential | {first['exchanges']} ({first['usual']}) |" in page
    assert "| k-regular:4 | 10% lost |" in page
    assert "fedpeer topology sweep --most 1000" in page
    for picture in ("scale-graphs.svg", "scale-loss.svg"):
        assert picture in page
        assert (tmp_path / "out" / picture).read_text().startswith("<svg xmlns")
    again = fedpeer("topology", "sweep", "--to", "out", "--most", "1000")
    assert again.err == "", "all of it is kept"
    assert (tmp_path / "out" / "scale.md").read_text() == page
