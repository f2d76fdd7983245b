"""A host, and everything that can be asked of it: launch, watch and kill jobs, run quick commands, move files.

    async with Host(HostSpec(name="gpu1")) as host:
        events = host.events()
        await host.launch([JobSpec(id="train-1", run="python train.py")])
        async for event in events: ...

Two lanes, each one channel to the remote half: `control` for what must answer at once, `bulk` for files and logs that
are followed. Both outlive connections. Contact that is lost is told as an event, never as the end of a job; after a
reconnect every watched job is looked at again, so an event may be told twice and is never left out.

Everything runs on one asyncio event loop. Nothing is decided here: what to do about an event is the caller's.
"""

from __future__ import annotations

import io
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
from anyio import to_thread

from state.errors import HostError
from tools import transfer
from tools.channel import Channel, OnFrame
from tools.command import CommandResult as CommandResult
from tools.connect import Links
from tools.connect import host_key as host_key
from tools.events import EventStream, EventStreams
from tools.hostkeys import Endpoint
from tools.hostkeys import HostSpec as HostSpec
from tools.jobs import ContactEvent, JobSpec, JobState, LogPiece, check_id
from tools.lane import Lane
from tools.local import LocalServer

_BATCH = 256
_LAUNCH_S = 120.0
_BATCH_BYTES = 8 << 20
_MARGIN_S = 20.0
_CLOSE_S = 10.0
_FOLLOW_S = 20.0
_FOLLOW_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Hello:
    """What the host said of itself. `clock_offset` seconds added to our clock give the host's; `pid` is the process on
    the host that serves the control lane.
    """

    root: str
    home: str
    shell: str
    user: str
    uid: int
    hostname: str
    boot: str
    python: str
    executable: str
    pid: int
    clock_offset: float


class Host:
    """One host. `patience_s`: how long a request waits without contact; `keepalive_s`: between two signs of life."""

    def __init__(self, spec: HostSpec, *, patience_s: float = 30.0, keepalive_s: float = 5.0) -> None:
        self.spec = spec
        self._keepalive_s = keepalive_s
        self._local: LocalServer | None = None
        self._links: Links | None = None
        self._events = EventStreams(spec.name)
        self._control = Lane(
            spec.name, self._open, patience_s=patience_s,
            on_events=self._events.told, on_contact=self._made_contact, on_loss=self._lost_contact,
        )  # fmt: skip
        self._bulk = Lane(spec.name, self._open, patience_s=patience_s)
        self._lost: tuple[float, str] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._control.connected()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin to connect and return at once: for a host that may be down. Its events say how it goes."""
        self._control.start()

    async def close(self) -> None:
        """Close the connections, also while being cancelled, in bounded time. Jobs run on; the remote half ends."""
        with anyio.move_on_after(_CLOSE_S, shield=True):
            await self._bulk.close()
            await self._control.close()
            self._events.close()
            if self._links is not None:
                await self._links.close()
            if self._local is not None:
                await self._local.close()
                self._local = None
        if self._links is not None:
            self._links.abort()

    async def _open(self, on_frame: OnFrame) -> Channel:
        if self._links is None:
            endpoint = Endpoint.of(self.spec)
            if self.spec.is_local:
                self._local = LocalServer()
                endpoint = await self._local.start()
            self._links = Links(endpoint, self.spec.name, keepalive_s=self._keepalive_s)
        return await Channel.open(self._links, self.spec.name, self.spec.root, self.spec.python, on_frame)

    def _made_contact(self) -> None:
        self._lost = None
        self._events.put(ContactEvent("connected", self.spec.name, time.time()))
        watched = self._events.open_jobs()
        for start in range(0, len(watched), _BATCH):
            self._control.post("watch", ids=watched[start : start + _BATCH])

    def _lost_contact(self, error: HostError) -> None:
        since, told = self._lost or (time.time(), None)
        self._lost = since, error.message
        if error.message != told:  # attempts that fail alike are told once
            self._events.put(ContactEvent("lost contact", self.spec.name, since, error.message))

    # -- the host

    async def hello(self) -> Hello:
        """Who and where the host is, and by how much its clock differs (measured now, half the round trip exact)."""
        before = time.time()
        answer, _ = await self._control.request("hello", again=True)
        offset = answer["now"] - (before + time.time()) / 2
        names = set(Hello.__slots__) - {"clock_offset"}
        return Hello(clock_offset=offset, **{name: answer[name] for name in names})

    async def probe(self) -> dict[str, Any]:
        """What the machine is: see `tools.remote.probe.facts` for the keys. Texts of tools are returned unread."""
        answer, _ = await self._control.request("probe", again=True, answer_s=90.0)
        facts: dict[str, Any] = answer["facts"]
        return facts

    # -- jobs

    async def launch(self, specs: Sequence[JobSpec], *, watch: bool = True) -> list[JobState]:
        """Start each spec unless its id is known there; answer each with its state, in order.

        A state with `already` set was there before, one with `refused` was not started, and why. May be repeated after
        any failure: an id is never started twice. Raises Unreachable without contact: then nothing is known.
        """
        if watch:
            self._events.watch([spec.id for spec in specs])
        states: list[JobState] = []
        slurm = {} if self.spec.slurm is None else {"slurm": list(self.spec.slurm)}
        for batch in _batches(specs):
            wire = [spec.to_wire() for spec in batch]
            told = await self._ask("launch", answer_s=_LAUNCH_S, specs=wire, watch=watch, **slurm)
            states += [told[spec.id] for spec in batch]
        self._events.unwatch([state.id for state in states if state.refused])
        return states

    async def status(self, ids: Sequence[str]) -> list[JobState]:
        """The state of each id, in order; `unknown` for one that the host does not have."""
        return await self._states("status", ids, 60.0)

    async def watch(self, ids: Sequence[str]) -> list[JobState]:
        """Tell `events()` what happens to these jobs, beginning with what already has; and their states now.

        An id that the host does not know is told by its state here, `unknown`, and by no event: it may yet be launched.
        """
        self._events.watch(ids)
        return await self._states("watch", ids, 60.0)

    async def unwatch(self, ids: Sequence[str]) -> None:
        """Tell nothing more about these jobs."""
        self._events.unwatch(ids)
        await self._control.request("unwatch", again=True, ids=list(ids))

    def events(self) -> EventStream:
        """Events from this call on; any number of listeners. `watch` tells again what has already happened."""
        return self._events.open()

    async def kill(self, ids: Sequence[str], grace_s: float | None = None) -> list[JobState]:
        """Cancel these jobs and end all their processes: TERM, the grace (each job's own by default), KILL.

        The states are what was proved afterwards: `leftovers` are processes that would not die, `removed` the shared
        memory files that were theirs. An id that was never launched can not be launched any more.
        """
        return await self._states("kill", ids, None, grace_s=grace_s)

    async def list_jobs(self, limit: int = 10_000) -> list[JobState]:
        """All jobs that have a directory on the host, newest first."""
        return list((await self._ask("list", answer_s=120.0, limit=limit)).values())

    async def clean(self, ids: Sequence[str] = ()) -> dict[str, str]:
        """Delete these jobs' directories, and what was left half-done for a day; those refused, with why."""
        answer, _ = await self._bulk.request("clean", again=True, answer_s=None, ids=list(ids))
        refused: dict[str, str] = answer["refused"]
        return refused

    async def _states(self, op: str, ids: Sequence[str], answer_s: float | None, **fields: Any) -> list[JobState]:
        states: list[JobState] = []
        for job_id in ids:
            check_id(job_id)
        for start in range(0, len(ids), _BATCH):
            part = list(ids[start : start + _BATCH])
            told = await self._ask(op, answer_s=answer_s, ids=part, **fields)
            states += [told[job_id] for job_id in part]
        return states

    async def _ask(self, op: str, *, answer_s: float | None, **fields: Any) -> dict[str, JobState]:
        """A request that is answered with states, in one frame or more; sent again from the start after a reconnect."""
        states: dict[str, JobState] = {}
        async for answer, _ in self._control.stream(op, again=True, answer_s=answer_s, **fields):
            states.update((state["id"], JobState.from_wire(state)) for state in answer["states"])
        return states

    # -- logs

    async def read_log(self, job_id: str, offset: int = 0, limit: int = 65536) -> LogPiece:
        """At most `limit` bytes of the job's log from `offset`; a negative offset counts from the end."""
        answer, data = await self._control.request("read", again=True, job=job_id, offset=offset, limit=limit)
        return LogPiece(data=data, **answer["piece"])

    async def follow(self, job_id: str, offset: int = 0) -> AsyncIterator[LogPiece]:
        """The job's log from `offset` as it grows, until the job has ended and all of it was given; through reconnects.

        Raises Unreachable when contact is lost for longer than the host's patience.
        """
        while True:
            answer, data = await self._bulk.request(
                "read", again=True, job=job_id, offset=offset, limit=_FOLLOW_BYTES, wait_s=_FOLLOW_S
            )
            piece = LogPiece(data=data, **answer["piece"])
            offset = piece.end
            if data or piece.truncated:
                yield piece
            elif answer["ended"]:
                return

    # -- quick commands and files

    async def run(
        self,
        command: str,
        *,
        timeout_s: float = 30.0,
        stdin: bytes = b"",
        max_output: int = 65536,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run a shell command and wait for its end, at most `timeout_s` (enforced on the host, with all its processes).

        Never sent twice. Raises Unreachable when contact is lost meanwhile: what it did is then unknown.
        """
        answer, body = await self._control.request(
            "run", stdin, answer_s=timeout_s + _MARGIN_S, command=command, timeout_s=timeout_s,
            max_output=max_output, cwd=cwd, env=dict(env or {}),
        )  # fmt: skip
        return CommandResult.from_wire(answer["result"], body)

    async def put_tree(self, folder: Path) -> str:
        """The path on the host of a folder with this content, sent if missing. Caches and `.git` are left out."""
        archive, digest = await to_thread.run_sync(transfer.pack, folder)
        with archive:
            answer, _ = await self._bulk.request("have", again=True, hash=digest)
            return answer["path"] or await transfer.send(self._bulk, archive, digest)

    async def put_file(self, content: Path | bytes, remote: str, *, mode: int = 0o644) -> str:
        """Put a file at a path of the host, by rename; the absolute path. Relative paths start at the home folder."""
        data = content if isinstance(content, bytes) else await to_thread.run_sync(content.read_bytes)
        digest = transfer.digest(data)
        return await transfer.send(self._bulk, io.BytesIO(data), digest, path=remote, mode=mode)

    async def get_tree(self, remote: str, local: Path, *, max_bytes: int = 1 << 30) -> int:
        """Copy a folder or a file of the host into the folder `local`; the bytes received.

        Raises JobError when there is more than `max_bytes`, or nothing that can be read.
        """
        frames = self._bulk.stream("get", path=remote, max_bytes=max_bytes)
        return await transfer.receive(frames, local, max_bytes)


def _batches(specs: Sequence[JobSpec]) -> list[list[JobSpec]]:
    """Specs in groups of bounded number and size, so that one request stays small."""
    batches: list[list[JobSpec]] = []
    size = _BATCH_BYTES
    for spec in specs:
        if size + len(spec.run) > _BATCH_BYTES or len(batches[-1]) == _BATCH:
            batches.append([])
            size = 0
        batches[-1].append(spec)
        size += len(spec.run) + 1000
    return batches
