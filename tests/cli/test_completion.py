"""Completion in a shell: the shell's questions, and the answers."""

from __future__ import annotations

import pytest

from fedpeer.algorithms.registry import ALGORITHMS
from fedpeer.cli.main import run
from fedpeer.topology.graphs import GRAPHS


@pytest.mark.parametrize(
    ("typed", "answers"),
    [
        ("fedpeer exp", {"export", "experiment"}),
        ("fedpeer runs ", {"list", "show", "compare"}),
        ("fedpeer simulate --netw", {"--network"}),
        ("fedpeer simulate --network c", {"cnn"}),
        ("fedpeer simulate --dataset parq", {"parquet"}),
        ("fedpeer simulate --topology ", set(GRAPHS)),
        ("fedpeer simulate --algorithm ", set(ALGORITHMS) | {"python"}),
        ("fedpeer simulate --compare local,fedpr", {"local,fedprox"}),
        ("fedpeer simulate --metrics auc,br", {"auc,brier"}),
        ("fedpeer simulate --rounds ", set()),
    ],
)
def test_the_shell_is_answered(
    typed: str, answers: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_FEDPEER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" ")) - 1))
    with pytest.raises(SystemExit) as end:
        run([])
    assert end.value.code in (0, None)
    found = set(capsys.readouterr().out.split())
    assert answers <= found
    if typed != "fedpeer runs ":
        assert found == answers
