"""The state of a job, read from its directory and from the processes that are there.

Nothing here changes a job. The order of the questions is the protocol: each is asked so that a job that ends while
it is asked about is still told right (`exit` is read again after the lock was found free).
"""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any, Dict

from . import evidence, linux, proc, slurm, store

_PROGRESS = re.compile(rb"::progress\s+(\d+(?:\.\d+)?)(?:\s*/\s*(\d+(?:\.\d+)?))?[ \t]*([^\r\n]{0,40})")
_TAIL = 4096
_LARGEST_OUTPUT = 1 << 20
State = Dict[str, Any]


def state(root: str, job: str, boot: str) -> State:
    """What is known of `job` (keys as in `tools.jobs.JobState`); `boot` is the id of the present boot."""
    folder = store.job_folder(root, job)
    record = store.read_json(os.path.join(folder, "exit"))
    if record is not None:
        return _ended(folder, job, record)
    if not os.path.isdir(folder):
        return {"id": job, "state": "unknown"}
    if slurm.is_ours(folder):
        return _of_slurm(root, folder, job)
    lock = os.path.join(folder, "lock")
    run = store.read_json(os.path.join(folder, "run"))
    if run is None:
        if linux.lock_held(lock):
            return {"id": job, "state": "launching"}
        if os.path.exists(os.path.join(folder, "cancel")):
            return {"id": job, "state": "exited", "cancelled": True}
        if not os.path.exists(os.path.join(folder, "run")):
            return {"id": job, "state": "prepared"}
        run = store.read_json(os.path.join(folder, "run")) or {}  # it was written between the two looks
    child = store.read_json(os.path.join(folder, "child")) or {}
    known = {"id": job, "pid": child.get("pid"), "started": run.get("started")}
    known.update(log_facts(folder))
    if run.get("boot") == boot:
        if linux.lock_held(lock):
            return _running(folder, known)
        record = store.read_json(os.path.join(folder, "exit"))
        if record is not None:
            return _ended(folder, job, record)
        if _has_family(root, job, child):
            return dict(_running(folder, known), state="orphan", reason="the supervisor died; the command lives on")
    return dict(known, state="lost", tail=_tail_text(folder), **evidence.why_lost(run, child, boot, folder))


def _of_slurm(root: str, folder: str, job: str) -> State:
    run = store.read_json(os.path.join(folder, "run")) or {}
    child = store.read_json(os.path.join(folder, "child")) or {}
    known = {
        "id": job,
        "pid": child.get("pid"),
        "started": run.get("started"),
        "node": run.get("node"),
        **log_facts(folder),
    }
    found = slurm.state(root, job, known)
    if found["state"] in ("exited", "lost"):
        record = store.read_json(os.path.join(folder, "exit"))
        return dict(found, tail=_tail_text(folder)) if record is None else _ended(folder, job, record)
    if found["state"] in ("running", "ready"):  # what was said of it while it waited is over
        found["progress"] = progress(folder) or {"line": "started on {}".format(found["node"])}
    return found


def _has_family(root: str, job: str, child: dict[str, Any]) -> bool:
    if child and proc.alive(child["pid"], child["ticks"]):
        return True
    return bool(proc.families(root, [family(job, {}, child)])[job])


def family(job: str, run: dict[str, Any], child: dict[str, Any]) -> proc.Family:
    """How to find the processes of `job`, from its `run` and `child` records."""
    return proc.Family(job, child.get("pid", 0), child.get("ticks", 0), run.get("pid", 0))


def _running(folder: str, known: State) -> State:
    ready = store.read_json(os.path.join(folder, "ready"))
    found = dict(known, state="running" if ready is None else "ready")
    if ready is not None:
        found["ready_at"] = ready.get("at")
    found["progress"] = progress(folder)
    return found


def _ended(folder: str, job: str, record: dict[str, Any]) -> State:
    found = dict(record, id=job, state="exited")
    # Through Slurm a job leaves nothing; and the numbers are those of another machine.
    of_slurm = slurm.is_ours(folder)
    left = () if of_slurm else record.get("leftovers", ())
    found["leftovers"] = [pid for pid, ticks in left if proc.alive(pid, ticks)]
    found.update(log_facts(folder))
    ready = store.read_json(os.path.join(folder, "ready"))
    if ready is not None:
        found["ready_at"] = ready.get("at")
    found.update(_output(folder))
    if record.get("rc") != 0:
        found["tail"] = _tail_text(folder)
    found["progress"] = progress(folder) or ({"line": ""} if of_slurm else None)
    return found


def _output(folder: str) -> State:
    path = os.path.join(folder, "output.json")
    try:
        data = store.read_file(path, _LARGEST_OUTPUT + 1)
        if data is None:
            return {}
        if len(data) > _LARGEST_OUTPUT:
            size = os.path.getsize(path)
            return {"output_error": f"output.json has `{size}` bytes, at most `{_LARGEST_OUTPUT}` are read"}
        # NaN and the infinities are Python's own: JSON has none, and no reader of the result would understand them.
        value = json.loads(data, parse_constant=lambda name: None, parse_float=_finite)
    except OSError as error:
        return {"output_error": f"output.json cannot be read: {error.strerror}"}
    except RecursionError:
        return {"output_error": "output.json is nested too deeply"}
    except ValueError as error:
        return {"output_error": f"output.json is no JSON: {error}"}
    return {"output": value} if isinstance(value, dict) else {"output_error": "output.json is no JSON object"}


def _finite(number: Any) -> float | None:
    """As a float; None for what is none, or too large to be one."""
    try:
        value = float(number)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def log_facts(folder: str) -> State:
    """The log's size and how many bytes of its middle were given up for `max_log`."""
    try:
        size = os.path.getsize(os.path.join(folder, "log"))
    except FileNotFoundError:
        return {"log_size": 0}
    dropped = store.read_json(os.path.join(folder, "dropped")) or {}
    return {"log_size": size, "log_dropped": dropped.get("length", 0)}


def tail(folder: str, limit: int = _TAIL) -> bytes:
    """The last `limit` bytes of the job's log; empty when there is none."""
    fd = _open_log(folder)
    if fd is None:
        return b""
    try:
        return os.pread(fd, limit, max(0, os.fstat(fd).st_size - limit))
    finally:
        os.close(fd)


def _open_log(folder: str) -> int | None:
    try:
        return store.open_file(os.path.join(folder, "log"))
    except store.NotAFile:
        return None


def _tail_text(folder: str) -> str:
    return tail(folder).decode("latin-1")  # any byte has a place in latin-1: the driver turns it back and cleans it


def progress(folder: str) -> State | None:
    """How far the job says it is: the last `::progress 40/100 steps` near the log's end, or a newer progress.json.

    With it comes the last line that is no such mark: what the job says of itself beside counting."""
    text = tail(folder)
    lines = [line for line in re.split(rb"[\r\n]+", text) if line.strip()]
    marks = list(_PROGRESS.finditer(text))
    spoken = [line for line in lines if not line.startswith(b"::progress")] or lines
    found: State = {"line": spoken[-1][-500:].decode("latin-1")} if spoken else {}
    told = _progress_file(folder, newer_than_log=bool(marks))
    if told is not None:
        found.update(told)
    elif marks:
        done, total, unit = marks[-1].groups()
        found.update(done=_finite(done), unit=unit.decode("utf-8", "replace").strip() or None)
        found["total"] = _finite(total) if total else None
    return found or None


def _progress_file(folder: str, *, newer_than_log: bool) -> State | None:
    path = os.path.join(folder, "progress.json")
    try:
        if newer_than_log and os.stat(path).st_mtime < os.stat(os.path.join(folder, "log")).st_mtime:
            return None
    except FileNotFoundError:
        return None
    value = store.read_json(path)
    if not value:
        return None
    numbers = {k: _finite(value[k]) for k in ("done", "total") if isinstance(value.get(k), (int, float))}
    return dict(numbers, unit=str(value["unit"])[:40] if value.get("unit") else None)


def read_log(folder: str, offset: int, limit: int) -> tuple[State, bytes]:
    """At most `limit` bytes from `offset` (negative: from the end) with where they lie.

    A log shorter than `offset` was emptied by somebody: reading restarts at 0 and says `truncated`. A range that was
    given up is stepped over: the answer's `offset` is then larger than the one asked for.
    """
    fd = _open_log(folder)
    if fd is None:
        return {"offset": 0, "size": 0, "inode": 0, "truncated": offset > 0}, b""
    try:
        info = os.fstat(fd)
        truncated = offset > info.st_size
        start = max(0, info.st_size + offset) if offset < 0 else (0 if truncated else offset)
        dropped = store.read_json(os.path.join(folder, "dropped")) or {}
        hole, end = dropped.get("offset", 0), dropped.get("offset", 0) + dropped.get("length", 0)
        if hole <= start < end:
            start = end
        elif start < hole and end > hole:
            limit = min(limit, hole - start)
        data = os.pread(fd, limit, start)
    finally:
        os.close(fd)
    return {"offset": start, "size": info.st_size, "inode": info.st_ino, "truncated": truncated}, data
