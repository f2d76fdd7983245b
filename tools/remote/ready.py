"""Waits for the moment at which a job is ready to be used, and writes it down as `ready`.

One of three signs: a line of its log that matches a regular expression, a URL that answers with 2xx, a file that
exists. Runs in a process of its own, so that a slow answer or expression delays no timeout; the supervisor ends it.
"""

from __future__ import annotations

import os
import re
import time
from urllib.parse import urlsplit

from . import store

_PAUSE_S = 0.5
_HTTP_LIMIT_S = 2.0
_READ = 1 << 20
_LONGEST_LINE = 8192


def await_ready(folder: str, sign: dict[str, str]) -> None:
    """Return once the sign was seen and recorded; for ever if it never comes."""
    ((kind, value),) = sign.items()
    if kind == "log":
        search = LogSearch(os.path.join(folder, "log"), value)
        seen = search.found
    elif kind == "http":
        seen = lambda: answers(value)  # noqa: E731  three signs, one loop
    else:
        seen = lambda: os.path.exists(store.expand(value))  # noqa: E731
    while True:
        if seen():
            try:
                store.write_json(os.path.join(folder, "ready"), {"at": time.time()})
            except OSError:
                pass  # disk full: it is looked at again until it can be told
            else:
                return
        time.sleep(_PAUSE_S)


class LogSearch:
    """Looks for an expression in a growing file, each line once; lines longer than 8,192 bytes are cut."""

    def __init__(self, path: str, expression: str) -> None:
        self._path = path
        self._expression = re.compile(expression.encode("utf-8"))
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


def answers(url: str) -> bool:
    """Whether a GET of `url` gives 2xx within two seconds. Proxies of the environment are not asked."""
    import http.client  # here, since it drags in TLS and mail: every supervisor would pay for it, few jobs need it

    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=_HTTP_LIMIT_S)
    try:
        connection.request("GET", (parts.path or "/") + ("?" + parts.query if parts.query else ""))
        return 200 <= connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
