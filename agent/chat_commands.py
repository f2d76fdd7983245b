"""The slash commands of the chat: one table, and the commands about the session as a whole.

    await run_command(chat, "/run eagle3 host=gpu1")

Those about todos, jobs and hosts are in `agent/chat_work.py`. A command says what it has to say as a note of the chat;
what cannot be done raises a `TurnoutError`, which the chat shows.
"""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from anyio import to_thread
from rich.text import Text

from agent import chat_work
from agent.chat import Chat
from agent.chat_text import count, money, shorten
from agent.pace import ago, clock
from state.errors import UsageError

Handler = Callable[[Chat, list[str]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Command:
    """`takes` is how its words are written in the help, `help` one line."""

    name: str
    takes: str
    help: str
    run: Handler
    raw: bool = False


async def run_command(chat: Chat, line: str) -> None:
    """Run one. Raises `UsageError` for a name that is none."""
    name, _, rest = line[1:].partition(" ")
    command = COMMANDS.get(name.lower())
    if command is None:
        near = difflib.get_close_matches(name.lower(), COMMANDS, n=1)
        meant = f"; did you mean `/{near[0]}`?" if near else ""
        raise UsageError(
            f"there is no command `/{name}`{meant}", hint="`/help` shows all; `//` begins words with a slash"
        )
    await command.run(chat, [rest.strip()] if command.raw else _split(rest))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"`{shorten(text, 60)}` cannot be read: {error}", hint="close every quote") from None


async def _run(chat: Chat, words: list[str]) -> None:
    if not words:
        from agent.playbook_find import catalogue

        found = await to_thread.run_sync(catalogue)
        chat.note("playbooks; `/run NAME name=value …` starts one", *(f"  {n:<18} {title}" for n, title, _ in found))
        return
    name, *settings = words
    sets = {}
    for setting in settings:
        key, sign, value = setting.partition("=")
        if not sign:
            raise UsageError(f"`{setting}` is no parameter", hint=f"write `/run {name} {setting}=value`")
        sets[key] = value
    host = sets.pop("host", None)
    await chat.driver().load_playbook(name, sets, host=host)


async def _pause(chat: Chat, words: list[str]) -> None:
    chat.driver().pause()
    chat.note("paused: nothing new starts, jobs go on; `/go` goes on")


async def _go(chat: Chat, words: list[str]) -> None:
    chat.driver().go()
    chat.note("going on")


async def _cost(chat: Chat, words: list[str]) -> None:
    spent = chat.driver().spent
    read = f"{count(spent.input)} tokens in, {count(spent.cache_read)} of a cache, {count(spent.output)} out"
    cost = money(spent.cost) if spent.cost else "no price is known for the model" if spent.unpriced else "nothing"
    more = f" ({spent.unpriced} calls had no price)" if spent.unpriced and spent.cost else ""
    used, window = chat.driver().context
    lines = [f"{spent.calls} calls of a model, with those of subagents: {read}", f"cost so far: {cost}{more}"]
    if window:
        lines.append(
            f"context: {count(used)} of {count(window)} tokens, {used / window:.0%}; `/compact` makes it shorter"
        )
    chat.note(*lines)


async def _model(chat: Chat, words: list[str]) -> None:
    talk = chat.driver()
    if words:
        talk.use_model(None if words[0] in ("none", "off") else words[0])
        chat.note(f"from the next turn on: {words[0]}")
    elif talk.doing == "no model":
        chat.note("no model is set up", *(f"  {line}" for line in chat.setup_hint))
    else:
        chat.note(
            f"{chat.status.model or 'the configured model'}; `/model NAME` takes another, `/model none` does without"
        )


async def _compact(chat: Chat, words: list[str]) -> None:
    await chat.driver().compact()
    chat.note("the conversation was made shorter for the model; the log keeps all of it")


async def _replay(chat: Chat, words: list[str]) -> None:
    """The last messages of the log, or those from a number on."""
    first = max(1, chat.board.seq - 14) if not words else _number(words[0], "message")
    rows = await chat_work.messages(chat, first, 15)
    if not rows:
        raise UsageError(f"the log has {chat.board.seq} messages and none from {first} on")
    chat.note(*rows, Text(f"`turnout replay {chat.session}` plays the whole session", "dim"))


def _number(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"`{text}` is no number of a {what}") from None


async def _export(chat: Chat, words: list[str]) -> None:
    """The log as JSON lines, or the conversation as Markdown; the ending of the file's name decides."""
    path = Path(os.path.expanduser(words[0] if words else f"turnout-{chat.session}.jsonl"))  # noqa: ASYNC240 - no I/O
    if path.suffix not in (".jsonl", ".md"):
        raise UsageError(f"`{path}` is neither `.jsonl` (the log) nor `.md` (the conversation)")
    size = await (chat_work.export_log(chat, path) if path.suffix == ".jsonl" else chat_work.export_text(chat, path))
    chat.note(f"written: {path} ({size:,} bytes)")


async def _resume(chat: Chat, words: list[str]) -> None:
    if words:
        session = await chat_work.session_named(chat, words[0])
        chat.leave(0, then=session)
        return
    rows = await chat_work.sessions(chat)
    shown = [
        f"  {r['id']}  {r['state']:<11} {ago(r['age']):>6} ago  {r['done']:>5}  {shorten(r['title'], 60)}" for r in rows
    ]
    chat.note("sessions; `/resume ID` goes on with one, and this one's jobs go on", *shown)


async def _help(chat: Chat, words: list[str]) -> None:
    if chat.show("help"):
        return
    width = max(len(f"/{c.name} {c.takes}") for c in COMMANDS.values())
    lines = [
        Text.assemble((f"/{c.name} {c.takes}".ljust(width + 2), "bold"), (c.help, "dim")) for c in COMMANDS.values()
    ]
    chat.note(*lines, Text("Anything else is said to the model, while everything goes on.", "dim"))


async def _quit(chat: Chat, words: list[str]) -> None:
    chat.leave()


async def _again(chat: Chat, words: list[str]) -> None:
    board = chat.board
    took = clock(board.seconds(board.updated))
    chat.note(
        f"session {chat.session}: {board.title}, {board.status} for {took}, {board.done}/{len(board.todos)} todos"
    )


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command("run", "PLAYBOOK [x=y …]", "a playbook joins the graph; alone: which are there", _run),
        Command("todo", "[ID | VERB ID]", "the graph; one todo; cancel, retry, high, low, add", chat_work.todo),
        Command("jobs", "[all]", "the jobs of this session", chat_work.jobs),
        Command("logs", "JOB|TODO [LINES]", "the end of a job's log, from its host", chat_work.logs),
        Command("kill", "JOB|TODO [REASON]", "end a job and all its processes", chat_work.kill),
        Command("hosts", "", "the hosts and what runs there", chat_work.hosts),
        Command("approve", "[ID] [no|always]", "answer what is asked; no may have a reason", chat_work.approve),
        Command("pause", "", "start nothing new; jobs go on", _pause),
        Command("go", "", "go on after a pause", _go),
        Command("cost", "", "tokens, money and context", _cost),
        Command("model", "[NAME|none]", "which model speaks", _model),
        Command("compact", "", "shorten the conversation for the model", _compact),
        Command("replay", "[MESSAGE]", "the log, message by message", _replay),
        Command("export", "[FILE]", "write the log (.jsonl) or the words (.md)", _export),
        Command("resume", "[SESSION]", "go on with another session", _resume),
        Command("session", "", "which session this is", _again),
        Command("help", "", "this list", _help),
        Command("quit", "", "leave; jobs go on", _quit),
    )
}
