"""opencode sessions of the first generation of messages (0.x to 1.19): a message and its parts, from wherever they lie.

A `Stored` session gives its messages in order; export, run stream, folder and database each make one. An assistant's
message is one round of the model: text, reasoning and tool calls with their results in one. Old ones hold several
rounds, divided by `step-start` parts. `opencode_new.py` tells the messages of version 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from state import conversation as talk
from state.foreign.claude_text import failure_of
from state.foreign.damage import Losses
from state.foreign.opencode_new import NEW_TYPES, NewTeller
from state.foreign.opencode_old import is_old, renewed
from state.foreign.opencode_parts import (
    millis,
    model_of,
    rounds,
    state_of,
    thinking,
    time_of,
    tool_use,
    usage_of,
)
from state.foreign.story import Found, Story, first_line

FORMAT = "opencode"
_FINISH = {"tool-calls": "tool_use", "stop": "end_turn", "length": "max_tokens"}
_ERRORS = {
    "MessageAbortedError": "interrupted",
    "ProviderAuthError": "refused",
    "MessageOutputLengthError": "cut",
    "ContextOverflowError": "bad_request",
}

Message = tuple[str, Mapping[str, Any], Sequence[Mapping[str, Any]]]
"""Place, info, parts."""


@dataclass(slots=True)
class Stored:
    """A session as it is stored: its own record, its messages, and the sessions that it started."""

    key: str
    info: Mapping[str, Any]
    origin: str
    messages: Callable[[Losses], Iterable[Message]]
    children: list[Stored] = field(default_factory=list)
    todos: list[Any] = field(default_factory=list)

    def found(self) -> Found:
        tell = _tell_stored(self)
        return Found(self.key, FORMAT, self.origin, tell, time=millis(time_of(self.info, "created")) or 0.0)


def _tell_stored(stored: Stored) -> Callable[[Story], None]:
    def tell(story: Story) -> None:
        teller = Teller(story, stored.origin, {child.key: child for child in stored.children})
        teller.begin(stored.key, stored.info)
        for place, info, parts in stored.messages(story.losses):
            teller.message(place, info, parts)
        for todo in stored.todos:
            story.foreign(None, f"{stored.key} todo", todo)
        teller.end()

    return tell


class Teller:
    """Tells one session, message by message."""

    def __init__(self, story: Story, origin: str, children: Mapping[str, Stored]) -> None:
        self.story, self.origin = story, origin
        self.begun = False
        self._children = dict(children)
        self._started: dict[str, None] = {}
        self._seen: dict[str, int] = {}
        self._compaction: str | None = None
        self._before = 0
        self._new = NewTeller(story)

    def begin(self, key: str, info: Mapping[str, Any]) -> None:
        """The session's own record. A session without one begins with no time and its id as title."""
        self.begun = True
        title = str(info.get("title") or "") or key
        location = info.get("location")
        folder = info.get("directory") or (location.get("directory") if isinstance(location, Mapping) else None)
        self.story.begin(
            millis(time_of(info, "created")), first_line(title), self.origin, foreign_id=key, folder=folder,
            version=info.get("version"),
        )  # fmt: skip

    def message(self, place: str, info: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> None:
        """One message with its parts, whichever generation it is of."""
        id = str(info.get("id") or "")
        if id and id in self._seen:
            self.story.losses.add(place, f"the message `{id}` stands here again; the first counts")
            return
        self._seen[id] = self.story.seq + 1
        self.story.counts.messages += 1
        self.story.saw(millis(time_of(info, "created")))
        if "role" not in info and str(info.get("type")) in NEW_TYPES:
            self._new.message(place, info)
            return
        if is_old(info):
            info, parts = renewed(info)
        if info.get("role") == "user":
            self._user(place, info, parts)
        elif info.get("role") == "assistant":
            self._assistant(place, info, parts)
        else:
            self.story.foreign(millis(time_of(info, "created")), place, {"info": info, "parts": list(parts)})

    def end(self) -> None:
        """The subagents' sessions, and the end."""
        for key, child in self._children.items():
            if key not in self._started:
                self._start(None, key, str(child.info.get("title") or key), "")
            self.story.child(child.found())
        self.story.counts.records = self.story.counts.records or self.story.counts.messages
        self.story.end()

    # The operator

    def _user(self, place: str, info: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> None:
        time = millis(time_of(info, "created"))
        said = []
        for part in parts:
            if part.get("type") == "compaction":
                self._compaction = str(part.get("tail_start_id") or "") or None
                self._before = self.story.seq
            elif part.get("type") == "text" and not part.get("synthetic") and not part.get("ignored"):
                said.append(str(part.get("text") or ""))
        self.story.settle(time)
        if any(text.strip() for text in said):
            self.story.said(time, "\n".join(said))
        for part in parts:
            if part.get("type") not in ("text", "compaction") or part.get("synthetic") or part.get("ignored"):
                self.story.foreign(time, place, part)
        if not parts:
            self.story.losses.add(place, "a message of the operator without any part: its words are lost")

    # The model

    def _assistant(self, place: str, info: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> None:
        time = millis(time_of(info, "created"))
        self.story.settle(time)
        if info.get("summary") is True:
            self._compacted(place, info, parts)
            return
        every = list(rounds(parts))
        for number, steps in enumerate(every):
            only = len(every) == 1
            self._round(place, info, steps, f"{info.get('id')}" + ("" if only else f".{number + 1}"), only=only)
        if info.get("error"):
            self.failed(millis(time_of(info, "completed")) or self.story.time, str(info.get("id")), info["error"])
        elif not every:
            self.story.losses.add(place, "an answer without any part: it was never finished, or its parts are lost")

    def _round(
        self, place: str, info: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], call: str, *, only: bool
    ) -> None:
        blocks: list[dict[str, Any]] = []
        others: list[Mapping[str, Any]] = []
        tools: list[Mapping[str, Any]] = []
        finish: Mapping[str, Any] = {}
        for part in parts:
            match part.get("type"):
                case "text" if not part.get("ignored"):
                    blocks.append({"type": "text", "text": str(part.get("text") or "")})
                case "reasoning":
                    blocks.append(thinking(part))
                case "tool":
                    blocks.append(tool_use(part, f"{call}.{len(blocks)}"))
                    tools.append(part)
                case "step-start":
                    pass
                case "step-finish":
                    finish = part
                case _:
                    others.append(part)
        starts = [at for part in tools if (at := millis(time_of(state_of(part), "start"))) is not None]
        ended = millis(time_of(info, "completed"))
        time = min(starts) if starts else ended if only and ended else millis(time_of(info, "created"))
        if blocks:
            reason = str(info.get("finish") or finish.get("reason") or "") or None
            tokens = info.get("tokens") if only and info.get("tokens") else finish.get("tokens")
            cost = info.get("cost") if only and info.get("cost") is not None else finish.get("cost")
            ids = self.story.answered(
                time, call, blocks, place=place, model=model_of(info), usage=usage_of(tokens), cost=cost,
                stop_reason=_FINISH.get(reason or "", reason), unique=False,
            )  # fmt: skip
            self._results(place, list(zip(ids, tools, strict=True)))
        for part in others:
            self.story.foreign(None, place, part)

    def _results(self, place: str, tools: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        for id, part in tools:
            self._start_of(id, part)
        for id, part in sorted(tools, key=lambda pair: time_of(state_of(pair[1]), "end") or 0):
            state = state_of(part)
            if state.get("status") not in ("completed", "error"):
                continue  # never answered: settled before whatever comes next
            time = millis(time_of(state, "end"))
            failed = state.get("status") == "error"
            content = str((state.get("error") if failed else state.get("output")) or "")
            meta = state.get("metadata")
            meta = meta if isinstance(meta, Mapping) else {}
            failed = failed or meta.get("exit") not in (0, None)
            whole = {"bytes": None, "where": meta["outputPath"]} if meta.get("outputPath") else None
            self.story.result(time, id, content, place=place, is_error=failed, whole=whole)
            for attached in state.get("attachments") or ():
                self.story.foreign(time, place, attached)
            child = meta.get("sessionId")
            if part.get("tool") == "task" and child in self._children:
                self.story.child_reported(time, child, "failed" if failed else "completed", {"text": content})

    def _start_of(self, id: str, part: Mapping[str, Any]) -> None:
        state = state_of(part)
        meta = state.get("metadata")
        child = meta.get("sessionId") if isinstance(meta, Mapping) else None
        if part.get("tool") != "task" or not child:
            return
        given = state.get("input")
        given = given if isinstance(given, Mapping) else {}
        if child in self._children:
            title = str(given.get("description") or self._children[child].info.get("title") or child)
            self._start(millis(time_of(state, "start")), str(child), title, str(given.get("prompt") or ""))
        else:
            self.story.losses.add(id, f"the session `{child}` of this subagent is not in what was given")

    def _start(self, time: float | None, key: str, title: str, prompt: str) -> None:
        if key not in self._started:
            self._started[key] = None
            self.story.child_started(time, key, title=title, prompt=prompt)

    def _compacted(self, place: str, info: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> None:
        """The summary stands for what was before it was asked for, but for a tail that was kept."""
        summary = "\n".join(str(p.get("text") or "") for p in parts if p.get("type") == "text")
        time = millis(time_of(info, "completed")) or millis(time_of(info, "created"))
        through = self._before or self.story.seq
        if self._compaction in self._seen:
            through = min(through, self._seen[str(self._compaction)] - 1)
        self._compaction, self._before = None, 0
        call, model = str(info.get("id") or place), model_of(info)
        self.story.compacts(millis(time_of(info, "created")), call, model)
        self.story.answered(
            time, call, [{"type": "text", "text": summary}] if summary else [], place=place, model=model,
            stop_reason="end_turn", usage=usage_of(info.get("tokens")), cost=info.get("cost"),
        )  # fmt: skip
        if summary:
            self.story.add(time, talk.conversation_compacted(summary, through))
        self.story.foreign(time, place, {"info": info, "parts": [p for p in parts if p.get("type") != "text"]})

    def failed(self, time: float | None, call: str, error: Any) -> None:
        """An error that the program recorded."""
        error = error if isinstance(error, Mapping) else {"name": str(error)}
        data = error.get("data")
        text = str((data.get("message") if isinstance(data, Mapping) else None) or error.get("message") or "")
        name = str(error.get("name") or error.get("type") or "")
        kind = _ERRORS.get(name) or failure_of(f"{name} {text} {data or ''}")
        self.story.add(time, talk.model_failed(call, kind, f"{name}: {text}".strip(": "), attempt=1))  # type: ignore[arg-type]
