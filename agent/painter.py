"""From a todo to its lines of text: rail, symbol, name, what there is to say, host, time; below it its job's progress.

Pure text in rich's terms. Which rows there are and which are folded is decided in `agent/picture.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from agent.board import Board, BoardJob, BoardTodo
from agent.pace import amount, clock
from agent.rails import Row
from state.specs import TERMINAL
from tools.shell import clean_text

SYMBOLS = {
    "pending": ("○", "dim"),
    "in_progress": ("▶", "bold cyan"),
    "completed": ("✔", "green"),
    "failed": ("✘", "bold red"),
    "no": ("≠", "yellow"),
    "skipped": ("⊘", "dim"),
    "cancelled": ("⊗", "yellow"),
    "running": ("▶", "bold cyan"),
    "paused": ("‖", "bold yellow"),
    "interrupted": ("‖", "bold yellow"),
}
WORDS = {"pending": "waiting", "in_progress": "running", "no": "not met"}
WAITS = ("◌", "yellow")
ASKS = ("?", "bold magenta")
PRIORITY = {"high": "↑ ", "low": "↓ "}
MIN_BAR = 8
_ASCII = str.maketrans(
    {"○": "o", "▶": ">", "✔": "+", "✘": "x", "⊘": "-", "⊗": "~", "‖": "=", "◌": ".", "━": "=", "╸": "=", "─": "-"}
    | {"≠": "!", "│": "|", "╎": ":", "⋮": ":", "…": ".", "·": "-", "×": "x", "↑": "^", "↓": "v"}
    | dict.fromkeys("╭╮╰╯├┤┬┴┼", "+")
)


@dataclass(slots=True)
class Line:
    """One row of the picture before it is cut to size: a todo (or a group's head), its rail, how much it matters."""

    row: Row
    todo: BoardTodo | None
    members: Sequence[BoardTodo] = ()
    inner: bool = False
    weight: int = 0


def symbol(board: Board, todo: BoardTodo) -> tuple[str, str]:
    """Symbol and style of a todo: of its status, or that it asks, or that only a limit keeps it."""
    if todo.id in board.questions:
        return ASKS
    if todo.status == "pending" and board.status == "running" and not board.blocked(todo):
        return WAITS
    return SYMBOLS[todo.shown]


def detail_count(todo: BoardTodo | None) -> int:
    """How many lines there are to say below a todo: its progress and its job's last log line."""
    if todo is None or todo.status != "in_progress" or todo.job is None or todo.job.progress is None:
        return 0
    return (todo.job.progress.done is not None) + bool(todo.job.last_line)


class Painter:
    """Rows to text, at one width and one moment."""

    def __init__(self, board: Board, lines: Sequence[Line], width: int, now: float) -> None:
        self.board, self.width, self.now = board, width, now
        rail = max((line.row.width for line in lines), default=2)
        self.rails = rail <= max(8, width // 4)
        self.rail = rail if self.rails else 2
        names = [len(line.todo.id) + 2 * line.inner if line.todo else len(line.row.id) for line in lines]
        self.name = min(max(names, default=8), max(12, (width - self.rail) * 2 // 5))
        self.hosts = any(host != "local" for host in board.hosts())
        self.failures = {todo.id for todo in board.failures()}
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
        if right:
            text.append(" " * max(1, self.width - text.cell_len - right.cell_len)).append_text(right)
        return [text, *self._details(line, todo, details)]

    def fold(self, hidden: Sequence[Line]) -> list[Text]:
        """One line in place of rows that do not fit."""
        counts: dict[str, int] = {}
        for line in hidden:
            if line.todo is not None:
                counts[line.todo.shown] = counts.get(line.todo.shown, 0) + 1
        words = ", ".join(f"{number} {WORDS.get(status, status)}" for status, number in counts.items())
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
        counts = {status: sum(m.shown == status for m in members) for status in SYMBOLS}
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
        if todo.started is None:
            return Text()
        took = clock(todo.seconds(self.now))
        return Text.assemble((host, "blue"), (f"{took:>7}", "" if todo.status == "in_progress" else "dim"))

    def _note(self, todo: BoardTodo, room: int) -> Text:
        """What there is to say beside the name: why it waits, failed or was left out; and its title."""
        blocked = self.board.blocked(todo)
        said, style = self._said(todo)
        quiet = todo.status in TERMINAL or todo.status == "pending" or said
        mark = "" if todo.status in TERMINAL else PRIORITY.get(todo.priority, "")
        title = (mark + (plain(todo.title) if todo.title != todo.id else ""), "dim" if quiet else "")
        parts = [(plain(said), "dim" if blocked else style), title]
        if blocked:  # the rails show what for
            parts.reverse()
        if todo.status == "in_progress" and todo.id in self.races:
            parts.insert(1, (f"in race {self.races[todo.id]}", "cyan"))
        if todo.attempts > 1:
            parts.insert(0, (f"try {todo.attempts}", "yellow"))
        note = Text()
        for text, colour in parts:
            left = room - note.cell_len - 3 * bool(note)
            if text and (not note or left > 10):
                note.append(" · " if note else "", "dim").append(_cut(text, left), colour)
        return note

    def _said(self, todo: BoardTodo) -> tuple[str, str]:
        if todo.status == "failed":
            return todo.reason or "failed", "yellow" if todo.id not in self.failures else "red"
        if todo.status in ("skipped", "cancelled"):
            return todo.reason or todo.status, "dim"
        if todo.status == "completed":
            return _outcome(todo) or "", "green"
        return self.board.waits_for(todo) or "", "magenta" if todo.id in self.board.questions else "yellow"

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
        """`━━━━━╸────  45%  0:05 left  310/s  1,350/3,000 samples`: what fits; no bar when there is no total."""
        p = job.progress
        assert p is not None
        assert p.done is not None
        left = job.pace.remaining(p.total, self.now)
        words = [f"{clock(left)} left"] if left is not None else []
        words += [f"{amount(job.pace.rate)}/s"] if job.pace.rate else []
        words.append(f"{amount(p.done)}{'/' + amount(p.total) if p.total else ''} {p.unit or ''}".rstrip())
        text = Text()
        if p.total:
            share = min(1.0, max(0.0, p.done / p.total))
            bar = min(30, room - len("  ".join(words)) - 7)
            if bar >= MIN_BAR:
                full = int(share * bar)
                half = share * bar - full >= 0.5
                text.append("━" * full + ("╸" if half else ""), "cyan").append("─" * (bar - full - half), "dim")
            text.append(f" {share:4.0%}" if text else f"{share:.0%}").append("  ")
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


def to_ascii(text: Text) -> Text:
    """The same line for a terminal that knows no more than ASCII."""
    copy = text.copy()
    copy.plain = text.plain.translate(_ASCII).encode("ascii", "replace").decode()
    return copy


def _cut(text: str, room: int) -> str:
    """`text` within `room` cells of the terminal."""
    if cell_len(text) <= room:
        return text
    return set_cell_size(text, room - 1).rstrip() + "…" if room > 0 else ""


def plain(text: str) -> str:
    """One line of text that a host or a playbook wrote, without control sequences."""
    return " ".join(clean_text(text.encode("utf-8", "replace")).split())
