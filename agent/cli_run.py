"""`turnout run` and `turnout resume`: a session from its start or from where it stands, shown as the operator wants it.

The session itself is driven by `agent/runner.py`; here is which view it gets and what is said before and after.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from agent import runner
from agent.board import Board
from agent.cli_frame import is_live, reader_may_leave, say, say_json
from agent.config import load_config
from agent.load import load
from agent.look import find_session, is_chat, read_board
from agent.state import SessionState
from agent.summary import summary
from agent.views import JsonView, PlainView, View
from state.db import Database, state_dir
from state.errors import UsageError


def run(
    db: Database, playbook: str, sets: Mapping[str, str], *, host: str | None, yes: bool, json: bool, watch: bool | None
) -> int:
    """Start a playbook as a new session and stay with it. Returns the exit code."""
    load_config()  # one that cannot be read is told before a session is stored
    session = runner.create(db, playbook, sets, host=host, yes=yes)
    return _stay(db, session, yes=yes, json=json, watch=watch, word="session")


def resume(db: Database, wanted: str | None, *, retry: bool, yes: bool, json: bool, watch: bool | None) -> int:
    """Go on with a session. One that has ended is only told, unless its failed todos are to be tried again."""
    session = runner.latest(db) if wanted is None and not retry else db.read(lambda conn: find_session(conn, wanted))
    if db.read(lambda conn: is_chat(conn, session)):
        return _talk(db, session, yes=yes, json=json, watch=watch)
    board = db.read(lambda conn: read_board(conn, session))
    if board.status in runner.ENDED and not (retry and board.failures()):
        return _tell_end(board, _fetched(db, session), json=json)
    runner.take_over(db, session)
    return _stay(db, session, yes=yes, json=json, watch=watch, word="resuming session", retry=retry)


def _talk(db: Database, session: str, *, yes: bool, json: bool, watch: bool | None) -> int:
    """A conversation is resumed as one."""
    if json:
        raise UsageError(
            f"session `{session}` is a conversation: it has no JSON lines", hint=f"`turnout chat {session} --plain`"
        )
    from agent.cli_chat import chat

    return chat(db.url, session, plain=watch is False, yes=yes)


def _stay(
    db: Database, session: str, *, yes: bool, json: bool, watch: bool | None, word: str, retry: bool = False
) -> int:
    """Drive an owned session, show it, and say how it ended."""
    board = db.read(lambda conn: read_board(conn, session))
    board.status = "running"  # from here on, whatever it was before
    live = not json and is_live(watch)
    with reader_may_leave():
        if json:
            say_json({"kind": "session", "session": session, "playbook": board.playbook, "title": board.title})
        else:
            say(f"{word} {session}; come back with `turnout resume {session}`")

    views: list[View] = []

    def view(state: SessionState) -> View:
        views.append(_view(board, yes=yes, json=json, live=live))
        return views[0]

    outcome = runner.drive(db, session, view, retry=retry)
    for remark in outcome.notes:
        print(f"note: {remark}", file=sys.stderr)
    with reader_may_leave():
        if json:
            say_json(outcome.as_json())
        else:
            ended = db.read(lambda conn: read_board(conn, session))
            for id, said in views[0].last_words().items():
                ended.jobs[id].progress = said
            summary(ended, report=outcome.report)
    return outcome.exit_code


def _view(board: Board, *, yes: bool, json: bool, live: bool) -> View:
    if json:
        return JsonView(yes=yes)
    if live:
        from agent.live import LiveView

        return LiveView(board, yes=yes)
    return PlainView(board, yes=yes)


def _tell_end(board: Board, report: str | None, *, json: bool) -> int:
    todos = {t.id: {"status": t.status, "result": t.result, "reason": t.reason} for t in board.todos.values()}
    outcome = runner.Outcome(board.session, board.status, todos, report, board.reason)
    if json:
        say_json(outcome.as_json())
    else:
        say(f"nothing to do: session {board.session} has ended")
        summary(board, report=report)
    return outcome.exit_code


def _fetched(db: Database, session: str) -> str | None:
    """The report of an ended session, if it was fetched when the session ended."""
    name = db.read(lambda conn: load(conn, session)).settings.get("report")
    path = state_dir() / "reports" / session / Path(str(name)).name
    return str(path) if name and path.exists() else None
