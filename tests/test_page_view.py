"""`turnout view`: sessions' pages for this machine's browser and nobody else; they move while a session runs."""

from __future__ import annotations

import base64
import http.client
import json
import signal
import threading
import zlib
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from agent.cli_view import serve
from state import changes as c
from state.db import Database
from state.log import append
from tests import chromium
from tests.chromium import Chromium
from tests.cli_helpers import begin, turnout
from tests.replay_story import BEGAN, Tape, tell

TOKEN = "a-token-of-this-test"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    opened = Database.open(str(tmp_path / "turnout.db"))
    tell(opened)
    yield opened
    opened.close()


@pytest.fixture
def server(db: Database) -> Iterator[ThreadingHTTPServer]:
    made = serve(db, TOKEN)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def ask(server: ThreadingHTTPServer, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, dict(answer.headers)


def cookie(server: ThreadingHTTPServer, token: str = TOKEN) -> str:
    return f"turnout-{server.server_port}={token}"


def known(server: ThreadingHTTPServer, path: str) -> tuple[int, str, dict[str, str]]:
    return ask(server, path, Cookie=cookie(server))


@pytest.mark.parametrize("path", ["/", "/s/pivot234/", "/s/pivot234/model", "/s/pivot234/events", "/nothing"])
def test_nothing_is_told_without_the_token(server: ThreadingHTTPServer, path: str) -> None:
    """Neither without a cookie nor with another one nor with another token is anything of a session said."""
    for headers in ({}, {"Cookie": cookie(server, "wrong")}):
        status, text, _ = ask(server, path, **headers)
        assert status == 403
        assert "pivot" not in text
    assert ask(server, f"{path}?token=wrong")[0] == 403


def test_another_name_that_leads_here_is_refused(server: ThreadingHTTPServer) -> None:
    """A web site whose name was made to point to the loopback gets nothing, cookie or not."""
    for name in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1.evil.example", ""):
        assert ask(server, "/", Host=name, Cookie=cookie(server))[0] == 403


def test_the_token_becomes_a_cookie_and_leaves_the_address(server: ThreadingHTTPServer) -> None:
    """The address with the token leads to the one without, and no script can read the cookie."""
    status, _, headers = ask(server, f"/s/pivot234/?token={TOKEN}")
    assert (status, headers["Location"]) == (303, "/s/pivot234/")
    assert headers["Set-Cookie"] == f"{cookie(server)}; HttpOnly; SameSite=Strict; Path=/"


def test_sessions_are_listed_and_shown(server: ThreadingHTTPServer) -> None:
    """The list names the session, its page holds it, and the data beside it is the same again."""
    status, text, headers = known(server, "/")
    assert status == 200
    assert "vLLM gives 0.66x with the drafter" in text
    assert '<a href="/s/pivot234/">' in text
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    status, text, headers = known(server, "/s/pivot234/")
    assert status == 200
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert "Content-Security-Policy" not in text
    status, text, _ = known(server, "/s/pivot234/model")
    data = json.loads(zlib.decompress(base64.b64decode(text), -zlib.MAX_WBITS))
    assert (data["session"]["id"], data["session"]["live"]) == ("pivot234", False)
    assert known(server, "/s/nothing/")[0] == 404
    assert known(server, "/etc/passwd")[0] == 404
    assert known(server, "/s/..%2f..%2fetc/")[0] == 404


def test_only_the_loopback_is_listened_on(server: ThreadingHTTPServer) -> None:
    """No other machine can reach it."""
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.skipif(chromium.find() is None, reason="there is no chromium: `apt-get install chromium`")
def test_the_page_of_a_running_session_moves(server: ThreadingHTTPServer, db: Database, tmp_path: Path) -> None:
    """What another process commits appears in an open page by itself, and whoever looked at the past stays there."""

    def run(conn) -> None:  # type: ignore[no-untyped-def]
        t = Tape(conn, "livel234").begin("A running session").at(5).todo("one", "The first")
        t.at(6).start("one").todo("two", "The second", after=["one"])

    db.write(run)
    url = f"http://127.0.0.1:{server.server_port}/s/livel234/?token={TOKEN}"
    with Chromium(tmp_path / "chromium") as browser:
        browser.open(url)
        assert browser.evaluate("document.querySelector('.live').textContent") == "live"
        assert "?token" not in browser.evaluate("location.href")
        db.write(lambda conn: append(conn, "livel234", [c.todo_status("one", "in_progress", "completed")], BEGAN + 60))
        browser.wait("document.querySelector('.box.st-completed')")
        browser.evaluate("document.activeElement.blur()")
        browser.key("Home")
        db.write(lambda conn: append(conn, "livel234", [c.todo_status("two", "pending", "skipped")], BEGAN + 61))
        browser.wait("document.querySelector('.where').textContent.includes('/ 9')")
        assert browser.evaluate("document.querySelector('.where').textContent").startswith("0 / 9")
        db.write(lambda conn: append(conn, "livel234", [c.session_status("completed")], BEGAN + 62))
        browser.wait("!document.querySelector('.live')")
        assert browser.errors() == []


def test_the_command_prints_the_address_and_ends_on_ctrl_c(db: Database) -> None:
    """`view --json` says where it serves; Ctrl-C ends it quietly; a port that is taken is an error with words."""
    with begin("view", "pivot", "--json") as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        connection = http.client.HTTPConnection("127.0.0.1", told["port"], timeout=30)
        connection.request("GET", told["url"].split(str(told["port"]), 1)[1])
        assert connection.getresponse().status == 303
        connection.close()
        taken = turnout("view", "--port", str(told["port"]), "--no-browser")
        assert taken.returncode == 2
        assert "cannot be had" in taken.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert turnout("view", "nothing", "--no-browser").returncode == 2


@pytest.mark.skipif(chromium.find() is None, reason="there is no chromium: `apt-get install chromium`")
def test_a_page_that_moves_stays_as_the_reader_left_it(
    server: ThreadingHTTPServer, db: Database, tmp_path: Path
) -> None:
    """Filters, the search, the open todo and the widened lanes outlive an update; while one types none comes."""

    def run(conn) -> None:  # type: ignore[no-untyped-def]
        Tape(conn, "livel234").begin("A running session").at(5).todo("one", "The first").at(6).start("one")

    db.write(run)
    with Chromium(tmp_path / "chromium") as browser:
        browser.open(f"http://127.0.0.1:{server.server_port}/s/livel234/?token={TOKEN}")
        browser.evaluate("document.querySelector('.box').dispatchEvent(new Event('click'))")
        browser.evaluate("[...document.querySelectorAll('.chip')].find((c) => c.innerText === 'Jobs').click()")
        browser.key("+")
        browser.key("/")
        browser.key("o")
        browser.wait("document.querySelector('.found').textContent")
        where = "document.querySelector('.where').textContent"
        before = browser.evaluate(where)
        db.write(lambda conn: append(conn, "livel234", [c.todo_status("one", "in_progress", "completed")], BEGAN + 60))
        assert browser.evaluate(where) == before
        browser.evaluate("document.activeElement.blur()")
        browser.wait("document.querySelector('.box.st-completed')")
        assert browser.evaluate("document.querySelector('.search input').value") == "o"
        assert browser.evaluate("document.querySelector('.detail').hidden") is False
        assert "completed" in browser.evaluate("document.querySelector('.detail').innerText")
        pressed = "[...document.querySelectorAll('.chip')].find((c) => c.innerText === 'Jobs').ariaPressed"
        assert browser.evaluate(pressed) == "false"
        zoom = "document.querySelector('.lanes-inner').style.getPropertyValue('--zoom')"
        assert float(browser.evaluate(zoom)) > 1.5
        assert browser.errors() == []


def test_what_came_before_one_listened_is_told(server: ThreadingHTTPServer, db: Database) -> None:
    """A page that was made before the newest message hears of it at once, and one that has it does not."""
    first = {}
    for rows in (3, 207):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        connection.request("GET", f"/s/pivot234/events?rows={rows}", headers={"Cookie": cookie(server)})
        first[rows] = connection.getresponse().readline()
        connection.close()
    assert first == {3: b"data: more\n", 207: b": nothing new\n"}
