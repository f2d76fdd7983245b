"""Launching and killing jobs on hosts, until the host has answered.

Lost contact is not failure: a launch or a kill is tried again, with growing pauses, for as long as it takes. Hosts
accept the same launch twice without starting it twice. Only a host that never could be reached, for a job that was
never sent, refuses the job after a while (at once when its name leads nowhere): nothing about it can be unknown.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from agent.events import JobSeen
from agent.host_names import no_such_host, unresolved
from agent.hosts import Hosts
from state.errors import HostError, TurnoutError, Unreachable
from state.failpoints import failpoint
from tools.jobs import JobSpec, JobState

CONNECT_PATIENCE_S = 60.0
STARTING = ("prepared", "launching")
BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Launcher:
    """Sends intents to hosts. `saw` is told every state a host answers with, `post` every refusal."""

    def __init__(
        self,
        hosts: Hosts,
        saw: Callable[[JobState], None],
        post: Callable[[JobSeen], None],
        *,
        payload: Path | None,
        sent_before: Iterable[str],
        patience_s: float = CONNECT_PATIENCE_S,
    ) -> None:
        self.hosts = hosts
        self.reached: set[str] = set()
        self._saw = saw
        self._post = post
        self._payloads: list[Path] = [payload] if payload else []
        self._sent_before = frozenset(sent_before)
        self._patience = patience_s
        self._uploads: dict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._uploaded: set[tuple[str, Path]] = set()

    async def launch(self, name: str, jobs: Mapping[str, Mapping[str, Any]]) -> None:
        """Launch jobs (id to spec) on a host in one round trip.

        Raises `HostError` when the host refuses us and one of the jobs may run there already.
        """
        stranger = name not in self.hosts.known and self._was_never_sent(name, jobs)
        if stranger and (why := await anyio.to_thread.run_sync(unresolved, name)):
            self._refuse(jobs, name, no_such_host(name, why, self.hosts.known))
            return
        specs = [JobSpec(id=id, **spec) for id, spec in jobs.items()]
        host = await self.hosts.get(name)
        began = time.monotonic()
        for pause in _pauses():
            try:
                await self._upload(name)
                failpoint("launch.before")
                states = await host.launch(specs)
                failpoint("launch.after")
            except Unreachable as error:
                if self._was_never_sent(name, jobs) and time.monotonic() - began > self._patience:
                    self._refuse(jobs, name, error)
                    return
            except HostError as error:
                if not self._was_never_sent(name, jobs):
                    raise
                self._refuse(jobs, name, error)
                return
            else:
                self.reached.add(name)
                for state in states:
                    self._saw(state)
                # Asked again, a host says how a start went on that it had not yet seen through, or makes up for it.
                answers = zip(specs, states, strict=True)
                specs = [spec for spec, state in answers if state.state in STARTING and not state.refused]
                if not specs:
                    return
            await anyio.sleep(pause)

    async def kill(self, name: str, ids: list[str]) -> None:
        """Kill jobs and wait for the proof that nothing of them is left."""
        host = await self.hosts.get(name)
        for pause in _pauses():
            try:
                failpoint("kill.before")
                states = await host.kill(ids)
                failpoint("kill.after")
            except Unreachable:
                await anyio.sleep(pause)
            else:
                for state in states:
                    self._saw(state)
                return

    def add_payload(self, payload: Path) -> None:
        """A playbook has joined the session: copy its payload too, before the next launch."""
        if payload not in self._payloads:
            self._payloads.append(payload)

    async def _upload(self, name: str) -> None:
        """Copy the payloads to a host, once per run; the host keeps them by the hash of their content."""
        for payload in self._payloads:
            async with self._uploads[name]:
                if (name, payload) not in self._uploaded:
                    await (await self.hosts.get(name)).put_tree(payload)
                    self._uploaded.add((name, payload))

    def _was_never_sent(self, host: str, ids: Iterable[str]) -> bool:
        return host not in self.reached and self._sent_before.isdisjoint(ids)

    def _refuse(self, ids: Iterable[str], host: str, error: TurnoutError) -> None:
        reason = f"not started on `{host}`: {error.message}" + (f" ({error.hint})" if error.hint else "")
        for id in ids:
            self._post(JobSeen(id, "refused", failure="host", reason=reason))


def _pauses() -> Iterator[float]:
    yield from BACKOFF_S
    while True:
        yield BACKOFF_S[-1]
