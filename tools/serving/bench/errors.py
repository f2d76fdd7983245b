"""The one error of the bench: it runs on hosts that have nothing else of ours."""

from __future__ import annotations


class BenchError(Exception):
    """What was tried, what was seen and, as `hint`, what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def render(self) -> str:
        """The text for a person."""
        return f"error: {self}" + (("\n\nhint: " + self.hint) if self.hint else "")
