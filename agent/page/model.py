"""What a page is told of a recording: plain JSON, with times in seconds since the session began.

`rows` are the messages of the session and of its subagents, by time; everything that speaks of a moment names it by the
number of its row. Keys are short because there may be twenty thousand rows; the script's names for them are in
`js/data.js`. Pure.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from heapq import merge
from typing import Any

from agent.page.fold import fold, fold_tree, lengths
from agent.replay import Entry, Recording
from agent.replay_path import path
from agent.replay_series import curves, rows
from agent.replay_spans import Span, Spans, TodoTimes
from agent.replay_words import body, group, words

VERSION = 1
MAX_TEXT = 6_000
"""Characters of one text that are kept at first; `build.py` asks for fewer when the page would grow too large."""
MAX_POINTS = 400
SMALL = 120
"""Characters in a payload that is kept even where there is no room for texts."""
MAX_WORDS = 240
"""Characters of a message's line."""

Logs = Mapping[str, Mapping[str, str]]
"""By job: `{"text", "note"}`, the log as far as it was read from the host."""


def model(
    recording: Recording, *, most: int = MAX_TEXT, logs: Logs | None = None, live: bool = False
) -> dict[str, Any]:
    """The whole of it. `most` bounds each text, `logs` are the logs of jobs that could be read."""
    return _Model(recording, most, logs or {}).build(live)


class _Model:
    def __init__(self, recording: Recording, most: int, logs: Logs) -> None:
        self.recording, self.most, self.logs = recording, most, logs
        self.family = [recording, *_descendants(recording)]
        self.began = recording.began
        self.spans = Spans(recording.entries)
        self.inner = [Spans(child.entries) for child in self.family[1:]]
        self._names: dict[str, dict[str, int]] = {"kinds": {}, "actors": {}}
        self._row_of: dict[int, int] = {}

    def build(self, live: bool) -> dict[str, Any]:
        spans, facts = self.spans, self.recording.facts
        told = self._rows()
        ended = max([spans.ended, *(s.ended for s in self.inner if s.began)])
        jobs = [self._job(job) for job in spans.jobs.values()]
        return {
            "v": VERSION,
            "session": {
                "id": facts.id, "kind": facts.kind, "title": self.recording.title, "playbook": facts.playbook,
                "status": spans.status, "reason": spans.reason, "began": self.began, "seconds": self._at(ended),
                "live": live, "params": fold_tree(facts.settings.get("params", {}), 400),
                "format": facts.settings.get("format"),
            },
            "made": time.time(),
            "most": self.most,
            "kinds": [[kind, group(kind)] for kind in self._names["kinds"]],
            "actors": list(self._names["actors"]),
            "sources": [[r.facts.id, r.facts.title] for r in self.family],
            "rows": told,
            "todos": [self._todo(todo) for todo in spans.todos.values()],
            "jobs": jobs,
            "leases": [
                {"host": host, "gpu": gpu, "spans": [[s.id, s.note, *self._ends(s)] for s in held]}
                for (host, gpu), held in sorted(spans.leases.items())
            ],
            "children": [
                {"id": s.id, "title": s.note, "start": self._at(s.start), "end": self._end(s), "status": s.status}
                for s in spans.children.values()
            ],
            "calls": [self._call(s, n) for n, one in enumerate([spans, *self.inner]) for s in one.calls.values()],
            "tools": [
                [*self._ends(s), s.note, s.status, number]
                for number, one in enumerate([spans, *self.inner])
                for s in one.tools.values()
            ],
            "questions": [
                {"todo": s.id, "text": fold(s.note, 600), "start": self._at(s.start), "end": self._end(s),
                 "answer": None if s.end is None else s.status, "by": s.more.get("by")}
                for s in spans.questions
            ],
            "said": [self._at(e.time) for e in self.recording.entries if e.kind == "operator.said"],
            "absences": [[*self._ends(s), s.note] for s in spans.absences],
            "path": [[s.sort, s.label, self._at(s.start), self._at(s.end), s.todo] for s in path(spans)],
            "curves": self._curves(),
            "totals": self._totals(ended),
        }  # fmt: skip

    # Times

    def _at(self, time: float) -> float:
        return round(time - self.began, 3)

    def _end(self, span: Span) -> float | None:
        return None if span.end is None else self._at(span.end)

    def _ends(self, span: Span) -> list[float | None]:
        return [self._at(span.start), self._end(span)]

    # Messages

    def _rows(self) -> list[list[Any]]:
        """`[source, seq, time, kind, actor, cause, words, detail]` each, by time."""
        streams = [
            [(at, number, entry) for at, entry in zip(recording.times, recording.entries, strict=True)]
            for number, recording in enumerate(self.family)
        ]
        told = []
        ordered = merge(*streams, key=lambda item: item[0]) if len(streams) > 1 else streams[0]
        for place, (at, number, entry) in enumerate(ordered):
            if number == 0:
                self._row_of[entry.seq] = place
            kind, actor = self._index("kinds", entry.kind), self._index("actors", entry.actor)
            row = [number, entry.seq, self._at(at), kind, actor, entry.cause, self._words(entry), self._detail(entry)]
            told.append(row)
        return told

    def _words(self, entry: Entry) -> str:
        told, most = words(entry), max(self.most, MAX_WORDS // 3)
        return told if len(told) <= min(most, MAX_WORDS) else told[: min(most, MAX_WORDS) - 1] + "…"

    def _index(self, what: str, name: str) -> int:
        return self._names[what].setdefault(name, len(self._names[what]))

    def _detail(self, entry: Entry) -> Any:
        """What is shown when a message is opened: its text and the rest of its payload."""
        text = body(entry)
        if not self.most:
            return None if text or sum(lengths(entry.payload)) > SMALL else dict(entry.payload)
        if entry.kind == "model.answered":
            return {
                "blocks": [self._block(b) for b in entry.payload.get("content") or ()],
                **self._rest(entry, "content"),
            }
        if not text:
            return fold_tree(entry.payload, self.most)
        name = {"tool.answered": "content", "conversation.compacted": "summary", "child.started": "prompt"}
        name |= {"child.reported": "report"}
        return {"text": fold(text, self.most), **self._rest(entry, name.get(entry.kind, "text"))}

    def _rest(self, entry: Entry, but: str) -> dict[str, Any]:
        return {"rest": fold_tree({k: v for k, v in entry.payload.items() if k != but}, self.most)}

    def _block(self, block: Any) -> Any:
        return fold_tree(block, self.most) if isinstance(block, Mapping) else {"type": "text", "text": str(block)}

    # What lasted

    def _todo(self, todo: TodoTimes) -> dict[str, Any]:
        spec = todo.spec
        rows_of = [self._row(place) for place, _, _ in todo.history]
        history = zip(rows_of, todo.history, strict=True)
        return {
            "id": todo.id,
            **{name: spec.get(name) for name in ("title", "kind", "priority", "join", "group")},
            "added": self._at(todo.added),
            "after": todo.after,
            "history": [[row, status, fold(reason, 400) if reason else None] for row, (_, status, reason) in history],
            "attempts": [
                [*self._ends(s), s.status, s.more.get("host"), s.more.get("attempt"), fold(s.note, 300)]
                for s in todo.attempts
            ],
            "result": fold_tree(todo.result, 400),
            "body": fold_tree(spec.get("body") or {}, self.most),
            "bars": rows(todo.result),
        }

    def _row(self, place: int) -> int:
        return self._row_of.get(self.recording.entries[place].seq, place)

    def _job(self, job: Span) -> dict[str, Any]:
        more = job.more
        return {
            "id": job.id,
            **{
                name: more.get(name)
                for name in ("todo", "attempt", "host", "gpus", "service", "rc", "signal", "cancel")
            },
            "row": self._row_of.get(job.seq, 0),
            "submitted": self._at(more["submitted"]),
            "ready": self._at(more["ready"]) if "ready" in more else None,
            "start": self._at(job.start),
            "end": self._end(job),
            "status": job.status,
            "note": fold(job.note, 300),
            "run": fold(str(more.get("run", "")), self.most),
            "log": self._log(job.id),
        }

    def _log(self, job: str) -> dict[str, str] | None:
        """Logs are given three times the room of other texts."""
        log = self.logs.get(job)
        return None if log is None or not self.most else {**log, "text": fold(log["text"], 3 * self.most)}

    def _call(self, call: Span, source: int) -> dict[str, Any]:
        more, usage = call.more, call.more.get("usage") or {}
        return {
            "start": self._at(call.start), "end": self._end(call), "status": call.status, "source": source,
            "model": more.get("model"), "purpose": more.get("purpose"), "cost": more.get("cost"),
            "ttft": more.get("ttft_s"), "in": _read(usage), "out": usage.get("output", 0), "note": fold(call.note, 300),
        }  # fmt: skip

    def _curves(self) -> list[dict[str, Any]]:
        todo_of = {job.id: job.more.get("todo") for job in self.spans.jobs.values()}
        return [
            {"job": c.job, "todo": todo_of.get(c.job), "name": c.name, "unit": c.unit,
             "points": [[self._at(at), float(f"{value:.5g}")] for at, value in thin(c.points, MAX_POINTS)]}
            for c in curves(self.recording.entries)
        ]  # fmt: skip

    def _totals(self, ended: float) -> dict[str, Any]:
        jobs = list(self.spans.jobs.values())
        calls = [call for one in (self.spans, *self.inner) for call in one.calls.values()]
        usages = [call.more.get("usage") or {} for call in calls]
        costs = [call.more["cost"] for call in calls if call.more.get("cost") is not None]
        return {
            "jobs": len(jobs),
            "job_s": round(sum(job.seconds(self.spans.ended) for job in jobs), 3),
            "gpu_s": round(self.spans.leased_s(), 3),
            "gpus": len(self.spans.leases),
            "hosts": sorted({str(job.more["host"]) for job in jobs}),
            "calls": len(calls),
            "failed_calls": sum(call.status == "failed" for call in calls),
            "in": sum(map(_read, usages)),
            "cached": sum(int(usage.get("cache_read") or 0) for usage in usages),
            "out": sum(int(usage.get("output") or 0) for usage in usages),
            "cost": round(sum(costs), 6) if costs else None,
            "priced": len(costs),
            "asked_s": round(sum(q.seconds(ended) for q in self.spans.questions), 3),
            "away_s": round(sum(a.seconds(ended) for a in self.spans.absences), 3),
            "retries": sum(max(0, len(todo.attempts) - 1) for todo in self.spans.todos.values()),
        }


def _read(usage: Mapping[str, Any]) -> int:
    """All tokens that were read, from a cache or not."""
    return sum(int(usage.get(name) or 0) for name in ("input", "cache_read", "cache_write"))


def _descendants(recording: Recording) -> Iterable[Recording]:
    for child in recording.children:
        yield child
        yield from _descendants(child)


def thin(points: list[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most about `most` points, of which none is invented: of each stretch the first, least, greatest and last."""
    if len(points) <= most:
        return points
    size = -(-len(points) * 4 // most)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        chosen = {0, len(part) - 1}
        chosen |= {min(range(len(part)), key=lambda n: part[n][1]), max(range(len(part)), key=lambda n: part[n][1])}
        kept += [part[n] for n in sorted(chosen)]
    return kept
