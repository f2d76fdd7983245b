"""opencode's own outputs: the document of `opencode export`, the lines of `opencode run --format json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from state.foreign.elements import elements
from state.foreign.lines import Lines
from state.foreign.opencode import FORMAT, Teller
from state.foreign.opencode_parts import listed, millis
from state.foreign.story import Found, Story

_OF_STREAM = frozenset(["step_start", "step_finish", "text", "tool_use", "reasoning", "error", "done"])


def export_sessions(path: Path) -> list[Found]:
    """The one session of `opencode export`. Read in one go, element by element."""
    return [Found(path.stem, FORMAT, str(path), lambda story: _tell_export(path, story))]


def _tell_export(path: Path, story: Story) -> None:
    teller = Teller(story, str(path), {})
    for element in elements(path, story.losses):
        place = element.place(path.name)
        match element.key:
            case "info" if not teller.begun and isinstance(element.value, Mapping):
                teller.begin(str(element.value.get("id") or path.stem), element.value)
            case "messages" if isinstance(element.value, Mapping):
                if not teller.begun:
                    teller.begin(path.stem, {})
                teller.message(place, element.value.get("info") or element.value, listed(element.value, "parts"))
            case _:
                if not teller.begun:
                    teller.begin(path.stem, {})
                story.foreign(None, place, {str(element.key): element.value})
    if not teller.begun:
        teller.begin(path.stem, {})
    teller.end()


def stream_sessions(path: Path) -> list[Found]:
    """The one session of `opencode run --format json`: what was streamed, without the operator's words."""
    return [Found(path.stem, FORMAT, str(path), lambda story: _tell_stream(path, story))]


def _tell_stream(path: Path, story: Story) -> None:
    lines = Lines(path, story.losses)
    teller = Teller(story, str(path), {})
    info: dict[str, Any] = {}
    parts: list[Mapping[str, Any]] = []
    place = path.name
    try:
        for record in lines:
            value, place_now = record.value, lines.place(record.number)
            story.counts.records += 1
            if not teller.begun:
                created = {"created": value.get("timestamp")}
                teller.begin(str(value.get("sessionID") or path.stem), {"time": created})
            part = value.get("part")
            if not isinstance(part, Mapping):
                _stream_other(teller, value, place_now)
                continue
            if parts and part.get("messageID") != info.get("id"):
                teller.message(place, info, parts)
                parts = []
            if not parts:
                place = place_now
                info = {"id": part.get("messageID"), "role": "assistant", "time": {"created": value.get("timestamp")}}
            parts.append(part)
        if parts:
            teller.message(place, info, parts)
    finally:
        lines.close()
    if not teller.begun:
        teller.begin(path.stem, {})
    teller.end()


def _stream_other(teller: Teller, value: Mapping[str, Any], place: str) -> None:
    if value.get("type") == "error":
        teller.failed(millis(value.get("timestamp")), "", value.get("error"))
    elif value.get("type") != "done":
        teller.story.foreign(millis(value.get("timestamp")), place, value)


def is_stream(record: Mapping[str, Any]) -> bool:
    """Whether a line comes from `opencode run --format json`."""
    return str(record.get("type")) in _OF_STREAM and str(record.get("sessionID") or "").startswith("ses")


def is_export(document: Mapping[str, Any]) -> bool:
    """Whether the beginning of a document is that of an export, or of a session's own record."""
    info = document.get("info")
    if isinstance(info, Mapping) and (str(info.get("id") or "").startswith("ses") or "messages" in document):
        return True
    return str(document.get("id") or "").startswith("ses_") or "messages" in document
