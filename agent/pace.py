"""How fast something goes and how long it will take: a smoothed rate from counts and times. Words for durations too.

pace = Pace(); pace.saw(100, now); ...; pace.rate; pace.remaining(3000)
"""

from __future__ import annotations

import math

SMOOTH_S = 30.0


class Pace:
    """An exponentially weighted mean rate, by time and not by number of reports: bursts of them weigh little."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self.done = 0.0
        self._at: float | None = None

    def saw(self, done: float, time: float) -> None:
        """`done` units at `time` (seconds). A count that goes back (a new epoch, a restart) begins anew."""
        if self._at is None or done < self.done:
            self.rate = None
        elif time <= self._at:
            return
        else:
            span = time - self._at
            now = (done - self.done) / span
            weight = 1 - math.exp(-span / SMOOTH_S)
            self.rate = now if self.rate is None else self.rate + weight * (now - self.rate)
        self.done, self._at = done, time

    def copy(self) -> Pace:
        """One that goes on by itself."""
        twin = Pace()
        twin.rate, twin.done, twin._at = self.rate, self.done, self._at
        return twin

    def remaining(self, total: float | None, now: float) -> float | None:
        """Seconds until `total` at this rate, less those since the last report; `None` when that cannot be told."""
        if not self.rate or total is None or self._at is None:
            return None
        return max(0.0, (total - self.done) / self.rate - max(0.0, now - self._at))


def clock(seconds: float | None) -> str:
    """`0:07`, `12:30`, `3:05:10`, `2d 04:10`; nothing for `None`."""
    if seconds is None:
        return ""
    whole = int(seconds)
    if whole >= 86_400:
        return f"{whole // 86_400}d {whole % 86_400 // 3600:02d}:{whole % 3600 // 60:02d}"
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def ago(seconds: float) -> str:
    """How long ago, to one unit: `12 s`, `5 min`, `3 h`, `2 d`."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def amount(number: float) -> str:
    """A count as short as it can be read: `0.66`, `42`, `3,165`, `828M`."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(number) >= 10 * size:
            return f"{number / size:.0f}{unit}"
        if abs(number) >= size:
            return f"{number / size:.1f}{unit}"
    if number == int(number):
        return f"{int(number):,}"
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.2g}" if abs(number) < 10 else f"{number:.1f}"


def size(number: float) -> str:
    """Bytes in binary units: `512 B`, `1.5 GiB`, `828 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
