"""Puts the session's questions to the operator on the terminal, one after another, while everything else goes on.

A whole line is read (`y`, `n` or Enter for the default), by the event loop itself when the terminal has one, so nothing
blocks and nothing is typed blindly: what was typed before the question was shown is thrown away.
"""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from collections import deque
from collections.abc import Callable

Answer = Callable[[str, str, str], None]
"""Called with todo, answer and who gave it."""


NOBODY = "no terminal to ask on"
"""Who said no where nobody could be asked."""


def can_ask() -> bool:
    """Whether an operator sits at this terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


class Questions:
    """`begin` is called before the first question that waits is shown, `end` when none is left."""

    def __init__(self, answer: Answer, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._answer, self._begin, self._end = answer, begin, end
        self._waiting: deque[tuple[str, str, str]] = deque()
        self._loop = asyncio.get_running_loop()

    def put(self, todo: str, question: str, default: str) -> None:
        """Ask as soon as the questions before this one are answered."""
        self._waiting.append((todo, question, default))
        if len(self._waiting) == 1:
            self._begin()
            self._loop.add_reader(sys.stdin.fileno(), self._read)
            self._show()

    def withdraw(self, todo: str) -> None:
        """The todo has ended without this answer."""
        if any(waiting[0] == todo for waiting in self._waiting):
            shown = self._waiting[0][0] == todo
            self._waiting = deque(waiting for waiting in self._waiting if waiting[0] != todo)
            if shown:
                print("\n(no longer asked)")
                self._next()

    def close(self) -> None:
        """Ask nothing more; what was not answered stays open and is asked again by `turnout resume`."""
        if self._waiting:
            print()
            self._waiting.clear()
            self._loop.remove_reader(sys.stdin.fileno())

    def _show(self) -> None:
        todo, question, default = self._waiting[0]
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        print(f"\n? {todo}: {question}")
        self._prompt(default)

    def _prompt(self, default: str) -> None:
        sys.stdout.write("  yes or no? " + ("[Y/n] " if default == "yes" else "[y/N] "))
        sys.stdout.flush()

    def _read(self) -> None:
        line = os.read(sys.stdin.fileno(), 4096)
        todo, _, default = self._waiting[0]
        word = line.decode("utf-8", "replace").strip().lower()
        if not line:
            answer, by = "no", "end of input"
        elif word in ("y", "yes", "n", "no", ""):
            answer, by = {"": default}.get(word, "yes" if word[:1] == "y" else "no"), "operator"
        else:
            self._prompt(default)
            return
        self._waiting.popleft()
        self._answer(todo, answer, by)
        self._next()

    def _next(self) -> None:
        if self._waiting:
            self._show()
        else:
            self._loop.remove_reader(sys.stdin.fileno())
            self._end()
