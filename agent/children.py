"""The sessions of subagents, seen from outside: ending one, and settling those that a crash left behind."""

from __future__ import annotations

import time

from sqlalchemy import Connection, select

from state import changes as c
from state.log import append
from state.models import Session, Todo, table


def end_child(conn: Connection, child: str, status: str, reason: str | None) -> None:
    """Bring a subagent's session to its end, if it is there and has not ended."""
    sessions = table(Session).c
    found = conn.execute(select(sessions.status).where(sessions.id == child)).scalar_one_or_none()
    if found == "running":
        append(conn, child, [c.session_status(status, reason)], time.time())


def settle_children(conn: Connection, parent: str) -> list[str]:
    """On resume: end the subagents whose todo was given up or ended without them. Those of running todos go on."""
    sessions, todos = table(Session).c, table(Todo).c
    rows = conn.execute(
        select(sessions.id, sessions.settings).where((sessions.parent == parent) & (sessions.status == "running"))
    ).all()
    running = set(
        conn.execute(select(todos.id).where((todos.session == parent) & (todos.status == "in_progress"))).scalars()
    )
    orphans = [row.id for row in rows if row.settings.get("todo") not in running]
    for child in orphans:
        append(conn, child, [c.session_status("cancelled", "its todo has ended")], time.time())
    return orphans
