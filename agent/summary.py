"""What is said when a run is over: how it ended, what failed and where its log is, and how to come back."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.text import Text

from agent.board import Board
from agent.pace import clock
from agent.painter import SYMBOLS, WORDS, plain
from agent.questions import NOBODY
from agent.screen import screen

MAX_SHOWN = 10
MAX_LINE = 300


def counts(board: Board) -> str:
    """`3/5 todos done (1 running, 1 failed)`."""
    found = Counter(todo.shown for todo in board.todos.values())
    told = [(name, found[name]) for name in SYMBOLS if name not in ("pending", "completed")]
    others = ", ".join(f"{number} {WORDS.get(name, name)}" for name, number in told if number)
    return f"{board.done}/{len(board.todos)} todos done" + (f" ({others})" if others else "")


def summary(board: Board, *, report: str | None = None, console: Console | None = None) -> None:
    """Print it to `console` (stdout by default)."""
    out = console or screen()
    for line in lines(board, report=report):
        out.print(line, soft_wrap=True)


def lines(board: Board, *, report: str | None = None) -> list[Text]:
    """The summary as lines."""
    status = board.status
    mark, style = SYMBOLS.get(status, SYMBOLS["cancelled"])
    took = clock(max(0.0, board.updated - board.created))
    out = [Text.assemble((f"{mark} {status}", style), f" after {took}, {counts(board)}   session {board.session}")]
    failures = board.failures()
    width = max((len(todo.id) for todo in failures), default=0)
    for todo in failures[:MAX_SHOWN]:
        reason = " ".join((todo.reason or "").split())
        out.append(Text.assemble(("  ✘ ", "red"), (todo.id.ljust(width), "bold"), f"  {reason}"))
        if todo.job is not None and todo.job.last_line:
            out.append(Text(f"    {'':{width}}  its log ends with: {plain(todo.job.last_line)[:MAX_LINE]}"))
        if todo.job is not None:
            out.append(Text(f"    {'':{width}}  turnout logs {todo.job.id}", "dim"))
    if len(failures) > MAX_SHOWN:
        out.append(Text(f"  and {len(failures) - MAX_SHOWN} more: `turnout todo {board.session}`", "dim"))
    alive = [job for job in board.jobs.values() if job.alive]
    if alive:
        names = ", ".join(f"{job.todo} on {job.host}" for job in alive[:MAX_SHOWN])
        out.append(Text(f"  {len(alive)} job{'s' * (len(alive) > 1)} still running there: {names}"))
    if report:
        out.append(Text(f"  report: {report}"))
    unasked = [todo.id for todo in board.todos.values() if todo.status == "failed" and NOBODY in (todo.reason or "")]
    if unasked:
        names = ", ".join(unasked[:MAX_SHOWN])
        out.append(Text(f"  nobody was there to ask about {names}: `--yes` answers every question with yes"))
    if status in ("paused", "running"):
        out.append(Text(f"  go on with `turnout resume {board.session}`"))
    elif status == "failed":
        yes = " --yes" if unasked else ""
        out.append(Text(f"  try what failed again with `turnout resume {board.session} --retry{yes}`"))
    return out
