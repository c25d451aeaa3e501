"""A headless Chromium for tests, driven over its DevTools socket: open a page, wait for its content, capture it."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: Seconds allowed for a start on a busy machine, and for any expected content of a page.
START_S, PATIENCE_S = 60.0, 30.0
#: The picture of a whole page is a few thousand pixels high and needs more than a message's default 4 MiB.
MESSAGE_BYTES_MAX = 64 * 1024 * 1024

_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars",
    "--remote-debugging-port=0",
)  # fmt: skip


class Page:
    """One browser tab, or the browser itself, at the other end of a DevTools socket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command of the DevTools protocol and return its result; drop the events in between."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            answer: dict[str, Any] = await self._socket.receive_json()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    async def value(self, script: str) -> Any:
        """Return the value of a JavaScript expression; wait for it if it is a promise."""
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until the condition holds; the page itself checks it every few milliseconds."""
        script = (
            f"new Promise((done) => {{ const look = () => ({condition}) ? done() : setTimeout(look, 10); look(); }})"
        )
        async with asyncio.timeout(PATIENCE_S):
            await self.value(script)

    async def open(self, url: str) -> None:
        """Go to an address and wait until the new document is loaded."""
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def look(self, width: int, dark: bool = False, height: int = 900) -> None:
        """Set the window's size in pixels and the preferred colour scheme."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=scheme)
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def picture(self, file: Path) -> None:
        """Save the whole page as a PNG."""
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser_at(folder: Path) -> Iterator[str]:
    """Run a browser, which writes its files into `folder`; yield the address of its DevTools socket."""
    assert CHROMIUM is not None
    process = subprocess.Popen(
        [CHROMIUM, *_OPTIONS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    patience = threading.Timer(START_S, os.killpg, (process.pid, signal.SIGKILL))
    reader = threading.Thread(target=process.stderr.read)  # so that the browser never waits for one
    patience.start()
    with process:
        try:
            said = (line.split()[-1] for line in process.stderr if line.startswith("DevTools listening on "))
            address = next(said, "")
            patience.cancel()
            assert address, "the browser ended, or did not start in time"
            reader.start()
            yield address
        finally:
            patience.cancel()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the browser's own process group, which includes its helpers
            if reader.ident:
                reader.join()


@asynccontextmanager
async def tab_of(browser: str) -> AsyncIterator[Page]:
    """Open an empty tab that shares no cookie and no cache with any other of the browser at this address."""
    async with aiohttp.ClientSession() as session, session.ws_connect(browser) as socket:
        whole = Page(socket)
        context = (await whole.call("Target.createBrowserContext"))["browserContextId"]
        tab = await whole.call("Target.createTarget", url="about:blank", browserContextId=context)
        address = f"{browser.split('/devtools/')[0]}/devtools/page/{tab['targetId']}"
        async with session.ws_connect(address, max_msg_size=MESSAGE_BYTES_MAX) as of_tab:
            page = Page(of_tab)
            await page.call("Page.bringToFront")
            yield page
        await whole.call("Target.disposeBrowserContext", browserContextId=context)


@asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Page]:
    """Start a separate browser with one empty tab; it writes its files into `folder`."""
    with browser_at(folder) as browser:
        async with tab_of(browser) as page:
            yield page
