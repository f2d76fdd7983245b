"""Reading what a replay shows: a stored session with its subagents' sessions, or a file.

    recording = from_database(db, "abcd2345")
    more = news(db, recording)                    # what a running session has added since

Reads only. Rows go straight into `Entry`: a log of 20,000 messages is there in a fraction of a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson
from sqlalchemy import Connection, select, text

from agent.look import find_session
from agent.replay import Entry, Facts, Recording
from state.db import Database
from state.errors import NotFound
from state.models import Session, table

_sessions = table(Session)
MAX_CHILDREN = 200
_MESSAGES = text(
    "SELECT seq, time, kind, actor, payload, cause FROM messages WHERE session = :session AND seq > :after ORDER BY seq"
)


def from_database(db: Database, wanted: str | None) -> Recording:
    """A session by its id or a beginning of it, the newest for `None`. Raises `NotFound`, `UsageError`."""

    def work(conn: Connection) -> Recording:
        return _recording(conn, find_session(conn, wanted), db.url)

    return db.read(work)


def _recording(conn: Connection, id: str, origin: str) -> Recording:
    row = conn.execute(select(_sessions).where(_sessions.c.id == id)).one_or_none()
    if row is None:
        raise NotFound(f"no session `{id}`", hint="`turnout sessions` lists them")
    children = select(_sessions.c.id).where(_sessions.c.parent == id).order_by(_sessions.c.created).limit(MAX_CHILDREN)
    inner = [_recording(conn, child, origin) for child in conn.execute(children).scalars().all()]
    return Recording(facts_of(row, origin), list(entries(conn, id)), inner)


def facts_of(row: Any, origin: str) -> Facts:
    """From a row of `sessions`."""
    names = ("id", "kind", "title", "playbook", "source", "parent", "settings", "status", "reason")
    return Facts(**{name: getattr(row, name) for name in names}, origin=origin)


def entries(conn: Connection, session: str, after: int = 0) -> Iterator[Entry]:
    """The messages of a session behind number `after`."""
    where = {"session": session, "after": after}
    for seq, time, kind, actor, payload, cause in conn.execute(_MESSAGES, where):
        yield Entry(seq, time, kind, actor, _decoded(payload), cause)


def _decoded(payload: Any) -> Any:
    """SQLite gives text, PostgreSQL what it holds. The quick reader refuses NaN, which the log may hold."""
    if not isinstance(payload, (str, bytes)):
        return payload
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        return json.loads(payload)


def news(db: Database, recording: Recording) -> bool:
    """Read what a session and its subagents have added since; whether there was anything."""

    def work(conn: Connection) -> bool:
        return _extend(conn, recording)

    return db.read(work)


def _extend(conn: Connection, recording: Recording) -> bool:
    last = recording.entries[-1].seq if recording.entries else 0
    fresh = list(entries(conn, recording.facts.id, last))
    recording.extend(fresh)
    known = {child.facts.id for child in recording.children}
    query = select(_sessions.c.id).where(_sessions.c.parent == recording.facts.id).limit(MAX_CHILDREN)
    begun = [id for id in conn.execute(query).scalars().all() if id not in known]
    recording.children += [_recording(conn, id, recording.facts.origin) for id in begun]
    moved = [_extend(conn, child) for child in recording.children if child.facts.id in known]
    return bool(fresh or begun or any(moved))
