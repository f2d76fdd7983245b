"""What lies beside a Claude Code transcript: the files of its subagents; and the sums over a message's records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from state.foreign.claude_text import text_of
from state.foreign.damage import Losses, decode, whole_number
from state.foreign.lines import Lines


@dataclass(slots=True)
class Beside:
    """The files of all subagents of a session, nested ones too, and which of them have been claimed by their caller."""

    files: dict[str, Path]
    claimed: set[str] = field(default_factory=set)


def agent_files(path: Path, session: str | None) -> dict[str, Path]:
    """The files of a session's subagents: below its own folder, or (in older versions) beside it."""
    found = {}
    for file in sorted((path.parent / path.stem / "subagents").rglob("agent-*.jsonl")):
        found[file.stem.removeprefix("agent-")] = file
    for file in sorted(path.parent.glob("agent-*.jsonl")):
        if file != path and session is not None and _session_of(file) == session:
            found.setdefault(file.stem.removeprefix("agent-"), file)
    return found


def _session_of(file: Path) -> str | None:
    lines = Lines(file, Losses())
    with closing(lines):
        return next((str(r.value["sessionId"]) for r in lines if r.value.get("sessionId")), None)


def agent_call(path: Path) -> str | None:
    """The call that started a subagent, as the file beside its records says."""
    meta = path.with_suffix("").with_suffix(".meta.json")
    try:
        values = decode(meta.read_bytes(), Losses(), meta.name)
    except OSError:
        return None
    return next((str(v["toolUseId"]) for v in values if isinstance(v, dict) and v.get("toolUseId")), None)


def usage_of(messages: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The tokens of one API message: repeated in each of its records, and only the largest figures are final."""
    names = {
        "input": "input_tokens",
        "output": "output_tokens",
        "cache_read": "cache_read_input_tokens",
        "cache_write": "cache_creation_input_tokens",
    }
    told = [m["usage"] for m in messages if isinstance(m.get("usage"), Mapping)]
    return {ours: max((whole_number(u.get(theirs)) for u in told), default=0) for ours, theirs in names.items()}


def text_or_blocks(content: Any) -> str:
    """A result as text, for a report."""
    return content if isinstance(content, str) else text_of([b for b in content or [] if isinstance(b, Mapping)])
