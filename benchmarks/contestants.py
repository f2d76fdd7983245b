"""One contestant of benchmarks/remote.py, run in a process of its own and timed there.

    python -m benchmarks.contestants turnout-jobs HOST.json 1000 [--profile]

prints one JSON line: `seconds` for all `count` pieces of work, `failures` among them, `cpu_s` and `peak_mb` of this
process, and for ours `host_cpu_ms`: what the remote half and all it started used of a processor for each piece. Every
contestant connects before its clock starts. The peers that are no part of our environment are in benchmarks/peers.py.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import asyncssh

from agent.dispatcher import Dispatcher
from agent.hosts import open_hosts
from agent.infos import HostInfo
from agent.load import creation, load, new_id
from agent.state import SessionState
from benchmarks.common import cpu_s, peak_mb, spec_from_json, workplace
from state import owner
from state.changes import Change
from state.db import Database
from state.log import append
from state.specs import EdgeSpec, Plan, TodoSpec
from tools.jobs import ContactEvent, JobSpec, JobState
from tools.remote import proc
from tools.ssh import Host, HostSpec

Told = dict[str, float]
IN_FLIGHT = 32
"""Pieces of work at once: what Turnout allows a host by default, and four connections of eight sessions."""


class Quiet:
    """An observer that shows nothing."""

    def changed(self, changes: Sequence[Change], seqs: Sequence[int]) -> None: ...
    def progressed(self, job: JobState) -> None: ...
    def contact(self, event: ContactEvent) -> None: ...
    def asked(self, todo: str, question: str, default: str) -> None: ...


async def share_out(count: int, workers: int, work: Callable[[int], Awaitable[bool]]) -> int:
    """Do `work` for 0 .. count - 1, `workers` at a time; how many did not succeed."""
    numbers = iter(range(count))

    async def worker() -> int:
        return sum([not await work(number) for number in numbers])

    return sum(await asyncio.gather(*[worker() for _ in range(workers)]))


async def host_cpu_s(host: Host) -> float:
    """Seconds of a processor that the remote half and its children have used, on this very machine."""
    serving = (await host.hello()).pid
    return cpu_s(serving) + sum(cpu_s(process.pid) for process in proc.everyone().values() if process.parent == serving)


# -- quick commands


async def turnout_quick(spec: HostSpec, count: int) -> Told:
    """`Host.run("true")`, 32 in flight."""

    async def work(number: int) -> bool:
        return (await host.run("true")).ok

    async with Host(spec) as host:
        await work(0)
        before, began = await host_cpu_s(host), time.perf_counter()
        failures = await share_out(count, IN_FLIGHT, work)
        seconds = time.perf_counter() - began
        used = await host_cpu_s(host) - before
        return {"seconds": seconds, "failures": failures, "host_cpu_ms": round(used / count * 1000, 3)}


async def asyncssh_sessions(spec: HostSpec, count: int, connections: int) -> Told:
    """A session for each command, 8 at once on each connection: the most that OpenSSH's defaults carry safely."""
    known: Any = ([asyncssh.import_public_key(spec.host_key)], [], [])
    links = [
        await asyncssh.connect(
            spec.address, spec.port, username=spec.user, client_keys=[spec.identity], known_hosts=known, config=None
        )
        for _ in range(connections)
    ]
    free: asyncio.Queue[asyncssh.SSHClientConnection] = asyncio.Queue()
    refused: list[int] = []
    for link in links * 8:
        free.put_nowait(link)

    async def work(number: int) -> bool:
        link = await free.get()
        try:
            while True:
                try:
                    return (await link.run("true", encoding=None)).exit_status == 0
                except asyncssh.ChannelOpenError:
                    refused.append(number)  # the server still counts a session that has ended: the command never ran
        finally:
            free.put_nowait(link)

    await work(0)
    began = time.perf_counter()
    failures = await share_out(count, 8 * connections, work)
    seconds = time.perf_counter() - began
    for link in links:
        link.close()
    return {"seconds": seconds, "failures": failures, "refused": len(refused)}


# -- durable jobs


async def turnout_host_jobs(spec: HostSpec, count: int) -> Told:
    """The job protocol alone: `Host.launch` and the event of the end, 32 jobs in flight, no graph and no database."""
    ended: dict[str, asyncio.Future[JobState]] = {}
    run = f"{time.time_ns():x}"

    async def listen(host: Host) -> None:
        async for event in host.events():
            if not isinstance(event, ContactEvent) and event.kind in ("exit", "lost"):
                waiter = ended.pop(event.job.id, None)  # an end may be told twice
                if waiter is not None:
                    waiter.set_result(event.job)

    async def work(number: int) -> bool:
        job = f"{run}-{number}"
        end: asyncio.Future[JobState] = asyncio.get_running_loop().create_future()
        ended[job] = end
        await host.launch([JobSpec(job, "true")])
        return (await end).ok

    async with Host(spec) as host:
        listening = asyncio.create_task(listen(host))
        await work(count)
        before, began = await host_cpu_s(host), time.perf_counter()
        failures = await share_out(count, IN_FLIGHT, work)
        seconds = time.perf_counter() - began
        used = await host_cpu_s(host) - before
        listening.cancel()
        return {"seconds": seconds, "failures": failures, "host_cpu_ms": round(used / count * 1000, 3)}


def job_plan(name: str, todos: int, run: str = "true", host: str = "lo", chain: bool = False) -> Plan:
    """A plan of job todos that all run `run`: independent, or each after the one before."""
    specs = tuple(TodoSpec(f"t{n}", f"Todo {n}", "job", {"host": host, "run": run}) for n in range(todos))
    edges = tuple(EdgeSpec(f"t{n - 1}", f"t{n}") for n in range(1, todos)) if chain else ()
    return Plan(name, name, {}, specs, edges, source="")


def store(db: Database, plan: Plan) -> str:
    """A session of this plan, owned by this process, as `turnout run` makes it."""
    session = new_id()
    changes = creation(plan, {"params": dict(plan.params), "playbook": plan.name})

    def write(conn: Any) -> None:
        append(conn, session, changes, time.time())
        owner.acquire(conn, session, owner.this_process(), time.time())

    db.write(write)
    return session


async def drive(db: Database, session: str, spec: HostSpec, max_jobs: int) -> tuple[float, float, SessionState]:
    """Run a stored session on one host to its end: seconds, seconds of a processor on the host, and its state."""
    state = db.read(lambda conn: load(conn, session))
    state.hosts[spec.name] = HostInfo(spec.name, max_jobs=max_jobs)
    async with open_hosts({spec.name: spec}) as hosts:
        host = await hosts.get(spec.name)
        before, began = await host_cpu_s(host), time.perf_counter()
        await Dispatcher(db, state, hosts, Quiet()).run()
        seconds = time.perf_counter() - began
        return seconds, await host_cpu_s(host) - before, state


async def turnout_jobs(spec: HostSpec, count: int) -> Told:
    """All of it: a stored plan of `count` independent todos, each a durable job, until the session has ended."""
    with workplace() as folder:
        db = Database.open(str(folder / "turnout.db"))
        session = store(db, job_plan("jobs", count, host=spec.name))
        seconds, used, state = await drive(db, session, spec, IN_FLIGHT)
        db.close()
    failures = sum(node.status != "completed" for node in state.graph.nodes.values())
    return {"seconds": seconds, "failures": failures, "host_cpu_ms": round(used / count * 1000, 3)}


Contestant = Callable[[HostSpec, int], Awaitable[Told]]
CONTESTANTS: dict[str, Contestant] = {
    "turnout-quick": turnout_quick,
    "turnout-host-jobs": turnout_host_jobs,
    "turnout-jobs": turnout_jobs,
    "asyncssh-1x8": lambda spec, count: asyncssh_sessions(spec, count, 1),
    "asyncssh-4x8": lambda spec, count: asyncssh_sessions(spec, count, 4),
}


def main() -> None:
    """Run the contestant that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CONTESTANTS)
    parser.add_argument("host", type=Path, help="file with the host's spec")
    parser.add_argument("count", type=int)
    parser.add_argument("--profile", action="store_true", help="where the time goes, on stderr")
    options = parser.parse_args()
    profile = cProfile.Profile(time.process_time)
    spec = spec_from_json(options.host.read_text())

    async def measured() -> Told:
        if options.profile:
            profile.enable()
        return await CONTESTANTS[options.name](spec, options.count)

    told = asyncio.run(measured())
    if options.profile:
        profile.disable()
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(45)
    print(json.dumps({**told, "cpu_s": round(time.process_time(), 2), "peak_mb": peak_mb()}))


if __name__ == "__main__":
    main()
