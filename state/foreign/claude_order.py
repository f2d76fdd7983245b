"""The order of a Claude Code transcript: which records there are, which line the conversation took, who is a subagent.

Records form a tree by `parentUuid`, and the tree alone is not enough: one API message is split over several records,
parallel tool results hang side by side, a compaction begins a new root, messages that were kept across it are written
again behind it with a parent that would close a circle, and a file may hold its whole history twice. So the line is
found by walking up from the last record, and then everything that belongs to a message on it is taken in.

Only numbers are kept here, a few dozen bytes for each record; the records are read again when they are told.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from state.foreign.claude_text import content_of, queued_text, text_of, type_of
from state.foreign.damage import Losses
from state.foreign.lines import Lines, Record

LOOSE, PROMPT, RESULT, ASSISTANT, OTHER = range(5)
"""What a record is: beside the chain; words; a tool's result; the model's; anything else within the chain."""

_NONE, _ABSENT, _PHANTOM = -1, -2, -3
_AGENT_TOOLS = ("Task", "Agent")


@dataclass(slots=True)
class Agent:
    """A subagent: its records in this file, and the call that started it."""

    key: str
    numbers: list[int] = field(default_factory=list)
    nested: bool = False
    call: str | None = None
    prompt: str = ""


class Index:
    """What the first pass found. `order` are the records to tell, `left` those of them on branches that were left."""

    def __init__(self, lines: Lines, losses: Losses, *, agent_file: bool = False) -> None:
        self.lines = lines
        self.losses = losses
        self.kind = bytearray()
        self.facts: dict[str, Any] = {}
        self.titles: dict[str, str] = {}
        self.first_time: str | None = None
        self.first_prompt = ""
        self.agents: dict[str, Agent] = {}
        self.agent_calls: dict[str, str] = {}
        self.answered: dict[int, int] = {}
        self.rows_of: dict[int, list[int]] = {}
        self.said: set[int] = set()
        self.queue: list[tuple[int, str, str]] = []
        self.records = 0
        self._agent_file = agent_file
        self._parent = array("q")
        self._seen: dict[int, int] = {}
        self._waiting: dict[int, str] = {}
        self._calls = (array("q"), array("q"))
        self._chain: list[int] = []
        self._side = bytearray()
        self._side_parent: dict[int, str] = {}
        self._side_keys: dict[int, str] = {}
        self._unnamed: set[str] = set()
        self._boundaries: dict[int, Mapping[str, Any]] = {}
        self._repeats: list[tuple[int, int, bool]] = []
        for record in lines:
            self._take(record)
        self._tell_repeats()
        self._resolve()
        self.order, self.left = self._line()

    # The first pass

    def _take(self, record: Record) -> None:
        value = record.value
        number = record.number
        uuid = value.get("uuid")
        self.kind.append(LOOSE)
        self._side.append(0)
        self._parent.append(_ABSENT)
        if isinstance(uuid, str):
            first = self._seen.setdefault(hash(uuid), number)
            if first != number:
                self._repeats.append((number, first, self.lines.value(first) == value))
                self._side[number] = 2
                return
        self.records += 1
        self._facts_of(value)
        type = type_of(value)
        if type in ("user", "assistant") or isinstance(uuid, str):
            self._link(number, value)
            self._classify(number, type, value)
        elif type == "queue-operation":
            self.queue.append((number, str(value.get("operation")), queued_text(value.get("content"))))
        elif type in ("summary", "custom-title", "ai-title"):
            title = value.get("summary") or value.get("customTitle") or value.get("aiTitle")
            self.titles.setdefault(type, str(title or ""))

    def _facts_of(self, value: Mapping[str, Any]) -> None:
        if self.first_time is None and isinstance(value.get("timestamp"), str):
            self.first_time = value["timestamp"]
        for name in ("sessionId", "cwd", "version", "gitBranch", "slug"):
            if name not in self.facts and isinstance(value.get(name), str):
                self.facts[name] = value[name]

    def _link(self, number: int, value: Mapping[str, Any]) -> None:
        if value.get("isSidechain") and not self._agent_file:
            self._side[number] = 1
            self._side_parent[number] = str(value.get("parentUuid") or "")
            return
        if "parentUuid" in value:
            parent = value["parentUuid"] or value.get("logicalParentUuid")
            self._parent[number] = _NONE
            if parent:
                self._waiting[number] = str(parent)
        self._chain.append(number)

    def _classify(self, number: int, type: Any, value: Mapping[str, Any]) -> None:
        self.kind[number] = OTHER
        blocks = content_of(value)
        if type == "assistant":
            self._assistant(number, value, blocks)
        elif type == "user":
            self._user(number, value, blocks)
        elif type == "system" and value.get("subtype") == "compact_boundary":
            self._boundaries[number] = value
        elif type == "progress":
            self._progress(number, value)
        elif type == "attachment":
            attached = value.get("attachment")
            if isinstance(attached, Mapping) and attached.get("type") == "queued_command":
                self.said.add(hash(queued_text(attached.get("prompt"))))
        if self._side[number] == 1:
            self._of_agent(number, value, blocks)

    def _assistant(self, number: int, value: Mapping[str, Any], blocks: list[Any]) -> None:
        self.kind[number] = ASSISTANT
        message = value.get("message")
        id = message.get("id") if isinstance(message, Mapping) else None
        if id is not None:
            self.rows_of.setdefault(hash((str(id), bool(self._side[number]))), []).append(number)
        for block in blocks:
            if block.get("type") == "tool_use":
                self._calls[0].append(hash(str(block.get("id"))))
                self._calls[1].append(number)
                given = block.get("input")
                if block.get("name") in _AGENT_TOOLS and isinstance(given, Mapping):
                    self.agent_calls.setdefault(str(given.get("prompt") or ""), str(block.get("id")))

    def _user(self, number: int, value: Mapping[str, Any], blocks: list[Any]) -> None:
        results = [block for block in blocks if block.get("type") == "tool_result"]
        self.kind[number] = RESULT if results else PROMPT
        for block in results:
            self.answered.setdefault(hash(str(block.get("tool_use_id"))), number)
        told = value.get("toolUseResult")
        named = told.get("agentId") if isinstance(told, Mapping) else None
        if not self._side[number] and not self._agent_file:
            named = named or value.get("agentId")
        if results and named:
            self._agent(str(named)).call = str(results[0].get("tool_use_id"))
        if not results and not self._side[number]:
            text = text_of(blocks)
            self.said.add(hash(text))
            if not self.first_prompt and not value.get("isMeta") and not text.startswith("<"):
                self.first_prompt = text[:400]

    def _progress(self, number: int, value: Mapping[str, Any]) -> None:
        data = value.get("data")
        if isinstance(data, Mapping) and data.get("type") == "agent_progress" and data.get("agentId"):
            agent = self._agent(str(data["agentId"]))
            agent.call = agent.call or value.get("parentToolUseID") or None
            if isinstance(data.get("message"), Mapping) and (agent.nested or not agent.numbers):
                agent.nested = True
                agent.numbers.append(number)

    def _of_agent(self, number: int, value: Mapping[str, Any], blocks: list[Any]) -> None:
        """A record of a subagent in its caller's own file. One that does not name it is of the one before."""
        parent = self._side_parent[number]
        before = self._seen.get(hash(parent)) if parent else None
        if parent and before is None and self._side_keys:
            before = next(reversed(self._side_keys))
            told = f"its parent `{parent}` is in no record: taken to follow the subagent's record before it"
            self.losses.add(self.lines.place(number), told)
        group = self._side_keys.get(before) if before is not None else None
        key = str(value.get("agentId") or group or value.get("uuid"))
        if group in self._unnamed and key != group:
            self._rename(str(group), key)
        elif group is None and not value.get("agentId"):
            self._unnamed.add(key)
        self._side_keys[number] = key
        agent = self._agent(key)
        if agent.nested:
            agent.nested, agent.numbers = False, []
        if not agent.numbers:
            agent.prompt = text_of(blocks)
        agent.numbers.append(number)

    def _rename(self, group: str, key: str) -> None:
        """What was known by its first record only has told its name."""
        self._unnamed.discard(group)
        old, agent = self.agents.pop(group), self._agent(key)
        agent.numbers = [*old.numbers, *agent.numbers]
        agent.prompt, agent.call = old.prompt, agent.call or old.call
        for number in old.numbers:
            self._side_keys[number] = key

    def _agent(self, key: str) -> Agent:
        return self.agents.setdefault(key, Agent(key))

    def _tell_repeats(self) -> None:
        """Records that stand in the file again: one line for a run of equal ones, one for each that differs."""
        run: list[int] = []
        for number, first, equal in [*self._repeats, (-1, -1, True)]:
            if run and (number != run[-1] + 1 or not equal):
                where = self.lines.place(run[0])
                self.losses.add(where, f"{len(run)} records that were read before stand here again; the first counts")
                run = []
            if number >= 0 and equal:
                run.append(number)
            elif number >= 0:
                differs = f"has the uuid of {self.lines.place(first)} and differs from it; the first counts"
                self.losses.add(self.lines.place(number), differs)

    # The tree

    def _resolve(self) -> None:
        """Every record of the chain gets the number of the one before it in the tree, -1 at the beginning."""
        before = _NONE
        for number in self._chain:
            name = self._waiting.get(number)
            if name is None:
                self._parent[number] = before
            else:
                parent = self._seen.get(hash(name), _PHANTOM)
                if parent in (_PHANTOM, number) or self._side[parent]:
                    if before != _NONE or parent == number:
                        told = f"its parent `{name}` is in no record: taken to follow the record before it"
                        self.losses.add(self.lines.place(number), told)
                    parent = before
                self._parent[number] = parent
            before = number
        for number, value in self._boundaries.items():
            self._relink(number, value)

    def _relink(self, boundary: int, value: Mapping[str, Any]) -> None:
        """Messages that were kept across a compaction hang on its summary: put them back where they came from."""
        kept, anchor = self.kept(value)
        if not kept:
            return
        before = boundary - 1
        while before in kept or (before >= 0 and not self._in_chain(before)):
            before -= 1
        for place, number in enumerate(kept):
            if self._parent[number] == anchor or self._parent[number] == boundary:
                self._parent[number] = kept[place - 1] if place else before
        if anchor is not None:
            for number in self._chain:
                if number > boundary and number not in kept and self._parent[number] == kept[-1]:
                    self._parent[number] = anchor

    def _in_chain(self, number: int) -> bool:
        return self._parent[number] != _ABSENT and self._side[number] == 0

    def kept(self, value: Mapping[str, Any]) -> tuple[list[int], int | None]:
        """The numbers of the messages that a compaction kept, in order, and of the summary they were hung on."""
        meta = value.get("compactMetadata")
        meta = meta if isinstance(meta, Mapping) else {}
        listed, segment = meta.get("preservedMessages"), meta.get("preservedSegment")
        if isinstance(listed, Mapping) and isinstance(listed.get("uuids"), list):
            names = listed["uuids"]
            anchor = listed.get("anchorUuid")
        elif isinstance(segment, Mapping):
            names, anchor = self._segment(segment), segment.get("anchorUuid")
        else:
            return [], None
        numbers = [self._seen[hash(str(name))] for name in names if hash(str(name)) in self._seen]
        return numbers, self._seen.get(hash(str(anchor))) if anchor else None

    def _segment(self, segment: Mapping[str, Any]) -> list[str]:
        names: list[str] = []
        head, name = segment.get("headUuid"), segment.get("tailUuid")
        while name is not None and name not in names:
            names.append(name)
            number = self._seen.get(hash(str(name)))
            name = None if name == head or number is None else self._waiting.get(number)
        return names[::-1]

    # The line

    def _line(self) -> tuple[list[int], set[int]]:
        path = self._path()
        active = bytearray(len(self.kind))
        for number in path:
            active[number] = 1
        for rows in self.rows_of.values():
            if any(active[number] for number in rows):
                for number in rows:
                    active[number] = 1
        for call, number in zip(*self._calls, strict=True):
            result = self.answered.get(call)
            if active[number] and result is not None:
                active[result] = 1
        left = self._left(path, active)
        moved = self._moved()
        told = [n for n in range(len(self.kind)) if self._side[n] == 0]
        told.sort(key=lambda n: moved.get(n, (n, 0)))
        return told, left

    def _path(self) -> list[int]:
        """From the last record to the first. A circle is broken where it closes."""
        path: list[int] = []
        on = set()
        number = self._chain[-1] if self._chain else _NONE
        while number >= 0:
            path.append(number)
            on.add(number)
            parent = self._parent[number]
            if parent in on:
                parent = next((n for n in reversed(self._chain) if n < min(on)), _NONE)
                self.losses.add(self.lines.place(number), "its parents lead back to it: taken to follow the one before")
            number = parent
        return path

    def _left(self, path: Iterable[int], active: bytearray) -> set[int]:
        """Records on branches that were left: where the operator went back and asked again, or had an answer redone."""
        replaced: dict[int, int] = {}
        kind = OTHER
        for number in path:
            if self.kind[number] in (PROMPT, RESULT, ASSISTANT):
                kind = self.kind[number]
            replaced[self._parent[number]] = kind
        state: dict[int, bool] = {}
        for start in self._chain:
            trail: dict[int, None] = {}
            number = start
            while number >= 0 and not active[number] and number not in state and number not in trail:
                trail[number] = None
                number = self._parent[number]
            gone = state.get(number, False)
            for below in reversed(trail):
                parent = self._parent[below]
                if not gone and (parent < 0 or active[parent]):
                    gone = self.kind[below] in (PROMPT, ASSISTANT) and replaced.get(parent) == self.kind[below]
                state[below] = gone
        return {number for number, gone in state.items() if gone}

    def _moved(self) -> dict[int, tuple[int, int]]:
        """Records whose place in the file is behind one that follows them: where they belong."""
        moved: dict[int, tuple[int, int]] = {}
        for number in self._chain:
            place, at = moved.get(number, (number, 0)), number
            for _ in range(len(self._chain)):
                parent = self._parent[at]
                if parent < 0 or moved.get(parent, (parent, 0)) < place:
                    break
                place = (place[0], place[1] - 1)
                moved[parent] = place
                at = parent
        return moved
