"""What the drafter doctor says of one thing: a finding, with the engine that it concerns and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["error", "warning", "note"]
BOTH = ("sglang", "vllm")
ORDER: dict[Level, int] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is a stable name for programs, `what` was seen, `remedy` is what to do; `engines` are those it concerns.

    An `error` makes an engine run another model than the one that was trained, or not start at all. A `warning` may do
    so, and only whoever trained the drafter can tell. A `note` is worth knowing.
    """

    code: str
    level: Level
    what: str
    remedy: str
    engines: tuple[str, ...] = BOTH

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"engines": list(self.engines)}


def error(code: str, what: str, remedy: str, *engines: str) -> Finding:
    """An error, of both engines where none is named."""
    return Finding(code, "error", what, remedy, engines or BOTH)


def warning(code: str, what: str, remedy: str, *engines: str) -> Finding:
    """A warning, likewise."""
    return Finding(code, "warning", what, remedy, engines or BOTH)


def note(code: str, what: str, remedy: str, *engines: str) -> Finding:
    """A note, likewise."""
    return Finding(code, "note", what, remedy, engines or BOTH)


def ranked(findings: list[Finding]) -> list[Finding]:
    """Errors first, in the order in which they were found."""
    return sorted(findings, key=lambda finding: ORDER[finding.level])
