"""opencode's database: `opencode.db` of 1.2 to 1.19 (tables message and part) and of version 2 (table session_message).

The file is not changed: without a write-ahead log it is opened as immutable, and with one it is read from a copy,
because SQLite would write beside the original even when it only reads.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from state.errors import UsageError
from state.foreign.damage import Losses, decode
from state.foreign.opencode import Message, Stored
from state.foreign.story import Found

_MESSAGE = {"id", "session_id", "time_created", "data"}
_TIMES = {"created": "time_created", "updated": "time_updated", "compacting": "time_compacting"}


def sessions(path: Path, losses: Losses) -> list[Found]:
    """The sessions of a database that nobody else in it started, oldest first. Raises `sqlite3.DatabaseError`."""
    stored: dict[str, Stored] = {}
    with _opened(path) as conn:
        tables = _tables(conn)
        if {"sessions", "messages"} <= tables:
            raise UsageError(
                f"`{path}` is a database of the first opencode of 2025, later named Crush: its form is not read",
                hint="what its successor of the same name wrote is read: `storage/`, `opencode.db`, `opencode export`",
            )
        name = next((name for name in ("session_v2", "session") if name in tables), None)
        told = {table for table in ("message", "session_message") if _columns(conn, table) >= _MESSAGE}
        if not told:
            raise UsageError(f"the database `{path}` is not one of opencode's", hint="its tables have other names")
        for row in _rows(conn, f'SELECT * FROM "{name}"', (), losses, path.name) if name else ():
            key = str(row["id"])
            stored[key] = Stored(key, _info(row), str(path), _messages(path, key, tables))
        for table in sorted(told):
            for row in _rows(conn, f'SELECT DISTINCT session_id FROM "{table}"', (), losses, path.name):
                key = str(row["session_id"])
                if key not in stored:
                    losses.add(
                        f"{path.name} {key}", "messages without the record of their session: told from them alone"
                    )
                    stored[key] = Stored(key, {}, str(path), _messages(path, key, tables))
        if "todo" in tables:
            for row in _rows(conn, "SELECT * FROM todo ORDER BY session_id, position", (), losses, path.name):
                if row["session_id"] in stored:
                    stored[row["session_id"]].todos.append(dict(row))
    tops: list[Stored] = []
    for one in stored.values():
        parent = stored.get(str(one.info.get("parentID") or ""))
        (parent.children if parent is not None and parent is not one else tops).append(one)
    return sorted((one.found() for one in tops), key=lambda found: (found.time, found.key))


def _info(row: Mapping[str, Any]) -> dict[str, Any]:
    """A session's row in the form of its record in files and exports."""
    info = {k: v for k, v in dict(row).items() if v is not None and not k.startswith("time_")}
    if isinstance(info.get("data"), str):
        inner = next(iter(decode(info.pop("data").encode(), Losses(), "")), None)
        info |= inner if isinstance(inner, dict) else {}
    info["parentID"] = info.pop("parent_id", info.get("parentID"))
    times = {ours: row[theirs] for ours, theirs in _TIMES.items() if theirs in row and row[theirs] is not None}
    info["time"] = times or info.get("time")
    return info


def _messages(path: Path, key: str, tables: set[str]) -> Callable[[Losses], Iterator[Message]]:
    def read(losses: Losses) -> Iterator[Message]:
        with _opened(path) as conn:
            older = 'SELECT * FROM "message" WHERE session_id = ? ORDER BY time_created, id'
            count = 0
            for row in _rows(conn, older, (key,), losses, path.name) if "message" in tables else ():
                count += 1
                info = {"time": {"created": row["time_created"]}, **_data(row, losses, path.name, "message")}
                yield f"{path.name} message {row['id']}", info, list(_parts(conn, str(row["id"]), losses, path.name))
            if count == 0 and "session_message" in tables:
                yield from _newer(conn, key, losses, path.name)

    return read


def _parts(conn: sqlite3.Connection, message: str, losses: Losses, name: str) -> Iterator[dict[str, Any]]:
    for row in _rows(conn, "SELECT * FROM part WHERE message_id = ? ORDER BY id", (message,), losses, name):
        part = _data(row, losses, name, "part")
        if part:
            yield part


def _newer(conn: sqlite3.Connection, key: str, losses: Losses, name: str) -> Iterator[Message]:
    order = "seq" if "seq" in _columns(conn, "session_message") else "time_created, id"
    query = f"SELECT * FROM session_message WHERE session_id = ? ORDER BY {order}"
    for row in _rows(conn, query, (key,), losses, name):
        value = _data(row, losses, name, "session_message")
        if value:
            time = value.get("time") or {"created": row["time_created"]}
            yield f"{name} session_message {row['id']}", {**value, "type": row["type"], "time": time}, []


def _data(row: Mapping[str, Any], losses: Losses, name: str, what: str) -> dict[str, Any]:
    """The JSON of a row, with its id put back in."""
    raw = row["data"]
    place = f"{name} {what} {row['id']}"
    values = decode(raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else bytes(raw or b""), losses, place)
    value = next((v for v in values if isinstance(v, dict)), None)
    if value is None:
        losses.add(place, "its content is no JSON object")
        return {}
    return {"id": row["id"], **value}


def _rows(
    conn: sqlite3.Connection, query: str, values: tuple[Any, ...], losses: Losses, name: str
) -> Iterator[dict[str, Any]]:
    """The rows of a query. A damaged page ends it and is told."""
    cursor = conn.execute(query, values)
    names = [column[0] for column in cursor.description]
    while True:
        try:
            row = cursor.fetchone()
        except sqlite3.DatabaseError as error:
            losses.add(name, f"the database is damaged: {error}; what follows in `{query.split()[3]}` is lost")
            return
        if row is None:
            return
        yield dict(zip(names, row, strict=True))


def _columns(conn: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in conn.execute(f'PRAGMA table_info("{table}")')}


def _tables(conn: sqlite3.Connection) -> set[str]:
    return {row[0] for row in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    log = path.with_name(path.name + "-wal")
    with tempfile.TemporaryDirectory(prefix="turnout-") as folder:
        place = path
        if log.exists() and log.stat().st_size:
            place = Path(folder) / path.name
            shutil.copyfile(path, place)
            shutil.copyfile(log, place.with_name(log.name))
            options = "mode=rw"
        else:
            options = "mode=ro&immutable=1"
        with closing(sqlite3.connect(f"{place.resolve().as_uri()}?{options}", uri=True)) as conn:
            conn.text_factory = lambda raw: raw.decode("utf-8", "replace")
            yield conn
