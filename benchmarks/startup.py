"""How long an operator waits for the command line to answer: `turnout --help`, and the list of sessions.

    python -m benchmarks.startup [--runs 10]

Each command runs in turn, with an empty Python beside it as the floor. One run of each before the clock fills the file
cache and compiles what was never imported. `sessions` reads a database with one small session.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common import Aim, idle, median, save, wait_until_quiet, workplace
from benchmarks.contestants import job_plan, store
from state.db import Database


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """The wall time of one run."""
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def turnout() -> list[str]:
    """The installed command, or the module where it is not installed."""
    script = Path(sys.executable).with_name("turnout")
    return [str(script)] if script.exists() else [sys.executable, "-m", "agent"]


def main() -> None:
    """Measure in turn, conclude, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine")
    options = parser.parse_args()
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "turnout --help": [*turnout(), "--help"],
        "turnout sessions": [*turnout(), "sessions"],
    }
    with workplace() as folder:
        environment = {**os.environ, "TURNOUT_DB": str(folder / "turnout.db")}
        db = Database.open(environment["TURNOUT_DB"])
        store(db, job_plan("startup", 3))
        db.close()
        for command in commands.values():
            seconds(command, environment)
        wait_until_quiet(options.patience)
        raw: dict[str, list[float]] = {name: [] for name in commands}
        quiet = [idle()]
        for _ in range(options.runs):
            for name, command in commands.items():
                raw[name].append(round(seconds(command, environment), 4))
        quiet.append(idle())
        figures = {name: {"median_s": median(times), "least_s": min(times)} for name, times in raw.items()}
        aims = [
            Aim(f"`{name}`, median", figure["median_s"], "<", 1.0, "s")
            for name, figure in figures.items()
            if name.startswith("turnout")
        ]
        save("startup", folder, aims, figures, rounds=raw, idle_before_and_after=quiet)


if __name__ == "__main__":
    main()
