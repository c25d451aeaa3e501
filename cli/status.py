"""`fedpeer status` and `fedpeer dashboard`: the federation as one running peer sees it.

Both find the peer's dashboard through its file (`--config`), or by its address (`--url`, `--token-file`). The status
comes from that listener only, so the terminal shows what the browser shows. Names in it come from other peers: they are
printed as text, never as markup.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from fedpeer.peer.runtime.dashboard.access import DashboardAddress

#: Seconds between two refreshes of `--watch`; the peer updates its status once a second.
EVERY_S = 1.0
#: Columns of a terminal that has room for addresses and traffic.
WIDE = 110
#: Rejections and log lines below the tables; the dashboard shows all of them.
REFUSALS_MAX, LINES_MAX = 5, 5

_Config = Annotated[Path | None, typer.Option(help="The peer's own file, such as peer3.yaml.", show_default=False)]
_Url = Annotated[
    str | None, typer.Option(help="The peer's dashboard, such as http://127.0.0.1:7503.", show_default=False)
]
_TokenFile = Annotated[Path | None, typer.Option(help="File with the dashboard's token.", show_default=False)]
_Certificate = Annotated[
    Path | None, typer.Option(help="The dashboard's certificate, if --url is https.", show_default=False)
]


def status(
    config: _Config = None,
    url: _Url = None,
    token_file: _TokenFile = None,
    certificate: _Certificate = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole status as JSON.")] = False,
    watch: Annotated[bool, typer.Option(help="Refresh every second, until Ctrl-C.")] = False,
) -> None:
    """Show the federation as one running peer sees it."""
    from rich.console import Console

    from fedpeer.peer.runtime.dashboard.ask import ask

    address = dashboard_of(config, url, token_file, certificate)
    console = Console(highlight=False)
    first = ask(address)
    if as_json:
        for seen, _ in _looks(address, first) if watch else [(first, "")]:
            print(json.dumps(seen), flush=True)
    elif watch:
        from rich.live import Live

        with Live(screen(first, console.width), console=console, auto_refresh=False) as live:
            for seen, trouble in _looks(address, first):
                live.update(screen(seen, console.width, trouble), refresh=True)
    else:
        console.print(screen(first, console.width))


def dashboard(
    config: _Config = None,
    url: _Url = None,
    token_file: _TokenFile = None,
    certificate: _Certificate = None,
    show: Annotated[bool, typer.Option("--open", help="Also open it in the browser.")] = False,
) -> None:
    """Print the address of a running peer's dashboard, with the token that admits a browser."""
    from fedpeer.peer.runtime.dashboard.ask import ask

    address = dashboard_of(config, url, token_file, certificate)
    ask(address)
    print(address.login)
    if show:
        import webbrowser

        webbrowser.open(address.login)


def _looks(address: DashboardAddress, newest: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the newest status every second, and why the last request failed, or ""; survives a peer's restart."""
    from fedpeer.peer.runtime.dashboard.access import DashboardError
    from fedpeer.peer.runtime.dashboard.ask import ask

    trouble, since = "", time.strftime("%H:%M:%S")
    while True:
        yield newest, trouble
        time.sleep(EVERY_S)
        try:
            newest, trouble, since = ask(address), "", time.strftime("%H:%M:%S")
        except DashboardError as error:
            trouble = f"As of {since}. {error}"


def dashboard_of(
    config: Path | None, url: str | None, token_file: Path | None, certificate: Path | None
) -> DashboardAddress:
    """Return the address of the dashboard that the options name.

    Raises:
        ConfigError: the options or the peer's file are wrong.
        DashboardError: the token cannot be read.
    """
    from fedpeer.config.address import PeerUrl
    from fedpeer.config.problems import ConfigError, ConfigProblem
    from fedpeer.peer.runtime.dashboard.access import DashboardAddress, read_token

    if (config is None) == (url is None):
        problem = "name the peer's file with --config, or its dashboard with --url and --token-file"
        raise ConfigError("the command line", [ConfigProblem((), problem, "--config")])
    if config is not None:
        return _dashboard_of_file(config)
    assert url is not None
    problems = []
    try:
        board = PeerUrl.read(url.rstrip("/"), port=443 if url.startswith("https://") else 80)
    except ValueError as error:
        problems.append(ConfigProblem((), f"write it like http://127.0.0.1:7503 ({error})", "--url"))
    if token_file is None:
        problems.append(ConfigProblem((), "name the file with the token, such as keys/peer3.token", "--token-file"))
    if problems:
        raise ConfigError("the command line", problems)
    assert token_file is not None
    return DashboardAddress(str(board), read_token(token_file), certificate)


def _dashboard_of_file(config: Path) -> DashboardAddress:
    from fedpeer.cli.config import ConfigSource, refuse
    from fedpeer.config.peer_file import PeerFile
    from fedpeer.config.problems import ConfigProblem
    from fedpeer.config.reading import typed
    from fedpeer.peer.runtime.dashboard.access import listener

    source = ConfigSource.of_file(config)
    peer, problems = typed(PeerFile, source.data)
    problems += source.marks.problems
    if peer is not None and peer.dashboard is None:
        problems.append(
            ConfigProblem(
                ("dashboard",), "this peer has no dashboard; add dashboard: {listen: 127.0.0.1:7503, token_file: FILE}"
            )
        )
    refuse(source, problems)
    assert peer is not None
    assert peer.dashboard is not None
    return listener(peer.dashboard, config.parent).door


# --------------------------------------------------------------------------------------------------------- the screen


def screen(status: dict[str, Any], width: int, trouble: str = "") -> RenderableType:
    """Return a status as tables that fit a terminal of `width` columns."""
    from rich.console import Group

    parts: list[RenderableType] = [_head(status), _peers(status, width)]
    if status["groups"] or not status["councils"]:
        parts.append(_groups(status, width))
    if status["councils"]:
        parts.append(_consensus_groups(status, width))
    parts += [_text(line, style) for line, style in _below(status)]
    if trouble:
        parts.append(_text(trouble, "yellow"))
    return Group(*parts)


def _head(status: dict[str, Any]) -> RenderableType:
    """Return the peer, its state, progress, score and traffic."""
    from rich.console import Group

    from fedpeer.runs.summary import count_text, score_text
    from fedpeer.runs.units import duration_text

    points = status["scores"].get(status["peer"])
    name = status["score_name"]
    reached = f"{name} {score_text(points[-1][1], name)}" if points else f"{name} not measured yet"
    server = status["server_scores"]
    if server and server[-1][1] is not None:
        reached += f" (the server's model {score_text(server[-1][1], name)})"
    rounds, traffic = f"round {status['round']} of {status['rounds']}", status["traffic"]
    facts = [status["mode"], status["device"], status["transport"], f"up {duration_text(status['uptime_s'])}"]
    facts += [f"incarnation {status['incarnation']}", f"roster {status['roster']}"]
    bytes_sent, bytes_received = (count_text(traffic[f"bytes_{way}"], "B") for way in ("sent", "received"))
    alone, stalled = status.get("alone_s", 0), status.get("stalled_s", 0)  # a peer of an earlier release has neither
    alarms = [f"training alone for {duration_text(alone)}: no peer answers"] if alone else []
    alarms += [f"this round has been averaging for {duration_text(stalled)}"] if stalled else []
    return Group(
        _text(f"{status['peer']} in {status['federation']}: {status['state']}, {rounds}", "bold"),
        *(_text(text, "red") for text in alarms),
        _text(" · ".join(facts), "dim"),
        _text(f"{reached} · sent {bytes_sent} · received {bytes_received}"),
    )


def _peers(status: dict[str, Any], width: int) -> RenderableType:
    """Return a table of every peer of the roster, peer2 before peer10."""
    from fedpeer.runs.summary import score_text

    name, wide = status["score_name"], width >= WIDE
    table = _table(["peer", "state", ">round", f">{name}", ">heard", *(["address"] if wide else [])])
    own = status["scores"].get(status["peer"])
    for peer in sorted(status["peers"], key=lambda each: _natural(each["id"])):
        me = peer["state"] == "me"
        score = own[-1][1] if me and own else peer["score"]
        cells = [
            _text(peer["id"], "bold cyan" if me else ""),
            _text("this peer" if me else peer["state"], _COLOURS.get(peer["state"], "")),
            _text(str(peer["round"])),
            _text("–" if score is None else score_text(score, name)),
            _text("–" if me else _ago(peer["heard_s"])),
        ]
        table.add_row(*cells, *([_text(peer["address"])] if wide else []))
    return table


def _groups(status: dict[str, Any], width: int) -> RenderableType:
    """Return a table of the groups in which this peer exchanges shares."""
    from fedpeer.runs.summary import count_text

    if not status["groups"]:
        return _text("No averaging group yet: waiting for the peers to connect.", "dim")
    wide = width >= WIDE
    sizes = [">members", ">parameters"] if wide else [">members"]
    table = _table(["group", *sizes, ">round", ">weight", ">disagreement", *([">sent"] if wide else []), "waiting for"])
    for group in status["groups"]:
        apart = group["disagreement"]
        cells = [group["id"], str(len(group["members"])), *([f"{group['length']:,}"] if wide else [])]
        cells += [str(group["round"]), f"{group['weight']:.3g}", "–" if apart is None else f"{apart:.2g}"]
        cells += [count_text(group["bytes_sent"], "B")] if wide else []
        table.add_row(*map(_text, [*cells, ", ".join(group["waiting_for"]) or "–"]))
    return table


def _consensus_groups(status: dict[str, Any], width: int) -> RenderableType:
    """Return a table of consensus groups: coordinator, term, round, and how many voters are reachable."""
    from fedpeer.runs.summary import count_text

    wide = width >= WIDE
    more = [">counted", ">sent"] if wide else []
    table = _table(["group", "coordinator", ">term", ">round", ">voters", *more, "waiting for"])
    for consensus in status["councils"]:
        whom = consensus["coordinator"] or ("none: rounds are paused" if consensus["paused"] else "none yet")
        cells = [_text(consensus["id"]), _text(whom, "yellow" if consensus["paused"] else "")]
        voters = f"{len(consensus['voters_there'])} of {len(consensus['voters'])}"
        words = [str(consensus["term"]), str(consensus["round"]), voters]
        words += [str(len(consensus["counted"])), count_text(consensus["bytes_sent"], "B")] if wide else []
        table.add_row(*cells, *map(_text, [*words, ", ".join(consensus["waiting_for"]) or "–"]))
    return table


def _below(status: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield rejections, counters other than 0, and the last lines of the log, as (line, style)."""
    refusals = sorted(status["refusals"], key=lambda row: -row["last"])
    for row in refusals[:REFUSALS_MAX]:
        whom = row["sender"] or ("this machine" if row["kind"] == "o" else "an unknown sender")
        yield f"rejected {row['count']:,} × {row['code']} from {whom}", _KINDS.get(row["kind"], "")
    if len(refusals) > REFUSALS_MAX:
        yield f"and {len(refusals) - REFUSALS_MAX} more kinds of rejections; --json shows all", "dim"
    counted = [f"{name.replace('_', ' ')} {count:g}" for name, count in status["counters"].items() if count]
    if counted:
        yield " · ".join(counted), "dim"
    for line in status["log"][-LINES_MAX:]:
        more = f" (and {line['more']:,} more like it)" if line.get("more") else ""
        clock = time.strftime("%H:%M:%S", time.localtime(line["t"]))
        yield f"{clock} {line['level']:<7} {line['text']}{more}", _LEVELS.get(line["level"], "")


_COLOURS = {"alive": "green", "suspect": "yellow", "dead": "red", "me": "cyan", "unknown": "dim", "left": "dim"}
_KINDS = {"h": "dim", "s": "yellow", "x": "red", "o": "yellow"}
_LEVELS = {"warning": "yellow", "error": "red"}


def _text(words: str, style: str = "") -> Text:
    """Return text from other peers without markup or characters that a terminal would obey."""
    from rich.text import Text

    return Text("".join(letter if letter.isprintable() else "?" for letter in words), style)


def _table(headings: list[str]) -> Table:
    """Return a table without lines; a heading that begins with > is above numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for number, heading in enumerate(headings):
        right = heading.startswith(">")
        folds = number in (0, len(headings) - 1)
        table.add_column(
            heading.removeprefix(">"), justify="right" if right else "left", no_wrap=not folds, overflow="fold"
        )
    return table


def _ago(seconds: float | None) -> str:
    from fedpeer.runs.units import duration_text

    if seconds is None:
        return "never"
    return "now" if seconds < 1.5 else f"{duration_text(round(seconds))} ago"


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which peer2 comes before peer10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
