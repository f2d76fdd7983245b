"""The whole live screen as lines: head, warnings, graph, foot. Pure; `agent/live.py` brings it onto the terminal."""

from __future__ import annotations

from rich.text import Text

from agent.board import Board
from agent.pace import clock
from agent.painter import SYMBOLS, plain, to_ascii
from agent.picture import MAX_WIDTH, draw

ROOMY = 16
"""From this height on, empty lines set head and foot apart."""
MAX_WARNINGS = 3


def frame(board: Board, *, width: int, height: int, now: float, foot: str, ascii: bool = False) -> list[Text]:
    """At most `height` lines of at most `width` cells. An empty `foot` is left out, as at the end of a run."""
    width = min(width, MAX_WIDTH)
    air = [Text()] if height >= ROOMY else []
    head = [*_head(board, width, now), *_warnings(board, now), *air]
    tail = [*air, Text(foot, "dim")] if foot else []
    body = draw(board, width=width, height=max(1, height - len(head) - len(tail)), now=now)
    lines = [*head, *body, *tail][:height]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return [to_ascii(line) for line in lines] if ascii else lines


def _head(board: Board, width: int, now: float) -> list[Text]:
    mark, style = SYMBOLS.get(board.status, SYMBOLS["cancelled"])
    took = clock(board.seconds(now))
    first = Text.assemble((f"{mark} ", style), (plain(board.title), "bold"))
    first.truncate(width - len(took) - 2, overflow="ellipsis")
    first.append(" " * (width - first.cell_len - len(took)))
    first.append(took, "bold")
    total, done = len(board.todos), board.done
    room = min(24, width // 4)
    full = room * done // total if total else room
    second = Text.assemble(("━" * full, "green"), ("─" * (room - full), "dim"), f"  {done}/{total} done")
    for words, number, colour in (
        ("running", board.count("in_progress"), "cyan"),
        ("failed", sum(todo.shown == "failed" for todo in board.todos.values()), "red"),
        ("to answer", len(board.questions), "magenta"),
    ):
        if number:
            second.append(f"  {number} {words}", colour)
    second.append(f"   session {board.session}", "dim")
    return [first, second]


def _warnings(board: Board, now: float) -> list[Text]:
    told = [
        Text(
            f"! no contact with {lost.host} for {clock(now - lost.since)}; jobs there go on. {plain(lost.why)}",
            "bold yellow",
        )
        for lost in board.lost.values()
    ]
    if len(told) > MAX_WARNINGS:
        told[MAX_WARNINGS - 1 :] = [Text(f"! no contact with {len(told) - MAX_WARNINGS + 1} more hosts", "bold yellow")]
    if board.abandoned and board.status in ("running", "paused"):
        told.append(Text(f"! no process drives this session: `turnout resume {board.session}` goes on", "bold yellow"))
    return told
