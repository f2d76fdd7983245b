"""The resident process of one channel: reads requests from stdin, answers on stdout, ends when stdin ends.

One thread, one selector, many requests in flight. What may block is done by workers (see `worker`); what is answered
here reads small files. Its end hurts no job: supervisors are on their own, and a quick command sees that nobody waits
for it any more. Started by the bootstrap as `main(root, nonce)`, when the line `TURNOUT <nonce> ready` has been read
by the driver everything after it is frames.
"""

from __future__ import annotations

import errno
import gc
import os
import platform
import pwd
import resource
import selectors
import shutil
import socket
import sys
import time
from collections import deque
from typing import Any, Callable, Dict

from . import ending, files, jobs, linux, probe, proc, runner, running, slurm, store, watch, wire, worker

_HIGH_WATER = 1 << 20
_STARTING = 24
_COMMANDS = 64
_OTHER_DESCRIPTORS = 256
# The driver pings every 20 s. Without word for this long it has vanished (sshd may not notice for hours).
_SILENCE_S = 120.0
Header = Dict[str, Any]


class Server:
    """The loop and everything it holds. `run` returns when the channel has ended."""

    def __init__(self, root: str, source: int, sink: int) -> None:
        self.root = root
        self.boot = proc.boot_id()
        self.selector = selectors.DefaultSelector()
        self.source, self.sink = source, sink
        self.decoder = wire.Decoder()
        self.out: deque[memoryview] = deque()
        self.waiting = 0
        self.open = True
        self.heard = time.monotonic()
        self.workers: dict[int, running.Running] = {}
        self.queue: deque[Callable[[], None]] = deque()  # launches that wait for their turn to be forked
        self.commands: deque[wire.Frame] = deque()  # quick commands above the limit
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_DESCRIPTORS
        self.watcher = watch.Watcher(root, self.boot, self.selector, self._tell, most)
        self.readers = watch.Readers(root, self.boot, self.send)
        self.pool = runner.Pool(root)
        self.starting = 0
        self.asking = False
        for fd in (source, sink):
            os.set_blocking(fd, False)
        self.selector.register(source, selectors.EVENT_READ, self._read)

    # -- the loop

    def run(self) -> None:
        next_tick = next_read = 0.0
        while self.open:
            pause = max(0.0, next_tick - time.monotonic())
            reading = self.readers.pause()
            if self.queue and self.starting < _STARTING:
                pause = 0.0
            elif reading is not None:
                pause = min(pause, reading)
            for key, _ in self.selector.select(pause):
                if self.selector.get_map().get(key.fd) == key:  # else what was just done before closed it
                    key.data()
            if self.queue and self.starting < _STARTING:
                self.queue.popleft()()
            now = time.monotonic()
            if now >= next_read:
                next_read = now + watch.READ_TICK_S
                self.readers.tick()
            if now >= next_tick:
                next_tick = now + watch.TICK_S
                self.watcher.tick()
                self._ask_slurm()
                self.reap()
                self.pool.retire()
                self.open = self.open and now - self.heard < _SILENCE_S

    def _read(self) -> None:
        try:
            data = os.read(self.source, 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.open = False
            return
        self.heard = time.monotonic()
        for header, body in self.decoder.feed(data):
            self.dispatch(header, body)

    def send(self, header: Header, body: bytes = b"") -> None:
        data = wire.encode(header, body)
        self.out.append(memoryview(data))
        self.waiting += len(data)
        self._write()

    def send_states(self, request: int, states: list[Header]) -> None:
        """Answer a request with states, in as many frames as it takes."""
        _send_states(lambda answer: self.send(dict(answer, id=request)), states)

    def room(self) -> bool:
        """Whether the driver takes what it is sent; streams pause while it does not."""
        return self.waiting < _HIGH_WATER

    def _write(self) -> None:
        try:
            while self.out:
                count = os.write(self.sink, self.out[0])
                self.waiting -= count
                if count == len(self.out[0]):
                    self.out.popleft()
                else:
                    self.out[0] = self.out[0][count:]
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.EIO):
                raise
            self.open = False
        self._want_write(bool(self.out))

    def _want_write(self, wanted: bool) -> None:
        registered = self.sink in self.selector.get_map()
        if wanted and not registered:
            self.selector.register(self.sink, selectors.EVENT_WRITE, self._write)
        elif registered and not wanted:
            self.selector.unregister(self.sink)
            for forked in self.workers.values():
                forked.resume()

    # -- requests

    def dispatch(self, header: Header, body: bytes) -> None:
        """Do what one request asks. A request that cannot be is answered with an error, not with our end."""
        request = header.get("id")
        try:
            handler = getattr(self, "op_" + str(header["op"]), None)
            if handler is None:
                raise ValueError("this remote half knows no `{}`".format(header["op"]))
            handler(header, body)
        except (ValueError, KeyError, TypeError) as error:
            self.send({"id": request, "error": {"kind": "usage", "message": f"{type(error).__name__}: {error}"}})
        except OSError as error:
            self.send({"id": request, "error": {"kind": "host", "message": str(error)}})

    def op_hello(self, header: Header, body: bytes) -> None:
        try:
            name, shell = pwd.getpwuid(os.getuid())[0::6]
        except KeyError:  # a container may run us under a number that has no name
            name, shell = str(os.getuid()), os.environ.get("SHELL", "/bin/sh")
        self.send({
            "id": header["id"], "protocol": wire.PROTOCOL, "now": time.time(), "boot": self.boot, "root": self.root,
            "home": os.path.expanduser("~"), "shell": shell, "user": name, "uid": os.getuid(),
            "python": platform.python_version(), "executable": sys.executable, "hostname": socket.gethostname(),
            "pid": os.getpid(), "script_shell": shutil.which("bash") or "/bin/sh",
        })  # fmt: skip

    def op_ping(self, header: Header, body: bytes) -> None:
        self.send({"id": header["id"]})

    def op_launch(self, header: Header, body: bytes) -> None:
        running.Launch(self, header)

    def op_status(self, header: Header, body: bytes) -> None:
        self.send_states(header["id"], [jobs.state(self.root, job, self.boot) for job in header["ids"]])

    def op_watch(self, header: Header, body: bytes) -> None:
        self.op_status(header, body)
        self.watcher.add(header["ids"])

    def op_unwatch(self, header: Header, body: bytes) -> None:
        self.watcher.remove(header["ids"])
        self.send({"id": header["id"]})

    def op_read(self, header: Header, body: bytes) -> None:
        self.readers.read(header)

    def op_cancel(self, header: Header, body: bytes) -> None:
        """Stop answering `target`: a read that waits, a get, or a quick command, which then ends itself."""
        self.readers.remove(header["target"])
        for forked in list(self.workers.values()):
            if forked.request == header["target"] and forked.kind:
                forked.stop()

    def op_kill(self, header: Header, body: bytes) -> None:
        ids, grace = [str(job) for job in header["ids"]], header.get("grace_s")
        for job in ids:
            store.job_folder(self.root, job)
        self.fork(header["id"], lambda report: _send_states(report.send, ending.kill(self.root, ids, grace)))

    def op_run(self, header: Header, body: bytes) -> None:
        if sum(forked.kind == "run" for forked in self.workers.values()) >= _COMMANDS:
            self.commands.append((header, body))
        else:
            self._answer(header["id"], self.pool.run(header, body), "run")

    def op_probe(self, header: Header, body: bytes) -> None:
        self.fork(header["id"], lambda report: _send_facts(report, self.root))

    def op_have(self, header: Header, body: bytes) -> None:
        path = files.folder_of(self.root, header["hash"])
        self.send({"id": header["id"], "path": path if os.path.isdir(path) else None})

    def op_put(self, header: Header, body: bytes) -> None:
        files.put(self.root, header["upload"], int(header["offset"]), body)
        self.send({"id": header["id"]})

    def op_finish(self, header: Header, body: bytes) -> None:
        self.fork(header["id"], lambda report: files.finish(self.root, header, report))

    def op_get(self, header: Header, body: bytes) -> None:
        self.fork(header["id"], lambda report: files.get(header, report), kind="get")

    def op_list(self, header: Header, body: bytes) -> None:
        ids = files.listing(self.root, int(header["limit"]))
        self.fork(header["id"], lambda report: self._list(ids, report))

    def op_clean(self, header: Header, body: bytes) -> None:
        self.fork(header["id"], lambda report: files.clean(self.root, header["ids"], report))

    def _list(self, ids: list[str], report: worker.Report) -> None:
        slurm.refresh(self.root, ids)
        _send_states(report.send, [jobs.state(self.root, job, self.boot) for job in ids])

    # -- Slurm

    def _ask_slurm(self) -> None:
        """Have a worker ask, when the last answer is some seconds old and there are jobs of Slurm's to watch."""
        if self.asking or not self.watcher.queued or time.monotonic() - slurm.queue.tried < slurm.EVERY_S:
            return
        slurm.queue.begin()
        try:
            running.Running(self, 0, worker.start(_send_rows)).done = self._slurm_said
        except OSError:  # no more processes
            slurm.queue.in_vain()
        else:
            self.asking = True

    def _slurm_said(self, answer: Header, body: bytes) -> None:
        self.asking = False
        if "rows" in answer:
            slurm.queue.take(answer["rows"])
            self.watcher.look_at_queued()
        else:  # no answer is no news; ask again after the usual pause
            slurm.queue.in_vain()

    # -- workers

    def fork(self, request: int, work: Callable[[worker.Report], None], *, kind: str = "") -> None:
        """Answer `request` with the frames of a forked worker."""
        self._answer(request, worker.start(work), kind)

    def _answer(self, request: int, process: worker.Worker, kind: str) -> None:
        forked = running.Running(self, request, process, kind)
        forked.done = lambda answer, body: self.send(dict(answer, id=request), body)

    def reap(self) -> None:
        """Collect whatever has ended; answers come by pipes, so nothing is asked of the statuses."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    def _tell(self, events: list[Header]) -> None:
        for group in wire.groups(events):
            self.send({"events": group})


def _send_states(send: Callable[[Header], Any], states: list[Header]) -> None:
    groups = wire.groups(states) or [[]]
    for group in groups:
        send({"states": group, "more": group is not groups[-1]})


def _send_rows(report: worker.Report) -> None:
    try:
        report.send({"rows": [list(row) for row in slurm.ask()]})
    except OSError as error:
        report.send({"error": {"kind": "host", "message": str(error)}})


def _send_facts(report: worker.Report, root: str) -> None:
    report.send({"facts": probe.facts(root)})


def main(root: str, nonce: str) -> None:
    """Serve on this process's stdin and stdout until stdin ends."""
    root = store.expand(root)
    os.makedirs(root, mode=0o700, exist_ok=True)
    # bash reads ~/.bashrc for each `bash -c` below sshd unless it is nested; the login shell has read it already.
    os.environ["SHLVL"] = "1"
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # a stray print must not break the frames
    linux.set_name("turnout-serve")
    worker.raise_descriptor_limit()
    gc.collect()
    gc.freeze()  # what is imported stays shared with every process forked from here
    os.write(sink, (f"TURNOUT {nonce} ready\n").encode("ascii"))
    Server(root, source, sink).run()
