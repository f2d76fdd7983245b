"""Parts of opencode's messages: times, rounds, tool calls, tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from state.foreign.damage import whole_number


def listed(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The objects in a list, or none."""
    found = value.get(key)
    return [part for part in found if isinstance(part, Mapping)] if isinstance(found, list) else []


def time_of(value: Mapping[str, Any], name: str) -> Any:
    """One of a record's times, as it is stored."""
    time = value.get("time")
    return time.get(name) if isinstance(time, Mapping) else None


def millis(value: Any) -> float | None:
    """Milliseconds as seconds; `None` for what is no number."""
    return value / 1000 if isinstance(value, int | float) and not isinstance(value, bool) else None


def rounds(parts: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """The parts of one round each: a `step-start` begins a new one."""
    current: list[Mapping[str, Any]] = []
    for part in parts:
        if part.get("type") == "step-start" and any(p.get("type") != "step-start" for p in current):
            yield current
            current = []
        current.append(part)
    if current:
        yield current


def state_of(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of a tool part, or nothing."""
    state = part.get("state")
    return state if isinstance(state, Mapping) else {}


def thinking(part: Mapping[str, Any]) -> dict[str, Any]:
    """A reasoning part as a block, with its signature where it has one."""
    meta = part.get("metadata")
    signed = meta.get("anthropic") if isinstance(meta, Mapping) else None
    signature = signed.get("signature") if isinstance(signed, Mapping) else None
    block = {"type": "thinking", "thinking": str(part.get("text") or "")}
    return {**block, **({"signature": signature} if signature else {})}


def tool_use(part: Mapping[str, Any], id: str) -> dict[str, Any]:
    """A tool part as the call it was; `id` is for one without an id."""
    given = state_of(part).get("input")
    name = str(part.get("tool") or "unknown")
    return {"type": "tool_use", "id": str(part.get("callID") or id), "name": name, "input": given or {}}


def model_of(info: Mapping[str, Any]) -> str | None:
    """`provider/model`, as far as it is known."""
    model = info.get("model")
    names = model if isinstance(model, Mapping) else info
    known = names.get("modelID") or (None if names is info else names.get("id"))
    parts = [names.get("providerID"), known]
    return "/".join(str(part) for part in parts if part) or None


def usage_of(tokens: Any) -> dict[str, int]:
    """opencode counts reasoning apart from output; ours is one figure."""
    tokens = tokens if isinstance(tokens, Mapping) else {}
    cache = tokens.get("cache")
    cache = cache if isinstance(cache, Mapping) else {}
    return {
        "input": whole_number(tokens.get("input")),
        "output": whole_number(tokens.get("output")) + whole_number(tokens.get("reasoning")),
        "cache_read": whole_number(cache.get("read")),
        "cache_write": whole_number(cache.get("write")),
    }
