"""Jobs through Slurm: given to it on a login node, supervised on the compute node that it chooses.

The root folder lies on a file system that both share. `submit` has Slurm run `attend`, which is the supervisor of
`supervisor.py` with its lock, its records and its promise that an id runs at most once: Slurm may start a script twice,
and a submission of which nobody saw the answer may have been taken. For that `submitting` is there from before `sbatch`
until `slurm` holds Slurm's number of the job: whoever finds it asks for the job by its name before submitting again. A
kill writes `cancel` before it looks for `submitting`, a submission `submitting` before it looks for `cancel`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from . import linux, proc, ready, slurm, store, supervisor, worker

KNOWN = ("slurm", "run", "exit", "cancel")
_WHY_S = 10.0
# `sbatch` gave up before the controller did: the job may be taken yet, though nobody can see it now.
_NO_ANSWER = ("timed out", "Unable to contact", "Zero Bytes were transmitted")


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
    seen = [os.path.exists(os.path.join(folder, name)) for name in KNOWN]
    # A folder without a spec was made by a kill that is just writing `cancel` into it.
    if any(seen) or not os.path.exists(os.path.join(folder, "spec.json")) or supervisor.is_other(folder, spec):
        report.send({"state": supervisor.existing(root, spec, proc.boot_id())})
        return
    worker.restore_descriptor_limit()  # `sbatch` hands limits on to the job
    report.send({"state": _submit(root, folder, spec, options)})


def _submit(root: str, folder: str, spec: dict[str, Any], options: list[str]) -> dict[str, Any]:
    """Give it to Slurm and keep the number; the state to tell."""
    marker = os.path.join(folder, "submitting")
    begun = os.path.exists(marker)  # somebody did, and did not see the end
    name = slurm.name_of(root, spec["id"])
    store.write_json(marker, {"name": name, "at": time.time()})
    if not begun and os.path.exists(os.path.join(folder, "cancel")):
        os.unlink(marker)
        return supervisor.existing(root, spec, proc.boot_id())
    try:
        number = (_named(name) if begun else None) or _sbatch(root, folder, spec, options, name)
    except (slurm.Refused, FileNotFoundError) as error:
        with suppress(FileNotFoundError):
            os.unlink(marker)
        return {"id": spec["id"], "state": "prepared", "refused": str(error)}
    except OSError as error:  # it may have been taken: the next launch of the id looks for it first
        return {"id": spec["id"], "state": "launching", "reason": str(error)}
    store.write_json(os.path.join(folder, "slurm"), {"number": number, "name": name, "at": time.time()})
    os.unlink(marker)
    return {"id": spec["id"], "state": "queued", "progress": {"line": "given to Slurm"}}


def _sbatch(root: str, folder: str, spec: dict[str, Any], options: list[str], name: str) -> str:
    """Slurm's number of the job. Raises Refused when it certainly did not take it, OSError when it may have."""
    own = spec.get("slurm") or {}
    words = ["sbatch", "--parsable", "--no-requeue", "--open-mode", "append", *options, *own.get("options", ())]
    if own.get("gpus"):
        words += ["--gres", "gpu:{}".format(own["gpus"])]
    words += ["--job-name", name, "--output", os.path.join(folder, "slurm.log").replace("%", "%%")]
    try:
        said = slurm.command(words, slurm.SUBMIT_S, script(root, spec["id"])).strip()
        number = said.split("\n")[-1].split(";")[0]
        if not number.isdigit():
            raise slurm.Refused(f"`sbatch` gave no number of a job, but `{said[-300:]}`")
    except slurm.Refused as error:
        found = _named(name)  # sbatch is known to report errors for jobs that were taken
        if found is None and any(mark in str(error) for mark in _NO_ANSWER):
            raise OSError(str(error)) from error
        if found is None:
            raise
        return found
    return number


def _named(name: str) -> str | None:
    """Slurm's number of the job with this name. Raises OSError, nothing narrower, when it cannot be asked."""
    try:
        slurm.look()
    except (slurm.Refused, FileNotFoundError) as error:
        raise OSError(str(error)) from error
    row = slurm.queue.rows.get(name)
    return row.number if row is not None else None


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
    signal.pthread_sigmask(signal.SIG_BLOCK, Slurm.signals | Slurm.passed_on)
    os.chdir("/")
    report = _Log(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
    spec = store.read_json(os.path.join(store.job_folder(root, job), "spec.json")) or {}
    try:
        supervisor.supervise(root, spec, report, manager=Slurm())
    except BaseException:
        supervisor.crashed(root, job, report)
        raise
    record = store.read_json(os.path.join(store.job_folder(root, job), "exit")) or {}
    sys.exit(record.get("rc") or int(bool(record.get("signal")) or report.refused))


class _Log(worker.Report):
    """Nobody waits for the start here: why there was none goes to Slurm's log of the job."""

    refused = False

    def send(self, header: dict[str, Any], body: bytes = b"") -> bool:
        state = header.get("state") or {}
        why = (header.get("error") or {}).get("message") or state.get("refused")
        self.refused = bool(why)
        if why or state.get("already"):
            why = why or "the id was used, or was cancelled"
            os.write(1, (f"turnout: not started: {why}\n").encode("utf-8", "surrogateescape"))
        return True


class Slurm(supervisor.Manager):
    """Slurm sends TERM to end a job, and can say why."""

    signals = frozenset({signal.SIGTERM})
    passed_on = frozenset({signal.SIGUSR1, signal.SIGUSR2})  # `--signal B:USR1@120`: the batch step is ours
    ends_leftovers = True  # as Slurm does itself where it tracks processes by control groups

    def __init__(self) -> None:
        self.number = os.environ.get("SLURM_JOB_ID", "")

    def where(self) -> dict[str, str]:
        """The node that Slurm chose."""
        return {"node": os.environ.get("SLURMD_NODENAME") or os.uname().nodename}

    def why(self) -> dict[str, Any]:
        """What goes into the exit record of a job that was ended by Slurm's order."""
        words = ["squeue", "--all", "--jobs", self.number, "--states", "all", "--noheader", "--format", "%T|%r"]
        try:
            answer = slurm.command(words, _WHY_S)
        except OSError:
            answer = ""  # the order was given all the same
        state, _, reason = answer.strip().partition("|")
        if reason == "TimeLimit":  # a job that is being ended has the state COMPLETING
            state = "TIMEOUT"
        means = slurm.MEANS.get(state, "it was told to end (its time limit, another job's right of way, or `scancel`)")
        return {"reason": f"Slurm, job {self.number}: {means}", "timed_out": state == "TIMEOUT"}
