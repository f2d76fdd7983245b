"""Slash commands about the work: todos, jobs, logs, hosts, questions; and what other commands read of the database."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from anyio import to_thread
from rich.text import Text
from sqlalchemy import Connection

from agent import look
from agent.board import BoardTodo
from agent.chat import Chat
from agent.chat_text import shorten
from agent.events import Add, Alter, Cancel, Kill, Op, Reset
from agent.pace import clock
from agent.painter import SYMBOLS, plain
from agent.picture import draw
from state.errors import NotFound, TurnoutError, UsageError
from state.log import read
from state.projection import JOB_ENDED
from state.specs import TodoSpec
from tools.shell import clean_text

WIDTH = 100
LOG_LINES = 20
LINE_BYTES = 400


async def todo(chat: Chat, words: list[str]) -> None:
    """`/todo`, `/todo ID`, `/todo cancel ID [reason]`, `/todo retry ID`, `/todo high ID`, `/todo add …`."""
    if not words:
        if not chat.board.todos:
            chat.note("no todo yet: `/run PLAYBOOK` brings some, or `/todo add ID host=local run='command'`")
            return
        if not chat.show("todos"):
            chat.note(*draw(chat.board, width=WIDTH, height=None, now=time.time()))
        return
    verb, *rest = words
    if verb == "add":
        await _edit(chat, [_added(rest)])
    elif verb in ("cancel", "retry", "high", "medium", "low") and rest:
        id = find_todo(chat, rest[0]).id
        ops: dict[str, Op] = {
            "cancel": Cancel(id, " ".join(rest[1:]) or "cancelled by the operator"),
            "retry": Reset((id,)),
        }
        await _edit(chat, [ops.get(verb) or Alter(id, priority=verb)])  # type: ignore[arg-type]
    elif verb in ("cancel", "retry", "high", "medium", "low"):
        raise UsageError(f"`/todo {verb}` wants a todo", hint=f"`/todo {verb} ID`")
    else:
        chat.note(*_in_full(chat, find_todo(chat, verb)))


def find_todo(chat: Chat, wanted: str) -> BoardTodo:
    """The todo of this id or unique beginning. Raises `NotFound`, `UsageError`."""
    names = [id for id in chat.board.todos if id.startswith(wanted)]
    return chat.board.todos[look.pick(wanted, names, "todo", "`/todo` shows all")]


def _added(words: Sequence[str]) -> Op:
    """`ID run='command' [host=local] [after=a,b] [gpus=1] [title=…]` as a job."""
    hint = "`/todo add ID run='command' [host=HOST] [after=A,B] [gpus=N] [title=TEXT]`"
    values = dict(word.partition("=")[::2] for word in words[1:])
    if not words or not values.get("run") or set(values) - {"run", "host", "after", "gpus", "title"}:
        raise UsageError("a new todo wants an id and a command to run", hint=hint)
    body: dict[str, Any] = {"host": values.get("host", "local"), "run": values["run"]}
    if "gpus" in values:
        body["gpus"] = values["gpus"]
    after = tuple((src.strip(), "success") for src in values.get("after", "").split(",") if src.strip())
    return Add(TodoSpec(words[0], values.get("title", shorten(values["run"], 60)), "job", body), after)  # type: ignore[arg-type]


async def _edit(chat: Chat, ops: Sequence[Op]) -> None:
    for outcome in await chat.driver().edit(list(ops)):
        if outcome.get("error"):
            raise TurnoutError(str(outcome["error"]), hint=outcome.get("hint"))
        told = {k: v for k, v in outcome.items() if k not in ("op", "id")}
        said = ", ".join(f"{key} {value}" for key, value in told.items())
        chat.note(f"{outcome['op']} {outcome['id']}" + (f": {said}" if said else ""))


def _in_full(chat: Chat, todo: BoardTodo) -> list[Text]:
    mark, style = SYMBOLS[todo.shown]
    lines = [Text.assemble((f"{mark} ", style), (todo.id, "bold"), f"  {plain(todo.title)}")]
    after = ", ".join(f"{src}" + (f" on {on}" if on != "success" else "") for src, on in todo.after)
    took = clock(todo.seconds(time.time()))
    facts = [
        ("status", todo.status + (f" after {took}" if took else "")),
        ("reason", plain(todo.reason or "")),
        ("waits", chat.board.waits_for(todo) or ""),
        ("after", after + (" (any)" if todo.join == "any" and after else "")),
        ("priority", todo.priority),
        ("host", todo.host or ""),
        ("job", todo.job.id if todo.job else ""),
        ("tries", str(todo.attempts) if todo.attempts > 1 else ""),
    ]
    lines += [Text.assemble((f"  {name:<9}", "dim"), value) for name, value in facts if value]
    for name, value in (("result", todo.result), ("body", todo.body)):
        if value:
            shown = json.dumps(value, ensure_ascii=False, indent=2, default=str).splitlines()
            lines.append(Text(f"  {name}", "dim"))
            lines += [Text(f"    {plain_line(line)}") for line in shown[:40]]
            if len(shown) > 40:
                lines.append(Text(f"    … {len(shown) - 40} more lines: `turnout todo {chat.session} --json`", "dim"))
    return lines


def plain_line(line: str) -> str:
    """A line of a host's or playbook's text with its indentation and without control sequences."""
    return clean_text(line.encode("utf-8", "replace")).rstrip()


async def jobs(chat: Chat, words: list[str]) -> None:
    """One line a job."""
    everything = words[:1] == ["all"]
    if not everything and chat.board.jobs and chat.show("jobs"):
        return
    rows = await chat.db.aread(lambda conn: look.jobs(conn, None if everything else chat.session))
    if not rows:
        chat.note("no jobs yet")
        return
    width = max(len(row["id"]) for row in rows[-40:])
    lines = []
    for row in rows[-40:]:
        style = "green" if row["rc"] == 0 else "red" if row["state"] in JOB_ENDED else "cyan"
        end = row["signal"] or ("" if row["rc"] is None else f"rc {row['rc']}")
        gpus = f" gpus {','.join(map(str, row['gpus']))}" if row["gpus"] else ""
        line = Text(f"{row['id']:<{width}}  {row['host']:<10} ")
        line.append(f"{row['state']:<9}", style).append(f" {clock(row['duration']):>7} {end}{gpus}  ")
        lines.append(line.append(plain(row["reason"] or row["cancel"] or ""), "dim"))
    if len(rows) > 40:
        lines.insert(0, Text(f"the last 40 of {len(rows)}; `turnout jobs` shows all", "dim"))
    chat.note(*lines)


async def job_named(chat: Chat, wanted: str) -> dict[str, Any]:
    """The job of this id or the newest of this todo. Raises `NotFound`, `UsageError`."""
    return dict(await chat.db.aread(lambda conn: look.find_job(conn, wanted, chat.session)))


async def logs(chat: Chat, words: list[str]) -> None:
    """The end of a job's log, read from its host."""
    if not words:
        raise UsageError("`/logs` wants a job or a todo", hint="`/jobs` shows them")
    lines = LOG_LINES if len(words) < 2 else max(1, min(500, int(words[1]) if words[1].isdigit() else LOG_LINES))
    job = await job_named(chat, words[0])
    host = await chat.driver().hosts.get(job["host"])
    piece = await host.read_log(job["id"], -lines * LINE_BYTES, lines * LINE_BYTES)
    shown = clean_text(piece.data).splitlines()[-lines:]
    head = f"{job['id']} on {job['host']}, {job['state']}, {piece.size:,} bytes"
    more = Text(f"`turnout logs {job['id']} -f` follows it", "dim")
    chat.note(Text(head, "bold"), *(Text(line) for line in shown or ["(nothing yet)"]), more)


async def kill(chat: Chat, words: list[str]) -> None:
    """End the job of a todo. What its end means is the graph's business."""
    if not words:
        raise UsageError("`/kill` wants a job or a todo", hint="`/jobs` shows them; `/todo cancel ID` gives a todo up")
    job = await job_named(chat, words[0])
    if job["session"] != chat.session:
        raise UsageError(f"job `{job['id']}` is of session `{job['session']}`", hint=f"`turnout kill {job['id']}`")
    if job["state"] in JOB_ENDED:
        raise UsageError(f"job `{job['id']}` has ended ({job['reason'] or job['state']})")
    await _edit(chat, [Kill(job["todo"], " ".join(words[1:]) or "stopped by the operator")])


async def hosts(chat: Chat, words: list[str]) -> None:
    """The hosts by name, with the jobs that run there."""
    rows = await chat.db.aread(look.hosts)
    alive: dict[str, int] = {}
    for job in chat.board.jobs.values():
        if job.alive:
            alive[job.host] = alive.get(job.host, 0) + 1
    lines = [_host_line(chat, "local", "this machine", None, alive.get("local", 0))]
    lines += [_host_line(chat, row["name"], row["address"], row["gpus"], row["jobs"]) for row in rows]
    lines.append(Text("`turnout hosts add NAME USER@ADDRESS` adds one, `turnout hosts probe NAME` looks at it", "dim"))
    chat.note(*lines)


def _host_line(chat: Chat, name: str, address: str, gpus: int | None, running: int) -> Text:
    lost = chat.board.lost.get(name)
    line = Text.assemble((f"{name:<12}", "bold"), f" {address:<28} ")
    line.append(f"{running} job{'s' * (running != 1)}", "cyan" if running else "dim")
    if gpus is not None:
        line.append(f"  {gpus} GPUs")
    return line.append(f"  no contact: {plain(lost.why)}", "yellow") if lost else line


async def approve(chat: Chat, words: list[str]) -> None:
    """`/approve` says yes to what has been asked longest; an id, `no` and a reason are possible."""
    if not chat.questions:
        raise UsageError("nothing is asked")
    todo = next(iter(chat.questions))
    if words and words[0] not in ("yes", "no", "always"):
        names = [id for id in chat.questions if id.startswith(words[0])]
        if names or len(words) > 1 or len(chat.questions) > 1:
            todo = look.pick(words.pop(0), names, "open question", "it asks: " + ", ".join(chat.questions))
    question = chat.questions[todo]
    word = words.pop(0) if words and words[0] in ("yes", "no", "always") else "yes"
    if question.free and words:
        await chat.answer(todo, " ".join(words))
        return
    await chat.answer(todo, "no" if word == "no" else "yes", " ".join(words) or None, always=word == "always")


# For other commands


async def messages(chat: Chat, first: int, limit: int) -> list[Text]:
    """Messages of the log from `first` on, a line each."""
    from agent.replay_source import entries
    from agent.replay_words import words

    def work(conn: Connection) -> list[Any]:
        found = []
        for entry in entries(conn, chat.session, first - 1):
            found.append(entry)
            if len(found) == limit:
                break
        return found

    rows = await chat.db.aread(work)
    begun = chat.board.created
    return [
        Text.assemble(
            (f"{e.seq:>6} ", "bold"), (f"{clock(max(0.0, e.time - begun)):>8} ", "dim"), (f"{e.kind:<18} ", "cyan"),
            shorten(words(e), 100),
        )
        for e in rows
    ]  # fmt: skip


async def sessions(chat: Chat) -> list[dict[str, Any]]:
    """The newest sessions but this one."""
    rows = await chat.db.aread(lambda conn: look.sessions(conn, everything=False))
    now = time.time()
    return [
        {**row, "age": now - row["created"], "done": f"{row['todos']['done']}/{row['todos']['total']}"}
        for row in rows
        if row["id"] != chat.session
    ][:12]


async def session_named(chat: Chat, wanted: str) -> str:
    """A session by a beginning of its id. Raises `NotFound`, `UsageError`."""
    found = await chat.db.aread(lambda conn: look.find_session(conn, wanted))
    if found == chat.session:
        raise NotFound(f"`{wanted}` is this session")
    return found


async def export_log(chat: Chat, path: Path) -> int:
    """Every message as a line of JSON; the bytes written. Raises `UsageError` when the file is there."""

    def work(conn: Connection) -> int:
        size = 0
        with _create(path) as file:
            for m in read(conn, chat.session):
                row = {
                    "seq": m.seq,
                    "time": m.time,
                    "kind": m.kind,
                    "actor": m.actor,
                    "cause": m.cause,
                    "payload": m.payload,
                }
                size += file.write(json.dumps(row, ensure_ascii=False) + "\n")
        return size

    return await chat.db.aread(work)


async def export_text(chat: Chat, path: Path) -> int:
    """The conversation as Markdown; the characters written. Raises `UsageError` when the file is there."""
    parts = [f"# {chat.board.title}\n"]
    for entry in chat.conversation.entries:
        if entry.kind == "said":
            parts.append("> " + entry.text.replace("\n", "\n> ") + "\n")
        elif entry.kind == "answer":
            parts.append(entry.text + "\n")
        elif entry.kind == "event":
            parts.append("\n".join(f"- {line.plain}" for line in entry.lines) + "\n")
        elif entry.kind == "tool":
            parts.append(f"- `{entry.name}` {entry.state}\n")

    def work() -> int:
        with _create(path) as file:
            return file.write("\n".join(parts))

    return await to_thread.run_sync(work)


def _create(path: Path) -> TextIO:
    try:
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")
    except FileExistsError:
        raise UsageError(f"`{path}` is there already", hint="name another file") from None
    except OSError as error:
        folder = path.parent
        hint = "choose another folder" if folder.is_dir() else f"there is no folder `{folder}`: `mkdir -p {folder}`"
        raise UsageError(f"`{path}` cannot be written: {error.strerror}", hint=hint) from None
