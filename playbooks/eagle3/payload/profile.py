"""Where a training step's time goes: by phase, and by kernel.

A phase ends where `mark` names it. On CUDA marks are events in the stream, so they measure the device and do not stop
it. `watch` runs torch's profiler over a few steps after the first ones, which compile and allocate.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import DeviceType

WAIT, WARM_UP, ACTIVE = 12, 2, 4  # steps
ROWS = 24


class Phases:
    """Seconds of each phase, over all steps since the last `forget`; nothing is measured unless `on`."""

    def __init__(self, on: bool, device: torch.device) -> None:
        self.on, self.cuda = on, device.type == "cuda"
        self._marks: list[tuple[str, Any]] = []

    def mark(self, name: str) -> None:
        """End the phase `name` here; the first mark of a step is called `start`."""
        if self.on:
            self._marks.append((name, self._now()))

    def _now(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def forget(self) -> None:
        self._marks.clear()

    def table(self) -> str:
        """One line a phase: its share and milliseconds a step."""
        if self.cuda:
            torch.cuda.synchronize()
        spent: dict[str, float] = defaultdict(float)
        for (_, before), (name, after) in zip(self._marks, self._marks[1:], strict=False):
            if name != "start":
                spent[name] += before.elapsed_time(after) if self.cuda else 1000 * (after - before)
        steps = max(1, sum(name == "start" for name, _ in self._marks))
        total = sum(spent.values()) or 1.0
        return "\n".join(f"{name:<12} {100 * t / total:5.1f} %  {t / steps:8.2f} ms" for name, t in spent.items())


def watch(on: bool, done: Callable[[str], None]) -> Any:
    """torch's profiler, which calls `done` with a table of what took longest; or a context that does nothing."""
    if not on:
        return contextlib.nullcontext()
    from torch.profiler import ProfilerActivity, profile, schedule

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    return profile(
        activities=activities,
        schedule=schedule(wait=WAIT, warmup=WARM_UP, active=ACTIVE, repeat=1),
        on_trace_ready=lambda found: done(_kernels(found)),
    )


def _kernels(found: Any) -> str:
    """Milliseconds a step of each kernel (of each operator, without CUDA), the longest first."""
    device = torch.cuda.is_available()
    # An operator is charged with its kernels' time, too: of the two only the kernels are counted.
    events = [e for e in found.key_averages() if not device or e.device_type != DeviceType.CPU]
    spent = [
        ((e.self_device_time_total if device else e.self_cpu_time_total) / 1000 / ACTIVE, e.count // ACTIVE, e.key)
        for e in events
    ]
    spent.sort(reverse=True)
    total = sum(t for t, _, _ in spent)
    lines = [f"{t:9.2f} ms {n:6d} x  {key[:100]}" for t, n, key in spent[:ROWS]]
    return "\n".join([*lines, f"{total:9.2f} ms         all"])
