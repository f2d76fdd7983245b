"""What a line of a server log can mean: the vocabulary that the tables of signs are written in.

A sign is a literal to look for, a pattern that the line must then match, and what it tells. The tables stand in
`log_marks` (how far a server got), `log_memory`, `log_setup`, `log_model`, `log_install` and `log_runtime` (what went
wrong); `log_scan` finds them, `logs` decides.

    sign = cause("port in use", "address already in use", r"address ..., (?P<port>\\d+)", "stop what listens on {port}")
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial


class Role(Enum):
    """What a sign tells about the run it stands in."""

    START = "a run begins"
    AGAIN = "a run begins if the one before has ended"
    STAGE = "it is on its way up"
    READY = "it takes requests"
    HTTP_UP = "its port is open; enough for vLLM, not for SGLang, which warms up first"
    SERVING = "it works on requests"
    STOP = "it was told to stop"
    FACT = "a number that a remedy wants"
    CAUSE = "why it failed"
    CLUE = "why, in case it failed: by itself it proves nothing"
    SYMPTOM = "that it failed, not why"
    TROUBLE = "a failure unless it works on afterwards"
    EXCEPTION = "an exception of no known kind"


@dataclass(slots=True)
class Facts:
    """Numbers of a run that remedies ask for, by name, and where the run stood."""

    values: dict[str, str] = field(default_factory=dict)
    phase: str = "at start"

    def number(self, name: str) -> float | None:
        return float(self.values[name]) if name in self.values else None


Remedy = str | Callable[[re.Match[str], Facts], str]
Detail = str | Callable[[re.Match[str], Facts], str | None] | None


@dataclass(frozen=True, slots=True)
class Sign:
    """A thing to recognise. `needles` are searched first, byte for byte; one of them must be in the line.

    `any_level`: counts also on lines logged as warning or below. `survivable`: an engine can go on after it, so
    later progress takes it back. `name` is the kind of failure, or the stage.
    """

    role: Role
    name: str
    needles: tuple[bytes, ...]
    pattern: re.Pattern[str] | None = None
    remedy: Remedy = ""
    detail: Detail = None
    any_level: bool = False
    survivable: bool = False

    def matches(self, line: str) -> re.Match[str] | None:
        return self.pattern.search(line) if self.pattern else re.match("", line)


@dataclass(frozen=True, slots=True)
class Hit:
    """A sign found in a line; `line` counts from 1."""

    line: int
    text: str
    sign: Sign
    match: re.Match[str]

    def kind(self, facts: Facts) -> str:
        detail = self.sign.detail(self.match, facts) if callable(self.sign.detail) else self.sign.detail
        return f"{self.sign.name} ({detail})" if detail else self.sign.name

    def remedy(self, facts: Facts) -> str:
        if callable(self.sign.remedy):
            return self.sign.remedy(self.match, facts)
        groups = {name: value or "?" for name, value in self.match.groupdict().items()}
        return self.sign.remedy.format(**groups)


def sign(
    role: Role,
    name: str,
    needles: str | tuple[str, ...],
    pattern: str | None = None,
    remedy: Remedy = "",
    *,
    detail: Detail = None,
    any_level: bool = False,
    survivable: bool = False,
) -> Sign:
    """A sign written short. Patterns are searched anywhere in the line and must be linear in its length."""
    literals = (needles,) if isinstance(needles, str) else needles
    compiled = re.compile(pattern) if pattern else None
    return Sign(role, name, tuple(n.encode() for n in literals), compiled, remedy, detail, any_level, survivable)


cause = partial(sign, Role.CAUSE)
clue = partial(sign, Role.CLUE)
