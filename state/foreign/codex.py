"""Codex rollouts: `rollout-<time>-<id>.jsonl`, one line for each thing that happened, and the older bare forms.

What the model gave in one response has no name of its own there: reasoning, words and calls up to the first result or
count of tokens are one answer. Much is recorded twice (as item and as event); the items count. The count of tokens
stands behind what it counts, in versions before 0.60 before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from state import conversation as talk
from state.foreign.claude_text import failure_of, seconds
from state.foreign.codex_text import (
    PUT_IN,
    Head,
    as_content,
    as_object,
    head_of,
    is_old_head,
    outcome,
    plain,
    sum_of,
    thinking,
    title_of,
    usage_of,
)
from state.foreign.damage import Losses
from state.foreign.elements import elements
from state.foreign.lines import Lines
from state.foreign.story import Found, Story

FORMAT = "codex"
_AS_ITEMS = frozenset(
    [
        "agent_message",
        "agent_reasoning",
        "agent_reasoning_raw_content",
        "agent_reasoning_section_break",
        "task_started",
        "task_complete",
        "turn_started",
        "turn_complete",
        "context_compacted",
        "item_started",
        "item_completed",
    ]
)
_CALLS = frozenset(["function_call", "custom_tool_call", "local_shell_call", "tool_search_call"])
_OUTPUTS = frozenset(
    ["function_call_output", "custom_tool_call_output", "local_shell_call_output", "tool_search_output"]
)


def sessions(path: Path, losses: Losses) -> list[Found]:
    """The session of one rollout, with the subagents whose rollouts lie beside it."""
    beside = [head_of(file) for file in sorted(path.parent.glob("rollout-*.jsonl"))[:1000] if file != path]
    heads = [head_of(path), *beside]
    return [_found(heads[0], heads)]


def _found(head: Head, heads: Sequence[Head]) -> Found:
    children = [other for other in heads if other.parent == head.id and other.path != head.path]

    def tell(story: Story) -> None:
        lines = Lines(head.path, story.losses)
        with closing(lines):
            teller = Teller(story, str(head.path), {child.id: child for child in children})
            for record in lines:
                story.counts.records += 1
                teller.record(record.value, lines.place(record.number))
            teller.end(lambda child: _found(child, heads))

    return Found(head.id, FORMAT, str(head.path), tell, parent=head.parent)


def old_sessions(path: Path) -> list[Found]:
    """The session of a rollout of the first form: one JSON document with `session` and `items`."""

    def tell(story: Story) -> None:
        teller = Teller(story, str(path), {})
        for element in elements(path, story.losses):
            place = element.place(path.name)
            if isinstance(element.value, Mapping):
                story.counts.records += element.key == "items"
                teller.record(element.value, place)
            else:
                story.losses.add(place, "no record")
        teller.end(lambda child: _found(child, []))

    return [Found(path.stem, FORMAT, str(path), tell)]


@dataclass(slots=True)
class _Answer:
    """What the model gave in one response, and the results that came for it."""

    time: float | None
    place: str
    blocks: list[dict[str, Any]] = field(default_factory=list)
    results: list[tuple[float | None, str, Any, bool, str, Any]] = field(default_factory=list)
    tokens: Mapping[str, Any] = field(default_factory=dict)
    closed: bool = False


class Teller:
    """Tells a rollout, record by record."""

    def __init__(self, story: Story, origin: str, children: Mapping[str, Head]) -> None:
        self.story, self.origin = story, origin
        self._children = dict(children)
        self._started: dict[str, None] = {}
        self._begun = False
        self._model: str | None = None
        self._answer: _Answer | None = None
        self._answers = 0
        self._counted: Any = None
        self._early: Mapping[str, Any] = {}
        self._ended: dict[str, tuple[float | None, str, Mapping[str, Any]]] = {}
        self._heard: dict[str, Counter[int]] = {"item": Counter(), "event": Counter()}

    def record(self, value: Mapping[str, Any], place: str) -> None:
        """One line, of whichever form."""
        time = seconds(value.get("timestamp"))
        type, payload = value.get("type"), value.get("payload")
        if not isinstance(payload, Mapping):
            type, payload = self._bare(value)
        if not self._begun:
            self._begin(time, type, payload)
        match type:
            case "session_meta":
                self.story.foreign(time, place, value)
            case "turn_context":
                self._model = str(payload.get("model") or "") or self._model
            case "response_item":
                self._item(payload, time, place)
            case "event_msg":
                self._event(payload, time, place)
            case "compacted":
                self._compacted(payload, time, place)
            case _:
                self.story.foreign(time, place, value)

    def _bare(self, value: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
        """A line of the older forms is the payload itself."""
        if is_old_head(value) or ("id" in value and "type" not in value):
            return "session_meta", value
        return ("response_item" if value.get("type") else None), value

    def _begin(self, time: float | None, type: str | None, payload: Mapping[str, Any]) -> None:
        self._begun = True
        meta = payload if type == "session_meta" else {}
        key = str(meta.get("id") or Path(self.origin).stem)
        self.story.begin(
            time or seconds(meta.get("timestamp")), title_of(self.origin) or key, self.origin, foreign_id=key,
            folder=meta.get("cwd"), version=meta.get("cli_version"),
        )  # fmt: skip

    # Items

    def _item(self, item: Mapping[str, Any], time: float | None, place: str) -> None:
        type = item.get("type") or ("message" if "role" in item else None)
        if type == "message":
            self._message(item, time, place)
        elif type == "reasoning":
            self._current(time, place).blocks.append(thinking(item))
        elif str(type) in _CALLS:
            self.story_call(item, time, place)
        elif str(type) in _OUTPUTS:
            self._output(item, time, place)
        else:
            self.story.foreign(time, place, item)

    def _message(self, item: Mapping[str, Any], time: float | None, place: str) -> None:
        content = item.get("content")
        blocks = [b for b in content if isinstance(b, Mapping)] if isinstance(content, list) else []
        text = content if isinstance(content, str) else "\n".join(str(b.get("text") or "") for b in blocks)
        if item.get("role") == "assistant":
            self._current(time, place).blocks.append({"type": "text", "text": text})
            return
        if item.get("role") != "user" or text.lstrip().startswith(PUT_IN):
            self.story.foreign(time, place, item)
            return
        self._said(time, text, "item", "event")
        for block in blocks:
            if block.get("type") not in ("input_text", "text", "output_text"):
                self.story.foreign(time, place, block)

    def _said(self, time: float | None, text: str, way: str, other: str) -> None:
        """The operator's words, which stand in the file as item and as event: the first of both counts."""
        if self._heard[other][hash(text)]:
            self._heard[other][hash(text)] -= 1
            return
        self._heard[way][hash(text)] += 1
        self._close()
        if text:
            self.story.counts.messages += 1
            self._settle(time)
            self.story.said(time, text)

    def story_call(self, item: Mapping[str, Any], time: float | None, place: str) -> None:
        """A call that the model made."""
        given = item.get("arguments", item.get("input", item.get("action")))
        if isinstance(given, str):
            given = as_object(given, "input" if "input" in item else "arguments")
        id = str(item.get("call_id") or item.get("id") or f"{place} call")
        name = str(item.get("name") or str(item.get("type")).removesuffix("_call"))
        block = {"type": "tool_use", "id": id, "name": name, "input": given or {}}
        self._current(time, place).blocks.append(block)

    def _output(self, item: Mapping[str, Any], time: float | None, place: str) -> None:
        output = item.get("output", item.get("tools", ""))
        failed = False
        if isinstance(output, Mapping):
            failed = output.get("success") is False
            output = output.get("content", output)
        content, ended_badly = outcome(as_content(output))
        failed = failed or ended_badly
        id = str(item.get("call_id") or item.get("id"))
        self._ended.pop(id, None)
        self.story.counts.messages += 1
        if self._answer is not None and any(b.get("id") == id for b in self._answer.blocks):
            self._answer.results.append((time, id, content, failed, place, item))
            self._answer.closed = True
        else:
            self._close()
            self._result(time, id, content, failed, place, item)

    def _result(self, time: float | None, id: str, content: Any, failed: bool, place: str, item: Any) -> None:
        self.story.result(time, id, content, place=place, is_error=failed, raw=item)
        for key in [key for key in self._children if key in str(content) and key not in self._started]:
            self._start(time, key)

    def _current(self, time: float | None, place: str) -> _Answer:
        if self._answer is None or self._answer.closed:
            self._close()
            self._answer = _Answer(time, place, tokens=self._early)
            self._early = {}
        return self._answer

    def _close(self) -> None:
        """Tell the answer that is being collected, and what came for it."""
        answer, self._answer = self._answer, None
        if answer is None:
            return
        self._answers += 1
        self.story.counts.messages += 1
        self._settle(answer.time)
        self.story.answered(
            answer.time, f"response {self._answers}", answer.blocks, place=answer.place, model=self._model,
            stop_reason=None, usage=usage_of(answer.tokens),
        )  # fmt: skip
        for result in answer.results:
            self._result(*result)

    # Events

    def _event(self, event: Mapping[str, Any], time: float | None, place: str) -> None:
        match event.get("type"):
            case "user_message":
                text = str(event.get("message") or "")
                if not text.lstrip().startswith(PUT_IN):
                    self._said(time, text, "event", "item")
            case "token_count":
                self._count(event.get("info"))
            case "exec_command_end":
                self._ended[str(event.get("call_id"))] = (time, place, event)
                self.story.foreign(time, place, event)
            case "turn_aborted":
                reason = str(event.get("reason") or "aborted")
                self._failed(time, "interrupted", f"turn aborted: {reason}")
            case "error" | "stream_error":
                text = str(event.get("message") or "no text")
                self._failed(time, failure_of(text), text)
            case "thread_rolled_back":
                self._close()
                self.story.losses.add(place, f"{event.get('num_turns')} turns were taken back; they are still shown")
                self.story.foreign(time, place, event)
            case type if str(type) not in _AS_ITEMS:
                self.story.foreign(time, place, event)

    def _count(self, info: Any) -> None:
        """Tokens of one response: of the one that is being collected, or of the next when that one has its results."""
        info = info if isinstance(info, Mapping) else {}
        tokens = info.get("last_token_usage")
        counted = info.get("total_token_usage") or tokens
        if not isinstance(tokens, Mapping) or counted == self._counted:
            return  # limits alone, or the same figures again
        self._counted = counted
        if self._answer is not None and not self._answer.results:
            self._answer.tokens, self._answer.closed = sum_of(self._answer.tokens, tokens), True
        else:
            self._close()
            self._early = sum_of(self._early, tokens)

    def _failed(self, time: float | None, kind: talk.CallFailure, reason: str) -> None:
        """A response came to nothing; what was counted for it was paid for."""
        self._close()
        spent: dict[str, Any] = (
            {"model": self._model or "unknown", "usage": usage_of(self._early)} if self._early else {}
        )
        self._early = {}
        self.story.add(time, talk.model_failed("", kind, reason, attempt=1, **spent))

    def _settle(self, time: float | None) -> None:
        """Answer what is open: by how the command ended, where that was recorded, else as unknown."""
        for id in [id for id in self._ended if self.story.is_open(id)]:
            at, place, event = self._ended.pop(id)
            said = str(event.get("aggregated_output") or event.get("formatted_output") or "")
            self._result(at, id, said, event.get("exit_code") not in (0, None), place, event)
        self.story.settle(time)

    def _compacted(self, payload: Mapping[str, Any], time: float | None, place: str) -> None:
        self._close()
        kept = [i for i in payload.get("replacement_history") or () if isinstance(i, Mapping)]
        summary = str(payload.get("message") or "")
        if not summary:
            summary = "\n\n".join(text for item in kept if (text := plain(item)) and not text.startswith(PUT_IN))
            if any("encrypted_content" in item for item in kept):
                self.story.losses.add(
                    place, "the summary of a compaction is encrypted: only the words it kept are told"
                )
        self.story.add(time, talk.conversation_compacted(summary, self.story.seq))

    # Subagents, the end

    def _start(self, time: float | None, key: str) -> None:
        self._started[key] = None
        self.story.child_started(time, key, title=self._children[key].title or key, prompt="")

    def end(self, found: Callable[[Head], Found]) -> None:
        """The answer that was not told yet, the subagents, and the end."""
        if not self._begun:
            self._begin(None, None, {})
        self._close()
        self._settle(None)
        if self._early:
            self.story.foreign(None, self.origin, {"type": "token_count", "last_token_usage": dict(self._early)})
        for key, head in self._children.items():
            if key not in self._started:
                self._start(None, key)
            self.story.child(found(head))
        self.story.end()
