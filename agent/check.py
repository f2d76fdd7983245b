"""Today's code against a recorded session: the recorded answers are fed to it, and what it makes of them is compared.

    verdict = check(messages)                   # of one session, in the order of its log
    verdict.difference                          # the first message that differs, or `None`

What came from outside is taken from the recording: what hosts, tools, models and the operator said, when, and what
there was room for. What follows from it is made again by the core (`agent/core.py`) and, of the conversation, by the
transcript that the planner speaks from. Nothing is touched: no host, no file, no clock, no network; the same log gives
the same verdict on any machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from agent.check_edits import Edits
from agent.check_events import Step, event_of, failed_ops, spec_of, steps
from agent.check_state import PYTHON, RecordedState, filled, learn, took
from agent.check_talk import TalkCheck
from agent.core import Core
from agent.events import Add, Edit, Event
from state.changes import Change
from state.errors import ToolError, UsageError
from state.models import Message

CREATION = ("todo.added", "todo.linked")
SHOWN = 600


@dataclass(frozen=True, slots=True)
class Difference:
    """The first message that differs. `today` is `None` where the code now says nothing, `recorded` where it adds."""

    seq: int
    recorded: Mapping[str, Any] | None
    today: Mapping[str, Any] | None
    cause: str

    def as_json(self) -> dict[str, Any]:
        return {"seq": self.seq, "recorded": self.recorded, "today": self.today, "cause": self.cause}

    def lines(self) -> list[str]:
        """For a person: both versions and why."""
        return [
            f"message {self.seq} differs",
            f"  recorded: {_shown(self.recorded)}",
            f"  today:    {_shown(self.today)}",
            f"  cause:    {self.cause}",
        ]


@dataclass(slots=True)
class Verdict:
    """What a check found. `compared` of the `messages` were made again; `notes` are what it could not look at."""

    session: str
    messages: int = 0
    compared: int = 0
    difference: Difference | None = None
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        told = {"session": self.session, "messages": self.messages, "compared": self.compared}
        return {**told, "difference": self.difference.as_json() if self.difference else None, "notes": self.notes}


def check(messages: Sequence[Message]) -> Verdict:
    """Compare until the first difference. Raises `UsageError` for a log without a beginning."""
    again = Again(messages)
    verdict = Verdict(again.session, len(messages))
    with closing(again):
        for step, today in again.run():
            verdict.compared += 0 if isinstance(today, Difference) else len(step.messages)
            verdict.difference = compare(step, today, again)
            if verdict.difference is not None:
                break
    verdict.compared += again.requests
    verdict.notes = again.notes
    return verdict


class Again:
    """Steps through a recording, with today's code: each recorded step beside what today's code makes of its event.

    `begin` is the number of messages that made the session. `log`, where it is set, is what a resume reads instead of
    the recording: the log as it is written anew.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        if not messages or messages[0].kind != "session.created":
            raise UsageError("the log does not begin with `session.created`", hint="it was cut: export it again")
        self.messages = messages
        self.session = messages[0].session
        self.event: Event | None = None
        self.notes: list[str] = []
        self.log: list[Message] | None = None
        self._has_core = messages[0].payload["kind"] != "subagent"  # whose session is nothing but a conversation
        self._talk = TalkCheck(messages[0].payload["kind"])
        self._edits = Edits(lambda: self.state)
        self.state, self.begin = self._created()
        self.core = Core(self.state)

    @property
    def requests(self) -> int:
        """How many requests to a model were compared."""
        return self._talk.compared

    def close(self) -> None:
        """Nothing more is made again."""
        self._edits.close()

    def _created(self) -> tuple[RecordedState, int]:
        """The state that a session begins with, and how many messages made it."""
        p = self.messages[0].payload
        state = RecordedState(self.session, p["settings"])
        state.thinks = self._thinks(0)
        end = 1
        while end < len(self.messages) and self.messages[end].kind in CREATION and self.messages[end].cause is None:
            q = self.messages[end].payload
            if self.messages[end].kind == "todo.added":
                state.add(spec_of(q), q["position"])
            else:
                state.graph.link(q["src"], q["dst"], q["on"])
            end += 1
        return state, end

    def _thinks(self, start: int) -> bool:
        """Whether a model did the research from here on until the next process took the session over."""
        for message in self.messages[start:]:
            if message.kind == "session.resumed":
                return False
            if message.kind == "child.started" and message.payload.get("todo"):
                return True
        return False

    def run(self, *, all_steps: bool = False) -> Iterator[tuple[Step, list[Change] | Difference | None]]:
        """Every step with today's changes; a difference where a request would be another. With `all_steps` also those
        that are not the core's, with `None`."""
        for step in steps(self.messages[self.begin :]):
            today: list[Change] | None = None
            if step.head.kind == "session.resumed":
                self._resume(step.head.seq - 1)
            is_cores = self._has_core and step.is_cores
            if is_cores:
                self.event = event_of(step, self.state)
                refusal = self._planned(step)
                if refusal is not None:
                    yield step, refusal
                if self.event is not None:
                    self.state.expect(step.messages)
                    today = self.core.step(self.event)
            if today is not None or all_steps:
                yield step, today
            if is_cores and self.event is None:
                self.notes.append(f"message {step.head.seq}: what led to it cannot be told, it is taken as recorded")
                self._resume(step.messages[-1].seq)
            yield from self._spoken(step)

    def _planned(self, step: Step) -> Difference | None:
        """Let today's tools make the edit that a model's call asks for. A difference where they refuse the call."""
        edit = self.event
        if not isinstance(edit, Edit) or edit.actor != "model":
            return None
        named = (op.spec.body.get("call") for op in edit.ops if isinstance(op, Add))
        id = edit.id or next((str(name) for name in named if name), "")
        if id not in self._talk.calls:
            return None
        name, given = self._talk.calls[id]
        try:
            ops = self._edits.ops(name, id, given, edit.ops)
        except ToolError as error:
            refused = {
                "kind": "tool.answered",
                "actor": f"tool:{name}",
                "payload": {"is_error": True, "content": error.message},
            }
            return Difference(
                step.head.seq, told(step.head), refused, f"the model's call `{id}` of `{name}` is refused"
            )
        if ops is not None:
            self.event = replace(edit, ops=ops)
        return None

    def _spoken(self, step: Step) -> Iterator[tuple[Step, Difference]]:
        for message in step.messages:
            today, why = self._talk.take(message)
            if today is not None:
                yield step, Difference(message.seq, told(message), {**told(message), "payload": today}, why)

    def _resume(self, seq: int) -> None:
        """Go on from what is stored up to a message, as a process does that takes the session over."""
        from agent.check_stored import loaded

        fresh = RecordedState(self.session, self.state.settings, pythons=self.state.pythons)
        fresh.thinks = self._thinks(seq + 1)
        stored = self.messages[:seq] if self.log is None else self.log
        self.state = took(loaded(stored, thinks=fresh.thinks), fresh)
        self.core = Core(self.state)


def compare(step: Step, today: list[Change] | Difference | None, again: Again) -> Difference | None:
    """The first difference between what a step recorded and what today's code makes of its event."""
    if today is None or isinstance(today, Difference):
        return today
    why = cause_of(step, again.event)
    recorded = [m for m in step.messages if m.kind != "session.resumed"]
    for place in range(max(len(recorded), len(today))):
        if place >= len(today):
            return Difference(recorded[place].seq, told(recorded[place]), None, why)
        change = as_told(today[place])
        if place >= len(recorded):
            return Difference(step.messages[-1].seq + 1, None, change, why)
        message = recorded[place]
        change = _with_python(message, change, again.state)
        if told(message) != change and not _is_told_otherwise(message, change):
            return Difference(message.seq, told(message), change, why)
    return None


def told(message: Message) -> dict[str, Any]:
    """What of a message is compared."""
    return {"kind": message.kind, "actor": message.actor, "payload": message.payload}


def as_told(change: Change) -> dict[str, Any]:
    """A change in the form in which it is read back: JSON."""
    payload = orjson.loads(orjson.dumps(change.payload, option=orjson.OPT_NON_STR_KEYS))
    return {"kind": change.kind, "actor": change.actor, "payload": payload}


def _with_python(message: Message, change: dict[str, Any], state: RecordedState) -> dict[str, Any]:
    """Learn from the recording which Python a host has, the first time that a command names it."""
    if change["kind"] != "job.submitted" or PYTHON not in orjson.dumps(change["payload"]).decode():
        return change
    python = learn(message.payload, change["payload"])
    if python is None:
        return change
    state.pythons[change["payload"]["host"]] = python
    job = state.jobs.get(change["payload"]["id"])
    if job is not None:
        job.spec = filled(job.spec, python)
    return {**change, "payload": filled(change["payload"], python)}


def _is_told_otherwise(message: Message, change: dict[str, Any]) -> bool:
    """The answer to an edit some of whose ops had failed: those cannot be asked for again, so it is not compared."""
    return message.kind == change["kind"] == "tool.answered" and failed_ops(str(message.payload["content"]))


def cause_of(step: Step, event: Event | None) -> str:
    """What led to a step, in words."""
    name = type(event).__name__
    head = step.head
    about = next((str(head.payload[key]) for key in ("id", "todo", "status") if key in head.payload), "")
    words = {
        "Go": "the session goes on: what may start is started",
        "JobSeen": f"the host's word about job `{about}`",
        "ToolEnded": f"the end of the tool of todo `{about}`",
        "Answered": f"the answer to `{about}`",
        "Cancel": f"todo `{getattr(event, 'todo', about)}` was given up",
        "Reset": "failed todos are to be tried again",
        "Stop": "the operator stopped it",
        "Edit": "an edit of the graph",
    }
    return f"{words.get(name, name)} (message {head.seq}, {head.kind})"


def _shown(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "nothing"
    text = f"{value['kind']} {json.dumps(value['payload'], ensure_ascii=False, sort_keys=True)}"
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
