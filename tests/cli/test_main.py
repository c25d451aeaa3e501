"""The entry point: quick help, exit codes, output on any terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedpeer as package
from fedpeer.cli import main
from fedpeer.exit_codes import EXIT_OURS
from tests.cli.conftest import Fedpeer

#: Slow packages that help, config checks and listings must not import.
HEAVY = ("torch", "sklearn", "scipy", "matplotlib", "numba", "pandas")

RUN = "import sys; from fedpeer.cli.main import run; code = run(sys.argv[1:]); "
SMALLEST = "import typer; app = typer.Typer(); app.command()(lambda: None); app()"
IMPORTED = f"print('imported', sorted(set({HEAVY!r}) & set(sys.modules))); sys.exit(code)"


def command(*arguments: str, code: str = RUN + IMPORTED, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        encoding=environment.get("PYTHONIOENCODING", "utf-8"),
        env={**os.environ, **environment},
        timeout=60,
    )


@pytest.mark.parametrize("arguments", [["--help"], ["simulate", "--help"], ["--version"], ["runs", "list"]])
def test_nothing_heavy_is_imported(arguments: list[str], tmp_path: Path) -> None:
    done = command(*arguments, FEDPEER_RUNS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported []"


def test_config_check_and_schema_import_no_torch(tmp_path: Path) -> None:
    (tmp_path / "federation.yaml").write_text("partial_models: {a: {}}\nlearning: {optimizer: adam}\n")
    for arguments in (["config", "check", str(tmp_path / "federation.yaml")], ["config", "schema"]):
        done = command(*arguments)
        assert done.returncode == 0, done.stderr
        assert "torch" not in done.stdout.splitlines()[-1]


def processor_seconds(code: str) -> float:
    """Return the processor time of a command that asks for help: it does not grow while others use the machine."""
    before = os.times()
    assert command("--help", code=code).returncode == 0
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_help_comes_at_once() -> None:
    """Help takes little more processor time than the help of the smallest program that is made with Typer."""
    calls = range(3)  # the first may have to compile
    floor = min(processor_seconds(SMALLEST) for _ in calls)
    assert min(processor_seconds(RUN + "sys.exit(code)") for _ in calls) < 2.5 * floor


@pytest.mark.parametrize("name", [[], ["simulate"], ["slices"], ["topology"], ["data"], ["data", "preview"], ["runs"]])
def test_every_command_has_help(name: list[str], fedpeer: Fedpeer) -> None:
    outcome = fedpeer(*name, "--help")
    assert outcome.code == 0
    assert "Usage: fedpeer" in outcome.out


def test_version(fedpeer: Fedpeer) -> None:
    assert fedpeer("--version").out == fedpeer("version").out == f"fedpeer {package.__version__}\n"


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
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    process.wait()
    assert said == b""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["topology"], ["--help"], ["topology", "µ"]])
def test_terminals_that_are_not_utf8(arguments: list[str]) -> None:
    code = "import sys; from fedpeer.cli.main import main; main()"
    done = command(*arguments, code=code, PYTHONIOENCODING="ascii", COLUMNS="80", NO_COLOR="1")
    assert "Traceback" not in done.stderr
    assert done.returncode == (2 if "µ" in arguments else 0), done.stderr
    assert "\x1b" not in done.stdout
