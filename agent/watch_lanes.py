"""Time lanes for a terminal: a row for each todo and each leased GPU, with what ran when and the moment that is shown.

    lines = lanes(spans, at=time, width=80, height=20)

Pure: text in rich's terms comes out. What had not happened yet at the moment is drawn pale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from agent.pace import clock
from agent.replay_spans import Span, Spans

NAME = 14
COLOURS = {
    "completed": "green", "failed": "red", "cancelled": "bright_black", "running": "cyan", "retried": "yellow",
    "lease": "yellow", "model": "magenta",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Lane:
    name: str
    spans: Sequence[Span]
    colour: str | None = None


def lanes(spans: Spans, *, at: float, width: int, height: int) -> list[Text]:
    """At most `height` lines: an axis, then lanes; those that run at the moment are kept when not all fit."""
    chart = max(10, width - NAME - 1)
    length = max(spans.ended - spans.began, 1e-9)
    rows = _chosen(_lanes(spans), at, max(1, height - 1))
    column = min(chart - 1, int((at - spans.began) / length * chart))
    lines = [_axis(length, chart)]
    for lane in rows:
        name = lane.name if len(lane.name) <= NAME else lane.name[: NAME - 1] + "…"
        text = Text(name.ljust(NAME) + " ", "" if _alive(lane, at) else "dim")
        lines.append(text.append_text(_bar(lane, spans, chart, column)))
    return lines[:height]


def _lanes(spans: Spans) -> list[_Lane]:
    started = [todo for todo in spans.todos.values() if todo.attempts]
    started.sort(key=lambda todo: todo.attempts[0].start)
    out = [_Lane(todo.id, todo.attempts) for todo in started]
    out += [_Lane(f"{host} GPU {gpu}", held, "lease") for (host, gpu), held in sorted(spans.leases.items())]
    out += [_Lane(f"◇ {child.note}", [child]) for child in spans.children.values()]
    if spans.calls:
        out.append(_Lane("model", list(spans.calls.values()), "model"))
    return out


def _alive(lane: _Lane, at: float) -> bool:
    return any(span.start <= at and (span.end is None or span.end >= at) for span in lane.spans)


def _chosen(rows: list[_Lane], at: float, most: int) -> list[_Lane]:
    """Those that run, then those that began last before the moment, in their order."""
    if len(rows) <= most:
        return rows
    begun = {id(lane): max((s.start for s in lane.spans if s.start <= at), default=-1.0) for lane in rows}
    ranked = sorted(rows, key=lambda lane: (not _alive(lane, at), -begun[id(lane)]))
    kept = {id(lane) for lane in ranked[:most]}
    return [lane for lane in rows if id(lane) in kept]


def _axis(length: float, chart: int) -> Text:
    text = Text(" " * (NAME + 1))
    marks = [clock(length * part / 4) for part in range(5)]
    cells = [" "] * chart
    for part, mark in enumerate(marks):
        start = min(chart - len(mark), max(0, chart * part // 4 - (len(mark) if part == 4 else 0)))
        cells[start : start + len(mark)] = mark
    return text.append("".join(cells[:chart]), "dim")


def _bar(lane: _Lane, spans: Spans, chart: int, column: int) -> Text:
    length = max(spans.ended - spans.began, 1e-9)
    cells: list[tuple[str, str]] = [(" ", "")] * chart
    for span in lane.spans:
        first = int((span.start - spans.began) / length * chart)
        last = int(((spans.ended if span.end is None else span.end) - spans.began) / length * chart)
        colour = COLOURS.get(lane.colour or span.status, "blue")
        for cell in range(min(first, chart - 1), max(min(last, chart), min(first, chart - 1) + 1)):
            cells[cell] = ("━", colour if cell <= column else "bright_black")
    if cells[column][0] == " ":
        cells[column] = ("│", "dim")
    return _text(cells)


def _text(cells: Iterable[tuple[str, str]]) -> Text:
    text = Text()
    for char, style in cells:
        text.append(char, style)
    return text
