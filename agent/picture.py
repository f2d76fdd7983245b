"""Draws a board: the todo graph with rails, statuses, progress and what waits for what, within a width and a height.

    lines = draw(board, width=80, height=24, now=time.time())      # the live picture
    lines = draw(board, width=120, height=None, now=...)           # everything, for `turnout todo`

Pure: text in rich's terms comes out, nothing is printed. Each status has its own symbol, so that colour only helps.
When there is more than fits, first the last log lines go, then todos that have ended are folded, then those that wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

from agent.board import Board, BoardTodo
from agent.painter import Line, Painter, detail_count, to_ascii
from agent.rails import lay

MAX_WIDTH = 140
"""On wider terminals the eye would lose the line between a todo and its time."""
FOLD_GROUP = 4
"""A `for_each` of more members than this is one node of the rails, with its members listed below."""


def draw(board: Board, *, width: int, height: int | None, now: float, ascii: bool = False) -> list[Text]:
    """The lines of the picture, none wider than `width` cells and at most `height` of them."""
    width = min(width, MAX_WIDTH)
    lines = _lines(board, everything=height is None)
    details = 2
    if height is not None:
        moving = sum(line.todo is not None and line.todo.status == "in_progress" for line in lines)
        while details and (len(lines) + moving * details > height and moving * (1 + details) > height * 2 // 3):
            details -= 1
    shown = _fit(board, lines, height, details)
    painter = Painter(board, lines, width, now)
    drawn: list[Text] = []
    for item in shown:
        drawn += painter.fold(item) if isinstance(item, list) else painter.todo(item, details)
    if height is not None:
        drawn = drawn[:height]
    for text in drawn:
        text.truncate(width, overflow="ellipsis")
    return [to_ascii(text) for text in drawn] if ascii else drawn


def _lines(board: Board, *, everything: bool) -> list[Line]:
    """The rows in order: todos, and groups too large for rails with their members below.

    The head of such a group counts its members; unless `everything` is wanted, only those that move, could move or
    failed are listed.
    """
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
            lines += [
                Line(row, member, inner=True)
                for member in groups[row.id]
                if everything or member.status in ("in_progress", "failed") or _may_start(board, member)
            ]
        else:
            lines.append(Line(row, board.todos[row.id]))
    _weigh(board, lines)
    return lines


def _may_start(board: Board, todo: BoardTodo) -> bool:
    return todo.status == "pending" and not board.blocked(todo)


def _weigh(board: Board, lines: Sequence[Line]) -> None:
    """How late a row is folded away: what moves or failed stays, then what comes next, then what ended last."""
    for place, line in enumerate(lines):
        todo = line.todo
        if todo is None or todo.status == "in_progress":
            line.weight = 4_000_000
        elif todo.status == "failed":
            line.weight = 3_000_000
        elif todo.status == "pending":
            line.weight = (2_000_000 if _may_start(board, todo) else 1_000_000) - place
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
            total += 1 + min(details, detail_count(line.todo))
            hidden = False
        elif not hidden:
            total, hidden = total + 1, True
    return total
