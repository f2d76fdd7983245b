"""Each message of a log in words: one line for a list, and the text to read or to search.

    line = words(entry)            # 'train completed' or 'loss 0.42  12/40 steps'
    text = body(entry)             # what a person or a model said in full, or what a tool gave back; '' for the rest

Pure. Control sequences that a host wrote are taken out (`agent/painter.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agent.chat_text import outcome_words, tool_words
from agent.pace import amount
from agent.painter import plain
from agent.replay import Entry

GROUPS: dict[str, str] = {
    "operator": "talk", "model": "talk", "tool": "talk", "conversation": "talk", "notice": "talk", "child": "talk",
    "approval": "talk", "todo": "todos", "playbook": "todos", "job": "jobs", "session": "session", "foreign": "other",
}  # fmt: skip
"""What a message belongs to, by the first part of its kind."""


DETAILS = {"model.asked", "notice.delivered", "todo.linked", "conversation.cleared"}
"""Kinds that say how something was done: shown when asked for."""


def group(kind: str) -> str:
    """`talk`, `todos`, `jobs`, `reports`, `session`, `details` or `other`: what a screen's or page's filter goes by."""
    if kind in DETAILS:
        return "details"
    return "reports" if kind == "job.reported" else GROUPS.get(kind.partition(".")[0], "other")


def words(entry: Entry) -> str:
    """One line of plain text. A kind that is not known here is shown as its payload."""
    teller = _TELLERS.get(entry.kind)
    try:
        told = teller(entry.payload) if teller is not None else _raw(entry.payload)
    except (KeyError, TypeError, AttributeError):  # a file may hold anything under a known name
        told = _raw(entry.payload)
    return plain(told)


SPEAKERS = {"operator.said": "you", "model.answered": "model"}


def line(entry: Entry) -> str:
    """`words`, with who speaks before what was said: for a list in which nothing else tells."""
    who = SPEAKERS.get(entry.kind)
    return f"{who}: {words(entry)}" if who else words(entry)


def body(entry: Entry) -> str:
    """The full text of a message that has one: what was said, answered, noticed, reported."""
    p = entry.payload
    if entry.kind == "operator.said":
        return str(p.get("text", ""))
    if entry.kind == "model.answered":
        return "\n\n".join(_blocks(p.get("content") or ()))
    if entry.kind == "tool.answered":
        content = p.get("content", "")
        return content if isinstance(content, str) else "\n\n".join(_blocks(content))
    for kind, name in (("notice.raised", "text"), ("conversation.compacted", "summary"), ("child.started", "prompt")):
        if entry.kind == kind:
            return str(p.get(name, ""))
    if entry.kind == "child.reported":
        report = p.get("report")
        return _report(report) or json.dumps(report, ensure_ascii=False, indent=1)
    return ""


def searchable(entry: Entry) -> str:
    """All that a search looks at, in small letters."""
    said = body(entry)
    return f"{entry.kind} {entry.actor} {words(entry)} {said}".casefold()


def _report(report: Any) -> str:
    """A subagent's report as text: it is an object whose shape its prompt decides."""
    if isinstance(report, str):
        return report
    if isinstance(report, Mapping):
        return next((str(report[name]) for name in ("text", "summary", "report", "answer") if report.get(name)), "")
    return ""


def _blocks(content: Iterable[Any]) -> Iterable[str]:
    for block in content:
        if not isinstance(block, Mapping):
            yield str(block)
        elif block.get("type") in ("text", "thinking"):
            yield str(block.get("text") or block.get("thinking") or "")
        elif block.get("type") == "tool_use":
            yield f"→ {block.get('name')}{_given(block.get('input'))}"
        elif block.get("type") == "tool_result":
            inner = block.get("content", "")
            yield inner if isinstance(inner, str) else "\n\n".join(_blocks(inner))
        else:
            yield f"[{block.get('type')}]"


def _given(input: Any) -> str:
    """What a tool was given, texts as they read."""
    if not isinstance(input, Mapping):
        return f" {_raw(input)}"
    return "".join(f"\n{key}: {_as_read(value)}" for key, value in input.items())


def _as_read(value: Any) -> str:
    words = value if isinstance(value, list) and all(isinstance(word, str) for word in value) else None
    return value if isinstance(value, str) else " ".join(words) if words else _raw(value)


def _raw(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _first(text: str, room: int = 160) -> str:
    """The first line that says something."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= room else line[: room - 1] + "…"


def _why(p: Mapping[str, Any]) -> str:
    return f": {_first(str(p['reason']))}" if p.get("reason") else ""


def _result(p: Mapping[str, Any]) -> str:
    result = p.get("result")
    if not isinstance(result, Mapping) or not result:
        return ""
    kept = {k: v for k, v in result.items() if k not in _KNOWN and isinstance(v, (int, float, str)) and str(v) != ""}
    told = [f"{k} {_short(v)}" for k, v in kept.items() if not (k == "value" and isinstance(v, bool))]
    return " · " + ", ".join(told[:4]) if told else ""


_KNOWN = {"job", "host"}
"""Results that stand in a list already: where something ran."""


def _short(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _first(str(value), 40)
    return amount(value) if abs(value) >= 1000 else f"{value:.4g}"


def todo_name(id: str) -> str:
    """A todo by its id; the question whether a call of the model may be made has one that nobody knows."""
    return "permission" if id.startswith("call:") else id


def _todo_status(p: Mapping[str, Any]) -> str:
    id = todo_name(p["id"])
    if p["now"] == "in_progress":
        again = f", try {p['attempt']}" if p.get("attempt", 1) > 1 else ""
        return f"{id} started{' on ' + p['host'] if p.get('host') else ''}{again}"
    if p["now"] == "pending":
        return f"{id} is to be tried again{_why(p)}"
    return f"{id} {p['now']}{_why(p)}{_result(p)}"


def job_name(id: str) -> str:
    """`train`, or `train, try 2`, of `abcd2345.train.2`: the todo's name is what people know."""
    match = re.fullmatch(r"[^.]+\.(.+)\.(\d+)", id)
    if match is None:
        return id
    return match[1] if match[2] == "1" else f"{match[1]}, try {match[2]}"


def _job_submitted(p: Mapping[str, Any]) -> str:
    gpus = f" with GPU {', '.join(map(str, p['gpus']))}" if p.get("gpus") else ""
    return f"job {job_name(p['id'])} goes to {p['host']}{gpus}"


def _job_state(p: Mapping[str, Any]) -> str:
    end = f" with {p['rc']}" if p.get("rc") is not None else f" by {p['signal']}" if p.get("signal") else ""
    return f"job {job_name(p['id'])} {p['state']}{end}{_why(p)}"


def _job_reported(p: Mapping[str, Any]) -> str:
    share = ""
    if p.get("done") is not None:
        share = amount(p["done"]) + (f"/{amount(p['total'])}" if p.get("total") else "") + f" {p.get('unit') or ''}"
    line = "" if str(p.get("line", "")).startswith("::progress") else str(p.get("line", ""))
    return "  ".join(part.strip() for part in (job_name(p["id"]), share, line) if part)


def _model_answered(p: Mapping[str, Any]) -> str:
    content = [block for block in p.get("content") or () if isinstance(block, Mapping)]
    said = " ".join(str(b.get("text", "")) for b in content if b.get("type") == "text")
    tools = _uses([b for b in content if b.get("type") == "tool_use"])
    said = _first(said, 80 if tools else 160)
    return "  ".join(part for part in (said, tools) if part) or _silent(p.get("stop_reason"))


def _silent(reason: Any) -> str:
    return "(had nothing to add)" if reason == "end_turn" else f"({reason})"


def _uses(blocks: Sequence[Mapping[str, Any]]) -> str:
    """`→ read a.md, b.md, run ls`: a name stands once for calls of it in a row."""
    told, before = [], ""
    for block in blocks:
        given, room = block.get("input"), max(24, 120 // len(blocks))
        name, _, rest = tool_words(str(block.get("name")), given if isinstance(given, Mapping) else {}, room).partition(
            "  "
        )
        rest = "" if rest.startswith("{") else rest
        told.append(rest if rest and name == before else f"{name} {rest}".strip())
        before = name
    return f"→ {', '.join(told)}" if told else ""


def _tool_answered(p: Mapping[str, Any]) -> str:
    content = p.get("content", "")
    text = outcome_words(content if isinstance(content, str) else " ".join(_blocks(content)))
    head = _HEAD.match(text)
    said = _first(text[head.end() :]) or "(no output)" if head else _first(text)
    return f"{p.get('name')} {'failed: ' if p.get('is_error') else '→ '}{said}"


_HEAD = re.compile(r"(?:[A-Z][^\n]*\n){1,5}?Output:(?:\n|$)")
"""What stands before the output of a command in sessions of Codex."""


def _foreign(p: Mapping[str, Any]) -> str:
    """What kind of record it is, as far as it says so, and where it stands."""
    raw = p.get("raw")
    kinds: list[str] = []
    while isinstance(raw, Mapping):
        kinds += [str(raw[name]) for name in ("type", "subtype", "role") if isinstance(raw.get(name), str)]
        raw = raw.get("payload", raw.get("info"))
    return f"{p.get('format')} {' '.join(kinds) or 'record'}, {p.get('place')}"


def _notes(kind: str, name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda p: f"{kind}{_first(str(p.get(name, '')))}"


def body_of_report(p: Mapping[str, Any]) -> str:
    """The text of a subagent's report, or its JSON."""
    return _report(p.get("report")) or _raw(p.get("report"))


_TELLERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "session.created": lambda p: f"{p['title']}" + (f", by playbook {p['playbook']}" if p.get("playbook") else ""),
    "session.status": lambda p: f"session {p['status']}{_why(p)}",
    "session.resumed": lambda p: "session resumed",
    "todo.added": lambda p: f"{todo_name(p['id'])} added: {p['title']}",
    "todo.linked": lambda p: (
        f"{todo_name(p['dst'])} after {todo_name(p['src'])}" + ("" if p["on"] == "success" else f", on {p['on']}")
    ),
    "todo.changed": lambda p: f"{p['id']} changed: " + ", ".join(k for k in p if k != "id"),
    "todo.status": _todo_status,
    "playbook.loaded": lambda p: f"playbook {p['playbook']} joins" + (f" as {p['prefix']}" if p["prefix"] else ""),
    "job.submitted": _job_submitted,
    "job.state": _job_state,
    "job.reported": _job_reported,
    "job.cancel": lambda p: f"job {job_name(p['id'])} is being stopped{_why(p)}",
    "approval.asked": lambda p: f"{todo_name(p['todo'])} asks: {_first(p['question'])}",
    "approval.answered": lambda p: f"{todo_name(p['todo'])} answered {p['answer']}, by {p['by']}{_why(p)}",
    "operator.said": _notes("", "text"),
    "model.asked": lambda p: f"asked {p['model']}" + (f" to {p['purpose']}" if p.get("purpose") == "compact" else ""),
    "model.answered": _model_answered,
    "model.failed": lambda p: f"model {p['kind']}, try {p.get('attempt', 1)}{_why(p)}",
    "tool.answered": _tool_answered,
    "notice.raised": _notes("notice: ", "text"),
    "notice.delivered": lambda p: "the model was told " + ", ".join(map(str, p["ids"])),
    "conversation.compacted": lambda p: f"compacted up to message {p['through']}",
    "conversation.cleared": lambda p: "older tool results are left out from here on",
    "child.started": lambda p: f"subagent {p['child']} started: {_first(str(p.get('title') or p.get('prompt', '')))}",
    "child.reported": lambda p: f"subagent {p['child']} {p.get('status')}: {_first(body_of_report(p))}",
    "foreign.record": _foreign,
}
