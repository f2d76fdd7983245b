"""Forks processes off the serving one and carries their answers back through a pipe.

Whatever may block (a disk, a grace, a stuck driver) runs in such a process, so that the loop of `serve` never waits.
A fork of a small Python is cheaper (about 1 ms) than a new interpreter (20 ms and more). `start` forks; the work
gets a `Report` to answer with; the loop reads frames from `Worker.pipe`. A worker that ends without a last frame
crashed, and its end says so.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import select
import signal
import traceback
from typing import Any, Callable, Iterable, NoReturn, Sequence

from . import linux, wire


class Report:
    """The worker's end of the pipe. Writing to a reader that has gone is no error: nobody is left to tell."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def send(self, header: dict[str, Any], body: bytes = b"") -> bool:
        """One frame; False when nobody reads any more."""
        try:
            view = memoryview(wire.encode(header, body))
            while view:
                view = view[os.write(self.fd, view) :]
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def abandoned(self) -> bool:
        """Whether the reading end is closed (the requester gave up, or the channel is gone)."""
        poll = select.poll()
        poll.register(self.fd, 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))

    def close(self) -> None:
        os.close(self.fd)


class Worker:
    """The serving process's end: `pid`, and `pipe` (non-blocking) to read frames from."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self.pipe = pipe
        self.decoder = wire.Decoder()


def tell_crash(report: Report) -> None:
    """Answer with the traceback of the exception that is being handled."""
    message = "the remote half failed: " + traceback.format_exc()[-1500:]
    report.send({"error": {"kind": "host", "message": message}})


def start(
    work: Callable[[Report], None],
    crash: Callable[[Report], None] = tell_crash,
    ends: tuple[int, int] | None = None,
) -> Worker:
    """Fork a process that runs `work` and ends; `crash` runs in it, the exception at hand, when `work` raised.

    `ends` are descriptors to use instead of a pipe: ours and the worker's. Raises OSError, and closes both, when there
    are no more processes or descriptors to be had.
    """
    reader, writer = ends or os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if pid == 0:
        report = Report(writer)
        fork_body(lambda: work(report), keep=(writer,), crash=lambda: crash(report))
    os.close(writer)
    os.set_blocking(reader, False)
    return Worker(pid, reader)


def fork_body(work: Callable[[], None], keep: Iterable[int], crash: Callable[[], None] = lambda: None) -> NoReturn:
    """Run `work` in a process just forked, in a session of its own, holding no descriptor but `keep`; never returns."""
    code = 1
    try:
        gc.disable()  # a collection would write to pages that are shared with the parent
        os.setsid()
        linux.set_name("turnout-work")
        _let_go(set(keep))
        work()
        code = 0
    finally:
        if code:
            crash()
        os._exit(code)


def _let_go(keep: set[int]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream, inheritable=True)
    start = 3
    for fd in [*sorted(keep), 1 << 30]:
        linux.close_range(start, fd - 1)
        start = fd + 1


# What Python and a supervisor changed and a program must not inherit: ignored SIGPIPE and SIGXFSZ, blocked signals.
_CHANGED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def spawn(argv: Sequence[str], env: dict[str, str], cwd: str, streams: dict[int, int]) -> int:
    """Start a program in a session of its own, in the folder `cwd`; its pid. `streams` are its 0, 1, 2 from ours.

    Spawned, not forked: a fork would copy this process's tables only for the program to throw them away. The folder is
    ours too for that moment, so this is for processes with one thread. Raises OSError, with the system's reason.
    """
    worn = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in streams.items()]
    restore_descriptor_limit()
    try:
        os.chdir(cwd)
        return _spawn(argv, env, file_actions=worn, setsigmask=(), setsigdef=_CHANGED_SIGNALS)
    except ValueError as error:  # a NUL byte in the environment
        raise OSError(errno.EINVAL, str(error)) from error
    finally:
        os.chdir("/")  # hold nobody's mount


def _spawn(argv: Sequence[str], env: dict[str, str], **how: Any) -> int:
    try:
        return os.posix_spawnp(argv[0], list(argv), env, setsid=True, **how)
    except NotImplementedError:  # a C library before glibc 2.26: a group of its own, and the cookie finds the rest
        return os.posix_spawnp(argv[0], list(argv), env, setpgroup=0, **how)


_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as it may have: one for each watched job."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_descriptors[1], _descriptors[1]))


def restore_descriptor_limit() -> None:
    """Give a command the limit that the login had; programs that use select() break above 1,024."""
    resource.setrlimit(resource.RLIMIT_NOFILE, _descriptors)
