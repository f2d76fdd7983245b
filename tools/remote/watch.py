"""Tells what happens to jobs without being asked: ended, ready, progress; and hands on logs as they grow.

The end of a supervisor is noticed by a pidfd, at once and without cost while nothing happens; where the kernel has
none, or descriptors run out, a look each second does. A slow look at everything is the net below both.
"""

from __future__ import annotations

import os
import selectors
import time
from typing import Any, Callable, Sequence

from . import jobs, linux, proc, store, wire

TICK_S = 1.0
_FOLLOW_TICK_S = 0.2
_FULL_LOOK_S = 30.0
_ENDED = ("exited", "lost", "unknown")
_EVENTS = {"exited": "exit", "lost": "lost", "unknown": "lost", "ready": "ready", "orphan": "orphan"}


class _Watch:
    """One watched job: the pidfd of its supervisor (or -1), what was last told, and its log's last size."""

    def __init__(self) -> None:
        self.pidfd = -1
        self.told = ""
        self.progress: dict[str, Any] | None = None
        self.mark: tuple[float, float] = (0, 0)


class Watcher:
    """Watches jobs below `root`; `tell` takes a list of events, each `{"kind", "state"}`."""

    def __init__(
        self, root: str, boot: str, selector: selectors.BaseSelector, tell: Callable[[list[dict[str, Any]]], None]
    ) -> None:
        self._root, self._boot, self._selector, self._tell = root, boot, selector, tell
        self._watched: dict[str, _Watch] = {}
        self._next_full_look = time.monotonic() + _FULL_LOOK_S

    def add(self, ids: Sequence[str]) -> None:
        """Watch these too. What has already happened to them is told now."""
        for job in ids:
            store.job_folder(self._root, job)  # an id that is none is refused before anything is remembered
            self._watched.setdefault(job, _Watch()).told = ""
        self._tell(self._look(ids))

    def remove(self, ids: Sequence[str]) -> None:
        """Watch these no longer."""
        for job in ids:
            watch = self._watched.pop(job, None)
            if watch is not None:
                self._drop(watch)

    def __len__(self) -> int:
        return len(self._watched)

    def tick(self) -> None:
        """Once a second: progress of all, and a full look at those that nothing else would tell about."""
        now = time.monotonic()
        if now >= self._next_full_look:
            self._next_full_look = now + _FULL_LOOK_S
            events = self._look(list(self._watched))
        else:
            blind = [job for job, watch in self._watched.items() if watch.pidfd < 0 or self._news(job, watch)]
            events = self._look(blind)
        for job, watch in self._watched.items():
            events += self._progress(job, watch)
        self._tell(events)

    def _news(self, job: str, watch: _Watch) -> bool:
        return watch.told != "ready" and os.path.exists(os.path.join(self._root, "jobs", job, "ready"))

    def _look(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        events = []
        for job in ids:
            watch = self._watched[job]
            state = jobs.state(self._root, job, self._boot)
            if state["state"] in _EVENTS and state["state"] != watch.told:
                events.append({"kind": _EVENTS[state["state"]], "state": state})
            watch.told = state["state"]
            if state["state"] in _ENDED:
                self.remove([job])
            elif watch.pidfd < 0 and state["state"] in ("running", "ready"):
                events += self._arm(job, watch)
        return events

    def _arm(self, job: str, watch: _Watch) -> list[dict[str, Any]]:
        """Wait for the supervisor's end. It may have come just before: then the state is looked at once more."""
        run = store.read_json(os.path.join(self._root, "jobs", job, "run")) or {}
        try:
            watch.pidfd = linux.pidfd_open(run["pid"])
        except ProcessLookupError:
            return self._look([job])
        except (OSError, KeyError):
            return []  # no pidfd to be had: the look each second does it
        if not proc.alive(run["pid"], run["ticks"]):
            self._drop(watch)
            return self._look([job])
        self._selector.register(watch.pidfd, selectors.EVENT_READ, lambda: self._ended(job))
        return []

    def _ended(self, job: str) -> None:
        self._drop(self._watched[job])
        self._tell(self._look([job]))

    def _drop(self, watch: _Watch) -> None:
        if watch.pidfd >= 0:
            if watch.pidfd in self._selector.get_map():
                self._selector.unregister(watch.pidfd)
            os.close(watch.pidfd)
            watch.pidfd = -1

    def _progress(self, job: str, watch: _Watch) -> list[dict[str, Any]]:
        folder = os.path.join(self._root, "jobs", job)
        mark = (_changed(os.path.join(folder, "log")), _changed(os.path.join(folder, "progress.json")))
        if mark == watch.mark:
            return []
        watch.mark = mark
        progress = jobs.progress(folder)
        if not progress or progress == watch.progress:
            return []
        watch.progress = progress
        state = dict(jobs.log_facts(folder), id=job, state=watch.told or "running", progress=progress)
        return [{"kind": "progress", "state": state}]


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


class Follower:
    """Hands on the logs of running jobs as they grow, each until its job has ended and everything was sent."""

    def __init__(self, root: str, boot: str, send: Callable[[dict[str, Any], bytes], None]) -> None:
        self._root, self._boot, self._send = root, boot, send
        self._follows: dict[int, list[Any]] = {}  # request id: [job, offset, next look]

    def add(self, request: int, job: str, offset: int) -> None:
        """Follow the log of `job` from `offset`, answering `request`."""
        store.job_folder(self._root, job)
        self._follows[request] = [job, offset, 0.0]

    def remove(self, request: int) -> None:
        """Follow no longer."""
        self._follows.pop(request, None)

    def pause(self) -> float | None:
        """Seconds until the next look; None when nothing is followed."""
        if not self._follows:
            return None
        soonest: float = min(entry[2] for entry in self._follows.values())
        return max(0.0, soonest - time.monotonic())

    def tick(self, room: Callable[[], bool]) -> None:
        """Send what has been written since, while the channel has room."""
        now = time.monotonic()
        for request, entry in list(self._follows.items()):
            if now < entry[2] or not room():
                continue
            job, offset, _ = entry
            ended = jobs.state(self._root, job, self._boot)["state"] in _ENDED  # before reading: nothing comes after it
            facts, data = jobs.read_log(store.job_folder(self._root, job), offset, wire.CHUNK)
            if data or facts["truncated"]:
                entry[1] = facts["offset"] + len(data)
                self._send({"id": request, "more": True, "piece": facts}, data)
            elif ended:
                del self._follows[request]
                self._send({"id": request}, b"")
            entry[2] = now if data else now + _FOLLOW_TICK_S
