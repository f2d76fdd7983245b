"""opencode's messages of version 2 (2026): one record each, with a type, and the model's content within it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from state import conversation as talk
from state.foreign.claude_text import failure_of
from state.foreign.damage import whole_number
from state.foreign.story import Story

NEW_TYPES = frozenset(
    [
        "user",
        "assistant",
        "system",
        "synthetic",
        "skill",
        "shell",
        "compaction",
        "idle",
        "agent-switched",
        "model-switched",
        "location-switched",
    ]
)
_FINISH = {"tool-calls": "tool_use", "stop": "end_turn", "length": "max_tokens"}


class NewTeller:
    """Tells messages of version 2 into a story that somebody else began."""

    def __init__(self, story: Story) -> None:
        self.story = story

    def message(self, place: str, value: Mapping[str, Any]) -> None:
        """One message."""
        time = _at(value, "created")
        match value.get("type"):
            case "user":
                self.story.settle(time)
                self.story.said(time, str(value.get("text") or ""))
                for name in ("files", "agents", "skills"):
                    for attached in value.get(name) or ():
                        self.story.foreign(time, place, {name: attached})
            case "assistant":
                self._assistant(place, value, time)
            case "compaction" if value.get("status", "completed") == "completed":
                recent = str(value.get("recent") or "")
                summary = str(value.get("summary") or "") + (f"\n\n{recent}" if recent else "")
                self.story.add(time, talk.conversation_compacted(summary, self.story.seq))
            case _:
                self.story.foreign(time, place, value)

    def _assistant(self, place: str, value: Mapping[str, Any], time: float | None) -> None:
        self.story.settle(time)
        call = str(value.get("id") or place)
        blocks: list[dict[str, Any]] = []
        tools: list[Mapping[str, Any]] = []
        for part in value.get("content") or ():
            match part.get("type"):
                case "text":
                    blocks.append({"type": "text", "text": str(part.get("text") or "")})
                case "reasoning":
                    blocks.append({"type": "thinking", "thinking": str(part.get("text") or "")})
                case "tool":
                    given = _mapping(part.get("state")).get("input")
                    id = str(part.get("id") or f"{call}.{len(blocks)}")
                    use = {"type": "tool_use", "id": id, "name": str(part.get("name") or "unknown")}
                    blocks.append({**use, "input": given if isinstance(given, Mapping) else {"raw": given}})
                    tools.append(part)
                case _:
                    self.story.foreign(time, place, part)
        if blocks:
            answered = _at(value, "streamed") or _at(value, "completed") or time
            ids = self._answered(place, value, call, blocks, answered)
            self._results(place, list(zip(ids, tools, strict=True)))
        error = value.get("error")
        if error:
            text = str(_mapping(error).get("message") or error)
            self.story.add(
                _at(value, "completed"), talk.model_failed(call, failure_of(f"{error}"), text, attempt=1)
            )  # fmt: skip

    def _answered(
        self, place: str, value: Mapping[str, Any], call: str, blocks: Sequence[Mapping[str, Any]], time: float | None
    ) -> list[str]:
        model = _mapping(value.get("model"))
        names = [model.get("providerID"), model.get("modelID") or model.get("id")]
        finish = value.get("finish")
        reason = str(_mapping(finish).get("reason") or finish or "") or None
        return self.story.answered(
            time, call, blocks, place=place, unique=False, model="/".join(str(name) for name in names if name) or None,
            stop_reason=_FINISH.get(reason or "", reason), usage=_usage(value.get("tokens")), cost=value.get("cost"),
        )  # fmt: skip

    def _results(self, place: str, tools: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        for id, part in sorted(tools, key=lambda pair: _at(pair[1], "completed") or 0.0):
            state = _mapping(part.get("state"))
            if state.get("status") not in ("completed", "error"):
                continue
            failed = state.get("status") == "error"
            content: Any = state.get("content") or state.get("output") or ""
            if failed and not content:
                content = str(_mapping(state.get("error")).get("message") or state.get("error") or "")
            self.story.result(_at(part, "completed"), id, content, place=place, is_error=failed)


def _at(value: Mapping[str, Any], name: str) -> float | None:
    moment = _mapping(value.get("time")).get(name)
    return moment / 1000 if isinstance(moment, int | float) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _usage(tokens: Any) -> dict[str, int]:
    tokens = _mapping(tokens)
    cache = _mapping(tokens.get("cache"))
    output = whole_number(tokens.get("output")) + whole_number(tokens.get("reasoning"))
    kept = {"cache_read": whole_number(cache.get("read")), "cache_write": whole_number(cache.get("write"))}
    return {"input": whole_number(tokens.get("input")), "output": output, **kept}
