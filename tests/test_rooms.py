"""The rules of the rooms, held against the real import graph and the real source."""

from __future__ import annotations

import ast
import logging.config
import sys
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parent.parent
ROOMS = (
    *("slicing", "topology", "networks", "gossip", "algorithms", "config", "learning", "peer"),
    *("sims", "experiments", "data", "runs", "cli"),
)
PURE: tuple[str, ...] = ("slicing", "topology", "gossip", "algorithms", "networks", "config")
PURE += ("peer/wire", "peer/state", "peer/consensus", "peer/node")
PURE += tuple(f"learning/{name}.py" for name in ("assembly", "bandwidth", "groups", "local_task", "wire_forms"))
#: What a pure room never does: talk, wait, read, write, look at the clock, draw from a generator of its own.
IMPURE = {"asyncio", "socket", "threading", "multiprocessing", "subprocess", "time", "datetime", "os", "pathlib"}
IMPURE |= {"io", "shutil", "tempfile", "random", "secrets", "logging", "aiohttp", "sqlite3", "rich", "typer", "pooch"}
#: Modules that stand on one another by their imports.
CHAIN_MAX = 20
#: Of these rooms and packages alone: what listing and checking must not wait for.
NEVER = {
    "topology": {"torch"},
    "config": {"torch"},
    "data": {"torch"},
    "runs": {"torch"},
    "sims": {"aiohttp"},
    "cli": {"aiohttp"},
}


def sources(room: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in [ROOT / room] if room.endswith(".py") else sorted((ROOT / room).rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_rooms_import_only_what_the_table_of_the_architecture_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    # It would silence every logger that there is, for all tests after this one.
    monkeypatch.setattr(logging.config, "dictConfig", lambda config: None)
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == EXIT_STATUS_SUCCESS


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_talk_to_nobody(room: str) -> None:
    found = {(path.name, name) for path, tree in sources(room) for name in imported(tree) if name in IMPURE}
    assert not found


@pytest.mark.slow
@pytest.mark.parametrize("room", NEVER)
def test_rooms_leave_out_what_they_must_not_wait_for(room: str) -> None:
    top = ast.Module([], [])
    for path, tree in sources(room):
        top.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        wrong = NEVER[room] & set(imported(tree if "aiohttp" in NEVER[room] else top))
        assert not wrong, path


def imports_within(tree: ast.AST, modules: Collection[str]) -> Iterator[str]:
    """Modules of ours that are imported, wherever in the source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                whole = f"{node.module}.{each.name}"
                yield from {whole if whole in modules else node.module} & set(modules)


def test_modules_import_one_another_in_no_circle_and_in_short_chains() -> None:
    """Circles count imports for types alone and inside functions, too; chains what importing a module imports."""
    trees = {
        "fedpeer." + ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): tree
        for room in ROOMS
        for path, tree in sources(room)
    }
    anywhere = {name: set(imports_within(tree, trees)) - {name} for name, tree in trees.items()}
    order = [*TopologicalSorter(anywhere).static_order()]  # raises a CycleError that names the circle
    length = dict.fromkeys(order, 1)
    for name in order:
        top = ast.Module([each for each in trees[name].body if isinstance(each, ast.Import | ast.ImportFrom)], [])
        length[name] += max((length[each] for each in imports_within(top, trees) if each != name), default=0)
    longest = max(length, key=length.__getitem__)
    assert length[longest] <= CHAIN_MAX, f"{longest} stands on a chain of {length[longest]} modules"


def test_no_public_class_or_function_has_the_name_of_another() -> None:
    """A name says where it is; what never leaves its module has a leading underscore."""
    homes: dict[str, list[str]] = {}
    for room in ROOMS:
        for path, tree in sources(room):
            for node in tree.body:
                if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_no_data_becomes_code() -> None:
    """No pickle, marshal, eval, exec or torch.load, but for the one reader of official pickles."""
    for path, tree in (pair for room in (*ROOMS, "fedpeer") for pair in sources(room)):
        if path.name == "official_pickle.py":
            continue
        assert not {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"} & set(imported(tree)), path
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        names = {call.id for call in calls if isinstance(call, ast.Name)}
        assert not {"eval", "exec", "compile", "__import__"} & names, path
        loads = [
            c for c in calls if isinstance(c, ast.Attribute) and c.attr == "load" and isinstance(c.value, ast.Name)
        ]
        assert not [c for c in loads if c.value.id == "torch"], path  # type: ignore[attr-defined]


def test_every_file_says_what_lives_in_it() -> None:
    for room in (*ROOMS, "fedpeer"):
        for path, tree in sources(room):
            assert ast.get_docstring(tree), path
