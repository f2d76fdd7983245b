"""A session from the tables: how a run begins and how it is found again after a crash.

`create` stores a plan as a new session; `load` gives back its state in memory, whatever happened in between.
"""

from __future__ import annotations

import gc
import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy import Connection, Text, cast, func, select

from agent.infos import HostInfo, JobInfo, TodoInfo
from agent.state import SessionState
from state import changes as c
from state.changes import Change
from state.errors import NotFound
from state.graph import Graph, Node
from state.models import Approval, Edge, Host, Job, Lease, Notice, Session, Todo, table
from state.projection import JOB_ENDED
from state.specs import TERMINAL, Plan, Retry, TodoSpec

_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"  # no letter that looks like another


def new_id() -> str:
    """A session's id: eight letters that are easy to read out; 40 bits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(8))


def creation(plan: Plan, settings: Mapping[str, Any]) -> list[Change]:
    """The changes that make a plan a session. Raises `CycleError` or `GraphError` for a plan that cannot run."""
    graph = Graph()
    for position, spec in enumerate(plan.todos):
        graph.add(Node(spec.id, position, join=spec.join, kind=spec.kind))
    for edge in plan.edges:
        graph.link(edge.src, edge.dst, edge.on)
    created = c.session_created(
        kind="playbook", title=plan.title, playbook=plan.name, source=plan.source, parent=None, settings=settings
    )
    todos = [c.todo_added(spec, position) for position, spec in enumerate(plan.todos)]
    return [created, *todos, *(c.todo_linked(edge) for edge in plan.edges)]


def load(conn: Connection, session: str, *, thinks: bool = False) -> SessionState:
    """The state of a session as stored. `thinks` when a model is there to do research. Raises `NotFound`."""
    sessions = table(Session)
    row = conn.execute(select(sessions).where(sessions.c.id == session)).one_or_none()
    if row is None:
        raise NotFound(f"no session `{session}`", hint="`turnout sessions` lists them")
    state = SessionState(session, row.settings, status=row.status, reason=row.reason, thinks=thinks)
    notices = table(Notice).c
    state.notices = conn.execute(select(func.count()).where(notices.session == session)).scalar_one()
    with _no_collection():
        _load_graph(conn, state)
    _load_hosts(conn, state)
    _load_jobs(conn, state)
    approvals = table(Approval)
    asked = select(approvals).where((approvals.c.session == session) & approvals.c.answer.is_(None))
    for question in conn.execute(asked):
        node = state.graph.nodes.get(question.todo)  # none for a question that an imported log only tells of
        if node is not None and node.status == "in_progress":
            state.questions[question.todo] = question.question
    return state


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let the garbage collector rest: a million new objects all stay, and looking through them doubles the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@cache
def _retry(text: str) -> Retry:
    """A retry rule from its JSON. Todos share a few of them, so that most need not be read."""
    rule = json.loads(text)
    return Retry(rule.get("times", 0), tuple(rule.get("on", ())))


def _load_graph(conn: Connection, state: SessionState) -> None:
    todos, edges = table(Todo).c, table(Edge).c
    of_spec = (todos.id, todos.title, todos.kind, todos.body, todos.priority, todos.join_on, todos.group_id)
    of_node = (todos.position, todos.status, todos.open, todos.met, todos.dead, cast(todos.retry, Text))
    of_info = (todos.attempts, todos.attempts_before, todos.result, todos.reason, todos.host)
    query = select(*of_spec, *of_node, *of_info).where(todos.session == state.session).order_by(todos.position)
    # Taken apart by place: by name it would be the most expensive step of all.
    for row in conn.execute(query):
        id, title, kind, body, priority, join, group, position, status, open, met, dead, retry, *info = row
        node = Node(id, position, kind=kind, priority=priority, join=join, status=status)
        node.open, node.met, node.dead = open, met, dead
        state.graph.add(node)
        attempts, attempts_before, result, reason, host = info
        spec = TodoSpec(id, title, kind, body, priority, join, _retry(retry), group)
        state.todos[id] = TodoInfo(spec, attempts, attempts_before, result, reason, host=host)
        state.note_result(id)
        state.open_todos += status not in TERMINAL
    columns = select(edges.src, edges.dst, edges.on_event).where(edges.session == state.session)
    state.graph.restore(conn.execute(columns))


def _load_hosts(conn: Connection, state: SessionState) -> None:
    for row in conn.execute(select(table(Host))):
        state.hosts[row.name] = HostInfo(
            row.name,
            max_jobs=int(row.settings.get("max_jobs") or 32),
            gpus=_gpus(row.settings, row.facts),
            slurm=bool(row.settings.get("slurm")),
            python=row.settings.get("python") or "python3",
        )
    brought: Mapping[str, Mapping[str, Any]] = state.settings.get("hosts") or {}
    for name, settings in {"local": {}, **brought}.items():
        info = state.hosts.setdefault(name, HostInfo(name))
        info.python = sys.executable  # these are this machine, so this very Python with its packages
        info.max_jobs = int(settings.get("max_jobs") or max(4, os.cpu_count() or 1))
        if settings.get("gpus") is not None:
            info.gpus = list(range(int(settings["gpus"])))
    leases = table(Lease)
    for lease in conn.execute(select(leases.c.host, leases.c.gpu, leases.c.job)):
        state.leases[lease.host, lease.gpu] = lease.job


def usable_gpus(facts: Mapping[str, Any]) -> list[int] | None:
    """The GPUs that a probe found fit for work; `None` when it could not tell."""
    usable = facts.get("usable_gpus")
    return None if usable is None else [int(index) for index in usable]


def _gpus(settings: Mapping[str, Any], facts: Mapping[str, Any]) -> list[int] | None:
    """The GPUs that may be leased: as declared for the host, else as its probe found them usable."""
    if settings.get("gpus") is not None:
        return list(range(int(settings["gpus"])))
    return usable_gpus(facts)


def _load_jobs(conn: Connection, state: SessionState) -> None:
    jobs = table(Job)
    live = select(jobs).where((jobs.c.session == state.session) & jobs.c.state.not_in(JOB_ENDED))
    for row in conn.execute(live.order_by(jobs.c.attempt)):  # the newest attempt of a todo is the one it counts on
        job = JobInfo(
            id=row.id,
            todo=row.todo,
            host=row.host,
            spec=row.spec,
            gpus=list(row.gpus),
            state=row.state,
            is_service=bool(row.spec.get("ready")),
            cancel=row.cancel,
        )
        state.take(job, keep=bool(state.todos[row.todo].body.get("keep")))
    for todo, info in state.todos.items():
        if state.graph[todo].status != "in_progress":
            continue
        if state.run_as(todo) in ("tool", "think") and state.live_job(todo) is None:
            state.tools.add(todo)
        elif info.spec.kind == "stop":
            stopping = state.live_job(info.body["todo"])
            if stopping is not None:
                state.stops.setdefault(stopping.id, []).append(todo)
