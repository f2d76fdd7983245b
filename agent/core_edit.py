"""Edits of a graph that runs: what the operator or a model asks for, applied to the state one by one.

    outcomes = apply(core, edit)

Each op succeeds or fails by itself and the outcomes say which did, so that whoever asked is told exactly what is now
so. Part of `agent/core.py`, and as pure: the changes go through the core.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent.events import Add, Alter, Cancel, Edit, Kill, Link, Load, Op, Reset
from state import changes as c
from state.errors import GraphError, TurnoutError
from state.graph import Transition
from state.specs import TERMINAL, EdgeSpec, On

if TYPE_CHECKING:
    from agent.core import Core

MAX_TODOS = 20_000
"""Todos of one session: a model that adds in a loop is told so long before the database feels it."""


def apply(core: Core, edit: Edit) -> list[dict[str, Any]]:
    """Apply each op; the outcome of each, in order: `{"op", "id", ...}`, with `error` and `hint` where it failed."""
    return [_tried(core, op, edit.actor) for op in edit.ops]


def _tried(core: Core, op: Op, actor: str) -> dict[str, Any]:
    try:
        return _apply(core, op, actor)
    except TurnoutError as error:
        failed = {"op": type(op).__name__.lower(), "id": _about(op), "error": error.message}
        return {**failed, **({"hint": error.hint} if error.hint else {})}


def _about(op: Op) -> str:
    match op:
        case Add():
            return op.spec.id
        case Link():
            return op.dst
        case Load():
            return op.scope
        case Reset():
            return ", ".join(op.todos)
        case _:
            return op.todo


def _apply(core: Core, op: Op, actor: str) -> dict[str, Any]:
    match op:
        case Add():
            return _add(core, op, actor)
        case Link():
            _link(core, op.src, op.dst, op.on, actor)
            core.look_at(core.state.graph[op.dst])
            return {"op": "link", "id": op.dst, "after": op.src, "on": op.on}
        case Alter():
            return _alter(core, op, actor)
        case Kill():
            return _kill(core, op)
        case Load():
            return _load(core, op, actor)
        case Cancel():
            core.state.graph[op.todo]  # `NotFound` for a todo that is not there
            core.cancel(op.todo, op.reason)
            return {"op": "cancel", "id": op.todo}
        case Reset():
            for todo in op.todos:
                if core.state.graph[todo].status not in TERMINAL:
                    raise GraphError(f"`{todo}` has not ended: there is nothing to try again")
            core.reset(op.todos)
            return {"op": "retry", "id": ", ".join(op.todos)}


def _add(core: Core, op: Add, actor: str) -> dict[str, Any]:
    state, spec = core.state, op.spec
    if len(state.graph) >= MAX_TODOS:
        raise GraphError(f"the session has {len(state.graph)} todos", hint="start a new session for further work")
    if spec.id in state.graph:
        raise GraphError(f"there is already a todo `{spec.id}`", hint="choose another id")
    for src, _ in op.after:
        state.graph[src]  # all of them must be there before anything is added
    position = len(state.graph)
    node = state.add(spec, position)
    core.emit(c.todo_added(spec, position, actor))
    for src, on in op.after:
        _link(core, src, spec.id, on, actor)
    core.look_at(node)
    return {"op": "add", "id": spec.id}


def _link(core: Core, src: str, dst: str, on: On, actor: str) -> None:
    graph = core.state.graph
    if any(a.id == src and o == on for a, o in graph[dst].into):
        return
    skips: list[Transition] = graph.link(src, dst, on)
    core.emit(c.todo_linked(EdgeSpec(src, dst, on), actor))
    core.follow(skips)


def _alter(core: Core, op: Alter, actor: str) -> dict[str, Any]:
    node = core.state.graph[op.todo]
    info = core.state.todos[op.todo]
    if node.status != "pending":
        raise GraphError(f"`{op.todo}` is {node.status}: only what has not begun can be changed")
    values: dict[str, Any] = {}
    if op.title is not None:
        values["title"] = op.title
    if op.priority is not None:
        values["priority"] = op.priority
    if op.body:
        values["body"] = {**info.spec.body, **op.body}
    info.spec = replace(info.spec, **values)
    node.priority = info.spec.priority
    core.state.requeue(node)
    core.emit(c.todo_changed(op.todo, actor=actor, **values))
    return {"op": "change", "id": op.todo, "changed": sorted(values)}


def _kill(core: Core, op: Kill) -> dict[str, Any]:
    core.state.graph[op.todo]
    job = core.state.live_job(op.todo)
    if job is None:
        raise GraphError(f"`{op.todo}` has no job that runs")
    core.kill(op.todo, op.reason)
    return {"op": "kill", "id": op.todo, "job": job.id}


def _load(core: Core, op: Load, actor: str) -> dict[str, Any]:
    if op.scope in core.state.settings.get("scopes", {}):
        raise GraphError(f"`{op.scope}` was loaded into this session before")
    more = {"payload": op.payload, "hosts": op.hosts, "report": op.report}
    change = c.playbook_loaded(op.scope, playbook=op.playbook, prefix=op.prefix, params=op.params, actor=actor, **more)
    core.state.load_scope(change.payload)
    core.emit(change)
    return {"op": "load", "id": op.scope}
