"""The terminal, or the pipe, that people read from."""

from __future__ import annotations

from rich.console import Console

PIPE_WIDTH = 120


class Screen(Console):
    """Stdout for a person.

    The cursor stays visible, because whoever kills this process must find a terminal that works. A reader that went
    away is `BrokenPipeError`, as everywhere else, and not the end of the process.
    """

    def show_cursor(self, show: bool = True) -> bool:
        """Leave it as it is."""
        return False

    def on_broken_pipe(self) -> None:
        """Let whoever writes decide."""
        raise BrokenPipeError


def screen() -> Screen:
    """Stdout; in a pipe without colour and at a width that does not depend on who reads."""
    console = Screen(highlight=False)
    return console if console.is_terminal else Screen(highlight=False, width=PIPE_WIDTH)
