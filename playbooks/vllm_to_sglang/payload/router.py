"""Takes over a port from the server that holds it, without a lost connection, and passes on to another port.

python3 -m vllm_to_sglang.router --port 8000 --to 30000 --state router.json

vLLM opens its port with SO_REUSEPORT, so that a second listener of the same user may join it; the kernel would then
deal connections out between the two. A one-line socket filter tells it to give every new one to the router. What the
old server has begun it finishes, and nothing new reaches it: it can be drained and stopped at leisure. Where the old
server does not share its port, the router stands by and takes the port within milliseconds of its release.

It passes bytes on and reads none of them, so streams, tools and every path work. While the new server does not answer,
a client is told 503 with `Retry-After`. SIGHUP reads `--state` again (another `to`); SIGTERM gives the port back to a
server that has joined meanwhile, without a lost connection: what is open ends in peace.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import errno
import json
import math
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .common import main, read, result, write

SO_ATTACH_REUSEPORT_CBPF = 51
RETURN = 0x06  # BPF_RET | BPF_K
PIECE = 1 << 16
_WHY = b'{"error": {"message": "the model server is being restarted"}}'
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    + b"Content-Length: %d\r\n\r\n" % len(_WHY)
    + _WHY
)


def listening(port: int) -> list[tuple[int, str]]:
    """Family and address of every socket that listens on a port, in the order of the kernel's table."""
    found = []
    for path, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        try:
            with open(path) as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        for row in rows:
            address, _, number = row[1].partition(":")
            if row[3] == "0A" and int(number, 16) == port:
                found.append((int(family), _readable(address, family)))
    return found


def _readable(address: str, family: int) -> str:
    """`0100007F` -> `127.0.0.1`: the table has 32-bit words in the machine's own order."""
    words = [int(address[k : k + 8], 16) for k in range(0, len(address), 8)]
    return socket.inet_ntop(family, b"".join(struct.pack("=I", word) for word in words))


def steer(listener: socket.socket, place: int) -> None:
    """Have the kernel give every new connection of the shared port to the listener at `place`, by order of joining."""
    code = ctypes.create_string_buffer(struct.pack("HBBI", RETURN, 0, 0, place))
    program = struct.pack("HL", 1, ctypes.addressof(code))
    listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program)


def join(port: int, places: Sequence[tuple[int, str]]) -> list[socket.socket] | None:
    """Listen at `places` beside whoever does, and be given all that is new; nothing when the holder does not share."""
    held = listening(port)
    opened: list[socket.socket] = []
    for family, address in dict.fromkeys(places):
        listener = socket.socket(family, socket.SOCK_STREAM)
        opened.append(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != "::"))
        try:
            listener.bind((address, port))
            listener.listen(1024)
            steer(listener, held.count((family, address)))
        except OSError as error:
            for one in opened:
                one.close()
            if error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EPERM):
                return None
            raise
        listener.setblocking(False)
    return opened


class Router:
    """One port, one destination. `state` is the file that says where to."""

    def __init__(self, port: int, state: Path) -> None:
        self.port, self.state = port, state
        self.to = int(read(state)["to"])
        self.passed = 0
        self._tasks: set[asyncio.Future[None]] = set()
        self.over = asyncio.Event()

    def read_again(self) -> None:
        """SIGHUP: another destination for what comes from now on."""
        self.to = int(read(self.state)["to"])
        print(f"now to port {self.to}", flush=True)

    def tell(self, **more: Any) -> None:
        """Write down how things stand, for whoever looks after the switch."""
        write(self.state, json.dumps({"port": self.port, "to": self.to, "pid": os.getpid(), **more}))

    async def serve(self) -> None:
        """Take the port, serve until told to stop, let open connections end."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.over.set)
        loop.add_signal_handler(signal.SIGINT, self.over.set)
        loop.add_signal_handler(signal.SIGHUP, self.read_again)
        held = listening(self.port)
        shared, places = bool(held), held or [(int(socket.AF_INET), "0.0.0.0")]
        listeners = join(self.port, places)
        way = ("shared with the old server" if shared else "free") if listeners else "held: taken once it is released"
        self.tell(way=way, at=time.time())
        result({"port": self.port, "to": self.to, "pid": os.getpid(), "way": way, "shared": bool(listeners) and shared})
        print("took over" if listeners else "standing by", flush=True)
        if listeners is None:
            listeners = await self._wait_for_port(places)
            self.tell(way="taken after its release", at=time.time())
        servers = [await asyncio.start_server(self._begin, sock=one, backlog=1024) for one in listeners]
        alone = asyncio.ensure_future(self._settle(listeners))
        await self.over.wait()
        alone.cancel()
        if len(listening(self.port)) > len(listeners):
            for listener in listeners:
                steer(listener, 1)  # to the one that joined; what was dealt to the router is still taken by it
            await asyncio.sleep(0.3)
        for server in servers:
            server.close()
        await self._until(lambda: not self._tasks, 600.0)
        print(f"passed {self.passed} connections on", flush=True)

    @staticmethod
    async def _until(holds: Callable[[], bool], limit_s: float = math.inf) -> None:
        """Wait for what no event tells: a table of the kernel, a count."""
        end = time.monotonic() + limit_s
        while not holds() and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def _wait_for_port(self, places: Sequence[tuple[int, str]]) -> list[socket.socket]:
        while True:
            listeners = join(self.port, places)
            if listeners is not None:
                return listeners
            await asyncio.sleep(0.002)

    async def _settle(self, listeners: list[socket.socket]) -> None:
        """Once the old server has gone, the router is the first: a server that joins later gets nothing by itself."""
        await self._until(lambda: len(listening(self.port)) <= len(listeners))
        for listener in listeners:
            steer(listener, 0)
        self.tell(way="alone", at=time.time())

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection. Its task is held here: the event loop alone would let a collection end one that only waits."""
        task = asyncio.ensure_future(self._pass(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.passed += 1
        try:
            await self._both_ways(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _both_ways(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.write(BUSY)
            await writer.drain()
            return
        try:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            back.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Bytes on, at the reader's pace, until the source ends; then the end is passed on too."""
    with contextlib.suppress(OSError):
        while True:
            piece = await source.read(PIECE)
            if not piece:
                break
            sink.write(piece)
            await sink.drain()
    with contextlib.suppress(OSError):
        if sink.can_write_eof():
            sink.write_eof()


def step(given: argparse.Namespace) -> int:
    """Route."""
    write(given.state, json.dumps({"port": given.port, "to": given.to}))

    async def run() -> None:
        await Router(given.port, given.state).serve()

    asyncio.run(run())
    return 0


def arguments() -> argparse.Namespace:
    """What it takes."""
    parser = argparse.ArgumentParser(prog="router")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--to", type=int, required=True)
    parser.add_argument("--state", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main(lambda: step(arguments()))
