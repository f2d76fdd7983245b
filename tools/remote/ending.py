"""Ends all processes of jobs: TERM, a grace, KILL, then a look that proves nothing is left.

`cancel` is written before anything is signalled and blocks a launch of the same id that arrives late. It works
whether the supervisor lives or not: an orphan's end is recorded here. Runs in a process of its own (see `worker`), so
that a kill which has begun is carried through although the connection breaks.
"""

from __future__ import annotations

import fnmatch
import os
import signal
import time
from typing import Any, Sequence

from . import jobs, linux, proc, slurm, store

DEFAULT_GRACE_S = 10.0
# How long to wait for processes to vanish after SIGKILL: longer only when they hang in the kernel (state D).
KILL_WAIT_S = 5.0
_SETTLE_S = 5.0
# Shared memory that engines and NCCL are known to leave behind; nothing else in /dev/shm is ever touched.
SHM_NAMES = ("nccl-*", "sgl_shm_*", "sglang_loads_*", "cuda.shm.*", "sem.loky-*", "vllm_offload_*")
_SHM = "/dev/shm"


def end(
    root: str, families: Sequence[proc.Family], grace: dict[str, float], wait_s: float = KILL_WAIT_S
) -> dict[str, list[proc.Process]]:
    """End every process of these jobs below `root`; the processes that could not be ended, by job.

    `grace` has the seconds between TERM and KILL by job, `wait_s` those after KILL. New members that appear meanwhile
    get the same.
    """
    begun = time.monotonic()
    told: set[tuple[int, int]] = set()
    pause = 0.02
    while True:
        found = proc.families(root, families)
        elapsed = time.monotonic() - begun
        busy = False
        for job, members in found.items():
            kill = elapsed >= grace[job]
            for process in members:
                if kill or (process.pid, process.ticks) not in told:
                    _signal(process, signal.SIGKILL if kill else signal.SIGTERM)
                    told.add((process.pid, process.ticks))
            busy = busy or (bool(members) and elapsed < grace[job] + wait_s)
        if not busy:
            return found
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)


def _signal(process: proc.Process, number: int) -> None:
    try:
        proc.signal(process, number)
    except PermissionError:
        pass  # became another user's (sudo): it stays in the list of what is left, which is what is reported


def kill(root: str, ids: Sequence[str], grace_s: float | None) -> list[jobs.State]:
    """Cancel and end these jobs; their states afterwards, with `left` (pids) where something would not die."""
    boot = proc.boot_id()
    for job in ids:
        _cancel(root, job, grace_s)
    folders = {job: store.job_folder(root, job) for job in ids}
    queued = [job for job in ids if slurm.is_ours(folders[job])]
    here = [job for job in ids if job not in queued]
    queued = [job for job in queued if not os.path.exists(os.path.join(folders[job], "exit"))]
    if queued:
        slurm.kill(root, {job: _grace(folders[job], grace_s) for job in queued})
    _await_start(root, here)
    families, grace, seen = [], {}, {}
    for job in here:
        folder = store.job_folder(root, job)
        run = store.read_json(os.path.join(folder, "run")) or {}
        child = store.read_json(os.path.join(folder, "child")) or {}
        if run.get("boot") == boot:
            families.append(jobs.family(job, run, child))
            grace[job] = _grace(folder, grace_s)
            seen[job] = run.get("started", 0.0)
    shared = _shared_memory(root, families)
    left = end(root, families, grace)
    removed = {job: _sweep(shared[job], seen[job]) for job in shared}
    return [_proved(root, job, boot, left.get(job, []), removed.get(job, [])) for job in ids]


def _grace(folder: str, wanted: float | None) -> float:
    """Seconds between TERM and KILL: as asked for, else the job's own."""
    spec = store.read_json(os.path.join(folder, "spec.json")) or {}
    return float(spec.get("grace_s", DEFAULT_GRACE_S) if wanted is None else wanted)


def _cancel(root: str, job: str, grace_s: float | None) -> None:
    folder = store.job_folder(root, job)
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(os.path.join(folder, "exit")):
        store.write_json(os.path.join(folder, "cancel"), {"at": time.time(), "grace_s": grace_s})


def _await_start(root: str, ids: Sequence[str]) -> None:
    """Wait for supervisors that were starting when `cancel` was written, and may have looked for it just before.

    Until `child` is there a look at the processes could miss the one that is about to be.
    """
    deadline = time.monotonic() + _SETTLE_S
    for job in ids:
        folder = store.job_folder(root, job)
        while (
            time.monotonic() < deadline
            and not any(os.path.exists(os.path.join(folder, name)) for name in ("child", "exit"))
            and linux.lock_held(os.path.join(folder, "lock"))
        ):
            time.sleep(0.02)


def _proved(root: str, job: str, boot: str, left: list[proc.Process], removed: list[str]) -> jobs.State:
    """The state once the supervisor has written its record; written here when there is no supervisor any more."""
    store.job_folder(root, job)
    deadline = time.monotonic() + _SETTLE_S
    now = jobs.state(root, job, boot)
    while not left and now["state"] in ("running", "ready", "launching") and time.monotonic() < deadline:
        time.sleep(0.02)
        now = jobs.state(root, job, boot)
    if not left and now["state"] == "lost" and not now["reason"].startswith("reboot"):
        now = _record_orphan(root, job, boot, now)
    if left:
        pids = ", ".join(f"{p.pid} (state {p.state})" for p in left)
        now = dict(now, leftovers=[p.pid for p in left], reason="still alive after SIGKILL: pid " + pids)
    return dict(now, removed=removed) if removed else now


def _record_orphan(root: str, job: str, boot: str, now: jobs.State) -> jobs.State:
    folder = store.job_folder(root, job)
    fd = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if linux.try_lock(fd) and not os.path.exists(os.path.join(folder, "exit")):
            record: dict[str, Any] = {"cancelled": True, "started": now.get("started"), "ended": time.time()}
            store.write_json(os.path.join(folder, "exit"), dict(record, reason="orphan, ended by a kill"))
    finally:
        os.close(fd)
    return jobs.state(root, job, boot)


def _shared_memory(root: str, families: Sequence[proc.Family]) -> dict[str, dict[str, int]]:
    """Which shared memory files (path to inode) of the known names each job's processes hold, before they die."""
    found: dict[str, dict[str, int]] = {}
    for job, members in proc.families(root, families).items():
        paths = {path for process in members for path in proc.files_in(process.pid, _SHM) if known_shm(path)}
        found[job] = {path: inode for path in paths if (inode := _inode(path))}
    return found


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0  # its owner removed it just now


def known_shm(path: str) -> bool:
    """Whether a path in /dev/shm has one of the names that are known to be left behind."""
    return any(fnmatch.fnmatchcase(os.path.basename(path), pattern) for pattern in SHM_NAMES)


def _sweep(files: dict[str, int], started: float) -> list[str]:
    """Remove those files that are ours, younger than the job, the same as seen, and held by nobody any more."""
    if not files:
        return []
    held = {path for pid in proc.everyone() for path in proc.files_in(pid, _SHM)}
    removed = []
    for path, inode in files.items():
        try:
            info = os.stat(path)
            if info.st_ino == inode and info.st_uid == os.getuid() and info.st_ctime >= started and path not in held:
                os.unlink(path)
                removed.append(path)
        except FileNotFoundError:
            continue  # its owner removed it on TERM
    return removed
