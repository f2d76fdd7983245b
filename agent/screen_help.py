"""The help of the chat screen, over everything else: keys and commands. `?`, F1, Esc or q close it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS = (
    ("Enter", "send; Ctrl-J or Alt-Enter begins a new line"),
    ("Esc", "stop the model's turn; everything else goes on"),
    ("Ctrl-T", "conversation, todos, jobs; also F2, F3, F4"),
    ("PgUp PgDn", "scroll; Ctrl-Home and Ctrl-End go to the ends"),
    ("Alt-Up Alt-Down", "another job's log"),
    ("Tab", "give the keys to a question; complete a command"),
    ("y  a  n", "answer: yes, always (this host), no (and why)"),
    ("Up Down", "what was sent before"),
    ("Ctrl-D", "leave; jobs go on. Also /quit, or Ctrl-C twice"),
)
SYMBOLS = "▶ runs  ✔ completed  ○ waits for others  ◌ for room  ? asks  ✘ failed  ≠ not met  ⊘ skipped  ⊗ cancelled"


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

    def _text(self) -> Group:
        graph = Text(f"{SYMBOLS}\nA line leads from each todo to those after it; dotted: only on failure.", "dim")
        return Group(
            Text("Keys", "bold"), _table(KEYS, 16), Text("\nCommands", "bold"), _table(self._commands, 26),
            Text("\nThe graph", "bold"), Padding(graph, (0, 0, 0, 2)),
        )  # fmt: skip


def _table(rows: Sequence[tuple[str, str]], first: int) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=1)
    table.add_column(style="bold cyan", width=first)
    table.add_column()
    for left, right in rows:
        table.add_row("", Text(left), Text(right))
    return table
