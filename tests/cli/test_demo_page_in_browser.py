"""The page of the demonstration in a real browser: cells are set, layers follow, and no error goes unnoticed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from aiohttp.test_utils import BaseTestServer, TestServer

from fedpeer.experiments.associative.demonstration import METHODS
from fedpeer.experiments.associative.page.server import application
from fedpeer.experiments.associative.questions import answer_to, tellable
from fedpeer.experiments.associative.recall import Cells
from fedpeer.experiments.associative.shown import Shown
from tests.experiments import recalls
from tests.experiments.recalls import AVERAGED, HIDDEN, STRANGE, B
from tests.peer.runtime.browser import CHROMIUM, Page, chromium

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
#: Runs before any script of the page: collects errors, warnings on the console, and breaches of the page's own policy.
LISTEN = """
window.wrong = [];
addEventListener("error", (event) => wrong.push(String(event.message)));
addEventListener("unhandledrejection", (event) => wrong.push(String(event.reason)));
document.addEventListener("securitypolicyviolation", (event) => wrong.push(event.violatedDirective));
for (const name of ["error", "warn"]) console[name] = (...words) => wrong.push(words.join(" "));
"""
ANSWERED = "document.querySelector('#stages [aria-current]')?.textContent === 'answer'"


@asynccontextmanager
async def shown(found: Shown, folder: Path, width: int = 1400) -> AsyncIterator[tuple[Page, BaseTestServer]]:
    """Open the page in a browser, wait for its first answer, and yield the page and the server behind it."""
    app = application(tellable(found, 0), partial(answer_to, recall=found.recall))
    async with TestServer(app) as server, chromium(folder) as page:
        await page.call("Page.enable")
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=LISTEN)
        await page.look(width)
        await page.open(str(server.make_url("/")))
        await page.until(ANSWERED)
        yield page, server


async def cell(page: Page, number: int) -> tuple[float, float]:
    """Return the middle of a cell that can be set."""
    box = await page.value(
        f"(() => {{ const b = document.querySelector('#given [data-n=\"{number}\"]').getBoundingClientRect();"
        " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    return float(box[0]), float(box[1])


async def mouse(page: Page, kind: str, number: int) -> None:
    x, y = await cell(page, number)
    held = 0 if kind == "mouseReleased" else 1
    await page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=held, clickCount=1)


async def press(page: Page, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        await page.call("Input.dispatchKeyEvent", type=kind, key=key)


def given(found: Cells) -> str:
    """Return the condition that exactly these cells are set."""
    cells = "[...document.querySelectorAll('#given [role=gridcell]')].map((c) => +(c.ariaSelected === 'true')).join('')"
    return f"{cells} === '{''.join(map(str, found.reshape(-1).astype(int)))}'"


async def lit(page: Page, method: str) -> tuple[int, int]:
    """Return how many hidden units fire: the round ones, which are averaged, and the square ones."""
    counts = await page.value(
        f"['circle.averaged.fires', 'rect.own.fires'].map((unit) => "
        f"document.querySelectorAll(`[data-method={method}] ${{unit}}`).length)"
    )
    return counts[0], counts[1]


def drawn(method: str, kind: str) -> str:
    """Return the script for the cells of an answer that are drawn as this kind."""
    cells = f"[...document.querySelectorAll('[data-method={method}] .answer .cell')]"
    return f"{cells}.flatMap((c, n) => c.classList.contains('{kind}') ? [n] : [])"


async def test_layers_are_pythons_and_cells_are_marked(tmp_path: Path) -> None:
    found = recalls.shown()
    async with shown(found, tmp_path) as (page, _):
        assert await page.value(given(STRANGE.half))
        for method in METHODS:
            recalled = found.recall.ask(method, "peer1", STRANGE.half)
            averaged_H = found.recall.memories[method]["peer1"].averaged_H
            fires_H = recalled.hidden_H
            assert await lit(page, method) == ((fires_H & averaged_H).sum(), (fires_H & ~averaged_H).sum())
            right, missing = recalled.answer & STRANGE.whole, STRANGE.whole & ~recalled.answer
            for kind, cells in (("right", right), ("missing", missing), ("extra", recalled.answer & ~STRANGE.whole)):
                assert await page.value(drawn(method, kind)) == np.flatnonzero(cells).tolist(), (method, kind)
        units = "document.querySelectorAll('[data-method={}] {}').length"
        assert await page.value(units.format("partial-averaging", "circle")) == AVERAGED
        assert await page.value(units.format("partial-averaging", "rect")) == HIDDEN - AVERAGED
        assert await page.value(units.format("local", "rect")) == HIDDEN
        text = "document.querySelector('[data-method=full-averaging]').innerText"
        assert "fails, 5 missing, 5 too much" in await page.value(text)
        assert "as the majority does" in await page.value(text)

        # Select another peer, and set cells by clicks, drags and keys: the half of B, cells 20 to 24.
        await page.value("document.querySelector('#peers input[value=peer2]').click()")
        await page.until(f"{text}.includes('peer2 was never shown pattern A, and completes it')")
        await page.value("document.querySelector('#clear').click()")
        await page.until(f"{text}.includes('Nothing is given') && {ANSWERED}")
        assert await lit(page, "full-averaging") == (0, 0)
        for kind, number in (("mousePressed", 20), ("mouseMoved", 21), ("mouseMoved", 22), ("mouseReleased", 22)):
            await mouse(page, kind, number)
        await mouse(page, "mouseMoved", 32)  # no button is held now
        for key in (
            "ArrowRight",
            "ArrowDown",
            "End",
            "ArrowUp",
            "Home",
            *["ArrowRight"] * 3,
            " ",
            "ArrowRight",
            "Enter",
        ):
            await press(page, key)
        assert await page.value("document.activeElement.getAttribute('aria-label')") == "row 3, column 5"
        assert await page.value(given(B.half))
        # The answer to the previous cells may have the same words under it.
        whole = ",".join(map(str, np.flatnonzero(B.whole)))
        answered = f"{text}.includes('peer2 learnt pattern B itself, and completes it')"
        await page.until(f"{answered} && {drawn('full-averaging', 'right')}.join() === '{whole}'")
        assert "half of B" in await page.value("document.querySelector('#presets [aria-pressed=true]').textContent")
        assert await page.value("wrong") == []


async def test_layers_come_one_by_one_or_at_once_and_the_page_fits(tmp_path: Path) -> None:
    async with shown(recalls.shown(), tmp_path, width=390) as (page, server):
        assert await page.value("document.documentElement.scrollWidth") <= 390
        step = "document.querySelector('#step').click()"
        on = "document.querySelectorAll('.answer .right, .answer .missing, .answer .extra').length > 0"
        fires = "document.querySelectorAll('.fires').length > 0"
        for reached in ((False, False), (True, False), (True, True)):
            await page.value(step)
            assert (await page.value(fires), await page.value(on)) == reached
        await page.value(
            "[...document.querySelectorAll('#methods button')].find((b) => b.textContent === 'local only').click()"
        )
        hidden = "[...document.querySelectorAll('#out article')].map((each) => !each.checkVisibility())"
        assert await page.value(hidden) == [False, True, True]

        await page.value(
            "window.seen = []; new MutationObserver(() =>"
            " seen.push(document.querySelector('#stages [aria-current]').textContent)"
            ").observe(document.querySelector('#stages'), { subtree: true, attributes: true })"
        )
        preset = "document.querySelectorAll('#presets button')[{}].click()"
        await page.value(preset.format(1))
        await page.until("seen.at(-1) === 'answer'")
        assert await page.value("seen") == ["hidden units", "answer"]
        reduce = [{"name": "prefers-reduced-motion", "value": "reduce"}]
        await page.call("Emulation.setEmulatedMedia", features=reduce)
        await page.value(f"seen.length = 0; {preset.format(2)}")
        await page.until("seen.at(-1) === 'answer'")
        assert await page.value("seen") == ["answer"], "who does not want motion sees the answer at once"

        assert await page.value("wrong") == []
        await server.close()
        await page.value("document.querySelector('#clear').click()")
        await page.until("!document.querySelector('#trouble').hidden")
        assert "has ended" in await page.value("document.querySelector('#trouble').textContent")


async def test_pixels_stand_in_blocks(tmp_path: Path) -> None:
    async with shown(recalls.shown(recalls.made_of_images()), tmp_path) as (page, _):
        assert await page.value("document.querySelectorAll('#given.pixels [role=row]').length") == 8
        dark = "[...document.querySelectorAll('#given .cell')].map((c) => +c.classList.contains('dark-block')).join('')"
        assert await page.value(dark) == ("00110011" * 2 + "11001100" * 2) * 2
        assert "digit" in await page.value("document.querySelector('[data-method=local] .says').textContent")
        assert await page.value("wrong") == []
