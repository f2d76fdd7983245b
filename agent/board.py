"""A session as a person looks at it: each todo with its status, host, times, job and what it waits for.

    board = look.read_board(conn, session)         # as stored
    board.apply(kind, payload, time)               # and on, by the changes of the log
    board.progress(job, time)

It is fed by a run in this process or by the log of another one, and drawn by `agent/picture.py`. It reads nothing and
decides nothing: what may start is the core's business, here it is only told why something has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.pace import Pace
from agent.templates import render
from state.errors import TurnoutError
from state.graph import MET
from state.projection import JOB_ENDED
from state.specs import TERMINAL
from tools.jobs import ContactEvent, JobState, Progress

PLANNED = "planned"
"""The status of a board that shows what would be run."""


@dataclass(slots=True)
class BoardJob:
    """The newest job of a todo. `submitted` is this machine's clock; `started` and `ended` are the host's."""

    id: str
    todo: str
    host: str
    state: str
    submitted: float
    gpus: list[int] = field(default_factory=list)
    cancel: str | None = None
    is_service: bool = False
    progress: Progress | None = None
    pace: Pace = field(default_factory=Pace)

    @property
    def alive(self) -> bool:
        return self.state not in JOB_ENDED

    @property
    def last_line(self) -> str:
        """The last line of its log, unless that only is the report of its progress."""
        line = self.progress.line if self.progress is not None else ""
        return "" if line.startswith("::progress") else line


@dataclass(slots=True)
class BoardTodo:
    """A todo and its incoming edges (`after`: source and event). Times are seconds since the epoch."""

    id: str
    title: str
    kind: str
    position: int
    status: str = "pending"
    priority: str = "medium"
    join: str = "all"
    group: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    after: list[tuple[str, str]] = field(default_factory=list)
    attempts: int = 0
    host: str | None = None
    result: Mapping[str, Any] | None = None
    reason: str | None = None
    started: float | None = None
    ended: float | None = None
    job: BoardJob | None = None

    def seconds(self, now: float) -> float | None:
        """How long its last attempt took or has taken so far; `None` before the first."""
        return None if self.started is None else max(0.0, (self.ended or now) - self.started)

    @property
    def shown(self) -> str:
        """Its status as a person reads it: a gate whose condition does not hold said `no`, and nothing went wrong."""
        return "no" if self.kind == "gate" and self.status == "failed" else self.status

    @property
    def work(self) -> Mapping[str, Any]:
        """The body that is run: of a research step its fallback."""
        return self.body.get("fallback") or self.body


@dataclass
class Board:
    """One session. `seq` is the number of the last message in it; `abandoned` says that no process drives it."""

    session: str
    title: str = ""
    playbook: str | None = None
    status: str = "running"
    reason: str | None = None
    created: float = 0.0
    updated: float = 0.0
    seq: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)
    todos: dict[str, BoardTodo] = field(default_factory=dict)
    jobs: dict[str, BoardJob] = field(default_factory=dict)
    questions: dict[str, str] = field(default_factory=dict)
    lost: dict[str, ContactEvent] = field(default_factory=dict)
    abandoned: bool = False

    def apply(self, kind: str, payload: Mapping[str, Any], time: float) -> None:
        """One change, made at `time`. Kinds that show nothing are passed over."""
        handler = _HANDLERS.get(kind)
        if handler is not None:
            handler(self, payload, time)
        self.updated = time

    def last_words(self) -> dict[str, Progress]:
        """What jobs said last, by their ids."""
        return {id: job.progress for id, job in self.jobs.items() if job.progress is not None}

    def progress(self, state: JobState, time: float) -> None:
        """A job said how far it is, or was when it ended."""
        job = self.jobs.get(state.id)
        if job is not None and state.progress is not None:
            job.progress = state.progress
            if state.progress.done is not None:
                job.pace.saw(state.progress.done, time)

    def contact(self, event: ContactEvent) -> None:
        """A host was reached or lost."""
        if event.kind == "connected":
            self.lost.pop(event.host, None)
        else:
            self.lost[event.host] = event

    # What is asked of it

    def count(self, *statuses: str) -> int:
        return sum(todo.status in statuses for todo in self.todos.values())

    @property
    def done(self) -> int:
        return self.count(*TERMINAL)

    def seconds(self, now: float) -> float:
        """How long the session took, or has taken so far."""
        return max(0.0, (now if self.status == "running" else self.updated) - self.created)

    def hosts(self) -> list[str]:
        """The hosts it has used, in order of their first todo."""
        return list(dict.fromkeys(todo.host for todo in self.todos.values() if todo.host))

    def failures(self) -> list[BoardTodo]:
        """Failed todos that nothing in the graph answers (see `SessionState.unhandled_failures`)."""
        answered = {
            src
            for after in self.todos.values()
            for src, on in after.after
            if on == "failure" or (after.join == "any" and after.status == "completed")
        }
        return [todo for todo in self.todos.values() if todo.status == "failed" and todo.id not in answered]

    def waits_for(self, todo: BoardTodo) -> str | None:
        """Why a todo that has not ended does not move, in words; `None` when it does, or has ended."""
        if todo.status == "in_progress":
            return self._held_up(todo)
        if todo.status != "pending":
            return None
        if self.blocked(todo):
            open_edges = [src for src, on in todo.after if self._edge(src, on) == "open"]
            either = "any of " if todo.join == "any" and len(open_edges) > 1 else ""
            return "waits for " + either + ", ".join(self._named(open_edges))
        if self.status != "running":
            return None if self.status == PLANNED else "may start"
        return "waits for " + self._limit(todo)

    def _named(self, ids: Iterable[str]) -> list[str]:
        """Names for a list: several members of one group become `warm (5)`."""
        names: dict[str, list[str]] = {}
        for id in dict.fromkeys(ids):
            names.setdefault(self.todos[id].group or id, []).append(id)
        return [
            f"{name} ({len(members)})" if len(members) > 2 else ", ".join(members) for name, members in names.items()
        ]

    def blocked(self, todo: BoardTodo) -> bool:
        """Whether it waits for other todos, and not only for its turn."""
        return (
            todo.status == "pending"
            and any(self._edge(src, on) == "open" for src, on in todo.after)
            and not (todo.join == "any" and any(self._edge(src, on) == "met" for src, on in todo.after))
        )

    def _held_up(self, todo: BoardTodo) -> str | None:
        if todo.id in self.questions:
            return "waits for your answer"
        if todo.kind == "stop":
            return f"waits until {todo.body.get('todo')} has ended"
        if todo.job is not None and todo.job.alive:
            if todo.job.cancel:
                return "being stopped"
            if todo.job.state == "submitted":
                return "being launched"
            if todo.job.is_service:
                return "until it is ready"
        return None

    def _edge(self, src: str, on: str) -> str:
        status = self.todos[src].status
        if status not in TERMINAL:
            return "open"
        return "met" if status in MET[on] else "dead"  # type: ignore[index]

    def _limit(self, todo: BoardTodo) -> str:
        work = todo.work
        if "tool" in work:
            return "a tool's turn"
        if "host" not in work:
            return "its turn"
        return f"{'GPUs' if work.get('gpus') else 'a place'} on {self.host_of(todo)}"

    def host_of(self, todo: BoardTodo) -> str:
        """Where a todo runs or will run; the template's text while a result that it names is missing."""
        wanted = str(todo.host or todo.work.get("host") or "")
        results = {other.id: other.result for other in self.todos.values() if other.result is not None}
        try:
            return render(wanted, {**self.params, "params": self.params, "todos": results})
        except TurnoutError:
            return wanted


# How each change shows


def _session_status(board: Board, p: Mapping[str, Any], time: float) -> None:
    board.status, board.reason = p["status"], p.get("reason")


def _todo_added(board: Board, p: Mapping[str, Any], time: float) -> None:
    names = ("id", "title", "kind", "position", "priority", "join", "group", "body")
    board.todos[p["id"]] = BoardTodo(**{name: p[name] for name in names})


def _todo_changed(board: Board, p: Mapping[str, Any], time: float) -> None:
    todo = board.todos[p["id"]]
    for name in ("title", "priority", "body"):
        setattr(todo, name, p.get(name, getattr(todo, name)))


def _todo_linked(board: Board, p: Mapping[str, Any], time: float) -> None:
    board.todos[p["dst"]].after.append((p["src"], p["on"]))


def _todo_status(board: Board, p: Mapping[str, Any], time: float) -> None:
    todo = board.todos[p["id"]]
    todo.status, todo.reason = p["now"], p.get("reason")
    if todo.status == "in_progress":
        todo.started, todo.ended, todo.host = time, None, p.get("host")
        todo.attempts = p.get("attempt", 1)
    elif todo.status in TERMINAL:
        todo.ended, todo.result = time, p.get("result")
        board.questions.pop(todo.id, None)
    else:
        todo.ended = None


def _job_submitted(board: Board, p: Mapping[str, Any], time: float) -> None:
    ready = bool(p["spec"].get("ready"))
    job = BoardJob(p["id"], p["todo"], p["host"], "submitted", time, list(p["gpus"]), is_service=ready)
    board.jobs[job.id] = board.todos[job.todo].job = job


def _job_state(board: Board, p: Mapping[str, Any], time: float) -> None:
    if p["id"] in board.jobs:
        board.jobs[p["id"]].state = p["state"]


def _job_reported(board: Board, p: Mapping[str, Any], time: float) -> None:
    if p["id"] in board.jobs:
        told = Progress(p.get("done"), p.get("total"), p.get("unit"), p.get("line", ""))
        board.progress(JobState(p["id"], "running", progress=told), time)


def _job_cancel(board: Board, p: Mapping[str, Any], time: float) -> None:
    if p["id"] in board.jobs:
        board.jobs[p["id"]].cancel = p["reason"]


def _approval_asked(board: Board, p: Mapping[str, Any], time: float) -> None:
    board.questions[p["todo"]] = p["question"]


def _approval_answered(board: Board, p: Mapping[str, Any], time: float) -> None:
    board.questions.pop(p["todo"], None)


_HANDLERS: dict[str, Callable[[Board, Mapping[str, Any], float], None]] = {
    "session.status": _session_status,
    "todo.added": _todo_added,
    "todo.changed": _todo_changed,
    "todo.linked": _todo_linked,
    "todo.status": _todo_status,
    "job.submitted": _job_submitted,
    "job.state": _job_state,
    "job.reported": _job_reported,
    "job.cancel": _job_cancel,
    "approval.asked": _approval_asked,
    "approval.answered": _approval_answered,
}
