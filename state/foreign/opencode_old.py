"""opencode's messages before version 0.4 (summer of 2025), which hold their parts: brought into the later form.

Tool calls are `tool-invocation` parts, and what is known of their times stands in the message's `metadata`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_old(info: Mapping[str, Any]) -> bool:
    """Whether a message holds its own parts."""
    return isinstance(info.get("parts"), list) and "metadata" in info


def renewed(message: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The message as info and parts."""
    meta = _mapping(message.get("metadata"))
    model = _mapping(meta.get("assistant"))
    info = {
        "id": message.get("id"),
        "role": message.get("role"),
        "time": meta.get("time"),
        **{name: model.get(name) for name in ("modelID", "providerID", "cost", "tokens") if name in model},
        **({"summary": True} if model.get("summary") else {}),
        **({"error": meta["error"]} if meta.get("error") else {}),
    }
    tools = _mapping(meta.get("tool"))
    parts = [_part(part, tools) for part in message["parts"] if isinstance(part, Mapping)]
    return info, parts


def _part(part: Mapping[str, Any], tools: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") != "tool-invocation":
        return dict(part)
    call = _mapping(part.get("toolInvocation"))
    known = _mapping(tools.get(str(call.get("toolCallId"))))
    done = call.get("state") == "result"
    failed = bool(known.get("error"))
    state: dict[str, Any] = {
        "status": ("error" if failed else "completed") if done else "running",
        "input": call.get("args") or {},
        "time": known.get("time"),
        "metadata": {k: v for k, v in known.items() if k != "time"},
    }
    if done:
        state["error" if failed else "output"] = str(call.get("result") or known.get("message") or "")
    return {"type": "tool", "callID": call.get("toolCallId"), "tool": call.get("toolName"), "state": state}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
