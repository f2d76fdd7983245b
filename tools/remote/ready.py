"""Waits for the moment at which a job is ready to be used, and writes it down as `ready`.

One of three signs: a line of its log that matches a regular expression, a URL that answers with 2xx, a file that
exists. Runs in a process of its own, so that a slow answer or expression delays no timeout; the supervisor ends it.
"""

from __future__ import annotations

import os
import platform
import re
import time
from typing import Callable
from urllib.parse import urlsplit

from . import store

_PAUSE_S = 0.5
_HTTP_LIMIT_S = 2.0
_READ = 1 << 20
_LONGEST_LINE = 8192
_URL = re.compile(r"(?i:https?)://[!-~]+")  # printable ASCII: what a request line may hold


def look_for(folder: str, sign: dict[str, str]) -> Callable[[], bool]:
    """What looks once for the sign of the job in `folder`. Raises ValueError, with why, when no look could ever see it.

    The host decides: its Python may be older than the driver's and read other expressions.
    """
    ((kind, value),) = sign.items()
    if not isinstance(value, str):
        raise ValueError(f"the readiness check `{kind}` is `{value}`, which is no text")
    if kind == "log":
        return LogSearch(os.path.join(folder, "log"), value).found
    if kind == "http":
        return _Url(value).answers
    return lambda: os.path.exists(store.expand(value))


def await_ready(folder: str, seen: Callable[[], bool]) -> None:
    """Return once the sign was seen and recorded; never if it never comes. A full disk or a lost file only delays."""
    while not _done(seen):
        time.sleep(_PAUSE_S)
    while not _done(lambda: _record(folder)):
        time.sleep(_PAUSE_S)


def _record(folder: str) -> bool:
    store.write_json(os.path.join(folder, "ready"), {"at": time.time()})
    return True


def _done(step: Callable[[], bool]) -> bool:
    try:
        return step()
    except OSError:
        return False


class LogSearch:
    """Looks for an expression in a growing file, each line once; lines longer than 8,192 bytes are cut."""

    def __init__(self, path: str, expression: str) -> None:
        self._path = path
        try:
            self._expression = re.compile(expression.encode("utf-8"))
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            who = f"Python {platform.python_version()} of this host"
            raise ValueError(f"{who} cannot read the readiness expression `{expression[:200]}`: {error}") from error
        self._offset = 0
        self._rest = b""

    def found(self) -> bool:
        """Whether a line that was not looked at before matches; the unfinished last line is looked at again."""
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            while True:
                data = file.read(_READ)
                if not data:
                    return False
                self._offset += len(data)
                lines = (self._rest + data).split(b"\n")
                self._rest = lines[-1][-_LONGEST_LINE:]
                if any(self._expression.search(line[:_LONGEST_LINE]) for line in lines):
                    return True


class _Url:
    """A URL that is asked with GET. Proxies of the environment are not."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
            host.encode("idna")
        except ValueError as error:
            raise ValueError(f"the readiness URL `{url[:200]}` cannot be asked: {error}") from error
        if not _URL.fullmatch(url) or not host:
            raise ValueError(f"the readiness URL `{url[:200]}` cannot be asked: it is no `http://HOST[:PORT]/PATH`")
        self._secure = parts.scheme == "https"
        self._host, self._port = host, port or (443 if self._secure else 80)
        self._path = (parts.path or "/") + ("?" + parts.query if parts.query else "")

    def answers(self) -> bool:
        """Whether it gives 2xx within two seconds."""
        import http.client  # here, since it drags in TLS and mail: every supervisor would pay for it, few jobs need it

        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_HTTP_LIMIT_S)
        try:
            connection.request("GET", self._path)
            return 200 <= connection.getresponse().status < 300
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
