"""What /proc says of processes: is it the same one, which belong to a job, who still holds a file.

A pid alone names nothing, because numbers are used again: a process is (pid, start ticks). A job's family is found by
three marks, since each can be lost: the cookie `TURNOUT_JOB=<id>` in the environment, beside the `TURNOUT_ROOT` below
which alone the id is unique (programs that set their title overwrite both), the session of the job's first process
(daemons leave it), and descent from either (an orphan keeps it only while the supervisor lives to adopt it). Zombies
are dead.
"""

from __future__ import annotations

import os
from typing import Iterable, NamedTuple

from . import linux

COOKIE = "TURNOUT_JOB"
ROOT = "TURNOUT_ROOT"


class Process(NamedTuple):
    """One line of /proc/<pid>/stat. `ticks` is the start time in clock ticks since boot; `state` a letter."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    ticks: int

    @property
    def dead(self) -> bool:
        """Ended, though its parent has not asked for its exit code (in a container perhaps never will)."""
        return self.state in "ZX"


class Family(NamedTuple):
    """How to find the processes of one job: its cookie, first process and supervisor (pid 0: none known)."""

    job: str
    pid: int = 0
    ticks: int = 0
    supervisor: int = 0


def boot_id() -> str:
    """The kernel's identity of this boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def read(pid: int) -> Process | None:
    """The process `pid`, or None when there is none. The name in parentheses may itself hold any character."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return Process(pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))
    except (FileNotFoundError, ProcessLookupError, PermissionError, IndexError):
        return None  # gone, or hidden from us (hidepid): then it is no process of ours


def alive(pid: int, ticks: int) -> bool:
    """Whether the very process that started at `ticks` is there and no zombie."""
    process = read(pid)
    return process is not None and process.ticks == ticks and not process.dead


def everyone() -> dict[int, Process]:
    """All living processes that we can see."""
    found = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process is not None and not process.dead}


def job_of(pid: int, root: str) -> str | None:
    """The id of the job below `root` in whose environment `pid` was started; None too where we may not read that."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read()
    except OSError:
        return None  # not ours, or gone: then it is no process of a job of ours
    job, theirs = _variable(data, COOKIE), _variable(data, ROOT)
    if job is None or theirs is None:
        return None
    same = theirs == root or os.path.realpath(theirs) == os.path.realpath(root)
    return job if same else None


def _variable(environment: bytes, name: str) -> str | None:
    mark = os.fsencode(name) + b"="
    start = 0 if environment.startswith(mark) else environment.find(b"\0" + mark) + 1
    if not environment.startswith(mark, start):
        return None
    return os.fsdecode(environment[start + len(mark) :].partition(b"\0")[0])


def families(root: str, wanted: Iterable[Family]) -> dict[str, list[Process]]:
    """The living processes of each of these jobs below `root`, supervisors not counted. One pass over /proc in all."""
    table = everyone()
    wanted = list(wanted)
    ids = {family.job for family in wanted}
    supervisors = {family.supervisor for family in wanted if family.supervisor}
    members: dict[str, set[int]] = {job: set() for job in ids}
    for pid in table:
        job = job_of(pid, root)
        if job in members:
            members[job].add(pid)
    for family in wanted:
        members[family.job].update(_session(family, table))
        if family.supervisor:
            members[family.job].update(p.pid for p in table.values() if p.parent == family.supervisor)
        _add_descendants(members[family.job], table)
    return {
        job: [table[pid] for pid in sorted(pids - supervisors) if pid != os.getpid()] for job, pids in members.items()
    }


def _session(family: Family, table: dict[int, Process]) -> list[int]:
    """Members of the session that the job's first process leads, if the number still means that session."""
    leader = table.get(family.pid)
    if not family.pid or (leader is not None and leader.ticks != family.ticks):
        return []
    return [p.pid for p in table.values() if p.session == family.pid and p.ticks >= family.ticks]


def _add_descendants(members: set[int], table: dict[int, Process]) -> None:
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    todo = list(members)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in members:
                members.add(child)
                todo.append(child)


def signal(process: Process, number: int) -> bool:
    """Send a signal to exactly this process; False when it is gone. Raises PermissionError for somebody else's."""
    try:
        pidfd = linux.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel before 5.3: identity can only be checked just before
        pidfd = -1
    try:
        if not alive(process.pid, process.ticks):
            return False
        if pidfd >= 0:
            linux.pidfd_send_signal(pidfd, number)
        else:
            os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    finally:
        if pidfd >= 0:
            os.close(pidfd)
    return True


def files_in(pid: int, folder: str) -> set[str]:
    """The paths below `folder` that `pid` has mapped or open, deleted ones left out."""
    found = set()
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            for line in file:
                path = os.fsdecode(line.rstrip(b"\n").split(None, 5)[-1])
                if path.startswith(folder + "/"):
                    found.add(path)
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = os.readlink(f"/proc/{pid}/fd/{name}")
            if path.startswith(folder + "/"):
                found.add(path)
    except OSError:
        pass  # gone meanwhile, or not ours: what was seen so far stands
    return {path for path in found if not path.endswith(" (deleted)")}
