"""Looking at what is stored: sessions, todos and jobs, as data for `--json` and found by what a person types.

Only reads, and only the database; hosts are not asked. How it is drawn is in `agent/picture.py` and `agent/tables.py`.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, case, func, select

from agent.board import Board, BoardTodo
from state.errors import NotFound, UsageError
from state.models import Approval, Edge, Host, Job, Message, Session, Todo, table
from state.owner import owner_of
from state.projection import JOB_ENDED
from state.specs import TERMINAL

ENDED = ("completed", "failed", "cancelled")
_sessions, _todos, _jobs, _hosts = table(Session), table(Todo), table(Job), table(Host)
_edges, _approvals = table(Edge), table(Approval)
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


def is_chat(conn: Connection, session: str) -> bool:
    """Whether a session is a conversation, and not the run of a playbook."""
    return conn.execute(select(_sessions.c.kind).where(_sessions.c.id == session)).scalar_one_or_none() == "chat"


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
    name = pick(wanted, names, "job or todo", hint, where=f" in session `{within}`")
    if name in known and name not in newest:
        todo = known[name]
        raise NotFound(f"todo `{name}` ({todo.kind}, {todo.status}) has no job", hint=hint)
    return dict(conn.execute(select(_jobs).where(_jobs.c.id == newest.get(name, name))).mappings().one())


def pick(wanted: str, names: Iterable[str], what: str, hint: str, where: str = "") -> str:
    """The one of `names` that is meant by `wanted`. Raises `NotFound` for none and `UsageError` for several."""
    found = sorted(set(names))
    if wanted in found:
        return wanted
    if not found:
        raise NotFound(f"no {what} `{wanted}`{where}", hint=hint)
    if len(found) > 1:
        some = ", ".join(f"`{name}`" for name in found[:6]) + (" ..." if len(found) > 6 else "")
        raise UsageError(f"`{wanted}` may be {some}", hint="type more of it")
    return found[0]


def read_board(conn: Connection, session: str) -> Board:
    """A session as stored. Raises `NotFound`."""
    row = conn.execute(select(_sessions).where(_sessions.c.id == session)).one_or_none()
    if row is None:
        raise NotFound(f"no session `{session}`", hint="`turnout sessions` lists them")
    board = Board(
        session, row.title, row.playbook, row.status, row.reason, row.created, row.updated, row.next_seq - 1,
        row.settings.get("params", {}),
    )  # fmt: skip
    for node in conn.execute(select(_todos).where(_todos.c.session == session).order_by(_todos.c.position)):
        board.todos[node.id] = _board_todo(node)
    for edge in conn.execute(select(_edges).where(_edges.c.session == session)):
        board.todos[edge.dst].after.append((edge.src, edge.on_event))
    for todo in board.todos.values():
        todo.after.sort(key=lambda edge: board.todos[edge[0]].position)
    for job in conn.execute(select(_jobs).where(_jobs.c.session == session).order_by(_jobs.c.submitted)):
        board.apply("job.submitted", dict(job._mapping), job.submitted)
        board.jobs[job.id].state, board.jobs[job.id].cancel = job.state, job.cancel
    board.updated = row.updated
    asked = (_approvals.c.session == session) & _approvals.c.answer.is_(None)
    for question in conn.execute(select(_approvals).where(asked)):
        if board.todos[question.todo].status == "in_progress":
            board.questions[question.todo] = question.question
    return board


def _board_todo(row: Row[Any]) -> BoardTodo:
    return BoardTodo(
        id=row.id, title=row.title, kind=row.kind, position=row.position, status=row.status, priority=row.priority,
        join=row.join_on, group=row.group_id, body=row.body, attempts=row.attempts, host=row.host, result=row.result,
        reason=row.reason, started=row.started, ended=row.ended,
    )  # fmt: skip


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
    spoken = _first_words(conn, [row.id for row in rows if row.kind == "chat"])
    return [
        {
            **{name: getattr(row, name) for name in ("id", "kind", "playbook", "status")},
            "title": spoken.get(row.id, row.title),
            "state": session_state(row.status, owner := owner_of(conn, row.id, now)),
            **{name: getattr(row, name) for name in ("reason", "parent", "created", "updated")},
            "todos": {"done": counts.get(row.id, (0, 0))[1], "total": counts.get(row.id, (0, 0))[0]},
            "hosts": hosts.get(row.id, []),
            "owner": owner,
        }
        for row in rows
    ]


def _first_words(conn: Connection, sessions: Sequence[str]) -> dict[str, str]:
    """What conversations are about: the operator's first words, or the first playbook, among their first messages."""
    messages = table(Message)
    begun = messages.c.session.in_(sessions) & (messages.c.seq <= 50)
    told = messages.c.kind.in_(("operator.said", "playbook.loaded"))
    query = select(messages.c.session, messages.c.payload).where(begun & told).order_by(messages.c.seq.desc())
    found = {row.session: row.payload.get("text") or row.payload.get("playbook", "") for row in conn.execute(query)}
    return {session: " ".join(text.split())[:100] for session, text in found.items() if text.strip()}


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
    started, ended = row.started, row.ended
    if row.state not in JOB_ENDED:
        started, ended = row.submitted, now
    return None if started is None or ended is None else max(0.0, float(ended - started))


def hosts(conn: Connection) -> list[dict[str, Any]]:
    """The hosts that were added, by name, with the number of jobs that run there."""
    live = select(_jobs.c.host, func.count()).where(_jobs.c.state.not_in(JOB_ENDED)).group_by(_jobs.c.host)
    running = {row[0]: row[1] for row in conn.execute(live)}
    return [
        {
            "name": row.name,
            "address": row.address,
            "settings": row.settings,
            "key": row.key,
            "fingerprint": fingerprint(row.key) if row.key else None,
            "gpus": row.settings.get("gpus", _number_of(row.facts.get("usable_gpus"))),
            "gpu_error": row.facts.get("gpu_error"),
            "jobs": running.get(row.name, 0),
            "added": row.added,
            "probed": row.probed,
        }
        for row in conn.execute(select(_hosts).order_by(_hosts.c.name))
    ]


def _number_of(found: list[int] | None) -> int | None:
    return None if found is None else len(found)


def fingerprint(key: str) -> str:
    """The SHA-256 fingerprint of a key's line, as `ssh-keygen -l` writes it."""
    if key.startswith("SHA256:"):
        return key
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode("ascii").rstrip("=")
