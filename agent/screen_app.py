"""The chat on a screen: conversation, todo graph, jobs with their logs, questions in place. Everything by keyboard.

    code, then, said = run_screen(url, wanted, yes=False)

This module holds the frame: panes, keys, and what is shown where at which width. It imports neither the database nor
SSH, so that the first picture is there at once; the session behind it (`agent/screen_session.py`) is loaded by a thread
while the operator may already type.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual import events, work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.geometry import Size
from textual.widgets import Static

from agent.screen_prompt import Prompt
from agent.screen_question import QuestionPanel
from agent.screen_signals import obey
from agent.screen_views import EntriesPane, LinesPane

WIDE = 110
"""From this width on the graph and the jobs stand beside the conversation."""
STRIP = 7
"""Lines of the graph above the prompt where it is narrow, with a rule above them."""
QUIET_S = 1.5
"""A question takes the keys by itself when nothing was typed for so long."""
LEAVE_S = 8.0
VIEWS = ("talk", "todos", "jobs")


class ChatApp(App[tuple[int, str | None]]):
    """One chat. `wanted` is a session or `None` for a new one; `yes` answers every question."""

    CSS = Path(__file__).with_name("screen.tcss").read_text(encoding="utf-8")
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[Any] = [
        Binding("escape", "stop_turn", priority=False),
        Binding("ctrl+t", "next_view", priority=True),
        Binding("f1", "help", priority=True),
        Binding("f2", "view('talk')", priority=True),
        Binding("f3", "view('todos')", priority=True),
        Binding("f4", "view('jobs')", priority=True),
        Binding("pageup", "scroll(-1)", priority=True),
        Binding("pagedown", "scroll(1)", priority=True),
        Binding("ctrl+home", "scroll(-1000)", priority=True),
        Binding("ctrl+end", "scroll(1000)", priority=True),
        Binding("alt+up", "pick(-1)", priority=True),
        Binding("alt+down", "pick(1)", priority=True),
        Binding("ctrl+c", "leave_hint", priority=True),
        Binding("ctrl+d", "leave", priority=True),
        Binding("ctrl+q", "leave", priority=True),
    ]

    def __init__(self, url: str | None, wanted: str | None, *, yes: bool = False, db: Any = None) -> None:
        super().__init__()
        self.url, self.wanted, self.yes, self.db = url, wanted, yes, db
        self.session: Any = None
        self.view = "talk"
        self.room = Size(80, 24)
        self.failure: BaseException | None = None
        self.leaving: tuple[int, str | None] | None = None
        self._restore: Callable[[], None] = lambda: None
        self.farewell: list[str] = []
        self.first_paint: float | None = None
        self._typed = 0.0
        self._early: list[str] = []
        self._asked_to_leave = 0.0

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        with Horizontal(id="body"):
            yield EntriesPane(id="talk")
            with Vertical(id="side"):
                yield Static(id="graph-title", classes="title")
                yield LinesPane(self._redraw, id="graph")
                yield Static(id="jobs-title", classes="title")
                yield LinesPane(self._redraw, id="jobs")
                yield Static(id="log-title", classes="title")
                yield LinesPane(id="log", follows=True)
        yield LinesPane(self._redraw, id="strip")
        yield QuestionPanel(id="question")
        with Horizontal(id="entry"):
            yield Static("❯", id="sign")
            yield Prompt(id="prompt")
        yield Static(id="foot")

    def on_mount(self) -> None:
        self.room = self.size
        self.query_one(Prompt).focus()
        self.query_one("#head", Static).update(Text("◇ Turnout  opening …", "dim"))
        self._arrange()
        self._restore = obey(self.depart)
        self.call_after_refresh(self._begin)

    def on_unmount(self) -> None:
        self._restore()

    def _begin(self) -> None:
        self.first_paint = time.perf_counter()
        self._live()

    @work(exclusive=True)
    async def _live(self) -> None:
        """Load the session behind the screen and stay with it. What goes wrong ends the screen and is told after it."""
        try:
            module = await asyncio.to_thread(_session_module)
            self.session = module.ScreenSession(self)
            await self.session.live(self._flush_early)
        except Exception as error:  # noqa: BLE001 - raised again by `run_screen`, where the terminal is ours again
            self.failure = error
            self.exit((70, None))

    def _flush_early(self) -> None:
        early, self._early = self._early, []
        for text in early:
            self._enter(text)

    # Layout

    def on_resize(self, event: events.Resize) -> None:
        self.room = event.size
        self._arrange()

    def _arrange(self) -> None:
        """What is shown where, by width and view."""
        screen = self.screen_stack[0]
        screen.set_class(self.wide, "-wide")
        for view in VIEWS:
            screen.set_class(self.view == view, f"-{view}")
        self._redraw()

    @property
    def wide(self) -> bool:
        """Whether graph and jobs stand beside the conversation."""
        return self.room.width >= WIDE

    def _redraw(self) -> None:
        if self.session is not None:
            self.session.dirty()

    def pane(self, name: str) -> LinesPane:
        """A pane of lines by its name."""
        return self.query_one(f"#{name}", LinesPane)

    # Keys

    def action_view(self, view: str) -> None:
        """Show one of the views; the conversation again when it is shown already."""
        self.view = "talk" if view == self.view else view
        self._arrange()

    def action_next_view(self) -> None:
        self.view = VIEWS[(VIEWS.index(self.view) + 1) % len(VIEWS)]
        self._arrange()

    def action_scroll(self, pages: int) -> None:
        """Scroll what is looked at, wherever the keys are."""
        pane = {"todos": self.pane("graph"), "jobs": self.pane("log")}.get(self.view, self.query_one(EntriesPane))
        if abs(pages) > 1:
            (pane.scroll_home if pages < 0 else pane.scroll_end)(animate=False)
        else:
            pane.scroll_relative(y=pages * max(1, pane.room.height - 2), animate=False)

    def action_pick(self, step: int) -> None:
        """Another job's log."""
        if self.session is not None:
            self.session.pick(step)

    def action_stop_turn(self) -> None:
        """Escape: the model's turn ends, and nothing else does."""
        if self.session is not None:
            self.session.interrupt()

    def action_help(self) -> None:
        from agent.screen_help import Help

        if not isinstance(self.screen, Help):
            self.push_screen(Help(self.session.commands() if self.session else []))

    def action_leave_hint(self) -> None:
        """Ctrl-C: what is typed is dropped; with nothing typed, twice within two seconds leaves."""
        prompt = self.query_one(Prompt)
        if prompt.text:
            prompt.take()
            return
        now = time.monotonic()
        if now - self._asked_to_leave < 2.0:
            self.action_leave()
        self._asked_to_leave = now
        self.remark("Ctrl-C again leaves; jobs go on. Esc stops the model's turn.")

    def action_leave(self) -> None:
        self.depart(0)

    def depart(self, code: int, then: str | None = None) -> None:
        """Leave in good order: the session is paused and given back. Asked twice, or too slow, it is left at once."""
        if self.leaving is None and self.session is not None and self.session.stop():
            self.leaving = (code, then)
            self.remark("leaving; jobs go on")
            self.set_timer(LEAVE_S, lambda: self.exit((code, then)))
        else:
            self.exit((code, then))

    def remark(self, words: str) -> None:
        """A line at the foot for a moment."""
        self.query_one("#foot", Static).update(Text(words, "bold yellow"))
        self.set_timer(2.0, self._redraw)

    # Words and answers

    def on_prompt_sent(self, message: Prompt.Sent) -> None:
        self._enter(message.text)

    def _enter(self, text: str) -> None:
        if self.session is None or not self.session.ready:
            self._early.append(text)
        else:
            self.query_one(EntriesPane).scroll_end(animate=False)
            self.session.enter(text)

    def on_prompt_asked(self) -> None:
        self.action_help()

    def on_text_area_changed(self) -> None:
        self._typed = time.monotonic()
        self._redraw()

    def on_question_panel_answered(self, message: QuestionPanel.Answered) -> None:
        self.session.answer(message)

    def on_question_panel_done(self, message: QuestionPanel.Done) -> None:
        prompt = self.query_one(Prompt)
        prompt.focus()
        if message.typed.strip("\n"):
            prompt.insert(message.typed.strip("\n"))
        if message.typed.endswith("\n"):
            self._enter(prompt.take())

    def ask(self, question: Any) -> None:
        """Show a question. It takes the keys only when nobody is typing."""
        quiet = not self.query_one(Prompt).text and time.monotonic() - self._typed > QUIET_S
        self.query_one(QuestionPanel).ask(question, take_keys=quiet)


def _session_module() -> Any:
    """The heavy half, imported by a thread."""
    from agent import screen_session

    return screen_session


def run_screen(
    url: str | None, wanted: str | None, *, yes: bool, seen: Callable[[ChatApp], None] | None = None
) -> tuple[int, str | None, Sequence[str]]:
    """Show the chat until it is left: exit code, the session to go on with, what is to be said afterwards."""
    app = ChatApp(url, wanted, yes=yes)
    if seen is not None:
        seen(app)
    code, then = app.run() or (0, None)
    if app.failure is not None:
        raise app.failure
    return code, then, app.farewell
