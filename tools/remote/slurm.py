"""What Slurm says of the jobs on a login node, and how they are ended. How they are given to it is in `batch.py`.

Slurm decides only what the job's folder cannot tell: that a job waits, and that one without an exit record is over. It
is asked by `refresh`, which may take seconds and belongs into a worker; between two answers the last one counts.
`slurm` in a job's folder holds Slurm's number of it. States as in the manual page of squeue (Slurm 20.11 and later).
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from typing import Any, Dict, Iterable, NamedTuple, Sequence

from . import store

_ANSWER_S, _PROBE_S = 60.0, 10.0
_LOOK_S, _AGAIN_S = 1.0, 5.0
EVERY_S = 5.0
_GIVE_UP_S = 120.0
# How long a job that Slurm calls over may still show no exit record: what another node wrote is seen late over NFS.
_SETTLE_S = 15.0
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_OVER = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
)  # fmt: skip
MEANS = {
    "BOOT_FAIL": "its node did not start",
    "CANCELLED": "it was cancelled there (`scancel`)",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "it was killed for memory",
    "PREEMPTED": "it had to make way for another job",
    "TIMEOUT": "it reached Slurm's time limit",
}
State = Dict[str, Any]


class Refused(OSError):
    """A tool of Slurm ended with an error, and what it said."""


class Row(NamedTuple):
    """One line of squeue: Slurm's number of the job, its state, why it waits, its name."""

    number: str
    state: str
    reason: str
    name: str


class Queue:
    """What Slurm said last, and when (monotonic seconds; 0.0: never yet)."""

    def __init__(self) -> None:
        self.asked = 0.0
        self.tried = 0.0
        self.rows: dict[str, Row] = {}
        self._over_since: dict[str, float] = {}

    def take(self, rows: Iterable[Sequence[str]]) -> None:
        """The answer of `ask`."""
        self.asked = self.tried = time.monotonic()
        self.rows = {row[0]: Row(*row) for row in rows}

    def in_vain(self) -> None:
        """Slurm was asked and gave no answer: the last one stands."""
        self.tried = time.monotonic()

    def over_for(self, number: str) -> float:
        """Seconds since Slurm was first seen to be through with a job."""
        return time.monotonic() - self._over_since.setdefault(number, time.monotonic())


queue = Queue()


def ask() -> list[Row]:
    """Our jobs that Slurm remembers (ended ones for its `MinJobAge`). Raises OSError when it does not answer."""
    words = ["squeue", "--user", str(os.getuid()), "--states", "all", "--noheader", "--format", "%A|%T|%r|%j"]
    lines = command(words, _ANSWER_S).splitlines()
    return [Row(*line.split("|", 3)) for line in lines if line.count("|") >= 3]


def refresh(root: str, jobs: Iterable[str]) -> None:
    """Ask Slurm, if any of these jobs is Slurm's. Without an answer the last one stands."""
    if any(is_ours(store.job_folder(root, job)) for job in jobs):
        try:
            queue.take(ask())
        except OSError:
            pass  # unknown is not ended: a state is told from what was known


def command(words: list[str], limit_s: float, text: str = "") -> str:
    """What a tool of Slurm prints. Raises FileNotFoundError, Refused, and OSError where no answer comes."""
    try:
        given = text.encode("utf-8", "surrogateescape")
        done = subprocess.run(words, input=given, capture_output=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"`{words[0]}` gave no answer within {limit_s:.0f} s") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
        raise Refused(f"`{words[0]}` failed: {said[-1000:]}")
    return done.stdout.decode("utf-8", "replace")


def partitions() -> list[dict[str, Any]]:
    """What jobs can be given to: `name`, `default`, `up`, `limit` (Slurm's words), `nodes` by state, `gres`."""
    try:
        lines = command(["sinfo", "--noheader", "--format", "%P|%a|%l|%F|%G"], _PROBE_S).splitlines()
    except OSError:
        return []
    found = []
    for name, up, limit, counts, gres in (line.split("|", 4) for line in lines if line.count("|") >= 4):
        nodes = dict(zip(("allocated", "idle", "other", "total"), map(int, counts.split("/"))))
        found.append({"name": name.rstrip("*"), "default": name.endswith("*"), "up": up == "up", "limit": limit.strip(),
                      "nodes": nodes, "gres": "" if gres == "(null)" else gres.strip()})  # fmt: skip
    return found


def is_ours(folder: str) -> bool:
    """Whether the job in this folder was given to Slurm, or is about to be."""
    return any(os.path.exists(os.path.join(folder, name)) for name in ("slurm", "submitting"))


def state(folder: str, known: State) -> State:
    """The state of a job of Slurm's that has no exit record. `known` is what is said of it anyhow."""
    record = store.read_json(os.path.join(folder, "slurm")) or {}
    number = str(record.get("number", ""))
    if not number:
        return dict(known, state="launching")
    row = queue.rows.get(number)
    over = queue.asked and (row is None or row.state in _OVER) and _was_asked_since(record)
    if over and queue.over_for(number) >= _SETTLE_S:
        return _over(folder, number, row, known)
    if os.path.exists(os.path.join(folder, "run")):
        ready = store.read_json(os.path.join(folder, "ready"))
        if ready is None:
            return dict(known, state="running")
        return dict(known, state="ready", ready_at=ready.get("at"))
    if row is None or row.state not in _WAITING:
        return dict(known, state="launching" if row is not None else "queued", progress=_line(number, "submitted"))
    return dict(known, state="queued", progress=_line(number, row.reason))


def _was_asked_since(record: State) -> bool:
    """Whether Slurm's last answer is young enough to know of this submission."""
    return time.time() - (time.monotonic() - queue.asked) > float(record.get("at", 0.0)) + 5.0


def _line(number: str, why: str) -> State:
    return {"line": f"in Slurm's queue as job {number}: {why}"}


def _over(folder: str, number: str, row: Row | None, known: State) -> State:
    ended = row.state if row is not None else ""
    reason = "Slurm, job {}: {}".format(number, MEANS.get(ended, f"over ({ended or 'not known any more'})"))
    if os.path.exists(os.path.join(folder, "cancel")):
        return dict(known, state="exited", cancelled=True, reason=reason)
    if ended == "TIMEOUT":
        return dict(known, state="exited", timed_out=True, reason=reason)
    if ended == "OUT_OF_MEMORY":
        known = dict(known, oom=reason)
    said = _last_line(os.path.join(folder, "slurm.log"))
    reason += ", without an exit record"
    return dict(known, state="lost", reason=f"{reason}; its last words: {said}" if said else reason)


def _last_line(path: str) -> str:
    try:
        lines = (store.read_file(path, 1 << 16) or b"").decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[-500:] for line in reversed(lines) if line.strip()), "")


def kill(root: str, grace: dict[str, float]) -> None:
    """End these jobs (each with its grace in seconds), whose `cancel` is written; each has an exit record afterwards.

    Those that Slurm cannot end in minutes (their node is gone) have none, and stay what Slurm says. Takes as long as
    Slurm takes to answer: a controller that is being restarted is waited for.
    """
    numbers = {job: _number(root, job) for job in grace}
    _look()
    waiting = [job for job, number in numbers.items() if _says(number) in _WAITING]
    running = [job for job, number in numbers.items() if _says(number) not in ("", *_WAITING, *_OVER)]
    _cancel([], [numbers[job] for job in waiting])  # one that starts meanwhile sees `cancel` and leaves
    _cancel(["--batch", "--signal", "TERM"], [numbers[job] for job in running])
    patience = max([grace[job] for job in running] or [0.0]) + _SETTLE_S
    left = _await_end(root, numbers, patience)
    if left:  # their supervisors did not do it: Slurm's own way, TERM and KILL for everything
        _cancel([], [numbers[job] for job in left])
        left = _await_end(root, {job: numbers[job] for job in left}, _GIVE_UP_S)
    for job in set(numbers) - set(left):
        _record(store.job_folder(root, job))


def _await_end(root: str, numbers: dict[str, str], limit_s: float) -> list[str]:
    """The jobs that after `limit_s` at most have no exit record, and are not over for Slurm either."""
    until = time.monotonic() + limit_s
    next_look = 0.0
    left = list(numbers)
    while left and time.monotonic() < until:
        left = [job for job in left if not os.path.exists(os.path.join(store.job_folder(root, job), "exit"))]
        if left and time.monotonic() >= next_look:
            _look()
            left = [job for job in left if _says(numbers[job]) not in ("", *_OVER)]
            next_look = time.monotonic() + _LOOK_S
        if left:
            time.sleep(0.1)
    return left


def _look() -> None:
    while True:
        try:
            queue.take(ask())
        except FileNotFoundError:
            raise
        except OSError:
            time.sleep(_AGAIN_S)
        else:
            return


def _says(number: str) -> str:
    """The state that Slurm gave last; empty for a job that it does not know (any more)."""
    row = queue.rows.get(number)
    return row.state if row is not None else ""


def _record(folder: str) -> None:
    """Write down the end of a job that was killed and left no record. One that comes late replaces it, as true."""
    if os.path.exists(os.path.join(folder, "exit")):
        return
    run = store.read_json(os.path.join(folder, "run")) or {}
    child = store.read_json(os.path.join(folder, "child")) or {}
    record = {"cancelled": True, "started": run.get("started"), "ended": time.time(), "pid": child.get("pid")}
    store.write_json(os.path.join(folder, "exit"), dict(record, reason="ended by Slurm"))


def _cancel(options: list[str], numbers: list[str]) -> None:
    if numbers:
        with suppress(OSError):  # ended just now, or no answer: whether they are over is asked next
            command(["scancel", "--quiet", *options, *numbers], _ANSWER_S)


def _number(root: str, job: str) -> str:
    record = store.read_json(os.path.join(store.job_folder(root, job), "slurm"))
    return str((record or {}).get("number", ""))
