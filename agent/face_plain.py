"""The plain face of the chat: lines in, lines out, for pipes, scripts and terminals that can do no more.

What the model says is written as its lines become complete, what happens in the graph as one line each with the time
since the start. At the end of the input it goes on until nothing moves, then leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from typing import TextIO

import anyio

from agent.chat import Chat, Question
from agent.chat_entries import Entry
from agent.chat_text import shorten, tool_words
from agent.pace import clock
from agent.painter import plain
from agent.views import Lines

SETTLE_S = 0.5
"""For so long nothing must move before a chat whose input has ended leaves: words are on their way to the model."""
RESULT = 200
MAX_BEFORE = 20


class PlainFace:
    """Writes entries to `out`; `read` feeds lines of a file to the chat."""

    def __init__(self, chat: Chat, out: TextIO | None = None, *, echo: bool = False) -> None:
        self.chat = chat
        self._lines = Lines(out or sys.stdout)
        self._echo = echo
        self._began = time.monotonic()
        self._told: dict[int, int] = {}
        self._left = anyio.Event()
        self.code = 0
        self.then: str | None = None
        chat.faces.append(self)

    # A face

    def entry_changed(self, entry: Entry) -> None:
        for line in self._news(entry):
            self._lines.put(line)

    def board_changed(self) -> None:
        """The graph is told by its events."""

    def status_changed(self) -> None:
        """There is no status line."""

    def question_asked(self, question: Question) -> None:
        where = f" ({question.host}: `{question.command}`; {question.why})" if question.command else ""
        self._lines.put(f"? {question.todo} asks: {plain(question.text)}{plain(where)}")
        free = " or `/approve ID WORDS`" if question.free else ", `/approve no REASON`"
        always = ", `/approve always`" if question.lasting else ""
        self._lines.put(f"  answer with `/approve`{free}{always}")

    def question_gone(self, question: Question) -> None:
        """Its answer is an entry."""

    def leave(self, code: int, *, then: str | None = None) -> None:
        self.code, self.then = code, then
        self._left.set()

    def show(self, view: str) -> bool:
        """Everything is told in words here."""
        return False

    def begin(self, busy: str, *, terminal: bool) -> None:
        """The first line: which session this is, what was said before, or who drives it."""
        for entry in self.chat.conversation.entries[-MAX_BEFORE:]:
            self.entry_changed(entry)
        if busy:
            self._lines.put(f"{busy}; here it is only looked at, `/quit` leaves")
        elif terminal:
            self._lines.put(f"session {self.chat.session}; `/help` shows the commands, `/quit` leaves and jobs go on")

    def close(self) -> None:
        """Return when everything is written."""
        self._lines.close()

    # Lines in

    async def until_left(self) -> None:
        """Until the operator leaves."""
        await self._left.wait()

    async def read(self, source: TextIO, *, terminal: bool) -> None:
        """Take lines from `source` until it ends or the chat is left."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._leave_ends, group.cancel_scope)
            async for line in _feed(source).lines():
                if self._echo:
                    self._lines.put(f"> {line}")
                await self.chat.enter(line)
                if self._left.is_set():
                    return
            if terminal:
                self.leave(0)
            else:
                await self._until_quiet()

    async def _leave_ends(self, scope: anyio.CancelScope) -> None:
        await self._left.wait()
        scope.cancel()

    async def _until_quiet(self) -> None:
        """Wait until nothing moves and nothing is being said, then leave with the session's success as the code."""
        quiet = 0.0
        while quiet < SETTLE_S:
            await anyio.sleep(SETTLE_S / 5)
            quiet = 0.0 if self._moves() else quiet + SETTLE_S / 5
        self.leave(1 if self.chat.board.failures() else 0)

    def _moves(self) -> bool:
        board, talk = self.chat.board, self.chat.talk
        if talk is not None and talk.doing not in ("idle", "no model", "paused"):
            return True
        if self.chat.status.paused:
            return False
        waits = any(t.status == "pending" and not board.blocked(t) for t in board.todos.values())
        works = any(t.status == "in_progress" for t in board.todos.values())
        return works or waits

    # Lines out

    def _news(self, entry: Entry) -> Iterator[str]:
        """What is to be written of an entry that is new or has grown."""
        seen = self._told.get(id(entry), 0)
        if entry.kind == "answer":
            yield from self._answer(entry, seen)
        elif entry.kind == "event":
            self._told[id(entry)] = len(entry.lines)
            yield from (self._timed(line.plain) for line in entry.lines[seen:])
        elif entry.kind in ("note", "error"):
            if not seen:
                self._told[id(entry)] = 1
                yield from (line.plain for line in entry.lines) if entry.lines else (entry.text,)
        elif entry.kind == "tool":
            yield from self._tool(entry, seen)
        elif entry.kind == "child":
            yield from self._child(entry, seen)

    def _answer(self, entry: Entry, seen: int) -> Iterator[str]:
        end = len(entry.text) if entry.state != "open" else entry.text.rfind("\n") + 1
        if entry.state == "open" and end <= seen:
            return
        new = entry.text[seen:end]
        self._told[id(entry)] = end
        if new:
            yield from new.removesuffix("\n").split("\n")
        if entry.state == "stopped":
            yield "(stopped)"

    def _tool(self, entry: Entry, seen: int) -> Iterator[str]:
        if seen == 0:
            yield self._timed(f"· {tool_words(entry.name, entry.input)}")
        if entry.state == "failed" and seen < 2:
            yield self._timed(f"✘ {entry.name}: {shorten(plain(entry.text), RESULT)}")
        self._told[id(entry)] = 1 if entry.state == "open" else 2

    def _child(self, entry: Entry, seen: int) -> Iterator[str]:
        if seen == 0 and entry.state == "open":
            yield self._timed(f"▷ research: {plain(entry.name)}")
        if entry.state != "open" and seen < 2:
            told = plain(entry.lines[0].plain) if entry.lines else entry.state
            yield self._timed(f"{'✔' if entry.state == 'done' else '✘'} research: {plain(entry.name)}: {told}")
        self._told[id(entry)] = 1 if entry.state == "open" else 2

    def _timed(self, line: str) -> str:
        return f"[{clock(time.monotonic() - self._began):>7}] {line}"


class _Feed:
    """Lines of a file, read by a thread: a file, a pipe and a terminal cannot be waited for in one way.

    There is one for each file, for as long as the process lives: a line that was read ahead when a chat was left is for
    the chat that comes after it.
    """

    AHEAD = 100

    def __init__(self, source: TextIO) -> None:
        self._source = source
        self._lines: deque[str | None] = deque()
        self._room = threading.Semaphore(self.AHEAD)
        self._wake: Callable[[], object] = lambda: None
        threading.Thread(target=self._read, name="turnout-input", daemon=True).start()

    async def lines(self) -> AsyncIterator[str]:
        """The lines from here on, until the file ends."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(news.set)
        while True:
            news.clear()
            while self._lines:
                line = self._lines[0]
                if line is None:
                    return
                self._lines.popleft()
                self._room.release()
                yield line
            await news.wait()

    def _read(self) -> None:
        for line in self._source:
            self._room.acquire()
            self._put(line.rstrip("\n"))
        self._put(None)

    def _put(self, line: str | None) -> None:
        self._lines.append(line)
        with contextlib.suppress(RuntimeError):  # that loop has ended: the next one looks for itself
            self._wake()


@cache
def _feed(source: TextIO) -> _Feed:
    return _Feed(source)
