"""Claude Code transcripts: `<session>.jsonl`, its subagents' files beside it, and what they become in our log.

Format read in versions 1.0 to 2.1 (2025 and 2026). One API message is split over several records that share
`message.id`; its usage is repeated in each, and only the last is final. The order is that of `claude_order.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from state import conversation as talk
from state.foreign.claude_files import Beside, agent_call, agent_files, text_or_blocks, usage_of
from state.foreign.claude_order import Agent, Index
from state.foreign.claude_text import (
    INTERRUPTS,
    NOTIFICATION,
    as_said,
    content_of,
    failure_of,
    is_put_in,
    notification,
    queued_text,
    seconds,
    text_of,
    type_of,
)
from state.foreign.damage import whole_number
from state.foreign.lines import WATCHED, Lines
from state.foreign.story import Found, Story, first_line

FORMAT = "claude-code"
FIRST_PASS = 0.3
_TITLES = ("custom-title", "ai-title", "summary")
_REPORTED = ("totalDurationMs", "totalTokens", "totalToolUseCount")
_STATUS = {"completed": "completed", "success": "completed", "killed": "cancelled", "cancelled": "cancelled"}


def sessions(path: Path) -> list[Found]:
    """The one session of a transcript; its subagents are found when it is told."""
    return [Found(path.stem, FORMAT, str(path), lambda story: tell_file(path, story))]


def tell_file(path: Path, story: Story, *, agent: str | None = None, beside: Beside | None = None) -> None:
    """Read a transcript into the story. `agent` names the subagent whose file it is."""
    lines = Lines(path, story.losses, share=FIRST_PASS)
    with closing(lines):
        index = Index(lines, story.losses, agent_file=agent is not None)
        known = beside or Beside(agent_files(path, index.facts.get("sessionId")))
        _Teller(story, index, str(path), known, agent=agent).run()


class _Teller:
    """Tells the records of one file, or of one subagent within a file."""

    def __init__(
        self,
        story: Story,
        index: Index,
        origin: str,
        beside: Beside,
        *,
        agent: str | None = None,
        within: Agent | None = None,
    ) -> None:
        self.story, self.index, self.lines, self.origin = story, index, index.lines, origin
        self.agent, self.within, self.beside = agent, within, beside
        self.agents = {} if within else self._agents()
        self.agent_of = {a.call: key for key, a in self.agents.items() if a.call}
        self._told: set[int] = set()
        self._started: dict[str, None] = {}
        self._reported: set[str] = set()
        self._notices: list[str] = []
        self._compaction: Mapping[str, Any] | None = None
        self._before = (0, 0)
        self._begun: dict[int, int] = {}
        self._queued = {} if within else self._queue()

    # The whole

    def run(self) -> None:
        index = self.index
        numbers = self.within.numbers if self.within else index.order
        began = seconds(index.first_time)
        if self.within:
            began = next((t for n in numbers if (t := seconds(self._value(n).get("timestamp"))) is not None), began)
        self.story.begin(began, self._title(), self.origin, agent=self.agent, **self._facts())
        for place, number in enumerate(numbers):
            if place % WATCHED == 0:
                self.story.losses.watch(FIRST_PASS + (1 - FIRST_PASS) * place / len(numbers))
            if number in index.left:
                self._left(number)
            else:
                self._record(number)
        self._end_of_compaction()
        self._tell_agents()
        self.story.end()
        self.story.counts.records = len(numbers) if self.within else index.records
        if not self.within and self.index.lines.whole_end is False and not len(self.index.lines):
            self.story.losses.add(self.lines.name, "no whole record in this file")

    def _facts(self) -> dict[str, Any]:
        names = {"sessionId": "foreign_id", "cwd": "folder", "version": "version", "gitBranch": "branch"}
        return {ours: self.index.facts.get(theirs) for theirs, ours in names.items()}

    def _title(self) -> str:
        if self.within:
            return first_line(self.within.prompt) or self.within.key
        titles = self.index.titles
        named = next((titles[kind] for kind in _TITLES if titles.get(kind)), None)
        prompt = as_said(self.index.first_prompt)
        return first_line(named or prompt or str(self.index.facts.get("slug") or Path(self.origin).stem))

    def _value(self, number: int) -> Mapping[str, Any]:
        value = self.lines.value(number)
        if self.within is not None and self.within.nested:
            inner = value["data"]["message"]
            return {"timestamp": value.get("timestamp"), **inner}
        return value

    def _record(self, number: int) -> None:
        if number in self._told:
            return
        value = self._value(number)
        time, place = seconds(value.get("timestamp")), self.lines.place(number)
        self._begun[number] = self.story.seq + 1
        match type_of(value):
            case "assistant":
                self._assistant(number, value, time, place)
            case "user":
                self._user(value, time, place)
            case "system":
                self._system(number, value, time, place)
            case "queue-operation":
                self._queue_operation(number, time, place, value)
            case "attachment":
                self._attachment(value, time, place)
            case "summary" | "custom-title" | "ai-title":
                pass  # they became the title
            case "progress" if self._is_of_agent(value):
                pass  # told in the subagent's own session
            case _:
                self.story.foreign(time, place, value)

    def _is_of_agent(self, value: Mapping[str, Any]) -> bool:
        data = value.get("data")
        return isinstance(data, Mapping) and data.get("type") == "agent_progress" and data.get("agentId") in self.agents

    def _left(self, number: int) -> None:
        """A record on a branch that the operator left: kept, and not part of what a model sees."""
        value = self.lines.value(number)
        self.story.counts.inactive += 1
        why = {"inactive": "on a branch that was left: the conversation went on from an earlier message", **value}
        self.story.foreign(seconds(value.get("timestamp")), self.lines.place(number), why)

    # The model

    def _assistant(self, number: int, value: Mapping[str, Any], time: float | None, place: str) -> None:
        rows = self._rows(number, value)
        self._told.update(rows)
        values = [value, *(self._value(n) for n in rows if n != number)]
        messages = [v["message"] for v in values if isinstance(v.get("message"), Mapping)]
        last = messages[-1] if messages else {}
        blocks: list[Mapping[str, Any]] = []
        for each in values:
            blocks += [block for block in content_of(each) if block not in blocks]
        self.story.counts.messages += 1
        if value.get("isApiErrorMessage") or last.get("model") == "<synthetic>":
            text = text_of(blocks)
            call = str(last.get("id") or value.get("uuid") or number)
            self.story.add(time, talk.model_failed(call, failure_of(text), text or "no text", attempt=1))
            return
        self._settle(time)
        call = str(last.get("id") or value.get("requestId") or value.get("uuid") or f"record {number}")
        self.story.answered(
            time, call, blocks, place=place, model=last.get("model"),
            stop_reason=next((m["stop_reason"] for m in reversed(messages) if m.get("stop_reason")), None),
            usage=usage_of(messages), cost=value.get("costUSD"),
        )  # fmt: skip
        self._deliver(time, call)
        for block in blocks:
            if block.get("type") == "tool_use" and (key := self.agent_of.get(str(block.get("id")))) is not None:
                self._start(time, key, str((block.get("input") or {}).get("description") or ""), block.get("input"))

    def _rows(self, number: int, value: Mapping[str, Any]) -> list[int]:
        if self.within is not None and self.within.nested:
            return [number]
        message = value.get("message")
        id = message.get("id") if isinstance(message, Mapping) else None
        rows = self.index.rows_of.get(hash((str(id), self.within is not None))) if id is not None else None
        return rows if rows and number in rows else [number]

    def _settle(self, time: float | None) -> None:
        """Before the next answer every call has one, except those whose result stands further on in the file."""
        answered = self.index.answered
        self.story.settle(time, but=lambda id: self._is_ahead(answered.get(hash(str(id)))))

    def _is_ahead(self, number: int | None) -> bool:
        return number is not None and number not in self._begun

    # The operator, and what comes in the operator's name

    def _user(self, value: Mapping[str, Any], time: float | None, place: str) -> None:
        self.story.counts.messages += 1
        blocks = content_of(value)
        if value.get("isCompactSummary"):
            self._compacted(time, text_of(blocks))
            return
        for block in blocks:
            if block.get("type") == "tool_result":
                self._result(block, value, time, place)
        rest = [block for block in blocks if block.get("type") != "tool_result"]
        text = text_of(rest)
        others = [block for block in rest if block.get("type") != "text"]
        if value.get("isMeta") or (text and is_put_in(text)):
            self.story.foreign(time, place, value)
            return
        if text.startswith(INTERRUPTS):
            self.story.add(time, talk.model_failed("", "interrupted", text, attempt=1))
        elif text.startswith(NOTIFICATION):
            self._notice(time, text)
        elif text:
            if not any(block.get("type") == "tool_result" for block in blocks):
                self._settle(time)
            self.story.said(time, as_said(text))
        for block in others:
            self.story.foreign(time, place, block)

    def _result(self, block: Mapping[str, Any], value: Mapping[str, Any], time: float | None, place: str) -> None:
        id = str(block.get("tool_use_id"))
        told = value.get("toolUseResult")
        told = told if isinstance(told, Mapping) else {}
        whole = None
        if told.get("persistedOutputPath"):
            whole = {"bytes": told.get("persistedOutputSize"), "where": told["persistedOutputPath"]}
        is_error = bool(block.get("is_error"))
        self.story.result(time, id, block.get("content"), place=place, is_error=is_error, whole=whole, raw=value)
        key = self.agent_of.get(id)
        if key is not None and told.get("status") not in ("async_launched", "remote_launched"):
            report = {"text": text_or_blocks(block.get("content")), **{k: told[k] for k in _REPORTED if k in told}}
            self._report(time, key, "failed" if is_error else "completed", report)

    # The system, the queue

    def _system(self, number: int, value: Mapping[str, Any], time: float | None, place: str) -> None:
        match value.get("subtype"):
            case "compact_boundary":
                self._end_of_compaction()
                self._compaction = value
                self._before = (self.story.seq, number)
            case "api_error":
                error = value.get("error")
                text = str(error.get("message") or error) if isinstance(error, Mapping) else str(error or "no text")
                again = value.get("retryInMs")
                attempt = whole_number(value.get("retryAttempt")) or 1
                wait = again / 1000 if isinstance(again, int | float) else None
                self.story.add(time, talk.model_failed("", failure_of(text), text, attempt=attempt, retry_in_s=wait))
            case _:
                self.story.foreign(time, place, value)

    def _compacted(self, time: float | None, summary: str) -> None:
        """The summary stands for everything before the boundary, but for the messages that were kept."""
        through = self._before[0] if self._compaction is not None else self.story.seq
        if self._compaction is not None:
            kept, _ = self.index.kept(self._compaction)
            if kept and kept[0] in self._begun:
                through = min(through, self._begun[kept[0]] - 1)
        self._compaction = None
        self.story.add(time, talk.conversation_compacted(summary, through))

    def _end_of_compaction(self) -> None:
        """A boundary whose summary never came: nothing stands for what was before it."""
        if self._compaction is not None:
            self.story.foreign(None, self.lines.place(self._before[1]), self._compaction)
            self._compaction = None

    def _queue(self) -> dict[int, str]:
        """The queue operations whose text stands nowhere else, with that text."""
        shown: dict[int, str] = {}
        waiting: list[tuple[int, str]] = []
        said = self.index.said
        for number, operation, text in self.index.queue:
            if operation == "enqueue":
                if hash(text) not in said or text.startswith(NOTIFICATION):
                    waiting.append((number, text))
                continue
            place = next((i for i, (_, queued) in enumerate(waiting) if not text or queued == text), None)
            queued = waiting.pop(place)[1] if place is not None else ""
            if operation in ("remove", "dequeue") and hash(text or queued) not in said:
                shown[number] = text or queued
            elif operation in ("remove", "dequeue") and queued.startswith(NOTIFICATION):
                shown[number] = queued
        shown.update(waiting)
        return {number: text for number, text in shown.items() if text}

    def _queue_operation(self, number: int, time: float | None, place: str, value: Mapping[str, Any]) -> None:
        text = self._queued.get(number)
        if text is None:
            return  # it stands in the conversation, or was taken back
        if text.startswith(NOTIFICATION):
            self._notice(time, text)
        else:
            self.story.counts.messages += 1
            self.story.said(time, as_said(text), queued=True)

    def _attachment(self, value: Mapping[str, Any], time: float | None, place: str) -> None:
        attached = value.get("attachment")
        if not isinstance(attached, Mapping) or attached.get("type") != "queued_command":
            self.story.foreign(time, place, value)
            return
        text = queued_text(attached.get("prompt"))
        if text.startswith(NOTIFICATION):
            self._notice(time, text)
        else:
            self.story.counts.messages += 1
            self.story.said(time, as_said(text), queued=True)

    def _notice(self, time: float | None, text: str) -> None:
        """A background task has something to tell. Told twice (queue and conversation), it is one notice."""
        facts = notification(text)
        task = facts.get("task-id") or f"n{self.story.seq + 1}"
        id = f"{task}.{facts.get('status') or 'told'}"
        if id not in self._reported:
            self._reported.add(id)
            about = {"child": self.story.id_of(task)} if task in self.agents else {"job": task}
            self.story.add(time, talk.notice_raised(id, text, about=about, data=facts or None, actor="import"))
            self._notices.append(id)
        if task in self.agents and facts.get("status"):
            self._report(time, task, _STATUS.get(facts["status"], "failed"), {"text": facts.get("summary", "")})

    def _deliver(self, time: float | None, call: str) -> None:
        if self._notices:
            self.story.add(time, talk.notice_delivered(self._notices, call))
            self._notices = []

    # Subagents

    def _agents(self) -> dict[str, Agent]:
        """The subagents whose own records are there: in files beside this one, or within it."""
        files = self.beside.files
        agents = {key: agent for key, agent in self.index.agents.items() if agent.numbers or key in files}
        for key in [key for key in files if key != self.agent]:
            agent = agents.setdefault(key, Agent(key))
            agent.call = agent.call or agent_call(files[key])
        for agent in agents.values():
            if agent.call is None and agent.numbers and not agent.nested:
                agent.call = self.index.agent_calls.get(agent.prompt)
        for key, agent in self.index.agents.items():
            if agent.call and key not in agents:
                self.story.losses.add(self.lines.name, f"the records of the subagent `{key}` are not beside this file")
        return agents

    def _start(self, time: float | None, key: str, title: str, given: Any = None) -> None:
        if key in self._started or key in self.beside.claimed:
            return
        self._started[key] = None
        self.beside.claimed.add(key)
        prompt = str(given.get("prompt") or "") if isinstance(given, Mapping) else self.agents[key].prompt
        self.story.child_started(time, key, title=title or first_line(prompt) or key, prompt=prompt)

    def _tell_agents(self) -> None:
        """The subagents that were started; then, of a session, those that nobody is known to have started."""
        told: set[str] = set()
        for last in (False, True):
            if last and self.agent is None:
                for key in [key for key in self.agents if key not in self._started]:
                    self._start(None, key, "")
            for key in [key for key in self._started if key not in told]:
                told.add(key)
                self.story.child(Found(key, FORMAT, self.origin, self._agent_told(key)))

    def _agent_told(self, key: str) -> Callable[[Story], None]:
        path, agent = self.beside.files.get(key), self.agents[key]
        if path is not None:
            return lambda story: tell_file(path, story, agent=key, beside=self.beside)
        return lambda story: _Teller(story, self.index, self.origin, self.beside, agent=key, within=agent).run()

    def _report(self, time: float | None, key: str, status: str, report: Mapping[str, Any]) -> None:
        if f"report {key}" not in self._reported and key in self._started:
            self._reported.add(f"report {key}")
            self.story.child_reported(time, key, status, report)
