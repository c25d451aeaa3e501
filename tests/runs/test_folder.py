"""A run's folder: everything written is read back, whatever happened in between."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st
from safetensors.numpy import load_file

from fedpeer.runs.disk import RunError, dumps, is_locked, read_json
from fedpeer.runs.environment import environment
from fedpeer.runs.folder import RunFolder
from fedpeer.runs.index import Index
from tests.forked import KILL, python
from tests.runs.run_factory import made, row, settings


def begun(root: Path, name: str = "digits") -> RunFolder:
    return RunFolder.create(root, name=name, settings=settings(), environment=environment("cpu"))


def status(run: RunFolder) -> str:
    """Return the status, read again, which a type checker would not expect of an attribute."""
    return run.status


def test_a_new_run_has_its_settings_its_environment_and_an_id_that_sorts_by_time(tmp_path: Path) -> None:
    run = begun(tmp_path, "My <digits>!")
    assert re.fullmatch(r"\d{8}-\d{6}-my-digits-[0-9a-f]{4}", run.id)
    assert read_json(run.path / "settings.json") == settings()
    assert read_json(run.path / "environment.json")["packages"]["torch"].startswith("2.")
    assert status(run) == "running"


def test_the_environment_names_no_host_user_or_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    text = json.dumps(environment("cuda"))
    assert os.uname().nodename not in text
    assert str(tmp_path) not in text
    assert json.loads(text)["git"] is None
    assert json.loads(text)["device"] == "cuda"


def test_the_environment_has_the_revision_of_the_current_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for arguments in (("init", "-q"), (*identity, "commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(("git", *arguments), check=True)
    git = environment("cpu")["git"]
    assert re.fullmatch("[0-9a-f]{40}", git["commit"])
    assert git["changed"] is False


def test_a_run_is_found_by_id_by_the_beginning_of_its_id_and_as_last(tmp_path: Path) -> None:
    first, second = begun(tmp_path, "zebra"), begun(tmp_path, "ant")
    assert RunFolder.open(tmp_path, first.id).path == first.path
    assert RunFolder.open(tmp_path, second.id[:-1]).path == second.path
    assert RunFolder.open(tmp_path, "last").id == second.id
    assert RunFolder.open(tmp_path / "elsewhere", f"{first.path}/").id == first.id
    with pytest.raises(RunError, match="several runs begin with") as several:
        RunFolder.open(tmp_path, "2")
    assert first.id in str(several.value)
    with pytest.raises(RunError, match="did you mean") as near:
        RunFolder.open(tmp_path, "x" + first.id)
    assert first.id in str(near.value)
    with pytest.raises(RunError, match="no run"):
        RunFolder.open(tmp_path, "")
    with pytest.raises(RunError, match="no runs in"):
        RunFolder.open(tmp_path / "elsewhere", "last")


def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="--out"):
        begun(tmp_path / "file")


def test_rows_come_back_as_they_were_recorded(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.record({"round": np.int64(1), "accuracy": np.array([0.5, np.nan]), "note": "ü\nn", "loss": [math.inf]})
    run.record({"round": 2, "accuracy": None})
    again = RunFolder.open(tmp_path, run.id)
    assert again.rows() == [
        {"round": 1, "accuracy": [0.5, None], "note": "ü\nn", "loss": [None]},
        {"round": 2, "accuracy": None},
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings_of(max_examples=40)
@given(value=JSON)
def test_json_data_survives_exactly_on_one_line(value: object) -> None:
    assert json.loads(dumps(value)) == value
    assert "\n" not in dumps(value)


def test_a_torn_last_row_is_left_out_and_said_and_recording_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = begun(tmp_path)
    rows = [row("local", number) for number in (1, 2)]
    for each in rows:
        run.record(each)
    run.finish({}, status="interrupted")
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"method": "local", "sc')
    again = RunFolder.open(tmp_path, run.id)
    assert again.rows() == rows
    assert "cut off" in caplog.text
    again.record(row("local", 3))
    assert again.rows() == [*rows, row("local", 3)]


@pytest.mark.parametrize("damage", ['{"round": 2', "[2]", "\x00\x00"])
def test_a_damaged_row_in_the_middle_is_an_error_that_names_its_line(tmp_path: Path, damage: str) -> None:
    run = begun(tmp_path)
    (run.path / "metrics.jsonl").write_text(f'{{"round": 1}}\n{damage}\n{{"round": 3}}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 2"):
        run.rows()


def test_truncating_keeps_the_chosen_rows_only(tmp_path: Path) -> None:
    run = begun(tmp_path)
    for number in range(1, 6):
        run.record(row("local", number))
    run.truncate(lambda each: each["round"] <= 3)
    assert [each["round"] for each in run.rows()] == [1, 2, 3]


def test_a_crash_before_the_rename_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begun(tmp_path)
    run.record(row("local", 1))
    run.describe("split", {"rule": "old"})
    run.save_checkpoint({"x": np.zeros(3)}, {"round": 1})

    def crash(*paths: object) -> None:
        raise OSError("crash")

    changes: list[Callable[[], None]] = [
        lambda: run.describe("split", {"rule": "new"}),
        lambda: run.truncate(lambda row: False),
        lambda: run.save_checkpoint({"x": np.ones(3)}, {"round": 2}),
    ]
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", crash)
        for change in changes:
            with pytest.raises(OSError, match="crash"):
                change()
    assert run.read("split") == {"rule": "old"}
    assert run.rows() == [row("local", 1)]
    loaded = run.load_checkpoint()
    assert loaded is not None
    assert loaded[1] == {"round": 1}
    assert not list(run.path.glob(".*.tmp"))


def test_models_are_ordinary_safetensors(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    scalar = np.float32(2.0)
    models = {"peer1/hidden1.weight": weight.t(), "peer2/steps": scalar}
    path = begun(tmp_path).save_models("virtual,exponent=n/N", 3, models, {"version": 1})
    assert path.name == "virtual,exponent=n%2FN-seed3.safetensors"
    loaded = load_file(path)
    np.testing.assert_array_equal(loaded["peer1/hidden1.weight"], np.arange(6.0).reshape(2, 3).T)
    assert loaded["peer1/hidden1.weight"].dtype == np.float32
    assert loaded["peer2/steps"].shape == ()


def test_a_checkpoint_comes_back_to_the_bit_and_only_the_last_one_is_kept(tmp_path: Path) -> None:
    run = begun(tmp_path)
    assert run.load_checkpoint() is None
    tensors = {
        "x": np.linspace(-1, 1, 20).reshape(4, 5).T,
        "mass": np.array([[np.nan, np.inf, -0.0, 5e-324]]),
        "generator": np.arange(256, dtype=np.uint8),
        "empty": np.zeros((0, 3), dtype=np.float32),
    }
    run.save_checkpoint({"x": np.zeros(1)}, {"round": 1})
    run.save_checkpoint(tensors, {"round": 2, "third": 1 / 3})
    loaded = RunFolder.open(tmp_path, run.id).load_checkpoint()
    assert loaded is not None
    arrays, said = loaded
    assert said == {"round": 2, "third": 1 / 3}
    assert {name: array.tobytes() for name, array in arrays.items()} == {
        name: value.tobytes() for name, value in tensors.items()
    }


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.save_checkpoint({"x": np.arange(100.0)}, {"round": 1})
    path = run.path / "checkpoint.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RunError, match="digest"):
        run.load_checkpoint()
    path.write_bytes(whole.replace(b'\\"round\\": 1', b'\\"round\\": 7'))
    with pytest.raises(RunError, match="digest"):
        run.load_checkpoint()
    path.write_bytes(whole[:-8])
    with pytest.raises(RunError, match="damaged"):
        run.load_checkpoint()


def test_finishing_removes_the_checkpoint_and_interrupting_keeps_it(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.save_checkpoint({"x": np.zeros(3)}, {"round": 1})
    run.finish({"methods": {}}, status="interrupted")
    assert status(run) == "interrupted"
    assert run.load_checkpoint() is not None
    run.record(row("local", 1))
    assert status(run) == "running"
    assert run.read("summary") is None, "that of the stop lacks the rows since then"
    run.finish({"methods": {"local": {}}})
    assert status(run) == "finished"
    assert run.load_checkpoint() is None
    assert run.read("summary") == {"methods": {"local": {}}}


def test_a_folder_travels_goes_on_elsewhere_and_comes_back(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    run = begun(here)
    run.record(row("local", 1))
    run.save_models("local", 0, {"peer1/w": np.ones(3)}, {"card": 1})
    run.save_checkpoint({"x": np.arange(3)}, {"recorded": 1})
    run.finish({}, "interrupted")
    files = run.files()
    assert list(files)[-2:] == ["checkpoint.safetensors", "run.json"], "what is relied on is written before"

    other = RunFolder.adopt(there, run.id, files)
    assert status(other) == "interrupted"
    assert other.load_checkpoint() is not None
    other.record(row("local", 2))
    other.forget_models()
    other.finish({})
    again = RunFolder.adopt(here, *(other.id, other.files()))
    assert again.path == run.path
    assert (status(again), again.load_checkpoint()) == ("finished", None)
    assert [each["round"] for each in again.rows()] == [1, 2]
    assert [each.status for each in Index(here).rows()] == ["finished"]
    assert "models/local-seed0.json" not in other.files()


def test_a_crash_while_a_folder_is_adopted_leaves_no_run_or_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path / "here")
    run.record(row("local", 1))
    run.finish({})
    files = run.files()
    for last in files:
        torn = {**files, last: None}  # writing it fails, as on a full disk
        with pytest.raises(TypeError):
            RunFolder.adopt(tmp_path / "there", run.id, torn)  # type: ignore[arg-type]
        assert not Index(tmp_path / "there").rows()
    assert RunFolder.adopt(tmp_path / "there", run.id, files).rows() == run.rows()
    with pytest.raises(TypeError):
        RunFolder.adopt(tmp_path / "there", run.id, {**files, "run.json": None})  # type: ignore[dict-item]
    assert [each.id for each in Index(tmp_path / "there").rows()] == [run.id]


def test_runs_of_one_second_have_ids_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["7f3a", "7f3a", "7e8a"])
    monkeypatch.setattr("fedpeer.runs.folder.secrets.token_hex", lambda _: next(drawn))
    assert begun(tmp_path).id != begun(tmp_path).id


def test_runs_of_two_machines_that_drew_the_same_id_are_both_kept(tmp_path: Path) -> None:
    one, other = begun(tmp_path / "one"), begun(tmp_path / "other")
    for number, run in enumerate((one, other), 1):
        run.record(row("local", number))
        run.finish({})
    taken = [RunFolder.adopt(tmp_path / "here", one.id, run.files()) for run in (one, other)]
    assert [[each["round"] for each in run.rows()] for run in taken] == [[1], [2]]
    assert {each.id for each in Index(tmp_path / "here").rows()} == {run.id for run in taken}


def test_rows_are_put_into_order(tmp_path: Path) -> None:
    run = begun(tmp_path)
    for number in (3, 1, 2):
        run.record(row("local", number))
    run.arrange(lambda each: each["round"])
    assert [each["round"] for each in run.rows()] == [1, 2, 3]


def test_only_one_writes_a_run_at_a_time(tmp_path: Path) -> None:
    run = begun(tmp_path)
    other = RunFolder.open(tmp_path, run.id)
    with pytest.raises(RunError, match="another process"):
        other.record(row("local", 1))
    run.finish({}, status="interrupted")
    other.record(row("local", 1))
    assert len(run.rows()) == 1


def test_two_that_ask_at_once_whether_a_run_is_running_do_not_see_each_other(tmp_path: Path) -> None:
    """Asking takes a shared lock, for which NFS does not ask for a descriptor that can write."""
    fcntl = pytest.importorskip("fcntl")
    run = begun(tmp_path)
    assert is_locked(run.path / "run.lock")
    run.let_go()
    with (run.path / "run.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert run.status == "interrupted"


KILLED = """
import sys
from collections.abc import Callable
from pathlib import Path
from fedpeer.runs.folder import RunFolder
run = RunFolder.create(Path(sys.argv[1]), name="killed", settings={"simulation": {"peers": 2}}, environment={})
run.record({"method": "local", "seed": 0, "round": 1, "accuracy": [0.5, 0.5]})
print(run.id, flush=True)
sys.stdin.read()
"""


def test_a_run_whose_process_was_killed_is_shown_as_interrupted(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*python(), "-c", KILLED, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        run = RunFolder.open(tmp_path, process.stdout.readline().strip())
        assert status(run) == "running"
        assert [each.status for each in Index(tmp_path).rows()] == ["running"]
        process.send_signal(KILL)
        process.wait()
    assert status(run) == "interrupted"
    assert [each.status for each in Index(tmp_path).rows()] == ["interrupted"]
    assert len(run.rows()) == 1


def test_listing_and_recording_load_neither_torch_nor_matplotlib(tmp_path: Path) -> None:
    made(tmp_path)
    program = (
        "import sys; from pathlib import Path; from fedpeer.runs.index import Index; import fedpeer.runs.compare;"
        f"assert len(Index(Path({str(tmp_path)!r})).rows()) == 1;"
        "print([name for name in ('torch', 'matplotlib', 'scipy', 'networkx') if name in sys.modules])"
    )
    assert subprocess.check_output((sys.executable, "-c", program), text=True).strip() == "[]"
