"""Writes a session's facts and tells those who listen, in the order in which they were stored.

scribe = Scribe(db, session)
scribe.listen(transcript.take_all)
seqs = await scribe.write(changes)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from state.changes import Change
from state.db import Database

Listener = Callable[[Sequence[Change], Sequence[int]], None]


class Scribe:
    """One for each session that speaks. What the dispatcher stores itself is passed on with `stored`."""

    def __init__(self, db: Database, session: str) -> None:
        self.db = db
        self.session = session
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call this with all changes from now on, and their numbers."""
        self._listeners.append(listener)

    async def write(self, changes: Sequence[Change]) -> list[int]:
        """Store changes; returns their numbers once they are durable and everybody was told."""
        seqs = await self.db.commit(self.session, changes)
        self.stored(changes, seqs)
        return seqs

    def stored(self, changes: Sequence[Change], seqs: Sequence[int]) -> None:
        """These are stored, by whomever."""
        for listener in self._listeners:
            listener(changes, seqs)
