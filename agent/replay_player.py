"""Playing a recording: where it is, how fast it goes, and how long the next message is to be waited for.

    player = Player(recording, speed=10)
    wait = player.wait()            # seconds until the next message is due; None at the end
    player.place += 1

It keeps the original timing, `speed` times as fast, with long pauses made short. Holds no clock: whoever plays waits.
"""

from __future__ import annotations

import re

from agent.replay import Recording
from state.errors import UsageError

LONGEST_PAUSE_S = 2.0
"""No pause is longer than this, however long nothing happened."""
SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 500.0)


class Player:
    """A place in a recording and a speed. `place` may be set to anything and stays within the recording."""

    def __init__(self, recording: Recording, *, place: int = 0, speed: float = 10.0) -> None:
        self.recording = recording
        self.speed = speed
        self._place = 0
        self.place = place

    @property
    def place(self) -> int:
        return self._place

    @place.setter
    def place(self, wanted: int) -> None:
        self._place = max(0, min(wanted, len(self.recording)))

    @property
    def at_end(self) -> bool:
        return self._place >= len(self.recording)

    def wait(self) -> float | None:
        """Seconds to wait before the next message is shown; `None` when there is none."""
        if self.at_end:
            return None
        gap = self.recording.time(self._place + 1) - self.recording.time(self._place)
        return min(LONGEST_PAUSE_S, gap / self.speed) if self._place else 0.0

    def faster(self, by: int) -> None:
        """To the next of `SPEEDS`, or with a negative `by` the one before."""
        nearest = min(range(len(SPEEDS)), key=lambda n: abs(SPEEDS[n] - self.speed))
        self.speed = SPEEDS[max(0, min(len(SPEEDS) - 1, nearest + by))]


def speed_of(text: str) -> float:
    """`10`, `10x` or `0.5x`. Raises `UsageError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x?", text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"`--speed {text}` is no speed", hint="write `--speed 10x`; `1x` is the original timing")
    return float(match[1])
