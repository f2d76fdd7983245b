"""What a run shows: JSON lines for programs, plain lines for pipes. The live picture is in `agent/live.py`.

A view is an `Observer` (`agent/dispatcher.py`): it is told what was committed, how jobs get on, and what is asked. It
decides nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from state.changes import Change
from tools.jobs import ContactEvent, JobState

Answer = Callable[[str, str, str], None]
"""Called with todo, answer and who gave it."""


class View:
    """The common part: writing lines that survive a closed pipe, and refusing questions nobody can answer."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.answer: Answer | None = None
        self._broken = False

    def write(self, line: str) -> None:
        """One line out. A reader that went away (`| head`) does not end the run."""
        if self._broken:
            return
        try:
            self.out.write(line + "\n")
            self.out.flush()
        except BrokenPipeError:
            self._broken = True

    def changed(self, changes: Sequence[Change], seqs: Sequence[int]) -> None:
        """These changes are stored, under these numbers."""

    def progressed(self, job: JobState) -> None:
        """A running job said how far it is."""

    def contact(self, event: ContactEvent) -> None:
        """A host was reached or lost."""

    def asked(self, todo: str, question: str, default: str) -> None:
        """Nobody is there to ask: the answer is no."""
        if self.answer is not None:
            self.answer(todo, "no", "no terminal to ask on")

    def close(self) -> None:
        """The run is over."""


class JsonView(View):
    """One JSON object a line: every change, and progress."""

    def changed(self, changes: Sequence[Change], seqs: Sequence[int]) -> None:
        for seq, change in zip(seqs, changes, strict=True):
            self._emit({"seq": seq, "kind": change.kind, "actor": change.actor, **change.payload})

    def progressed(self, job: JobState) -> None:
        if job.progress is not None:
            p = job.progress
            self._emit(
                {"kind": "job.progress", "id": job.id, "done": p.done, "total": p.total, "unit": p.unit, "line": p.line}
            )

    def contact(self, event: ContactEvent) -> None:
        self._emit({"kind": "host.contact", "host": event.host, "state": event.kind, "why": event.why})

    def _emit(self, data: Mapping[str, Any]) -> None:
        self.write(json.dumps({"time": round(time.time(), 3), **data}, ensure_ascii=False))


class PlainView(View):
    """A line for each thing a person would want to know, with the time since the start."""

    PROGRESS_EVERY_S = 10.0

    def __init__(self, titles: Mapping[str, str], out: TextIO | None = None) -> None:
        super().__init__(out)
        self._titles = titles
        self._began = time.monotonic()
        self._told: dict[str, float] = {}
        self._todo_of: dict[str, str] = {}

    def say(self, text: str) -> None:
        """A line with the elapsed time in front."""
        seconds = int(time.monotonic() - self._began)
        self.write(f"[{seconds // 60:3d}:{seconds % 60:02d}] {text}")

    def changed(self, changes: Sequence[Change], seqs: Sequence[int]) -> None:
        for change in changes:
            p = change.payload
            if change.kind == "todo.status":
                self.say(self._todo_line(p))
            elif change.kind == "job.submitted":
                self._todo_of[p["id"]] = p["todo"]
            elif change.kind == "job.cancel":
                self.say(f"stopping job {p['id']}: {p['reason']}")

    def _todo_line(self, p: Mapping[str, Any]) -> str:
        title = self._titles.get(p["id"], "")
        where = f" on {p['host']}" if p.get("host") else ""
        again = f" (try {p['attempt']})" if p.get("attempt", 1) > 1 else ""
        reason = f": {p['reason']}" if p.get("reason") else ""
        mark = {"in_progress": "started", "pending": "waits to be tried again"}.get(p["now"], p["now"])
        return f"{p['id']:<16} {mark}{where}{again}{reason}" + (f"   {title}" if p["now"] == "in_progress" else "")

    def progressed(self, job: JobState) -> None:
        now = time.monotonic()
        if job.progress is None or now - self._told.get(job.id, 0.0) < self.PROGRESS_EVERY_S:
            return
        self._told[job.id] = now
        p = job.progress
        share = f"{p.done:g}/{p.total:g} {p.unit or ''}" if p.done is not None and p.total else ""
        self.say(f"{self._todo_of.get(job.id, job.id):<16} {share} {p.line}".rstrip())

    def contact(self, event: ContactEvent) -> None:
        if event.kind != "connected":
            self.say(f"no contact with {event.host}: {event.why}; jobs there go on, trying again")
