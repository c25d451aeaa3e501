"""`fedpeer demo associative`: patterns recalled by peers that trained alone, all together, or partly together.

`experiments/associative/` trains the peers. This command shows two recalls in the terminal (`drawing.py`), or serves a
page where a user gives any part of a pattern (`questions.py`, `experiments/associative/page/`).
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated

import typer

from fedpeer.exit_codes import EXIT_STOPPED

if TYPE_CHECKING:
    import socket

    from fedpeer.experiments.associative.shown import Shown

app = typer.Typer(help="Small demonstrations.", no_args_is_help=True)

_PORT_MAX = 65535


@app.callback()
def demo() -> None:
    """Small demonstrations."""


@app.command("associative")
def associative_command(
    peers: Annotated[int, typer.Option(metavar="N", help="Number of peers, 5 or more.")] = 15,
    seed: Annotated[int, typer.Option(metavar="S", min=0, help="Seed of everything random.")] = 0,
    images: Annotated[bool, typer.Option("--images", metavar="", help="Images of digits instead of bits.")] = False,
    page: Annotated[bool, typer.Option("--web", metavar="", help="Serve an interactive page until Ctrl-C.")] = False,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="P",
            min=0,
            max=_PORT_MAX,
            help="With --web: the port on 127.0.0.1; default: a free one.",
            show_default=False,
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", metavar="", help="With --web: open it in the browser.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", metavar="", help="Show warnings only, no progress.")] = False,
) -> int:
    """Let peers complete patterns from halves; each never saw one of them, and two peers learnt another completion."""
    from rich.console import Console

    from fedpeer.cli.running import stopping
    from fedpeer.config.problems import ConfigError, ConfigProblem
    from fedpeer.experiments.associative.demonstration import demonstrate
    from fedpeer.sims.progress import progress_display

    wanted = [
        ConfigProblem((), "applies to the page only; add --web", name) for name in _of_the_page(port, show) if not page
    ]
    if wanted:
        raise ConfigError("the command line", wanted)
    progress, stop = Console(stderr=True), threading.Event()
    with ExitStack() as stack:
        if page:
            from fedpeer.experiments.associative.page.server import bind_page

            listening = stack.enter_context(closing(bind_page(port or 0)))
        with stopping(stop, progress), progress_display(progress, quiet) as display:
            shown = demonstrate(peers, seed, images=images, on_event=display, stop=stop)
        if shown is None:
            return EXIT_STOPPED
        if page:
            _serve(shown, seed, listening, show=show)
        else:
            _draw(shown)
    return 0


def _of_the_page(port: int | None, show: bool) -> list[str]:
    """Return the given options that need `--web`."""
    return [name for name, given in (("--port", port is not None), ("--open", show)) if given]


def _draw(shown: Shown) -> None:
    from rich.console import Console

    from fedpeer.experiments.associative.drawing import DrawingMarks, draw_marks, legend, recall_table
    from fedpeer.experiments.associative.words import heading, lesson

    console, images = Console(), shown.recall.canvas.images
    marks = DrawingMarks.suited(console.width, images=images, ascii_only=console.options.ascii_only)
    for scene in shown.scenes:
        console.print()
        console.print(heading(scene, shown), highlight=False, style="bold")
        console.print(draw_marks(scene, marks, images=images))
    console.print(legend(marks))
    console.print(recall_table(shown))
    console.print(lesson(shown), highlight=False)


def _serve(shown: Shown, seed: int, listening: socket.socket, *, show: bool) -> None:
    """Serve the page until Ctrl-C."""
    import asyncio
    from functools import partial

    from fedpeer.experiments.associative.page.server import address, serve_page
    from fedpeer.experiments.associative.questions import answer_to, tellable

    def ready() -> None:
        typer.echo("Serving the page until Ctrl-C:", err=True)
        print(address(listening), flush=True)
        if show:
            import webbrowser

            webbrowser.open(address(listening))

    asyncio.run(serve_page(tellable(shown, seed), partial(answer_to, recall=shown.recall), listening, ready))
