"""The facts of a conversation: what was said, asked of a model, answered, run as a tool, told as a notice.

Each function makes one `Change`, as in `state/changes.py`, and the same promise holds: a kind may gain optional keys
and never loses or reinterprets one. Two tables follow from them (`state/projection.py`): `notices`, because a notice is
told exactly once, and `usage`, because a budget must hold after a crash.

The order in a log:

    operator.said, notice.raised ...       what the model has not heard yet
    model.asked                            the intent, committed before the call; names the notices that it carries
    model.answered | model.failed          in the same commit with the answer: notice.delivered for what it carried
    tool.answered                          exactly one for each `tool_use` block of the answer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from state.changes import Change

Purpose = Literal["turn", "compact", "subagent"]
CallFailure = Literal[
    "rate_limit", "overloaded", "cut", "timeout", "refused", "bad_request", "budget", "down", "interrupted"
]
SPOKEN: tuple[str, ...] = (
    "operator.said",
    "model.asked",
    "model.answered",
    "model.failed",
    "tool.answered",
    "notice.raised",
    "notice.delivered",
    "conversation.compacted",
    "conversation.cleared",
    "child.started",
    "child.reported",
)
"""The kinds that make up a conversation: what a planner reads back when it resumes."""


def operator_said(text: str, *, queued: bool = False) -> Change:
    """The operator's words. `queued` when they came while the model was speaking: it hears them in its next turn."""
    return Change("operator.said", {"text": text, **({"queued": True} if queued else {})}, "operator")


def model_asked(call: str, *, model: str, purpose: Purpose, request: Mapping[str, Any]) -> Change:
    """The intent to call a model. `request` describes what is sent and does not repeat it:

    `system_sha`, `tools_sha`, `messages` (their number), `through` (the newest message of the log that it contains),
    `notices` (ids that ride along), and optionally `sha` (of the whole body) and `now` (the clock it was made with).
    """
    return Change("model.asked", {"call": call, "model": model, "purpose": purpose, "request": dict(request)})


def model_answered(
    call: str,
    *,
    model: str,
    content: Sequence[Mapping[str, Any]],
    stop_reason: str,
    usage: Mapping[str, int],
    cost: float | None,
    **seen: Any,
) -> Change:
    """A whole answer: its blocks as the Messages API gave them. `usage` has input, output, cache_read, cache_write.

    `cost` is in the currency of the configured prices, `None` where there is no price. `seen`: `ttft_s`, `took_s`.
    """
    payload = {"call": call, "model": model, "content": [dict(block) for block in content], "stop_reason": stop_reason}
    told = {k: v for k, v in seen.items() if v is not None}
    return Change("model.answered", {**payload, "usage": dict(usage), "cost": cost, **told}, "model")


def model_failed(
    call: str, kind: CallFailure, reason: str, *, attempt: int, retry_in_s: float | None = None, **spent: Any
) -> Change:
    """An attempt at a call came to nothing. `spent`: `model`, `usage`, `cost` of what was paid for all the same."""
    payload = {"call": call, "kind": kind, "reason": reason, "attempt": attempt}
    optional = {"retry_in_s": retry_in_s, **spent}
    return Change("model.failed", {**payload, **{k: v for k, v in optional.items() if v is not None}})


def tool_answered(
    call: str,
    tool_use_id: str,
    name: str,
    content: str | Sequence[Mapping[str, Any]],
    *,
    is_error: bool = False,
    whole: Mapping[str, Any] | None = None,
) -> Change:
    """The one result of a `tool_use`. `whole` says how much there was and where: `{"bytes": n, "where": text}`."""
    kept = content if isinstance(content, str) else [dict(block) for block in content]
    payload = {"call": call, "tool_use_id": tool_use_id, "name": name, "content": kept, "is_error": is_error}
    return Change("tool.answered", {**payload, **({"whole": dict(whole)} if whole else {})}, f"tool:{name}")


def notice_raised(
    id: str, text: str, *, about: Mapping[str, str], data: Mapping[str, Any] | None = None, actor: str = "core"
) -> Change:
    """Something the model should hear of. `about` names a todo, job, child or question. An id is raised once."""
    payload = {"id": id, "about": dict(about), "text": text}
    return Change("notice.raised", {**payload, **({"data": dict(data)} if data else {})}, actor)


def notice_delivered(ids: Sequence[str], call: str) -> Change:
    """These notices were in the request of `call`, which was answered. Committed together with that answer."""
    return Change("notice.delivered", {"ids": list(ids), "call": call})


def conversation_compacted(summary: str, through: int) -> Change:
    """From now on the model sees `summary` in place of everything up to message `through`. The log keeps it all."""
    return Change("conversation.compacted", {"summary": summary, "through": through}, "model")


def conversation_cleared(through: int, *, results: int, bytes: int) -> Change:
    """From now on the model sees a stub in place of long tool results up to message `through`; what that spared."""
    return Change("conversation.cleared", {"through": through, "results": results, "bytes": bytes})


def child_started(child: str, *, title: str, prompt: str, todo: str | None = None, actor: str = "model") -> Change:
    """A subagent was asked for; `child` is the id of its session, whose `parent` is this one."""
    payload = {"child": child, "title": title, "prompt": prompt}
    return Change("child.started", {**payload, **({"todo": todo} if todo else {})}, actor)


def child_reported(child: str, status: str, report: Mapping[str, Any]) -> Change:
    """A subagent has ended: `completed`, `failed` or `cancelled`. Its report is stored in its own session before."""
    return Change("child.reported", {"child": child, "status": status, "report": dict(report)}, f"child:{child}")


def foreign_record(format: str, place: str, raw: Any) -> Change:
    """Something that another program recorded and that has no counterpart here, kept as it was."""
    return Change("foreign.record", {"format": format, "place": place, "raw": raw}, f"import:{format}")
