"""One live channel to a host's remote half: starts it, sends it over when it is missing, then carries frames.

A `Channel` lives as long as one SSH channel and is not reopened (`tools.lane` does that). Whatever the login prints
before the marker line is skipped, within a bound; the end of stderr is kept, as the last word of a channel that died.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

import asyncssh
from anyio import to_thread

from state.errors import HostUnusable, Unreachable
from tools.bootstrap import PYTHONS, command, package
from tools.connect import Links
from tools.remote import wire
from tools.shell import clean_text

# What a message of the day and rc files may print before the remote half speaks.
_NOISE = 256 << 10
_LAST_WORDS = 4096
_GREETING_S = 60.0
OnFrame = Callable[[dict[str, Any], bytes], None]


class Channel(asyncssh.SSHClientSession[bytes]):
    """Frames over one SSH channel. `lost` is done when it has ended, its result being why."""

    def __init__(self, nonce: str, on_frame: OnFrame) -> None:
        self._mark = f"TURNOUT {nonce} ".encode()
        self._on_frame = on_frame
        self._decoder: wire.Decoder | None = None
        self._noise = bytearray()
        self._stderr = bytearray()
        self._greetings: asyncio.Queue[str] = asyncio.Queue()
        self._writable = asyncio.Event()
        self._writable.set()
        self.paused = False
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, links: Links, name: str, root: str, python: str, on_frame: OnFrame) -> Channel:
        """Start the remote half of host `name`. Raises Unreachable, HostKeyError, HostUnusable."""
        nonce = secrets.token_hex(8)
        await to_thread.run_sync(package)  # reads the sources once; kept from then on
        line = command(nonce, root, python)
        channel, freed = await links.open(line, lambda: cls(nonce, on_frame))
        channel.lost.add_done_callback(lambda _: freed())
        try:
            async with asyncio.timeout(_GREETING_S):
                await channel._greet(name, python)
        except TimeoutError as error:
            channel.close()
            raise Unreachable(f"`{name}` let us in, but its shell said nothing we know in {_GREETING_S:.0f} s: "
                              f"{channel._heard()}") from error  # fmt: skip
        except BaseException:
            channel.close()
            raise
        return channel

    async def _greet(self, name: str, python: str) -> None:
        answer = await self._greeting(name)
        if answer == "need":
            self._channel.write(package().data)
            answer = await self._greeting(name)
        if answer == "ready":
            return
        if answer == "nopython":
            tried = ", ".join(f"`{place}`" for place in ((python,) if python else PYTHONS))
            raise HostUnusable(
                f"`{name}` has no Python 3.8 or newer; tried {tried}",
                hint=f"install one, or name it: `turnout hosts add {name} --python /path/to/python3`",
            )
        raise HostUnusable(
            f"`{name}` cannot keep the remote half: {answer}", hint="see to the room and rights of its root folder"
        )

    async def _greeting(self, name: str) -> str:
        getting = asyncio.ensure_future(self._greetings.get())
        try:
            await asyncio.wait([getting, self.lost], return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
        finally:
            getting.cancel()
        why = self.lost.result()
        raise Unreachable(f"`{name}` closed the channel before the remote half spoke ({why}): {self._heard()}")

    def _heard(self) -> str:
        heard = clean_text(bytes(self._noise[-500:] + b"\n" + self._stderr[-500:])).strip()
        return f"it printed `{heard}`" if heard else "it printed nothing"

    # -- what asyncssh calls

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        if datatype == asyncssh.EXTENDED_DATA_STDERR:
            self._stderr = (self._stderr + data)[-_LAST_WORDS:]
            return
        if self._decoder is None:
            data = self._find_mark(data)
        if self._decoder is not None and data:
            try:
                frames = self._decoder.feed(data)
            except wire.WireError as error:
                self._end(str(error))
                self.close()
                return
            for header, body in frames:
                self._on_frame(header, body)

    def _find_mark(self, data: bytes) -> bytes:
        """Look for marker lines; what follows `ready` is frames and is returned."""
        self._noise += data
        while (start := self._noise.find(self._mark)) >= 0 and (end := self._noise.find(b"\n", start)) >= 0:
            said = bytes(self._noise[start + len(self._mark) : end]).decode("utf-8", "replace").strip()
            rest = bytes(self._noise[end + 1 :])
            self._noise[:] = b"" if said == "ready" else rest
            self._greetings.put_nowait(said)
            if said == "ready":
                self._decoder = wire.Decoder()
                return rest
        if start < 0 and len(self._noise) > _NOISE:
            del self._noise[: -_NOISE // 2]
        return b""

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def exit_status_received(self, status: int) -> None:
        if status:
            self._stderr += f" (exit code {status})".encode()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc) if exc else "the host closed the channel")

    def _end(self, why: str) -> None:
        if not self.lost.done():
            said = clean_text(bytes(self._stderr)).strip()
            self.lost.set_result(f"{why}: {said[-1000:]}" if said else why)
        self._writable.set()

    # -- what the lane calls

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Queue one frame. On a channel that is closing nothing is sent; `lost` will say so."""
        if not self._channel.is_closing():
            self._channel.write(wire.encode(header, body))

    def pause(self) -> None:
        """Take nothing more for a while; the window then stops the host."""
        self.paused = True
        self._channel.pause_reading()

    def resume(self) -> None:
        """Take data again."""
        self.paused = False
        self._channel.resume_reading()

    async def drained(self) -> None:
        """Return when the host takes more data, or the channel is lost."""
        await self._writable.wait()

    def close(self) -> None:
        """End the remote half's stdin, and with it the remote half."""
        self._channel.close()
