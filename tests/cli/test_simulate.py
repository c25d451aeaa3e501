"""`fedpeer simulate` from the command line to the files it leaves, and what `fedpeer runs` shows of them."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from fedpeer.cli import running
from fedpeer.sims.events import RoundDone, SimulationEvent
from fedpeer.sims.progress import NoProgress, ProgressDisplay
from tests.cli.conftest import Fedpeer
from tests.runs.run_factory import made

SMALL = ["simulate", "--peers", "4", "--rounds", "3", "--steps", "20", "--network", "mlp:64+20+10", "--workers", "1"]


class Interrupting(NoProgress):
    """A display that presses Ctrl-C when a certain round is done."""

    def __init__(self, method: str, number: int, times: int = 1) -> None:
        self.method, self.number, self.times = method, number, times

    def __call__(self, event: SimulationEvent) -> None:
        if isinstance(event, RoundDone) and (event.method, event.round) == (self.method, self.number):
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)


def interrupt(monkeypatch: pytest.MonkeyPatch, display: ProgressDisplay) -> None:
    monkeypatch.setattr(running, "progress_display", lambda console, quiet: display)


def scores(summary: dict[str, Any]) -> dict[str, Any]:
    return {method: result["accuracy_per_peer"] for method, result in summary["methods"].items()}


def test_json_is_one_object_and_nothing_else(fedpeer: Fedpeer) -> None:
    outcome = fedpeer(*SMALL, "--repeats", "2", "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert outcome.out.count("\n") == 1
    assert found["schema"] == 1
    assert (found["dataset"], found["peers"], found["seeds"]) == ("digits", 4, [0, 1])
    assert list(found["methods"]) == ["local", "partial-averaging", "full-averaging"]
    for result in found["methods"].values():
        assert len(result["accuracy_per_peer"]) == 4
        assert result["accuracy_worst"] == min(result["accuracy_per_peer"])
        assert result["accuracy_sem"] > 0
    assert found["methods"]["local"]["bytes_sent"] == 0
    assert 0 < found["methods"]["partial-averaging"]["bytes_sent"] < found["methods"]["full-averaging"]["bytes_sent"]
    assert Path(found["report"]).read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    assert "round 3" in outcome.err or "done" in outcome.err


def test_a_run_is_shown_listed_compared(fedpeer: Fedpeer) -> None:
    first = fedpeer(*SMALL, "--quiet", "--compare", "local,full-averaging")
    assert first.code == 0, first.err
    assert first.err == ""
    for words in ("accuracy over 4 peers", "worst peer", "local only", "full averaging", "nothing", "Report: "):
        assert words in first.out
    assert "partial averaging" not in first.out
    assert "Full averaging: " in first.out

    second = json.loads(
        fedpeer(*SMALL, "--seed", "5", "--algorithm", "full-averaging", "--json", "--out", "fedpeer-runs").out
    )
    assert list(second["methods"]) == ["local", "full-averaging"]
    listed = fedpeer("runs", "list").out
    assert listed.count("finished") == 2
    assert second["run"] in listed
    shown = fedpeer("runs", "show").out
    assert second["run"] in shown
    assert "--seed 5" in shown
    compared = fedpeer("runs", "compare", second["run"], second["run"][:-1]).out
    assert "settings that differ: none" in compared
    others = [name for name in os.listdir("fedpeer-runs") if name.startswith("2") and name != second["run"]]
    assert "seed" in fedpeer("runs", "compare", *others, second["run"]).out
    Path(second["report"]).unlink()
    assert fedpeer("runs", "report", second["run"]).out.strip() == second["report"]
    assert Path(second["report"]).exists()


def test_a_run_without_a_summary_is_shown_with_the_way_that_finds_it(fedpeer: Fedpeer) -> None:
    """It is running, or its process was killed."""
    of_file, of_objects = (made(Path("elsewhere"), finished=False, objects=each) for each in ([], ["data"]))
    ways = f"fedpeer simulate --resume {of_file.id} --out elsewhere", f'fedpeer.simulate with resume="{of_objects.id}"'
    for run, way in zip((of_file, of_objects), ways, strict=True):
        run.let_go()
        shown = fedpeer("runs", "show", run.id, "--out", "elsewhere")
        assert shown.code == 0, shown.err
        assert "accuracy over 4 peers" in shown.out
        assert way in shown.out


def test_a_quiet_run_tells_what_needs_attention(fedpeer: Fedpeer) -> None:
    outcome = fedpeer(*SMALL, "--quiet", "--json", "--compare", "local", "--lr", "1e30")
    assert (outcome.code, outcome.out.count("\n")) == (0, 1), outcome.err
    (line,) = outcome.err.splitlines()
    assert line.startswith("note: local: the loss of peer1, peer2, peer3 and 1 more is above 1e+09 or NaN since round")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("partial-averaging", 1),
        pytest.param("local", 2, marks=pytest.mark.soak),
        pytest.param("partial-averaging", 3, marks=pytest.mark.soak),
    ],
)
def test_an_interrupted_run_goes_on_to_the_same_numbers(
    method: str, number: int, fedpeer: Fedpeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = json.loads(fedpeer(*SMALL, "--quiet", "--json", "--out", "whole").out)
    with monkeypatch.context() as patched:
        interrupt(patched, Interrupting(method, number))
        stopped = fedpeer(*SMALL, "--json")
    assert stopped.code == 130
    kept = json.loads(stopped.out)
    assert kept["methods"]["local"]["rounds"] is not None, "what was measured is kept"
    assert f"fedpeer simulate --resume {kept['run']}" in stopped.err
    assert kept["report"] is None, "drawing takes longer than somebody who pressed Ctrl-C waits"
    assert "interrupted" in fedpeer("runs", "show").out

    resumed = fedpeer("simulate", "--resume", kept["run"], "--quiet", "--json")
    assert resumed.code == 0, resumed.err
    assert scores(json.loads(resumed.out)) == scores(wanted)
    assert fedpeer("simulate", "--resume", "last").code == 2, "a finished run has nothing to go on with"


def test_a_second_ctrl_c_ends_the_process(fedpeer: Fedpeer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        """Raised instead of ending this process."""

    def end(code: int) -> None:
        assert code == 130
        raise Ended

    monkeypatch.setattr("os._exit", end)
    interrupt(monkeypatch, Interrupting("local", 1, times=2))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Ended):
        fedpeer(*SMALL)
    assert signal.getsignal(signal.SIGINT) is before


def test_options_and_file_together(fedpeer: Fedpeer) -> None:
    Path("federation.yaml").write_text(
        "network: mlp:64+20+10\npartial_models: {everyone: {neurons: {input: all, hidden1: 10}}}\n"
        "learning: {rounds: 2, steps_between_averaging: 5}\nsimulation: {peers: 3}\n"
    )
    outcome = fedpeer("simulate", "--config", "federation.yaml", "--rounds", "1", "--workers", "1", "--json", "--quiet")
    found = json.loads(outcome.out)
    assert found["peers"] == 3
    assert found["methods"]["partial-averaging"]["rounds"] == 1


def test_slices_and_split_are_drawn(fedpeer: Fedpeer) -> None:
    drawn = fedpeer("slices", "--network", "mlp:64+300+100+10", "--peers", "4", "--svg", "slices.svg").out
    for words in ("everyone", "4 peers", "250", "local 50", "73.4 %", "peer1"):
        assert words in drawn
    assert re.search(r"In each round a peer sends \S+ .?B in \S+ messages", drawn)
    assert "a peer sends" not in fedpeer("slices", "--network", "mlp:4+2", "--algorithm", "local").out
    assert Path("slices.svg").read_text().startswith("<svg")
    assert "nothing is averaged" in fedpeer("slices", "--network", "mlp:4+2", "--algorithm", "local").out
    served = fedpeer("slices", "--network", "mlp:4+2", "--algorithm", "fedavg").out
    assert "fedavg has a server" in served
    assert "local" not in served
    assert "8 and 9 exchanged" in fedpeer("data", "preview").out
    split = json.loads(fedpeer("data", "split", "--split", "iid", "--peers", "5", "--seed", "1").out)
    assert len(split["peers"]) == 5


def test_slices_are_drawn_also_where_the_vector_engine_cannot_run_them(fedpeer: Fedpeer, tmp_path: Path) -> None:
    model = "everyone: {neurons: {input: all, hidden1: 4, output: all}, gossip: {wire: int8}}"
    (tmp_path / "f.yaml").write_text(f"network: mlp:64+8+10\npartial_models:\n  {model}\nsimulation: {{peers: 3}}\n")
    assert "a peer sends" in fedpeer("slices", "--config", "f.yaml").out
    refused = fedpeer("simulate", "--config", "f.yaml")
    assert (refused.code, "--engine network" in " ".join(refused.err.split())) == (2, True)


def test_slices_tell_after_whose_averagings_a_peer_takes_outer_steps(fedpeer: Fedpeer) -> None:
    models = "low: {neurons: {input: all, hidden1: 4}}, top: {neurons: {output: all}, depends_on: [low], outer: none}"
    Path("federation.yaml").write_text(
        f"network: mlp:4+8+2\npartial_models: {{{models}}}\nlearning: {{outer: nesterov}}\nsimulation: {{peers: 3}}\n"
    )
    drawn = " ".join(fedpeer("slices", "--config", "federation.yaml").out.split())
    assert "After an averaging of low a peer takes an outer step: rate 0.7, Nesterov momentum 0.9." in drawn
    assert "outer step" not in fedpeer("slices", "--network", "mlp:4+8+2", "--peers", "3").out


def test_slices_tell_which_of_them_a_coordinator_averages(fedpeer: Fedpeer) -> None:
    Path("federation.yaml").write_text(
        "network: mlp:4+8+2\n"
        "partial_models:\n"
        "  low: {neurons: {input: all, hidden1: 3}, gossip: {protocol: coordinator, every: 2}}\n"
        "  top: {neurons: {hidden1: all, output: all}}\n"
        "simulation: {peers: 3}\n"
    )
    drawn = " ".join(fedpeer("slices", "--config", "federation.yaml").out.split())
    assert "low: averaged by a coordinator that the group's members elect. In each round" in drawn
    assert "In every 2nd round a peer sends 188 B in 1 message to 376 B in 2 messages for low." in drawn
    assert "averaged by a coordinator" not in fedpeer("slices", "--network", "mlp:4+8+2", "--peers", "3").out


def test_slices_tell_which_of_them_are_averaged_while_peers_train(fedpeer: Fedpeer) -> None:
    Path("federation.yaml").write_text(
        "network: mlp:4+8+2\n"
        "partial_models:\n"
        "  low: {neurons: {input: all, hidden1: 3}, gossip: {mode: asynchronous}}\n"
        "  top: {neurons: {hidden1: all, output: all}}\n"
        "simulation: {peers: 3}\n"
    )
    drawn = " ".join(fedpeer("slices", "--config", "federation.yaml").out.split())
    assert "low: averaged while peers train, at their own pace. In each round" in drawn
    assert drawn.endswith("messages for top.")
    Path("all.yaml").write_text("network: mlp:4+8+2\nlearning: {mode: asynchronous}\nsimulation: {peers: 3}\n")
    drawn = fedpeer("slices", "--config", "all.yaml").out
    assert "everyone: averaged while peers train" in drawn
    assert "a peer sends" not in drawn, "that depends on their pace"


def test_slices_are_those_of_the_network_with_its_adapters(fedpeer: Fedpeer) -> None:
    models = "everyone: {neurons: {'*': all, '*.lora_A': 2}}"
    learning = "lora: {rank: 3, targets: [hidden1]}, frozen: [output.bias]"
    Path("federation.yaml").write_text(
        f"network: mlp:64+8+10\npartial_models: {{{models}}}\nlearning: {{{learning}}}\nsimulation: {{peers: 3}}\n"
    )
    drawn = " ".join(fedpeer("slices", "--config", "federation.yaml").out.split())
    assert f"{64 * 3 + 3 * 8 + 8 * 10:,} parameters" in drawn
    assert "hidden1.lora_A 3 ████████████████░░░░░░░░ everyone 2, local 1" in drawn


def test_slices_have_the_peers_that_the_simulation_has(fedpeer: Fedpeer) -> None:
    """The peers are the users in the user's own file, which is read although the network states its sizes."""
    rows = [f"{n},{2 * n},{'ab'[n % 2]},ward{n % 4}" for n in range(40)]
    Path("wards.csv").write_text("\n".join(["u,v,y,ward", *rows]))
    Path("federation.yaml").write_text(
        "network: mlp:2+8+2\nsimulation: {dataset: 'csv:wards.csv,label=y,user=ward', split: user}\n"
    )
    drawn = " ".join(fedpeer("slices", "--config", "federation.yaml").out.split())
    assert "peer1, peer2, peer3 and 1 more" in drawn
    assert "everyone 4 peers" in drawn
    assert "everyone 7 peers" in " ".join(fedpeer("slices", "--config", "federation.yaml", "--peers", "7").out.split())


def test_slices_say_whose_members_are_found_during_the_run(fedpeer: Fedpeer) -> None:
    kin = "kin: {depends_on: [everyone], neurons: {hidden1: 3}, members: 'alike,after=7'}"
    Path("federation.yaml").write_text(
        f"network: mlp:4+8+2\npartial_models:\n  everyone: {{neurons: {{hidden1: 4, output: all}}}}\n  {kin}\n"
    )
    drawn = " ".join(fedpeer("slices", "--config", "federation.yaml").out.split())
    assert "kin: the peers find its members during the run, after round 7; until then its neurons are local." in drawn
    assert "everyone 4, local 4" in drawn
    alone = fedpeer("slices", "--config", "federation.yaml", "--algorithm", "local").out
    assert "kin" not in alone


def test_a_topology_is_drawn(fedpeer: Fedpeer) -> None:
    drawn = fedpeer("topology", "ring", "--peers", "5", "--svg", "ring.svg").out
    assert Path("ring.svg").read_text().startswith("<svg")
    assert "5 edges, 2 neighbors each" in drawn
    assert "0.461 of the disagreement" in drawn, "2 (1 - cos(2 pi / 5)) / 3"
    drawn = fedpeer("topology", "one-peer-exponential", "--peers", "8").out
    assert "in 3 alternating phases" in " ".join(drawn.split())
    assert len(fedpeer("topology", "ring", "--peers", "65").out.splitlines()) < 20
