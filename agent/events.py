"""What can happen to a session: the events that `agent/core.py` steps on. Plain data, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from state.specs import FailureKind, On, Priority, TodoSpec


@dataclass(frozen=True, slots=True)
class Go:
    """Start or go on: look at everything that may run."""


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A host said how a job is. `state` is `running`, `ready`, `exited`, `lost` or `refused`."""

    id: str
    state: str
    rc: int | None = None
    signal: str | None = None
    failure: FailureKind | None = None
    reason: str | None = None
    output: Mapping[str, Any] | None = None
    started: float | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A tool or a subagent came back. `result` is JSON; a failure has a `reason`.

    `fallback` when a subagent failed for want of a model, and the fallback of its step may do instead.
    """

    todo: str
    ok: bool
    result: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """The operator, or a rule in the operator's name, answered a question."""

    todo: str
    answer: str
    by: str = "operator"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """The operator no longer wants a todo."""

    todo: str
    reason: str = "cancelled by the operator"


@dataclass(frozen=True, slots=True)
class Reset:
    """The operator wants ended todos to be tried again."""

    todos: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Start nothing more. Jobs stay as they are."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Start nothing new until `Pause(False)`; what runs goes on and is heard of. Not remembered over a resume."""

    on: bool = True


@dataclass(frozen=True, slots=True)
class Add:
    """Edit: a new todo, after the todos that `after` names with what of them it waits for."""

    spec: TodoSpec
    after: tuple[tuple[str, On], ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """Edit: `dst` after `src`."""

    src: str
    dst: str
    on: On = "success"


@dataclass(frozen=True, slots=True)
class Alter:
    """Edit: a todo that has not begun is to be something else. `body` replaces the keys that it has."""

    todo: str
    title: str | None = None
    priority: Priority | None = None
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kill:
    """Edit: end the job of a todo, also that of a service whose todo has completed."""

    todo: str
    reason: str = "stopped by the operator"


@dataclass(frozen=True, slots=True)
class Load:
    """Edit: a playbook joins the session. Its todos and edges follow as further edits; see `state.changes`."""

    scope: str
    playbook: str
    prefix: str
    params: Mapping[str, Any]
    payload: Mapping[str, str] | None = None
    hosts: Mapping[str, Mapping[str, Any]] | None = None
    report: str | None = None


Op = Add | Link | Alter | Kill | Load | Cancel | Reset


@dataclass(frozen=True, slots=True)
class Edit:
    """The graph is to be changed, while it runs. `id` names this edit; `actor` is `operator` or `model`.

    `answers` is `(call, tool name)` when a model asked by a tool call whose `tool_use_id` is `id`: its result is then
    stored in the same commit as the edit, so that neither is ever there without the other.
    """

    id: str
    ops: tuple[Op, ...]
    actor: str = "operator"
    answers: tuple[str, str] | None = None


Event = Go | JobSeen | ToolEnded | Answered | Cancel | Reset | Stop | Pause | Edit
