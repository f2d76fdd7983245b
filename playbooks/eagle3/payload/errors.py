"""The one error that a step ends on by itself. Everything else that escapes is a bug and keeps its traceback."""

from __future__ import annotations


class StepError(Exception):
    """Expected trouble: `message` says what was tried and seen, `hint` what to do next."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def render(self) -> str:
        """The text for a person: the message and, after an empty line, the hint."""
        return f"error: {self.message}\n\nhint: {self.hint}"
