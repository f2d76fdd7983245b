"""From a change to the tables: the one place where rows are written.

`project` applies changes inside the caller's transaction. It is used when a change is made and when the tables are
rebuilt from the log, so both agree by construction. Updates are guarded: a transition that does not find the status it
starts from raises `StateError` and the transaction is rolled back; a terminal status is never overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, get_args

from sqlalchemy import Connection, Update, bindparam, case, delete, insert, select, update

from state.errors import StateError
from state.graph import MET
from state.models import Approval, Edge, Host, Job, Lease, Notice, Session, Todo, Usage, table
from state.specs import TERMINAL, Status

_sessions, _todos, _edges = table(Session), table(Todo), table(Edge)
_jobs, _hosts, _leases, _approvals = table(Job), table(Host), table(Lease), table(Approval)
_notices, _usage = table(Notice), table(Usage)

JOB_ENDED: frozenset[str] = frozenset({"exited", "lost", "refused"})

Payload = Mapping[str, Any]


def project(conn: Connection, session: str, kind: str, payloads: Sequence[Payload], time: float) -> None:
    """Write what successive changes of one kind mean. Kinds that change no table only touch the session.

    A plan is many todos and then many edges: those are written by one statement for all of them.
    """
    if kind in _TOGETHER:
        _TOGETHER[kind](conn, session, payloads)
    elif handler := _HANDLERS.get(kind):
        for payload in payloads:
            handler(conn, session, payload, time)


def _session_created(conn: Connection, session: str, p: Payload, time: float) -> None:
    row = {k: p[k] for k in ("kind", "title", "playbook", "source", "parent", "settings")}
    conn.execute(
        insert(_sessions), {"id": session, **row, "status": "running", "created": time, "updated": time, "next_seq": 1}
    )


def _session_status(conn: Connection, session: str, p: Payload, time: float) -> None:
    conn.execute(
        update(_sessions).where(_sessions.c.id == session),
        {"status": p["status"], "reason": p.get("reason")},
    )


def _todos_added(conn: Connection, session: str, payloads: Sequence[Payload]) -> None:
    same = ("id", "position", "title", "kind", "priority", "body", "retry")
    counted = ("attempts", "attempts_before", "open", "met", "dead")
    fresh = {"session": session, "status": "pending", **dict.fromkeys(counted, 0)}
    rows = [{**{k: p[k] for k in same}, "join_on": p["join"], "group_id": p.get("group"), **fresh} for p in payloads]
    conn.execute(insert(_todos), rows)


def _counter(on: str, status: str) -> str:
    """Which counter an edge is booked under, by the status of its source: see `state/graph.py`."""
    if status not in TERMINAL:
        return "open"
    return "met" if status in MET[on] else "dead"  # type: ignore[index]


def _todos_linked(conn: Connection, session: str, payloads: Sequence[Payload]) -> None:
    rows = [{"session": session, "src": p["src"], "dst": p["dst"], "on_event": p["on"]} for p in payloads]
    conn.execute(insert(_edges), rows)
    for on in dict.fromkeys(p["on"] for p in payloads):
        ends = [{"of": session, "a": p["src"], "b": p["dst"]} for p in payloads if p["on"] == on]
        if conn.execute(_BOOK[on], ends).rowcount != len(ends):
            raise StateError(f"an edge of session `{session}` has no todo at one of its ends")


def _book(on: str) -> Update:
    """The statement that books a new edge from `a` to `b` under the counter that the status of `a` calls for."""
    todo, source = _todos.c, _todos.alias("source")
    of_source = select(source.c.status).where((source.c.session == bindparam("of")) & (source.c.id == bindparam("a")))
    status = of_source.scalar_subquery()
    counter_of = {s: _counter(on, s) for s in get_args(Status)}
    more = {
        name: todo[name] + case({s: 1 for s in counter_of if counter_of[s] == name}, value=status, else_=0)
        for name in dict.fromkeys(counter_of.values())
    }
    both = (todo.session == bindparam("of")) & (todo.id == bindparam("b")) & status.is_not(None)
    return update(_todos).where(both).values(more)


_BOOK = {on: _book(on) for on in MET}


def _todo_status(conn: Connection, session: str, p: Payload, time: float) -> None:
    was, now = p["was"], p["now"]
    values: dict[str, Any] = {"status": now, "reason": p.get("reason")}
    if now == "in_progress":
        values |= {"started": time, "ended": None, "attempts": p.get("attempt", 1), "host": p.get("host")}
    elif now in TERMINAL:
        values |= {"ended": time, "result": p.get("result")}
    elif was in TERMINAL:
        values |= {"result": None, "started": None, "ended": None, "attempts_before": _todos.c.attempts}
    guard = (_todos.c.session == session) & (_todos.c.id == p["id"]) & (_todos.c.status == was)
    if conn.execute(update(_todos).where(guard).values(values)).rowcount != 1:
        raise StateError(
            f"todo `{p['id']}` was not `{was}` when it was to become `{now}`",
            hint="another process changed this session; run `turnout resume` to go on from what is stored",
        )
    if (was in TERMINAL) != (now in TERMINAL):
        _recount(conn, session, p["id"], was, now)


def _recount(conn: Connection, session: str, src: str, was: str, now: str) -> None:
    """Move the edges that leave `src` from one counter to another. Costs its outgoing edges."""
    rows = conn.execute(_OUT_EDGES, {"session": session, "src": src}).all()
    for on in {row.on_event for row in rows}:
        old, new = _todos.c[_counter(on, was)], _todos.c[_counter(on, now)]
        conn.execute(
            update(_todos)
            .where((_todos.c.session == session) & (_todos.c.id == bindparam("dst")))
            .values({old: old - 1, new: new + 1}),
            [{"dst": row.dst} for row in rows if row.on_event == on],
        )


_OUT_EDGES = select(_edges.c.dst, _edges.c.on_event).where(
    (_edges.c.session == bindparam("session")) & (_edges.c.src == bindparam("src"))
)


def _job_submitted(conn: Connection, session: str, p: Payload, time: float) -> None:
    row = {k: p[k] for k in ("id", "todo", "attempt", "host", "spec", "gpus")}
    conn.execute(insert(_jobs), {"session": session, **row, "state": "submitted", "submitted": time})
    if p["gpus"]:
        lease = {"host": p["host"], "job": p["id"], "session": session, "since": time}
        conn.execute(insert(_leases), [{**lease, "gpu": gpu} for gpu in p["gpus"]])


def _job_state(conn: Connection, session: str, p: Payload, time: float) -> None:
    state = p["state"]
    values: dict[str, Any] = {"state": state}
    values |= {k: p[k] for k in ("rc", "signal", "reason", "started") if p.get(k) is not None}
    if state in JOB_ENDED:
        values["ended"] = p.get("ended") or time
    guard = (_jobs.c.id == p["id"]) & _jobs.c.state.not_in(JOB_ENDED)
    if conn.execute(update(_jobs).where(guard).values(values)).rowcount != 1:
        raise StateError(f"job `{p['id']}` had already ended when the host reported `{state}`")
    if state in JOB_ENDED:
        conn.execute(delete(_leases).where(_leases.c.job == p["id"]))


def _job_cancel(conn: Connection, session: str, p: Payload, time: float) -> None:
    conn.execute(update(_jobs).where(_jobs.c.id == p["id"]), {"cancel": p["reason"]})


def _approval_asked(conn: Connection, session: str, p: Payload, time: float) -> None:
    key = {"session": session, "todo": p["todo"]}
    conn.execute(
        delete(_approvals).where((_approvals.c.session == session) & (_approvals.c.todo == p["todo"]))
    )  # a retried question is a new one
    conn.execute(insert(_approvals), {**key, "question": p["question"], "default": p["default"], "asked": time})


def _approval_answered(conn: Connection, session: str, p: Payload, time: float) -> None:
    where = (_approvals.c.session == session) & (_approvals.c.todo == p["todo"])
    conn.execute(update(_approvals).where(where), {"answer": p["answer"], "by": p["by"], "answered": time})


def _host_saved(conn: Connection, session: str, p: Payload, time: float) -> None:
    # Imported here because PostgreSQL's takes 50 ms, which every command would wait for.
    dialect = import_module(f"sqlalchemy.dialects.{conn.dialect.name}")
    values = {k: p[k] for k in ("address", "settings", "key")}
    row = {"name": p["name"], **values, "facts": p.get("facts") or {}, "added": time}
    statement = dialect.insert(_hosts).values(row)
    conn.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))


def _host_probed(conn: Connection, session: str, p: Payload, time: float) -> None:
    conn.execute(update(_hosts).where(_hosts.c.name == p["name"]), {"facts": p["facts"], "probed": time})


def _host_removed(conn: Connection, session: str, p: Payload, time: float) -> None:
    conn.execute(delete(_hosts).where(_hosts.c.name == p["name"]))


def _todo_changed(conn: Connection, session: str, p: Payload, time: float) -> None:
    values = {k: p[k] for k in ("title", "priority", "body") if k in p}
    guard = (_todos.c.session == session) & (_todos.c.id == p["id"]) & (_todos.c.status == "pending")
    if conn.execute(update(_todos).where(guard).values(values)).rowcount != 1:
        raise StateError(f"todo `{p['id']}` is no longer pending and cannot be changed")


def _playbook_loaded(conn: Connection, session: str, p: Payload, time: float) -> None:
    settings = conn.execute(select(_sessions.c.settings).where(_sessions.c.id == session)).scalar_one()
    scopes = {**settings.get("scopes", {}), p["scope"]: dict(p)}
    hosts = {**settings.get("hosts", {}), **p.get("hosts", {})}
    conn.execute(
        update(_sessions).where(_sessions.c.id == session), {"settings": {**settings, "scopes": scopes, "hosts": hosts}}
    )


def _notice_raised(conn: Connection, session: str, p: Payload, time: float) -> None:
    row = {"session": session, "id": p["id"], "about": p["about"], "text": p["text"], "data": p.get("data")}
    conn.execute(insert(_notices), {**row, "raised": time})


def _notice_delivered(conn: Connection, session: str, p: Payload, time: float) -> None:
    where = (_notices.c.session == session) & _notices.c.id.in_(p["ids"]) & _notices.c.delivered.is_(None)
    changed = conn.execute(update(_notices).where(where).values(delivered=time, call=p["call"])).rowcount
    if changed != len(set(p["ids"])):
        raise StateError(f"a notice of call `{p['call']}` had been delivered before, or was never raised")


_SPENT = ("calls", "input", "output", "cache_read", "cache_write", "cost", "unpriced")
_SPEND = (
    update(_usage)
    .where((_usage.c.session == bindparam("of")) & (_usage.c.model == bindparam("by")))
    .values({name: _usage.c[name] + bindparam(f"more_{name}") for name in _SPENT})
)


def _models_used(conn: Connection, session: str, payloads: Sequence[Payload]) -> None:
    """Add up what calls used, one after the other: a sum of costs depends on its order, and a rebuild must agree."""
    paid = [p for p in payloads if p.get("usage") is not None]  # a failed call may have cost nothing
    for model in dict.fromkeys(p["model"] for p in paid):
        where = (_usage.c.session == session) & (_usage.c.model == model)
        if conn.execute(select(_usage.c.calls).where(where)).one_or_none() is None:
            conn.execute(insert(_usage), {"session": session, "model": model, **dict.fromkeys(_SPENT, 0)})
    if paid:
        conn.execute(_SPEND, [{"of": session, "by": p["model"], **_spent(p)} for p in paid])


def _spent(p: Payload) -> dict[str, float]:
    usage, cost = p["usage"], p.get("cost")
    tokens = {f"more_{n}": int(usage.get(n) or 0) for n in _SPENT[1:5]}
    return {"more_calls": 1, **tokens, "more_cost": cost or 0.0, "more_unpriced": int(cost is None)}


_TOGETHER: dict[str, Callable[[Connection, str, Sequence[Payload]], None]] = {
    "todo.added": _todos_added,
    "todo.linked": _todos_linked,
    "model.answered": _models_used,
    "model.failed": _models_used,
}
_HANDLERS: dict[str, Callable[[Connection, str, Payload, float], None]] = {
    "session.created": _session_created,
    "session.status": _session_status,
    "todo.status": _todo_status,
    "job.submitted": _job_submitted,
    "job.state": _job_state,
    "job.cancel": _job_cancel,
    "approval.asked": _approval_asked,
    "approval.answered": _approval_answered,
    "host.saved": _host_saved,
    "host.probed": _host_probed,
    "host.removed": _host_removed,
    "todo.changed": _todo_changed,
    "playbook.loaded": _playbook_loaded,
    "notice.raised": _notice_raised,
    "notice.delivered": _notice_delivered,
}
TOGETHER: frozenset[str] = frozenset(_TOGETHER)
"""Kinds of which many are written at once, whatever their times."""
PROJECTING: frozenset[str] = TOGETHER | frozenset(_HANDLERS)
"""Kinds that change a table; the others are in the log alone."""
