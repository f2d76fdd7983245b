"""Looking at what is stored: sessions, todos and jobs, as data for `--json` and found by what a person types.

Only reads, and only the database; hosts are not asked. How it is drawn is in `agent/picture.py` and `agent/tables.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, case, func, select

from agent.board import Board
from state.errors import NotFound, UsageError
from state.models import Job, Session, Todo, table
from state.owner import owner_of
from state.projection import JOB_ENDED
from state.specs import TERMINAL

ENDED = ("completed", "failed", "cancelled")
_sessions, _todos, _jobs = table(Session), table(Todo), table(Job)
_OPERATORS = (_sessions.c.kind != "system") & _sessions.c.parent.is_(None)


def find_session(conn: Connection, wanted: str | None) -> str:
    """The session of this id or unique beginning of one; the newest for `None`. Raises `NotFound`, `UsageError`."""
    query = select(_sessions.c.id).where(_sessions.c.kind != "system")
    if wanted is None:
        newest = query.where(_OPERATORS).order_by(_sessions.c.created.desc()).limit(1)
        found = conn.execute(newest).scalar_one_or_none()
        if found is None:
            raise NotFound("there is no session yet", hint="`turnout playbook list` shows what can be run")
        return str(found)
    ids = conn.execute(query.where(_sessions.c.id.startswith(wanted, autoescape=True))).scalars()
    return pick(wanted, ids, "session", "`turnout sessions` lists them")


def find_job(conn: Connection, wanted: str, session: str | None) -> Mapping[str, Any]:
    """The job of this id, or the newest one of this todo; a unique beginning of either is enough.

    A job's id is looked for everywhere, a todo's in `session` (by default the latest). Raises `NotFound`, `UsageError`.
    """
    exact = conn.execute(select(_jobs).where(_jobs.c.id == wanted)).mappings().one_or_none()
    if exact is not None:
        return dict(exact)
    within = find_session(conn, session)
    rows = conn.execute(select(_jobs.c.id, _jobs.c.todo).where(_jobs.c.session == within).order_by(_jobs.c.attempt))
    newest = {row.todo: row.id for row in rows}
    todos = conn.execute(select(_todos.c.id, _todos.c.kind, _todos.c.status).where(_todos.c.session == within)).all()
    known = {row.id: row for row in todos}
    names = {name for name in (*known, *newest.values()) if name.startswith(wanted)}
    hint = f"`turnout jobs --session {within}` lists its jobs"
    name = pick(wanted, names, f"job or todo in session `{within}`", hint)
    if name in known and name not in newest:
        todo = known[name]
        raise NotFound(f"todo `{name}` ({todo.kind}, {todo.status}) has no job", hint=hint)
    return dict(conn.execute(select(_jobs).where(_jobs.c.id == newest.get(name, name))).mappings().one())


def pick(wanted: str, names: Iterable[str], what: str, hint: str) -> str:
    """The one of `names` that is meant by `wanted`. Raises `NotFound` for none and `UsageError` for several."""
    found = sorted(set(names))
    if wanted in found:
        return wanted
    if not found:
        raise NotFound(f"no {what} `{wanted}`", hint=hint)
    if len(found) > 1:
        some = ", ".join(f"`{name}`" for name in found[:6]) + (" ..." if len(found) > 6 else "")
        raise UsageError(f"`{wanted}` may be {some}", hint="type more of it")
    return found[0]


def sessions(conn: Connection, *, everything: bool, limit: int = 20) -> list[dict[str, Any]]:
    """Sessions, newest first: the last `limit` that an operator started, or all with those of subagents."""
    query = select(_sessions).where(_sessions.c.kind != "system").order_by(_sessions.c.created.desc())
    rows = conn.execute(query if everything else query.where(_OPERATORS).limit(limit)).all()
    ids = [row.id for row in rows]
    done = func.sum(case((_todos.c.status.in_(TERMINAL), 1), else_=0))
    counted = select(_todos.c.session, func.count(), done).where(_todos.c.session.in_(ids)).group_by(_todos.c.session)
    counts = {session: (total, ended) for session, total, ended in conn.execute(counted)}
    used = select(_todos.c.session, _todos.c.host).where(_todos.c.session.in_(ids) & _todos.c.host.is_not(None))
    hosts: dict[str, list[str]] = {}
    for session, host in conn.execute(used.distinct().order_by(_todos.c.host)):
        hosts.setdefault(session, []).append(host)
    now = time.time()
    return [
        {
            **{name: getattr(row, name) for name in ("id", "kind", "playbook", "title", "status")},
            "state": session_state(row.status, owner := owner_of(conn, row.id, now)),
            **{name: getattr(row, name) for name in ("reason", "parent", "created", "updated")},
            "todos": {"done": counts.get(row.id, (0, 0))[1], "total": counts.get(row.id, (0, 0))[0]},
            "hosts": hosts.get(row.id, []),
            "owner": owner,
        }
        for row in rows
    ]


def session_state(status: str, owner: Mapping[str, Any] | None) -> str:
    """The status, but `interrupted` for a session that should be running and that no living process drives."""
    return "interrupted" if status == "running" and owner is None else status


def todos(board: Board) -> list[dict[str, Any]]:
    """The todos of a session in order, with all their fields and edges."""
    now = time.time()
    return [
        {
            "id": todo.id,
            "title": todo.title,
            "kind": todo.kind,
            "status": todo.status,
            "priority": todo.priority,
            "join": todo.join,
            "group": todo.group,
            "after": [{"todo": src, "on": on} for src, on in todo.after],
            "waits_for": board.waits_for(todo),
            "attempts": todo.attempts,
            "host": todo.host,
            "started": todo.started,
            "ended": todo.ended,
            "duration": todo.seconds(now),
            "reason": todo.reason,
            "result": todo.result,
            "job": todo.job.id if todo.job else None,
            "body": todo.body,
        }
        for todo in board.todos.values()
    ]


def jobs(conn: Connection, session: str | None) -> list[dict[str, Any]]:
    """The jobs of a session in the order of their submission; of all sessions, newest first, for `None`."""
    query = select(_jobs)
    if session is None:
        query = query.order_by(_jobs.c.submitted.desc())
    else:
        query = query.where(_jobs.c.session == session).order_by(_jobs.c.submitted)
    now = time.time()
    return [
        {
            **{name: getattr(row, name) for name in ("id", "session", "todo", "attempt", "host", "state")},
            **{name: getattr(row, name) for name in ("rc", "signal", "reason", "cancel", "gpus")},
            **{name: getattr(row, name) for name in ("submitted", "started", "ended")},
            "duration": _duration(row, now),
        }
        for row in conn.execute(query)
    ]


def _duration(row: Any, now: float) -> float | None:
    """Start and end are the host's clock. One that runs is counted from its submission, because that clock is ours."""
    if row.state in JOB_ENDED:
        return max(0.0, row.ended - row.started) if row.started is not None and row.ended is not None else None
    return max(0.0, now - row.submitted)
