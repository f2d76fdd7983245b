"""What a run shows: JSON lines for programs, plain lines for pipes. The live picture is in `agent/live.py`.

A view is an `Observer` (`agent/dispatcher.py`): it is told what was committed, how jobs get on, and what is asked. It
decides nothing, and it never holds the event loop up: lines are written by a thread, because a pager that is not
scrolled on stops its pipe, and with it whoever writes there.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from agent.board import Board, BoardTodo
from agent.pace import amount, clock
from agent.painter import WORDS
from agent.questions import NOBODY, Answer, Questions, can_ask
from state.changes import Change
from tools.jobs import ContactEvent, JobState, Progress


class Lines:
    """Lines out, in order, from a thread of their own. A reader that went away (`| head`) does not end the run."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="turnout-lines", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        self._queue.put(line)

    def close(self) -> None:
        """Return when all lines are out."""
        self._queue.put(None)
        self._thread.join()

    def _write(self) -> None:
        broken = False
        while (line := self._queue.get()) is not None:
            if broken:
                continue
            try:
                self._out.write(line + "\n")
                if self._queue.empty():
                    self._out.flush()
            except BrokenPipeError:
                broken = True


class View:
    """The common part. `yes` answers every question; else the operator does; without a terminal the answer is no."""

    def __init__(self, *, yes: bool = False) -> None:
        self.answer: Answer | None = None
        self._yes = yes
        self._questions: Questions | None = None

    def changed(self, changes: Sequence[Change], seqs: Sequence[int]) -> None:
        """These changes are stored, under these numbers."""

    def progressed(self, job: JobState) -> None:
        """A job said how far it is; one that has ended, what its last words were."""

    def last_words(self) -> Mapping[str, Progress]:
        """What jobs said last, by their ids, as far as this view has seen it."""
        return {}

    def contact(self, event: ContactEvent) -> None:
        """A host was reached or lost."""

    def asked(self, todo: str, question: str, default: str) -> None:
        """A todo wants an answer."""
        if self._yes:
            self._give(todo, "yes", "--yes")
        elif self.can_ask():
            if self._questions is None:
                self._questions = Questions(self._give, self.pause, self.go_on)
            self._questions.put(todo, question, default)
        else:
            self._give(todo, "no", NOBODY)

    def can_ask(self) -> bool:
        return False

    def pause(self) -> None:
        """A question is about to be shown: keep off the screen."""

    def go_on(self) -> None:
        """The last question was answered."""

    def close(self) -> None:
        """The run is over. May be called twice."""
        if self._questions is not None:
            self._questions.close()

    def withdraw(self, changes: Sequence[Change]) -> None:
        """Take back questions whose todo has ended meanwhile (it lost a race, or was cancelled)."""
        for change in changes:
            if self._questions and change.kind == "todo.status" and change.payload["was"] == "in_progress":
                self._questions.withdraw(change.payload["id"])

    def _give(self, todo: str, answer: str, by: str) -> None:
        if self.answer is not None:
            self.answer(todo, answer, by)


class JsonView(View):
    """One JSON object a line: every change of the log, and beside it progress and contact with hosts.

    A change's payload lies flat beside `time`, `seq`, `kind` and `actor`, which go before keys of the same name.
    """

    def __init__(self, *, yes: bool = False, out: TextIO | None = None) -> None:
        super().__init__(yes=yes)
        self._lines = Lines(out or sys.stdout)
        self._closed = False

    def changed(self, changes: Sequence[Change], seqs: Sequence[int]) -> None:
        for seq, change in zip(seqs, changes, strict=True):
            self._emit(change.kind, change.payload, seq=seq, actor=change.actor)

    def progressed(self, job: JobState) -> None:
        if job.progress is not None and not job.terminal:
            p = job.progress
            told = {"id": job.id, "done": p.done, "total": p.total, "unit": p.unit, "line": p.line}
            self._emit("job.progress", told)

    def contact(self, event: ContactEvent) -> None:
        self._emit("host.contact", {"host": event.host, "state": event.kind, "why": event.why})

    def close(self) -> None:
        super().close()
        if not self._closed:
            self._closed = True
            self._lines.close()

    def _emit(self, kind: str, payload: Mapping[str, Any], **more: Any) -> None:
        told = {**payload, "time": round(time.time(), 3), "kind": kind, **more}
        self._lines.put(json.dumps(told, ensure_ascii=False))


class PlainView(View):
    """A line for each thing a person would want to know, with the time since the start."""

    PROGRESS_EVERY_S = 10.0

    def __init__(self, board: Board, *, yes: bool = False, out: TextIO | None = None) -> None:
        super().__init__(yes=yes)
        self.board = board
        self._lines: Lines | None = Lines(out or sys.stdout)
        self._began = time.monotonic()
        self._told: dict[str, float] = {}
        self._width = min(24, max((len(id) for id in board.todos), default=0))

    def say(self, text: str) -> None:
        """A line with the elapsed time in front."""
        if self._lines is not None:
            self._lines.put(f"[{clock(time.monotonic() - self._began):>7}] {text}")

    def changed(self, changes: Sequence[Change], seqs: Sequence[int]) -> None:
        now = time.time()
        for change in changes:
            self.board.apply(change.kind, change.payload, now)
            p = change.payload
            if change.kind == "todo.status":
                self.say(self._todo_line(self.board.todos[p["id"]], p["was"], now))
            elif change.kind == "job.cancel":
                self.say(f"{self._name(p['id'])} being stopped: {p['reason']}")
            elif change.kind == "session.status" and p["status"] == "paused":
                self.say("stopping: nothing new starts, jobs go on; Ctrl-C again leaves at once")
        self.withdraw(changes)

    def _name(self, job: str) -> str:
        return (self.board.jobs[job].todo if job in self.board.jobs else job).ljust(self._width)

    def _todo_line(self, todo: BoardTodo, was: str, now: float) -> str:
        where = f" on {todo.host}" if todo.host else ""
        reason = f": {todo.reason}" if todo.reason else ""
        name = todo.id.ljust(self._width)
        if todo.status == "in_progress":
            again = f" (try {todo.attempts})" if todo.attempts > 1 else ""
            return f"{name} started{where}{again}   {todo.title}"
        if todo.status == "pending":
            return f"{name} to be tried again{'' if reason == ': to be tried again' else reason}"
        took = f" after {clock(todo.seconds(now))}" if was == "in_progress" and todo.started else ""
        return f"{name} {WORDS.get(todo.shown, todo.status)}{took}{reason}"

    def progressed(self, job: JobState) -> None:
        now = time.time()
        self.board.progress(job, now)
        if job.progress is None or job.terminal or now - self._told.get(job.id, 0.0) < self.PROGRESS_EVERY_S:
            return
        self._told[job.id] = now
        self.say(f"{self._name(job.id)} {progress_words(self.board, job.id, now)}".rstrip())

    def last_words(self) -> Mapping[str, Progress]:
        return self.board.last_words()

    def contact(self, event: ContactEvent) -> None:
        before = self.board.lost.get(event.host)
        self.board.contact(event)
        if event.kind != "connected" and before is None:
            self.say(f"no contact with {event.host}: {event.why}; jobs there go on, trying again")
        elif event.kind == "connected" and before is not None:
            self.say(f"contact with {event.host} again after {clock(time.time() - before.since)}")

    def asked(self, todo: str, question: str, default: str) -> None:
        if not self._yes and not self.can_ask():
            self.say(f"{todo.ljust(self._width)} asks: {question} No: there is {NOBODY}; `--yes` says yes.")
        super().asked(todo, question, default)

    def can_ask(self) -> bool:
        return can_ask()

    def close(self) -> None:
        super().close()
        if self._lines is not None:
            self._lines.close()
            self._lines = None


def progress_words(board: Board, job: str, now: float) -> str:
    """`400/1,000 samples, 310/s, 0:02 left  <last line>`, of which only what is known."""
    known = board.jobs.get(job)
    if known is None or known.progress is None:
        return ""
    p, parts = known.progress, []
    if p.done is not None:
        share = f"{amount(p.done)}/{amount(p.total)}" if p.total else amount(p.done)
        parts.append(f"{share} {p.unit or ''}".rstrip())
        if known.pace.rate:
            parts.append(f"{amount(known.pace.rate)}/s")
        left = known.pace.remaining(p.total, now)
        if left is not None:
            parts.append(f"{clock(left)} left")
    return "  ".join(part for part in (", ".join(parts), known.last_line) if part)
