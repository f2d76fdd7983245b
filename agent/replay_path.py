"""Where the time of a session went: the chain of todos, answers and waits that decided how long it took.

    for step in path(spans):
        step.label, step.sort, step.seconds

The chain is followed from the end back: the todo that ended last, before it the one whose end let it start, and so on.
What ran beside it is not in it, because making that quicker would not have made the session shorter. Where no todo
explains a stretch of time (a conversation), it is what was going on: a model's turn, a tool, a question that waited, or
nothing. The steps follow each other without a gap from the first message to the last. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agent.replay_spans import Span, Spans, TodoTimes
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
    steps: list[Step] = []
    until = spans.ended
    doers = sorted((t for t in spans.todos.values() if t.attempts), key=_end_of(spans))
    todo = _last_before(doers, until, spans)
    while todo is not None:
        end = min(until, _end_of(spans)(todo))
        if until - end > EPSILON_S:
            steps += reversed(_between(spans, end, until))
            until = end
        start = min(todo.attempts[0].start, until)
        steps += reversed(_todo_steps(spans, todo, start, until))
        until = start
        before = _predecessor(spans, todo, until)
        if before is None:
            since = max(spans.began, min(todo.added, until))
            steps += reversed(_queue(spans, todo, since, until))
            until = since
            todo = _last_before(doers, until, spans)
        else:
            since = min(until, _end_of(spans)(before))
            steps += reversed(_queue(spans, todo, since, until))
            until, todo = since, before
    steps += reversed(_between(spans, spans.began, until))
    return _joined(reversed(steps))


def _end_of(spans: Spans) -> Callable[[TodoTimes], float]:
    def end(todo: TodoTimes) -> float:
        if todo.attempts:
            last = todo.attempts[-1].end
            return spans.ended if last is None else last
        return todo.ended if todo.ended is not None else spans.began

    return end


def _last_before(doers: Sequence[TodoTimes], time: float, spans: Spans) -> TodoTimes | None:
    end = _end_of(spans)
    return next((t for t in reversed(doers) if end(t) <= time + EPSILON_S and t.attempts[0].start < time), None)


def _predecessor(spans: Spans, todo: TodoTimes, time: float, seen: frozenset[str] = frozenset()) -> TodoTimes | None:
    """The todo whose end let this one start: of an `all` the last, of an `any` the first that satisfied it.

    Gates and races take no time: it is looked for behind them.
    """
    end = _end_of(spans)
    found: list[TodoTimes] = []
    for src, on in todo.after:
        source = spans.todos.get(src)
        if source is None or src in seen:
            continue
        if not source.attempts:
            source = _predecessor(spans, source, time, seen | {todo.id})
        elif todo.spec.get("join") == "any" and source.status not in MET[on]:  # type: ignore[index]
            continue
        if source is not None and source.attempts[0].start < time and end(source) <= time + EPSILON_S:
            found.append(source)
    choose = min if todo.spec.get("join") == "any" else max
    return choose(found, key=end, default=None)


def _todo_steps(spans: Spans, todo: TodoTimes, start: float, end: float) -> list[Step]:
    """Its own time, without the time in which nobody drove the session and its job was over."""
    kind = str(todo.spec.get("kind", "todo"))
    tries = len(todo.attempts)
    label = f"{todo.id}, {tries} tries" if tries > 1 else todo.id
    steps = [Step(kind, label, start, end, todo.id)]
    jobs = [job for job in spans.jobs.values() if job.more.get("todo") == todo.id and job.end is not None]
    if jobs and kind == "job":
        over = max(job.end or 0.0 for job in jobs)
        away = _overlap(spans.absences, max(start, over), end)
        if away > EPSILON_S:
            steps = [Step(kind, label, start, over, todo.id), Step("away", "nobody drove it", over, end)]
    return steps


def _queue(spans: Spans, todo: TodoTimes, start: float, end: float) -> list[Step]:
    if end - start <= EPSILON_S:
        return []
    away = _overlap(spans.absences, start, end)
    if away > (end - start) / 2:
        return [Step("away", "nobody drove it", start, end)]
    return [Step("queue", f"{todo.id} waited for a place", start, end, todo.id)]


def _overlap(spans: Iterable[Span], start: float, end: float) -> float:
    return sum(max(0.0, min(end, s.end if s.end is not None else end) - max(start, s.start)) for s in spans)


def _between(spans: Spans, start: float, end: float) -> list[Step]:
    """What went on in a stretch that no todo explains; the first of these that was: a question, a model, a tool."""
    if end - start <= EPSILON_S:
        return []
    busy: list[tuple[float, float, str, str]] = []
    for sort, label, found in (
        ("ask", "waited for an answer", spans.questions),
        ("research", "subagents", spans.children.values()),
        ("tool", "tools", spans.tools.values()),
        ("model", "the model", spans.calls.values()),
        ("away", "nobody drove it", spans.absences),
    ):
        for span in found:
            since, until = max(start, span.start), min(end, span.end if span.end is not None else end)
            if until > since:
                busy.append((since, until, sort, label))
    busy.sort()
    steps: list[Step] = []
    at = start
    for since, until, sort, label in busy:
        if since - at > EPSILON_S:
            steps += _quiet(spans, at, since)
            at = since
        if until > at:
            steps.append(Step(sort, label, at, until))
            at = until
    return steps + (_quiet(spans, at, end) if end > at else [])


def _quiet(spans: Spans, start: float, end: float) -> list[Step]:
    """A stretch in which nothing went on: it was a person's turn until they spoke, else there was nothing to do."""
    place = bisect_right(spans.said, end + EPSILON_S)
    spoke = min(spans.said[place - 1], end) if place else start
    steps = [Step("ask", "a person's turn", start, spoke)] if spoke > start else []
    return steps + ([Step("idle", "nothing to do", max(start, spoke), end)] if end > max(start, spoke) else [])


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


def shares(steps: Sequence[Step]) -> list[tuple[str, str, float]]:
    """(sort, label, seconds) by name, the longest first."""
    total: dict[tuple[str, str], float] = {}
    for step in steps:
        total[step.sort, step.label] = total.get((step.sort, step.label), 0.0) + step.seconds
    return sorted(((sort, label, seconds) for (sort, label), seconds in total.items()), key=lambda row: -row[2])
