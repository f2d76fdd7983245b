"""A graph of 100,000 todos and 300,000 edges: storing it, loading it, finishing todos, adding edges.

    python -m benchmarks.graph [--rounds 3] [--todos 100000]

Todo n waits for three earlier ones, drawn from all of them by a fixed seed. `load` is what `turnout resume` does. A
step is what the core needs when a job has ended; its commit is measured apart, because the disk has its say there.
Edges are added to the loaded graph: random ones from an earlier todo to a later one, then, on a graph of its own, the
worst there is: from the end of one chain to the beginning of another, so that every todo changes its place.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.core import Core
from agent.events import Go, JobSeen
from agent.infos import HostInfo
from agent.load import load
from agent.state import SessionState
from benchmarks.common import Aim, idle, median, peak_mb, percentile, save, wait_until_quiet, workplace
from benchmarks.contestants import store
from state.db import Database
from state.graph import Graph, Node
from state.specs import EdgeSpec, Plan, TodoSpec

STEPS = 500
EDGES = 2000
SEED = 7


def plan_of(todos: int) -> Plan:
    """The random graph: three edges into each todo from the fourth on."""
    draw = random.Random(SEED)
    specs = tuple(TodoSpec(f"t{n}", f"Todo {n}", "job", {"host": "h", "run": "true"}) for n in range(todos))
    edges = tuple(EdgeSpec(f"t{a}", f"t{b}") for b in range(3, todos) for a in draw.sample(range(b), 3))
    return Plan("graph", "graph", {}, specs, edges, source="")


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what `work` gave."""
    began = time.perf_counter()
    value = work()
    return time.perf_counter() - began, value


async def finish(db: Database, state: SessionState) -> dict[str, list[float]]:
    """End one running job after the other; milliseconds of the core's step and of the commit of what it decided."""
    core = Core(state)
    await db.commit(state.session, core.step(Go()))
    steps, commits = [], []
    for _ in range(STEPS):
        job = next(iter(state.jobs.values()))
        seen = JobSeen(job.id, "exited", rc=0, started=1.0, ended=2.0)
        seconds, changes = timed(lambda: core.step(seen))  # noqa: B023 - called at once
        steps.append(seconds * 1000)
        began = time.perf_counter()
        await db.commit(state.session, changes)
        commits.append((time.perf_counter() - began) * 1000)
    return {"step_ms": steps, "commit_ms": commits}


def add_edges(graph: Graph, todos: int) -> list[float]:
    """Microseconds for each of many random edges, from an earlier to a later todo of the plan."""
    draw, times = random.Random(SEED + 1), []
    graph.link("t0", f"t{todos - 1}")  # the first edge puts a loaded graph in order: a cost of its own
    for _ in range(EDGES):
        a, b = sorted(draw.sample(range(todos // 2, todos), 2))
        seconds, _ = timed(lambda: graph.link(f"t{a}", f"t{b}"))  # noqa: B023 - called at once
        times.append(seconds * 1e6)
    return times


def worst_edge(todos: int) -> float:
    """Seconds for an edge from the end of one chain to the beginning of another that stands before it in the order."""
    graph = Graph()
    for position in range(todos):
        graph.add(Node(f"t{position}", position))
    half = todos // 2
    for position in range(1, todos):
        if position != half:
            graph.link(f"t{position - 1}", f"t{position}")
    return timed(lambda: graph.link(f"t{todos - 1}", "t0"))[0]


def measure(path: Path, session: str, todos: int) -> dict[str, Any]:
    """One round, in a process of its own so that its memory is that of one session."""
    db = Database.open(str(path))
    before = peak_mb()
    cpu = time.process_time()
    load_s, state = timed(lambda: db.read(lambda conn: load(conn, session)))
    load_cpu_s = time.process_time() - cpu
    loaded = peak_mb()
    state.hosts["h"] = HostInfo("h", max_jobs=32)
    lived = asyncio.run(finish(db, state))
    order_s, _ = timed(state.graph._sort)
    figures = {
        "load_s": load_s, "load_cpu_s": load_cpu_s, "order_s": order_s, "before_mb": before, "loaded_mb": loaded,
        "edge_us": add_edges(state.graph, todos), "worst_edge_s": worst_edge(todos), "peak_mb": peak_mb(), **lived,
    }  # fmt: skip
    db.close()
    return figures


def conclude(rounds: list[dict[str, Any]], store_s: float) -> tuple[list[Aim], dict[str, float]]:
    """The aims, and medians over the rounds."""
    figures = {"store_s": median([store_s])}
    for name in ("load_s", "load_cpu_s", "order_s", "worst_edge_s", "before_mb", "loaded_mb", "peak_mb"):
        figures[name] = median([run[name] for run in rounds])
    for name in ("step_ms", "commit_ms", "edge_us"):
        figures[name] = median([median(run[name]) for run in rounds])
        figures[f"{name}_p95"] = median([percentile(run[name], 0.95) for run in rounds])
    aims = [
        Aim("loading the session", figures["load_s"], "<", 2, "s"),
        Aim("the core's step when a todo ends, median", figures["step_ms"], "<", 1, "ms"),
    ]
    return aims, figures


def main() -> None:
    """Store the graph once, measure rounds on copies of the database, conclude, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--todos", type=int, default=100_000)
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(Path(options.measure[0]), options.measure[1], options.todos)))
        return
    wait_until_quiet(options.patience)
    rounds: list[dict[str, Any]] = []
    with workplace() as folder:
        db = Database.open(str(folder / "turnout.db"))
        plan = plan_of(options.todos)
        store_s, session = timed(lambda: store(db, plan))
        db.close()
        print(f"stored {len(plan.todos):,} todos and {len(plan.edges):,} edges in {store_s:.1f} s", file=sys.stderr)
        for number in range(options.rounds):
            copy = folder / f"round{number}.db"
            copy.write_bytes((folder / "turnout.db").read_bytes())
            command = [sys.executable, "-m", "benchmarks.graph", "--todos", str(options.todos)]
            quiet = idle()
            told = subprocess.run([*command, "--measure", str(copy), session], stdout=subprocess.PIPE, check=True)
            rounds.append({"idle_before": quiet, **json.loads(told.stdout)})
        aims, figures = conclude(rounds, store_s)
        size = {"todos": len(plan.todos), "edges": len(plan.edges), "database_mb": round(copy.stat().st_size / 1e6, 1)}
        save("graph", folder, aims, {**size, **figures}, rounds=rounds)


if __name__ == "__main__":
    main()
