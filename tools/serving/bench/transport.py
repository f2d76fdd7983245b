"""HTTP for the bench: JSON in, JSON or a stream of events out, one connection a request, no proxies.

A connection of its own costs a tenth of a millisecond on the loopback and cannot be one that the server has already
closed. Errors say which request was answered how.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from .errors import BenchError

_SHOWN = 300


class NoAnswer(BenchError):
    """Nobody answered: no connection, or one that broke."""


class Refused(BenchError):
    """The server answered with an HTTP error. `status` is its code."""

    def __init__(self, message: str, hint: str, status: int) -> None:
        super().__init__(message, hint)
        self.status = status


class Server:
    """A server at `url`; `timeout_s` is how long one answer may stay silent."""

    def __init__(self, url: str, *, timeout_s: float = 600.0, key: str | None = None) -> None:
        parts = urlsplit(url if "://" in url else "http://" + url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BenchError(f"`{url}` is no address of a server", "write it like `http://127.0.0.1:30000`")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._prefix = parts.path.rstrip("/")
        self._secure = parts.scheme == "https"
        self._netloc = parts.netloc
        self._timeout = timeout_s
        self._headers = {"Authorization": "Bearer " + key} if key else {}

    def get(self, path: str, *, timeout_s: float | None = None) -> Any:
        """The JSON (or, where it is none, the text) at `path`."""
        return _read(*self._ask("GET", path, None, timeout_s))

    def post(self, path: str, body: Any = None, *, timeout_s: float | None = None) -> Any:
        """What a POST of JSON gives, as `get` does."""
        return _read(*self._ask("POST", path, body, timeout_s))

    def events(self, path: str, body: Any) -> Iterator[bytes]:
        """The data of each server-sent event, until `[DONE]` or the end."""
        connection, response, what = self._ask("POST", path, body, None)
        try:
            while True:
                line = response.readline()
                if not line:
                    return
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    yield data
        except (OSError, http.client.HTTPException) as error:
            raise _broken(what, error) from error
        finally:
            connection.close()

    def _ask(
        self, method: str, path: str, body: Any, timeout_s: float | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse, str]:
        what = f"{method} {self.url}{self._prefix}{path}"
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._netloc, timeout=timeout_s or self._timeout)
        headers: dict[str, str] = dict(self._headers)
        payload = None
        if body is not None:
            payload = json.dumps(body).encode("utf-8")
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, self._prefix + path, payload, headers)
            response = connection.getresponse()
            if response.status >= 300:
                seen = response.read(_SHOWN).decode("utf-8", "replace")
                raise Refused(
                    f"`{what}` was answered {response.status}: `{' '.join(seen.split())}`",
                    "look at the server's log",
                    response.status,
                )
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _broken(what, error) from error
        except Refused:
            connection.close()
            raise
        return connection, response, what


def _read(connection: http.client.HTTPConnection, response: http.client.HTTPResponse, what: str) -> Any:
    try:
        text = response.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise _broken(what, error) from error
    finally:
        connection.close()
    try:
        return json.loads(text) if text.strip() else None
    except ValueError:
        return text


def _broken(what: str, error: Exception) -> NoAnswer:
    seen = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return NoAnswer(f"`{what}` got no answer: {seen}", "is the server running, and listening at that address?")
