"""From a log to what lasted: attempts of todos, jobs, GPU leases, model calls, tools, subagents, questions, absences.

    spans = Spans(recording.entries)
    spans.todos["train"]        # its attempts, in order
    spans.leases                # (host, gpu) -> who held it, when

One pass over the messages. Times are this machine's, seconds since the epoch; the start and end of a job are taken from
its host where its clock can be believed, because a host goes on while nobody listens. `end` is `None` for what had not
ended when the log did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from agent.replay import Entry
from state.projection import JOB_ENDED
from state.specs import TERMINAL


@dataclass(slots=True)
class Span:
    """Something that lasted. `status` is how it ended, or `running`; `seq` the number of the message that began it."""

    kind: str
    id: str
    start: float
    seq: int
    end: float | None = None
    status: str = "running"
    note: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    def seconds(self, until: float) -> float:
        return max(0.0, (until if self.end is None else self.end) - self.start)


@dataclass(slots=True)
class TodoTimes:
    """A todo: when it was added, its attempts, and each status with the place in the log from which it held."""

    id: str
    spec: Mapping[str, Any]
    added: float
    after: list[tuple[str, str]] = field(default_factory=list)
    attempts: list[Span] = field(default_factory=list)
    history: list[tuple[int, str, str | None]] = field(default_factory=list)
    result: Mapping[str, Any] | None = None
    ended: float | None = None
    status: str = "pending"


class Spans:
    """Everything that lasted in one session's log."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.todos: dict[str, TodoTimes] = {}
        self.jobs: dict[str, Span] = {}
        self.leases: dict[tuple[str, int], list[Span]] = {}
        self.calls: dict[str, Span] = {}
        self.tools: dict[str, Span] = {}
        self.children: dict[str, Span] = {}
        self.questions: list[Span] = []
        self.absences: list[Span] = []
        self.said: list[float] = []
        self.heard = 0.0
        """When the model last got something to answer: a person's words, a tool's result, a notice."""
        self.began = self.ended = 0.0
        self.status, self.reason = "running", None
        for place, entry in enumerate(entries):
            if not place:
                self.began = self.heard = entry.time
            handler = _HANDLERS.get(entry.kind)
            if handler is not None:
                with suppress(KeyError, TypeError, AttributeError):  # a torn file speaks of what never was
                    handler(self, entry, place)
            self.ended = max(self.ended, entry.time)

    def leased_s(self) -> float:
        """GPU seconds that were held, over all GPUs."""
        return sum(span.seconds(self.ended) for spans in self.leases.values() for span in spans)


def _todo_added(spans: Spans, e: Entry, place: int) -> None:
    todo = spans.todos[e.payload["id"]] = TodoTimes(e.payload["id"], dict(e.payload), e.time)
    todo.history.append((place, "pending", None))


def _todo_changed(spans: Spans, e: Entry, place: int) -> None:
    spans.todos[e.payload["id"]].spec |= e.payload  # type: ignore[operator]


def _todo_linked(spans: Spans, e: Entry, place: int) -> None:
    spans.todos[e.payload["dst"]].after.append((e.payload["src"], e.payload["on"]))


def _todo_status(spans: Spans, e: Entry, place: int) -> None:
    p, todo = e.payload, spans.todos[e.payload["id"]]
    now = p["now"]
    if todo.attempts and todo.attempts[-1].end is None:
        last = todo.attempts[-1]
        last.end, last.status = e.time, "retried" if now == "pending" else now
        last.note = p.get("reason") or ""
    if now == "in_progress":
        todo.attempts.append(Span("todo", todo.id, e.time, e.seq, more={"attempt": p.get("attempt", 1)}))
        todo.attempts[-1].more["host"] = p.get("host")
    todo.status = now
    todo.ended = e.time if now in TERMINAL else None
    todo.result = p.get("result") if now in TERMINAL else todo.result
    todo.history.append((place, now, p.get("reason")))


def _job_submitted(spans: Spans, e: Entry, place: int) -> None:
    p = e.payload
    more = {name: p.get(name) for name in ("todo", "attempt", "host")} | {"gpus": list(p.get("gpus") or [])}
    more |= {"submitted": e.time, "service": bool(p["spec"].get("ready")), "run": p["spec"].get("run", "")}
    spans.jobs[p["id"]] = Span("job", p["id"], e.time, e.seq, status="submitted", more=more)
    for gpu in more["gpus"]:
        lease = Span("lease", p["id"], e.time, e.seq, note=p["todo"])
        spans.leases.setdefault((p["host"], gpu), []).append(lease)


def _job_state(spans: Spans, e: Entry, place: int) -> None:
    p, job = e.payload, spans.jobs[e.payload["id"]]
    job.status = p["state"]
    started = p.get("started")
    if started is not None and job.more["submitted"] <= started <= e.time:
        job.start = started
    if p["state"] == "ready":
        job.more["ready"] = e.time
    if p["state"] not in JOB_ENDED:
        return
    ended = p.get("ended")
    job.end = ended if ended is not None and job.start <= ended <= e.time else e.time
    job.note = p.get("reason") or ""
    job.more |= {name: p[name] for name in ("rc", "signal") if p.get(name) is not None}
    for gpu in job.more["gpus"]:
        held = reversed(spans.leases[job.more["host"], gpu])
        lease = next(lease for lease in held if lease.id == job.id)
        lease.end, lease.status = e.time, p["state"]


def _job_cancel(spans: Spans, e: Entry, place: int) -> None:
    spans.jobs[e.payload["id"]].more["cancel"] = e.payload["reason"]


def _asked(spans: Spans, e: Entry, place: int) -> None:
    spans.questions.append(Span("question", e.payload["todo"], e.time, e.seq, note=e.payload["question"]))


def _answered(spans: Spans, e: Entry, place: int) -> None:
    for question in reversed(spans.questions):
        if question.id == e.payload["todo"] and question.end is None:
            question.end, question.status = e.time, str(e.payload["answer"])
            question.more["by"] = e.payload.get("by")
            return


def _model_asked(spans: Spans, e: Entry, place: int) -> None:
    more = {"model": e.payload.get("model"), "purpose": e.payload.get("purpose")}
    spans.calls[e.payload["call"]] = Span("model", e.payload["call"], e.time, e.seq, more=more)


def _model_answered(spans: Spans, e: Entry, place: int) -> None:
    p = e.payload
    call = spans.calls.get(p["call"])
    if call is None:  # of an imported session, which has answers alone
        start = e.time - p["took_s"] if p.get("took_s") else min(spans.heard, e.time)
        call = spans.calls[p["call"]] = Span("model", p["call"], start, e.seq, more={"model": p.get("model")})
    call.end, call.status = e.time, "answered"
    spans.heard = e.time
    call.more |= {name: p[name] for name in ("ttft_s", "stop_reason", "model") if p.get(name)}
    _paid(call, p)
    for block in p.get("content") or ():
        if isinstance(block, Mapping) and block.get("type") == "tool_use" and "id" in block:
            named = {"input": block.get("input")}
            spans.tools[block["id"]] = Span(
                "tool", block["id"], e.time, e.seq, note=str(block.get("name", "")), more=named
            )


def _model_failed(spans: Spans, e: Entry, place: int) -> None:
    p = e.payload
    call = spans.calls.get(p["call"])
    if call is None:
        name = p["call"] or f"failed {e.seq}"
        call = spans.calls[name] = Span("model", name, min(spans.heard, e.time), e.seq, more={"model": p.get("model")})
    call.end, call.status, call.note = e.time, "failed", str(p.get("reason", ""))
    spans.heard = e.time
    _paid(call, p)


def _paid(call: Span, p: Mapping[str, Any]) -> None:
    """What an attempt at a call used and cost is added to what those before it did."""
    before, usage = call.more.get("usage") or {}, p.get("usage") or {}
    if usage:
        names = {**before, **usage}
        call.more["usage"] = {name: int(before.get(name) or 0) + int(usage.get(name) or 0) for name in names}
    if p.get("cost"):
        call.more["cost"] = (call.more.get("cost") or 0.0) + p["cost"]


def _said(spans: Spans, e: Entry, place: int) -> None:
    spans.said.append(e.time)
    spans.heard = e.time


def _noticed(spans: Spans, e: Entry, place: int) -> None:
    spans.heard = e.time


def _tool_answered(spans: Spans, e: Entry, place: int) -> None:
    spans.heard = e.time
    tool = spans.tools[e.payload["tool_use_id"]]
    tool.end, tool.status = e.time, "failed" if e.payload.get("is_error") else "completed"


def _child_started(spans: Spans, e: Entry, place: int) -> None:
    p = e.payload
    spans.children[p["child"]] = Span("child", p["child"], e.time, e.seq, note=p.get("title") or p["child"])


def _child_reported(spans: Spans, e: Entry, place: int) -> None:
    child = spans.children[e.payload["child"]]
    child.end, child.status = e.time, str(e.payload.get("status", "completed"))


def _session_status(spans: Spans, e: Entry, place: int) -> None:
    spans.status, spans.reason = e.payload["status"], e.payload.get("reason")
    if spans.absences and spans.absences[-1].end is None:
        spans.absences[-1].end = e.time
    if spans.status == "paused":
        spans.absences.append(Span("absence", "paused", e.time, e.seq, note="paused"))


def _session_resumed(spans: Spans, e: Entry, place: int) -> None:
    """Nobody drove it since it was paused or, when it was cut off, since the last message."""
    if spans.absences and spans.absences[-1].end is None:
        spans.absences[-1].end = e.time
    elif e.time > spans.ended:
        spans.absences.append(Span("absence", "interrupted", spans.ended, e.seq, e.time, note="interrupted"))


_HANDLERS: dict[str, Callable[[Spans, Entry, int], None]] = {
    "todo.added": _todo_added,
    "todo.changed": _todo_changed,
    "todo.linked": _todo_linked,
    "todo.status": _todo_status,
    "job.submitted": _job_submitted,
    "job.state": _job_state,
    "job.cancel": _job_cancel,
    "approval.asked": _asked,
    "approval.answered": _answered,
    "operator.said": _said,
    "notice.raised": _noticed,
    "model.asked": _model_asked,
    "model.answered": _model_answered,
    "model.failed": _model_failed,
    "tool.answered": _tool_answered,
    "child.started": _child_started,
    "child.reported": _child_reported,
    "session.status": _session_status,
    "session.resumed": _session_resumed,
}
