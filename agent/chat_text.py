"""Entries, events and tool calls in words: the lines that both faces show."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from agent.board import Board, BoardTodo
from agent.pace import clock
from agent.painter import SYMBOLS, WORDS, plain
from state.specs import TERMINAL

MAX_INPUT = 160
MAX_PATH = 60
MAX_REASON = 300
_MARKS = re.compile(r"</?(output|data|report|state|notice)\b[^>]*>")
"""What tells a model that text came from elsewhere; a person sees where it came from."""
_PAST = {
    "add": "added",
    "link": "linked",
    "change": "changed",
    "cancel": "cancelled",
    "kill": "ended",
    "retry": "retried",
}
_PAST |= {"load": "loaded"}
_PATHS = ("path", "filePath", "file_path")
_TELLING = (
    "command",
    "cmd",
    "run",
    "prompt",
    "question",
    *_PATHS,
    "pattern",
    "query",
    "name",
    "playbook",
    "todo",
    "id",
    "title",
    "url",
    "input",
)


def event_line(board: Board, p: Mapping[str, Any], now: float) -> Text | None:
    """What a change of a todo's status says to a person; `None` for what the graph shows well enough."""
    todo = board.todos.get(p["id"])
    if todo is None or p["now"] == "skipped" or p["id"].startswith("call:"):
        return None
    if p["now"] == "in_progress" and todo.kind in ("ask", "gate", "race", "stop"):
        return None
    if p["now"] == "completed" and todo.kind == "ask":
        return None  # its answer is told
    mark, style = SYMBOLS[todo.shown if todo.status == p["now"] else p["now"]]
    if p["now"] == "failed" and todo not in board.failures():
        style = "yellow"  # the graph has an answer to it
    text = Text.assemble((f"{mark} ", style), (todo.id, "bold" if p["now"] == "failed" else ""))
    return text.append(f" {todo_words(todo, p['was'], now)}", "dim" if p["now"] != "failed" else "")


def todo_words(todo: BoardTodo, was: str, now: float) -> str:
    """`started on gpu1 (try 2)`, `failed after 0:12: exited with 1`."""
    reason = f": {shorten(plain(todo.reason), MAX_REASON)}" if todo.reason else ""
    if todo.status == "in_progress":
        where = f" on {todo.host}" if todo.host else ""
        again = f" (try {todo.attempts})" if todo.attempts > 1 else ""
        title = f"  {plain(todo.title)}" if todo.title and todo.title != todo.id else ""
        return f"started{where}{again}{title}"
    if todo.status == "pending":
        return f"to be tried again{'' if reason == ': to be tried again' else reason}"
    took = f" after {clock(todo.seconds(now))}" if was == "in_progress" and todo.started else ""
    return f"{WORDS.get(todo.shown, todo.status)}{took}{reason}{result_words(todo) if todo.status in TERMINAL else ''}"


def result_words(todo: BoardTodo) -> str:
    """The figures of a result, where they are few: `  accept_length 2.1, multiplier 1.45`."""
    found = {k: v for k, v in (todo.result or {}).items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    if not found or len(found) > 4 or todo.kind not in ("job", "tool"):
        return ""
    return "  " + ", ".join(f"{plain(k)} {v:g}" for k, v in found.items())


def tool_words(name: str, input: Mapping[str, Any], room: int = MAX_INPUT) -> str:
    """A tool call in one line: its name and, in `room` characters, the part of its input that says most."""
    for key in ("title", "description", *_TELLING) if name == "task" else _TELLING:
        value = _argument(input.get(key))
        if value:
            host = f" on {input['host']}" if isinstance(input.get("host"), str) else ""
            most = min(room, MAX_PATH) if key in _PATHS else room
            told = "…" + value[1 - most :] if key in _PATHS and len(value) > most else shorten(value, most)
            return f"{name}{host}  {told}"
    if not input:
        return name
    return f"{name}  {shorten(plain(json.dumps(input, ensure_ascii=False, default=str)), room)}"


def _argument(value: Any) -> str:
    """A text, or a command as the list of its words; of one that a shell is given, what the shell runs."""
    if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
        value = value[-1] if len(value) == 3 and value[1].startswith("-") and "c" in value[1] else shlex.join(value)
    return plain(value).strip() if isinstance(value, str) else ""


def outcome_words(text: str) -> str:
    """What became of edits of the graph, which tools answer as JSON: `21 added`; other texts as they are."""
    try:
        told = json.loads(text)
    except ValueError:
        return "\n".join(line for line in text.splitlines() if not _MARKS.fullmatch(line.strip()))
    if not isinstance(told, list) or not all(isinstance(one, dict) and "op" in one for one in told):
        return text
    failed = [f"{one.get('id')}: {one['error']}" for one in told if one.get("error")]
    counts: dict[str, list[str]] = {}
    for one in told:
        if not one.get("error"):
            counts.setdefault(_PAST.get(one["op"], one["op"]), []).append(str(one.get("id")))
    said = [f"{', '.join(ids) if len(ids) < 4 else f'{len(ids)} todos'} {verb}" for verb, ids in counts.items()]
    return "\n".join(["; ".join(said), *failed]).strip()


def shorten(text: str, length: int) -> str:
    """`text` in at most so many characters."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def count(number: float) -> str:
    """Tokens: `950`, `12.3k`, `1.2M`."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def money(cost: float | None) -> str:
    """A cost as it is spoken of: `$0.042`, `$3.10`; nothing when there is no price."""
    if cost is None:
        return ""
    return f"${cost:.3f}" if cost < 1 else f"${cost:.2f}"
