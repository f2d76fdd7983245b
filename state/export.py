"""Sessions as a file of our own: one JSON object a line, from which an equal session is made again.

    for line in lines(conn, "abcd2345"): file.write(line)
    read(path, losses) -> Exported              # its sessions, its extras; then `bring(conn, ...)`

The first line is the header `{"turnout": "session", "version": 1, "session": ID, "redacted": [...]}`; then come extras
(`{"extra": "host"|"payload", ...}`: what the session needs elsewhere), then every message of the session and of its
subagents as it stands in the log, and last `{"end": NUMBER OF MESSAGES}`. Every line ends with a checksum, `crc`;
whoever edits a line by hand takes it out. docs/formats.md is the contract.

A damaged file gives each session up to its first missing message: that is the session as it was at that time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from sqlalchemy import Connection, func, select

from state.errors import NotFound, StateError, UsageError
from state.foreign.damage import Losses, decode
from state.foreign.lines import Lines
from state.log import read as read_log
from state.log import restore
from state.models import Message, Session, table

VERSION = 1
BATCH = 500
LONGEST_HEAD = 1024 * 1024
_COLUMNS = ("session", "seq", "time", "kind", "actor", "payload", "cause")
_messages, _sessions = table(Message), table(Session)

Change = Callable[[Any], Any]
"""What is done to every value on its way out; redaction is one."""


def family(conn: Connection, session: str) -> list[str]:
    """A session and its subagents' sessions, each behind its parent. Raises `NotFound`."""
    if conn.execute(select(_sessions.c.id).where(_sessions.c.id == session)).one_or_none() is None:
        raise NotFound(f"no session `{session}`", hint="`turnout sessions` lists them")
    found = [session]
    for parent in found:
        children = (
            select(_sessions.c.id).where(_sessions.c.parent == parent).order_by(_sessions.c.created, _sessions.c.id)
        )
        found += [id for id in conn.execute(children).scalars() if id not in found]
    return found


def lines(
    conn: Connection,
    session: str,
    *,
    extras: Sequence[Mapping[str, Any]] = (),
    change: Change | None = None,
    redacted: Sequence[str] = (),
) -> Iterator[str]:
    """The lines of the file, each with its newline. Raises `NotFound`."""
    messages = (message for id in family(conn, session) for message in read_log(conn, id))
    yield from written(session, messages, extras=extras, change=change, redacted=redacted)


def written(
    session: str,
    messages: Iterable[Message],
    *,
    extras: Sequence[Mapping[str, Any]] = (),
    change: Change | None = None,
    redacted: Sequence[str] = (),
) -> Iterator[str]:
    """The lines of a file with these messages: of `session` first, each session in order."""

    def line(value: Mapping[str, Any]) -> str:
        return _sealed(value if change is None else change(value))

    head: dict[str, Any] = {"turnout": "session", "version": VERSION, "session": session}
    yield line({**head, **({"redacted": list(redacted)} if redacted else {})})
    for extra in extras:
        yield line(extra)
    count = 0
    for message in messages:
        count += 1
        yield line({name: getattr(message, name) for name in _COLUMNS})
    yield line({"end": count})


def _sealed(value: Mapping[str, Any]) -> str:
    """One line, with the CRC-32 of what stands before it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f'{text[:-1]},"crc":{crc32(text.encode("utf-8", "surrogatepass"))}}}\n'


def _unsealed(value: dict[str, Any]) -> bool:
    """Take the seal off. Whether the line is as it was written; one without a seal was edited, and holds."""
    seal = value.pop("crc", None)
    if seal is None:
        return True
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return bool(crc32(text.encode("utf-8", "surrogatepass")) == seal)


@dataclass(slots=True)
class Exported:
    """A file that was read: its header's session, the extras, and for each session where its messages stand."""

    path: Path
    session: str
    redacted: list[str] = field(default_factory=list)
    extras: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, list[int]] = field(default_factory=dict)
    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    gaps: set[str] = field(default_factory=set)
    parents: dict[str, str | None] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)


def is_export(path: Path) -> bool:
    """Whether a file is one of ours, by its first lines: the header may be damaged."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        heads = [value for _ in range(8) for value in decode(file.readline(LONGEST_HEAD), Losses(), "")]
    return any(isinstance(v, dict) and (v.get("turnout") == "session" or v.keys() >= set(_COLUMNS)) for v in heads)


def read(path: Path, losses: Losses) -> Exported:
    """Look through a file: what is in it, and what of it is missing. Raises `UsageError` for a later version."""
    exported = Exported(path, "")
    lines = Lines(path, losses)
    with closing(lines):
        ended: int | None = None
        for number, _, value in lines:
            if not _unsealed(value):
                losses.add(lines.place(number), "this line was damaged: it is not what its checksum says")
            elif "turnout" in value:
                _head(exported, value)
            elif "extra" in value:
                exported.extras.append(value)
            elif "end" in value:
                ended = value["end"]
            elif value.keys() >= set(_COLUMNS):
                _message(exported, number, value, losses, lines)
            else:
                losses.add(lines.place(number), "no message of a log")
        had = sum(map(len, exported.numbers.values()))
        if ended is None:
            losses.add(path.name, "the file has no end: it was cut, or is still being written")
        elif ended != had:
            losses.add(path.name, f"the file was written with {ended} messages and {had} of them could be had")
        exported.numbers = {session: numbers for session, numbers in exported.numbers.items() if numbers}
    return exported


def _head(exported: Exported, value: Mapping[str, Any]) -> None:
    if value.get("version", 0) > VERSION:
        raise UsageError(
            f"`{exported.path}` was written in version {value['version']} of the format; this Turnout knows {VERSION}",
            hint="update Turnout here",
        )
    exported.session = str(value.get("session"))
    exported.redacted = list(value.get("redacted") or ())


def _message(exported: Exported, number: int, value: Mapping[str, Any], losses: Losses, lines: Lines) -> None:
    """Take a message if it goes on where its session stands; a gap ends the session there."""
    session, seq = str(value["session"]), value["seq"]
    numbers = exported.numbers.setdefault(session, [])
    if not _is_whole(value):
        losses.add(lines.place(number), "no message of a log: a field is not what it must be")
    elif seq == len(numbers) + 1 and (seq > 1 or value["kind"] == "session.created"):
        numbers.append(number)
        exported.kinds.setdefault(session, Counter())[value["kind"]] += 1
        if seq == 1:
            exported.parents[session] = value["payload"].get("parent")
            exported.titles[session] = str(value["payload"].get("title", ""))
            exported.session = exported.session or session
    elif seq <= len(numbers):
        losses.add(lines.place(number), f"message {seq} of session `{session}` stands here again; the first counts")
    elif session not in exported.gaps:
        exported.gaps.add(session)
        told = f"message {len(numbers) + 1} of session `{session}` is missing: it is taken up to the one before"
        losses.add(lines.place(number), told)


def _is_whole(value: Mapping[str, Any]) -> bool:
    texts = all(isinstance(value[name], str) for name in ("session", "kind", "actor"))
    return texts and isinstance(value["seq"], int) and _is_number(value["time"]) and isinstance(value["payload"], dict)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def bring(conn: Connection, exported: Exported) -> dict[str, int]:
    """Write the sessions of a file. Returns for each the number of messages that were new.

    A session that is here already is continued if the file holds more of the same log, and left if it holds less.
    Raises `StateError` when both differ: then they are two sessions of one name, and nothing is written.
    """
    lines = Lines(exported.path, Losses())
    new: dict[str, int] = {}
    with closing(lines):
        for _ in lines:
            pass
        for session, numbers in exported.numbers.items():
            known = _known(conn, session, lines, numbers)
            fresh = numbers[known:]
            for start in range(0, len(fresh), BATCH):
                values = (lines.value(n) for n in fresh[start : start + BATCH])
                _write(conn, session, [{name: value[name] for name in _COLUMNS} for value in values])
            new[session] = len(fresh)
    return new


def _write(conn: Connection, session: str, rows: Sequence[Mapping[str, Any]]) -> None:
    try:
        restore(conn, session, rows)
    except (KeyError, TypeError) as error:
        where = f"messages {rows[0]['seq']} to {rows[-1]['seq']} of session `{session}`"
        raise StateError(f"{where} are not what their kinds say: {error!r}", hint="was the file edited?") from error


def _known(conn: Connection, session: str, lines: Lines, numbers: Sequence[int]) -> int:
    """How many messages of a session are here already, having seen that they are those of the file."""
    count = conn.execute(select(func.count()).where(_messages.c.session == session)).scalar_one()
    for place, message in enumerate(read_log(conn, session, limit=min(count, len(numbers)))):
        value = lines.value(numbers[place])
        if any(getattr(message, name) != value[name] for name in _COLUMNS):
            raise StateError(
                f"session `{session}` is here already, and its message {place + 1} differs from that in the file",
                hint="use another database for it: `--db PATH`",
            )
    return int(count)
