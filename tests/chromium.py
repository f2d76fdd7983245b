"""A headless Chromium, driven over its DevTools pipe: for the tests of the page and for benchmarks/page.py.

    with Chromium(folder) as browser:
        browser.open("file:///...", width=390, height=844, dark=True)
        browser.evaluate("document.title")

Debian's `chromium` is enough; no driver, no library. `find()` says whether there is one. The browser gets a profile of
its own below `folder` and no network but the loopback.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0
_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --no-first-run --disable-sync"
    " --disable-background-networking --disable-component-update --disable-default-apps --disable-extensions"
    " --force-color-profile=srgb --remote-debugging-pipe"
)


def find() -> str | None:
    """The path of a Chromium, or `None` where there is none."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


class Chromium:
    """One browser with one page."""

    def __init__(self, folder: Path) -> None:
        path = find()
        assert path is not None, "there is no chromium: `apt-get install chromium`"
        their_in, our_out = os.pipe()
        our_in, their_out = os.pipe()
        command = f'exec "{path}" {_FLAGS} --user-data-dir="{folder}" 3<&{their_in} 4>&{their_out}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", command], pass_fds=(their_in, their_out), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(their_in)
        os.close(their_out)
        self._out, self._in = our_out, our_in
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer. Events that come meanwhile are in `events`."""
        self._number += 1
        told: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if hasattr(self, "_session"):
            told["sessionId"] = self._session
        os.write(self._out, json.dumps(told).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "chromium does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "chromium ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def open(self, url: str, *, width: int = 1400, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Go there and wait until the page says that it is drawn (or that it could not be)."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", media=media, features=scheme)
        self.events.clear()
        self.send("Page.navigate", url=url)
        self.wait("document.documentElement.dataset.ready || document.documentElement.dataset.failed")

    def wait(self, condition: str) -> Any:
        """Wait, in the page, until an expression is true; its value."""
        look = f"const look = () => {{ const v = ({condition}); if (v) done(v); else setTimeout(look, 5); }}; look();"
        probe = f"new Promise((done) => {{ {look} }})"
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            told = self.send("Runtime.evaluate", expression=probe, awaitPromise=True, returnByValue=True)
            if "exceptionDetails" not in told:  # the page was left while it looked
                return told["result"].get("value")
        raise AssertionError(f"`{condition}` never became true")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; what it throws is raised."""
        told = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def key(self, key: str, code: str = "", modifiers: int = 0) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, modifiers=modifiers, **text)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A screenshot as PNG, of the window or of the whole page."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))

    def print(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])

    def errors(self) -> list[str]:
        """What the console and uncaught exceptions said since the page was opened."""
        told = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                told.append(str(event["params"]["exceptionDetails"].get("exception", {}).get("description")))
            elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                told.append(str(event["params"]["entry"]["text"]))
        return told

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
