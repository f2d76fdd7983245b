"""Jobs through Slurm: given to it on a login node, supervised on the compute node that it chooses.

The root folder lies on a file system that both share. `submit` has Slurm run `attend`, which is the supervisor of
`supervisor.py` with its lock, its records and its promise that an id runs at most once: Slurm may start a script twice,
and a submission of which nobody saw the answer may have been taken. For that `submitting` is there from before `sbatch`
until `slurm` holds Slurm's number of the job: whoever finds it asks for the job by its name before submitting again.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from typing import Any

from . import linux, proc, ready, slurm, store, supervisor, worker

KNOWN = ("slurm", "run", "exit", "cancel")
_SUBMIT_S, _WHY_S = 120.0, 10.0


def submit(root: str, spec: dict[str, Any], options: list[str], report: worker.Report) -> None:
    """Give a job to Slurm unless its id was used; tell `report` its state. Blocks for as long as Slurm takes."""
    folder = store.job_folder(root, spec["id"])
    try:
        if spec.get("ready"):
            ready.look_for(folder, spec["ready"])  # a check that cannot be is refused here, not on the compute node
        supervisor.prepare(root, folder, spec)
    except (OSError, ValueError) as error:
        report.send({"state": supervisor.refusal(folder, spec, error)})
        return
    lock = os.open(os.path.join(folder, "submit.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not linux.try_lock(lock):
        report.send({"state": {"id": spec["id"], "state": "launching", "already": True}})
        return
    if supervisor.is_other(folder, spec) or any(os.path.exists(os.path.join(folder, name)) for name in KNOWN):
        report.send({"state": supervisor.existing(root, spec, proc.boot_id())})
        return
    state = {"id": spec["id"], "state": "queued", "progress": {"line": "given to Slurm"}}
    try:
        number = _find_or_submit(root, folder, spec, options)
    except (slurm.Refused, FileNotFoundError) as error:
        os.unlink(os.path.join(folder, "submitting"))
        state = {"id": spec["id"], "state": "prepared", "refused": str(error)}
    except OSError as error:  # it may have been taken: the next launch of the id looks for it first
        state = {"id": spec["id"], "state": "launching", "reason": str(error)}
    else:
        store.write_json(os.path.join(folder, "slurm"), {"number": number, "at": time.time()})
        os.unlink(os.path.join(folder, "submitting"))
    report.send({"state": state})


def _find_or_submit(root: str, folder: str, spec: dict[str, Any], options: list[str]) -> str:
    marker = os.path.join(folder, "submitting")
    name = name_of(root, spec["id"])
    if os.path.exists(marker):  # somebody began and did not see the end
        found = _named(name)
        if found is not None:
            return found
    store.write_json(marker, {"at": time.time()})
    own = spec.get("slurm") or {}
    words = ["sbatch", "--parsable", "--no-requeue", "--open-mode", "append", *options, *own.get("options", ())]
    if own.get("gpus"):
        words += ["--gres", "gpu:{}".format(own["gpus"])]
    words += ["--job-name", name, "--output", os.path.join(folder, "slurm.log")]
    try:
        return slurm.command(words, _SUBMIT_S, script(root, spec["id"])).strip().split(";")[0]
    except slurm.Refused:
        found = _named(name)  # sbatch is known to report errors for jobs that were taken
        if found is None:
            raise
        return found


def name_of(root: str, job: str) -> str:
    """The job's name in Slurm: it tells the same id below two root folders apart."""
    return f"turnout-{hashlib.sha256(os.path.realpath(root).encode()).hexdigest()[:8]}-{job}"


def _named(name: str) -> str | None:
    """Slurm's number of the job with this name. Raises OSError, not Refused, when it cannot be asked."""
    try:
        rows = slurm.ask()
    except slurm.Refused as error:
        raise OSError(str(error)) from error
    return next((row.number for row in rows if row.name == name), None)


def script(root: str, job: str) -> str:
    """What Slurm runs: this very file's `attend`, by this Python or, where the node has none there, its own."""
    archive = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    words = " ".join(_quoted(word) for word in ("-IS", archive, "attend", root, job))
    return f'#!/bin/sh\np={_quoted(sys.executable)}\n[ -x "$p" ] || p=python3\nexec "$p" {words}\n'


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


# -- on the compute node


def attend(root: str, job: str) -> None:
    """Supervise a job that was submitted, as the main process of Slurm's batch step; exits with the job's code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.chdir("/")
    report = worker.Report(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
    spec = store.read_json(os.path.join(store.job_folder(root, job), "spec.json")) or {}
    try:
        supervisor.supervise(root, spec, report, manager=Slurm())
    except BaseException:
        supervisor.crashed(root, job, report)
        raise
    record = store.read_json(os.path.join(store.job_folder(root, job), "exit")) or {}
    sys.exit(record.get("rc") or int(bool(record.get("signal"))))


class Slurm(supervisor.Manager):
    """Slurm sends TERM to end a job, and can say why."""

    signals = frozenset({signal.SIGTERM})

    def __init__(self) -> None:
        self.number = os.environ.get("SLURM_JOB_ID", "")

    def where(self) -> dict[str, str]:
        """The node that Slurm chose."""
        return {"node": os.environ.get("SLURMD_NODENAME") or os.uname().nodename}

    def why(self) -> dict[str, Any]:
        """What goes into the exit record of a job that was ended by Slurm's order."""
        words = ["squeue", "--jobs", self.number, "--states", "all", "--noheader", "--format", "%T|%r"]
        try:
            answer = slurm.command(words, _WHY_S)
        except OSError:
            answer = ""  # the order was given all the same
        state, _, reason = answer.strip().partition("|")
        if reason == "TimeLimit":  # a job that is being ended has the state COMPLETING
            state = "TIMEOUT"
        means = slurm.MEANS.get(state, "it was told to end (its time limit, another job's right of way, or `scancel`)")
        return {"reason": f"Slurm, job {self.number}: {means}", "timed_out": state == "TIMEOUT"}
