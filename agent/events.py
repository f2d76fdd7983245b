"""What can happen to a session: the events that `agent/core.py` steps on. Plain data, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from state.specs import FailureKind


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
    """A tool came back. `result` is JSON; a failure has a `reason`."""

    todo: str
    ok: bool
    result: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """The operator, or a rule in the operator's name, answered a question."""

    todo: str
    answer: str
    by: str = "operator"


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


Event = Go | JobSeen | ToolEnded | Answered | Cancel | Reset | Stop
