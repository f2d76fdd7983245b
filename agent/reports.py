"""Keeps what running jobs report of themselves in the session's log: how far they are, and their last log line.

    reports = Reports(db, session)
    reports.saw(host, state)       # from the event loop, as often as a host tells
    await reports.run()            # beside the dispatcher, for ever

A job may report many times a second for days. What is kept thins out with its age (`due_after`), so that an hour leaves
some hundred messages and a week not many more. Nothing depends on these messages: they make no row, the core never
sees them, and losing the last ones in a crash loses a point of a curve.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio
import structlog
from sqlalchemy.exc import OperationalError

from state.changes import Change, job_reported
from state.db import Database
from state.log import append
from tools.jobs import JobState

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 1.0
FIRST_AFTER_S = 1.0
LEAST_S = 2.0
SHARE = 1 / 60
"""A job of age `t` is kept every `t * SHARE` seconds: 60 messages up to two minutes, then 60 for each factor of e."""
MAX_LINE = 300


@dataclass(slots=True)
class _Seen:
    """A job's newest report and when one was last kept (`time.monotonic`)."""

    since: float
    host: str
    state: JobState
    kept: float | None = None
    fresh: bool = True
    line: str = ""


def due_after(age: float) -> float:
    """Seconds between two kept reports of a job that has reported for `age` seconds."""
    return max(LEAST_S, age * SHARE)


class Reports:
    """What the jobs of one session report; see the module's text."""

    def __init__(self, db: Database, session: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._db, self._session, self._clock = db, session, clock
        self._seen: dict[str, _Seen] = {}

    def saw(self, host: str, state: JobState) -> None:
        """A host told how far a job is."""
        if state.progress is None:
            return
        seen = self._seen.setdefault(state.id, _Seen(self._clock(), host, state))
        seen.state, seen.fresh = state, True
        if any(digit in state.progress.line for digit in "0123456789"):
            seen.line = state.progress.line  # kept until the next report: a measurement says more than a remark

    async def end(self, state: JobState) -> None:
        """A job has ended: keep its last word, unless it was over before anything of it was kept."""
        seen = self._seen.pop(state.id, None)
        if seen is None or seen.kept is None:
            return
        if state.progress is not None:
            seen.fresh = seen.fresh or state.progress != seen.state.progress
            seen.state = state
        if seen.fresh:
            await self._keep([seen])

    async def run(self) -> None:
        """Keep what is due, again and again, until cancelled."""
        while True:
            await anyio.sleep(LOOK_EVERY_S)
            await self.keep_due()

    async def keep_due(self) -> None:
        """Keep what is due now."""
        await self._keep(self._due())

    def _due(self) -> list[_Seen]:
        now = self._clock()
        return [seen for seen in self._seen.values() if seen.fresh and now >= _due_at(seen)]

    async def _keep(self, due: Sequence[_Seen]) -> None:
        if not due:
            return
        changes = [_change(seen) for seen in due]
        try:
            await self._db.awrite(lambda conn: append(conn, self._session, changes, time.time()))
        except OperationalError as error:  # the database is busy: what is due now is due again in a second
            log.info("reports of jobs are kept later", error=str(error.orig))
            return
        for seen in due:
            seen.kept, seen.fresh, seen.line = self._clock(), False, ""


def _due_at(seen: _Seen) -> float:
    if seen.kept is None:
        return seen.since + FIRST_AFTER_S
    return seen.kept + due_after(seen.kept - seen.since)


def _change(seen: _Seen) -> Change:
    progress = seen.state.progress
    assert progress is not None
    line = (seen.line or progress.line)[:MAX_LINE]
    return job_reported(
        seen.state.id, seen.host, done=progress.done, total=progress.total, unit=progress.unit, line=line
    )
