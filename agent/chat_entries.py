"""The conversation as a person reads it: what was said, answered, run as a tool and happened, entry by entry.

    conversation = Conversation()
    conversation.apply(kind, payload, seq, time)      # changes of the log, stored or live
    conversation.grow(call, "more text")              # an answer that is being spoken

It is fed by the log, so a resumed chat shows what a running one showed; what streams in before it is stored only grows
the entry that the stored answer then completes. It draws nothing: `agent/chat_text.py` makes lines of an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.text import Text

EntryKind = Literal["said", "answer", "tool", "event", "note", "error", "child"]
MAX_ENTRIES = 400
"""Entries kept for the screen; the log keeps everything."""


@dataclass(eq=False, slots=True)
class Entry:
    """One thing that is read as a whole. `state` is `open` while it may grow, else `done`, `failed` or `stopped`.

    `keys` goes with the lines of an event: the todos that they are about.
    """

    kind: EntryKind
    text: str = ""
    state: str = "done"
    name: str = ""
    input: Mapping[str, Any] = field(default_factory=dict)
    lines: list[Text] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    seq: int | None = None
    time: float = 0.0
    version: int = 0


Listener = Callable[[Entry], None]


class Conversation:
    """Entries in order. `changed` is called with each entry that is new or has changed."""

    def __init__(self, changed: Listener | None = None) -> None:
        self.entries: list[Entry] = []
        self.dropped = 0
        self.playbooks: list[str] = []
        self._changed = changed or (lambda _entry: None)
        self._answers: dict[str, Entry] = {}
        self._tools: dict[str, Entry] = {}
        self._children: dict[str, Entry] = {}
        self._questions: dict[str, str] = {}

    def listen(self, changed: Listener) -> None:
        """From now on tell these of every change."""
        self._changed = changed

    # What is put in from this side

    def say(self, lines: Sequence[Text | str], kind: EntryKind = "note", *, time: float = 0.0) -> Entry:
        """A note of the chat itself, such as the result of a command. It is not part of the log."""
        texts = [line if isinstance(line, Text) else Text(line) for line in lines]
        return self._add(Entry(kind, "\n".join(t.plain for t in texts), lines=texts, time=time))

    def event(self, line: Text, *, seq: int | None, time: float, key: str = "") -> Entry:
        """Something happened in the graph. What happens in a row is one entry; `key` is the todo that it is about."""
        last = self.entries[-1] if self.entries else None
        if last is not None and last.kind == "event" and len(last.lines) < 200:
            last.lines.append(line)
            last.keys.append(key)
            return self._touch(last)
        return self._add(Entry("event", lines=[line], keys=[key], seq=seq, time=time))

    # What streams in before it is stored

    def begin(self, call: str, time: float) -> Entry:
        """A model begins to answer."""
        if call not in self._answers:
            self._answers[call] = Entry("answer", state="open", time=time)
        return self._answers[call]

    def grow(self, call: str, delta: str) -> None:
        """More of an answer. The entry appears with its first words."""
        entry = self.begin(call, 0.0)
        if entry.state != "open":
            return
        entry.text += delta
        self._show(entry)

    def tool(self, id: str, name: str, input: Mapping[str, Any], *, seq: int | None = None, time: float = 0.0) -> Entry:
        """A tool was called; told twice it is one entry."""
        entry = self._tools.get(id)
        if entry is None:
            entry = self._tools[id] = Entry("tool", state="open", name=name, input=input, seq=seq, time=time)
            return self._add(entry)
        return entry

    def child_line(self, child: str, line: str) -> None:
        """A subagent does something: its entry shows the newest line."""
        entry = self._children.get(child)
        if entry is not None and entry.state == "open":
            entry.lines = [Text(line)]
            self._touch(entry)

    # What the log says

    def apply(self, kind: str, payload: Mapping[str, Any], seq: int, time: float) -> None:
        """One change of the log. Kinds that are no part of a conversation are passed over."""
        handler = _HANDLERS.get(kind)
        if handler is not None:
            handler(self, payload, seq, time)

    def _said(self, p: Mapping[str, Any], seq: int, time: float) -> None:
        self._add(Entry("said", p["text"], "queued" if p.get("queued") else "done", seq=seq, time=time))

    def _asked_model(self, p: Mapping[str, Any], seq: int, time: float) -> None:
        """What was said while the model spoke is now before it."""
        for entry in self.entries[-50:]:
            if entry.kind == "said" and entry.state == "queued":
                entry.state = "done"
                self._touch(entry)

    def _answered(self, p: Mapping[str, Any], seq: int, time: float) -> None:
        texts = [block.get("text", "") for block in p["content"] if block.get("type") == "text"]
        entry = self.begin(p["call"], time)
        entry.text, entry.state, entry.seq, entry.time = "\n\n".join(t for t in texts if t), "done", seq, time
        if entry.text:
            self._show(entry)
        for block in p["content"]:
            if block.get("type") == "tool_use":
                self.tool(block["id"], block["name"], block.get("input") or {}, seq=seq, time=time)

    def _failed(self, p: Mapping[str, Any], seq: int, time: float) -> None:
        entry = self._answers.pop(p["call"], None)
        if entry is not None and entry.text and entry.state == "open":
            entry.state = "stopped"
            self._touch(entry)
        if p["kind"] != "interrupted" and p.get("retry_in_s") is None:
            words = f"the model did not answer ({p['kind']}): {p['reason']}"
            self._add(Entry("error", words, seq=seq, time=time))

    def _tool_answered(self, p: Mapping[str, Any], seq: int, time: float) -> None:
        entry = self.tool(p["tool_use_id"], p["name"], {}, seq=seq, time=time)
        entry.state = "failed" if p["is_error"] else "done"
        content = p["content"]
        entry.text = content if isinstance(content, str) else "\n".join(b.get("text", "") for b in content)
        self._touch(entry)

    def _compacted(self, p: Mapping[str, Any], seq: int, time: float) -> None:
        words = f"the conversation up to message {p['through']} is now a summary for the model; the log keeps it all"
        self._add(Entry("note", words, lines=[Text(words, "dim")], seq=seq, time=time))

    def _child_started(self, p: Mapping[str, Any], seq: int, time: float) -> None:
        entry = Entry("child", p["prompt"], "open", name=p["title"], seq=seq, time=time)
        self._children[p["child"]] = self._add(entry)

    def _child_reported(self, p: Mapping[str, Any], seq: int, time: float) -> None:
        entry = self._children.get(p["child"])
        if entry is None:
            entry = self._children[p["child"]] = self._add(Entry("child", name=p["child"], seq=seq, time=time))
        entry.state = "done" if p["status"] == "completed" else "failed"
        entry.lines = [Text(_headline(p["report"]) or p["status"])]
        self._touch(entry)

    def _loaded(self, p: Mapping[str, Any], seq: int, time: float) -> None:
        self.playbooks.append(p["playbook"])
        line = Text.assemble(("▶ ", "bold cyan"), (p["playbook"], "bold"), " joined the graph")
        self.event(line, seq=seq, time=time)

    def _asked(self, p: Mapping[str, Any], seq: int, time: float) -> None:
        self._questions[p["todo"]] = p["question"]

    def _answer_given(self, p: Mapping[str, Any], seq: int, time: float) -> None:
        why = f": {p['reason']}" if p.get("reason") else ""
        what = p["todo"] if not p["todo"].startswith("call:") else self._questions.get(p["todo"], p["todo"])
        line = Text.assemble(("? ", "magenta"), f"{what} answered ", (p["answer"], "bold"), f" by {p['by']}{why}")
        self.event(line, seq=seq, time=time)

    def _show(self, entry: Entry) -> None:
        if entry.version == 0:
            self._add(entry)
        else:
            self._touch(entry)

    def _add(self, entry: Entry) -> Entry:
        self.entries.append(entry)
        if len(self.entries) > MAX_ENTRIES:
            excess = len(self.entries) - MAX_ENTRIES
            del self.entries[:excess]
            self.dropped += excess
        return self._touch(entry)

    def _touch(self, entry: Entry) -> Entry:
        entry.version += 1
        self._changed(entry)
        return entry


def _headline(report: Mapping[str, Any]) -> str:
    """The sentence of a report that says most, where it has one."""
    for key in ("summary", "answer", "conclusion", "recommendation", "title", "text"):
        value = report.get(key)
        if isinstance(value, str) and value.strip():
            return " ".join(value.split())
    return ""


_HANDLERS: dict[str, Callable[[Conversation, Mapping[str, Any], int, float], None]] = {
    "operator.said": Conversation._said,
    "model.asked": Conversation._asked_model,
    "model.answered": Conversation._answered,
    "model.failed": Conversation._failed,
    "tool.answered": Conversation._tool_answered,
    "conversation.compacted": Conversation._compacted,
    "child.started": Conversation._child_started,
    "child.reported": Conversation._child_reported,
    "playbook.loaded": Conversation._loaded,
    "approval.asked": Conversation._asked,
    "approval.answered": Conversation._answer_given,
}
SHOWN: tuple[str, ...] = tuple(_HANDLERS)
"""The kinds of the log that a conversation is made of."""
