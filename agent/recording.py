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
    log: list[Message] = list(again.messages[: again.begin])
    again.log = log
    for step, today in again.run(all_steps=True):
        if isinstance(today, Difference):
            _correct(log, step, today)
        elif today is None:
            log += _copied(log, step.messages)
        else:
            log += _of_changes(log, step, today, again)
    return log


def _copied(log: Sequence[Message], messages: Sequence[Message]) -> list[Message]:
    """Messages as they are, with the numbers that they get now."""
    moved = len(log) + 1 - messages[0].seq
    return [_message(m, seq=m.seq + moved, cause=None if m.cause is None else m.cause + moved) for m in messages]


def _message(m: Message, **values: Any) -> Message:
    return Message(**{**{name: getattr(m, name) for name in _NAMES}, **values})


def _of_changes(log: Sequence[Message], step: Step, changes: Sequence[Change], again: Again) -> list[Message]:
    made: list[Message] = []
    time = step.head.time
    for change in changes:
        seq = len(log) + len(made) + 1
        value = as_told(change)
        python = again.state.pythons.get(str(value["payload"].get("host")), "python3")
        payload = filled(value["payload"], python) if PYTHON in str(value["payload"]) else value["payload"]
        cause = None if change.follows is None else seq - change.follows
        made.append(
            Message(
                session=step.head.session, seq=seq, time=time, kind=change.kind, actor=change.actor, payload=payload,
                cause=cause,
            )
        )  # fmt: skip
    return made


def _correct(log: list[Message], step: Step, difference: Difference) -> None:
    """A request of the conversation as it would be made today."""
    for place in range(len(log) - 1, -1, -1):
        if log[place].kind == "model.asked" and difference.recorded is not None:
            if log[place].payload == difference.recorded["payload"] and difference.today is not None:
                log[place] = _message(log[place], payload=difference.today["payload"])
            return
