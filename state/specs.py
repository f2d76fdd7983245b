"""What a todo is asked to be: the words of the graph, independent of any playbook or database.

A playbook is loaded into `TodoSpec` and `EdgeSpec`; a planner edits the graph in the same words. Templates in a body
(`{{ host }}`, `{{ todos.bench.rate }}`) are kept as text and rendered when the todo starts, because they may speak of
results that do not exist yet.

Bodies by kind (all JSON):

    job       {"host", "run", "gpus": int|"all"|template, "timeout_s", "grace_s", "env": {name: template}, "cwd",
               "ready": null | {"log": regex} | {"http": url} | {"file": path}, "keep": bool}
              with `ready` the job is a service: the todo completes when it is ready and the job goes on, until a
              `stop` todo or the end of the session ends it (unless `keep`)
    tool      {"tool": name, "args": {name: template}, "plain": {name: value that is no template}}
    research  {"prompt": template, "fallback": {"tool", "args"} | {"host", "run", ...} | null}
    gate      {"if": expression}
    ask       {"question": template, "default": "yes"|"no", "free": bool, "options": [text]}
              with `free` any answer will do and completes the todo; otherwise only `yes` does
    race      {"losers": "cancel"|"keep"}; its members are its incoming edges
    stop      {"todo": id of a todo whose job is to be stopped}

Any body may have `scope`, the playbook that it came with when that joined a session later, and `by`, who asked for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["pending", "in_progress", "completed", "failed", "skipped", "cancelled"]
Priority = Literal["high", "medium", "low"]
Join = Literal["all", "any"]
On = Literal["success", "failure", "finish"]
Kind = Literal["job", "tool", "research", "gate", "ask", "race", "stop"]
FailureKind = Literal["failed", "timeout", "oom", "lost", "cancelled", "host"]

TERMINAL: frozenset[str] = frozenset({"completed", "failed", "skipped", "cancelled"})
PRIORITIES: Mapping[str, int] = {"high": 0, "medium": 1, "low": 2}


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again at most `times` times, when the failure is of a kind in `on`."""

    times: int = 0
    on: tuple[str, ...] = ("lost",)


@dataclass(frozen=True, slots=True)
class TodoSpec:
    """A node of the graph before it has a status. `group` names the step that a `for_each` was expanded from."""

    id: str
    title: str
    kind: Kind
    body: Mapping[str, Any] = field(default_factory=dict)
    priority: Priority = "medium"
    join: Join = "all"
    retry: Retry = Retry()
    group: str | None = None


@dataclass(frozen=True, slots=True)
class EdgeSpec:
    """`dst` after `src`, on the success, failure or finish of `src`."""

    src: str
    dst: str
    on: On = "success"


@dataclass(frozen=True, slots=True)
class Plan:
    """A loaded playbook with its parameters filled in: what a session starts from."""

    name: str
    title: str
    params: Mapping[str, Any]
    todos: tuple[TodoSpec, ...]
    edges: tuple[EdgeSpec, ...]
    source: str
    payload: str | None = None
    package: str | None = None
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    report: str | None = None
    estimate: str | None = None
