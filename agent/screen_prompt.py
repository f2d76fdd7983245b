"""Where the operator types: several lines, pasted ones too, with a history and completion of commands.

Enter sends, Ctrl-J or Alt-Enter begins a new line, Up and Down at the edges go through what was sent before, Tab
completes a command. It grows to a third of the screen and then scrolls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from textual import events
from textual.message import Message
from textual.widgets import TextArea

MAX_HISTORY = 200


class Prompt(TextArea):
    """Posts `Sent` with the text, and `Asked` for `?` on an empty line."""

    class Sent(Message):
        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Asked(Message):
        """The operator wants help."""

    DEFAULT_CSS = """
    Prompt { height: auto; min-height: 1; max-height: 33vh; border: none; padding: 0; background: $surface;
             scrollbar-size-vertical: 1; }
    Prompt:focus { border: none; }
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(
            soft_wrap=True, show_line_numbers=False, compact=True, highlight_cursor_line=False, tab_behavior="focus",
            placeholder="say something, or /help", **options,
        )  # fmt: skip
        self.complete: Callable[[str], Sequence[str]] = lambda begin: ()
        self._sent: list[str] = []
        self._place = 0
        self._draft = ""

    def take(self) -> str:
        """The text, which is then gone from the line and in the history."""
        text = self.text
        if text.strip() and (not self._sent or self._sent[-1] != text):
            self._sent = [*self._sent[-MAX_HISTORY:], text]
        self._place, self._draft = len(self._sent), ""
        self.text = ""
        return text

    async def _on_key(self, event: events.Key) -> None:
        handled = True
        if event.key == "enter":
            text = self.take()
            if text.strip():
                self.post_message(self.Sent(text))
        elif event.key in ("ctrl+j", "alt+enter", "shift+enter"):
            self.insert("\n")
        elif event.character == "?" and not self.text:
            self.post_message(self.Asked())
        elif event.key == "tab" and self.text.startswith("/") and self._complete():
            pass
        elif event.key == "up" and self.cursor_location[0] == 0 and self._sent:
            self._go(-1)
        elif event.key == "down" and self.cursor_location[0] == self.document.line_count - 1 and self._sent:
            self._go(1)
        else:
            handled = False
        if handled:
            event.prevent_default()
            event.stop()
            return
        await super()._on_key(event)

    def _go(self, step: int) -> None:
        if self._place == len(self._sent):
            self._draft = self.text
        self._place = max(0, min(len(self._sent), self._place + step))
        self.text = self._draft if self._place == len(self._sent) else self._sent[self._place]
        self.move_cursor(self.document.end)

    def _complete(self) -> bool:
        """Complete what is typed as far as it is clear. Whether there was anything to complete."""
        found = list(self.complete(self.text))
        if not found:
            return False
        common = found[0]
        for other in found[1:]:
            while not other.startswith(common):
                common = common[:-1]
        if len(common) > len(self.text):
            self.text = common + (" " if len(found) == 1 else "")
            self.move_cursor(self.document.end)
        return True
