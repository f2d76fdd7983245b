"""The live picture of a run on a terminal: drawn by a thread of its own, at most a few times a second.

The event loop only books what happened, under a lock that is never held while the terminal is written to: one that is
stopped with Ctrl-S stops the picture and nothing else. What the picture shows is in `agent/frame.py`. At a question it
steps aside, and goes on below the answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from agent.board import Board
from agent.frame import frame
from agent.questions import can_ask
from agent.screen import Screen
from agent.views import View
from state.changes import Change
from tools.jobs import ContactEvent, JobState, Progress

REFRESH_S = 0.2
STOPS = "Ctrl-C stops dispatching; jobs go on"
STOPPING = "stopping: nothing new starts, jobs go on. Ctrl-C again leaves at once"
LOOKS_ON = "looking on; Ctrl-C leaves, the session goes on"


class LiveView(View):
    """The picture of `board`, which it keeps up to date."""

    def __init__(self, board: Board, *, yes: bool = False, foot: str = STOPS, console: Console | None = None) -> None:
        super().__init__(yes=yes)
        self.board = board
        self._foot = foot
        self._console = console or Screen(highlight=False)
        self._lock = threading.Lock()
        self._painter: _Painter | None = None
        self.go_on()

    def changed(self, changes: Sequence[Change], seqs: Sequence[int]) -> None:
        now = time.time()
        with self._lock:
            for change in changes:
                self.board.apply(change.kind, change.payload, now)
            if self.board.status == "paused" and self._foot == STOPS:
                self._foot = STOPPING
        self.withdraw(changes)

    def progressed(self, job: JobState) -> None:
        with self._lock:
            self.board.progress(job, time.time())

    def last_words(self) -> Mapping[str, Progress]:
        with self._lock:
            return self.board.last_words()

    def contact(self, event: ContactEvent) -> None:
        with self._lock:
            self.board.contact(event)

    def can_ask(self) -> bool:
        return can_ask()

    def pause(self) -> None:
        """Leave the picture as it is and keep off the screen."""
        if self._painter is not None:
            painter, self._painter = self._painter, None
            painter.stop()

    def go_on(self) -> None:
        """Draw from here on down."""
        if self._painter is None:
            self._painter = _Painter(self._console, self._picture)

    def close(self) -> None:
        super().close()
        self._foot = ""
        self.pause()

    def _picture(self) -> list[Text]:
        width, height = self._console.size
        with self._lock:
            # One column and one line less than there is: the cursor stands there.
            return frame(
                self.board, width=max(20, width - 1), height=max(4, height - 1), now=time.time(),
                foot=self._foot, ascii=self._console.options.ascii_only,
            )  # fmt: skip


class _Painter:
    """Repaints when the picture has changed, and anew when the terminal has another size."""

    def __init__(self, console: Console, picture: Callable[[], list[Text]]) -> None:
        self._console, self._picture = console, picture
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._paint, name="turnout-picture", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Paint a last time and let go of the terminal."""
        self._stop.set()
        self._thread.join()

    def _paint(self) -> None:
        size = self._console.size
        live = self._begin()
        shown: list[Text] = []
        while True:
            last = self._stop.wait(REFRESH_S)
            if self._console.size != size:
                # The terminal has wrapped the old lines in its own way: they cannot be painted over.
                size, shown = self._console.size, []
                live.stop()
                self._console.clear()
                live = self._begin()
            lines = self._picture()
            if lines != shown:
                live.update(Group(*lines), refresh=True)
                shown = lines
            if last:
                live.stop()
                return

    def _begin(self) -> Live:
        live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        live.start()
        return live
