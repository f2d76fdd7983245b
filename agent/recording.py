"""Recordings: exported sessions kept to be checked, and rewriting one when a change of behaviour is meant.

    read(path) -> {session id: messages}        # the session and its subagents
    accept(path)                                # as today's code would have written it

A rewritten recording holds the recorded answers (of hosts, tools, models, the operator) at their times, and for
everything that follows from them what today's code says. What today's code asks that nobody answered stays open.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.check import Again, Difference, as_told
from agent.check_events import Step
from agent.check_state import PYTHON, filled
from agent.check_talk import TalkCheck
from state import export
from state.changes import Change
from state.errors import UsageError
from state.foreign.damage import Losses
from state.foreign.lines import Lines
from state.models import Message
from state.projection import JOB_ENDED

_NAMES = ("session", "seq", "time", "kind", "actor", "payload", "cause")


def read(path: Path) -> dict[str, list[Message]]:
    """The messages of every session in an export, the main one first.

    Raises `UsageError` for a file that is no export, or is damaged: a recording that is not whole proves nothing.
    """
    if not export.is_export(path):
        raise UsageError(
            f"`{path}` is no session that Turnout exported", hint="`turnout export SESSION -o FILE` makes one"
        )
    losses = Losses()
    exported = export.read(path, losses)
    if losses.lines:
        first = losses.lines[0]
        raise UsageError(f"`{path}` is damaged: {first['place']}: {first['reason']}", hint="record it again")
    lines = Lines(path, Losses())
    with closing(lines):
        for _ in lines:
            pass
        return {
            session: [Message(**{n: value[n] for n in _NAMES}) for value in map(lines.value, numbers)]
            for session, numbers in exported.numbers.items()
        }


@dataclass(slots=True)
class Rewritten:
    """What `accept` did: how many messages of how many differ now. `open_jobs` are those that nobody answered for."""

    messages: int
    changed: int
    open_jobs: list[str]


def accept(path: Path) -> Rewritten:
    """Rewrite a recording with what today's code makes of its answers. Other sessions in it stay as they are."""
    sessions = read(path)
    done = Rewritten(0, 0, [])
    told: dict[str, list[Message]] = {}
    for session, messages in sessions.items():
        again = Again(messages)
        with closing(again):
            told[session] = remade(again)
        done.messages += len(told[session])
        done.changed += _changed(messages, told[session])
        done.open_jobs += [job for job in again.state.jobs if job not in _open_jobs(messages)]
    extras = export.read(path, Losses()).extras
    every = (message for messages in told.values() for message in messages)
    staging = path.with_name(path.name + ".new")
    staging.write_text("".join(export.written(next(iter(sessions)), every, extras=extras)), encoding="utf-8")
    staging.replace(path)
    return done


def _open_jobs(messages: Sequence[Message]) -> set[str]:
    """The jobs that ran when the recording ended."""
    states = {m.payload["id"]: m.payload.get("state") for m in messages if m.kind in ("job.submitted", "job.state")}
    return {job for job, state in states.items() if state not in JOB_ENDED}


def _changed(before: Sequence[Message], after: Sequence[Message]) -> int:
    same = sum(_plain(a) == _plain(b) for a, b in zip(before, after, strict=False))
    return max(len(before), len(after)) - same


def _plain(message: Message) -> tuple[Any, ...]:
    return tuple(getattr(message, name) for name in _NAMES)


def remade(again: Again) -> list[Message]:
    """The whole log as today's code writes it, with the recorded times."""
    return _Remaker(again).run()


class _Remaker:
    """Writes a log anew. What is copied is told anew what it speaks of: numbers of messages, names of notices."""

    def __init__(self, again: Again) -> None:
        self.again = again
        self.log: list[Message] = list(again.messages[: again.begin])
        again.log = self.log
        self._seqs = {message.seq: message.seq for message in self.log}
        self._notices: dict[str, str] = {}
        self._talk = TalkCheck(self.log[0].payload["kind"])

    def run(self) -> list[Message]:
        for message in self.log:
            self._talk.take(message)
        for step, today in self.again.run(all_steps=True):
            if isinstance(today, Difference):
                continue  # told of the recorded conversation; the new one is compared as it is written
            if today is None:
                for message in step.messages:
                    self._copy(message)
            else:
                self._write(step, today)
        return self.log

    def _add(self, message: Message) -> None:
        today, _ = self._talk.take(message)
        self.log.append(message if today is None else _message(message, payload=today))

    def _copy(self, message: Message) -> None:
        """A message as it was recorded, or nothing where nothing is left of what it tells."""
        payload = self._retold(message)
        if payload is None:
            return
        seq = len(self.log) + 1
        self._seqs[message.seq] = seq
        cause = None if message.cause is None else self._seqs.get(message.cause)
        self._add(_message(message, seq=seq, cause=cause, payload=payload))

    def _retold(self, message: Message) -> dict[str, Any] | None:
        p = message.payload
        match message.kind:
            case "model.asked":
                request = {**p["request"], "through": self._moved(p["request"]["through"])}
                request["notices"] = [self._notices.get(id, id) for id in request.get("notices") or ()]
                return {**p, "request": request}
            case "conversation.compacted" | "conversation.cleared":
                return {**p, "through": self._moved(p["through"])}
            case "notice.raised":
                self._notices[p["id"]] = p["id"]
            case "notice.delivered":
                ids = [self._notices[id] for id in p["ids"] if id in self._notices]
                return {**p, "ids": ids} if ids else None
        return p

    def _moved(self, seq: int) -> int:
        """The number that a message has now; of one that is gone, that of the one before it."""
        return self._seqs.get(seq) or max((new for old, new in self._seqs.items() if old <= seq), default=0)

    def _write(self, step: Step, changes: Sequence[Change]) -> None:
        """What today's code says where the recording has this step."""
        first = len(self.log) + 1
        told = [m.payload for m in step.messages if m.kind == "notice.raised"]
        for change in changes:
            value, seq = as_told(change), len(self.log) + 1
            payload = value["payload"]
            if PYTHON in str(payload):
                payload = filled(payload, self.again.state.pythons.get(str(payload.get("host")), "python3"))
            if change.kind == "notice.raised":
                same = next(
                    (p for p in told if (p["about"], p.get("data")) == (payload["about"], payload.get("data"))), None
                )
                self._notices.update({same["id"]: payload["id"]} if same else {})
            cause = None if change.follows is None else seq - change.follows
            self._add(
                Message(
                    session=step.head.session, seq=seq, time=step.head.time, kind=change.kind, actor=change.actor,
                    payload=payload, cause=cause,
                )
            )  # fmt: skip
        for place, message in enumerate(step.messages):
            self._seqs[message.seq] = min(first + place, max(len(self.log), 1))


def _message(m: Message, **values: Any) -> Message:
    return Message(**{**{name: getattr(m, name) for name in _NAMES}, **values})
