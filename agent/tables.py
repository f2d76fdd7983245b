"""Sessions, todos and jobs as a person reads them in a terminal or a pipe."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from agent.board import Board
from agent.pace import ago, clock
from agent.painter import SYMBOLS
from agent.picture import draw
from agent.screen import screen
from agent.summary import counts
from state.projection import JOB_ENDED

Cell = str | Text


def columns(head: Sequence[str], rows: Sequence[Sequence[Cell]], console: Console) -> None:
    """Aligned columns; the last one is cut to the terminal, and not in a pipe."""
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in (head, *rows)]
    widths = [max(row[column].cell_len for row in cells) for column in range(len(head))]
    for number, row in enumerate(cells):
        line = Text("  ").join(
            _padded(cell, widths[column]) if column < len(row) - 1 else cell for column, cell in enumerate(row)
        )
        if number == 0:
            line.stylize("dim")
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)


def _padded(cell: Text, width: int) -> Text:
    padded = cell.copy()
    padded.append(" " * (width - cell.cell_len))
    return padded


def marked(status: str) -> Text:
    """A status with its symbol."""
    mark, style = SYMBOLS.get(status, ("·", ""))
    return Text(f"{mark} {status}", style)


def sessions(rows: Sequence[Mapping[str, Any]]) -> None:
    """One line a session."""
    console, now = screen(), time.time()
    if not rows:
        console.print("no session yet; `turnout playbook list` shows what can be run")
        return
    lines: list[list[Cell]] = []
    for row in rows:
        state = row["state"]
        what = "turnout resume" if state in ("interrupted", "paused") else row["reason"] or row["title"]
        todos = f"{row['todos']['done']}/{row['todos']['total']}"
        hosts = ",".join(row["hosts"][:3]) + ("…" if len(row["hosts"]) > 3 else "")
        told = f"{what} {row['id']}" if what == "turnout resume" else what
        lines.append(
            [row["id"], row["playbook"] or row["kind"], marked(state), ago(now - row["created"]), todos, hosts, told]
        )
    columns(["session", "playbook", "status", "age", "todos", "hosts", ""], lines, console)


def todos(board: Board) -> None:
    """The whole graph."""
    console = screen()
    now = time.time()
    console.print(Text.assemble((board.title, "bold"), f"  {board.playbook or ''} {board.session}"), soft_wrap=True)
    console.print(
        Text.assemble(marked(board.status), f"  {counts(board)}  {clock(board.seconds(now))}"), soft_wrap=True
    )
    ascii = console.options.ascii_only
    for line in draw(board, width=console.width, height=None, now=now, ascii=ascii):
        console.print(line, soft_wrap=True)


def jobs(rows: Sequence[Mapping[str, Any]]) -> None:
    """One line a job."""
    console = screen()
    if not rows:
        console.print("no jobs")
        return
    lines: list[list[Cell]] = []
    for row in rows:
        style = "green" if row["rc"] == 0 else "red" if row["state"] in JOB_ENDED else "cyan"
        end = row["signal"] or ("" if row["rc"] is None else str(row["rc"]))
        reason = row["reason"] or (f"being stopped: {row['cancel']}" if row["cancel"] and not end else "")
        gpus = ",".join(map(str, row["gpus"]))
        took = clock(row["duration"])
        lines.append([row["id"], row["host"], Text(row["state"], style), end, gpus, took, " ".join(reason.split())])
    columns(["job", "host", "state", "rc", "gpus", "took", ""], lines, console)
