"""A session as it is read back from its log: what a process begins with that takes it over."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from agent.load import load
from agent.state import SessionState
from state.db import Database
from state.log import restore
from state.models import Message

_COLUMNS = ("session", "seq", "time", "kind", "actor", "payload", "cause")


def loaded(messages: Sequence[Message], *, thinks: bool) -> SessionState:
    """The state after these messages, through a database that lives in memory for as long as this takes."""
    db = Database.open("sqlite://")
    rows = [{name: getattr(message, name) for name in _COLUMNS} for message in messages]

    def write(conn: Connection) -> SessionState:
        restore(conn, messages[0].session, rows)
        return load(conn, messages[0].session, thinks=thinks)

    try:
        return db.write(write)
    finally:
        db.close()
