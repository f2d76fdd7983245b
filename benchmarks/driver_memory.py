"""What a thousand jobs in flight weigh: here, in the process that drives them, and there, on the host.

    python -m benchmarks.driver_memory [--rounds 3] [--jobs 1000]

The driver runs in a process of its own. Once every job has been seen to run it tells its own memory, that of the
remote half that serves it, and that of the supervisors. A supervisor shares most of its pages with its siblings, so
its share (PSS) is what one more job costs. The jobs are killed afterwards, and the time that took is told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio

from agent.dispatcher import Dispatcher
from agent.hosts import open_hosts
from agent.infos import HostInfo
from agent.load import load
from benchmarks.common import (
    Aim,
    idle,
    median,
    memory_mb,
    openssh,
    peak_mb,
    save,
    spec_from_json,
    spec_to_json,
    wait_until_quiet,
    workplace,
)
from benchmarks.contestants import Quiet, job_plan, store
from state.changes import Change
from state.db import Database
from tools.remote import proc
from tools.ssh import Host, HostSpec


class AllRunning(Quiet):
    """Sets `event` when so many jobs were reported as running."""

    def __init__(self, jobs: int) -> None:
        self.missing = jobs
        self.event = anyio.Event()

    def changed(self, changes: Sequence[Change], seqs: Sequence[int]) -> None:
        self.missing -= sum(c.kind == "job.state" and c.payload["state"] == "running" for c in changes)
        if self.missing <= 0:
            self.event.set()


async def drive(spec: HostSpec, jobs: int) -> dict[str, Any]:
    """Start the jobs through a dispatcher, weigh everything, and kill them."""
    with workplace() as folder:
        db = Database.open(str(folder / "turnout.db"))
        session = store(db, job_plan("memory", jobs, run="exec sleep 600", host=spec.name))
        state = db.read(lambda conn: load(conn, session))
        state.hosts[spec.name] = HostInfo(spec.name, max_jobs=jobs)
        seen = AllRunning(jobs)
        async with open_hosts({spec.name: spec}) as hosts:
            host = await hosts.get(spec.name)
            serving = (await host.hello()).pid
            before = memory_mb(os.getpid())
            async with anyio.create_task_group() as group:
                dispatcher = Dispatcher(db, state, hosts, seen)
                began = time.perf_counter()
                group.start_soon(dispatcher.run)
                await seen.event.wait()
                figures = {"all_running_s": round(time.perf_counter() - began, 2), "driver_before_mb": before}
                figures |= weigh(serving)
                dispatcher.stop()
            began = time.perf_counter()
            await end(host)
            figures["all_killed_s"] = round(time.perf_counter() - began, 2)
        db.close()
        return figures


def weigh(serving: int) -> dict[str, Any]:
    """The memory of this process, of the remote half, and of its supervisors, which are its children."""
    supervisors = []
    for process in proc.everyone().values():
        if process.parent == serving:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                supervisors.append(memory_mb(process.pid, "Pss"))
    return {
        "driver_mb": round(memory_mb(os.getpid()), 1),
        "driver_peak_mb": peak_mb(),
        "serve_rss_mb": round(memory_mb(serving), 1),
        "serve_pss_mb": round(memory_mb(serving, "Pss"), 1),
        "supervisors": len(supervisors),
        "supervisor_pss_mb": median(supervisors),
        "supervisors_pss_mb": round(sum(supervisors), 1),
    }


async def end(host: Host) -> None:
    """Kill what runs below the host's root, and see that nothing is left."""
    left = [job.id for job in await host.kill([job.id for job in await host.list_jobs()], grace_s=1) if job.leftovers]
    assert not left, left


def main() -> None:
    """Measure in processes of their own, conclude, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine")
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        print(json.dumps(anyio.run(drive, spec_from_json(options.drive.read_text()), options.jobs)))
        return
    wait_until_quiet(options.patience)
    rounds: list[dict[str, Any]] = []
    with workplace() as folder, openssh(folder) as spec:
        file = folder / "host.json"
        file.write_text(spec_to_json(spec))
        command = [sys.executable, "-m", "benchmarks.driver_memory", "--jobs", str(options.jobs), "--drive", str(file)]
        for _ in range(options.rounds):
            quiet = idle()
            told = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
            rounds.append({"idle_before": quiet, **json.loads(told.splitlines()[-1])})
        figures = {name: median([run[name] for run in rounds]) for name in rounds[0] if name != "idle_before"}
        aims = [Aim(f"driver with {options.jobs:,} jobs in flight", figures["driver_mb"], "<", 200, "MB")]
        save("driver_memory", folder, aims, figures, rounds=rounds)


if __name__ == "__main__":
    main()
