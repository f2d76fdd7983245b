"""What the steps share: results, files written whole, HTTP on the loopback."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

# A proxy that the environment names is not on the way to this machine's own servers.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class StepError(Exception):
    """The step cannot go on; the text says what was seen and what to do."""


def home(port: int) -> Path:
    """The folder that keeps what is known of the server on a port, for this user alone."""
    base = os.environ.get("TURNOUT_ROOT") or os.path.expanduser("~/.turnout")
    folder = Path(base) / "migrations" / str(port)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file so that a reader sees the old or the whole new one, and a crash leaves no half of it."""
    handle, partial = tempfile.mkstemp(dir=str(path.parent), prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(partial, mode)
    os.replace(partial, path)


def read(path: Path) -> Any:
    """The JSON in a file. Raises StepError when there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StepError(f"cannot read `{path}`: {error}") from error


def result(value: dict[str, Any]) -> None:
    """The step's result for later steps, and for a person who reads the log."""
    output = os.environ.get("TURNOUT_OUTPUT")
    if output:
        write(Path(output), json.dumps(value))
    print(json.dumps(value, indent=1), flush=True)


def progress(done: float, total: float, unit: str) -> None:
    """Tell how far the step is."""
    print(f"::progress {done:g}/{total:g} {unit}", flush=True)


def fetch(url: str, body: dict[str, Any] | None = None, limit_s: float = 60.0) -> Any:
    """The JSON reply to a GET, or to a POST of JSON. Raises OSError (HTTP errors among them) and ValueError."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    key = server_key()
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    with _OPENER.open(request, timeout=limit_s) as reply:
        return json.loads(reply.read())


def server_key() -> str:
    """The key that the servers want, from the file that TURNOUT_KEY_FILE names; empty when they want none."""
    path = os.environ.get("TURNOUT_KEY_FILE")
    return Path(path).read_text(encoding="utf-8").strip() if path else ""


def said(error: Exception) -> str:
    """An error in one line, with what the server wrote."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}: {error.read()[:300].decode('utf-8', 'replace')}"
    return f"{type(error).__name__}: {error}"


def main(step: Any) -> None:
    """Run a step; a StepError ends it with exit code 1 and its text."""
    try:
        code = step()
    except StepError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        code = 1
    sys.exit(code)
