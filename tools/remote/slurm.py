"""What Slurm says of the jobs on a login node, and how they are ended. How they are given to it is in `batch.py`.

Slurm decides only what the job's folder cannot tell: that a job waits, and that one without an exit record is over. It
is asked by `look`, which may take seconds and belongs into a worker; between two answers the last one counts. A job is
known by the name that we gave it: its number is told late, or never, and a controller that lost its state gives it to
another. States as in the manual page of squeue (Slurm 20.11 and later).
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from typing import Any, Dict, Iterable, Mapping, NamedTuple, Sequence

from . import linux, store

_ANSWER_S, _PROBE_S = 60.0, 10.0
_LOOK_S, _AGAIN_S = 1.0, 5.0
EVERY_S = 5.0
SUBMIT_S, _GIVE_UP_S = 120.0, 120.0
# How long a job that Slurm calls over may still show no exit record: what another node wrote is seen late over NFS.
SETTLE_S = 15.0
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_OVER = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
)  # fmt: skip
# A person's defaults for the tools that would hide jobs from us, ask us back, or make of one job something else.
_NOT_OURS = ("SQUEUE_", "SCANCEL_", "SINFO_", "SBATCH_WAIT", "SBATCH_ARRAY_INX", "SBATCH_CLUSTERS")
_ALWAYS = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
MEANS = {
    "BOOT_FAIL": "its node did not start",
    "CANCELLED": "it was cancelled there (`scancel`)",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "it was killed for memory",
    "PREEMPTED": "it had to make way for another job",
    "TIMEOUT": "it reached Slurm's time limit",
}
_OURS = "turnout-"
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
    """What Slurm said last, by the names of jobs, and when it was asked (monotonic seconds; 0.0: never yet)."""

    def __init__(self) -> None:
        self.asked = self.tried = self._began = 0.0
        self.rows: dict[str, Row] = {}
        self._over_since: dict[str, float] = {}

    def begin(self) -> None:
        """Slurm is asked now: the answer knows nothing of what happens after this."""
        self._began = time.monotonic()

    def take(self, rows: Iterable[Sequence[str]]) -> None:
        """The answer of `ask`. Of jobs with one name (a submission that was repeated) the liveliest counts."""
        self.asked, self.tried = self._began, time.monotonic()
        self.rows = {row.name: row for row in sorted((Row(*row) for row in rows), key=_life)}

    def in_vain(self) -> None:
        """Slurm was asked and gave no answer: the last one stands."""
        self.tried = time.monotonic()

    def over_for(self, name: str, *, begun: bool) -> float:
        """Seconds after which an answer still said what was first noticed then: that Slurm is through with a job.

        One that has `begun` and waits again was put back into the queue, and will not be run a second time.
        """
        row = self.rows.get(name)
        over = row is None or row.state in _OVER or (begun and row.state in _WAITING)
        if not self.asked or not over:
            self._over_since.pop(name, None)
            return 0.0
        return self.asked - self._over_since.setdefault(name, time.monotonic())


def _life(row: Row) -> tuple[int, int]:
    return (0 if row.state in _OVER else 1 if row.state in _WAITING else 2, int(row.number))


queue = Queue()


def ask() -> list[Row]:
    """Our jobs that Slurm remembers (ended ones for its `MinJobAge`). Raises OSError when it does not answer."""
    # `--all` is for hidden partitions.
    words = ["squeue", "--all", "--user", str(os.getuid()), "--states", "all", "--noheader", "--format", "%A|%T|%r|%j"]
    rows = [line.split("|", 3) for line in command(words, _ANSWER_S).splitlines()]
    return [Row(*row) for row in rows if len(row) == 4 and row[0].isdigit() and row[3].startswith(_OURS)]


def look() -> None:
    """Ask Slurm. Raises OSError when it does not answer: the last answer stands."""
    queue.begin()
    queue.take(ask())


def refresh(root: str, jobs: Iterable[str]) -> None:
    """Ask Slurm, if any of these jobs is Slurm's. Without an answer the last one stands."""
    if any(is_ours(store.job_folder(root, job)) for job in jobs):
        with suppress(OSError):  # unknown is not ended: a state is told from what was known
            look()


def command(words: list[str], limit_s: float, text: str = "") -> str:
    """What a tool of Slurm prints. Raises FileNotFoundError, Refused, and OSError where no answer comes."""
    import subprocess  # here: every host would pay for it, and few have Slurm

    try:
        given = text.encode("utf-8", "surrogateescape")
        done = subprocess.run(words, input=given, capture_output=True, timeout=limit_s, env=environment(os.environ))
    except subprocess.TimeoutExpired as error:
        raise OSError(f"`{words[0]}` gave no answer within {limit_s:.0f} s") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
        raise Refused(f"`{words[0]}` failed: {said[-1000:]}")
    return done.stdout.decode("utf-8", "replace")


def environment(ours: Mapping[str, str]) -> dict[str, str]:
    """What the tools of Slurm, and through `sbatch` the job, are given of our environment.

    Without a person's defaults that would break what we ask for; and, where we run inside a job of Slurm's, without
    what was said of that one: `srun` would take it for the new job's.
    """
    inside = "SLURM_JOB_ID" in ours
    return {
        name: value
        for name, value in ours.items()
        if not name.startswith(_NOT_OURS) and not (inside and name.startswith("SLURM_") and name not in _ALWAYS)
    }


def partitions() -> list[dict[str, Any]]:
    """What jobs can be given to: `name`, `default`, `up`, `limit` (Slurm's words), `nodes` by state, `gres`."""
    try:
        lines = command(["sinfo", "--noheader", "--format", "%P|%a|%l|%F|%G"], _PROBE_S).splitlines()
    except OSError:
        return []
    found = []
    for name, up, limit, counts, gres in (line.split("|", 4) for line in lines if line.count("|") >= 4):
        if not counts.replace("/", "").isdigit():
            continue
        nodes = dict(zip(("allocated", "idle", "other", "total"), map(int, counts.split("/"))))
        found.append({"name": name.rstrip("*"), "default": name.endswith("*"), "up": up == "up", "limit": limit.strip(),
                      "nodes": nodes, "gres": "" if gres == "(null)" else gres.strip()})  # fmt: skip
    return found


def is_ours(folder: str) -> bool:
    """Whether the job in this folder was given to Slurm, or is about to be."""
    return any(os.path.exists(os.path.join(folder, name)) for name in ("slurm", "submitting"))


def name_of(root: str, job: str) -> str:
    """The job's name in Slurm: it tells the same id below two root folders apart.

    Kept with the job, since another login node may reach the root folder by another path.
    """
    name = _submission(store.job_folder(root, job)).get("name")
    where = os.fsencode(os.path.realpath(root))
    return str(name or f"{_OURS}{hashlib.sha256(where).hexdigest()[:8]}-{job}")


def _submission(folder: str) -> State:
    """What is known of it: `name`, and `number` once Slurm has told it."""
    records = (store.read_json(os.path.join(folder, name)) for name in ("slurm", "submitting"))
    return next((record for record in records if record), {})


def state(root: str, job: str, known: State) -> State:
    """The state of a job of Slurm's that has no exit record. `known` is what is said of it anyhow."""
    folder = store.job_folder(root, job)
    given = _submission(folder)
    name, number = str(given.get("name", "")), str(given.get("number", ""))
    begun = os.path.exists(os.path.join(folder, "run"))
    row = queue.rows.get(name)
    if not (number or begun or row):
        return dict(known, state="launching")  # nobody knows whether Slurm took it; the next launch finds out
    if queue.over_for(name, begun=begun) >= SETTLE_S:
        return _over(folder, row.number if row else number, row, known)
    if begun:
        ready = store.read_json(os.path.join(folder, "ready"))
        if ready is None:
            return dict(known, state="running")
        return dict(known, state="ready", ready_at=ready.get("at"))
    if row is None:
        return dict(known, state="queued", progress=_line(number, "submitted"))
    if row.state in _WAITING:
        return dict(known, state="queued", progress=_line(row.number, row.reason))
    return dict(known, state="launching")


def _line(number: str, why: str) -> State:
    return {"line": f"in Slurm's queue as job {number}: {why}"}


def _over(folder: str, number: str, row: Row | None, known: State) -> State:
    ended = row.state if row is not None else ""
    means = MEANS.get(ended, f"over ({ended or 'not known any more'})")
    if ended in _WAITING:
        means = "it was put back into the queue, and an id runs once"
    reason = f"Slurm, job {number}: {means}" if number else f"Slurm: {means}"
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
    _await_submissions(root, grace)
    names = {job: name_of(root, job) for job in grace}
    _look()
    waiting = [job for job in names if _says(names[job]) in _WAITING]
    running = [job for job in names if _says(names[job]) not in ("", *_WAITING, *_OVER)]
    _cancel([], [names[job] for job in waiting])  # one that starts meanwhile sees `cancel` and leaves
    _cancel(["--batch", "--signal", "TERM"], [names[job] for job in running])
    patience = max([grace[job] for job in running] or [0.0]) + SETTLE_S
    left = _await_end(root, names, patience)
    if left:  # their supervisors did not do it: Slurm's own way, TERM and KILL for everything
        _cancel([], [names[job] for job in left])
        left = _await_end(root, {job: names[job] for job in left}, _GIVE_UP_S)
    for job in set(names) - set(left):
        _record(store.job_folder(root, job))


def _await_submissions(root: str, jobs: Iterable[str]) -> None:
    """Wait for whoever is giving one of these to Slurm, and saw no `cancel` yet. What comes later sees it."""
    until = time.monotonic() + SUBMIT_S + _ANSWER_S
    for folder in (store.job_folder(root, job) for job in jobs):
        while (
            time.monotonic() < until
            and os.path.exists(os.path.join(folder, "submitting"))
            and linux.lock_held(os.path.join(folder, "submit.lock"))
        ):
            time.sleep(0.1)


def _await_end(root: str, names: dict[str, str], limit_s: float) -> list[str]:
    """The jobs that after `limit_s` at most have no exit record, and are not over for Slurm either."""
    until = time.monotonic() + limit_s
    next_look = 0.0
    left = list(names)
    while left and time.monotonic() < until:
        left = [job for job in left if not os.path.exists(os.path.join(store.job_folder(root, job), "exit"))]
        if left and time.monotonic() >= next_look:
            _look()
            left = [job for job in left if _says(names[job]) not in ("", *_OVER)]
            next_look = time.monotonic() + _LOOK_S
        if left:
            time.sleep(0.1)
    return left


def _look() -> None:
    while True:
        try:
            look()
        except FileNotFoundError:
            raise
        except OSError:
            time.sleep(_AGAIN_S)
        else:
            return


def _says(name: str) -> str:
    """The state that Slurm gave last; empty for a job that it does not know (any more)."""
    row = queue.rows.get(name)
    return row.state if row is not None else ""


def _record(folder: str) -> None:
    """Write down the end of a job that was killed and left no record. One that comes late replaces it, as true."""
    store.refresh(folder)
    if os.path.exists(os.path.join(folder, "exit")):
        return
    run = store.read_json(os.path.join(folder, "run")) or {}
    child = store.read_json(os.path.join(folder, "child")) or {}
    record = {"cancelled": True, "started": run.get("started"), "ended": time.time(), "pid": child.get("pid")}
    record.update({"node": run.get("node"), "reason": "ended by Slurm"} if run else {})
    store.write_json(os.path.join(folder, "exit"), record)


def _cancel(options: list[str], names: list[str]) -> None:
    if names:
        with suppress(OSError):  # ended just now, or no answer: whether they are over is asked next
            command(["scancel", "--quiet", *options, *(queue.rows[name].number for name in names)], _ANSWER_S)
