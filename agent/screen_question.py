"""A question in place, above the prompt: once, always for this rule, or no with a reason. By keys, never by accident.

The panel takes the keys by itself only when nothing is being typed; else Tab gives it the keys. A key answers only when
no other follows it at once, so that a word that somebody begins to type is never taken for an answer.
"""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.text import Text
from textual import events
from textual.containers import Vertical
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input, Static

ALONE_S = 0.25
"""So long after a key nothing else must be typed for it to be an answer."""


class QuestionPanel(Vertical, can_focus=True):
    """Shows one question at a time; posts `Answered`."""

    class Answered(Message):
        def __init__(self, todo: str, answer: str, reason: str | None = None, *, always: bool = False) -> None:
            super().__init__()
            self.todo, self.answer, self.reason, self.always = todo, answer, reason, always

    class Done(Message):
        """No question is left, or the operator types something else: `typed`, of which Enter is a line's end."""

        def __init__(self, typed: str = "") -> None:
            super().__init__()
            self.typed = typed

    DEFAULT_CSS = """
    QuestionPanel { height: auto; max-height: 50%; border: round $warning-muted; padding: 0 1; display: none; }
    QuestionPanel.-asks { display: block; }
    QuestionPanel:focus, QuestionPanel:focus-within { border: round $warning; }
    QuestionPanel > Static { height: auto; }
    QuestionPanel > Input { height: 1; border: none; padding: 0; background: $surface; display: none; }
    QuestionPanel.-writes > Input { display: block; }
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._questions: list[Any] = []
        self._says_no = False
        self._typing = False
        self._pending: tuple[str, Timer] | None = None
        self._text = Static()
        self._input = Input(compact=True)

    def compose(self) -> Any:
        yield self._text
        yield self._input

    @property
    def current(self) -> Any:
        """The question that is shown."""
        return self._questions[0] if self._questions else None

    def ask(self, question: Any, *, take_keys: bool) -> None:
        """Show a question, behind those that wait already."""
        self._questions.append(question)
        if len(self._questions) == 1:
            self._show()
            if take_keys:
                self.take_keys()
        else:
            self._paint()

    def withdraw(self, todo: str) -> None:
        """A question was answered, here or elsewhere."""
        before = self.current
        self._questions = [question for question in self._questions if question.todo != todo]
        if self.current is not before:
            had_keys = self.has_focus or self._input.has_focus
            self._show()
            if self.current is None and had_keys:
                self.post_message(self.Done())
            elif had_keys:
                self.take_keys()

    def take_keys(self) -> None:
        """From here on keys answer."""
        (self._input if self.has_class("-writes") else self).focus()

    def _show(self) -> None:
        question = self.current
        self._says_no = False
        self.set_class(question is not None, "-asks")
        free = bool(question and question.free)
        self.can_focus = not free  # an answer in words is written into the line below
        self.set_class(free, "-writes")
        self._input.value = ""
        self._input.placeholder = "your answer, then Enter" if question and question.free else ""
        self._paint()

    def _paint(self) -> None:
        question = self.current
        if question is None:
            return
        more = f"  ({len(self._questions) - 1} more wait)" if len(self._questions) > 1 else ""
        says = question.text if not question.command or question.command not in question.text else "May this be run?"
        head = Text.assemble(("? ", "bold magenta"), (says, "bold"), (more, "dim"))
        parts = [head]
        if question.command:
            parts.append(Text.assemble((f"{question.host} ", "blue"), ("$ ", "dim"), (question.command, "bold cyan")))
        if question.why:
            rule = f"  rule: {question.rule}" if question.rule else ""
            parts.append(Text.assemble((question.why, "yellow"), (rule, "dim")))
        for number, option in enumerate(question.options, 1):
            parts.append(Text.assemble((f" {number} ", "bold"), option))
        parts.append(self._keys(question))
        self._text.update(Group(*parts))

    def _keys(self, question: Any) -> Text:
        if self._says_no:
            return Text("why not? Enter alone gives no reason; Esc goes back", "dim")
        if question.free:
            return Text("type the answer, or a number" if question.options else "type the answer", "dim")
        keys = [("y", "yes, once")] + ([("a", "always, this command on this host")] if question.lasting else [])
        keys += [("n", "no, with a reason")]
        line = Text()
        for key, words in keys:
            line.append(f" {key} ", "reverse bold").append(f" {words}   ")
        if not self.has_focus:
            line.append("Tab gives the keys to this question", "dim")
        return line

    def on_focus(self) -> None:
        self._typing = False
        self._drop()
        self.call_later(self._paint)

    def on_blur(self) -> None:
        self.call_later(self._paint)

    def on_paste(self, event: events.Paste) -> None:
        """What is pasted is meant for the prompt."""
        if not self._input.has_focus:
            event.stop()
            self._type((self._drop() or "") + event.text.rstrip("\n"))

    def on_key(self, event: events.Key) -> None:
        question = self.current
        if question is None or self._input.has_focus:
            if event.key == "escape" and self._says_no:
                event.stop()
                self._says_no = False
                self.remove_class("-writes")
                self.focus()
            return
        if event.character is None and event.key != "enter":
            return
        event.stop()
        typed = "\n" if event.key == "enter" else event.character or ""
        if self._pending is not None or self._typing or not self._answers(typed):
            self._type((self._drop() or "") + typed)
        else:
            self._pending = typed, self.set_timer(ALONE_S, self._take)

    def _answers(self, key: str) -> bool:
        """Whether this key answers the question that is shown."""
        question = self.current
        numbers = [str(number) for number in range(1, min(9, len(question.options)) + 1)]
        words = ["y", "n", *(["a"] if question.lasting else [])]
        return key in (numbers if question.free else words + numbers)

    def _drop(self) -> str | None:
        """Forget the key that might have been an answer; which it was."""
        if self._pending is None:
            return None
        (key, timer), self._pending = self._pending, None
        timer.stop()
        return key

    def _type(self, text: str) -> None:
        """These keys are words for the prompt, and so are those behind them."""
        if text != "\n" or self._typing:
            self._typing = True
            self.post_message(self.Done(text))

    def _take(self) -> None:
        """The key stood alone: it is the answer."""
        key = self._drop()
        if key is None or self.current is None:
            return
        if key == "n":
            self._says_no = True
            self.add_class("-writes")
            self._input.placeholder = "reason"
            self._input.focus()
            self._paint()
        elif key.isdigit():
            self._answer(self.current.options[int(key) - 1])
        else:
            self._answer("yes", always=key == "a")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text = event.value.strip()
        if self._says_no:
            self._answer("no", text or None)
        elif text:
            options = self.current.options
            self._answer(options[int(text) - 1] if text.isdigit() and 0 < int(text) <= len(options) else text)

    def _answer(self, answer: str, reason: str | None = None, *, always: bool = False) -> None:
        self.post_message(self.Answered(self.current.todo, answer, reason, always=always))
