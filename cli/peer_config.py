"""A peer's file and the federation file that it names, read into checked settings or one report of all problems.

The steps are those of `config.py`, and checks that only this machine can make: that files exist, that keys are private
and match the roster, and that data can be read. Nothing is started, downloaded or imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeer.cli.config import ConfigSource, load, refuse
from fedpeer.config.address import PeerUrl, loopback
from fedpeer.config.choice import bind_settings
from fedpeer.config.federation import Federation
from fedpeer.config.peer_file import IdentitySettings, PeerFile
from fedpeer.config.problems import ConfigError, ConfigProblem
from fedpeer.config.problems import Path as SettingPath
from fedpeer.config.reading import typed
from fedpeer.config.registries import choice_problem, metric_problems, tracker_problems
from fedpeer.config.rules import PEERS, Combination, Vocabulary, problems_of
from fedpeer.config.settings import SimulationSettings
from fedpeer.data.dataset import DataError
from fedpeer.data.own import OWN
from fedpeer.learning.anchors import anchored, anchored_federation, anchored_network, anchored_tracker, located

if TYPE_CHECKING:
    from fedpeer.peer.wire.roster import Roster


@dataclass(frozen=True, kw_only=True)
class PeerConfig:
    """A valid peer file and its valid federation file, with absolute paths."""

    file: PeerFile
    federation: Federation


def is_peer_file(data: Mapping[str, Any]) -> bool:
    """Return whether these settings are a peer's rather than a federation's."""
    return "id" in data or "federation" in data


def load_peer(path: Path, consequence: str = "") -> PeerConfig:
    """Load a peer file and its federation file.

    Raises:
        ConfigError: everything that is wrong with the peer file, or, if that is valid, with the federation file.
    """
    source = ConfigSource.of_file(path)
    if not is_peer_file(source.data) and {"learning", "gossip", "partial_models", "simulation"} & set(source.data):
        text = "this is the federation's file; name the peer's own, such as peer1.yaml"
        raise ConfigError(str(path), [ConfigProblem((), text)], consequence)
    file, problems = _examine_peer(source, path.parent)
    federation = None
    if file is not None and Path(file.federation).is_file():
        try:
            federation = load(ConfigSource.of_file(Path(file.federation)), consequence, roster=True)
        except ConfigError as error:
            if not problems:
                raise
            count = len(error.problems)
            text = f"it has {count} problem{'s' if count > 1 else ''} too; see fedpeer config check {file.federation}"
            problems.append(ConfigProblem(("federation",), text))
    if file is not None and federation is not None:
        problems += _together(file, federation)
    refuse(source, problems, consequence)
    assert file is not None
    assert federation is not None
    return PeerConfig(file=file, federation=anchored_federation(federation, Path(file.federation).parent))


def load_peers(paths: Sequence[Path], consequence: str = "") -> list[PeerConfig]:
    """Load several peer files whose peers will run side by side on this machine.

    Raises:
        ConfigError: everything that is wrong with any of them, and values that only one of them can have.
    """
    found: dict[Path, PeerConfig] = {}
    problems: list[ConfigProblem] = []
    for path in paths:
        try:
            found[path] = load_peer(path, consequence)
        except ConfigError as error:
            problems += [replace(each, place=f"{error.subject} {each.place}".strip()) for each in error.problems]
    problems += _twice({path: each.file for path, each in found.items()})
    if len(set(paths)) < len(paths):
        problems.append(ConfigProblem((), "a file is named twice; name each file once", "--config"))
    if problems:  # without repeats: a federation file that all of them name is reported once
        raise ConfigError("what is to be started", [*dict.fromkeys(problems)], consequence)
    return list(found.values())


def _twice(files: Mapping[Path, PeerFile]) -> Iterator[ConfigProblem]:
    """Yield a problem for each id, state folder or port that two processes of one machine share."""
    seen: dict[tuple[str, str], Path] = {}
    for path, file in files.items():
        own = [("id", file.id), ("state", str(file.state))] + ([] if file.outbound else [("listen", file.listen)])
        for key, value in own if file.dashboard is None else [*own, ("listen", file.dashboard.listen)]:
            other = seen.setdefault((key, value), path)
            if other != path:
                yield ConfigProblem((key,), f"{value} is used by {other} too; give each peer its own", str(path))


def _examine_peer(source: ConfigSource, folder: Path) -> tuple[PeerFile | None, list[ConfigProblem]]:
    """Return the peer file with absolute paths, or None if it cannot be parsed, and all its problems."""
    file, problems = typed(PeerFile, source.data)
    if file is not None:
        problems += [ConfigProblem(path, text) for path, text in file.contradictions()]
        file = _whole(file, folder)
        problems += [*_choices(file), *_data(file), *_keys(file), *_others(file)]
    return file, [*source.marks.problems, *problems]


def _whole(file: PeerFile, folder: Path) -> PeerFile:
    """Return the peer file with absolute paths."""

    def whole(path: str) -> str:
        return str(located(path, folder))

    identity, board = file.identity, file.dashboard
    if identity is not None:
        identity = IdentitySettings(**{name: whole(path) for name, path in identity})
    if board is not None:
        named = {name: getattr(board, name) for name in ("token_file", "certificate", "key")}
        board = board.model_copy(update={name: whole(path) for name, path in named.items() if path is not None})
    return file.model_copy(
        update={
            "federation": whole(file.federation),
            "roster": whole(file.roster),
            "state": whole(file.state or f"{file.id}-state"),
            "data": file.data.model_copy(update={"source": anchored(file.data.source, folder)}),
            "network": None if file.network is None else anchored_network(file.network, folder),
            "tracking": tuple(anchored_tracker(each, folder) for each in file.tracking),
            "identity": identity,
            "dashboard": board,
        }
    )


def _choices(file: PeerFile) -> Iterator[ConfigProblem]:
    if file.network is not None and (problem := choice_problem(("network",), file.network)) is not None:
        yield problem
    if file.data.part is None and (problem := choice_problem(("simulation", "dataset"), file.data.source)) is not None:
        yield ConfigProblem(("data",), problem.text)
    yield from (replace(problem, path=("metrics",)) for problem in metric_problems(file.metrics))
    yield from (replace(problem, path=("tracking",)) for problem in tracker_problems(file.tracking))


def _data(file: PeerFile) -> Iterator[ConfigProblem]:
    """Yield a problem if a user's own data file cannot be read to the last row."""
    choice = file.data.source
    if choice.name in OWN and choice.name != "python" and choice_problem(("simulation", "dataset"), choice) is None:
        try:
            OWN[choice.name](**bind_settings(choice, OWN[choice.name]))
        except DataError as error:
            yield ConfigProblem(("data",), str(error))


def _keys(file: PeerFile) -> Iterator[ConfigProblem]:
    """Yield the problems of the identity's files and the roster: missing, or not matching one another or the file."""
    if file.transport == "https" and file.identity is None:
        return
    from fedpeer.peer.runtime.identity import examine_identity, read_roster
    from fedpeer.peer.wire.roster import RosterError

    roster = None
    try:
        roster = read_roster(Path(file.roster))
    except RosterError as error:
        yield ConfigProblem(("roster",), str(error))
    if file.transport != "https" or file.identity is None:
        if roster is not None:
            yield from _addresses(file, roster)
        return
    paths = {name: Path(path) for name, path in file.identity}
    _, flaws = examine_identity(file.id, **paths, roster=roster)
    for flaw in flaws:
        yield ConfigProblem(("roster",) if flaw.setting == "roster" else ("identity", flaw.setting), flaw.text)


def _addresses(file: PeerFile, roster: Roster) -> Iterator[ConfigProblem]:
    """Yield a problem if the roster has addresses that cannot be used without TLS."""
    urls = {entry.id: PeerUrl.read(entry.address) for entry in roster.entries}
    if file.address is not None:
        urls.pop(file.id, None)
    wrong = [f"{peer} at {url}" for peer, url in urls.items() if url.scheme != "http" or not loopback(url.host)]
    if wrong:
        text = f"it has {', '.join(wrong)}, and plain-http needs http:// and 127.0.0.1 or [::1]; use transport: https"
        yield ConfigProblem(("roster",), text)


def _others(file: PeerFile) -> Iterator[ConfigProblem]:
    """Yield the problems of the dashboard's files and of the federation file's path."""
    board = file.dashboard
    named: dict[SettingPath, str | None] = {("federation",): file.federation}
    if board is not None:
        named |= {("dashboard", name): getattr(board, name) for name in ("token_file", "certificate", "key")}
    for path, written in named.items():
        if written is None:
            continue
        if not Path(written).is_file():
            yield ConfigProblem(path, f"there is no file {written}; fedpeer init or join makes it")
        elif path[-1] in ("token_file", "key") and Path(written).stat().st_mode & 0o077:
            yield ConfigProblem(path, f"{written} can be read by other users; run  chmod 600 {written}")


def _together(file: PeerFile, federation: Federation) -> Iterator[ConfigProblem]:
    """Yield the settings that contradict the federation file."""
    peers, part = federation.simulation.peers, file.data.part
    if part is not None and peers is not None and part > peers:
        yield ConfigProblem(("data",), f"the simulation has {peers} peers; write a number from 1 to {peers}")
    if file.network is not None:  # by the rules for peers with networks of their own in a simulation
        simulation = SimulationSettings(networks={file.id: file.network})
        own = Combination.of(federation.model_copy(update={"simulation": simulation}), PEERS)
        for problem in problems_of(own, _OwnNetwork()):
            if problem.rule.startswith("different networks"):
                yield replace(problem, path=("network",))


class _OwnNetwork(Vocabulary):
    """The names of settings in a sentence about a peer's own network, in the peer's file."""

    def name(self, key: str) -> str:
        return "network" if key == "simulation.networks" else f"{key} in the federation file"
