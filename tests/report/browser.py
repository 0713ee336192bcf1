"""A headless Chromium, spoken to over its debugging pipe: what a page shows, asks for and complains about."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BINARIES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-default-apps", "--disable-extensions", "--disable-sync", "--hide-scrollbars", "--mute-audio",
    "--disable-dev-shm-usage", "--no-zygote",
)  # fmt: skip

PATIENCE = 60  # seconds


def binary() -> str | None:
    return next((path for name in BINARIES if (path := shutil.which(name))), None)


class Browser:
    """One tab, and everything that it reported."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, os.fdopen(answers, "rb", buffering=0)
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime", "Security"):
            self.call(f"{domain}.enable")

    def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page and wait until it has."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not self.heard("Page.loadEventFired"):
            self._receive()
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def evaluate(self, script: str) -> Any:
        """A value of the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> Path:
        """The page from top to bottom."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=self._whole())
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def heard(self, method: str) -> list[dict[str, Any]]:
        """The events of one kind since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def requests(self) -> list[str]:
        """What was asked for."""
        return [event["request"]["url"] for event in self.heard("Network.requestWillBeSent")]

    def complaints(self) -> list[str]:
        """Errors, warnings and refusals that a developer would see in the console."""
        logged = [event["entry"]["text"] for event in self.heard("Log.entryAdded")]
        printed = [str(event["args"]) for event in self.heard("Runtime.consoleAPICalled")]
        return logged + printed + [event["exceptionDetails"]["text"] for event in self.heard("Runtime.exceptionThrown")]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command, and its answer."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        os.write(self._commands, json.dumps({"id": self._number, "method": method, "params": params} | session).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    def close(self) -> None:
        self._answers.close()

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], PATIENCE)
            assert ready, f"the browser has said nothing for {PATIENCE} seconds"
            read = self._answers.read(1 << 16)
            assert read, "the browser has gone"
            self._buffer += read
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def _whole(self) -> dict[str, float]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}


@contextmanager
def browser() -> Iterator[Browser]:
    """Start it, and end every process of it."""
    (commands_out, commands_in), (answers_out, answers_in) = os.pipe(), os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (commands_out, answers_in)]  # clear of 3 and 4, which Chromium reads and writes
    for end in (commands_out, answers_in):
        os.close(end)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        script = f'exec "$@" 3<&{high[0]} 4>&{high[1]}'
        command = ["bash", "-c", script, "bash", binary() or "", *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, pass_fds=high, start_new_session=True, **quiet)
        for end in high:
            os.close(end)
        tab = None
        try:
            tab = Browser(commands_in, answers_out)
            yield tab
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(commands_in)
            if tab is None:
                os.close(answers_out)
            else:
                tab.close()
