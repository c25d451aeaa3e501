"""`fedpeer.simulate` in a notebook: networks that no other process can import, and runs that are carried on."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpeer.config.choice import ChoiceError
from fedpeer.config.problems import ConfigError, ConfigProblem
from fedpeer.runs.disk import RunError
from fedpeer.runs.folder import RunFolder
from fedpeer.sims import api
from fedpeer.sims.events import RoundDone, SimulationEvent
from fedpeer.sims.results import Results
from tests.sims.worlds import same_bits

X = np.random.default_rng(0).normal(size=(240, 6)).astype(np.float32)
Y = (X[:, 0] > X[:, 1]).astype(np.int64)
SETTINGS: dict[str, Any] = {
    "partial_models": {"everyone": {"neurons": {"input": "all", "hidden": 4, "output": "all"}}},
    "learning": {"rounds": 4, "batch_size": 5, "steps_between_averaging": 4},
    "simulation": {"peers": 4, "split": "iid"},
}


class Net(nn.Module):
    """A network that another process can import."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head, self.bend = nn.Linear(6, 8), nn.Linear(8, 2), torch.relu

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.bend(self.hidden(x)))
        return out


def factory(bend: Callable[[Tensor], Tensor]) -> type[nn.Module]:
    """Return a network that no process can import, since it uses an argument of this function."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.head = nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(bend(self.hidden(x)))
            return out

    return Inner


def simulated(out: Path, network: nn.Module | str, **more: Any) -> Results:
    given = {"federation": SETTINGS, "methods": ["partial-averaging"], "device": "cpu", "workers": 2, **more}
    return api.simulate((X, Y), network, out=out, **given)


def weights(results: Results) -> list[Tensor]:
    return [
        value
        for peer in range(1, 5)
        for _, value in sorted(results.state_dict("partial-averaging", f"peer{peer}").items())
    ]


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def test_a_network_of_a_closure_trains_like_one_that_can_be_imported(tmp_path: Path) -> None:
    """Its activation is a lambda, too."""
    expected = weights(simulated(tmp_path / "plain", seeded(Net)))
    found = weights(simulated(tmp_path / "closure", seeded(factory(lambda z: z.clamp(min=0)))))
    assert len(found) == len(expected) == 16
    assert all(map(same_bits, found, expected))


@pytest.mark.soak  # the notebooks of the examples and of the templates do the same
def test_a_network_of_a_cell_trains_without_a_guard(tmp_path: Path) -> None:
    """A cell's code belongs to `__main__`, which has no file, and has no `if __name__ == "__main__":`."""
    cell = """
        import numpy as np, torch
        from torch import nn
        import fedpeer

        class Cell(nn.Module):
            def __init__(self):
                super().__init__()
                self.hidden, self.head = nn.Linear(6, 8), nn.Linear(8, 2)

            def forward(self, x):
                return self.head(torch.relu(self.hidden(x)))

        x = np.random.default_rng(0).normal(size=(240, 6)).astype(np.float32)
        settings = {"learning": {"rounds": 2}, "simulation": {"peers": 4, "split": "iid"}}
        found = fedpeer.simulate(
            (x, (x[:, 0] > 0).astype(np.int64)), Cell(), federation=settings, methods=["full-averaging"], workers=2
        )
        print("score", found.score("full-averaging"))
    """
    done = subprocess.run(
        [sys.executable, "-"], input=textwrap.dedent(cell), text=True, capture_output=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "score 0." in done.stdout


def interrupt_after(rounds: int) -> Callable[[SimulationEvent], None]:
    """Return a listener that interrupts as Ctrl-C does, after this many rounds."""
    seen = 0

    def on_event(event: SimulationEvent) -> None:
        nonlocal seen
        seen += isinstance(event, RoundDone)
        if seen == rounds:
            raise KeyboardInterrupt

    return on_event


def test_an_interrupted_run_is_carried_on_by_the_same_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local = seeded(factory(torch.relu))
    whole = simulated(tmp_path / "whole", local)
    with pytest.raises(KeyboardInterrupt) as told:
        simulated(tmp_path / "runs", local, on_event=interrupt_after(2))
    [stopped] = (tmp_path / "runs").glob("*/settings.json")
    assert f'with resume="{stopped.parent.name}" goes on' in capsys.readouterr().err
    again = simulated(tmp_path / "runs", local, resume="last", workers=1)
    assert told.traceback, "a notebook keeps the traceback, and with it all that the interrupted call had open"
    assert [row["round"] for row in RunFolder(again.folder).rows()] == [1, 2, 3, 4]
    assert all(map(same_bits, weights(again), weights(whole)))
    with pytest.raises(RunError, match="is finished; only an interrupted"):
        simulated(tmp_path / "runs", local, resume="last")


def test_a_run_is_not_carried_on_with_other_settings(tmp_path: Path) -> None:
    sliced = {**SETTINGS, "partial_models": {"part": {"neurons": "all"}}}
    with pytest.raises(KeyboardInterrupt):
        simulated(tmp_path, seeded(Net), federation=sliced, on_event=interrupt_after(1), workers=1)
    longer = {**sliced, "learning": {**SETTINGS["learning"], "rounds": 9}}
    with pytest.raises(RunError, match=r"begun with other settings: learning.rounds is 9 and was 4$"):
        simulated(tmp_path, seeded(Net), federation=longer, resume="last")
    with pytest.raises(RunError, match=r'partial_models.part.neurons is null and was "all"'):
        simulated(tmp_path, seeded(Net), resume="last")
    with pytest.raises(RunError, match="there is no run"):
        simulated(tmp_path, seeded(Net), resume="nothing")


def test_a_graph_of_networkx_is_a_topology(tmp_path: Path) -> None:
    """Nodes are peers' ids or their numbers; a partial model may have a graph of its own."""
    path, named = nx.path_graph(4), nx.relabel_nodes(nx.path_graph(4), {n: f"peer{n + 1}" for n in range(4)})
    everyone = {"neurons": {"input": "all", "hidden1": 4, "output": "all"}}
    shorter = {
        **SETTINGS,
        "partial_models": {"everyone": everyone},
        "learning": {**SETTINGS["learning"], "rounds": 2},
    }
    expected, *found = [
        weights(simulated(tmp_path / str(number), "mlp:6+8+2", federation={**shorter, **changed}, workers=1))
        for number, changed in enumerate(
            [
                {"gossip": {"topology": "edges:peer1-peer2+peer2-peer3+peer3-peer4", "exchanges": 1}},
                {"gossip": {"topology": path, "exchanges": 1}},
                {"gossip": {"topology": named, "exchanges": 1}},
                {"partial_models": {"everyone": {**everyone, "gossip": {"topology": path, "exchanges": 1}}}},
            ]
        )
    ]
    assert all(all(map(same_bits, each, expected)) for each in found)


def test_nodes_that_count_from_one_are_refused_with_the_way_out(tmp_path: Path) -> None:
    graph = nx.path_graph(range(1, 5))
    with pytest.raises(ConfigError) as told:
        simulated(tmp_path, Net(), federation={**SETTINGS, "gossip": {"topology": graph}})
    text = "the nodes of this graph count from 1, but node 0 is peer1; renumber them by networkx.relabel_nodes"
    assert [problem.text.partition("(")[0] for problem in told.value.problems] == [text]
    of_others = {"members": ["peer2", "peer3"], "gossip": {"topology": nx.path_graph([1, 2])}}
    problems: list[ConfigProblem] = []
    settings = api._written({"partial_models": {"others": of_others}}, problems, {})
    assert settings["partial_models"]["others"]["gossip"]["topology"] == {"edges": ["peer2-peer3"]}
    assert not problems, "members without peer1 have no node 0"


def test_all_mistakes_of_a_call_are_told_at_once(tmp_path: Path) -> None:
    wrong: dict[str, Any] = {"methods": "local", "seeds": [1, -1], "out": None, "workers": 0, "on_event": 3}
    optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)
    learning = {"rounds": -1, "optimizer": optimizer, "loss": nn.CrossEntropyLoss, "algorithm": Net}
    settings = {"learning": learning, 3: 4}
    with pytest.raises(ConfigError) as told:
        api.simulate((X, Y), Net, federation=settings, **wrong)  # type: ignore[arg-type]
    assert {problem.dotted: problem.text for problem in told.value.problems} == {
        "methods": 'found "local" (text); write a list',
        "seeds.1": "found -1; write 0 or more",
        "out": "found nothing; write a path",
        "workers": "found 0; write 1 or more",
        "on_event": "it cannot be called; pass a function of one event",
        "network": "found Net, no network yet; pass what it returns: Net(...)",
        "learning.rounds": "found -1; write 1 or more",
        "learning.loss": "it is a class, and its objects are losses; pass CrossEntropyLoss()",
        "learning.optimizer": "it is an optimizer of one network; pass its class, or "
        "functools.partial(torch.optim.SGD, lr=0.1)",
        "learning.algorithm": f"found a Python object; write its name, python:{__name__}:Net",
        "3": "found 3; write text",
    }


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"seeds": 3}, "seeds  found 3; write a list"),
        ({"progress": "yes"}, 'progress  found "yes" (text); write true or false'),
        ({"seeds": []}, "seeds  found an empty list; write at least 1 of them"),
        ({"seeds": [1, 1]}, "seeds  1 is listed twice"),
        ({"seeds": [0.5]}, "found 0.5; write a whole number"),
        ({"methods": []}, "methods  found an empty list"),
        ({"resume": 3}, "resume  found 3; write text"),
        ({"federation": "federation.yaml"}, "federation  found str; write a mapping"),
    ],
    ids=str,
)
def test_an_argument_of_another_type_is_named(tmp_path: Path, given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as told:
        simulated(tmp_path, Net(), **given)
    assert text in str(told.value)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    settings = {"learning": {"rounds": np.int64(1)}, "simulation": {"peers": np.int32(2), "split": "iid"}}
    found = simulated(tmp_path, Net(), federation=settings, seeds=np.arange(1), workers=np.int64(1))
    assert found.summary["peers"] == 2


def test_a_compiled_module_is_the_module_that_was_compiled(tmp_path: Path) -> None:
    once = {**SETTINGS, "learning": {"rounds": 1}}
    module: Any = torch.compile(seeded(Net), backend="eager")
    compiled = simulated(tmp_path / "compiled", module, federation=once, workers=1)
    plain = simulated(tmp_path / "plain", seeded(Net), federation=once, workers=1)
    assert all(map(same_bits, weights(plain), weights(compiled)))


def test_metrics_may_be_functions_of_a_cell(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A script shows failures although it asked for no progress."""

    def spoiled(y: Any, answers: Any) -> float:
        if len(y) > answers.shape[1]:  # not on the try
            raise ValueError("no such patients")
        return 0.0

    def share_of(number: int) -> Callable[[Any, Any], float]:
        return lambda y, answers: float((y == number).mean())

    metrics = ["f1", share_of(0), share_of(1), spoiled]
    once = {"learning": {"rounds": 1}, "simulation": {"peers": 2, "split": "iid", "metrics": metrics}}
    found = simulated(tmp_path, Net(), federation=once, workers=1, methods=["local"])
    shares = [found.score("local", f"python:{__name__}:lambda{number}") for number in ("", "_2")]
    assert sum(shares) == pytest.approx(1)
    assert 0 < found.score("local", "f1") <= 1
    note = f"note: local: the metric python:{__name__}:spoiled failed: ValueError: no such patients\n"
    assert capfd.readouterr().err == note
    assert (RunFolder(found.folder).read("settings") or {})["objects"] == ["data", "network", "metrics"]


def test_a_metric_that_cannot_work_is_refused_before_the_training(tmp_path: Path) -> None:
    def other(y: Any, answers: Any) -> float:
        return float(answers[:, 99].mean())

    federation = {"learning": {"rounds": 1}, "simulation": {"peers": 2, "split": "iid", "metrics": [other]}}
    with pytest.raises(ChoiceError, match=r"other failed on a try before the training, .*; correct it, or leave"):
        simulated(tmp_path, Net(), federation=federation, workers=1, methods=["local"])


def test_a_directed_graph_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this graph is directed; make it undirected"):
        simulated(tmp_path, Net(), federation={**SETTINGS, "gossip": {"topology": nx.DiGraph([(0, 1)])}})
