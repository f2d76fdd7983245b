"""Draws a board: the todo graph with rails, statuses, progress and what waits for what, within a width and a height.

    lines = draw(board, width=80, height=24, now=time.time())      # the live picture
    lines = draw(board, width=120, height=None, now=...)           # everything, for `turnout todo`

Pure: text in rich's terms comes out, nothing is printed. Each status has its own symbol, so that colour only helps.
When there is more than fits, first the last log lines go, then todos that have ended are folded, then those that wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from agent.board import Board, BoardJob, BoardTodo
from agent.pace import amount, clock
from agent.rails import Row, lay
from state.specs import TERMINAL
from tools.shell import clean_text

SYMBOLS = {
    "pending": ("○", "dim"),
    "in_progress": ("▶", "bold cyan"),
    "completed": ("✔", "green"),
    "failed": ("✘", "bold red"),
    "skipped": ("⊘", "dim"),
    "cancelled": ("⊗", "yellow"),
    "running": ("▶", "bold cyan"),
    "paused": ("‖", "bold yellow"),
    "interrupted": ("‖", "bold yellow"),
}
WAITS = ("◌", "yellow")
ASKS = ("?", "bold magenta")
_ASCII = str.maketrans(
    {"○": "o", "▶": ">", "✔": "+", "✘": "x", "⊘": "-", "⊗": "~", "‖": "=", "◌": ".", "━": "=", "╸": "=", "─": "-"}
    | {"│": "|", "╎": ":", "⋮": ":", "…": ".", "·": "-", "×": "x"}
    | dict.fromkeys("╭╮╰╯├┤┬┴┼", "+")
)
FOLD_GROUP = 4
"""A `for_each` of more members than this is one node of the rails, with its members listed below."""


@dataclass(slots=True)
class Line:
    """One row of the picture before it is cut to size: the todo (or a group's head), its rail and how much it matters."""

    row: Row
    todo: BoardTodo | None
    members: Sequence[BoardTodo] = ()
    inner: bool = False
    weight: int = 0


def symbol(board: Board, todo: BoardTodo) -> tuple[str, str]:
    """Symbol and style of a todo's status."""
    if todo.id in board.questions:
        return ASKS
    if (
        todo.status == "pending"
        and (board.waits_for(todo) or "").startswith("waits for ")
        and not _blocked(board, todo)
    ):
        return WAITS
    return SYMBOLS[todo.status]


def _blocked(board: Board, todo: BoardTodo) -> bool:
    return any(board.todos[src].status not in TERMINAL for src, _ in todo.after)


def draw(board: Board, *, width: int, height: int | None, now: float, ascii: bool = False) -> list[Text]:
    """The lines of the picture, none wider than `width` cells and at most `height` of them."""
    lines = _lines(board)
    details = 2
    if height is not None:
        moving = sum(line.todo is not None and line.todo.status == "in_progress" for line in lines)
        while details and (len(lines) + moving * details > height and moving * (1 + details) > max(3, height * 2 // 3)):
            details -= 1
    shown = _fit(board, lines, height, details)
    painter = _Painter(board, lines, width, now)
    drawn: list[Text] = []
    for item in shown:
        drawn += painter.fold(item) if isinstance(item, list) else painter.todo(item, details)
    if height is not None:
        drawn = drawn[:height]
    for text in drawn:
        text.truncate(width, overflow="ellipsis")
    return [_to_ascii(text) for text in drawn] if ascii else drawn


def _to_ascii(text: Text) -> Text:
    copy = text.copy()
    copy.plain = text.plain.translate(_ASCII).encode("ascii", "replace").decode()
    return copy


def _lines(board: Board) -> list[Line]:
    """Every row in order: todos, and groups too large for rails with their members below."""
    groups: dict[str, list[BoardTodo]] = {}
    for todo in board.todos.values():
        if todo.group:
            groups.setdefault(todo.group, []).append(todo)
    groups = {name: members for name, members in groups.items() if len(members) > FOLD_GROUP}
    names = {member.id: name for name, members in groups.items() for member in members}
    nodes: dict[str, dict[str, str]] = {}
    for todo in board.todos.values():
        node = nodes.setdefault(names.get(todo.id, todo.id), {})
        node.update({names.get(src, src): on for src, on in todo.after})
    lines: list[Line] = []
    for row in lay((id, list(edges.items())) for id, edges in nodes.items()):
        if row.id in groups:
            lines.append(Line(row, None, groups[row.id]))
            lines += [Line(row, member, inner=True) for member in groups[row.id]]
        else:
            lines.append(Line(row, board.todos[row.id]))
    _weigh(board, lines)
    return lines


def _weigh(board: Board, lines: Sequence[Line]) -> None:
    """How late a row is folded away: what moves or failed stays, then what comes next, then what ended last."""
    for place, line in enumerate(lines):
        todo = line.todo
        if todo is None or todo.status == "in_progress":
            line.weight = 4_000_000
        elif todo.status == "failed":
            line.weight = 3_000_000
        elif todo.status == "pending":
            line.weight = (2_000_000 if not _blocked(board, todo) else 1_000_000) - place
        else:
            ended = todo.status == "completed" and todo.ended
            line.weight = int(1000 * (ended - board.created)) if ended else -1
            line.weight = min(line.weight, 900_000)


def _fit(board: Board, lines: list[Line], height: int | None, details: int) -> list[Line | list[Line]]:
    """The rows to show, with each run of hidden ones as a list: as many of the weightiest as fit into `height`."""
    if height is None or _height(lines, {id(line) for line in lines}, details) <= height:
        return list(lines)
    ranked = sorted(lines, key=lambda line: -line.weight)
    low, high = 0, len(ranked)
    while low < high:  # showing one more row never makes the picture lower
        middle = (low + high + 1) // 2
        if _height(lines, {id(line) for line in ranked[:middle]}, details) <= height:
            low = middle
        else:
            high = middle - 1
    shown = {id(line) for line in ranked[:low]}
    out: list[Line | list[Line]] = []
    for line in lines:
        if id(line) in shown:
            out.append(line)
        elif out and isinstance(out[-1], list):
            out[-1].append(line)
        else:
            out.append([line])
    return out


def _height(lines: Iterable[Line], shown: set[int], details: int) -> int:
    total, hidden = 0, False
    for line in lines:
        if id(line) in shown:
            total += 1 + (detail_count(line.todo) if details == 2 else min(details, detail_count(line.todo)))
            hidden = False
        elif not hidden:
            total, hidden = total + 1, True
    return total


def detail_count(todo: BoardTodo | None) -> int:
    """How many lines there are to say below a todo: its progress and its job's last log line."""
    if todo is None or todo.status != "in_progress" or todo.job is None or todo.job.progress is None:
        return 0
    return (todo.job.progress.done is not None) + bool(todo.job.last_line)


class _Painter:
    """Rows to text, at one width and one moment."""

    def __init__(self, board: Board, lines: Sequence[Line], width: int, now: float) -> None:
        self.board, self.width, self.now = board, width, now
        rail = max((line.row.width for line in lines), default=2)
        self.rails = rail <= max(8, width // 4)
        self.rail = rail if self.rails else 2
        names = [len(line.todo.id) + 2 * line.inner if line.todo else len(line.row.id) for line in lines]
        self.name = min(max(names, default=8), max(12, (width - self.rail) * 2 // 5))
        self.hosts = any(host != "local" for host in board.hosts())
        self.races = {src: todo.id for todo in board.todos.values() if todo.kind == "race" for src, _ in todo.after}

    def todo(self, line: Line, details: int) -> list[Text]:
        """A todo's row and up to `details` lines below it."""
        if line.todo is None:
            return [self._group(line)]
        todo = line.todo
        mark, style = symbol(self.board, todo)
        text = self._rail(line, mark, style)
        ended = todo.status in TERMINAL and todo.status != "failed"
        name = f"  {todo.id}" if line.inner else todo.id
        text.append(f"{_cut(name, self.name):<{self.name}} ", "dim" if ended or todo.status == "pending" else "bold")
        right = self._right(todo)
        room = self.width - text.cell_len - right.cell_len - 1
        text.append_text(self._note(todo, room))
        text.append(" " * max(1, self.width - text.cell_len - right.cell_len))
        text.append_text(right)
        return [text, *self._details(line, todo, details)]

    def fold(self, hidden: Sequence[Line]) -> list[Text]:
        """One line in place of rows that do not fit."""
        counts: dict[str, int] = {}
        for line in hidden:
            if line.todo is not None:
                counts[line.todo.status] = counts.get(line.todo.status, 0) + 1
        words = ", ".join(f"{n} {'waiting' if status == 'pending' else status}" for status, n in counts.items())
        rail = hidden[-1].row.under(self.rail).replace("│", "⋮") if self.rails else "  "
        return [Text(f"{rail if rail.strip() else '⋮'.ljust(self.rail)}{words}", "dim italic")]

    def _rail(self, line: Line, mark: str, style: str) -> Text:
        if not self.rails:
            return Text.assemble((mark, style), " ")
        if line.inner:
            return Text.assemble((line.row.under(self.rail), "dim"), (mark, style), " ")
        text = Text(line.row.rail(mark, self.rail), "dim")
        text.stylize(f"not dim {style}" if style != "dim" else style, 2 * line.row.column, 2 * line.row.column + 1)
        return text

    def _group(self, line: Line) -> Text:
        members = line.members
        counts = {status: sum(m.status == status for m in members) for status in SYMBOLS}
        status = next((s for s in ("in_progress", "pending", "failed", "completed") if counts[s]), "skipped")
        if status == "pending" and counts["completed"]:
            status = "in_progress"
        text = self._rail(line, *SYMBOLS[status])
        text.append(f"{_cut(line.row.id, self.name):<{self.name}} ", "bold")
        text.append(f"×{len(members)}  ")
        for name, number in counts.items():
            if number:
                text.append(f"{SYMBOLS[name][0]} {number}  ", SYMBOLS[name][1])
        return text

    def _right(self, todo: BoardTodo) -> Text:
        host = f"{_cut(todo.host or '', 14)} " if self.hosts and self.width >= 60 and todo.host else ""
        took = clock(todo.seconds(self.now)) if todo.started else ""
        return Text.assemble((host, "blue"), (f"{took:>7}", "" if todo.status == "in_progress" else "dim"))

    def _note(self, todo: BoardTodo, room: int) -> Text:
        """What there is to say beside the name: why it waits, failed or was left out, else its title."""
        waits = self.board.waits_for(todo)
        again = f"try {todo.attempts} · " if todo.attempts > 1 else ""
        if todo.status in ("failed", "skipped", "cancelled"):
            said, style = todo.reason or todo.status, "red" if todo.status == "failed" else "dim"
        elif waits:
            said, style = waits, "magenta" if todo.id in self.board.questions else "yellow"
            style = "dim" if todo.status == "pending" and _blocked(self.board, todo) else style
        elif todo.status == "completed":
            said, style = _outcome(todo) or todo.title, "dim"
        else:
            said, style = todo.title, ""
        if todo.status in ("pending", "in_progress") and todo.id in self.races:
            said = f"{said} · in race {self.races[todo.id]}" if todo.status == "in_progress" else said
        said = again + _plain(said)
        note = Text(_cut(said, room), style)
        left = room - cell_len(said) - 2
        if todo.title not in (said, todo.id) and left > 10:
            note.append("  " + _cut(_plain(todo.title), left), "dim")
        return note

    def _details(self, line: Line, todo: BoardTodo, details: int) -> list[Text]:
        out: list[Text] = []
        job = todo.job
        if details and job is not None and detail_count(todo):
            assert job.progress is not None
            indent = (line.row.under(self.rail) if self.rails else "  ") + ("    " if line.inner else "  ")
            if job.progress.done is not None:
                out.append(Text(indent, "dim").append_text(self._bar(job, self.width - len(indent))))
            if job.last_line and len(out) < details:
                out.append(Text(indent + _cut(job.last_line, self.width - len(indent)), "dim"))
        return out

    def _bar(self, job: BoardJob, room: int) -> Text:
        """`━━━━━╸────  45%  1,350/3,000 samples  310/s  0:05 left`, without the bar when there is no total."""
        p = job.progress
        assert p is not None and p.done is not None
        words = [f"{amount(p.done)}{'/' + amount(p.total) if p.total else ''}{' ' + p.unit if p.unit else ''}"]
        if job.pace.rate:
            words.append(f"{amount(job.pace.rate)}/s")
        left = job.pace.remaining(p.total, self.now)
        if left is not None:
            words.append(f"{clock(left)} left")
        text = Text()
        if p.total:
            share = min(1.0, max(0.0, p.done / p.total))
            bar = max(6, min(30, room - len("  ".join(words)) - 7))
            full = int(share * bar)
            half = share * bar - full >= 0.5
            text.append("━" * full + ("╸" if half else ""), "cyan")
            text.append("─" * (bar - full - half), "dim").append(f" {share:4.0%}  ")
        return text.append("  ".join(words))


def _outcome(todo: BoardTodo) -> str | None:
    """What a completed todo found, where one word says it."""
    result = todo.result or {}
    if todo.kind == "race" and "winner" in result:
        return f"won by {result['winner']}"
    if todo.kind == "ask" and "answer" in result:
        return f"{result['answer']}, by {result.get('by', 'operator')}"
    if todo.kind == "gate":
        return "holds"
    if todo.job is not None and todo.job.alive:
        return "serving"
    return None


def _cut(text: str, room: int) -> str:
    """`text` within `room` cells of the terminal."""
    if cell_len(text) <= room:
        return text
    return set_cell_size(text, room - 1).rstrip() + "…" if room > 0 else ""


def _plain(text: str) -> str:
    """One line of text that a host or a playbook wrote, without control sequences."""
    return " ".join(clean_text(text.encode("utf-8", "replace")).split())
