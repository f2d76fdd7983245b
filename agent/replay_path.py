"""Where the time of a session went: the chain of todos, answers and waits that decided how long it took.

    for step in path(spans):
        step.label, step.sort, step.seconds

The chain is followed from the end back: the todo that ended last, before it the one whose end let it start, and so on.
What ran beside it is not in it, because making that quicker would not have made the session shorter. Where no todo
explains a stretch of time (a conversation), it is what was going on: a model's turn, a tool, a question that waited, or
nothing. The steps follow each other without a gap from the first message to the last. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from agent.replay_spans import Span, Spans, TodoTimes
from agent.replay_words import todo_name
from state.graph import MET

EPSILON_S = 0.05
"""Shorter steps say nothing and are given to their neighbour."""


@dataclass(slots=True)
class Step:
    """A stretch of time. `sort` is `job, tool, research, ask, model, queue, away, idle` or another kind of todo."""

    sort: str
    label: str
    start: float
    end: float
    todo: str | None = None

    @property
    def seconds(self) -> float:
        return self.end - self.start


def path(spans: Spans) -> list[Step]:
    """The steps, by time."""
    return _joined(reversed(_Chain(spans).follow()))


def shares(steps: Sequence[Step]) -> list[tuple[str, str, float]]:
    """(sort, label, seconds) by name, the longest first."""
    total: dict[tuple[str, str], float] = {}
    for step in steps:
        total[step.sort, step.label] = total.get((step.sort, step.label), 0.0) + step.seconds
    return sorted(((sort, label, seconds) for (sort, label), seconds in total.items()), key=lambda row: -row[2])


class _Chain:
    """Follows the chain. What is looked for again and again is sorted once, so that thousands of todos cost little."""

    def __init__(self, spans: Spans) -> None:
        self.spans = spans
        self._doers = sorted((t for t in spans.todos.values() if t.attempts), key=self._end)
        self._ends = [self._end(todo) for todo in self._doers]
        self._busy = sorted(_busy(spans))
        self._starts = [start for start, *_ in self._busy]
        self._latest = list(accumulate((end for _, end, *_ in self._busy), max))
        self._over: dict[str, float] = {}
        for job in spans.jobs.values():
            if job.end is not None:
                todo = str(job.more.get("todo"))
                self._over[todo] = max(job.end, self._over.get(todo, 0.0))

    def follow(self) -> list[Step]:
        """The steps, the last one first."""
        spans, until = self.spans, self.spans.ended
        steps: list[Step] = []
        todo = self._last_before(until)
        while todo is not None:
            end = min(until, self._end(todo))
            if until - end > EPSILON_S:
                steps += reversed(self._between(end, until))
                until = end
            start = min(todo.attempts[0].start, until)
            steps += reversed(self._todo_steps(todo, start, until))
            before = self._predecessor(todo, start)
            since = max(spans.began, min(todo.added, start)) if before is None else min(start, self._end(before))
            steps += reversed(self._queue(todo, since, start))
            until, todo = since, before or self._last_before(since)
        return [*steps, *reversed(self._between(spans.began, until))]

    def _end(self, todo: TodoTimes) -> float:
        last = todo.attempts[-1].end if todo.attempts else todo.ended
        return self.spans.ended if last is None else last

    def _last_before(self, time: float) -> TodoTimes | None:
        place = bisect_right(self._ends, time + EPSILON_S)
        return next((t for t in reversed(self._doers[:place]) if t.attempts[0].start < time), None) if place else None

    def _predecessor(self, todo: TodoTimes, time: float, seen: frozenset[str] = frozenset()) -> TodoTimes | None:
        """The todo whose end let this one start: of an `all` the last, of an `any` the first that satisfied it.

        Gates and races take no time, nor does a question that `--yes` answers: it is looked for behind them.
        """
        found: list[TodoTimes] = []
        for src, on in todo.after:
            source = self.spans.todos.get(src)
            if source is None or src in seen:
                continue
            if not source.attempts or time <= source.attempts[0].start <= self._end(source) <= time + EPSILON_S:
                source = self._predecessor(source, time, seen | {todo.id})
            elif todo.spec.get("join") == "any" and source.status not in MET[on]:  # type: ignore[index]
                continue
            if source is not None and source.attempts[0].start < time and self._end(source) <= time + EPSILON_S:
                found.append(source)
        choose = min if todo.spec.get("join") == "any" else max
        return choose(found, key=self._end, default=None)

    def _todo_steps(self, todo: TodoTimes, start: float, end: float) -> list[Step]:
        """Its own time, without the time in which nobody drove the session and its job was over."""
        kind, tries = str(todo.spec.get("kind", "todo")), len(todo.attempts)
        label = todo_name(todo.id) + (f", {tries} tries" if tries > 1 else "")
        over = self._over.get(todo.id, end)
        if kind == "job" and _overlap(self.spans.absences, max(start, over), end) > EPSILON_S:
            return [Step(kind, label, start, over, todo.id), Step("away", "nobody drove it", over, end)]
        return [Step(kind, label, start, end, todo.id)]

    def _queue(self, todo: TodoTimes, start: float, end: float) -> list[Step]:
        if end - start <= EPSILON_S:
            return []
        if _overlap(self.spans.absences, start, end) > (end - start) / 2:
            return [Step("away", "nobody drove it", start, end)]
        return [
            Step("queue", f"{todo.spec.get('group') or todo_name(todo.id)} waited for a place", start, end, todo.id)
        ]

    def _between(self, start: float, end: float) -> list[Step]:
        """What went on in a stretch that no todo explains; of several things at once the one that began first."""
        if end - start <= EPSILON_S:
            return []
        steps: list[Step] = []
        at = start
        for since, until, _, sort, label in self._within(start, end):
            if since - at > EPSILON_S:
                steps += self._quiet(at, since)
                at = since
            if until > at:
                steps.append(Step(sort, label, at, until))
                at = until
        return steps + (self._quiet(at, end) if end > at else [])

    def _within(self, start: float, end: float) -> list[tuple[float, float, int, str, str]]:
        """What was busy between two times, cut to them."""
        found: list[tuple[float, float, int, str, str]] = []
        place = bisect_left(self._starts, end) - 1
        while place >= 0 and self._latest[place] > start:
            since, until, rank, sort, label = self._busy[place]
            if until > start:
                found.append((max(start, since), min(end, until), rank, sort, label))
            place -= 1
        return sorted(found)

    def _quiet(self, start: float, end: float) -> list[Step]:
        """A stretch in which nothing went on: it was a person's turn until they spoke, else there was nothing to do."""
        place = bisect_right(self.spans.said, end + EPSILON_S)
        spoke = min(self.spans.said[place - 1], end) if place else start
        steps = [Step("ask", "a person's turn", start, spoke)] if spoke > start else []
        return steps + ([Step("idle", "nothing to do", max(start, spoke), end)] if end > max(start, spoke) else [])


def _busy(spans: Spans) -> Iterable[tuple[float, float, int, str, str]]:
    """(start, end, rank, sort, label) of all that lasted beside todos."""
    sorts: tuple[tuple[str, str, Iterable[Span]], ...] = (
        ("ask", "waited for an answer", spans.questions),
        ("research", "subagents", spans.children.values()),
        ("tool", "tools", spans.tools.values()),
        ("model", "the model", spans.calls.values()),
        ("away", "nobody drove it", spans.absences),
    )
    for rank, (sort, label, found) in enumerate(sorts):
        for span in found:
            yield span.start, spans.ended if span.end is None else span.end, rank, sort, label


def _overlap(spans: Iterable[Span], start: float, end: float) -> float:
    return sum(max(0.0, min(end, s.end if s.end is not None else end) - max(start, s.start)) for s in spans)


def _joined(steps: Iterable[Step]) -> list[Step]:
    """Neighbours of one name as one, tiny ones with their neighbour, and no gaps."""
    out: list[Step] = []
    for step in steps:
        if out and ((out[-1].sort, out[-1].label) == (step.sort, step.label) or step.seconds <= EPSILON_S):
            out[-1].end = step.end
        elif out and out[-1].seconds <= EPSILON_S:
            step.start = out[-1].start
            out[-1] = step
        else:
            out.append(step)
    return out
