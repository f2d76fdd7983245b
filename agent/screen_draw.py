"""What the panes of the chat screen show, as rich's texts: entries, head, foot, graph and jobs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agent.board import Board, BoardJob
from agent.chat import Chat
from agent.chat_commands import COMMANDS
from agent.chat_entries import Entry
from agent.chat_text import count, money, outcome_words, shorten, tool_words
from agent.pace import amount, clock
from agent.painter import SYMBOLS, plain
from agent.picture import draw

MAX_EVENTS = 8
MAX_RESULT = 3
MAX_SAID = 12
MAX_JOBS = 200
_STATES = {"open": ("●", "yellow"), "done": ("●", "green"), "failed": ("●", "red"), "stopped": ("●", "dim")}
_DOING = {
    "idle": ("●", "green", "ready"), "asking": ("●", "cyan", "thinking"), "tools": ("●", "cyan", "working"),
    "waiting": ("●", "yellow", "waiting"), "paused": ("‖", "yellow", "paused"), "no model": ("○", "dim", "no model"),
}  # fmt: skip


def welcome() -> list[Text]:
    """What an empty conversation shows."""
    return [
        Text.assemble(
            ("Turnout", "bold"), "  a turnout leads from one track to the other; this one runs both at once."
        ),
        Text.assemble(
            ("/run", "bold cyan"), " shows the playbooks, ", ("/run NAME host=HOST", "bold cyan"), " starts one."
        ),
        Text.assemble("Anything else is said to the model, at any time. ", ("?", "bold cyan"), " is help."),
    ]


def entry(it: Entry, before: Entry | None, width: int) -> list[RenderableType]:
    """An entry as parts below each other; `before` decides whether it stands apart."""
    close = before is not None and before.kind == it.kind and it.kind in ("tool", "event", "child")
    parts: list[RenderableType] = [] if before is None or close else [Text()]
    match it.kind:
        case "said":
            words = Text(_folded(it.text), "bold")
            if it.state == "queued":
                words.append("  (heard next)", "dim")
            parts.append(_beside("❯", words))
        case "answer":
            body: RenderableType = Markdown(it.text, code_theme="ansi_dark")
            parts.append(Padding(body, (0, 0, 0, 2)))
            if it.state == "stopped":
                parts.append(Text("  stopped", "yellow"))
        case "tool":
            parts += _tool(it, width)
        case "child":
            parts += _child(it, width)
        case "event":
            lines = _newest(it)
            if len(lines) > MAX_EVENTS:
                parts.append(Text(f"  … {len(lines) - MAX_EVENTS} more", "dim italic"))
            parts += [Padding(line, (0, 0, 0, 2)) for line in lines[-MAX_EVENTS:]]
        case _:
            parts += [Padding(line, (0, 0, 0, 2)) for line in it.lines or [Text(it.text)]]
    return parts


def _newest(it: Entry) -> list[Text]:
    """Of each todo what was told last: once it has ended, its start says nothing new."""
    last = {key: place for place, key in enumerate(it.keys)}
    return [
        line for place, (line, key) in enumerate(zip(it.lines, it.keys, strict=True)) if not key or last[key] == place
    ]


def _folded(text: str) -> str:
    """Words that were typed or pasted: of many lines the first and the last."""
    lines = text.split("\n")
    if len(lines) <= MAX_SAID:
        return text
    half = MAX_SAID // 2
    return "\n".join([*lines[:half], f"… {len(lines) - 2 * half} more lines …", *lines[-half:]])


def _beside(mark: str, words: Text) -> RenderableType:
    """A mark, and words whose further lines stand below the first."""
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    table.add_column(width=1)
    table.add_column(ratio=1)
    table.add_row(Text(mark, "bold magenta"), words)
    return table


def _tool(it: Entry, width: int) -> list[RenderableType]:
    mark, style = _STATES[it.state]
    head = Text.assemble("  ", (f"{mark} ", style))
    name, _, rest = tool_words(it.name, it.input).partition("  ")
    head.append(name, "bold").append(f"  {rest}" if rest else "", "dim")
    head.truncate(width, overflow="ellipsis")
    lines = [line for line in outcome_words(it.text).splitlines() if line.strip()]
    shown = [
        Text(f"    {shorten(plain(line), max(8, width - 5))}", "red" if it.state == "failed" else "dim")
        for line in lines
    ]
    if len(shown) > MAX_RESULT:
        shown[MAX_RESULT - 1 :] = [Text(f"    … {len(lines) - MAX_RESULT + 1} more lines", "dim italic")]
    return [head, *shown]


def _child(it: Entry, width: int) -> list[RenderableType]:
    mark, style = _STATES[it.state]
    head = Text.assemble("  ", (f"{mark} ", style), ("research  ", "bold"), plain(it.name))
    head.truncate(width, overflow="ellipsis")
    told = [Text(f"    {shorten(plain(line.plain), max(8, width - 5))}", "dim") for line in it.lines[-1:]]
    return [head, *told]


def head(board: Board, width: int, now: float, title: str = "") -> Text:
    """`▶ title …  3 running  1 failed  5/12  2:41  abcd2345`."""
    mark, style = SYMBOLS.get(board.status, SYMBOLS["cancelled"])
    right = Text()
    counted = (
        ("to answer", len(board.questions), "bold magenta"), ("running", board.count("in_progress"), "cyan"),
        ("failed", len(board.failures()), "red"),
    )  # fmt: skip
    for words, number, colour in counted:
        if number:
            right.append(f"{number} {words}  ", colour)
    if board.todos:
        right.append(f"{board.done}/{len(board.todos)} done  ")
    right.append(f"{clock(board.seconds(now))}  ", "dim").append(board.session, "dim")
    if board.lost:
        right = Text(f"! no contact with {', '.join(list(board.lost)[:3])}  ", "bold yellow").append_text(right)
    left = Text.assemble((f"{mark} ", style), (plain(title or board.title), "bold"))
    left.truncate(max(8, width - right.cell_len - 2), overflow="ellipsis")
    left.append(" " * max(1, width - left.cell_len - right.cell_len)).append_text(right)
    left.truncate(width, overflow="ellipsis")
    return left


def foot(chat: Chat, view: str, width: int, now: float, typed: str) -> Text:
    """What the model does, its context and cost; at the right what keys do. While a command is typed: its help."""
    if typed.startswith("/") and (told := _command_hint(typed)):
        return _fit(told, width)
    status = chat.status
    mark, style, words = _DOING.get(status.doing, ("●", "dim", status.doing))
    left = Text.assemble((f"{mark} ", style), words)
    if status.watching:
        left = Text("◇ looking on", "yellow")
    if status.retry_at is not None and status.retry_at > now:
        left.append(f" {clock(status.retry_at - now)}", "yellow")
    if status.model:
        left.append(f"  {status.model}", "dim")
    if status.window:
        share = status.tokens / status.window
        left.append(f"  {count(status.tokens)}/{count(status.window)}", "yellow" if share > 0.7 else "dim")
    if status.calls:
        priced = status.cost is not None and not (status.unpriced and not status.cost)
        left.append(f"  {money(status.cost) if priced else 'no price'}", "dim")
    keys = Text("Esc stops  " if status.doing in ("asking", "tools", "waiting") else "", "dim")
    names = {"talk": "^T todos", "todos": "^T jobs", "jobs": "^T talk"}
    keys.append(f"{names[view]}  ? help  ^D leave", "dim")
    room = width - keys.cell_len - 2
    left.truncate(max(4, room), overflow="ellipsis")
    return left.append(" " * max(1, width - left.cell_len - keys.cell_len)).append_text(keys)


def _command_hint(typed: str) -> Text | None:
    name, space, _ = typed[1:].partition(" ")
    if space:
        known = COMMANDS.get(name)
        return Text.assemble((f"/{known.name} {known.takes}", "bold"), f"  {known.help}") if known else None
    found = [c for c in COMMANDS.values() if c.name.startswith(name)]
    if len(found) == 1:
        return Text.assemble((f"/{found[0].name} {found[0].takes}", "bold"), f"  {found[0].help}")
    return Text("  ".join(f"/{c.name}" for c in found), "bold") if found else Text(f"no command /{name}", "red")


def _fit(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text


def graph(board: Board, width: int, height: int | None, now: float, *, strip: bool = False) -> list[Text]:
    """The todo graph; nothing for none."""
    if not board.todos:
        return [] if strip else [Text("no todo yet: /run a playbook", "dim")]
    return draw(board, width=max(20, width), height=None if height is None else max(1, height), now=now)


def graph_title(board: Board) -> Text:
    """Above the graph."""
    waits = board.count("pending")
    return Text.assemble(
        ("todos", "bold"), f"  {board.done}/{len(board.todos)} done, {waits} waiting" if board.todos else ""
    )


def jobs_in_order(board: Board) -> list[BoardJob]:
    """Those that run first, in the order of their start, then what ended, the newest first."""
    alive = [job for job in board.jobs.values() if job.alive]
    ended = [job for job in board.jobs.values() if not job.alive]
    return [*alive, *reversed(ended)][:MAX_JOBS]


def jobs_title(listed: Sequence[BoardJob]) -> Text:
    """Above the jobs."""
    alive = sum(job.alive for job in listed)
    more = "  Alt-↑↓ choose" if len(listed) > 1 else ""
    return Text.assemble(("jobs", "bold"), f"  {alive} running{more}" if listed else "  none yet")


def jobs(board: Board, listed: Sequence[BoardJob], width: int, now: float) -> list[Text]:
    """One line a job: state, todo, host, GPUs, how long, how far, its last line."""
    name = min(24, max((len(job.todo) for job in listed), default=0))
    return [_job(board, job, name, width, now) for job in listed]


def _job(board: Board, job: BoardJob, name: int, width: int, now: float) -> Text:
    todo = board.todos.get(job.todo)
    status = "in_progress" if job.alive else (todo.status if todo is not None and todo.job is job else "completed")
    mark, style = SYMBOLS[status]
    took = clock(now - job.submitted) if job.alive else clock(todo.seconds(now) if todo is not None else None)
    line = Text.assemble((f"{mark} ", style), (f"{shorten(job.todo, name):<{name}} ", "" if job.alive else "dim"))
    gpus = f":{','.join(map(str, job.gpus))}" if job.gpus else ""
    line.append(f"{shorten(job.host + gpus, 14):<8} ", "blue").append(f"{took:>7}  ", "dim")
    if job.alive and job.cancel:
        line.append("being stopped  ", "yellow")
    line.append_text(_progress(job, now))
    line.truncate(width, overflow="ellipsis")
    return line


def _progress(job: BoardJob, now: float) -> Text:
    p = job.progress
    if p is None or not job.alive:
        return Text()
    out = Text()
    if p.done is not None and p.total:
        out.append(f"{min(1.0, p.done / p.total):.0%} ", "cyan")
        left = job.pace.remaining(p.total, now)
        out.append(f"{clock(left)} left  " if left is not None else "", "dim")
    elif p.done is not None:
        out.append(f"{amount(p.done)} {p.unit or ''}  ", "cyan")
    return out.append(job.last_line, "dim")
