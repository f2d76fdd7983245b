"""The kernel's own word on why a process died: OOM killer, full disk, another boot.

Only what was read is said: a counter that rose, a line of the kernel log. Where neither may be read (`dmesg` is often
for root only) the answer is None, which means "not known", never "no".
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Iterable

_KILLED = re.compile(r"Killed process (\d+) \(([^)]*)\)")
_UID = re.compile(r"UID:(\d+)")


def oom_kills() -> int | None:
    """How often the OOM killer struck in our control group (v2 `memory.events`, v1 `memory.oom_control`)."""
    try:
        with open("/proc/self/cgroup") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return None
    for _, controllers, path in groups:
        if controllers == "":
            name = "/sys/fs/cgroup{}/memory.events".format(path.rstrip("/"))
        elif "memory" in controllers.split(","):
            name = "/sys/fs/cgroup/memory{}/memory.oom_control".format(path.rstrip("/"))
        else:
            continue
        count = _counter(name, "oom_kill")
        if count is not None:
            return count
    return None


def _counter(path: str, name: str) -> int | None:
    try:
        with open(path) as file:
            values = dict(line.split(None, 1) for line in file if " " in line)
        return int(values[name])
    except (OSError, KeyError, ValueError):
        return None


def oom_record(since: float, pids: Iterable[int] = ()) -> str | None:
    """The kernel log's last OOM kill after `since` (monotonic seconds) of one of `pids` or of a process of our user."""
    wanted = set(pids)
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    found = None
    try:
        while True:
            try:
                record = os.read(fd, 8192).decode("utf-8", "replace")
            except BrokenPipeError:
                continue  # the oldest record was overwritten while we read
            except OSError:
                break  # EAGAIN: read to the end; EINVAL: a record longer than a page
            found = _matching(record, since, wanted) or found
    finally:
        os.close(fd)
    return found


def _matching(record: str, since: float, pids: set[int]) -> str | None:
    prefix, _, text = record.partition(";")
    killed = _KILLED.search(text)
    if killed is None or int(prefix.split(",")[2]) / 1e6 < since - 1:
        return None
    uid = _UID.search(text)
    if int(killed.group(1)) in pids or (uid is not None and int(uid.group(1)) == os.getuid()):
        return "the kernel log says: Killed process {} ({})".format(*killed.group(1, 2))
    return None


def why_killed(since: float, pids: Iterable[int], kills_before: int | None) -> str | None:
    """Evidence that a process which died of SIGKILL between `since` and now was killed for memory; None: none found."""
    kills = oom_kills()
    if kills is not None and kills_before is not None and kills > kills_before:
        return f"the control group counts {kills - kills_before} more OOM kill(s) since the job's start"
    return oom_record(since, pids)


def why_lost(run: dict[str, Any], child: dict[str, Any], boot: str, folder: str) -> dict[str, str]:
    """The likeliest `reason` why a job has neither processes nor an exit record; with `oom` where it is that."""
    if run.get("boot") != boot:
        return {"reason": "reboot: the job ran before the host's last start"}
    since = run.get("monotonic", time.monotonic())
    record = oom_record(since, {run.get("pid", 0), child.get("pid", 0)})
    if record:
        return {"reason": "OOM killer", "oom": record}
    return {"reason": _without_record(run, child, folder)}


def _without_record(run: dict[str, Any], child: dict[str, Any], folder: str) -> str:
    room = os.statvfs(folder)
    if room.f_bavail == 0:
        return "disk full: no block is free where the exit record belongs"
    crash = os.path.join(folder, "supervisor.err")
    if os.path.exists(crash):
        with open(crash, "rb") as file:
            return "the supervisor failed: " + file.read(4096).decode("utf-8", "replace").strip().rpartition("\n")[2]
    if not child:
        return "the supervisor (pid {}) was killed before it started the command".format(run.get("pid"))
    return "the supervisor (pid {}) was killed and the command is gone without a record".format(run.get("pid"))
