"""Processes that run quick commands, one after another, and the pool of those that have nothing to do.

A fork for each command would cost more than the command: a runner is forked once, takes requests from a socket, and
runs each with `quick.command`. It goes when a command left processes behind (they would be taken for the next
command's), when its socket closes (the driver gave up, or the channel is gone; a command that runs is ended first), and
when it has been idle for some seconds.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from . import quick, wire, worker

_IDLE_S = 20.0
# A frame of this size always fits into the empty socket of an idle runner; a larger one is forked along.
_MOST_SENT = 64 << 10


class Pool:
    """The serving process's idle runners, the one that was used last at the end."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._idle: list[tuple[float, worker.Worker]] = []

    def run(self, request: dict[str, Any], body: bytes) -> worker.Worker:
        """Have a runner do `request`: an idle one, or a new one. Raises OSError when none can be forked."""
        if len(body) + len(request["command"]) < _MOST_SENT:
            frame = wire.encode(request, body)
            while self._idle and len(frame) <= _MOST_SENT:
                runner = self._idle.pop()[1]
                try:
                    if os.write(runner.pipe, frame) == len(frame):
                        return runner
                except OSError:
                    pass  # it was killed while it was idle
                os.close(runner.pipe)
        ours, theirs = socket.socketpair()
        root = self.root
        return worker.start(lambda report: _serve(report, root, request, body), ends=(ours.detach(), theirs.detach()))

    def give(self, runner: worker.Worker) -> None:
        """This runner has answered and waits for more."""
        self._idle.append((time.monotonic(), runner))

    def retire(self) -> None:
        """Let go of runners that nobody needed for a while."""
        oldest = time.monotonic() - _IDLE_S
        while self._idle and self._idle[0][0] < oldest:
            os.close(self._idle.pop(0)[1].pipe)


def _serve(report: worker.Report, root: str, request: dict[str, Any], body: bytes) -> None:
    decoder = wire.Decoder()
    while True:
        result, output = quick.command(request, body, root, report.abandoned)
        leaves = _left_something()
        if not report.send({"result": result, "leaves": leaves}, output) or leaves:
            return
        frames: list[wire.Frame] = []
        while not frames:
            data = os.read(report.fd, wire.CHUNK)
            if not data:
                return
            frames = decoder.feed(data)
        ((request, body),) = frames


def _left_something() -> bool:
    """Whether processes of the command are left, which are children of ours now."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
