"""The live tail of one job on the chat screen: read from the job's host as it grows, through reconnects.

Only the chosen job is followed, and only its end is kept: the log itself stays on the host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from agent.board import BoardJob
from agent.chat import Chat
from state.errors import TurnoutError
from tools.shell import TextCleaner

BEGIN = 32 << 10
KEPT = 2000
AGAIN_S = 2.0
DRAW_S = 0.1


class JobLog:
    """Which job is chosen, and its last lines in the pane `log`."""

    def __init__(self, app: Any) -> None:
        self._pane = app.pane("log")
        self._chosen: str | None = None
        self._next: str | None = None
        self._picked = False
        self._listed: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._state = ""

    def pick(self, step: int) -> None:
        """The next or previous job of the list; from then on the operator has chosen."""
        if self._listed:
            place = self._listed.index(self._chosen) if self._chosen in self._listed else 0
            self._picked = True
            self._next = self._listed[(place + step) % len(self._listed)]

    def choose(self, listed: Sequence[BoardJob], chat: Chat) -> int | None:
        """Where the chosen job stands in the list; begins to follow another where one is due."""
        self._listed = [job.id for job in listed]
        wanted: str | None
        if self._next is not None:
            wanted, self._next = self._next, None
        elif self._picked and self._chosen in self._listed:
            wanted = self._chosen
        else:
            self._picked = False
            running = next((job.id for job in listed if job.alive), None)
            wanted = self._chosen if self._still_runs(listed) or running is None else running
            wanted = wanted or (self._listed[0] if self._listed else None)
        if wanted != self._chosen:
            self._follow(wanted, next((job for job in listed if job.id == wanted), None), chat)
        return self._listed.index(wanted) if wanted in self._listed else None

    def _still_runs(self, listed: Sequence[BoardJob]) -> bool:
        return any(job.id == self._chosen and job.alive for job in listed)

    def title(self) -> Text:
        """What the pane shows."""
        if self._chosen is None:
            return Text("log", "dim")
        return Text.assemble("log of ", (self._chosen, "bold"), f"  {self._state}", style="dim")

    def _follow(self, id: str | None, job: BoardJob | None, chat: Chat) -> None:
        if self._task is not None:
            self._task.cancel()
        self._chosen, self._task = id, None
        self._pane.show([])
        if job is None:
            return
        if chat.talk is None:
            self._pane.add([Text(f"`turnout logs {job.id} -f` follows it from its host", "dim")], KEPT)
            return
        self._task = asyncio.ensure_future(self._read(job, chat.talk.hosts))

    async def _read(self, job: BoardJob, hosts: Any) -> None:
        offset: int | None = None
        while True:
            try:
                host = await hosts.get(job.host)
                if offset is None:
                    offset = await self._begin(host, job.id)
                cleaner = TextCleaner()
                async for piece in host.follow(job.id, offset):
                    offset = piece.end
                    self._add(cleaner.feed(piece.data))
                    await asyncio.sleep(DRAW_S)  # a log that is written faster than it can be read is drawn in steps
                self._state = "ended"
                return
            except TurnoutError as error:
                self._state = f"({error.message})"
                await asyncio.sleep(AGAIN_S)

    async def _begin(self, host: Any, id: str) -> int:
        """Show the end of what is there; the byte behind it."""
        piece = await host.read_log(id, -BEGIN, BEGIN)
        cleaner = TextCleaner()
        text = cleaner.feed(piece.data) + cleaner.finish()
        self._state = ""
        self._add(text if piece.offset == 0 else text.partition("\n")[2])
        return int(piece.end)

    def _add(self, text: str) -> None:
        if text:
            lines = text.rstrip("\n").split("\n")[-KEPT:]
            self._pane.add([Text(line) for line in lines if not line.startswith("::progress")], KEPT)
