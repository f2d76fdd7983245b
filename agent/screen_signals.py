"""Signals that the chat screen obeys: it leaves in good order, also when its terminal is gone.

    restore = obey(depart)             # on the event loop, in the main thread; `depart(code)` begins to leave
    restore()

A terminal that goes away sends SIGHUP and SIGCONT. Whatever is written to it from then on fails or waits for ever, so
the three standard files are put to nothing first, and the process ends after a while whatever hangs: every intent is
stored before its effect.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

PATIENCE_S = 12.0
"""So long leaving may take once nobody can see it."""


def let_go() -> None:
    """Read from and write to nothing: the terminal is gone."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in range(3):
        os.dup2(nothing, file)


def obey(depart: Callable[[int], object]) -> Callable[[], None]:
    """Take SIGTERM and SIGHUP; what this returns gives the signals back."""
    loop = asyncio.get_running_loop()
    resumes = signal.getsignal(signal.SIGCONT)
    hung_up = threading.Event()

    def hang_up(number: int, frame: FrameType | None) -> None:
        hung_up.set()
        let_go()
        last = threading.Timer(PATIENCE_S, os._exit, (128 + number,))
        last.daemon = True
        last.start()
        loop.call_soon_threadsafe(depart, 128 + number)

    def go_on(number: int, frame: FrameType | None) -> None:
        """After Ctrl-Z the screen is drawn anew; after a hang-up there is none."""
        if callable(resumes) and not hung_up.is_set():
            resumes(number, frame)

    def restore() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGCONT, resumes)

    loop.add_signal_handler(signal.SIGTERM, depart, 128 + signal.SIGTERM)
    signal.signal(signal.SIGHUP, hang_up)
    signal.signal(signal.SIGCONT, go_on)
    return restore
