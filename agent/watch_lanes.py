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
from agent.replay_words import todo_name

NAME = 14
GAP = 4
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
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
    scale = Scale(spans, chart)
    rows = _chosen(_lanes(spans), at, max(1, height - 1))
    column = scale.cell(at)
    lines = [_axis(scale, chart)]
    for lane in rows:
        name = lane.name if len(lane.name) <= NAME else lane.name[: NAME - 1] + "…"
        text = Text(name.ljust(NAME) + " ", "" if _alive(lane, at) else "dim")
        lines.append(text.append_text(_bar(lane, scale, chart, column)))
    return lines[:height]


def _lanes(spans: Spans) -> list[_Lane]:
    started = [todo for todo in spans.todos.values() if todo.attempts]
    started.sort(key=lambda todo: todo.attempts[0].start)
    out = [_Lane(todo_name(todo.id), todo.attempts) for todo in started]
    out += _gpus(spans)
    out += [_Lane(f"◇ {child.note}", [child]) for child in spans.children.values()]
    if spans.calls:
        out.append(_Lane("model", list(spans.calls.values()), "model"))
    return out


def _gpus(spans: Spans) -> list[_Lane]:
    """GPUs of one host that were always held together are one lane."""
    same: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for (host, gpu), held in sorted(spans.leases.items()):
        same.setdefault((host, tuple(lease.id for lease in held)), []).append(gpu)
    lanes = []
    for (host, _), gpus in same.items():
        row = gpus == list(range(gpus[0], gpus[-1] + 1)) and len(gpus) > 1
        name = f"{gpus[0]}-{gpus[-1]}" if row else ",".join(map(str, gpus))
        lanes.append(_Lane(f"{host} GPU {name}", spans.leases[host, gpus[0]], "lease"))
    return lanes


class Scale:
    """From times to cells. Long times in which nobody drove the session take no more than `GAP` cells each."""

    def __init__(self, spans: Spans, chart: int) -> None:
        self.began, self.ended, self._chart = spans.began, spans.ended, chart
        self.length = max(self.ended - self.began, 1e-9)
        ends = [(gap.start, self.ended if gap.end is None else gap.end) for gap in spans.absences]
        self._gaps = [(start, end) for start, end in ends if end - start > self.length / 10 and chart > 40]
        self._span = max(self.length - sum(end - start for start, end in self._gaps), 1e-9)
        self._room = chart - GAP * len(self._gaps)
        self._hidden = {cell for gap in self._gaps for cell in range(self.cell(gap[0]) + 1, self.cell(gap[1]))}

    def cell(self, time: float) -> int:
        """The cell of a time, within the chart."""
        passed, wide = min(max(time, self.began), self.ended) - self.began, 0.0
        for start, end in self._gaps:
            within = min(max(time - start, 0.0), end - start)
            passed -= within
            wide += GAP * within / (end - start)
        return min(self._chart - 1, int(passed / self._span * self._room + wide))

    def narrow(self, time: float) -> bool:
        return any(start < time < end for start, end in self._gaps)

    def gaps_at(self, cell: int) -> bool:
        return cell in self._hidden

    def step(self, most: int) -> float:
        """Seconds between two marks, of which there are at most about `most`."""
        return next((float(step) for step in STEPS if self._span / step <= most), self._span)


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


def _axis(scale: Scale, chart: int) -> Text:
    """Times at the cells where they are, with room between them."""
    cells = [" "] * chart
    step = scale.step(chart // 10)
    free, time = 0, 0.0
    while time <= scale.length:
        mark, cell = clock(time), scale.cell(scale.began + time)
        start = min(cell, chart - len(mark))
        if start >= free and not scale.narrow(scale.began + time):
            cells[start : start + len(mark)] = mark
            free = start + len(mark) + 2
        time += step
    return Text(" " * (NAME + 1)).append("".join(cells), "dim")


def _bar(lane: _Lane, scale: Scale, chart: int, column: int) -> Text:
    cells: list[tuple[str, str]] = [
        ("╌", "bright_black") if scale.gaps_at(cell) else (" ", "") for cell in range(chart)
    ]
    for span in lane.spans:
        first, last = scale.cell(span.start), scale.cell(scale.ended if span.end is None else span.end)
        colour = COLOURS.get(lane.colour or span.status, "blue")
        for cell in range(first, max(last, first + 1)):
            cells[cell] = ("━", colour if cell <= column else "bright_black")
    if cells[column][0] != "━":
        cells[column] = ("│", "dim")
    return _text(cells)


def _text(cells: Iterable[tuple[str, str]]) -> Text:
    text = Text()
    for char, style in cells:
        text.append(char, style)
    return text
