"""A session as Claude Code JSONL: what other programs' viewers read.

The talk is translated; what has no counterpart there (todos, jobs) stands as `system` records in words. Ids are derived
from the session's, so that the same session gives the same file. The records of an imported transcript that had no
counterpart here go back as they were.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from state.models import Message

VERSION = "2.1.0"
_SPACE = uuid.UUID("6f1d2a52-6f3e-5b57-9a53-0c5d1c2f8a10")
_SAID = {
    "session.status": "session {status}: {reason}",
    "todo.added": "todo {id}: {title}",
    "todo.status": "todo {id}: {was} -> {now}",
    "job.submitted": "job {id} submitted on {host}",
    "job.state": "job {id}: {state}",
    "job.cancel": "job {id} is to end: {reason}",
    "approval.asked": "asked about {todo}: {question}",
    "approval.answered": "answered about {todo}: {answer} by {by}",
    "child.started": "subagent {child} started: {title}",
    "child.reported": "subagent {child} {status}",
}


def records(
    session: str, log: Iterable[Message], *, folder: str = "/", agent: bool = False
) -> Iterator[dict[str, Any]]:
    """The records of a session in the order of its log. `agent` makes them those of a subagent."""
    yield from _Writer(session, folder, agent).write(log)


class _Writer:
    def __init__(self, session: str, folder: str, agent: bool) -> None:
        self.session = session
        self._base = {"isSidechain": agent, "userType": "external", "cwd": folder, "version": VERSION, "gitBranch": ""}
        if agent:
            self._base["agentId"] = session
        self._parent: str | None = None

    def write(self, log: Iterable[Message]) -> Iterator[dict[str, Any]]:
        for message in log:
            yield from self._message(message)

    def _message(self, m: Message) -> Iterator[dict[str, Any]]:
        p = m.payload
        match m.kind:
            case "operator.said":
                yield self._user(m, p["text"])
            case "model.answered":
                yield from self._answer(m, p)
            case "model.failed":
                text = f"API Error: {p['kind']}: {p['reason']}"
                yield self._chained(m, "assistant", 0, isApiErrorMessage=True, message=self._said_by_nobody(m, text))
            case "tool.answered":
                block = {"type": "tool_result", "tool_use_id": p["tool_use_id"], "content": p["content"]}
                yield self._user(m, [{**block, **({"is_error": True} if p.get("is_error") else {})}])
            case "conversation.compacted":
                meta = {"trigger": "auto", "preTokens": 0}
                boundary = {"subtype": "compact_boundary", "content": "Conversation compacted", "level": "info"}
                last, self._parent = self._parent, None
                yield self._chained(m, "system", 0, **boundary, compactMetadata=meta, logicalParentUuid=last)
                yield self._user(m, p["summary"], 1, isCompactSummary=True)
            case "notice.raised":
                yield self._user(m, _notification(p))
            case "foreign.record" if p.get("format") == "claude-code" and isinstance(p.get("raw"), Mapping):
                raw = {k: v for k, v in p["raw"].items() if k != "inactive"}
                yield {"sessionId": self.session, **raw}
            case "session.status" if str(p.get("reason")).startswith("imported from"):
                pass  # said by us, of a transcript
            case kind if kind in _SAID:
                text = _SAID[kind].format_map(_Missing(p))
                yield self._chained(m, "system", 0, subtype="informational", content=text, level="info")

    def _user(self, m: Message, content: str | Sequence[Any], place: int = 0, **more: Any) -> dict[str, Any]:
        return self._chained(m, "user", place, message={"role": "user", "content": content}, **more)

    def _answer(self, m: Message, p: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """One record for each block, all with the id and the usage of the one API message, as Claude Code writes it."""
        usage = p.get("usage") or {}
        told = {
            "input_tokens": usage.get("input", 0), "output_tokens": usage.get("output", 0),
            "cache_read_input_tokens": usage.get("cache_read", 0),
            "cache_creation_input_tokens": usage.get("cache_write", 0),
        }  # fmt: skip
        head = {"id": p["call"], "type": "message", "role": "assistant", "model": p["model"], "usage": told}
        blocks = p["content"] or [{"type": "text", "text": ""}]
        for place, block in enumerate(blocks):
            stop = p.get("stop_reason") if place == len(blocks) - 1 else None
            message = {**head, "content": [block], "stop_reason": stop, "stop_sequence": None}
            yield self._chained(m, "assistant", place, message=message, requestId=p["call"])

    def _said_by_nobody(self, m: Message, text: str) -> dict[str, Any]:
        usage = {"input_tokens": 0, "output_tokens": 0}
        head = {"id": self._uuid(m, 0), "type": "message", "role": "assistant", "model": "<synthetic>", "usage": usage}
        return {**head, "content": [{"type": "text", "text": text}], "stop_reason": "stop_sequence"}

    def _chained(self, m: Message, type: str, place: int, **fields: Any) -> dict[str, Any]:
        id = self._uuid(m, place)
        moment = datetime.fromtimestamp(m.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        record = {
            "parentUuid": self._parent, **self._base, "sessionId": self.session, "type": type, **fields, "uuid": id,
            "timestamp": moment,
        }  # fmt: skip
        self._parent = id
        return record

    def _uuid(self, m: Message, place: int) -> str:
        return str(uuid.uuid5(_SPACE, f"{self.session}/{m.seq}/{place}"))


class _Missing(dict[str, Any]):
    """Fields that a message does not have are left empty."""

    def __missing__(self, key: str) -> str:
        return ""


def _notification(p: Mapping[str, Any]) -> str:
    if p["text"].startswith("<task-notification>"):
        return str(p["text"])
    status = (p.get("data") or {}).get("status") or "told"
    fields = f"<task-id>{p['id']}</task-id>\n<status>{status}</status>\n<summary>{p['text']}</summary>"
    return f"<task-notification>\n{fields}\n</task-notification>"
