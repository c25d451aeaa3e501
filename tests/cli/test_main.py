"""The entry point: quick help, exit codes, output on any terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedpeer as package
from fedpeer.cli import main
from fedpeer.exit_codes import EXIT_OURS
from tests.cli.conftest import Fedpeer
from tests.forked import python

#: Slow packages that help, config checks and listings must not import.
HEAVY = ("torch", "sklearn", "scipy", "matplotlib", "numba", "pandas")

RUN = "import sys; from fedpeer.cli.main import run; sys.exit(run(sys.argv[1:]))"
SMALLEST = "import typer; app = typer.Typer(); app.command()(lambda: None); app()"
#: Runs one command line after the other, and says after each which slow packages are imported by now.
IMPORTING = f"""
import json, sys
from fedpeer.cli.main import run
for arguments in json.loads(sys.argv[1]):
    code = run(arguments)
    print("code", code, "imported", *sorted(set({HEAVY!r}) & set(sys.modules)))
"""
#: Runs one command line after the other as the installed program does, and says after each how it ends.
ENDING = """
import json, sys
from fedpeer.cli.main import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["fedpeer", *arguments]
    try:
        main()
    except SystemExit as end:
        print("code", end.code)
"""


def command(*arguments: str, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        encoding=environment.get("PYTHONIOENCODING", "utf-8"),
        env={**os.environ, **environment},
        timeout=60,
    )


def test_nothing_heavy_is_imported_and_no_torch_to_check_a_file(tmp_path: Path) -> None:
    """Run all light commands in one process, and check afterwards that none has imported torch."""
    (tmp_path / "federation.yaml").write_text("partial_models: {a: {}}\nlearning: {optimizer: adam}\n")
    light = [["--help"], ["simulate", "--help"], ["--version"], ["runs", "list"]]
    checks = [["config", "check", str(tmp_path / "federation.yaml")], ["config", "schema"]]
    done = command(json.dumps([*light, *checks]), code=IMPORTING, FEDPEER_RUNS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("code ")]
    assert said[: len(light)] == ["code 0 imported"] * len(light), done.stderr
    assert [line.startswith("code 0 imported") and "torch" not in line for line in said] == [True] * 6, said


def processor_seconds(code: str) -> float:
    """Return the processor time of a command that asks for help: it does not grow while others use the machine."""
    before = os.times()
    assert command("--help", code=code).returncode == 0
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_help_comes_at_once() -> None:
    """Help takes little more processor time than the help of the smallest program that is made with Typer."""
    calls = range(2)  # the first may have to compile
    floor = min(processor_seconds(SMALLEST) for _ in calls)
    assert min(processor_seconds(RUN) for _ in calls) < 2.5 * floor


@pytest.mark.parametrize("name", [[], ["simulate"], ["slices"], ["topology"], ["data"], ["data", "preview"], ["runs"]])
def test_every_command_has_help(name: list[str], fedpeer: Fedpeer) -> None:
    outcome = fedpeer(*name, "--help")
    assert outcome.code == 0
    assert "Usage: fedpeer" in outcome.out


def test_version(fedpeer: Fedpeer) -> None:
    shown = fedpeer("--version").out
    assert shown == fedpeer("version").out
    assert re.fullmatch(rf"fedpeer {package.__version__}( \(commit [0-9a-f]{{12}}(, changed)?\))?\n", shown)


def test_our_own_mistake_ends_in_a_file(fedpeer: Fedpeer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken() -> None:
        raise KeyError("deep inside")

    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(main, "version", broken)
    outcome = fedpeer("--version")
    assert outcome.code == EXIT_OURS
    assert "Traceback" not in outcome.err
    (log,) = tmp_path.glob("fedpeer-error-*.txt")
    assert str(log) in outcome.err
    assert "deep inside" in log.read_text()
    assert "Traceback" in log.read_text()


def test_ctrl_c_before_anything_began(fedpeer: Fedpeer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "version", interrupted)
    assert fedpeer("--version").code == 130


def test_a_reader_that_leaves_is_no_error() -> None:
    code = "from fedpeer.cli.main import main; import sys; sys.argv = ['fedpeer', 'config', 'schema']; main()"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*python(), "-c", code], stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert done.stderr == b""


@pytest.mark.slow
def test_terminals_that_are_not_utf8(tmp_path: Path) -> None:
    """One process tries the outputs that differ: a page of help, and an answer and an error that quote their input."""
    file = tmp_path / "µ.yaml"
    file.write_text("partial_models: {a: {}}\n")
    lines = [["topology"], ["--help"], ["config", "check", str(file)], ["topology", "µ"]]
    done = command(json.dumps(lines), code=ENDING, PYTHONIOENCODING="ascii", COLUMNS="80", NO_COLOR="1")
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    codes = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("code ")]
    assert codes == ["0", "0", "0", "2"], done.stderr
    assert "?.yaml is valid" in done.stdout
    assert "\x1b" not in done.stdout
