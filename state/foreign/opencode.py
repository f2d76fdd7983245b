"""opencode sessions of the first generation of messages (0.x to 1.19): a message and its parts, from wherever they lie.

A `Stored` session gives its messages in order; export, run stream, folder and database each make one. An assistant's
message is one round of the model: text, reasoning and tool calls with their results in one. Old ones hold several
rounds, divided by `step-start` parts. `opencode_new.py` tells the messages of version 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from state import conversation as talk
from state.foreign.claude_text import failure_of
from state.foreign.damage import Losses
from state.foreign.elements import elements
from state.foreign.lines import Lines
from state.foreign.opencode_new import NEW_TYPES, NewTeller
from state.foreign.opencode_old import is_old, renewed
from state.foreign.story import Found, Story, first_line

FORMAT = "opencode"
_FINISH = {"tool-calls": "tool_use", "stop": "end_turn", "length": "max_tokens"}
_ERRORS = {
    "MessageAbortedError": "interrupted",
    "ProviderAuthError": "refused",
    "MessageOutputLengthError": "cut",
    "ContextOverflowError": "bad_request",
}
_OF_STREAM = frozenset(["step_start", "step_finish", "text", "tool_use", "reasoning", "error", "done"])

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
        return Found(self.key, FORMAT, self.origin, tell, time=millis(_time(self.info, "created")) or 0.0)


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
                teller.message(place, element.value.get("info") or element.value, _listed(element.value, "parts"))
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
    return record.get("type") in _OF_STREAM and str(record.get("sessionID") or "").startswith("ses")


def is_export(document: Mapping[str, Any]) -> bool:
    """Whether the beginning of a document is that of an export, or of a session's own record."""
    info = document.get("info")
    if isinstance(info, Mapping) and (str(info.get("id") or "").startswith("ses") or "messages" in document):
        return True
    return str(document.get("id") or "").startswith("ses_") or "messages" in document


def _listed(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = value.get(key)
    return [part for part in found if isinstance(part, Mapping)] if isinstance(found, list) else []


def _time(value: Mapping[str, Any], name: str) -> Any:
    time = value.get("time")
    return time.get(name) if isinstance(time, Mapping) else None


def millis(value: Any) -> float | None:
    """Milliseconds as seconds; `None` for what is no number."""
    return value / 1000 if isinstance(value, int | float) and not isinstance(value, bool) else None


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
            millis(_time(info, "created")) or 0.0, first_line(title), self.origin, foreign_id=key, folder=folder,
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
        if "role" not in info and info.get("type") in NEW_TYPES:
            self._new.message(place, info)
            return
        if is_old(info):
            info, parts = renewed(info)
        if info.get("role") == "user":
            self._user(place, info, parts)
        elif info.get("role") == "assistant":
            self._assistant(place, info, parts)
        else:
            self.story.foreign(millis(_time(info, "created")), place, {"info": info, "parts": list(parts)})

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
        time = millis(_time(info, "created"))
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
        time = millis(_time(info, "created"))
        self.story.settle(time)
        if info.get("summary") is True:
            self._compacted(place, info, parts)
            return
        rounds = list(_rounds(parts))
        for number, steps in enumerate(rounds):
            only = len(rounds) == 1
            self._round(place, info, steps, f"{info.get('id')}" + ("" if only else f".{number + 1}"), only=only)
        if info.get("error"):
            self.failed(millis(_time(info, "completed")) or self.story.time, str(info.get("id")), info["error"])
        elif not rounds:
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
                    blocks.append(_thinking(part))
                case "tool":
                    blocks.append(_tool_use(part, f"{call}.{len(blocks)}"))
                    tools.append(part)
                case "step-start":
                    pass
                case "step-finish":
                    finish = part
                case _:
                    others.append(part)
        starts = [at for part in tools if (at := millis(_time(_state(part), "start"))) is not None]
        ended = millis(_time(info, "completed"))
        time = min(starts) if starts else ended if only and ended else millis(_time(info, "created"))
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
        for id, part in sorted(tools, key=lambda pair: _time(_state(pair[1]), "end") or 0):
            state = _state(part)
            if state.get("status") not in ("completed", "error"):
                continue  # never answered: settled before whatever comes next
            time = millis(_time(state, "end"))
            failed = state.get("status") == "error"
            content = str((state.get("error") if failed else state.get("output")) or "")
            meta = state.get("metadata")
            meta = meta if isinstance(meta, Mapping) else {}
            whole = {"bytes": None, "where": meta["outputPath"]} if meta.get("outputPath") else None
            self.story.result(time, id, content, place=place, is_error=failed, whole=whole)
            for attached in state.get("attachments") or ():
                self.story.foreign(time, place, attached)
            child = meta.get("sessionId")
            if part.get("tool") == "task" and child in self._children:
                self.story.child_reported(time, child, "failed" if failed else "completed", {"text": content})

    def _start_of(self, id: str, part: Mapping[str, Any]) -> None:
        state = _state(part)
        meta = state.get("metadata")
        child = meta.get("sessionId") if isinstance(meta, Mapping) else None
        if part.get("tool") != "task" or not child:
            return
        given = state.get("input")
        given = given if isinstance(given, Mapping) else {}
        if child in self._children:
            title = str(given.get("description") or self._children[child].info.get("title") or child)
            self._start(millis(_time(state, "start")), str(child), title, str(given.get("prompt") or ""))
        else:
            self.story.losses.add(id, f"the session `{child}` of this subagent is not in what was given")

    def _start(self, time: float | None, key: str, title: str, prompt: str) -> None:
        if key not in self._started:
            self._started[key] = None
            self.story.child_started(time, key, title=title, prompt=prompt)

    def _compacted(self, place: str, info: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> None:
        """The summary stands for what was before it was asked for, but for a tail that was kept."""
        summary = "\n".join(str(p.get("text") or "") for p in parts if p.get("type") == "text")
        time = millis(_time(info, "completed")) or millis(_time(info, "created"))
        through = self._before or self.story.seq
        if self._compaction in self._seen:
            through = min(through, self._seen[str(self._compaction)] - 1)
        self._compaction, self._before = None, 0
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


def _rounds(parts: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """The parts of one round each: a `step-start` begins a new one."""
    current: list[Mapping[str, Any]] = []
    for part in parts:
        if part.get("type") == "step-start" and any(p.get("type") != "step-start" for p in current):
            yield current
            current = []
        current.append(part)
    if current:
        yield current


def _state(part: Mapping[str, Any]) -> Mapping[str, Any]:
    state = part.get("state")
    return state if isinstance(state, Mapping) else {}


def _thinking(part: Mapping[str, Any]) -> dict[str, Any]:
    meta = part.get("metadata")
    signed = meta.get("anthropic") if isinstance(meta, Mapping) else None
    signature = signed.get("signature") if isinstance(signed, Mapping) else None
    block = {"type": "thinking", "thinking": str(part.get("text") or "")}
    return {**block, **({"signature": signature} if signature else {})}


def _tool_use(part: Mapping[str, Any], id: str) -> dict[str, Any]:
    given = _state(part).get("input")
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
        "input": int(tokens.get("input") or 0),
        "output": int(tokens.get("output") or 0) + int(tokens.get("reasoning") or 0),
        "cache_read": int(cache.get("read") or 0),
        "cache_write": int(cache.get("write") or 0),
    }
