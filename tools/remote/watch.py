"""Tells what happens to jobs without being asked: ended, ready, progress; and hands on logs as they grow.

The end of a supervisor is noticed by a pidfd, at once and without cost while nothing happens; where the kernel has
none, or descriptors run out, a look each second does. A slow look at everything is the net below both.
"""

from __future__ import annotations

import os
import selectors
import time
from contextlib import suppress
from typing import Any, Callable, Iterable, Sequence

from . import jobs, linux, proc, slurm, store, wire

TICK_S = 1.0
READ_TICK_S = 0.2
_FULL_LOOK_S = 30.0
_ENDED = ("exited", "lost")
_EVENTS = {"exited": "exit", "lost": "lost", "ready": "ready", "orphan": "orphan"}
_STARTING = ("launching", "queued")


class _Watch:
    """One watched job: its supervisor's pidfd (or -1), what was last told, its log's last size, if Slurm has it."""

    def __init__(self) -> None:
        self.pidfd = -1
        self.told = ""
        self.progress: dict[str, Any] | None = None
        self.mark: tuple[float, float] = (0, 0)
        self.queued = False

    @property
    def may_arm(self) -> bool:
        """Whether there is a supervisor on this machine, and no pidfd for it yet."""
        return not self.queued and self.pidfd < 0 and self.told in ("running", "ready")

    def news(self, state: dict[str, Any]) -> str:
        """The kind of event that this state is, after what was told before; empty for none."""
        now = state["state"]
        if now == "queued" and state["progress"] != self.progress:
            self.progress = state["progress"]
            return "queued"
        if now == "running" and (self.told in _STARTING or (self.queued and not self.told)):
            return "running"
        return _EVENTS.get(now, "") if now != self.told else ""


class Watcher:
    """Watches jobs below `root`; `tell` takes a list of events, each `{"kind", "state"}`; `most` pidfds are opened."""

    def __init__(
        self,
        root: str,
        boot: str,
        selector: selectors.BaseSelector,
        tell: Callable[[list[dict[str, Any]]], None],
        most: int,
    ) -> None:
        self._most, self._armed = most, 0
        self._root, self._boot, self._selector, self._tell = root, boot, selector, tell
        self._watched: dict[str, _Watch] = {}
        self._next_full_look = time.monotonic() + _FULL_LOOK_S

    def add(self, ids: Sequence[str]) -> None:
        """Watch these too. What has already happened to them is told now; an unknown one may yet be launched."""
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

    @property
    def queued(self) -> list[str]:
        """The watched jobs that Slurm has: what becomes of them is seen by looking, and by asking Slurm."""
        return [job for job, watch in self._watched.items() if watch.queued]

    def look_at_queued(self) -> None:
        """Slurm has answered."""
        for job in self.queued:
            store.refresh(os.path.join(self._root, "jobs", job))
        self._tell(self._look(self.queued))

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
            with suppress(OSError):
                events += self._progress(job, watch)
        self._tell(events)

    def _news(self, job: str, watch: _Watch) -> bool:
        return watch.told != "ready" and os.path.exists(os.path.join(self._root, "jobs", job, "ready"))

    def _look(self, ids: Iterable[str], arm: bool = True) -> list[dict[str, Any]]:
        events = []
        for job in dict.fromkeys(ids):
            watch = self._watched[job]
            try:
                state = jobs.state(self._root, job, self._boot)
            except OSError:
                continue  # what one job did to its folder must not end the watch over the others: looked at again
            if state["state"] == "unknown" and watch.told in ("queued", "running", "ready", "orphan"):
                state = {"id": job, "state": "lost", "reason": "its directory on the host was deleted"}
            watch.queued = watch.queued or slurm.is_ours(store.job_folder(self._root, job))
            kind = watch.news(state)
            if kind:
                events.append({"kind": kind, "state": state})
            watch.told = state["state"]
            if state["state"] in _ENDED:
                self.remove([job])
            elif arm and watch.may_arm and not self._arm(job, watch):
                events += self._look([job], arm=False)
        return events

    def _arm(self, job: str, watch: _Watch) -> bool:
        """Wait for the supervisor's end; False when it may have come just before. Without a pidfd each second looks."""
        run = store.read_json(os.path.join(self._root, "jobs", job, "run")) or {}
        if self._armed >= self._most:
            return True
        try:
            watch.pidfd = linux.pidfd_open(run["pid"])
        except ProcessLookupError:
            return False
        except (OSError, KeyError):
            return True
        self._armed += 1
        if not proc.alive(run["pid"], run["ticks"]):
            self._drop(watch)
            return False
        self._selector.register(watch.pidfd, selectors.EVENT_READ, lambda: self._ended(job))
        return True

    def _ended(self, job: str) -> None:
        self._drop(self._watched[job])
        self._tell(self._look([job]))

    def _drop(self, watch: _Watch) -> None:
        if watch.pidfd >= 0:
            if watch.pidfd in self._selector.get_map():
                self._selector.unregister(watch.pidfd)
            os.close(watch.pidfd)
            watch.pidfd = -1
            self._armed -= 1

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


class Readers:
    """Requests to read a log that wait for something to be written, each for a limited time."""

    def __init__(self, root: str, boot: str, send: Callable[[dict[str, Any], bytes], None]) -> None:
        self._root, self._boot, self._send = root, boot, send
        self._waiting: dict[int, tuple[dict[str, Any], float]] = {}  # request id: its header, until when

    def read(self, header: dict[str, Any]) -> None:
        """Answer a `read` at once if there is something, or nothing can come, or it does not want to wait."""
        if not self._answer(header, float(header.get("wait_s") or 0)):
            self._waiting[header["id"]] = (header, time.monotonic() + float(header["wait_s"]))

    def remove(self, request: int) -> None:
        """Nobody waits for this one any more."""
        self._waiting.pop(request, None)

    def pause(self) -> float | None:
        """Seconds until the next look; None when nobody waits."""
        return READ_TICK_S if self._waiting else None

    def tick(self) -> None:
        """Look at all that wait."""
        for request, (header, until) in list(self._waiting.items()):
            if self._answer(header, until - time.monotonic()):
                del self._waiting[request]

    def _answer(self, header: dict[str, Any], wait_s: float) -> bool:
        # The state is looked at before the log: whatever an ended job wrote is then in what is read.
        ended = jobs.state(self._root, header["job"], self._boot)["state"] in _ENDED
        limit = min(int(header["limit"]), wire.MAX_BODY)
        facts, data = jobs.read_log(store.job_folder(self._root, header["job"]), int(header["offset"]), limit)
        if not data and not facts["truncated"] and not ended and wait_s > 0:
            return False
        self._send({"id": header["id"], "piece": facts, "ended": ended}, data)
        return True
