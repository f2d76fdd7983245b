"""The texts in a Claude Code transcript: what a person said, what the program put in, and what an error means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from state.conversation import CallFailure

NOTIFICATION = "<task-notification>"
INTERRUPTS = ("[Request interrupted by user", "[Request cancelled by user")
_PUT_IN = ("<local-command-", "<system-reminder>", "<bash-stdout>", "<bash-stderr>", "Caveat: The messages below")
_COMMAND = re.compile(r"<command-name>(.*?)</command-name>", re.DOTALL)
_ARGUMENTS = re.compile(r"<command-args>(.*?)</command-args>", re.DOTALL)
_TAG = re.compile(r"<(task-id|status|summary|output-file)>(.*?)</\1>", re.DOTALL)
_FAILURES: tuple[tuple[str, CallFailure], ...] = (
    (r"\b529\b|overloaded", "overloaded"),
    (r"\b429\b|rate.?limit|usage limit|limit reached", "rate_limit"),
    (r"timed? ?out|\b408\b", "timeout"),
    (r"\b40[13]\b|api key|log ?in|credit balance|authentication|billing", "refused"),
    (r"\b4\d\d\b|invalid_request|prompt is too long", "bad_request"),
    (r"abort|interrupt", "interrupted"),
)


def content_of(record: Mapping[str, Any]) -> list[Any]:
    """The blocks of a record's message; a plain text is one block."""
    message = record.get("message")
    content = message.get("content") if isinstance(message, Mapping) else message
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    blocks = content if isinstance(content, list) else []
    return [block if isinstance(block, Mapping) else {"type": "text", "text": str(block)} for block in blocks]


def type_of(record: Mapping[str, Any]) -> Any:
    """What a record is; early ones name only the role of their message."""
    message = record.get("message")
    return record.get("type") or (message.get("role") if isinstance(message, Mapping) else None)


def text_of(blocks: list[Any]) -> str:
    """The text blocks, one after the other."""
    return "\n".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text")


def queued_text(content: Any) -> str:
    """What was queued: a text, or blocks."""
    if isinstance(content, list):
        return text_of([block for block in content if isinstance(block, Mapping)])
    return str(content or "")


def is_put_in(text: str) -> bool:
    """Whether the program wrote this in the operator's name."""
    return text.lstrip().startswith(_PUT_IN)


def as_said(text: str) -> str:
    """The operator's words: a slash command is stored in tags."""
    name = _COMMAND.search(text)
    if name is None:
        return text
    arguments = _ARGUMENTS.search(text)
    command = name.group(1).strip()
    command = command if command.startswith("/") else f"/{command}"
    return f"{command} {arguments.group(1).strip() if arguments else ''}".strip()


def notification(text: str) -> dict[str, str]:
    """The fields of a task's notification: `task-id`, `status`, `summary`, `output-file`, as far as it has them."""
    return {name: value.strip() for name, value in _TAG.findall(text)}


def failure_of(text: str) -> CallFailure:
    """What kind of failure an error's text tells of; `down` when it cannot be told."""
    low = text.lower()
    return next((kind for pattern, kind in _FAILURES if re.search(pattern, low)), "down")


def seconds(stamp: Any) -> float | None:
    """An ISO time as seconds since the epoch; one without a zone is UTC. `None` for anything else."""
    if isinstance(stamp, int | float) and not isinstance(stamp, bool):
        return stamp / 1000 if stamp > 1e11 else float(stamp)
    if not isinstance(stamp, str):
        return None
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
