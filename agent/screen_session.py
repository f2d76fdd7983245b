"""The session behind the chat screen: opens it, feeds the panes, and passes on what the operator does.

It is the face of an `agent.chat.Chat`. Changes only mark what must be drawn anew; drawing happens at most twenty times
a second for the conversation and five times for the graph and the jobs, however much arrives.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
from rich.text import Text
from textual.widgets import Static

from agent import screen_draw as draw
from agent.chat import Chat, Question
from agent.chat_commands import COMMANDS
from agent.chat_entries import Entry
from agent.chat_session import drive, farewell, look_on, open_chat, opened_database, take
from agent.look import find_session
from agent.screen_app import STRIP, ChatApp
from agent.screen_log import JobLog
from agent.screen_prompt import Prompt
from agent.screen_question import QuestionPanel
from agent.screen_views import EntriesPane
from state.db import Database

if TYPE_CHECKING:
    from agent.config import Config

TALK_S = 0.05
BOARD_S = 0.2
CLOCK_S = 1.0
DRAWING_SHARE = 10
"""How many times as long as it takes to draw the graph nothing is drawn after it."""


class ScreenSession:
    """Made once the screen stands."""

    def __init__(self, app: ChatApp) -> None:
        self.app = app
        self.chat: Chat = None  # type: ignore[assignment]
        self.ready = False
        self._entries: dict[int, Entry] = {}
        self._dirty = True
        self._drawn = 0.0
        self._pause = BOARD_S
        self._log = JobLog(app)
        self._tasks: set[asyncio.Task[None]] = set()

    async def live(self, ready: Callable[[], None]) -> None:
        """Open the session, and drive it or look on until the screen is left."""
        app = self.app
        async with opened_database(app.url, app.db, make=app.wanted is None) as db:
            if app.wanted is not None:
                self._show(await self._stored(db, app.wanted))
            config, session, busy = await anyio.to_thread.run_sync(self._prepare, db)
            chat = await open_chat(db, session, attended=not busy)
            if self.chat is None or chat.board.seq > self.chat.board.seq + 1:  # more than our taking it over
                self._show(chat)
            self.chat.attended, self.chat.yes = not busy, app.yes
            self._welcome(busy)
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._when_ready, ready, busy)
                    await (look_on(self.chat) if busy else drive(self.chat, config))
                    if app.leaving is not None:
                        app.exit(app.leaving)
                    self.dirty()
                    await anyio.sleep_forever()
            finally:
                app.farewell = farewell(self.chat)

    async def _stored(self, db: Database, wanted: str) -> Chat:
        """What is stored of a session: shown at once, while what drives it is still being imported."""
        session = await db.aread(lambda conn: find_session(conn, wanted))
        return await open_chat(db, session, attended=True)

    def _prepare(self, db: Database) -> tuple[Config, str, str]:
        """In a thread: import what drives a session, read the configuration, take the session over."""
        from agent import talk  # noqa: F401 - so that it is there when it is wanted on the event loop
        from agent.config import load_config

        session = self.chat.session if self.chat is not None else None
        return load_config(), *take(db, session, yes=self.app.yes)

    def _show(self, chat: Chat) -> None:
        """Show this chat, in place of what was shown of it before."""
        first, self.chat = self.chat is None, chat
        chat.faces.append(self)
        pane = self.app.query_one(EntriesPane)
        pane.draw = draw.entry
        pane.clear()
        pane.changed(chat.conversation.entries)
        self.dirty()
        if first:
            self.app.query_one(Prompt).complete = self._complete
            self.app.set_interval(TALK_S, self._flush)

    def _welcome(self, busy: str) -> None:
        if busy:
            self.chat.note(Text(f"{busy}; here it is only looked at, `/quit` leaves.", "yellow"))
        elif not self.chat.conversation.entries:
            self.chat.note(*draw.welcome())

    async def _when_ready(self, ready: Callable[[], None], busy: str) -> None:
        if not busy:
            await self.chat.ready.wait()
        self.ready = True
        ready()

    # The operator

    def enter(self, text: str) -> None:
        self._later(self._enter(text))

    async def _enter(self, text: str) -> None:
        """Do what was typed. What it says is in the conversation, which is shown unless a view was asked for."""
        view, known = self.app.view, len(self.chat.conversation.entries)
        await self.chat.enter(text)
        words = bool(text.strip()) and not text.lstrip().startswith("/")
        if (words or len(self.chat.conversation.entries) > known) and self.app.view == view:
            self._show_talk()

    def _show_talk(self) -> None:
        if self.app.view != "talk":
            self.app.action_view("talk")

    def answer(self, message: QuestionPanel.Answered) -> None:
        self._later(self._answer(message))

    async def _answer(self, message: QuestionPanel.Answered) -> None:
        from state.errors import TurnoutError

        try:
            await self.chat.answer(message.todo, message.answer, message.reason, always=message.always)
        except TurnoutError as error:
            self.chat.error(error)
            self._show_talk()

    def interrupt(self) -> None:
        if self.chat is not None and self.chat.interrupt():
            self.app.remark("the model's turn was stopped; everything else goes on")

    def stop(self) -> bool:
        """Stop driving the session; `live` then ends the screen. Whether it is being driven."""
        if self.chat is None or self.chat.talk is None:
            return False
        self.chat.talk.stop()
        return True

    def pick(self, step: int) -> None:
        self._log.pick(step)
        self.dirty()

    def commands(self) -> list[tuple[str, str]]:
        return [(f"/{c.name} {c.takes}", c.help) for c in COMMANDS.values()]

    def _complete(self, begin: str) -> list[str]:
        return [f"/{name}" for name in COMMANDS if f"/{name}".startswith(begin)]

    def _later(self, work: Any) -> None:
        """Do it beside the screen; the tasks are ours so that they are not lost."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        """What nobody expected is a bug, and is told as one once the terminal is ours again."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.app.failure = error
            self.app.exit((70, None))

    # A face

    def entry_changed(self, entry: Entry) -> None:
        self._entries[id(entry)] = entry

    def board_changed(self) -> None:
        self._dirty = True

    def status_changed(self) -> None:
        self._dirty = True

    def question_asked(self, question: Question) -> None:
        self.app.ask(question)

    def question_gone(self, question: Question) -> None:
        self.app.query_one(QuestionPanel).withdraw(question.todo)

    def leave(self, code: int, *, then: str | None = None) -> None:
        self.app.depart(code, then)

    def show(self, view: str) -> bool:
        """Show one of the views instead of telling it in words."""
        if view == "help":
            self.app.action_help()
        elif self.app.view != view:
            self.app.action_view(view)
        return True

    # Drawing

    def dirty(self) -> None:
        """Draw graph, jobs, head and foot anew, at the next chance."""
        self._dirty, self._drawn = True, 0.0

    def _flush(self) -> None:
        if self._entries:
            entries, self._entries = list(self._entries.values()), {}
            self.app.query_one(EntriesPane).changed(entries)
        now = time.monotonic()
        moving = self.chat.board.status == "running"
        if now - self._drawn >= (self._pause if self._dirty else max(CLOCK_S, self._pause) if moving else math.inf):
            self._dirty = False
            self._draw_board()
            self._drawn = time.monotonic()
            # A graph of ten thousand todos takes its time to draw: the keys are to have most of it.
            self._pause = max(BOARD_S, DRAWING_SHARE * (self._drawn - now))

    def _draw_board(self) -> None:
        app, board, now = self.app, self.chat.board, time.time()
        width = app.room.width - 2
        app.query_one("#head", Static).update(draw.head(board, width, now, self.chat.title))
        typed = app.query_one(Prompt).text
        app.query_one("#foot", Static).update(draw.foot(self.chat, app.view, width, now, typed))
        if app.wide or app.view == "todos":
            pane = app.pane("graph")
            height = None if app.view == "todos" else pane.room.height
            pane.show(draw.graph(board, pane.room.width, height, now))
            app.query_one("#graph-title", Static).update(draw.graph_title(board))
        self._draw_strip(now)
        if app.wide or app.view == "jobs":
            self._draw_jobs(now)

    def _draw_strip(self, now: float) -> None:
        """Where it is narrow: some lines of the graph below the conversation, fewer beside a question."""
        app, board = self.app, self.chat.board
        strip = app.pane("strip")
        strip.display = not app.wide and app.view == "talk" and bool(board.todos) and app.room.height >= 16
        if strip.display:
            rows = STRIP - 1 if app.room.height >= 30 or not self.chat.questions else STRIP - 3
            strip.show(draw.graph(board, strip.room.width or app.room.width - 2, rows, now, strip=True))

    def _draw_jobs(self, now: float) -> None:
        app, pane = self.app, self.app.pane("jobs")
        listed = draw.jobs_in_order(self.chat.board)
        chosen = self._log.choose(listed, self.chat)
        lines = draw.jobs(self.chat.board, listed, pane.room.width or 40, now)
        pane.show(lines, chosen)
        app.query_one("#jobs-title", Static).update(draw.jobs_title(listed))
        app.query_one("#log-title", Static).update(self._log.title())
