"""Who holds GPU memory, and how much of it is in use, as `nvidia-smi` tells; nothing where there is no such tool."""

from __future__ import annotations

import shutil
import time
from typing import Any

from . import procs


def used_mib() -> list[int] | None:
    """Memory in use of each GPU in MiB; nothing when that cannot be told."""
    if shutil.which("nvidia-smi") is None:
        return None
    rows = procs.run("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    numbers = [row.strip() for row in rows.splitlines()]
    return [int(number) for number in numbers] if numbers and all(n.isdigit() for n in numbers) else None


def holders() -> list[int]:
    """The processes that hold GPU memory; in a container the tool may not tell them."""
    if shutil.which("nvidia-smi") is None:
        return []
    rows = procs.run("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")
    return sorted({int(row) for row in rows.split() if row.isdigit()})


def free(given: dict[str, Any]) -> dict[str, Any]:
    """Whether the GPUs are free: `within_mib` in use at most, no holder but `allowed`; waits up to `wait_s` for it.

    `free` is nothing (unknown) where no GPU can be asked.
    """
    allowed, end = set(given.get("allowed") or ()), time.monotonic() + float(given.get("wait_s") or 0)
    while True:
        used, held = used_mib(), [pid for pid in holders() if pid not in allowed]
        known = None if used is None else not held and max(used, default=0) <= int(given.get("within_mib") or 1024)
        if known is not False or time.monotonic() >= end:
            return {"free": known, "used_mib": used, "held_by": held}
        time.sleep(0.5)
