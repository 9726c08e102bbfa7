"""One headless Chromium for many tests, driven over its debugging port."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
from tests.harness.waiting import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_TIMEOUT_SECONDS = 60.0


class Browser:
    """One tab."""

    def __init__(self, runner: asyncio.Runner, tab: aiohttp.ClientWebSocketResponse) -> None:
        self._runner = runner
        self._tab = tab
        self._numbers = itertools.count(1)

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._runner.run(self._command(method, parameters))

    async def _command(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await self._tab.send_json({"id": number, "method": method, "params": parameters})
            while True:
                answer = json.loads((await self._tab.receive()).data)
                if answer.get("id") == number:
                    assert "error" not in answer, answer
                    result: dict[str, Any] = answer["result"]
                    return result

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait for an expression to become true."""
        wait_until(lambda: self.evaluate(expression), details=lambda: (expression, self.text()))

    def visit(self, address: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """A page afresh, in a window of this size."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.command("Page.navigate", url="about:blank")
        self.command("Page.navigate", url=address)

    def text(self) -> str:
        """What a reader sees."""
        return str(self.evaluate("document.body.innerText"))

    def markup(self) -> str:
        return str(self.evaluate("document.documentElement.outerHTML"))

    def too_wide(self) -> list[str]:
        """Elements that stick out of the window to the right, and so force a reader to scroll sideways."""
        found: list[str] = self.evaluate(
            """[...document.querySelectorAll("body *")]
            .filter((one) => one.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
            .map((one) => one.tagName + "." + one.className + " " + one.textContent.slice(0, 60))"""
        )
        scrolls = self.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        return [*found, *(["the page scrolls sideways"] if scrolls else [])]

    def screenshot(self, to: Path, *, whole: bool = True) -> bytes:
        """The whole page, or the part in the window, as a PNG."""
        shot = self.command("Page.captureScreenshot", captureBeyondViewport=whole)
        to.write_bytes(base64.b64decode(shot["data"]))
        return to.read_bytes()


@contextlib.contextmanager
def running_chromium(directory: Path) -> Iterator[Browser]:
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *(
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
        ),
        *(f"--user-data-dir={directory}", "--remote-debugging-port=0", "about:blank"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with asyncio.Runner() as runner:
            session, tab = runner.run(_connected(_debugging_port(directory / "DevToolsActivePort")))
            try:
                yield Browser(runner, tab)
            finally:
                runner.run(session.close())
    finally:
        process.terminate()
        process.wait(20)


def _debugging_port(port_file: Path) -> str:
    fields = wait_until(
        lambda: port_file.read_text().split() if port_file.exists() else [], seconds=_TIMEOUT_SECONDS
    )
    return fields[0]


async def _connected(port: str) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
    session = aiohttp.ClientSession()
    async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
        (tab,) = [one for one in await answer.json() if one["type"] == "page"]
    return session, await session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=64 << 20)
