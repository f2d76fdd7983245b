"""What a host tells, for any number of listeners, without losing what they need.

Which jobs are watched, and one queue a listener. Progress of a job replaces its older progress that nobody has taken
yet, so a slow listener costs little; other events are kept in order. A driver runs for weeks: a job is forgotten with
its end, a listener when nobody holds its stream any more. Who comes late asks the host again, by `watch`.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from tools.jobs import ContactEvent, JobEvent, JobState

Event = JobEvent | ContactEvent


class EventStream(AsyncIterator[Event]):
    """One listener's events, from the moment it was opened; ends when the host is closed."""

    def __init__(self) -> None:
        self._events: OrderedDict[object, Event] = OrderedDict()
        self._count = 0
        self._news = asyncio.Event()
        self._closed = False

    def put(self, event: Event) -> None:
        """Add an event; progress takes the place of that job's untaken progress."""
        self._count += 1
        progress = isinstance(event, JobEvent) and event.kind == "progress"
        self._events[event.job.id if progress else self._count] = event  # type: ignore[union-attr]
        self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def __anext__(self) -> Event:
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._events.popitem(last=False)[1]


class EventStreams:
    """All listeners of one host, and the jobs that it watches: those whose end is not known."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._streams: weakref.WeakSet[EventStream] = weakref.WeakSet()
        self._watched: set[str] = set()

    def open(self) -> EventStream:
        """A new listener."""
        stream = EventStream()
        self._streams.add(stream)
        return stream

    def put(self, event: Event) -> None:
        """Tell every listener."""
        for stream in self._streams:
            stream.put(event)

    def told(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Events as the remote half sends them, each `{"kind", "state"}`."""
        for told in events:
            event = JobEvent(told["kind"], self._host, JobState.from_wire(told["state"]))
            if event.job.id in self._watched:
                if event.kind in ("exit", "lost"):
                    self._watched.discard(event.job.id)
                self.put(event)

    def watch(self, ids: Iterable[str]) -> None:
        """Remember that these are watched, for the next contact too."""
        self._watched.update(ids)

    def unwatch(self, ids: Iterable[str]) -> None:
        """Forget them."""
        self._watched.difference_update(ids)

    def open_jobs(self) -> list[str]:
        """Watched jobs whose end is not known."""
        return sorted(self._watched)

    def close(self) -> None:
        """End every listener's stream after what it has not taken yet."""
        for stream in self._streams:
            stream.close()
        self._streams.clear()
