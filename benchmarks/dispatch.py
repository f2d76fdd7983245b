"""From the end of a job to the start of the one that waited for it, on the host's clock.

    python -m benchmarks.dispatch [--rounds 3] [--jobs 100]

A chain of `true` jobs runs once over OpenSSH and once over the embedded server of `local`, each round. Between two of
them lie: the exit record (durable), its push, a step of the core, a commit (durable), the launch, and the next job's
`run` record (durable). Both times are the host's own, so no clock is compared with another.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import select

from benchmarks.common import Aim, idle, median, openssh, percentile, save, wait_until_quiet, workplace
from benchmarks.contestants import IN_FLIGHT, drive, job_plan, store
from state.db import Database
from state.models import Job, table
from tools.ssh import HostSpec


def chain(spec: HostSpec, folder: Path, jobs: int) -> list[float]:
    """Run a chain of jobs; the milliseconds between each end and the next start, from what the host reported."""
    db = Database.open(str(folder / "chain.db"))
    session = store(db, job_plan("chain", jobs, host=spec.name, chain=True))
    *_, state = anyio.run(drive, db, session, spec, IN_FLIGHT)
    assert state.status == "completed", state.reason
    rows = table(Job)
    query = select(rows.c.started, rows.c.ended).where(rows.c.session == session).order_by(rows.c.submitted)
    times = db.read(lambda conn: conn.execute(query).all())
    db.close()
    assert len(times) == jobs
    return [round((after.started - before.ended) * 1000, 3) for before, after in itertools.pairwise(times)]


def main() -> None:
    """Measure both transports in turn, conclude, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine")
    options = parser.parse_args()
    wait_until_quiet(options.patience)
    rounds: dict[str, list[dict[str, Any]]] = {"openssh": [], "local": []}
    with workplace() as folder, openssh(folder) as remote:
        specs = {"openssh": remote, "local": HostSpec(name="local", root=str(folder / "local"))}
        for _ in range(options.rounds):
            for name, spec in specs.items():
                rounds[name].append({"idle_before": idle(), "ms": chain(spec, folder, options.jobs)})
        figures = {
            name: {
                "median_ms": median([median(run["ms"]) for run in runs]),
                "p95_ms": median([percentile(run["ms"], 0.95) for run in runs]),
                "worst_ms": max(max(run["ms"]) for run in runs),
            }
            for name, runs in rounds.items()
        }
        aims = [
            Aim(f"from exit to the dependent's start, {name}, median", figures[name]["median_ms"], "<", 50, "ms")
            for name in figures
        ]
        save("dispatch", folder, aims, figures, rounds=rounds)


if __name__ == "__main__":
    main()
