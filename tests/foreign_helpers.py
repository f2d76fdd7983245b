"""Small sessions in the forms of other programs, and what they become when they are imported."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from state.db import Database
from state.foreign.damage import Losses
from state.foreign.detect import recognise
from state.foreign.store import Imported, Importer
from state.models import Message, table

ZERO = "2026-01-01T10:{:02d}:{:02d}.000Z"


def at(second: int) -> str:
    """A time on New Year's morning."""
    return ZERO.format(second // 60, second % 60)


class Claude:
    """Builds a transcript record by record; each follows the one before unless it says otherwise."""

    def __init__(self, session: str = "s1") -> None:
        self.session = session
        self.records: list[dict[str, Any]] = []
        self._last: str | None = None

    def add(self, type: str, uuid: str, **fields: Any) -> dict[str, Any]:
        record = {
            "type": type, "uuid": uuid, "parentUuid": self._last, "isSidechain": False, "sessionId": self.session,
            "timestamp": at(len(self.records)), "cwd": "/srv/proj", "version": "2.1.0", **fields,
        }  # fmt: skip
        self.records.append(record)
        if not record["isSidechain"]:
            self._last = uuid
        return record

    def says(self, uuid: str, text: str, **fields: Any) -> None:
        self.add("user", uuid, message={"role": "user", "content": text}, **fields)

    def answers(self, uuid: str, *blocks: Mapping[str, Any] | str, id: str | None = None, **fields: Any) -> None:
        content = [{"type": "text", "text": b} if isinstance(b, str) else dict(b) for b in blocks]
        usage = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 2}
        message = {
            "id": id or f"msg_{uuid}",
            "role": "assistant",
            "model": "claude-x",
            "content": content,
            "usage": usage,
        }
        self.add("assistant", uuid, message={**message, "stop_reason": None}, **fields)

    def result(self, uuid: str, call: str, content: Any, **fields: Any) -> None:
        block = {"type": "tool_result", "tool_use_id": call, "content": content}
        self.add("user", uuid, message={"role": "user", "content": [block]}, **fields)

    def loose(self, type: str, **fields: Any) -> None:
        self.records.append({"type": type, "sessionId": self.session, "timestamp": at(len(self.records)), **fields})

    def lines(self) -> list[bytes]:
        return [json.dumps(record).encode() for record in self.records]

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(line + b"\n" for line in self.lines()))
        return path


def use(id: str, name: str = "Bash", **given: Any) -> dict[str, Any]:
    """A tool call's block."""
    return {"type": "tool_use", "id": id, "name": name, "input": given}


class Result:
    """What an import gave: the sessions, the losses, and their logs."""

    def __init__(self, path: Path) -> None:
        self.db = Database.open("sqlite://")
        self.losses = Losses()
        numbers = count(1)
        importer = Importer(self.db, lambda: f"id{next(numbers)}", self.losses)
        self.done: list[Imported] = [importer.store(found) for found in recognise(path, self.losses)]

    def log(self, session: str | None = None) -> list[Message]:
        return self.db.read(lambda conn: list(_rows(conn, session or self.done[0].session)))

    def kinds(self, session: str | None = None) -> list[str]:
        """The kinds of a log, without its beginning and end."""
        return [m.kind for m in self.log(session)][1:-1]

    def of(self, kind: str, session: str | None = None) -> list[dict[str, Any]]:
        return [m.payload for m in self.log(session) if m.kind == kind]

    def said(self) -> list[str]:
        """The operator's words and the model's, in order."""
        told = []
        for message in self.log():
            if message.kind == "operator.said":
                told.append(message.payload["text"])
            elif message.kind == "model.answered":
                told += [b["text"] for b in message.payload["content"] if b["type"] == "text"]
        return told

    def reasons(self) -> list[str]:
        return [loss["reason"] for loss in self.losses.told()]


def _rows(conn: Connection, session: str) -> Iterable[Message]:
    rows = table(Message)
    query = select(rows).where(rows.c.session == session).order_by(rows.c.seq)
    return [Message(**row._mapping) for row in conn.execute(query)]


def unanswered(log: Sequence[Message]) -> list[str]:
    """Calls without exactly one answer, and answers without a call."""
    calls = [
        b["id"] for m in log if m.kind == "model.answered" for b in m.payload["content"] if b["type"] == "tool_use"
    ]
    answers = [m.payload["tool_use_id"] for m in log if m.kind == "tool.answered"]
    return sorted(set(calls) ^ set(answers)) + [id for id in set(answers) if answers.count(id) > 1]
