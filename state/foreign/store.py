"""Writing a foreign session into the database, while it is being read.

    imported = store(db, found, new_id)

Entries go in by batches, each batch one transaction, so that a large transcript neither fills the memory nor keeps
other sessions from writing. A session that was not read to its end is removed again: there is no half import.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from state.db import Database
from state.foreign.damage import Losses
from state.foreign.story import Counts, Entry, Found, Story
from state.log import forget, restore

BATCH = 2000
BATCH_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class Imported:
    """What became of one session of a source. `children` are its subagents."""

    session: str
    found: Found
    title: str
    counts: Counts
    children: list[Imported] = field(default_factory=list)

    def all(self) -> list[Imported]:
        """Itself and all below it."""
        return [self, *(inner for child in self.children for inner in child.all())]


class Importer:
    """Stores the sessions of one source. Ids are given out once for each foreign key."""

    def __init__(self, db: Database, new_id: Callable[[], str], losses: Losses) -> None:
        self._db = db
        self._new_id = new_id
        self.losses = losses
        self._ids: dict[str, str] = {}

    def id_of(self, key: str) -> str:
        """The id here of the session that is called `key` in the source."""
        if key not in self._ids:
            self._ids[key] = self._new_id()
        return self._ids[key]

    def store(self, found: Found, parent: str | None = None) -> Imported:
        """Read `found` and write it, with its subagents. What it raises leaves nothing of the session behind."""
        session = self.id_of(found.key)
        writer = _Batches(self._db, session)
        done = Imported(session, found, found.title, Counts())
        story = Story(found.format, writer.add, self.id_of, self.losses, parent)
        story.child = lambda child: done.children.append(self.store(child, session))
        try:
            with _no_collection():
                found.tell(story)
            writer.flush()
        except BaseException:
            for one in done.all():
                self._db.write(partial(forget, session=one.session))
            raise
        done.counts, done.title = story.counts, writer.title
        return done


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let the garbage collector rest: records make no circles, and looking through them takes an eighth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Batches:
    """Collects entries and writes them together."""

    def __init__(self, db: Database, session: str) -> None:
        self._db = db
        self._session = session
        self._entries: list[Entry] = []
        self._bytes = 0
        self.title = ""

    def add(self, entry: Entry) -> None:
        if entry.seq == 1:
            self.title = str(entry.change.payload.get("title", ""))
        self._entries.append(entry)
        self._bytes += _size(entry.change.payload)
        if len(self._entries) >= BATCH or self._bytes >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        rows = [
            {
                "session": self._session,
                "seq": entry.seq,
                "time": entry.time,
                "kind": entry.change.kind,
                "actor": entry.change.actor,
                "payload": entry.change.payload,
                "cause": None,
            }
            for entry in self._entries
        ]
        self._entries, self._bytes = [], 0
        if rows:
            self._db.write(lambda conn: restore(conn, self._session, rows))


def _size(payload: Any) -> int:
    """About how many bytes a payload holds, counted by its texts."""
    total, waiting = 0, [payload]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return total
