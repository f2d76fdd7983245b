"""A session in memory whose outside is the recording: what hosts had room for, which GPUs were free, which Python ran.

Those are answers of machines and of other sessions at that time, like a job's exit code: they are taken from the log
and not computed again. The order in which todos take the room is the code's own and is compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.infos import HostInfo
from agent.state import SessionState
from state.errors import UsageError
from state.models import Message

PYTHON = "turnout-python-of-the-recording"
"""Stands in a rendered command where the host's Python goes, until the recording has said which it was."""


@dataclass
class RecordedState(SessionState):
    """See the module's text. `expect` is told the messages of the next step before the core is."""

    pythons: dict[str, str] = field(default_factory=dict)
    _starting: set[str] = field(default_factory=set)
    _gpus: dict[str, list[int]] = field(default_factory=dict)
    _refusals: dict[str, str] = field(default_factory=dict)
    _slurm: set[str] = field(default_factory=set)
    _popped: str = ""

    def expect(self, messages: Sequence[Message]) -> None:
        """What starts in the next step, and with which GPUs."""
        self._starting.clear()
        self._gpus.clear()
        self._refusals.clear()
        for m in messages:
            p = m.payload
            if (
                m.kind == "todo.status"
                and p["was"] == "pending"
                and p["now"] not in ("skipped", "cancelled", "pending")
            ):
                self._starting.add(p["id"])
                if p["now"] == "failed":
                    self._refusals[p["id"]] = str(p.get("reason") or "")
            elif m.kind == "job.submitted":
                self._gpus[p["todo"]] = list(p["gpus"])
                if p["spec"].get("slurm") is not None:
                    self._slurm.add(p["host"])
        # A pause leaves no trace but that nothing starts; only a session that somebody talks to can be paused.
        self.paused = self.stays and not self._starting
        if any(m.kind == "child.started" and m.payload.get("todo") for m in messages):
            self.thinks = True

    def host(self, name: str) -> HostInfo:
        """Any host: only its Python, and whether Slurm runs its jobs, matter here, and the recording knows both."""
        return HostInfo(name, python=self.pythons.get(name, PYTHON), slurm=name in self._slurm)

    def next_ready(self) -> str | None:
        self._popped = super().next_ready() or ""
        return self._popped or None

    def _has_room(self, queue: tuple[str, str], todo: str) -> bool:
        return queue[0] == "now" or todo in self._starting

    def choose_gpus(self, host: str, want: int | str) -> list[int]:
        """Those of the recording. Where it tells that there were too few, that is what is raised."""
        if not want:
            return []
        if self._popped in self._refusals:
            raise UsageError(self._refusals[self._popped])
        return self._gpus.get(self._popped, [])


def took(state: SessionState, into: RecordedState) -> RecordedState:
    """`into` with everything that `state` holds: a session that was read back, as a resumed process does."""
    for name in state.__dataclass_fields__:
        if name not in ("hosts", "leases", "thinks"):
            setattr(into, name, getattr(state, name))
    return into


def learn(recorded: Any, today: Any) -> str | None:
    """The Python that a recorded command names where today's has the placeholder; `None` if they differ otherwise."""
    if isinstance(today, str) and PYTHON in today and isinstance(recorded, str):
        first, *rest = today.split(PYTHON)
        pattern = re.escape(first) + "(?P<python>.+?)" + "(?P=python)".join(re.escape(piece) for piece in rest)
        found = re.fullmatch(pattern, recorded, re.DOTALL)
        return found["python"] if found else None
    if isinstance(today, Mapping) and isinstance(recorded, Mapping):
        return next((p for k, v in today.items() if (p := learn(recorded.get(k), v)) is not None), None)
    if isinstance(today, list) and isinstance(recorded, list):
        return next((p for r, t in zip(recorded, today, strict=False) if (p := learn(r, t)) is not None), None)
    return None


def filled(value: Any, python: str) -> Any:
    """The value with the placeholder replaced."""
    if isinstance(value, str):
        return value.replace(PYTHON, python)
    if isinstance(value, Mapping):
        return {k: filled(v, python) for k, v in value.items()}
    return [filled(v, python) for v in value] if isinstance(value, list) else value
