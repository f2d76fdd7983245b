"""Requests to a host that live longer than a connection.

A `Lane` keeps one channel to the host's remote half open, opens it again with growing pauses when it is lost, and
sends again those requests that may be sent twice. Others fail as Unreachable: what they did is unknown. Without
contact a request waits `patience_s`, then fails with what was seen last.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import asyncssh

from state.errors import HostError, HostUnusable, JobError, Unreachable, UsageError
from tools.channel import Channel, OnFrame
from tools.remote.wire import Frame

# Between attempts: at most this long while a host may come back, longer when somebody has to mend something first.
_RETRY_S, _MENDING_S = 10.0, 30.0
# The remote half ends when it hears nothing for two minutes: a client that vanished must not leave it behind.
_PING_S = 20.0
_SILENCE_S = 60.0
_FRAMES_AHEAD = 64
_ERRORS = {"usage": UsageError, "job": JobError}


def _hopeless(error: HostError) -> bool:
    """Whether the next attempt will fail alike: a wrong key, no Python, a refused login, no such name or port."""
    causes = (ConnectionRefusedError, socket.gaierror, asyncssh.PermissionDenied)
    return not isinstance(error, Unreachable) or isinstance(error.__cause__, causes)


def _afresh(error: HostError) -> HostError:
    """The same error once more: one exception object must not be raised in two places."""
    return type(error)(error.message, hint=error.hint)


class _Request:
    """One request in flight. `frames` gets its answers; an exception in it ends the request."""

    def __init__(self, header: dict[str, Any], body: bytes, again: bool, answer_s: float | None) -> None:
        self.header, self.body, self.again, self.answer_s = header, body, again, answer_s
        self.frames: asyncio.Queue[Frame | BaseException] = asyncio.Queue()
        self.sent = False
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, seconds: float | None, error: Callable[[], HostError]) -> None:
        """Fail with `error()` unless something arms or disarms it within `seconds`."""
        self.disarm()
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, lambda: self.frames.put_nowait(error()))

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Lane:
    """One channel, for ever. `on_contact` is called when it is open, `on_loss` with why it is not."""

    def __init__(
        self,
        name: str,
        opener: Callable[[OnFrame], Awaitable[Channel]],
        *,
        patience_s: float,
        on_events: Callable[[list[dict[str, Any]]], None] = lambda events: None,
        on_contact: Callable[[], None] = lambda: None,
        on_loss: Callable[[HostError], None] = lambda error: None,
    ) -> None:
        self._name, self._opener, self._patience_s = name, opener, patience_s
        self._on_events, self._on_contact, self._on_loss = on_events, on_contact, on_loss
        self._requests: dict[int, _Request] = {}
        self._ids = itertools.count(1)
        self._channel: Channel | None = None
        self._error: HostError = Unreachable(f"no contact with `{name}` yet")
        self._heard = 0.0
        self._task: asyncio.Task[None] | None = None
        self._waiting: dict[asyncio.Future[None], float] = {}  # until when

    def start(self) -> None:
        """Begin to connect, if not begun."""
        if self._task is None:
            self._task = asyncio.create_task(self._live(), name=f"lane to {self._name}")
            self._task.add_done_callback(self._died)

    async def connected(self) -> None:
        """Wait for contact. Raises what prevents it: at once when trying again would not help, otherwise with the first
        attempt that ends after the patience has.
        """
        self.start()
        if self._channel is not None:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = asyncio.get_running_loop().time() + self._patience_s
        try:
            await waiter
        finally:
            del self._waiting[waiter]

    async def close(self) -> None:
        """End the channel and fail what is in flight. The remote half ends with it; jobs do not."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        closed = Unreachable(f"the connection to `{self._name}` was closed here")
        self._lost(closed, everything=True)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(_afresh(closed))

    # -- the connection

    async def _live(self) -> None:
        failures = 0
        while True:
            try:
                channel = await self._opener(self._frame)
            except HostError as error:
                failures += 1
                self._failed(error)
                mending = not isinstance(error, Unreachable) or isinstance(error.__cause__, asyncssh.PermissionDenied)
                pause = _MENDING_S if mending else min(_RETRY_S, 0.25 * 2**failures)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                continue
            failures = 0
            self._made(channel)
            try:
                why = await self._alive(channel)
            finally:
                self._channel = None
                channel.close()
            self._lost(Unreachable(f"lost contact with `{self._name}`: {why}"))

    async def _alive(self, channel: Channel) -> str:
        """Wait until the channel is lost, and why; a remote half that is silent although it is asked counts as lost."""
        while True:
            await asyncio.wait([channel.lost], timeout=_PING_S)
            if channel.lost.done():
                return channel.lost.result()
            silent = asyncio.get_running_loop().time() - self._heard
            if silent > _SILENCE_S and not channel.paused:
                return f"its remote half has said nothing for {silent:.0f} s"
            channel.send({"op": "ping", "id": 0})

    def _made(self, channel: Channel) -> None:
        self._channel = channel
        self._heard = asyncio.get_running_loop().time()
        for request in list(self._requests.values()):
            self._send(request)
        self._on_contact()
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _failed(self, error: HostError) -> None:
        """An attempt failed. Where trying again soon cannot help, those who wait are told now."""
        self._error = error
        self._on_loss(error)
        if not isinstance(error, Unreachable):
            for request in self._requests.values():
                request.frames.put_nowait(_afresh(error))
        for waiter, until in self._waiting.items():
            if not waiter.done() and (_hopeless(error) or asyncio.get_running_loop().time() >= until):
                waiter.set_exception(_afresh(error))

    def _died(self, task: asyncio.Task[None]) -> None:
        """A fault of our own ended the task: whoever waits must see it, or would wait for ever."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            for request in self._requests.values():
                request.frames.put_nowait(error)
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_exception(error)

    def _lost(self, error: HostError, everything: bool = False) -> None:
        self._error = error
        if not everything:
            self._on_loss(error)
        for request in list(self._requests.values()):
            if everything or (request.sent and not request.again):
                request.frames.put_nowait(self._unknown(request, error) if request.sent else _afresh(error))
            else:
                request.sent = False
                request.arm(self._patience_s, lambda: _afresh(self._error))

    def _unknown(self, request: _Request, error: HostError) -> HostError:
        return Unreachable(f"{error.message}; what became of `{request.header['op']}` is unknown")

    # -- requests

    def _send(self, request: _Request) -> None:
        assert self._channel is not None
        request.sent = True
        self._channel.send(request.header, request.body)
        seconds = request.answer_s
        if seconds is not None:
            op = request.header["op"]
            request.arm(seconds, lambda: Unreachable(f"`{self._name}` did not answer `{op}` in {seconds:.0f} s"))
        else:
            request.disarm()

    def _frame(self, header: dict[str, Any], body: bytes) -> None:
        self._heard = asyncio.get_running_loop().time()
        if "events" in header:
            self._on_events(header["events"])
            return
        request = self._requests.get(header["id"])
        if request is not None:  # else: somebody stopped waiting for it
            if not header.get("more"):
                request.disarm()
            request.frames.put_nowait((header, body))
            if request.frames.qsize() == _FRAMES_AHEAD and self._channel is not None:
                self._channel.pause()  # whoever takes these frames is slower than the host

    async def stream(
        self, op: str, body: bytes = b"", *, again: bool = False, answer_s: float | None = None, **fields: Any
    ) -> AsyncGenerator[Frame, None]:
        """Send a request and give its frames as they come, the last one included.

        `again`: it may be sent a second time after a reconnect. `answer_s`: longest wait for the last frame.
        Raises Unreachable and the other host errors; UsageError or JobError as the remote half says.
        """
        self.start()
        if self._channel is None and not isinstance(self._error, Unreachable):
            raise _afresh(self._error)
        number = next(self._ids)
        request = self._requests[number] = _Request({"op": op, "id": number, **fields}, body, again, answer_s)
        last = False
        try:
            if self._channel is not None:
                self._send(request)
                await self._channel.drained()
            else:
                request.arm(self._patience_s, lambda: _afresh(self._error))
            while not last:
                answer = await request.frames.get()
                if request.frames.qsize() == _FRAMES_AHEAD // 2 and self._channel is not None:
                    self._channel.resume()
                if isinstance(answer, BaseException):
                    last = True
                    raise answer
                header, _ = answer
                last = not header.get("more")
                if "error" in header:
                    told = header["error"]
                    raise _ERRORS.get(told["kind"], HostUnusable)(f"`{self._name}`: {told['message']}")
                yield answer
        finally:
            request.disarm()
            del self._requests[number]
            if request.frames.qsize() > _FRAMES_AHEAD // 2 and self._channel is not None:
                self._channel.resume()
            if not last and self._channel is not None:
                self._channel.send({"op": "cancel", "id": next(self._ids), "target": number})

    async def request(
        self, op: str, body: bytes = b"", *, again: bool = False, answer_s: float | None = 60.0, **fields: Any
    ) -> Frame:
        """Send a request that has one answer. Raises as `stream` does."""
        frames = self.stream(op, body, again=again, answer_s=answer_s, **fields)
        try:
            return await anext(frames)
        finally:
            await frames.aclose()

    def post(self, op: str, **fields: Any) -> None:
        """Send a request whose answer is of no interest, if there is contact."""
        if self._channel is not None:
            self._channel.send({"op": op, "id": next(self._ids), **fields})
