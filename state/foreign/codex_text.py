"""What single records of a Codex rollout hold: who it is, words, reasoning, arguments, tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from state.foreign.damage import Losses, decode, whole_number
from state.foreign.story import first_line

PUT_IN = (
    "<environment_context>", "<user_instructions>", "<permissions instructions>", "# AGENTS.md instructions",
    "<INSTRUCTIONS>", "<turn_aborted>", "<skill>", "<collaboration_mode>", "<subagent_notification>",
    "<user_shell_command>",
)  # fmt: skip

_EXIT = re.compile(r"(?:[A-Z][^\n]*\n){0,3}?(?:Exit code: |Process exited with code )(-?\d+)\n")


@dataclass(frozen=True, slots=True)
class Head:
    """A rollout: its file, its id, the id of the one that started it, and the name it was given."""

    path: Path
    id: str
    parent: str | None
    title: str


def head_of(path: Path) -> Head:
    """The id of a rollout and of the one that started it, from its first lines."""
    with open(path, "rb") as file:
        values = [v for _ in range(3) for v in decode(file.readline(4 * 1024 * 1024), Losses(), "")]
    for value in values:
        payload = value.get("payload", value) if isinstance(value, Mapping) else None
        if isinstance(payload, Mapping) and "id" in payload and ("cwd" in payload or "instructions" in payload):
            spawn = _spawn(payload)
            return Head(path, str(payload["id"]), spawn.get("parent_thread_id"), str(spawn.get("agent_nickname") or ""))
    return Head(path, path.stem, None, "")


def _spawn(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    source = meta.get("source")
    subagent = source.get("subagent") if isinstance(source, Mapping) else None
    spawn = subagent.get("thread_spawn") if isinstance(subagent, Mapping) else None
    return spawn if isinstance(spawn, Mapping) else {}


def is_old_head(record: Mapping[str, Any]) -> bool:
    """Whether a line begins a rollout of before September 2025: bare items behind a line of facts."""
    return "type" not in record and {"id", "timestamp", "instructions"} <= set(record)


def title_of(origin: str) -> str:
    """The first words of the operator, looked for within the first megabytes."""
    if not origin.endswith("l"):
        return ""
    with open(origin, "rb") as file:
        for raw in file.readlines(4 * 1024 * 1024):
            for value in decode(raw, Losses(), ""):
                text = _asked(value)
                if text:
                    return first_line(text)
    return ""


def _asked(value: Any) -> str:
    payload = value.get("payload", value) if isinstance(value, Mapping) else None
    if not isinstance(payload, Mapping):
        return ""
    text = ""
    if payload.get("type") == "user_message":
        text = str(payload.get("message") or "")
    elif payload.get("type") == "message" and payload.get("role") == "user":
        text = plain(payload)
    return "" if text.lstrip().startswith(PUT_IN) else text


def plain(item: Mapping[str, Any]) -> str:
    """The text of a message, block after block."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    blocks: Iterable[Any] = content if isinstance(content, list) else ()
    return "\n".join(str(b.get("text") or "") for b in blocks if isinstance(b, Mapping))


def thinking(item: Mapping[str, Any]) -> dict[str, Any]:
    """Reasoning as a block: its summary, or what of it is encrypted."""
    texts = [*(item.get("summary") or ()), *(item.get("content") or ())]
    text = "\n\n".join(str(t.get("text") or "") for t in texts if isinstance(t, Mapping))
    if not text and item.get("encrypted_content"):
        return {"type": "redacted_thinking", "data": item["encrypted_content"]}
    return {"type": "thinking", "thinking": text}


def as_object(text: str, name: str) -> dict[str, Any]:
    """The arguments of a call; what is no JSON object stands under `name`."""
    try:
        value = json.loads(text)
    except ValueError:
        return {name: text}
    return value if isinstance(value, dict) else {name: value}


def as_content(output: Any) -> Any:
    """An output as a text, or as blocks of the Messages API."""
    if not isinstance(output, list):
        return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return [
        {"type": "text", "text": str(block.get("text") or "")}
        if isinstance(block, Mapping) and block.get("type") in ("input_text", "output_text", "text")
        else block
        for block in output
    ]


def outcome(content: Any) -> tuple[Any, bool]:
    """A command's output with the head that later versions give it, and whether its exit code was not 0.

    Before 0.60 it is a JSON object of `output` and `metadata`.
    """
    if not isinstance(content, str):
        return content, False
    if content.startswith("{"):
        told = as_object(content, "")
        meta = told.get("metadata")
        if isinstance(told.get("output"), str) and isinstance(meta, Mapping) and "exit_code" in meta:
            head = f"Exit code: {meta['exit_code']}\nWall time: {meta.get('duration_seconds')} seconds"
            return f"{head}\nOutput:\n{told['output']}", meta["exit_code"] != 0
    code = _EXIT.match(content)
    return content, code is not None and code[1] != "0"


def sum_of(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, int]:
    """Two counts of tokens as one."""
    return {name: whole_number(one.get(name)) + whole_number(other.get(name)) for name in {**one, **other}}


def usage_of(tokens: Mapping[str, Any]) -> dict[str, int]:
    """Here the cached tokens are among the input; with us they are apart."""
    cached = whole_number(tokens.get("cached_input_tokens"))
    fresh = max(0, whole_number(tokens.get("input_tokens")) - cached)
    return {"input": fresh, "output": whole_number(tokens.get("output_tokens")), "cache_read": cached, "cache_write": 0}
