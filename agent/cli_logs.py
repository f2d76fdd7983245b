"""`turnout logs`: the log of a job, read from its host where it stays.

A log may be of any size and hold any bytes. By default its head and tail are shown with the exact number of bytes
between them; the text is cleaned of control sequences unless `--raw` asks for the bytes.
"""

from __future__ import annotations

import sys

import anyio

from agent.cli_frame import note
from agent.host_actions import spec_for
from agent.look import find_job
from state.db import Database
from state.errors import NotFound, Unreachable, UsageError
from tools.jobs import JobState, LogPiece, describe_end
from tools.shell import TextCleaner
from tools.ssh import Host

PATIENCE_S = 10.0
HEAD_BYTES = 8 << 10
TAIL_BYTES = 32 << 10
PIECE_BYTES = 256 << 10
MAX_TAIL_BYTES = 64 << 20


def logs(
    db: Database, name: str, session: str | None, *, follow: bool, tail: int | None, offset: int | None, raw: bool
) -> int:
    """Show it; with `follow` until the job has ended."""
    job = db.read(lambda conn: find_job(conn, name, session))
    spec = db.read(lambda conn: spec_for(conn, job["host"], job["session"]))

    async def show() -> None:
        async with Host(spec, patience_s=PATIENCE_S) as host:
            reader = _Reader(host, job["id"], raw=raw)
            state = await reader.state()
            if offset is not None:
                await reader.rest(offset)
            elif tail is not None:
                await reader.tail(tail)
            else:
                await reader.head_and_tail()
            if follow:
                state = await reader.follow()
            reader.finish(state)

    anyio.run(show)
    return 0


class _Reader:
    """Reads one log and writes it to stdout. `at` is the byte behind the last one written."""

    def __init__(self, host: Host, job: str, *, raw: bool) -> None:
        self._host, self._job = host, job
        self._cleaner = None if raw else TextCleaner()
        self.at = 0

    async def state(self) -> JobState:
        """What the host knows of the job. Raises `NotFound` when it knows nothing."""
        state = (await self._host.status([self._job]))[0]
        if state.state == "unknown":
            name = self._host.spec.name
            hint = "it was not started there, or its folder was deleted: `turnout jobs` shows what is known of it"
            raise NotFound(f"host `{name}` has no job `{self._job}`", hint=hint)
        return state

    async def head_and_tail(self) -> None:
        """All of a short log; of a long one head and tail, cut at line ends, and what is between them."""
        head = await self._host.read_log(self._job, 0, HEAD_BYTES + TAIL_BYTES)
        if head.size <= HEAD_BYTES + TAIL_BYTES:
            self._write(head)
            return
        cut = head.data.rfind(b"\n", 0, HEAD_BYTES) + 1 or HEAD_BYTES
        self._write(LogPiece(head.data[:cut], 0, head.size, head.inode))
        last = await self._host.read_log(self._job, head.size - TAIL_BYTES, TAIL_BYTES)
        start = last.data.find(b"\n") + 1
        self._gap(cut, last.offset + start, last.size)
        self._write(LogPiece(last.data[start:], last.offset + start, last.size, last.inode))

    async def tail(self, lines: int) -> None:
        """The last `lines` lines, found by reading backwards."""
        piece = await self._host.read_log(self._job, -PIECE_BYTES, PIECE_BYTES)
        data, start, size = piece.data, piece.offset, piece.size
        while data.count(b"\n", 0, -1) < lines and start > 0 and len(data) < MAX_TAIL_BYTES:
            before = max(0, start - PIECE_BYTES)
            data = (await self._host.read_log(self._job, before, start - before)).data + data
            start = before
        kept = b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""
        left_out = size - len(kept)
        if left_out:
            note(f"--- {left_out:,} bytes before this; `turnout logs {self._job} --offset 0` shows all ---")
        self._write(LogPiece(kept, left_out, size, piece.inode))

    async def rest(self, offset: int) -> None:
        """Everything from `offset` to the end as it is now. Raises `UsageError` for an offset behind it."""
        piece = await self._host.read_log(self._job, offset, PIECE_BYTES)
        if piece.truncated:
            raise UsageError(
                f"`--offset {offset}` lies behind the end of the log of `{self._job}`, which has {piece.size} bytes",
                hint="leave `--offset` out to see its head and tail",
            )
        end = piece.size
        while piece.data:
            self._write(piece)
            if piece.end >= end:
                return
            piece = await self._host.read_log(self._job, piece.end, min(PIECE_BYTES, end - piece.end))
        self.at = max(self.at, min(offset, end))

    async def follow(self) -> JobState:
        """What is added from here on, through reconnects, until the job has ended; its end."""
        sys.stdout.flush()
        while True:
            try:
                async for piece in self._host.follow(self._job, self.at):
                    self._write(piece)
                    sys.stdout.flush()
                return await self.state()
            except Unreachable as error:
                note(f"--- {error.message}; the job goes on, trying again ---")

    def finish(self, state: JobState) -> None:
        """Write the last unfinished line, and on a terminal how the job stands."""
        if self._cleaner is not None:
            rest = self._cleaner.finish()
            sys.stdout.write(rest + "\n" if rest else "")
        sys.stdout.flush()
        if sys.stderr.isatty():
            stands = describe_end(state) if state.terminal else f"{state.state}; `-f` follows it"
            note(f"--- {self._job} on {self._host.spec.name}: {stands}; {state.log_size:,} bytes ---")

    def _write(self, piece: LogPiece) -> None:
        if piece.offset > self.at > 0:
            self._remark(
                f"--- {piece.offset - self.at:,} bytes were given up on the host: its log limit was reached ---"
            )
        self.at = piece.end
        if self._cleaner is None:
            sys.stdout.buffer.write(piece.data)
        else:
            sys.stdout.write(self._cleaner.feed(piece.data))

    def _gap(self, start: int, end: int, size: int) -> None:
        self.at = end
        self._remark(
            f"--- {end - start:,} of {size:,} bytes not shown: `turnout logs {self._job} --offset {start}`,"
            f" or on {self._host.spec.name} the file `{self._host.spec.root}/jobs/{self._job}/log` ---"
        )

    def _remark(self, line: str) -> None:
        """A line about the log, among its lines or, of raw bytes, beside them."""
        if self._cleaner is None:
            note(line)
        else:
            rest = self._cleaner.finish()
            sys.stdout.write((rest + "\n" if rest else "") + line + "\n")
