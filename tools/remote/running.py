"""What the serving loop waits for: forked workers and their answers, and launches of many jobs at once.

Both belong to one `serve.Server`; they read when its selector says so and never block.
"""

from __future__ import annotations

import os
import selectors
from typing import TYPE_CHECKING, Any, Callable, Dict

from . import batch, jobs, store, supervisor, wire, worker

if TYPE_CHECKING:
    from .serve import Server

Header = Dict[str, Any]


class Running:
    """A worker whose frames are awaited. `done` takes the last one; frames before it go to the driver at once."""

    def __init__(self, server: Server, request: int, forked: worker.Worker, kind: str = "") -> None:
        self.server, self.request, self.worker, self.kind = server, request, forked, kind
        self.done: Callable[[Header, bytes], None] = lambda answer, body: None
        self.finished = False
        server.workers[forked.pipe] = self
        server.selector.register(forked.pipe, selectors.EVENT_READ, self._read)

    def _read(self) -> None:
        if not self.server.room():
            self.server.selector.unregister(self.worker.pipe)
            return
        try:
            data = os.read(self.worker.pipe, wire.CHUNK)
        except BlockingIOError:
            return
        except ConnectionResetError:  # a runner was killed
            data = b""
        for answer, body in self.worker.decoder.feed(data):
            if answer.get("more"):
                self.server.send(dict(answer, id=self.request), body)
            else:
                self.finished = True
                stays = answer.pop("leaves", True) is False
                self.done(answer, body)
                if stays:
                    self._release()
                    self.server.pool.give(self.worker)
                    self._make_way()
                    return
        if not data:
            self.stop()
            if not self.finished:
                message = "the process that worked on this request was killed; see the host's `dmesg`"
                self.done({"error": {"kind": "host", "message": message}}, b"")
            self.server.reap()

    def resume(self) -> None:
        """Read on after a pause for want of room."""
        if self.worker.pipe not in self.server.selector.get_map():
            self.server.selector.register(self.worker.pipe, selectors.EVENT_READ, self._read)

    def stop(self) -> None:
        """Read no further; a worker that looks sees that nobody waits."""
        self._release()
        os.close(self.worker.pipe)
        self._make_way()

    def _release(self) -> None:
        if self.worker.pipe in self.server.selector.get_map():
            self.server.selector.unregister(self.worker.pipe)
        del self.server.workers[self.worker.pipe]

    def _make_way(self) -> None:
        if self.kind == "run" and self.server.commands:
            self.server.dispatch(*self.server.commands.popleft())


class Launch:
    """One launch request of many specs: known ids are answered at once, a supervisor is forked for each other one."""

    def __init__(self, server: Server, header: Header) -> None:
        self.server, self.header = server, header
        self.options = header.get("slurm")  # given to `sbatch`; None where there is no Slurm
        self.states: list[Header | None] = [None] * len(header["specs"])
        os.makedirs(os.path.join(server.root, "jobs"), mode=0o700, exist_ok=True)
        folders = [store.job_folder(server.root, spec["id"]) for spec in header["specs"]]  # all are checked first
        for index, (spec, folder) in enumerate(zip(header["specs"], folders)):
            if any(os.path.exists(os.path.join(folder, name)) for name in batch.KNOWN):
                self.states[index] = supervisor.existing(server.root, spec, server.boot)
            else:
                server.queue.append(lambda index=index, spec=spec: self._fork(index, spec))  # type: ignore[misc]
        self._answer_when_complete()

    def _fork(self, index: int, spec: Header) -> None:
        root = self.server.root
        self.server.starting += 1
        try:
            forked = worker.start(
                lambda report: self._start(spec, report),
                crash=lambda report: supervisor.crashed(root, spec["id"], report),
            )
        except OSError as error:  # no more processes: nothing was started, and the id is free
            self._started(index, spec, {"error": {"message": f"cannot start a supervisor: {error.strerror}"}})
            return
        running = Running(self.server, self.header["id"], forked)
        running.done = lambda answer, body: self._started(index, spec, answer)

    def _start(self, spec: Header, report: worker.Report) -> None:
        if self.options is None:
            supervisor.supervise(self.server.root, spec, report)
        else:
            batch.submit(self.server.root, spec, self.options, report)

    def _started(self, index: int, spec: Header, answer: Header) -> None:
        self.server.starting -= 1
        state = answer.get("state") or jobs.state(self.server.root, spec["id"], self.server.boot)
        if "error" in answer and state["state"] in ("unknown", "prepared"):
            state["refused"] = answer["error"]["message"]
        self.states[index] = state
        self._answer_when_complete()

    def _answer_when_complete(self) -> None:
        if None not in self.states:
            states = [state for state in self.states if state is not None]
            self.server.send_states(self.header["id"], states)
            if self.header.get("watch"):
                self.server.watcher.add([state["id"] for state in states if not state.get("refused")])
