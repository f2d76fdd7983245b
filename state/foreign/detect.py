"""Which program recorded a file or folder, told by what is in it and not by its name alone.

source = recognise(Path("..."), losses)     # its sessions, not read yet
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from state.errors import NotFound, UsageError
from state.foreign import claude, codex, codex_text, opencode_export, opencode_files, opencode_tables, sweagent
from state.foreign.damage import Losses, decode
from state.foreign.elements import whole_part
from state.foreign.story import Found

HEAD = 256 * 1024
_SQLITE = b"SQLite format 3\x00"
KNOWN = (
    "Claude Code JSONL, opencode (folder, database, export, run stream), Codex rollouts, SWE-agent trajectories,"
    " exports of Turnout"
)


def recognise(path: Path, losses: Losses, *, known: Collection[Path] = ()) -> list[Found]:
    """The sessions in a file or folder, oldest first. `known` are files of a folder that need not be recognised.

    Raises `NotFound` when nothing is there, `UsageError` when no format that is known is found in it.
    """
    if not path.exists():
        raise NotFound(f"there is no file or folder `{path}`", hint="give the path of a recorded session")
    try:
        return _folder(path, losses, known) if path.is_dir() else _file(path, losses)
    except PermissionError as error:
        raise UsageError(f"`{error.filename}` cannot be read: {error.strerror}", hint="check its owner") from error


def _folder(path: Path, losses: Losses, known: Collection[Path]) -> list[Found]:
    storage = opencode_files.storage_of(path)
    if storage is not None:
        return opencode_files.sessions(storage, losses)
    database = next((p for p in sorted(path.glob("opencode*.db")) if p.is_file()), None)
    if database is not None:
        return opencode_tables.sessions(database, losses)
    found: list[Found] = []
    patterns = ("*.jsonl", "*.traj", "rollout-*.json") if not _is_codex(path) else ("rollout-*.jsonl", "rollout-*.json")
    for file in sorted({file for pattern in patterns for file in path.rglob(pattern)}):
        if file.name.startswith("agent-") or "subagents" in file.parts or not file.is_file() or file in known:
            continue  # told with the session that they belong to
        try:
            found += _file(file, losses)
        except UsageError as error:
            losses.add(str(file.relative_to(path)), error.message)
    if not found and not known:
        raise UsageError(f"the folder `{path}` holds no recorded session", hint=f"known are: {KNOWN}")
    return found


def _is_codex(path: Path) -> bool:
    return any(path.rglob("rollout-*.jsonl"))


def _file(path: Path, losses: Losses) -> list[Found]:
    with open(path, "rb") as file:
        head = file.read(HEAD)
    if head.startswith(_SQLITE):
        return _database(path, losses)
    storage = opencode_files.storage_of(path)
    if storage is not None:
        return opencode_files.sessions(storage, losses, only=path)
    if not head.strip(b"\x00 \t\r\n"):
        return _empty(path, len(head), losses)
    records = _first_records(head)
    if any(_of_claude(r) for r in records):
        return claude.sessions(path)
    if any(_of_codex(r) for r in records):
        return codex.sessions(path, losses)
    if any(opencode_export.is_stream(r) for r in records):
        return opencode_export.stream_sessions(path)
    if _is_list_of_messages(head):
        return sweagent.sessions(path)
    whole = _document(head)
    if {"trajectory", "trajectory_format"} & set(whole) or path.suffix == ".traj":
        return sweagent.sessions(path)
    if {"session", "items"} <= set(whole):
        return codex.old_sessions(path)
    if opencode_export.is_export(whole):
        return opencode_export.export_sessions(path)
    raise UsageError(f"`{path}` is in no format that is known", hint=f"known are: {KNOWN}")


def _database(path: Path, losses: Losses) -> list[Found]:
    try:
        return opencode_tables.sessions(path, losses)
    except sqlite3.DatabaseError as error:
        raise UsageError(
            f"the database `{path}` cannot be read: {error}", hint="copy it with its `-wal` file beside it"
        ) from error


def _empty(path: Path, size: int, losses: Losses) -> list[Found]:
    """A file with a size and no content, as a power cut leaves it: one session less, and it is named."""
    content = f"{path.stat().st_size} bytes, all NUL or blank" if size else "0 bytes"
    losses.add(path.name, f"{content}: a write that a power cut undid; this session is lost")
    return []


def _first_records(head: bytes) -> list[Mapping[str, Any]]:
    """The records among the first lines, however damaged."""
    records: list[Mapping[str, Any]] = []
    for line in head.removeprefix(b"\xef\xbb\xbf").split(b"\n")[:64]:
        if line.strip():
            records += [v for v in decode(line, Losses(), "") if isinstance(v, Mapping)]
    return records


def _is_list_of_messages(head: bytes) -> bool:
    """mini-swe-agent's first form: nothing but the messages of a conversation."""
    if not head.lstrip().startswith(b"["):
        return False
    value, _ = whole_part(head[head.index(b"[") :])
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping) and "role" in value[0]


def _document(head: bytes) -> Mapping[str, Any]:
    """The beginning of a document as far as it is whole: enough to see its keys."""
    start = head.find(b"{")
    value, _ = whole_part(head[start:]) if start >= 0 else (None, 0)
    return value if isinstance(value, Mapping) else {}


_CLAUDE_TYPES = frozenset(
    [
        "user",
        "assistant",
        "system",
        "summary",
        "progress",
        "attachment",
        "queue-operation",
        "file-history-snapshot",
        "custom-title",
        "ai-title",
        "tag",
        "agent-name",
        "agent-color",
        "last-prompt",
        "permission-mode",
        "mode",
        "pr-link",
    ]
)
_CODEX_TYPES = frozenset(["session_meta", "response_item", "event_msg", "turn_context", "compacted"])


def _of_claude(record: Mapping[str, Any]) -> bool:
    message = record.get("message")
    if isinstance(message, Mapping) and record.get("type") in ("user", "assistant"):
        return "role" in message or "content" in message
    if isinstance(message, Mapping) and "sessionId" in record:
        return message.get("role") in ("user", "assistant")
    if str(record.get("type")) not in _CLAUDE_TYPES:
        return False
    marks = ("sessionId", "uuid", "leafUuid", "messageId", "parentUuid", "customTitle", "aiTitle")
    return any(mark in record for mark in marks)


def _of_codex(record: Mapping[str, Any]) -> bool:
    if str(record.get("type")) in _CODEX_TYPES and "payload" in record:
        return True
    return codex_text.is_old_head(record)
