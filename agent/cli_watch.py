"""`turnout watch`: look on while another process drives a session. Reads the database once a second, and nothing else.

The session's log is followed message by message, so what is seen is what the driving process committed. How far jobs
are is seen as often as it is kept there (`agent/reports.py`).
"""

from __future__ import annotations

import time

from sqlalchemy import Connection

from agent.board import Board
from agent.cli_frame import is_live
from agent.look import find_session, read_board
from agent.runner import ENDED, EXIT_CODES
from agent.summary import summary
from agent.views import PlainView, View
from state.changes import Change
from state.db import Database
from state.log import read
from state.models import Message
from state.owner import owner_of

POLL_S = 1.0


def watch(db: Database, wanted: str | None) -> int:
    """Look on until the session ends or the operator leaves. Returns the session's exit code."""
    board = db.read(lambda conn: read_board(conn, find_session(conn, wanted)))
    if board.status not in ENDED:
        _follow(db, board)
    summary(board)
    return EXIT_CODES.get(board.status, 1)


def _follow(db: Database, board: Board) -> None:
    view = _view(board)
    seq = board.seq

    def news(conn: Connection) -> list[Message]:
        board.abandoned = owner_of(conn, board.session, time.time()) is None
        return list(read(conn, board.session, after=seq))

    try:
        while board.status not in ENDED:
            messages = db.read(news)
            if messages:
                seq = messages[-1].seq
                view.changed([Change(m.kind, m.payload, m.actor) for m in messages], [m.seq for m in messages])
            else:
                time.sleep(POLL_S)
    finally:
        view.close()


def _view(board: Board) -> View:
    if is_live(None):
        from agent.live import LOOKS_ON, LiveView

        return LiveView(board, foot=LOOKS_ON)
    view = PlainView(board)
    view.say(f"looking on at session {board.session}: {board.title}")
    return view
