"""A real browser, driven over its own protocol (Chrome DevTools) with no more than a WebSocket."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import websocket

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
]
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """The browser on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Gives a folder's files."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def served(folder: Path, handler: type[Quiet] = Quiet) -> Iterator[str]:
    """The address of a folder, while it is served."""
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(folder))
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class Tab:
    """One page. Everything that it asks for and everything that it complains about is kept."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=120)
        self._number = 0
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events that come meanwhile are kept. `session` is that of a
        worker which the page has started.
        """
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        self._socket.send(json.dumps(command))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def open(self, url: str, width: int, scheme: str, rest_ms: int = 500) -> None:
        """Load a page at this width in this colour scheme, and wait until it is at rest."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + 60
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            assert time.monotonic() < deadline, f"{url} did not load"
            self.events.append(json.loads(self._socket.recv()))
        time.sleep(rest_ms / 1000)  # here, not in the page, which may go on to another one
        self.evaluate("0")  # takes in the events that came meanwhile

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors in the console, exceptions, and requests that failed."""
        found = []
        for event in self.events:
            given = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    found.append(json.dumps(given["exceptionDetails"])[:300])
                case "Runtime.consoleAPICalled" if given["type"] == "error":
                    found.append(json.dumps(given["args"])[:300])
                case "Log.entryAdded" if given["entry"]["level"] == "error":
                    found.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
        return found

    def asked_for(self) -> list[str]:
        """The address of every request."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """A browser with a fresh profile in `folder`, and its one tab."""
    program = find()
    assert program, f"none of {', '.join(NAMES)} is installed; on Debian: apt-get install chromium"
    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        tab = Tab(_address(process, folder / "DevToolsActivePort"))
        try:
            yield tab
        finally:
            tab.close()
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], port_file: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the browser ended at once"
        with contextlib.suppress(OSError, ValueError, IndexError):
            port = int(port_file.read_text("utf-8").splitlines()[0])
            with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5) as answer:
                return next(
                    tab["webSocketDebuggerUrl"]
                    for tab in json.load(answer)
                    if tab["type"] == "page"
                )
        time.sleep(0.1)
    raise AssertionError("the browser did not come up")
