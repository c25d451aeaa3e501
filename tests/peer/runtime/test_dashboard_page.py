"""The dashboard's page in a real browser: its drawings, its live updates, and peers' words that stay plain text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from fedpeer.peer.runtime.dashboard.access import DashboardListener
from fedpeer.peer.runtime.dashboard.server import Dashboard
from fedpeer.peer.state.events import Note, RejectEffect
from fedpeer.rejection import Rejection

from .browser import CHROMIUM, Page, browser_at, tab_of
from .fake_status import TOKEN, FakePeer

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One browser for all tests: starting it costs more than what they do. Each page has a tab that shares nothing."""
    with browser_at(tmp_path_factory.mktemp("browser")) as address:
        yield address


@asynccontextmanager
async def shown(peer: FakePeer, browser: str, width: int = 1400) -> AsyncIterator[tuple[Page, Dashboard]]:
    """Open this peer's page in a browser, log in, and wait until it is live."""
    board = Dashboard(DashboardListener("127.0.0.1", 0, TOKEN), peer.status.as_json, None, every_s=0.05)
    await board.start()
    try:
        async with tab_of(browser) as page:
            await page.look(width)
            await page.open(board.listener.door.login)
            await page.until("document.querySelector('#connection').textContent === 'live'")
            yield page, board
    finally:
        await board.stop()


def learned(peers: int, rounds: int = 40, *, served: bool = False) -> FakePeer:
    peer = FakePeer(peers, served=served)
    for _ in range(rounds):
        peer.round()
    return peer


@pytest.mark.slow
async def test_everything_is_drawn_and_lives_on(browser: str) -> None:
    peer = learned(4)
    async with shown(peer, browser) as (page, board):
        assert await page.value("location.search") == ""
        assert await page.value("document.title") == "peer3 · averaging · wards"
        graph = "[...document.querySelectorAll('#graph [data-peer]')].map((node) => node.dataset.peer)"
        assert await page.value(graph) == ["peer1", "peer2", "peer3", "peer4"]
        edges = peer.status.view.groups[0].edges
        assert await page.value("document.querySelectorAll('#graph line').length") == len(edges)
        curves = "[...document.querySelectorAll('#curves path')].map((path) => path.dataset.peer).sort()"
        assert await page.value(curves) == ["peer1", "peer2", "peer3", "peer4"]
        points = "document.querySelector('.curve.own').getAttribute('d').match(/[ML]/g).length"
        assert await page.value(points) == 40
        groups = "[...document.querySelectorAll('#groups tbody th')].map((cell) => cell.textContent)"
        assert await page.value(groups) == ["everyone", "ward-a"]
        assert "0.25" in await page.value("document.querySelector('#counters').textContent")
        assert "not fedpeer" in await page.value("document.querySelector('#refusals').textContent")
        assert "the first bytes" in await page.value("document.querySelector('#log').textContent")

        peer.round()
        await page.until("document.querySelector('#where').textContent.includes('round 41 of 100')")
        await page.until(f"{points} === 41")

        await page.value(
            "[...document.querySelectorAll('#choose button')].find((b) => b.textContent === 'ward-a').click()"
        )
        assert await page.value(graph) == ["peer1", "peer3"]

        await board.stop()
        await page.until("document.querySelector('#connection').dataset.state === 'lost'")
        assert await page.value("document.querySelector('#where').textContent") == "averaging, round 41 of 100"
        again = Dashboard(board.listener, peer.status.as_json, None, every_s=0.05)
        await again.start()
        try:
            await page.until("document.querySelector('#connection').textContent === 'live'")
        finally:
            await again.stop()


@pytest.mark.slow
async def test_a_coordinator_and_the_servers_model_are_shown(browser: str) -> None:
    peer = learned(4, served=True)
    async with shown(peer, browser) as (page, _):
        tiles = await page.value("document.querySelector('#tiles').innerText.replaceAll(/\\s+/g, ' ')")
        score = peer.status.as_json()["server_scores"][-1][1]
        for words in (f"{score:.1%}".replace("%", " %"), "Coordinator peer3 term 3", "Voters 4 of 4 3 are a majority"):
            assert words in tiles
        lines = "document.querySelectorAll('#graph line').length"
        assert await page.value(lines) == 3, "from the coordinator to each other peer"
        assert await page.value("document.querySelector('#h-graph').textContent") == "Who coordinates whom"
        assert "peer4" in await page.value("document.querySelector('#groups tbody').textContent"), "waited for"
        assert await page.value("document.querySelector('#h-groups').textContent") == "Coordinated rounds"
        for _ in range(20):
            peer.round()
        await page.until("document.querySelector('#tiles').innerText.includes('rounds pause')")
        assert await page.value(lines) == 0
        assert "2 of 4" in await page.value("document.querySelector('#groups tbody').textContent")


@pytest.mark.slow
async def test_a_slice_with_a_coordinator_stands_beside_the_others(browser: str) -> None:
    peer = FakePeer(4, led=True)
    for _ in range(20):
        peer.round()
    async with shown(peer, browser) as (page, _):
        tiles = await page.value("document.querySelector('#tiles').innerText.replaceAll(/\\s+/g, ' ')")
        for words in ("Coordinator peer3 term 2", "Voters 2 of 2", "Push-sum weight", "Disagreement"):
            assert words in tiles
        rows = "[...document.querySelectorAll('#groups tbody th')].map((each) => each.textContent)"
        assert await page.value(rows) == ["everyone", "ward-a"]
        heading = "document.querySelector('#h-graph').textContent"
        assert await page.value(heading) == "Who averages with whom"
        await page.value("[...document.querySelectorAll('#choose button')].at(-1).click()")
        assert await page.value(heading) == "Who coordinates whom"


@pytest.mark.slow
async def test_being_alone_stalled_rounds_and_gathered_weight_stand_above_everything(browser: str) -> None:
    peer = learned(4)
    text, hidden = "document.querySelector('#alarm').textContent", "document.querySelector('#alarm').hidden"
    async with shown(peer, browser) as (page, _):
        assert await page.value(hidden) is True
        view = peer.status.view
        gone = tuple(replace(each, state="dead") if each.state != "me" else each for each in view.peers)
        lonely = tuple(replace(group, disagreement=None, weight=3.7) for group in view.groups)
        peer.status.look(replace(view, alone_s=40.0, stalled_s=90.0, peers=gone, groups=lonely))
        await page.until(f"!{hidden}")
        said = await page.value(text)
        assert "Training alone for 40 s: no other peer answers." in said
        assert "averaging for 1 min 30 s" in said
        assert "3.7 times the usual push-sum weight" in said
        tiles = await page.value("document.querySelector('#tiles').textContent")
        assert "Mean of 1 of 4 peers" in tiles
        assert "no peer to compare with" in tiles
        peer.status.look(view)
        await page.until(hidden)


@pytest.mark.slow
async def test_values_are_read_out_by_pointer_and_by_keys(browser: str) -> None:
    peer = learned(4)
    points = peer.status.as_json()["scores"]["peer3"]
    async with shown(peer, browser) as (page, _):
        said = "document.querySelector('#readout').textContent"
        assert await page.value(f"{said}.startsWith('Round 40: ')")
        await page.value("document.querySelector('#curves svg').focus()")
        for key in ("ArrowLeft", "ArrowLeft", "ArrowLeft"):
            await page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        await page.until(f"{said}.startsWith('Round 38: ')")
        assert f"peer3 {points[37][1]:.1%}".replace("%", "\u00a0%") in await page.value(said)
        box = await page.value(
            "JSON.parse(JSON.stringify(document.querySelector('#curves svg').getBoundingClientRect()))"
        )
        await page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box["x"] + 47, y=box["y"] + 50)
        await page.until(f"{said}.startsWith('Round 1: ')")


async def test_words_from_peers_are_text(browser: str) -> None:
    peer = learned(4, rounds=2)
    view = peer.status.view
    one = replace(view.peers[0], id=EVIL, address=EVIL)
    group = replace(
        view.groups[0], id=EVIL, models=(EVIL,), members=(EVIL, "peer3"), edges=((EVIL, "peer3"),), waiting_for=(EVIL,)
    )
    peer.status.look(replace(view, peers=(one, *view.peers[1:]), groups=(group,)))
    peer.log_effect(Note("warning", "late", EVIL))
    peer.log_effect(RejectEffect(Rejection("not_fedpeer", EVIL, EVIL)))
    async with shown(peer, browser) as (page, _):
        for part in ("graph", "groups", "peers", "refusals", "log", "choose"):
            assert "onerror" in await page.value(f"document.querySelector('#{part}').textContent"), part
        assert await page.value("document.querySelectorAll('img, body script, iframe').length") == 0
        assert await page.value("document.title") == "peer3 · averaging · wards"


@pytest.mark.slow
async def test_nothing_is_wider_than_a_phone(browser: str) -> None:
    for peers in (1, 4, 64):
        async with shown(learned(peers), browser, width=400) as (page, _):
            assert await page.value("document.documentElement.scrollWidth") <= 400
            boxes = "[...document.querySelectorAll('#graph text')].map((text) => text.getBoundingClientRect())"
            edges = await page.value(f"{boxes}.map((box) => [box.left, box.right])")
            assert len(edges) == peers
            assert min(left for left, _ in edges) >= 0
            assert max(right for _, right in edges) <= 400


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1400])
async def test_a_few_peers_have_a_color_each_that_the_keys_name(browser: str, width: int) -> None:
    """Each curve has its key's color; with more peers than colors, all curves but this peer's are grey."""
    keys = (
        "[...document.querySelectorAll('#curve-keys li')].map((key) => [key.textContent,"
        " getComputedStyle(key, '::before').borderTopColor, key.getBoundingClientRect().right])"
    )
    strokes = (
        "Object.fromEntries([...document.querySelectorAll('#curves .curve')]"
        ".map((curve) => [curve.dataset.peer, getComputedStyle(curve).stroke]))"
    )
    async with shown(learned(7), browser, width) as (page, _):
        named, stroke_of = await page.value(keys), await page.value(strokes)
        assert [name for name, *_ in named] == ["this peer", "peer1", "peer2", "peer4", "peer5", "peer6", "peer7"]
        assert {"peer3" if name == "this peer" else name: color for name, color, _ in named} == stroke_of
        assert len(set(stroke_of.values())) == 7
        assert max(right for *_, right in named) <= width
    async with shown(learned(8), browser, width) as (page, _):
        named, stroke_of = await page.value(keys), await page.value(strokes)
        assert [name for name, *_ in named] == ["this peer", "other peers"]
        assert set(stroke_of.values()) == {color for _, color, _ in named}
        assert len(stroke_of) == 8


@pytest.mark.slow
async def test_before_the_first_round_the_page_says_what_is_missing(browser: str) -> None:
    async with shown(FakePeer(), browser) as (page, _):
        text = await page.value("document.querySelector('main').innerText")
        for words in ("No peer has been measured yet", "No averaging group yet", "Nothing was rejected", "Nothing yet"):
            assert words in text


@pytest.mark.slow
async def test_the_page_that_asks_for_the_token_leads_in(browser: str) -> None:
    board = Dashboard(DashboardListener("127.0.0.1", 0, TOKEN), learned(4).status.as_json, None)
    await board.start()
    try:
        async with tab_of(browser) as page:
            await page.open(board.listener.door.url)
            await page.until("document.querySelector('#token') !== null")
            await page.value(f"document.querySelector('#token').value = '{TOKEN}'")
            await page.value("document.querySelector('form').requestSubmit()")
            async with asyncio.timeout(20):
                while await page.value("document.querySelector('#connection')?.textContent") != "live":
                    pass
    finally:
        await board.stop()
