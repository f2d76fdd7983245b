"""A session's log as something to look at: every message in order, and the board as it was behind any of them.

    recording = Recording(facts, entries)
    board = recording.board(recording.place("train"))      # where the todo `train` first started
    recording.place("3074"), recording.place("1:20:00")    # a message's number, a time since the start

Pure: it is given the log (`agent/replay_source.py` reads it) and asks nothing of anybody. A *place* is the number of
messages that have happened, from 0 (nothing has) to `len(recording)`. Going to a place costs at most `EVERY` messages
from the nearest board that is kept, wherever it lies.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from operator import attrgetter
from textwrap import shorten
from typing import Any

from agent.board import Board, BoardJob, BoardTodo
from state.errors import NotFound, UsageError

EVERY = 2_000
"""Messages between two boards that are kept."""


UNTITLED = "Conversation"
"""What a conversation is called before anything was said (`agent/chat.py`)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of a log. `time` is in seconds since the epoch, `cause` the number of the message that led to it."""

    seq: int
    time: float
    kind: str
    actor: str
    payload: Mapping[str, Any]
    cause: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a session beside its log. `origin` says where the log came from: a database or a file."""

    id: str
    kind: str = "playbook"
    title: str = ""
    playbook: str | None = None
    source: str | None = None
    parent: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    status: str = "running"
    reason: str | None = None
    origin: str = ""


class Recording:
    """A session and its subagents' sessions. `extend` takes what a running session adds."""

    def __init__(self, facts: Facts, entries: Sequence[Entry], children: Sequence[Recording] = ()) -> None:
        self.facts = facts
        self.entries: list[Entry] = []
        self.children = list(children)
        self._times: list[float] = []
        self._kept: list[Board] = []
        self.extend(entries)

    def __len__(self) -> int:
        return len(self.entries)

    def extend(self, entries: Sequence[Entry]) -> None:
        """Messages that follow those that are there."""
        self.entries += entries
        latest = self._times[-1] if self._times else 0.0
        for entry in entries:  # a clock that was set back must not make the search for a time go wrong
            latest = max(latest, entry.time)
            self._times.append(latest)

    @property
    def title(self) -> str:
        """What the session is about: its title, or of a conversation without one the first words in it."""
        if self.facts.kind != "chat" or self.facts.title not in ("", UNTITLED):
            return self.facts.title or self.facts.id
        told = (entry.payload for entry in self.entries[:50] if entry.kind in ("operator.said", "playbook.loaded"))
        about = next((str(p.get("text") or p.get("playbook") or "") for p in told), "")
        return shorten(about, 90, placeholder=" …") or self.facts.title or self.facts.id

    @property
    def times(self) -> Sequence[float]:
        """When each message came; one that seems to be older than the one before it has that one's time."""
        return self._times

    @property
    def began(self) -> float:
        return self._times[0] if self._times else 0.0

    @property
    def ended(self) -> float:
        """When the last message came, which need not be the end of the session."""
        return self._times[-1] if self._times else 0.0

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def time(self, place: int) -> float:
        """When the last message before `place` came."""
        return self._times[max(0, min(place, len(self)) - 1)] if self._times else 0.0

    def board(self, place: int) -> Board:
        """The session as it was when `place` messages had happened. The caller may change what it gets."""
        place = max(0, min(place, len(self)))
        if not self._kept:
            self._kept.append(self._first())
        while len(self._kept) <= place // EVERY:
            board = copy(self._kept[-1])
            start = (len(self._kept) - 1) * EVERY
            advance(board, self.entries[start : start + EVERY])
            self._kept.append(board)
        kept = place // EVERY
        board = copy(self._kept[kept])
        advance(board, self.entries[kept * EVERY : place])
        return board

    def _first(self) -> Board:
        facts = self.facts
        board = Board(facts.id, facts.title, facts.playbook, created=self.began, updated=self.began)
        board.params = facts.settings.get("params", {})
        return board

    # Finding places

    def place(self, wanted: str) -> int:
        """The place behind a message number, at a time, or where a todo first started.

        Times are since the start (`90s`, `12:30`, `1:02:03`, `2h`) or ISO 8601 (UTC unless it says otherwise).
        Raises `UsageError` for what is none of these, `NotFound` for a todo that is not in this session.
        """
        text = wanted.strip()
        if re.fullmatch(r"#?\d+", text):
            return self.place_of_seq(int(text.lstrip("#")))
        seconds = since_start(text)
        if seconds is not None:
            return self.place_at(self.began + seconds)
        moment = _moment(text)
        if moment is not None:
            return self.place_at(moment)
        return self.place_of_todo(text)

    def place_of_seq(self, seq: int) -> int:
        """Behind the last message that has at most this number."""
        low, high = 0, len(self.entries)
        while low < high:
            middle = (low + high) // 2
            if self.entries[middle].seq <= seq:
                low = middle + 1
            else:
                high = middle
        return low

    def place_at(self, time: float) -> int:
        """Behind the last message of at most this time (seconds since the epoch)."""
        return bisect_right(self._times, time)

    def place_of_todo(self, wanted: str) -> int:
        """Behind the message that first started a todo, else the one that added it. A unique beginning is enough."""
        from agent.look import pick  # its database is not needed to watch a file

        added: dict[str, int] = {}
        started: dict[str, int] = {}
        for place, entry in enumerate(self.entries, 1):
            if entry.kind == "todo.added":
                added.setdefault(entry.payload["id"], place)
            elif entry.kind == "todo.status" and entry.payload["now"] == "in_progress":
                started.setdefault(entry.payload["id"], place)
        if not added:
            raise NotFound(f"`{wanted}` is no message number and no time, and this session has no todos")
        hint = "give a message's number, a time such as `12:30`, or one of: " + ", ".join(list(added)[:12])
        meant = (id for id in added if id.startswith(wanted))
        name = pick(wanted, meant, "todo", hint, where=f" in session `{self.facts.id}`")
        return started.get(name, added[name])

    def search(self, text: str, place: int, *, back: bool = False) -> int | None:
        """The next place behind (or before) `place` whose message says `text`, in any case; `None` if there is none."""
        from agent.replay_words import searchable

        wanted = text.casefold()
        order = range(place - 2, -1, -1) if back else range(place, len(self.entries))
        return next((at + 1 for at in order if wanted in searchable(self.entries[at])), None)


def advance(board: Board, entries: Sequence[Entry]) -> None:
    """Apply messages to a board. One that speaks of what never was (a torn file) is passed over."""
    for entry in entries:
        if entry.kind == "session.created":
            board.title, board.created = entry.payload.get("title", board.title), entry.time
        with suppress(KeyError, TypeError, AttributeError):
            board.apply(entry.kind, entry.payload, entry.time)
        board.seq = entry.seq


_todo_values = attrgetter(*(field.name for field in fields(BoardTodo)))
_job_values = attrgetter(*(field.name for field in fields(BoardJob)))


def copy(board: Board) -> Board:
    """A board that may go on without the other one. Built field by field: `replace` takes ten times as long."""
    twin = replace(board, questions=dict(board.questions), lost=dict(board.lost))
    twin.jobs = {id: BoardJob(*_job_values(job)) for id, job in board.jobs.items()}
    for job in twin.jobs.values():
        job.pace = job.pace.copy()
    twin.todos = {id: BoardTodo(*_todo_values(todo)) for id, todo in board.todos.items()}
    for todo in twin.todos.values():
        todo.after = todo.after.copy()
        todo.job = twin.jobs.get(todo.job.id) if todo.job is not None else None
    return twin


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def since_start(text: str) -> float | None:
    """Seconds meant by `90s`, `1.5h`, `1h30m`, `12:30` or `1:02:03`; `None` for anything else.

    Raises `UsageError` for a clock that shows 60 minutes or seconds.
    """
    if re.fullmatch(r"\+?\d+(:\d\d){1,2}(\.\d+)?", text):
        seconds, *rest = (float(part) for part in text.lstrip("+").split(":"))
        for part in rest:
            if part >= 60:
                raise UsageError(
                    f"`{text}` is no time: behind a colon the numbers end at 59",
                    hint="write a time since the start as `12:30`, `1:02:03`, `90s` or `1.5h`",
                )
            seconds = seconds * 60 + part
        return seconds
    if re.fullmatch(r"\+?(\d+(\.\d+)?[smhd])+", text):
        return sum(float(number) * _UNITS[unit] for number, _, unit in re.findall(r"(\d+(\.\d+)?)([smhd])", text))
    return None


def _moment(text: str) -> float | None:
    if not re.match(r"\d{4}-\d\d-\d\d", text):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"`{text}` is no time", hint="write it as `2026-12-01T04:20:00`") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
