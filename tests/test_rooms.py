"""The rules of the rooms, checked against the real import graph and the real source."""

from __future__ import annotations

import ast
import logging.config
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
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
PURE += tuple(
    f"learning/{name}.py" for name in ("assembly", "bandwidth", "class_weights", "groups", "local_task", "wire_forms")
)
#: Imports that a pure room never has: it does not communicate, wait, read, write, look at the clock, or draw from a
#: generator of its own.
IMPURE = {"asyncio", "socket", "threading", "multiprocessing", "subprocess", "time", "datetime", "os", "pathlib"}
IMPURE |= {"io", "shutil", "tempfile", "random", "secrets", "logging", "aiohttp", "sqlite3", "rich", "typer", "pooch"}
#: Most modules in a chain of imports.
CHAIN_MAX = 20
#: By room: packages that it must not import, because listing and checking must not wait for them.
NEVER = {
    "topology": {"torch"},
    "config": {"torch"},
    "data": {"torch"},
    "runs": {"torch"},
    "sims": {"aiohttp"},
    "cli": {"aiohttp"},
}
#: By module, what its import must not import, not even through others. Matplotlib, which takes a second, draws the
#: report at the end, and shows plots in a notebook only if the notebook is the first to import it. The vector engine
#: does not need real peers. The fork server is started while this process imports torch, and is ready after it, with
#: what the workers need: no graphs.
LATE = {
    "fedpeer.sims.simulate": {"matplotlib", "fedpeer.peer.node.node"},
    "fedpeer.peer.runtime.process": {"matplotlib"},
    "fedpeer.sims.vector.fork_server": {"torch"},
    "fedpeer.sims.vector.worker": {"networkx"},
}


Import = ast.Import | ast.ImportFrom


@dataclass(frozen=True)
class Source:
    """One file, parsed once for all tests.

    top        the imports that are executed when the file is imported
    imports    all imports, including those for types only and those inside functions
    """

    path: Path
    text: str
    tree: ast.Module
    top: tuple[Import, ...]
    imports: tuple[Import, ...]


@cache
def _source(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    imports = tuple(node for node in _statements(tree) if isinstance(node, Import))
    return Source(path, text, tree, top=tuple(node for node in tree.body if isinstance(node, Import)), imports=imports)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements inside this one; no expression contains any, and most of a file is expressions."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inside = getattr(node, field, ())
        for each in inside if isinstance(inside, list) else ():
            yield each
            yield from _statements(each)


def called(source: Source) -> Iterator[ast.expr]:
    """Yield the called expressions of a file, as written."""
    return (node.func for node in ast.walk(source.tree) if isinstance(node, ast.Call))


@pytest.fixture(scope="module", autouse=True)
def _forget_the_sources() -> Iterator[None]:
    yield
    _source.cache_clear()


@cache
def _files(room: str) -> tuple[Path, ...]:
    return (ROOT / room,) if room.endswith(".py") else tuple(sorted((ROOT / room).rglob("*.py")))


def sources(room: str) -> Iterator[Source]:
    return map(_source, _files(room))


def imported(nodes: Iterable[Import]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif node.module:
            yield node.module.partition(".")[0]


def test_rooms_import_only_what_the_table_of_the_architecture_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    # It would silence every logger for all tests after this one.
    monkeypatch.setattr(logging.config, "dictConfig", lambda config: None)
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == EXIT_STATUS_SUCCESS


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_talk_to_nobody(room: str) -> None:
    found = {(each.path.name, name) for each in sources(room) for name in imported(each.imports) if name in IMPURE}
    assert not found


@pytest.mark.parametrize("room", NEVER)
def test_rooms_leave_out_what_they_must_not_wait_for(room: str) -> None:
    for each in sources(room):
        wrong = NEVER[room] & set(imported(each.imports if "aiohttp" in NEVER[room] else each.top))
        assert not wrong, each.path


def imports_within(nodes: Iterable[Import], modules: Collection[str]) -> Iterator[str]:
    """Yield our own modules that these nodes import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in modules)
        elif node.module:
            whole = (f"{node.module}.{each.name}" for each in node.names)
            names = {name if name in modules else node.module for name in whole}
            yield from (name for name in names if name in modules)


def modules() -> dict[str, Source]:
    """Return our own modules by name."""
    return {
        "fedpeer." + ".".join(each.path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): each
        for room in ROOMS
        for each in sources(room)
    }


@pytest.mark.parametrize("begins", LATE)
def test_nobody_waits_for_what_is_needed_later_or_by_others(begins: str) -> None:
    files, reached, left = modules(), set[str](), [begins]
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left += imports_within(files[name].top, files)
    wrong = {name: found for name in reached if (found := LATE[begins] & {name, *imported(files[name].top)})}
    assert not wrong
    assert reached


def test_modules_import_one_another_in_no_circle_and_in_short_chains() -> None:
    """Circles also count imports for types only and inside functions; chains count only imports executed on import."""
    files = modules()
    anywhere = {name: set(imports_within(each.imports, files)) - {name} for name, each in files.items()}
    order = [*TopologicalSorter(anywhere).static_order()]  # raises a CycleError that names the circle
    length = dict.fromkeys(order, 1)
    for name in order:
        below = set(imports_within(files[name].top, files)) - {name}
        length[name] += max((length[each] for each in below), default=0)
    longest = max(length, key=length.__getitem__)
    assert length[longest] <= CHAIN_MAX, f"{longest} stands on a chain of {length[longest]} modules"


def defined(node: ast.stmt, path: str) -> tuple[str, str] | None:
    """Return the public name that a statement defines, and what it stands for: for a type, its text."""
    match node:
        case ast.ClassDef(name) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
            meaning = path
        case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), value=ast.expr() as value):
            meaning = ast.unparse(value)
            if not TYPE.fullmatch(name) or meaning.startswith("TypeVar("):
                return None
        case _:
            return None
    return None if name.startswith("_") else (name, meaning)


def test_no_public_class_function_or_type_has_the_name_of_another() -> None:
    """A name identifies one place; a name that is used only in its own module has a leading underscore.

    Rooms that do not import each other may spell the same type out under the same name.
    """
    homes: dict[str, dict[str, str]] = {}
    for room in ROOMS:
        for each in sources(room):
            path = str(each.path.relative_to(ROOT))
            names = [found for node in each.tree.body if (found := defined(node, path))]
            assert len(names) == len({name for name, _ in names}), path
            for name, meaning in names:
                homes.setdefault(name, {})[meaning] = path
    assert not {name: [*paths.values()] for name, paths in homes.items() if len(paths) > 1}


def test_no_data_becomes_code() -> None:
    """The code has no pickle, marshal, eval, exec or torch.load, except in the one reader of official pickles, and on
    the way to a simulation's own workers."""
    code = {"eval", "exec", "compile", "__import__"}
    for each in (each for room in (*ROOMS, "fedpeer") for each in sources(room)):
        if each.path.name in ("official_pickle.py", "by_value.py"):
            continue
        wrong = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
        assert not wrong & set(imported(each.imports)), each.path
        if not any(f"{name}(" in each.text for name in (*code, ".load")):  # walking all files would be most of the work
            continue
        assert not code & {call.id for call in called(each) if isinstance(call, ast.Name)}, each.path
        loads = [call.value for call in called(each) if isinstance(call, ast.Attribute) and call.attr == "load"]
        assert "torch" not in {value.id for value in loads if isinstance(value, ast.Name)}, each.path


def test_every_file_says_what_lives_in_it() -> None:
    for room in (*ROOMS, "fedpeer"):
        for each in sources(room):
            assert ast.get_docstring(each.tree), each.path


#: The name of a type, such as that of a union; constants are in capitals.
TYPE = re.compile(r"[A-Z]\w*[a-z]\w*")
#: A line of a class's list of settings or of attributes: names, two or more spaces, what they are.
LISTED = re.compile(r"([a-z]\w*(?:, [a-z]\w*)*) {2,}\S")
#: A parameter in the section `Args:` of a docstring.
PARAMETER = re.compile(r" {4}\*{0,2}(\w+(?:, \w+)*): ")


Function = ast.FunctionDef | ast.AsyncFunctionDef


def found_in(text: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the names in the lines of a text that begin as the pattern says."""
    for found in map(pattern.match, text.splitlines()):
        yield from found[1].split(", ") if found else ()


def parameters(node: Function) -> set[str]:
    given = node.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    return {each.arg for each in named}


def names_within(node: ast.AST) -> Iterator[str]:
    """Yield what a class has by name: fields, attributes, methods, and their parameters."""
    for each in ast.walk(node):
        match each:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from (each.name, *parameters(each))
            case ast.Attribute():
                yield each.attr
            case ast.Name(ctx=ast.Store()):
                yield each.id


def test_modules_that_are_named_in_words_exist() -> None:
    files = [each for room in ROOMS for each in sources(room)]
    known = {f"/{path.relative_to(ROOT)}" for path in [*(each.path for each in files), *ROOT.glob("tests/**/*.py")]}
    wrong = [
        f"{each.path.relative_to(ROOT)} {name}"
        for each in files
        for name in re.findall(r"`([\w/]+\.py)`", each.text)
        if not any(path.endswith(f"/{name}") for path in known)
    ]
    assert not wrong


def test_docstrings_name_parameters_and_attributes_that_exist() -> None:
    """A renaming has to reach the lists in docstrings, too."""
    trees = {each.path: each.tree for room in (*ROOMS, "fedpeer") for each in sources(room)}
    classes = {node.name: node for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)}

    def members(node: ast.ClassDef) -> set[str]:
        bases = (classes.get(ast.unparse(base)) for base in node.bases)
        return {*names_within(node)}.union(*(members(base) for base in bases if base is not None))

    wrong = []
    for path, node in ((path, node) for path, tree in trees.items() for node in ast.walk(tree)):
        if not isinstance(node, ast.ClassDef | Function):
            continue
        lists, _, arguments = (ast.get_docstring(node) or "").partition("Args:\n")
        said = {*found_in(arguments.partition("\n\n")[0], PARAMETER)}
        known = members(node) if isinstance(node, ast.ClassDef) else parameters(node)
        if isinstance(node, ast.ClassDef):
            listed = {*found_in(lists, LISTED)}
            said |= listed if listed & known else set()  # else it is a table of something else
        wrong += [f"{path.relative_to(ROOT)}:{node.lineno} {name}" for name in sorted(said - known)]
    assert not wrong
