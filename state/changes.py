"""The facts a session is made of. A change is written to the log and to the tables in one transaction.

Each function makes one kind of change; its arguments are the payload, which is JSON. The kinds are a contract: the log
of last year must project to the same tables with the code of today, so a kind may gain optional keys and never loses or
reinterprets one. The projection of each kind is in `state/projection.py`, the in-memory one in `agent/core.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from state.specs import EdgeSpec, Status, TodoSpec


@dataclass(frozen=True, slots=True)
class Change:
    """One fact. `actor` is who stated it: `core`, `operator`, `host:<name>`, `model`.

    `follows` counts back, within the changes that are committed together, to the one that caused it.
    """

    kind: str
    payload: Mapping[str, Any]
    actor: str = "core"
    follows: int | None = None


def session_created(
    *, kind: str, title: str, playbook: str | None, source: str | None, parent: str | None, settings: Mapping[str, Any]
) -> Change:
    payload = {"kind": kind, "title": title, "playbook": playbook, "source": source, "parent": parent}
    return Change("session.created", {**payload, "settings": dict(settings)}, "operator")


def session_status(status: str, reason: str | None = None, actor: str = "core") -> Change:
    return Change("session.status", {"status": status, "reason": reason}, actor)


def session_resumed(process: Mapping[str, Any]) -> Change:
    return Change("session.resumed", {"process": dict(process)}, "operator")


def todo_added(spec: TodoSpec, position: int, actor: str = "operator") -> Change:
    return Change("todo.added", {**asdict(spec), "body": dict(spec.body), "position": position}, actor)


def todo_linked(edge: EdgeSpec, actor: str = "operator") -> Change:
    return Change("todo.linked", {"src": edge.src, "dst": edge.dst, "on": edge.on}, actor)


def todo_changed(id: str, *, actor: str, **values: Any) -> Change:
    """A pending todo is asked to be something else: `title`, `priority` or `body`."""
    return Change("todo.changed", {"id": id, **values}, actor)


def playbook_loaded(
    scope: str, *, playbook: str, prefix: str, params: Mapping[str, Any], actor: str = "operator", **more: Any
) -> Change:
    """A playbook joined a session that goes on. Its todos carry `scope` in their bodies and `prefix` in their ids.

    `more`: `payload` (hash and package), `hosts` that the playbook brings, `report` (a path in the session's folder).
    """
    payload = {"scope": scope, "playbook": playbook, "prefix": prefix, "params": dict(params)}
    return Change("playbook.loaded", {**payload, **{k: v for k, v in more.items() if v is not None}}, actor)


def todo_status(
    id: str,
    was: Status,
    now: Status,
    *,
    reason: str | None = None,
    result: Mapping[str, Any] | None = None,
    attempt: int | None = None,
    host: str | None = None,
    actor: str = "core",
) -> Change:
    """A transition. `attempt` comes with a start, `result` and `reason` with an end."""
    payload: dict[str, Any] = {"id": id, "was": was, "now": now}
    optional = {"reason": reason, "result": result, "attempt": attempt, "host": host}
    payload.update({k: v for k, v in optional.items() if v is not None})
    return Change("todo.status", payload, actor)


def job_submitted(
    id: str, *, todo: str, attempt: int, host: str, spec: Mapping[str, Any], gpus: Sequence[int] = ()
) -> Change:
    """The intent to launch, durable before anything is sent. Takes the leases on `gpus`."""
    payload = {"id": id, "todo": todo, "attempt": attempt, "host": host, "spec": dict(spec), "gpus": list(gpus)}
    return Change("job.submitted", payload)


def job_state(id: str, host: str, state: str, **seen: Any) -> Change:
    """What the host said of a job: `running`, `ready`, `exited`, `lost`, `refused`. The last three free the leases."""
    return Change("job.state", {"id": id, "state": state, **seen}, f"host:{host}")


def job_cancel(id: str, reason: str, actor: str = "core") -> Change:
    """The intent to kill, durable before the kill is sent."""
    return Change("job.cancel", {"id": id, "reason": reason}, actor)


def job_reported(id: str, host: str, *, done: float | None, total: float | None, unit: str | None, line: str) -> Change:
    """How far a running job says it is, and its last log line. Now and then, not each time: see `agent/reports.py`."""
    payload = {"id": id, "done": done, "total": total, "unit": unit, "line": line}
    return Change("job.reported", {k: v for k, v in payload.items() if v not in (None, "")}, f"host:{host}")


def approval_asked(todo: str, question: str, default: str) -> Change:
    return Change("approval.asked", {"todo": todo, "question": question, "default": default})


def approval_answered(todo: str, answer: str, by: str, reason: str | None = None) -> Change:
    payload = {"todo": todo, "answer": answer, "by": by}
    return Change("approval.answered", {**payload, **({"reason": reason} if reason else {})}, by)


def host_saved(
    name: str, *, address: str, settings: Mapping[str, Any], key: str | None, facts: Mapping[str, Any] | None = None
) -> Change:
    payload = {"name": name, "address": address, "settings": dict(settings), "key": key, "facts": facts}
    return Change("host.saved", payload, "operator")


def host_probed(name: str, facts: Mapping[str, Any]) -> Change:
    return Change("host.probed", {"name": name, "facts": dict(facts)}, f"host:{name}")


def host_removed(name: str) -> Change:
    return Change("host.removed", {"name": name}, "operator")
