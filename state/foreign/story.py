"""A foreign session as it is told to our log: entries with their original times, numbered as they come.

A reader of a format is given a `Story` and tells it what it finds, in order; the story keeps the books that the log
asks for: every tool call gets exactly one answer, a subagent gets a session of its own, and what has no counterpart is
kept as it was. Where the entries go is the business of whoever made the story (`state/foreign/store.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from state import conversation as talk
from state.changes import Change, session_created, session_status
from state.foreign.damage import Losses

INTERRUPTED = "interrupted, outcome unknown: what was recorded ends before this call had an answer"


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of a log, but its session."""

    seq: int
    time: float
    change: Change


@dataclass(slots=True)
class Found:
    """A session in a source. `key` is its own name there; `tell` reads it into a story."""

    key: str
    format: str
    origin: str
    tell: Callable[[Story], None]
    parent: str | None = None
    title: str = ""
    time: float = 0.0


@dataclass(slots=True)
class Counts:
    """What was told: source messages, tool calls, and those that lie on a branch the operator left."""

    messages: int = 0
    tool_calls: int = 0
    inactive: int = 0
    records: int = 0


@dataclass(slots=True)
class _Call:
    call: str
    name: str
    place: str


@dataclass
class Story:
    """The log of one session while it is told. `id_of` gives the id that a foreign session gets here."""

    format: str
    write: Callable[[Entry], None]
    id_of: Callable[[str], str]
    losses: Losses
    parent: str | None = None
    counts: Counts = field(default_factory=Counts)
    seq: int = 0
    time: float = 0.0
    latest: float = 0.0
    child: Callable[[Found], None] = lambda found: None
    _open: dict[str, _Call] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _begin: Change | None = None

    def add(self, time: float | None, change: Change) -> int:
        """One more entry. Returns its number. Without a time it gets that of the one before."""
        self.time = self.time if time is None else time
        self._write_begin()
        self.latest = max(self.latest, self.time)
        self.seq += 1
        self.write(Entry(self.seq, self.time, change))
        return self.seq

    def begin(self, time: float | None, title: str, origin: str, **facts: Any) -> None:
        """The session itself: where no time is known of it, it begins with what comes first in it.

        `facts` go into its settings, where they are not `None`.
        """
        settings = {"format": self.format, "origin": origin, **{k: v for k, v in facts.items() if v is not None}}
        made = session_created(
            kind="imported", title=title, playbook=None, source=origin, parent=self.parent, settings=settings
        )
        self.seq, self._begin = 1, made
        if time is not None:
            self.time = time
            self._write_begin()

    def saw(self, time: float | None) -> None:
        """Something was recorded at this time, whether or not there is anything to tell of it."""
        if time is not None:
            self.latest = max(self.latest, time)
            self.time = self.time if self._begin is None else time
            self._write_begin()

    def _write_begin(self) -> None:
        made, self._begin = self._begin, None
        if made is not None:
            self.latest = max(self.latest, self.time)
            self.write(Entry(1, self.time, made))

    def said(self, time: float | None, text: str, *, queued: bool = False) -> None:
        self.add(time, talk.operator_said(text, queued=queued))

    def foreign(self, time: float | None, place: str, raw: Any) -> None:
        self.add(time, talk.foreign_record(self.format, place, raw))

    def compacts(self, time: float | None, call: str, model: str | None) -> None:
        """The model is asked for a summary: the answer that follows costs what it did and is no turn."""
        request = {"through": self.seq}
        self.add(time, talk.model_asked(call, model=model or "unknown", purpose="compact", request=request))

    def answered(
        self,
        time: float | None,
        call: str,
        blocks: Sequence[Mapping[str, Any]],
        *,
        place: str,
        model: str | None,
        stop_reason: str | None,
        usage: Mapping[str, int],
        cost: float | None = None,
        unique: bool = True,
        **seen: Any,
    ) -> list[str]:
        """A model's whole answer. Its tool calls are open from now on; a stop reason that was not kept is derived.

        Returns the ids of the calls: one that an earlier call had is made unique, which is told unless the format is
        known to number its calls anew (`unique=False`).
        """
        content = [
            self._opened(block, call, place, unique) if block.get("type") == "tool_use" else _whole_block(block)
            for block in blocks
        ]
        calls = any(block.get("type") == "tool_use" for block in content)
        cost = cost if isinstance(cost, int | float) and not isinstance(cost, bool) else None
        self.add(
            time,
            talk.model_answered(
                call, model=model or "unknown", content=content, cost=cost, usage=usage,
                stop_reason=stop_reason or ("tool_use" if calls else "end_turn"), **seen,
            ),
        )  # fmt: skip
        return [str(block["id"]) for block in content if block.get("type") == "tool_use"]

    def _opened(self, block: Mapping[str, Any], call: str, place: str, unique: bool) -> Mapping[str, Any]:
        id, name = str(block.get("id") or f"{call}.{len(self._known)}"), str(block.get("name") or "unknown")
        if id in self._known:
            if unique:
                self.losses.add(place, f"a second call has the id `{id}` of an earlier one")
            id = f"{id}.{self.seq + 1}.{len(self._known)}"
        self._known.add(id)
        self._open[id] = _Call(call, name, place)
        self.counts.tool_calls += 1
        return {**block, "id": id, "name": name}

    def result(
        self,
        time: float | None,
        id: str,
        content: Any,
        *,
        place: str,
        is_error: bool = False,
        whole: Mapping[str, Any] | None = None,
        raw: Any = None,
    ) -> None:
        """The answer to a call. One that answers nothing, or answers again, is kept as a record and told as a loss."""
        call = self._open.pop(id, None)
        if call is None:
            why = "was answered before" if id in self._known else "is in no record"
            self.losses.add(place, f"a result for the call `{id}`, which {why}: kept beside the conversation")
            self.foreign(time, place, content if raw is None else raw)
            return
        told = content if isinstance(content, str) else as_blocks(content)
        self.add(time, talk.tool_answered(call.call, id, call.name, told, is_error=is_error, whole=whole))

    def is_open(self, id: str) -> bool:
        return id in self._open

    def settle(self, time: float | None = None, *, but: Callable[[str], bool] = lambda id: False) -> None:
        """Answer the open calls that were never answered, except those of which `but` knows an answer further on."""
        for id in [id for id in self._open if not but(id)]:
            call = self._open.pop(id)
            self.losses.add(call.place, f"the call `{id}` of `{call.name}` has no answer; its outcome is unknown")
            self.add(time, talk.tool_answered(call.call, id, call.name, INTERRUPTED, is_error=True))

    def child_started(self, time: float | None, key: str, *, title: str, prompt: str) -> None:
        self.add(time, talk.child_started(self.id_of(key), title=title, prompt=prompt))

    def child_reported(self, time: float | None, key: str, status: str, report: Mapping[str, Any]) -> None:
        self.add(time, talk.child_reported(self.id_of(key), status, report))

    def end(self, time: float | None = None) -> None:
        """Nothing more comes: an imported session has ended, whatever state it was recorded in."""
        self.settle(time)
        self.add(self.latest, session_status("completed", f"imported from {self.format}"))


def _whole_block(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """A block of an answer; one that damage left without a type becomes a text, so that it can be sent again."""
    if not isinstance(block.get("type"), str):
        return {"type": "text", "text": json.dumps(block, ensure_ascii=False)}
    return block if block["type"] != "text" or isinstance(block.get("text"), str) else {**block, "text": ""}


def as_blocks(content: Any) -> str | list[Mapping[str, Any]]:
    """A tool's result in the form of the Messages API: a text, or blocks."""
    if content is None:
        return ""
    if isinstance(content, list):
        return [block if isinstance(block, Mapping) else {"type": "text", "text": str(block)} for block in content]
    return str(content)


def first_line(text: str, limit: int = 80) -> str:
    """A title from a text: its first line, shortened."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"
