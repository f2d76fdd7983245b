"""The answer to a quick command, as the remote half tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The end of a quick command: `rc`, or the name of a `signal`, or neither when it would not die.

    `stdout` and `stderr` are head and tail with a line between them that counts what was left out; `*_bytes` are exact.
    `notes` say what a person should know: needs a password, output still held, silent before the limit.
    """

    rc: int | None
    signal: str | None
    timed_out: bool
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    stderr_bytes: int
    duration: float
    held_by: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """It ran to its end and said 0."""
        return self.rc == 0 and not self.timed_out

    @classmethod
    def from_wire(cls, result: Mapping[str, Any], body: bytes) -> Self:
        """From `result` and the body: head and tail of stdout, then of stderr, as long as `lengths` says."""
        pieces = []
        for length in result["lengths"]:
            pieces.append(body[:length])
            body = body[length:]
        outputs = []
        for count, head, tail in zip(result["counts"], pieces[::2], pieces[1::2], strict=True):
            left_out = count - len(head) - len(tail)
            outputs.append(head + (b"\n[%d bytes left out]\n" % left_out if left_out else b"") + tail)
        return cls(
            rc=result["rc"], signal=result["signal"], timed_out=result["timed_out"], duration=result["duration"],
            stdout=outputs[0], stderr=outputs[1], stdout_bytes=result["counts"][0], stderr_bytes=result["counts"][1],
            held_by=tuple(result["held_by"]), notes=tuple(result["notes"]),
        )  # fmt: skip
