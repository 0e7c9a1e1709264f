"""A real headless Chromium, driven by its own protocol over one WebSocket; nothing but aiohttp is needed."""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
INSTALL = "apt-get install --no-install-recommends chromium-headless-shell"
# Generous: a shared machine may need long to start a browser. Nothing is decided by it but that a page never came.
PATIENCE_SECONDS = 60.0
KEYS = {
    "Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r"), "Escape": ("Escape", 27, ""), "Space": (" ", 32, " "),
    "ArrowRight": ("ArrowRight", 39, ""), "ArrowLeft": ("ArrowLeft", 37, ""), "ArrowDown": ("ArrowDown", 40, ""),
}  # fmt: skip


def program() -> str:
    """The browser's path; the test is skipped where there is none."""
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no Chromium on this machine: {INSTALL}")
    return found


class Page:
    """One page: evaluate, type, look."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser = browser
        self._session = session
        self.requests: list[str] = []
        self.troubles: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol to this page."""
        return await self._browser.call(method, self._session, **parameters)

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression gives; promises are waited for."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Waits until an expression gives something true, and returns it."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not (found := await self.value(expression)):  # noqa: ASYNC110 - a page has no event for it
                    await asyncio.sleep(0.05)
        except TimeoutError:
            body = await self.value("document.body.innerText.slice(0, 1500)")
            raise AssertionError(f"never true: {expression}\n{self.troubles}\n{body}") from None
        return found

    async def press(self, key: str) -> None:
        """One key of `KEYS`, down and up."""
        name, code, text = KEYS[key]
        common = {"key": name, "code": "Space" if key == "Space" else name, "windowsVirtualKeyCode": code}
        await self.call(
            "Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common
        )
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def type(self, text: str) -> None:
        """Text into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def size(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """The window, and which theme the system prefers."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call(
            "Emulation.setEmulatedMedia",
            features=[scheme, {"name": "prefers-reduced-motion", "value": "reduce"}],
        )

    async def shoot(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the page as PNG."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))  # noqa: ASYNC240 - nothing else waits


class Browser:
    """The process and its WebSocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}

    async def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """A command; its answer."""
        self._number += 1
        number = self._number
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json({**message, "sessionId": session} if session else message)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await answer

    async def listen(self) -> None:
        """Answers to who asked; what pages report to the page."""
        async for message in self._socket:
            read = json.loads(message.data)
            if "id" in read:
                waiting = self._answers.pop(read["id"])
                if not waiting.done():
                    if "error" in read:
                        waiting.set_exception(AssertionError(str(read["error"])))
                    else:
                        waiting.set_result(read["result"])
                continue
            page, given = self._pages.get(read.get("sessionId", "")), read.get("params", {})
            if page is None:
                continue
            match read["method"]:
                case "Network.requestWillBeSent":
                    page.requests.append(given["request"]["url"])
                case "Runtime.exceptionThrown":
                    page.troubles.append(str(given["exceptionDetails"])[:2000])
                case "Log.entryAdded" if given["entry"]["level"] == "error":
                    page.troubles.append(f"{given['entry']['source']}: {given['entry']['text']}")

    async def page(self, url: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> Page:
        """A page in a profile of its own, so that no cookie is shared."""
        context = (await self.call("Target.createBrowserContext", disposeOnDetach=True))["browserContextId"]
        target = (await self.call("Target.createTarget", url="about:blank", browserContextId=context))[
            "targetId"
        ]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            await page.call(f"{domain}.enable")
        await page.size(width, height, dark=dark)
        await page.call("Page.navigate", url=url)
        return page


@contextlib.contextmanager
def run_browser(directory: Path) -> Iterator[str]:
    """Starts the browser with a fresh profile, gives the address of its WebSocket, and ends it."""
    path = program()
    with (directory / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            [path, "--headless=new" if path.endswith("chromium") else "--headless", "--remote-debugging-port=0",
             "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--hide-scrollbars", *(["--no-sandbox"] if os.geteuid() == 0 else []),
             f"--user-data-dir={directory / 'profile'}", "about:blank"],
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        port_file = directory / "profile" / "DevToolsActivePort"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not port_file.exists() or port_file.read_text().count("\n") < 1:
            said = (directory / "browser.log").read_text(errors="replace")[-2000:]
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        port, way = port_file.read_text().split("\n")[:2]
        yield f"ws://127.0.0.1:{port}{way}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a session of its own: its renderers end with it
        process.wait()


@contextlib.asynccontextmanager
async def connect(address: str) -> AsyncIterator[Browser]:
    """Speaks to a running browser."""
    async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=64 << 20) as socket:
        browser = Browser(socket)
        listening = asyncio.create_task(browser.listen())
        try:
            yield browser
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
