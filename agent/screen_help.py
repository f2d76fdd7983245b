"""The help of the chat screen, over everything else: keys and commands. `?`, F1, Esc or q close it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS = (
    ("Enter", "send; Ctrl-J or Alt-Enter begins a new line; pasted lines stay together"),
    ("Esc", "stop the model's turn; jobs, todos and research go on"),
    ("Ctrl-T", "conversation, todos, jobs in turn; F2, F3, F4 go there directly"),
    ("PgUp PgDn", "scroll; Ctrl-Home and Ctrl-End go to the ends"),
    ("Alt-Up Alt-Down", "another job's log"),
    ("Tab", "give the keys to a question, or complete a command"),
    ("y  a  n", "answer it: once, always this command on this host, no with a reason"),
    ("Up Down", "what was sent before"),
    ("Ctrl-D", "leave; jobs go on (also /quit, or Ctrl-C twice)"),
)
SYMBOLS = "▶ runs  ✔ completed  ○ waits for others  ◌ waits for room  ? asks  ✘ failed  ⊘ skipped  ⊗ cancelled"


class Help(ModalScreen[None]):
    """`commands` are (how it is written, what it does)."""

    BINDINGS: ClassVar[Any] = [
        ("escape", "dismiss"), ("q", "dismiss"), ("question_mark", "dismiss"), ("f1", "dismiss"), ("enter", "dismiss"),
    ]  # fmt: skip

    def __init__(self, commands: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._commands = commands

    def compose(self) -> Any:
        with VerticalScroll():
            yield Static(self._text())

    def _text(self) -> Text:
        text = Text()
        text.append("Keys\n", "bold")
        for key, words in KEYS:
            text.append(f"  {key:<16}", "bold cyan").append(f"{words}\n")
        text.append("Commands\n", "bold")
        for takes, words in self._commands:
            text.append(f"  {takes:<42}", "bold cyan").append(f"{words}\n", "dim")
        text.append("The graph\n", "bold")
        return text.append(
            f"  {SYMBOLS}\n  A line leads from each todo to those after it; dotted: only on failure.", "dim"
        )
