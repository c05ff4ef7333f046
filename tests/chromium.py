"""A headless Chromium for tests: DevTools' JSON messages over a pair of pipes."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .waiting import HANG, until

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")


class Page:
    """A tab; `complaints` are the console errors and uncaught exceptions it had."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._rest = b""
        self._last = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def look(self, width: int, scheme: str) -> None:
        """Show pages this wide, to a reader who prefers a light or a dark scheme."""
        mobile = width < 600
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, path: Path) -> None:
        """Open a file and wait until its last chart stands."""
        self._call("Page.navigate", url=path.resolve().as_uri())

        def is_ready() -> bool:
            ready: bool = self.value("document.body?.dataset.ready ?? ''") == "yes"
            assert ready or not self.complaints, self.complaints
            return ready

        until(is_ready)

    def value(self, expression: str) -> Any:
        """Return what a JavaScript expression is worth; a promise is waited for."""
        done = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """Write a PNG of the page, or of its first `height` pixels."""
        width = self.value("innerWidth")
        tall = height or self.value("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": width, "height": tall, "scale": 1}
        shot = self._call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            self._note(answer)
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        name = event.get("method")
        if name == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str(params["args"]))
        elif name == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(str(params["entry"]))
        elif name == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:", "about:")):
                self.complaints.append(f"asked for {url}")

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._reader, 1 << 16)
            assert part, "Chromium is gone"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """Start Chromium and yield a tab; the test is skipped where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium on PATH")
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    words = [
        *(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--no-first-run", f"--user-data-dir={profile}", "--remote-debugging-pipe"),
    ]
    # Chromium reads orders from descriptor 3 and answers on descriptor 4.
    high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, from_write)]

    def ends() -> None:
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    process = subprocess.Popen(
        words,
        preexec_fn=ends,
        pass_fds=(3, 4),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in high:
        os.close(end)
    os.close(to_read)
    os.close(from_write)
    try:
        yield Page(from_read, to_write)
    finally:
        os.close(to_write)
        os.close(from_read)
        process.terminate()
        process.wait(HANG)
