"""From the log to the messages of a model request: what was said, answered and told, in the form the API wants.

    transcript = Transcript()
    for seq, change in log: transcript.take(seq, change.kind, change.payload)
    transcript.messages(tail)                # for the next request

Pure. The same log gives the same messages, whoever reads it and whenever, so a resumed session goes on from what was
stored and a replay can compare. Every `tool_use` of an answer gets one `tool_result`, in the order of the calls and at
the head of the next message; one that has none in the log yet is in `unanswered`, and nothing is sent before it has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from state.changes import Change
from state.models import Message

Block = dict[str, Any]
CLEARED_OVER = 1_000
"""Characters of a tool result beyond which it is cleared."""
NOTHING_TO_SAY = "(nothing was said)"
NO_BEGINNING = "(The beginning of the conversation is not kept.)"
REFUSED = "(The model refused to answer this.)"
CUT = ("max_tokens", "model_context_window_exceeded")


@dataclass(slots=True)
class Turn:
    """One message of the conversation. `seqs` are the numbers of the log entries that its blocks came from."""

    role: str
    blocks: list[Block]
    seqs: list[int]


@dataclass(slots=True)
class _Asked:
    through: int
    notices: list[str]
    purpose: str


@dataclass
class Transcript:
    """A conversation as far as it is stored.

    `heard` is the newest log number that the model has been asked about; `calls` how many calls there were; `open_call`
    one that was begun and has neither answer nor failure; `notices` what was raised and not delivered; `context` the
    tokens of the newest answered request with its answer; `stop_reason` why that answer ended.
    """

    turns: list[Turn] = field(default_factory=list)
    waiting: list[tuple[int, Block]] = field(default_factory=list)
    notices: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    unanswered: dict[str, tuple[str, str]] = field(default_factory=dict)
    calls: int = 0
    open_call: str | None = None
    newest: int = 0
    context: int = 0
    stop_reason: str | None = None
    summary: str | None = None
    cleared: int = 0
    children: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _asked: dict[str, _Asked] = field(default_factory=dict)
    _told: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    # Reading the log

    def take_all(self, changes: Sequence[Change], seqs: Sequence[int]) -> None:
        """Changes as they are committed."""
        for change, seq in zip(changes, seqs, strict=True):
            self.take(seq, change.kind, change.payload)

    def take_messages(self, messages: Iterable[Message]) -> None:
        """Messages as they are read back."""
        for message in messages:
            self.take(message.seq, message.kind, message.payload)

    def take(self, seq: int, kind: str, payload: Mapping[str, Any]) -> None:
        """One entry of the log; kinds that are no part of a conversation are passed over."""
        self.newest = max(self.newest, seq)
        if handler := _HANDLERS.get(kind):
            handler(self, seq, payload)

    def _said(self, seq: int, p: Mapping[str, Any]) -> None:
        if str(p["text"]).strip():
            self._wait(seq, {"type": "text", "text": p["text"]})

    def _wait(self, seq: int, block: Block) -> None:
        self.waiting.append((seq, block))
        self.waiting.sort(key=lambda entry: entry[0])  # commits of two writers may be told out of order

    def _model_asked(self, seq: int, p: Mapping[str, Any]) -> None:
        request = p["request"]
        self.calls += 1
        self.open_call = p["call"]
        self._asked[p["call"]] = _Asked(request["through"], list(request.get("notices") or ()), p["purpose"])

    def _model_failed(self, seq: int, p: Mapping[str, Any]) -> None:
        if p.get("retry_in_s") is None and p["call"] == self.open_call:
            self.open_call = None

    def _model_answered(self, seq: int, p: Mapping[str, Any]) -> None:
        asked = self._asked.pop(p["call"], None) or _Asked(seq, [], "turn")
        if self.open_call == p["call"]:
            self.open_call = None
        if asked.purpose == "compact":
            return
        usage = p.get("usage") or {}
        self.context = sum(int(usage.get(name) or 0) for name in ("input", "cache_read", "cache_write", "output"))
        self.stop_reason = p["stop_reason"]
        heard = [(at, block) for at, block in self.waiting if at <= asked.through]
        self.waiting = [(at, block) for at, block in self.waiting if at > asked.through]
        told = [notice_block(id, self._told[id]) for id in asked.notices if id in self._told]
        self._add("user", [*ordered(heard), *((seq, block) for block in told)])
        content = [dict(block) for block in p["content"] if not _is_empty(block)]
        for block in content:
            if block.get("type") == "tool_use":
                self.unanswered[block["id"]] = (p["call"], block["name"])
        if p["stop_reason"] == "refusal":
            content = [{"type": "text", "text": REFUSED}]
        self._add("assistant", [(seq, block) for block in content or [{"type": "text", "text": NOTHING_TO_SAY}]])

    def _tool_answered(self, seq: int, p: Mapping[str, Any]) -> None:
        if self.unanswered.pop(p["tool_use_id"], None) is None:
            return  # a second answer is none
        if self.turns and not any(b.get("id") == p["tool_use_id"] for b in self.turns[-1].blocks):
            return  # of a refused answer, whose calls are not repeated to the model
        content = p["content"] if p["content"] else NOTHING_TO_SAY
        block = {"type": "tool_result", "tool_use_id": p["tool_use_id"], "content": content}
        self._wait(seq, {**block, **({"is_error": True} if p.get("is_error") else {})})

    def _notice_raised(self, seq: int, p: Mapping[str, Any]) -> None:
        self.notices[p["id"]] = p
        self._told[p["id"]] = p

    def _notice_delivered(self, seq: int, p: Mapping[str, Any]) -> None:
        for id in p["ids"]:
            self.notices.pop(id, None)
            self._told.pop(id, None)

    def _compacted(self, seq: int, p: Mapping[str, Any]) -> None:
        through = p["through"]
        self.summary = p["summary"]
        self.turns = [turn for turn in self.turns if turn.seqs[0] > through]
        # What the operator said and the model has not answered is kept word for word.
        self.waiting = [(at, block) for at, block in self.waiting if at > through or block["type"] == "text"]
        self.context = 0

    def _cleared(self, seq: int, p: Mapping[str, Any]) -> None:
        self.cleared = max(self.cleared, p["through"])

    def _child_started(self, seq: int, p: Mapping[str, Any]) -> None:
        self.children[p["child"]] = p

    def _child_reported(self, seq: int, p: Mapping[str, Any]) -> None:
        self.children.pop(p["child"], None)

    def _add(self, role: str, blocks: Iterable[tuple[int, Block]]) -> None:
        listed = list(blocks)
        if not listed:
            return
        if self.turns and self.turns[-1].role == role:
            last = self.turns[-1]
        else:
            last = Turn(role, [], [])
            self.turns.append(last)
        last.blocks += [block for _, block in listed]
        last.seqs += [seq for seq, _ in listed]

    # What follows from it

    @property
    def has_news(self) -> bool:
        """Whether there is something that the model has not heard."""
        return bool(self.waiting or self.notices) or self.stop_reason == "pause_turn"

    def messages(self, tail: Sequence[Block] = (), *, most_notices: int = 50) -> list[dict[str, Any]]:
        """The messages of the next request: all that was said, what is new, the open notices, and `tail` behind it."""
        turns = [Turn(turn.role, turn.blocks, turn.seqs) for turn in self.turns]
        new = [block for _, block in ordered(self.waiting)]
        new += [notice_block(id, notice) for id, notice in list(self.notices.items())[:most_notices]]
        continues = self.stop_reason == "pause_turn" and not new  # sent back as it is, it goes on
        if not continues:
            new += tail
        messages = [{"role": t.role, "content": self._shown(t)} for t in turns]
        if self.summary is not None:
            first = [{"type": "text", "text": f"<summary of the conversation so far>\n{self.summary}\n</summary>"}]
            if messages and messages[0]["role"] == "user":
                messages[0] = {"role": "user", "content": [*first, *messages[0]["content"]]}
            else:
                messages.insert(0, {"role": "user", "content": first})
        if new and messages and messages[-1]["role"] == "user":
            messages[-1] = {"role": "user", "content": [*messages[-1]["content"], *new]}
        elif new:
            messages.append({"role": "user", "content": new})
        return sound(messages)

    def _shown(self, turn: Turn) -> list[Block]:
        return [
            self._stub(block) if seq <= self.cleared else block
            for block, seq in zip(turn.blocks, turn.seqs, strict=True)
        ]

    @staticmethod
    def _stub(block: Block) -> Block:
        size = result_size(block)
        if size <= CLEARED_OVER:
            return block
        return {**block, "content": f"[cleared: {size:,} characters; call the tool again if they are needed]"}

    def clearable(self, keep_turns: int) -> tuple[int, int, int]:
        """What clearing all but the newest turns would do: `through`, the number of results, their characters."""
        old = self.turns[:-keep_turns] if keep_turns else self.turns
        sizes = [
            (seq, result_size(block))
            for turn in old
            for block, seq in zip(turn.blocks, turn.seqs, strict=True)
            if seq > self.cleared and result_size(block) > CLEARED_OVER
        ]
        return max((seq for seq, _ in sizes), default=0), len(sizes), sum(size for _, size in sizes)


def sound(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with every call answered once, first in the next message, and no answer without a call.

    Logs of our own are so already. One that another program wrote and broke off need not be.
    """
    made: list[dict[str, Any]] = []
    calls: list[str] = []
    for message in messages:
        blocks = list(message["content"])
        if message["role"] == "user":
            results: dict[str, Block] = {}
            for block in blocks:
                if block["type"] == "tool_result" and block["tool_use_id"] in calls:
                    results.setdefault(block["tool_use_id"], block)
            rest = [block for block in blocks if block["type"] != "tool_result"]
            blocks = [results.get(id) or _lost(id) for id in calls] + rest
        elif calls:
            made.append({"role": "user", "content": [_lost(id) for id in calls]})
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if blocks:
            made.append({"role": message["role"], "content": blocks})
    if calls:
        made.append({"role": "user", "content": [_lost(id) for id in calls]})
    if made and made[0]["role"] != "user":
        made.insert(0, {"role": "user", "content": [{"type": "text", "text": NO_BEGINNING}]})
    return made


def _lost(id: str) -> Block:
    return {
        "type": "tool_result",
        "tool_use_id": id,
        "content": "The result of this call is not known.",
        "is_error": True,
    }


def ordered(waiting: Iterable[tuple[int, Block]]) -> list[tuple[int, Block]]:
    """Tool results first, as the API wants; both kinds in the order of the log."""
    return sorted(waiting, key=lambda entry: (entry[1]["type"] != "tool_result", entry[0]))


def notice_block(id: str, notice: Mapping[str, Any]) -> Block:
    """A notice as the model reads it. What hosts said is data within it, and is marked as such."""
    data = notice.get("data")
    inner = f"\n<data>{defused(json.dumps(data, ensure_ascii=False))}</data>" if data else ""
    return {"type": "text", "text": f'<notice id="{id}">\n{defused(notice["text"])}{inner}\n</notice>'}


def defused(text: str) -> str:
    """Text from a host or page that is to stand in a marked block: it cannot close the block or open another one."""
    for name in ("notice", "data", "output", "state", "summary", "report"):
        text = text.replace(f"</{name}", f"<\\/{name}").replace(f"<{name}", f"<\\{name}")
    return text


def result_size(block: Block) -> int:
    """Characters of a tool result; 0 for any other block."""
    if block.get("type") != "tool_result":
        return 0
    content = block.get("content") or ""
    return len(content) if isinstance(content, str) else sum(len(part.get("text", "")) for part in content)


def _is_empty(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "text" and not str(block.get("text", "")).strip()


_HANDLERS = {
    "operator.said": Transcript._said,
    "model.asked": Transcript._model_asked,
    "model.failed": Transcript._model_failed,
    "model.answered": Transcript._model_answered,
    "tool.answered": Transcript._tool_answered,
    "notice.raised": Transcript._notice_raised,
    "notice.delivered": Transcript._notice_delivered,
    "conversation.compacted": Transcript._compacted,
    "conversation.cleared": Transcript._cleared,
    "child.started": Transcript._child_started,
    "child.reported": Transcript._child_reported,
}
