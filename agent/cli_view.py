"""`turnout view`: the pages of all sessions, served to this machine's browser, moving while a session runs.

    http://127.0.0.1:PORT/?token=...        the list of sessions
    http://127.0.0.1:PORT/s/SESSION/        its page, with `model` (data) and `events` (a sign when there is more)

Only the loopback is listened on, and only who knows the token is answered: other users of the machine, and pages of
other origins in the same browser, are not (the token becomes a cookie that no script reads, and a request that names
another host is refused). It reads the database and changes nothing.
"""

from __future__ import annotations

import base64
import hmac
import html
import json
import secrets
import sys
import time
import webbrowser
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from agent import look
from agent.cli_frame import note, say
from agent.page.build import assemble, policy_of, squeeze
from agent.page.index import index
from agent.page.model import model
from agent.replay import Recording
from agent.replay_source import from_database, news
from agent.runner import ENDED
from state.db import Database
from state.errors import NotFound, TurnoutError, UsageError

POLL_S = 1.0
EVENTS_FOR_S = 600.0
"""A stream of events is ended after so long; the browser asks again by itself."""


def view(db: Database, wanted: str | None, *, port: int, browser: bool, json_: bool) -> int:
    """Serve until Ctrl-C. Raises `NotFound` for a session that is not there, `UsageError` for a port that is taken."""
    session = db.read(lambda conn: look.find_session(conn, wanted)) if wanted is not None else None
    token = secrets.token_urlsafe(24)
    try:
        server = serve(db, token, port)
    except OSError as error:
        hint = "leave `--port` out to get a free one"
        raise UsageError(f"port {port} of 127.0.0.1 cannot be had: {error.strerror}", hint=hint) from error
    path = f"s/{session}/" if session else ""
    url = f"http://127.0.0.1:{server.server_port}/{path}?token={token}"
    say(json.dumps({"url": url, "port": server.server_port}) if json_ else url)
    if not json_:
        note("serves this machine alone, until Ctrl-C")
    sys.stdout.flush()
    if browser:
        webbrowser.open(url)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        return 0
    finally:
        server.server_close()
    return 0


def serve(db: Database, token: str, port: int = 0) -> ThreadingHTTPServer:
    """The server, listening and not yet answering. Raises `OSError` when the port is taken."""
    handler = type("Handler", (_Handler,), {"db": db, "token": token})
    return _Server(("127.0.0.1", port), handler)


class _Server(ThreadingHTTPServer):
    """A thread for each request; one that is under way does not keep the process."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up between two requests is no error; the rest is told on stderr."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One request. What may be asked is in `do_GET`."""

    db: Database
    token: str
    protocol_version = "HTTP/1.1"
    server_version = "turnout"
    sys_version = ""

    def do_GET(self) -> None:
        try:
            self._get()
        except (BrokenPipeError, ConnectionResetError):  # the browser went away
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""

    def _get(self) -> None:
        asked = urlsplit(self.path)
        if not self._is_for_us():
            self._send(HTTPStatus.FORBIDDEN, "this address is not served under that name\n", "text/plain")
            return
        given = parse_qs(asked.query).get("token", [""])[0]
        if given:
            self._enter(given, asked.path)
            return
        if not hmac.compare_digest(self._cookie(), self.token):
            self._send(HTTPStatus.FORBIDDEN, "open the address that `turnout view` printed\n", "text/plain")
            return
        try:
            self._answer(asked.path, parse_qs(asked.query))
        except NotFound as error:
            self._send(HTTPStatus.NOT_FOUND, error.render() + "\n", "text/plain")
        except TurnoutError as error:
            self._send(HTTPStatus.BAD_REQUEST, error.render() + "\n", "text/plain")

    def _is_for_us(self) -> bool:
        """Whether the name in the request is the loopback's: another site's name may have been made to lead here."""
        name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        return name in ("127.0.0.1", "localhost")

    @property
    def _name(self) -> str:
        """The cookie's name: browsers do not keep the cookies of two ports apart."""
        return f"turnout-{self.connection.getsockname()[1]}"

    def _cookie(self) -> str:
        found = SimpleCookie(self.headers.get("Cookie", "")).get(self._name)
        return found.value if found is not None else ""

    def _enter(self, given: str, path: str) -> None:
        """The token of the address becomes a cookie, so that it stays in no history."""
        if not hmac.compare_digest(given, self.token):
            self._send(HTTPStatus.FORBIDDEN, "this token is of another `turnout view`\n", "text/plain")
            return
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", path)
        self.send_header("Set-Cookie", f"{self._name}={self.token}; HttpOnly; SameSite=Strict; Path=/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, path: str, query: Mapping[str, list[str]]) -> None:
        parts = path.strip("/").split("/")
        if parts == [""]:
            self._page(index(self.db.read(lambda conn: look.sessions(conn, everything=False, limit=200)), time.time()))
        elif parts[0] == "s" and len(parts) == 2:
            if not path.endswith("/"):
                raise NotFound(f"there is no `{path}`", hint=f"a session's page is `{path}/`")
            recording = from_database(self.db, parts[1])
            self._page(assemble(_model(recording), recording.title, live=True))
        elif parts[0] == "s" and parts[2:] == ["model"]:
            data = base64.b64encode(squeeze(_model(from_database(self.db, parts[1]))))
            self._send(HTTPStatus.OK, data.decode("ascii"), "text/plain")
        elif parts[0] == "s" and parts[2:] == ["events"]:
            self._events(from_database(self.db, parts[1]), known=query.get("rows", [""])[0])
        else:
            raise NotFound(f"there is no `{html.escape(path)}`", hint="`/` lists the sessions")

    def _page(self, text: str) -> None:
        self._send(HTTPStatus.OK, text, "text/html", {"Content-Security-Policy": policy_of("self")})

    def _send(self, status: HTTPStatus, text: str, sort: str, more: dict[str, str] | None = None) -> None:
        data = text.encode("utf-8")
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{sort}; charset=utf-8",
            "Content-Length": str(len(data)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            **(more or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _events(self, recording: Recording, *, known: str, sleep: Callable[[float], None] = time.sleep) -> None:
        """A line whenever the session has grown beyond the messages that the page has (`known`, their number).

        Read once a second, as `turnout watch` does.
        """
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        until = time.monotonic() + EVENTS_FOR_S
        grown = str(rows(recording)) != known
        while time.monotonic() < until:
            self.wfile.write(b"data: more\n\n" if grown else b": nothing new\n\n")
            self.wfile.flush()
            sleep(POLL_S)
            grown = news(self.db, recording)


def rows(recording: Recording) -> int:
    """The messages of a session and of its subagents."""
    return len(recording) + sum(map(rows, recording.children))


def _model(recording: Recording) -> dict[str, Any]:
    return model(recording, live=recording.facts.status not in ENDED)
