"""A TCP proxy that breaks connections by a seeded plan: what a bad network does to SSH, on order and repeatable.

    async with FaultProxy("127.0.0.1", port, seed=7, after=(100_000, 300_000)) as proxy:
        connect to 127.0.0.1:proxy.port

Each connection gets the next fault of the plan, after so many bytes in both directions together as the plan says:

    drop        closed in order (FIN) in both directions
    reset       closed with RST
    stall       nothing passes for a while, then everything does
    half-open   the client's side is forgotten without a word: bytes vanish, no close is seen

`calm` ends the plan: connections from then on are left alone.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from types import TracebackType
from typing import Self

FAULTS = ("drop", "reset", "stall", "half-open")
_STALL_S = 0.5


class FaultProxy:
    """Forwards to `host:port` with faults. `faults` lists what was really done."""

    def __init__(
        self, host: str, port: int, seed: int, *, after: tuple[int, int], kinds: tuple[str, ...] = FAULTS
    ) -> None:
        self._target = (host, port)
        self._random = random.Random(seed)
        self._after = after
        self._kinds = kinds
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._calm = False
        self.faults: list[str] = []
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def calm(self) -> None:
        """No more faults on new connections."""
        self._calm = True

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._forward(reader, writer)
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = None if self._calm else self._random.choice(self._kinds)
        budget = self._random.randint(*self._after)
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        passed = 0
        forgotten = asyncio.Event()

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            nonlocal passed, fault
            while data := await source.read(16384):
                passed += len(data)
                if fault and passed > budget:
                    self.faults.append(fault)
                    happening, fault = fault, None
                    if happening == "stall":
                        await asyncio.sleep(_STALL_S)
                    elif happening == "half-open":
                        forgotten.set()
                    else:
                        if happening == "reset":
                            for end in (writer, far_writer):
                                _reset(end)
                        return
                if not forgotten.is_set():
                    sink.write(data)
                    await sink.drain()

        copies = [asyncio.create_task(copy(reader, far_writer)), asyncio.create_task(copy(far_reader, writer))]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in copies:
                end.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            far_writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Make the close that follows a RST (SO_LINGER with a time of 0)."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
