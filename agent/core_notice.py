"""What a model is told of when it did not look: the end of todos, as notices; and the answers to its edits.

Notices are raised by the core in the step that ends a todo, so each is in the same commit as the end that it tells of.
Part of `agent/core.py`, and as pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent.events import Edit
from agent.state import SessionState
from state import conversation as talk
from state.changes import Change

TOLD_KINDS = frozenset({"job", "tool", "research", "ask", "gate", "race"})
LEAVE = "call:"
"""Begins the id of a question for the operator's leave, which a tool call asked."""
MAX_RESULT_CHARS = 4_000
MAX_REASON_CHARS = 2_000


def ended(state: SessionState, todo: str) -> Change | None:
    """The notice of a todo's end; `None` for kinds that nobody waits for, and for what was skipped or given up."""
    node, info = state.graph[todo], state.todos[todo]
    if node.kind not in TOLD_KINDS or node.status not in ("completed", "failed"):
        return None
    if todo.startswith(LEAVE) and node.status == "completed":
        return None  # leave was given: what waited for it tells how it went
    state.notices += 1
    text = f"todo `{todo}` ({info.spec.title}) {node.status}"
    if info.reason:
        text += f": {shorten(info.reason, MAX_REASON_CHARS)}"
    about = {"todo": todo}
    if (job := state.last_job(todo)) is not None:
        about["job"] = job
    data = {"status": node.status, "result": bounded(info.result)} if info.result else {"status": node.status}
    return talk.notice_raised(f"n{state.notices}", text, about=about, data=data)


def edit_answered(edit: Edit, outcomes: list[dict[str, Any]]) -> Change:
    """The result of the tool call that asked for an edit: an error only if nothing of it was done."""
    assert edit.answers is not None
    call, name = edit.answers
    failed = all("error" in outcome for outcome in outcomes) and bool(outcomes)
    return talk.tool_answered(call, edit.id, name, json.dumps(outcomes, ensure_ascii=False), is_error=failed)


def bounded(result: Mapping[str, Any] | None) -> Any:
    """A todo's result as a notice carries it: whole if it is short, else what of it is short, and the rest named."""
    if result is None or len(json.dumps(result)) <= MAX_RESULT_CHARS:
        return result
    kept: dict[str, Any] = {}
    room = MAX_RESULT_CHARS
    for key, value in result.items():
        size = len(json.dumps(value))
        if size > room or size > MAX_RESULT_CHARS // 4:
            value = f"({size} characters; read them with the tool `todo`, action `show`)"
            size = len(value)
        kept[key] = value
        room -= size
    return kept


def shorten(text: str, limit: int) -> str:
    """The head and the tail of a text, with the number of characters left out between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters left out ...] {text[-half:]}"
