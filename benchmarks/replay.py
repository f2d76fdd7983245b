"""Large sessions as files: how fast other programs' transcripts are imported, and a recording is checked.

    python -m benchmarks.replay [--rounds 3] [--mb 200] [--messages 20000]

The transcripts are made up: words from a fixed seed, calls with results of 150 to 6,000 characters, as real ones have.
Each import runs in a process of its own with an empty database on disk, so that its memory is its own. The recording
is a chain of jobs of which some are tried again; it is checked in memory, as the tests do.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.check import check
from agent.cli_import import bring
from agent.core import Core
from agent.events import Go, JobSeen
from agent.load import creation, load
from benchmarks.common import Aim, idle, median, peak_mb, save, wait_until_quiet, workplace
from state.db import Database
from state.foreign.damage import Losses
from state.log import append, read
from state.models import Message
from state.specs import EdgeSpec, Plan, Retry, TodoSpec

SEED = 5
T0 = 1767261600


class Words:
    """Text that looks like nothing and compresses like nothing, from a fixed seed."""

    def __init__(self) -> None:
        self._draw = random.Random(SEED)
        self._known = [f"{self._draw.getrandbits(40):x}" for _ in range(4000)]

    def text(self, words: int) -> str:
        return " ".join(self._draw.choices(self._known, k=words))

    def result(self) -> str:
        return self.text(self._draw.choice([15, 100, 400, 600]))

    def uuid(self) -> str:
        return str(uuid.UUID(int=self._draw.getrandbits(128)))


def stamp(second: int) -> str:
    return datetime.fromtimestamp(T0 + second, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def claude(words: Words) -> Iterator[str]:
    """A Claude Code transcript without end: requests, each with six calls, each answer in two records."""
    parent: str | None = None
    number = 0
    usage = {"input_tokens": 5, "output_tokens": 9, "cache_read_input_tokens": 1000}

    def record(type: str, message: dict[str, Any], **more: Any) -> str:
        nonlocal parent, number
        id, number = words.uuid(), number + 1
        head = {"parentUuid": parent, "isSidechain": False, "cwd": "/srv", "sessionId": "s", "version": "2.1.0"}
        line = json.dumps({**head, "type": type, "uuid": id, "timestamp": stamp(number), "message": message, **more})
        parent = id
        return line + "\n"

    while True:
        yield record("user", {"role": "user", "content": words.text(20)})
        for _ in range(6):
            call = f"toolu_{number}"
            head = {"id": f"msg_{number}", "role": "assistant", "model": "m", "stop_reason": None, "usage": usage}
            yield record("assistant", {**head, "content": [{"type": "text", "text": words.text(30)}]})
            use = {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": words.text(8)}}
            yield record("assistant", {**head, "content": [use]})
            told = words.result()
            block = {"type": "tool_result", "tool_use_id": call, "content": told}
            yield record("user", {"role": "user", "content": [block]}, toolUseResult={"stdout": told, "stderr": ""})


def opencode(words: Words) -> Iterator[str]:
    """An export of opencode without end: its first piece opens the document, the others are messages."""
    head = {"id": "ses_x", "title": "t", "version": "1", "time": {"created": T0 * 1000}}
    yield '{"info":' + json.dumps(head) + ',"messages":['
    number = 0
    while True:
        asks = number % 8 == 0
        created = (T0 + number) * 1000
        info = {"id": f"msg_{number:08d}", "role": "user" if asks else "assistant", "time": {"created": created}}
        parts: list[dict[str, Any]] = [{"id": "prt_0", "type": "text", "text": words.text(50)}]
        if not asks:
            state = {
                "status": "completed",
                "input": {"command": "x"},
                "output": words.result(),
                "time": {"end": created},
            }
            parts.append({"id": "prt_1", "type": "tool", "tool": "bash", "callID": f"c{number}", "state": state})
        yield ("," if number else "") + json.dumps({"info": info, "parts": parts}, indent=1)
        number += 1


def write(path: Path, pieces: Iterator[str], end: str, megabytes: float) -> None:
    """Fill a file up to a size."""
    size = 0
    with path.open("w", encoding="ascii") as file:
        for piece in pieces:
            file.write(piece)
            size += len(piece)
            if size >= megabytes * 1e6:
                break
        file.write(end)


def measure_import(source: Path, database: Path) -> dict[str, float]:
    """One import, in this process."""
    db = Database.open(str(database))
    before, began, cpu = peak_mb(), time.perf_counter(), time.process_time()
    losses = Losses()
    done = bring(db, source, losses)
    seconds = time.perf_counter() - began
    megabytes = source.stat().st_size / 1e6
    db.close()
    assert not losses.lines, losses.lines[:3]
    return {
        "mb_per_second": megabytes / seconds,
        "mb_per_cpu_second": megabytes / (time.process_time() - cpu),
        "before_mb": before,
        "peak_mb": peak_mb(),
        "messages": done[0].counts.messages,
    }


def recorded(messages: int) -> list[Message]:
    """The log of a chain of jobs, about that long; every tenth job is lost once and tried again."""
    jobs = messages // 8
    todos = tuple(
        TodoSpec(
            f"t{n}", f"Todo {n}", "job",
            {"host": "h", "run": f"work {{{{ todos.t{n - 1}.n }}}}" if n else "work"}, retry=Retry(1, ("lost",)),
        )
        for n in range(jobs)
    )  # fmt: skip
    edges = tuple(EdgeSpec(f"t{n - 1}", f"t{n}") for n in range(1, jobs))
    db = Database.open("sqlite://")
    db.write(lambda conn: append(conn, "s", creation(Plan("p", "p", {}, todos, edges, ""), {"params": {}}), 0.0))
    state = db.read(lambda conn: load(conn, "s"))
    core = Core(state)
    changes = [core.step(Go())]
    while state.jobs:
        job = next(iter(state.jobs))
        if job.endswith("0.1"):
            changes.append(core.step(JobSeen(job, "lost", failure="lost", reason="reboot")))
        else:
            changes.append(core.step(JobSeen(job, "running", started=1.0)))
            changes.append(core.step(JobSeen(job, "exited", rc=0, output={"n": 1}, started=1.0, ended=2.0)))
    db.write(lambda conn: [append(conn, "s", some, 1.0) for some in changes])
    log = db.read(lambda conn: list(read(conn, "s")))
    db.close()
    return log


def measure_check(log: list[Message]) -> dict[str, float]:
    """One check."""
    began, cpu = time.perf_counter(), time.process_time()
    verdict = check(log)
    assert verdict.difference is None
    return {"check_s": time.perf_counter() - began, "check_cpu_s": time.process_time() - cpu}


def conclude(imports: dict[str, list[dict[str, float]]], checks: list[dict[str, float]]) -> tuple[list[Aim], Any]:
    """The aims, and medians over the rounds."""
    figures: dict[str, Any] = {}
    aims = []
    for name, runs in imports.items():
        of = {key: median([run[key] for run in runs]) for key in runs[0]}
        figures |= {f"{name}_{key}": value for key, value in of.items() if key != "idle_before"}
        aims.append(Aim(f"importing, {name}", of["mb_per_second"], ">=", 20, "MB/s"))
        aims.append(Aim(f"memory while importing, {name}", of["peak_mb"], "<", 300, "MB"))
    figures |= {key: median([run[key] for run in checks]) for key in checks[0] if key != "idle_before"}
    return [*aims, Aim("checking a recording", figures["check_s"], "<", 5, "s")], figures


def main() -> None:
    """Write the files once, measure rounds, conclude, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb", type=float, default=200)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure_import(Path(options.measure[0]), Path(options.measure[1]))))
        return
    with workplace() as folder:
        write(folder / "claude.jsonl", claude(Words()), "", options.mb)
        write(folder / "opencode.json", opencode(Words()), "]}", options.mb)
        log = recorded(options.messages)
        wait_until_quiet(options.patience)
        sources = {"claude": "claude.jsonl", "opencode": "opencode.json"}
        imports: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
        checks = []
        for number in range(options.rounds):
            for name, file in sources.items():
                command = [sys.executable, "-m", "benchmarks.replay", "--measure", str(folder / file)]
                quiet = idle()
                told = subprocess.run(
                    [*command, str(folder / f"{number}-{file}.db")], stdout=subprocess.PIPE, check=True
                )
                imports[name].append({"idle_before": quiet, **json.loads(told.stdout)})
            checks.append({"idle_before": idle(), **measure_check(log)})
        aims, figures = conclude(imports, checks)
        size = {"file_mb": options.mb, "recorded_messages": len(log)}
        save("replay", folder, aims, {**size, **figures}, rounds={"imports": imports, "checks": checks})


if __name__ == "__main__":
    main()
