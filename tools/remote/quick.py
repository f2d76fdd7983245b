"""One quick command: bounded in time and output, ended with all its processes, its answer never waiting for EOF.

A process that left the command's group and keeps its output open (`setsid sleep 1000 &`) is not waited for: after the
command itself has ended the output is read for two seconds more, and the answer names who still holds it. Runs in a
process of its own (see `runner`), which also ends the command when nobody waits for the answer any more.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import time
from collections import deque
from typing import Any, Callable, Sequence

from . import ending, linux, proc, store, supervisor, worker

_HELD_S = 2.0
_GRACE_S = 1.0
_KILL_WAIT_S = 1.0
_TICK_S = 0.5
_LONGEST_ARGUMENT = 100_000
_MOST_OUTPUT = 4 << 20
_CANNOT_START = 126
_ASKS = re.compile(rb"sudo: (a password is required|a terminal is required|no tty present)|/dev/tty: No such device")


class Output:
    """One stream: the first and last `limit // 2` bytes of it, and the exact count."""

    def __init__(self, fd: int, limit: int) -> None:
        self.fd = fd
        self.count = 0
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0

    def read(self) -> bool:
        """Take what is there; False at the end."""
        data = os.read(self.fd, 65536)
        self.count += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        if data[room:]:
            self._tail.append(data[room:])
            self._tail_size += len(data) - room
            while self._tail_size - len(self._tail[0]) >= self._half:
                self._tail_size -= len(self._tail.popleft())
        return bool(data)

    def parts(self) -> tuple[bytes, bytes]:
        """Head and tail. When nothing was left out between them they are one whole."""
        return bytes(self._head), b"".join(self._tail)[-self._half :]


def command(
    request: dict[str, Any], stdin: bytes, root: str, abandoned: Callable[[], bool]
) -> tuple[dict[str, Any], bytes]:
    """Run a shell command as the `run` request asks: rc or signal, how long it took, counts; both outputs."""
    shell = shutil.which("bash") or "/bin/sh"
    text, script = request["command"], -1
    argv = [shell, "-c", text]
    if len(text) >= _LONGEST_ARGUMENT:  # one argument of a program may have 128 KiB at most
        script = os.memfd_create("turnout", 0)
        store.write_all(script, text.encode("utf-8", "surrogateescape"))
        argv = [shell, f"/proc/self/fd/{script}"]
    limit = min(request.get("max_output", 65536), _MOST_OUTPUT)
    result, bodies = run(
        argv, stdin, request.get("timeout_s", 30.0), limit, abandoned,
        cwd=request.get("cwd"), env=request.get("env") or {}, root=root,
    )  # fmt: skip
    if script >= 0:
        os.close(script)
    return result, b"".join(bodies)


def run(
    argv: Sequence[str],
    stdin: bytes,
    limit_s: float,
    max_output: int,
    abandoned: Callable[[], bool] = lambda: False,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    root: str = "",
) -> tuple[dict[str, Any], list[bytes]]:
    """Run `argv` and wait for the process, at most `limit_s`; the result and [stdout head, tail, stderr head, tail].

    Needs a process of its own: it adopts the orphans of the command to know who still holds the output.
    """
    linux.become_subreaper()
    cookie = f"quick-{os.getpid()}-{time.monotonic_ns()}"
    given = dict(_plain(os.environ), **(env or {}), **{proc.ROOT: root})
    return _Run(cookie, argv, stdin, max_output, cwd, given).wait(time.monotonic() + limit_s, abandoned)


def _plain(environment: Any) -> dict[str, str]:
    """The environment without what would let a program ask a person: there is none."""
    asks = ("SUDO_ASKPASS", "SSH_ASKPASS", "GIT_ASKPASS")
    return dict({k: v for k, v in environment.items() if k not in asks}, GIT_TERMINAL_PROMPT="0")


class _Run:
    def __init__(
        self, cookie: str, argv: Sequence[str], stdin: bytes, limit: int, cwd: str | None, env: dict[str, str]
    ) -> None:
        self.begun = self.heard = time.monotonic()
        self.root = env[proc.ROOT]
        self.stdin = memoryview(stdin)
        self.status: int | None = None
        self.left: list[proc.Process] = []
        ends = [os.pipe(), os.pipe(), os.pipe()]  # stdin, stdout, stderr
        self.pid = self._start(argv, [ends[0][0], ends[1][1], ends[2][1]], cwd, dict(env, **{proc.COOKIE: cookie}))
        for fd in (ends[0][0], ends[1][1], ends[2][1]):
            os.close(fd)
        self.input = ends[0][1]
        os.set_blocking(self.input, False)
        self.outputs = [Output(ends[1][0], limit), Output(ends[2][0], limit)]
        process = proc.read(self.pid)
        self.family = proc.Family(cookie, self.pid, process.ticks if process else 0, os.getpid())
        self.poll = select.poll()
        self.tick = _TICK_S
        self.pidfd = -1
        try:
            self.pidfd = linux.pidfd_open(self.pid)
            self.poll.register(self.pidfd, select.POLLIN)
        except OSError:
            self.tick = 0.02  # a kernel before 5.3 does not tell when the command ends: look
        self.open = {output.fd: output for output in self.outputs}
        for fd in self.open:
            self.poll.register(fd, select.POLLIN)
        if stdin:
            self.poll.register(self.input, select.POLLOUT)
        else:
            self._close_input()

    def _start(self, argv: Sequence[str], streams: list[int], cwd: str | None, env: dict[str, str]) -> int:
        """The pid of the command; one that cannot be started has ended with 126 and says why."""
        wanted = dict(enumerate(streams))
        if not self.stdin:
            del wanted[0]  # ours is the null device
        try:
            return worker.spawn(argv, env, store.expand(cwd or "~"), wanted)
        except OSError as error:
            os.write(streams[2], f"turnout: cannot start: {error}\n".encode("utf-8", "surrogateescape"))
            self.status = _CANNOT_START << 8
            return 0

    def wait(self, deadline: float, abandoned: Callable[[], bool]) -> tuple[dict[str, Any], list[bytes]]:
        timed_out = False
        while not self._ended():
            remaining = deadline - time.monotonic()
            if remaining <= 0 or abandoned():
                timed_out = True
                silent = time.monotonic() - self.heard
                self.left = self._end_all()
                break
            self._pump(min(remaining, self.tick))
        held = self._drain()
        self._ended()
        result: dict[str, Any] = {"rc": None, "signal": None, "timed_out": timed_out, "held_by": held}
        if self.status is not None:
            result.update(supervisor.end_of(self.status))
        result["duration"] = time.monotonic() - self.begun
        result["counts"] = [output.count for output in self.outputs]
        bodies = [part for output in self.outputs for part in output.parts()]
        result["lengths"] = [len(part) for part in bodies]
        result["notes"] = self._notes(result, bodies, silent if timed_out else 0.0)
        return result, bodies

    def _end_all(self) -> list[proc.Process]:
        """What is left of the command after TERM, a grace and KILL."""
        job = self.family.job
        return ending.end(self.root, [self.family], {job: _GRACE_S}, _KILL_WAIT_S)[job]

    def _notes(self, result: dict[str, Any], bodies: list[bytes], silent: float) -> list[str]:
        notes = []
        if result["timed_out"]:
            notes.append(f"no output for {silent:.0f} s before the limit")
            if self.left:
                notes.append("still running as pid " + ", ".join(str(p.pid) for p in self.left))
        if result["held_by"]:
            notes.append("output still held by pid " + ", ".join(map(str, result["held_by"])))
            notes.append("what should stay wants all three redirected: `</dev/null >FILE 2>&1 &`, or is a job")
        if result["rc"] != 0 and _ASKS.search(bodies[2] + bodies[3]):
            notes.append("needs a password")
        return notes

    def _ended(self) -> bool:
        """Whether the command itself has ended; collects adopted orphans on the way."""
        while self.status is None:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == self.pid:
                self.status = status
            elif pid == 0:
                break
        return self.status is not None

    def _pump(self, seconds: float) -> None:
        for fd, event in self.poll.poll(seconds * 1000):
            if fd == self.input:
                self._feed(event)
            elif fd in self.open and self.open[fd].read():
                self.heard = time.monotonic()
            elif fd in self.open:
                self.poll.unregister(fd)
                os.close(fd)
                del self.open[fd]

    def _feed(self, event: int) -> None:
        try:
            if event & select.POLLERR:
                raise BrokenPipeError
            self.stdin = self.stdin[os.write(self.input, self.stdin) :]
        except BrokenPipeError:
            self.stdin = self.stdin[:0]  # the command does not want it: its right
        if not self.stdin:
            self.poll.unregister(self.input)
            self._close_input()

    def _close_input(self) -> None:
        os.close(self.input)
        self.input = -1

    def _drain(self) -> list[int]:
        """Read on until EOF, two seconds at most; who holds the output open after that."""
        deadline = time.monotonic() + _HELD_S
        for fd in (self.pidfd, self.input):
            if fd >= 0:
                self.poll.unregister(fd)
                os.close(fd)
        self.input = -1
        while self.open and time.monotonic() < deadline:
            self._pump(max(0.0, deadline - time.monotonic()))
        if not self.open:
            return []
        for fd in self.open:
            os.close(fd)
        return [process.pid for process in proc.families(self.root, [self.family])[self.family.job]]
