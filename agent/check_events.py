"""What had happened, told from what was recorded: the event behind each step of a session's log.

The core answers an event with changes, and the log keeps the changes. A step is a change without a cause and those that
it caused; from its kinds and payloads the event is read back: a host's word, a tool's end, an answer, an edit. What no
change can tell (a pause, the leases of other sessions) is not needed, because `agent/check.py` lets start what started.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.events import Add, Alter, Answered, Cancel, Edit, Event, Go, JobSeen, Kill, Link, Load, Op, Reset, Stop
from agent.events import ToolEnded as Ended
from agent.state import SessionState
from state.models import Message
from state.specs import TERMINAL, Retry, TodoSpec

CORE_KINDS = frozenset({
    "session.status", "todo.added", "todo.linked", "todo.changed", "todo.status", "job.submitted", "job.state",
    "job.cancel", "approval.asked", "approval.answered", "playbook.loaded",
})  # fmt: skip
"""Kinds that the core writes; a step without any of them is somebody else's."""
_FALLBACK = "; its fallback takes over"
_AGAIN = "to be tried again"
_OVER = "the session is over"
_EARLY = "ended before it was ready: "


@dataclass(frozen=True, slots=True)
class Step:
    """Messages that one event led to. The first has no cause, unless it goes on a step of another writer."""

    messages: Sequence[Message]

    @property
    def head(self) -> Message:
        return self.messages[0]

    @property
    def is_cores(self) -> bool:
        """Whether the core said it; others write a few of its kinds from beside, while nobody drives or behind it."""
        if self.head.kind == "job.cancel" and self.head.actor != "core":
            return False
        if self.head.kind == "session.status" and self.head.payload["status"] == "cancelled":
            return False
        return any(m.kind in CORE_KINDS for m in self.messages)


def steps(messages: Iterable[Message]) -> Iterator[Step]:
    """The log cut into steps."""
    current: list[Message] = []
    for message in messages:
        if message.cause is None and current:
            yield Step(current)
            current = []
        current.append(message)
    if current:
        yield Step(current)


def spec_of(p: Mapping[str, Any]) -> TodoSpec:
    """A todo as it was added."""
    retry = p.get("retry") or {}
    return TodoSpec(
        p["id"], p["title"], p["kind"], p["body"], p["priority"], p["join"],
        Retry(retry.get("times", 0), tuple(retry.get("on", ()))), p.get("group"),
    )  # fmt: skip


def event_of(step: Step, state: SessionState) -> Event | None:
    """The event that led to a step, given the state before it; `None` if it cannot be told."""
    head, p = step.head, step.head.payload
    edits = any(m.kind in ("todo.added", "todo.linked", "todo.changed", "playbook.loaded") for m in step.messages)
    if edits or any(m.kind == "tool.answered" for m in step.messages):
        return _edit(step)
    match head.kind:
        case "job.state":
            return _job_seen(step, state)
        case "approval.answered":
            return Answered(p["todo"], p["answer"], p["by"], *([p["reason"]] if p.get("reason") else []))
        case "child.reported":
            return _child(step, state)
        case "job.cancel":
            return _cancel(step, state)
        case "session.status" if p["status"] == "paused":
            return Stop()
        case "todo.status":
            return _todo(step, state)
        case _:
            return Go()


def _job_seen(step: Step, state: SessionState) -> JobSeen:
    """The last word about the job in the step: a job may start and end between two looks."""
    words = [m.payload for m in step.messages if m.kind == "job.state" and m.payload["id"] == step.head.payload["id"]]
    seen = words[-1]
    started = next((w["started"] for w in reversed(words) if w.get("started") is not None), None)
    job = state.jobs.get(seen["id"])
    outcome = _outcome(step, job.todo) if job is not None else None
    told = {name: seen.get(name) for name in ("rc", "signal", "reason", "ended")}
    failure, output = seen.get("failure"), None
    if outcome is not None and job is not None:
        result = dict(outcome.get("result") or {})
        early = job.is_service and str(outcome.get("reason")).startswith(_EARLY)
        if outcome["now"] == "failed":
            failure, output = result.pop("failure", failure), result
            failure = None if early else failure  # a service that ended by itself had not failed until the core said so
        elif outcome["now"] == "completed":
            output = {k: v for k, v in result.items() if seen["state"] != "ready" or k not in ("job", "host")}
        elif failure is None and not early:  # it is tried again: the kind must be one that its rule names
            failure = next(iter(state.todos[job.todo].spec.retry.on), None)
    return JobSeen(seen["id"], seen["state"], failure=failure, output=output, started=started, **told)


def _outcome(step: Step, todo: str) -> Mapping[str, Any] | None:
    """What the step made of a todo that ran."""
    ends = (m.payload for m in step.messages if m.kind == "todo.status" and m.payload["id"] == todo)
    return next((p for p in ends if p["was"] == "in_progress"), None)


def _todo(step: Step, state: SessionState) -> Event:
    p = step.head.payload
    if p["was"] in TERMINAL and p.get("reason") == _AGAIN:
        again = [m.payload["id"] for m in step.messages if _reopens(m)]
        return Reset(tuple(again))
    if p["now"] == "cancelled" and p["id"] in state.todos:
        return Cancel(p["id"], p.get("reason") or "")
    if p["was"] == "in_progress" and p["id"] in state.tools:
        return _tool_ended(p["id"], p)
    return Go()


def _reopens(m: Message) -> bool:
    return m.kind == "todo.status" and m.payload["was"] in TERMINAL and m.payload["now"] == "pending"


def _tool_ended(todo: str, p: Mapping[str, Any], report: Mapping[str, Any] | None = None) -> Ended:
    reason = str(p.get("reason") or "")
    result = dict(report if report is not None else p.get("result") or {})
    if p["now"] == "completed":
        return Ended(todo, True, result)
    if p["now"] == "pending" and reason.endswith(_FALLBACK):
        return Ended(todo, False, reason=reason.removesuffix(_FALLBACK), fallback=True)
    if p["now"] == "pending":
        return Ended(todo, False, reason=reason.rpartition("; try ")[0])
    failed = dict(p.get("result") or {})
    failed.pop("failure", None)
    return Ended(todo, False, failed, reason=reason or None)


def _child(step: Step, state: SessionState) -> Event | None:
    """A subagent came back, or was given up with its todo."""
    for m in step.messages[1:]:
        if m.kind == "todo.status" and m.payload["id"] in state.tools:
            p = m.payload
            if p["now"] == "cancelled":
                return Cancel(p["id"], p.get("reason") or "")
            return _tool_ended(p["id"], p, step.head.payload["report"] if p["now"] == "completed" else None)
    return None


def _cancel(step: Step, state: SessionState) -> Event:
    p = step.head.payload
    job = state.jobs.get(p["id"])
    for m in step.messages[1:]:
        if m.kind == "todo.status" and m.payload["now"] == "cancelled" and job and m.payload["id"] == job.todo:
            return Cancel(job.todo, p["reason"])
    if p["reason"] == _OVER or job is None:
        return Go()
    return Edit("", (Kill(job.todo, p["reason"]),))


def _edit(step: Step) -> Edit | None:
    """The ops of an edit, in order. `None` for the answer of a tool that edited nothing."""
    answer = next((m for m in reversed(step.messages) if m.kind == "tool.answered"), None)
    outcomes = _outcomes(answer.payload["content"]) if answer is not None else None
    ops = list(_told_by_outcomes(step, outcomes)) if outcomes is not None else list(_told_by_changes(step))
    if not ops:
        return None
    if answer is None:
        return Edit("", tuple(ops), _actor(step))
    p = answer.payload
    return Edit(p["tool_use_id"], tuple(ops), _actor(step), (p["call"], p["name"]))


def _actor(step: Step) -> str:
    """Who asked: the writer of the edit's own changes."""
    own = ("todo.added", "todo.linked", "todo.changed", "playbook.loaded")
    return next((m.actor for m in step.messages if m.kind in own), "model")


def _outcomes(content: Any) -> list[dict[str, Any]] | None:
    try:
        found = json.loads(content)
    except (TypeError, ValueError):
        return None
    return found if isinstance(found, list) and all(isinstance(o, dict) and "op" in o for o in found) else None


def _told_by_outcomes(step: Step, outcomes: Sequence[Mapping[str, Any]]) -> Iterator[Op]:
    """The ops of a model's edit: its answer names each, and the changes hold what they were about."""
    for outcome in outcomes:
        id = str(outcome["id"])
        of = {m.kind: m for m in reversed(step.messages) if m.payload.get("id", m.payload.get("scope")) == id}
        match outcome["op"]:
            case "add" if "todo.added" in of:
                place = list(step.messages).index(of["todo.added"])
                yield Add(spec_of(of["todo.added"].payload), tuple(_links_into(step.messages[place + 1 :], id)))
            case "link" if "error" not in outcome:
                yield Link(outcome["after"], id, outcome["on"])
            case "change" if "todo.changed" in of:
                p = of["todo.changed"].payload
                yield Alter(id, p.get("title"), p.get("priority"), p.get("body") or {})
            case "change" | "alter" if "error" not in outcome:
                yield Alter(id)
            case "load" if "playbook.loaded" in of:
                yield _load(of["playbook.loaded"].payload)
            case "cancel" if "error" not in outcome:
                yield Cancel(id, _reason_of(step, id))
            case "retry" if "error" not in outcome:
                yield Reset(tuple(id.split(", ")))
            case "kill" if "error" not in outcome:
                yield Kill(id, _killed(step, str(outcome.get("job"))))


def _reason_of(step: Step, todo: str) -> str:
    ends = (m.payload for m in step.messages if m.kind == "todo.status" and m.payload["id"] == todo)
    return next((p["reason"] for p in ends if p["now"] == "cancelled"), "")


def _killed(step: Step, job: str) -> str:
    kills = (m.payload for m in step.messages if m.kind == "job.cancel" and m.payload["id"] == job)
    return next((p["reason"] for p in kills), "")


def _load(p: Mapping[str, Any]) -> Load:
    return Load(p["scope"], p["playbook"], p["prefix"], p["params"], p.get("payload"), p.get("hosts"), p.get("report"))


def _told_by_changes(step: Step) -> Iterator[Op]:
    """The ops of an operator's edit, which nobody answered: read back from the changes alone."""
    messages = list(step.messages)
    linked: set[tuple[str, str, str]] = set()
    for place, m in enumerate(messages):
        p = m.payload
        match m.kind:
            case "todo.added":
                after = tuple(_links_into(messages[place + 1 :], p["id"]))
                linked |= {(src, p["id"], on) for src, on in after}
                yield Add(spec_of(p), after)
            case "todo.linked" if (p["src"], p["dst"], p["on"]) not in linked:
                yield Link(p["src"], p["dst"], p["on"])
            case "todo.changed":
                yield Alter(p["id"], p.get("title"), p.get("priority"), p.get("body") or {})
            case "playbook.loaded":
                yield _load(p)
            case "todo.status" if _reopens(m) and p.get("reason") == _AGAIN:
                yield Reset((p["id"],))
            case "todo.status" if p["now"] == "cancelled" and not str(p.get("reason")).startswith("lost the race"):
                yield Cancel(p["id"], p.get("reason") or "")
            case "job.cancel" if not _cancelled_after(messages[place + 1 :], p["reason"]):
                if not p["reason"].startswith("stopped by `") and p["reason"] != _OVER:
                    yield Kill(_todo_of(p["id"]), p["reason"])


def _links_into(messages: Sequence[Message], todo: str) -> Iterator[tuple[str, Any]]:
    for m in messages:
        if m.kind != "todo.linked" or m.payload["dst"] != todo:
            return
        yield m.payload["src"], m.payload["on"]


def _cancelled_after(messages: Sequence[Message], reason: str) -> bool:
    ends = (m.payload for m in messages if m.kind == "todo.status" and m.payload["now"] == "cancelled")
    return any(p.get("reason") == reason for p in ends)


def _todo_of(job: str) -> str:
    return job.partition(".")[2].rpartition(".")[0]


def failed_ops(answer: str) -> bool:
    """Whether the recorded outcomes of an edit tell of ops that failed: those leave no change to be read back."""
    return any("error" in outcome for outcome in _outcomes(answer) or ())
