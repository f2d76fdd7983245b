"""Contact that breaks: jobs run on, requests that may be repeated are, and no event is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import asyncssh
import pytest

from state.errors import HostKeyError, Unreachable
from tests.faultproxy import FaultProxy
from tests.hosting import OpenSSH, end_jobs, ended, gone
from tools.connect import Links
from tools.events import EventStream
from tools.hostkeys import Endpoint, HostSpec
from tools.jobs import ContactEvent, JobEvent, JobSpec
from tools.ssh import Host, host_key

pytest_plugins = ("tests.servers",)
pytestmark = pytest.mark.anyio


async def contact(events: EventStream, kind: str) -> ContactEvent:
    """The next contact event of this kind."""
    async for event in events:
        if isinstance(event, ContactEvent) and event.kind == kind:
            return event
    raise AssertionError("the host was closed")


async def test_a_job_that_ends_without_contact_is_told_after_it(host: Host, tmp_path: Path) -> None:
    """The end of a job during an outage is told after the reconnect, with how long contact was lost."""
    events = host.events()
    await host.launch([JobSpec("j", f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; exit 7")])
    os.kill((await host.hello()).pid, signal.SIGKILL)
    lost = await contact(events, "lost contact")
    (tmp_path / "go").touch()
    assert lost.why
    assert lost.since > 0
    await contact(events, "connected")
    async for event in events:
        if isinstance(event, JobEvent) and event.kind == "exit":
            assert event.job.rc == 7
            break


async def test_a_listener_that_comes_late_watches_and_hears_the_end(host: Host) -> None:
    """Who begins to listen after a job has ended is told of it when it asks to watch that job, and of no other."""
    await host.launch([JobSpec("a", "exit 1"), JobSpec("b", "exit 2")])
    await ended(host, ["a", "b"])
    events = host.events()
    await host.watch(["b"])
    event = await anext(events)
    assert isinstance(event, JobEvent)
    assert (event.kind, event.job.id, event.job.rc) == ("exit", "b", 2)


async def test_what_is_over_is_forgotten(host: Host) -> None:
    """A driver that runs for weeks keeps neither the jobs that ended nor the listeners that left."""
    left = weakref.ref(host.events())
    await host.launch([JobSpec("a", "exit 1"), JobSpec("b", "sleep 1000")])
    await ended(host, ["a"])
    assert host._events.open_jobs() == ["b"]
    assert left() is None


async def test_an_unknown_id_is_unknown_and_no_event(host: Host) -> None:
    """A job that the host does not know may still be on its way: it is not lost, and its later launch is seen."""
    (state,) = await host.watch(["later"])
    assert state.state == "unknown"
    events = host.events()
    await host.launch([JobSpec("later", "true")], watch=False)
    event = await anext(events)
    assert isinstance(event, JobEvent)
    assert (event.kind, event.job.id) == ("exit", "later")


@pytest.mark.sshd
async def test_a_server_with_one_session_a_connection_gets_more_connections(
    make_sshd: Callable[..., OpenSSH], tmp_path: Path
) -> None:
    """MaxSessions 1 costs connections, not function: both lanes work, and the limit is learned once."""
    server = make_sshd(MaxSessions="1")
    async with Host(server.spec(tmp_path / "root")) as host:
        await host.launch([JobSpec("j", "echo x")])
        assert [piece.data async for piece in host.follow("j")] == [b"x\n"]
        assert (await host.run("echo y")).stdout == b"y\n"
        assert len(await server.connections()) == 2


@asynccontextmanager
async def deaf_server(most: int) -> AsyncIterator[tuple[Endpoint, list[asyncssh.SSHServer]]]:
    """A server that lives and answers keepalives, but on each connection no request for a session after `most`."""
    connections: list[asyncssh.SSHServer] = []

    class Session(asyncssh.SSHServerSession):
        def exec_requested(self, command: str) -> bool:
            return True

    class Deaf(asyncssh.SSHServer):
        def __init__(self) -> None:
            self.asked = 0
            connections.append(self)

        def begin_auth(self, username: str) -> bool:
            return False

        def session_requested(self) -> object:
            self.asked += 1
            return Session() if self.asked <= most else asyncio.get_running_loop().create_future()

    key = asyncssh.generate_private_key("ssh-ed25519")
    async with await asyncssh.listen("127.0.0.1", 0, server_host_keys=[key], server_factory=Deaf) as server:
        pinned = key.export_public_key().decode().strip()
        yield Endpoint("127.0.0.1", server.get_port(), "local", pinned, use_config=False), connections


async def test_a_server_that_never_opens_a_session_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the one who asked nor the one who waits behind hangs: both hear of it, and no connection is kept."""
    monkeypatch.setattr("tools.connect.CONNECT_S", 0.5)
    async with deaf_server(0) as (endpoint, connections):
        links = Links(endpoint, "gpu1")
        with anyio.fail_after(30):
            asked = [links.open("true", asyncssh.SSHClientSession) for _ in range(2)]
            heard = await asyncio.gather(*asked, return_exceptions=True)
            await links.close()
    assert [(type(error), "to open a session" in str(error)) for error in heard] == [(Unreachable, True)] * 2
    assert len(connections) == 2


async def test_a_port_that_says_nothing_shows_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a host's key hears that there was no answer, also where something listens that is no SSH."""
    monkeypatch.setattr("tools.connect.CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent, anyio.fail_after(30):
        spec = HostSpec(name="gpu1", address="127.0.0.1", port=silent.getsockname()[1])
        with pytest.raises(Unreachable, match="no answer"):
            await host_key(spec)


async def test_a_connection_that_turned_deaf_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that works is not given up because another is not opened: that one gets a new connection."""
    monkeypatch.setattr("tools.connect.CONNECT_S", 0.5)
    async with deaf_server(1) as (endpoint, connections):
        links = Links(endpoint, "gpu1")
        with anyio.fail_after(30):
            for _ in range(3):
                await links.open("true", asyncssh.SSHClientSession)
            assert [not link.connection.is_closed() for link in links._links] == [True] * 3
            await links.close()
    assert len(connections) == 3


@pytest.mark.sshd
async def test_a_host_that_comes_back_as_another_is_not_trusted(sshd: OpenSSH, tmp_path: Path) -> None:
    """A changed key at a reconnect fails what waits at once, and is told as the reason for the lost contact."""
    async with Host(sshd.spec(tmp_path / "root")) as host:
        events = host.events()
        serving = (await host.hello()).pid
        connections = await sshd.connections()
        sshd.stop()
        sshd.new_host_key()
        sshd.start()
        for pid in connections:
            os.kill(pid, signal.SIGKILL)
        assert await gone(serving)
        await contact(events, "lost contact")
        with pytest.raises(HostKeyError):
            await host.run("true")
        with pytest.raises(HostKeyError):
            await host.status(["j"])


@pytest.mark.sshd
async def test_a_request_without_contact_fails_after_the_patience_only(sshd: OpenSSH, tmp_path: Path) -> None:
    """While a host is away a request waits as long as was said, then says what was seen last; nothing is assumed."""
    async with Host(sshd.spec(tmp_path / "root"), patience_s=0.5) as host:
        events = host.events()
        connections = await sshd.connections()
        sshd.stop()
        for pid in connections:
            os.kill(pid, signal.SIGKILL)
        await contact(events, "lost contact")
        with pytest.raises(Unreachable, match="connection refused"):
            await host.status(["j"])
        sshd.start()
        await contact(events, "connected")
        assert [s.state for s in await host.status(["j"])] == ["unknown"]


@pytest.mark.sshd
async def test_a_host_that_is_down_at_the_start_is_waited_for(sshd: OpenSSH, tmp_path: Path) -> None:
    """A driver may start without the host: it hears that there is no contact, and when there is."""
    spec = sshd.spec(tmp_path / "root")
    sshd.stop()
    host = Host(spec)
    events = host.events()
    await host.start()
    lost = await contact(events, "lost contact")
    assert "refused" in lost.why
    with pytest.raises(Unreachable):
        async with Host(spec):
            pass
    await host.close()
    assert [event async for event in events] == []


@pytest.mark.sshd
async def test_a_dead_peer_is_noticed_by_its_silence(sshd: OpenSSH, tmp_path: Path) -> None:
    """A connection that vanished without a word is found by keepalives, and replaced."""
    async with FaultProxy("127.0.0.1", sshd.port, seed=0, after=(400_000, 400_000), kinds=("half-open",)) as proxy:
        spec = replace(sshd.spec(tmp_path / "root"), port=proxy.port)
        async with Host(spec, keepalive_s=0.2) as host:
            events = host.events()
            data = os.urandom(500_000)
            proxy.calm()
            await host.put_file(data, str(tmp_path / "copy"))
            await contact(events, "connected")
            assert proxy.faults == ["half-open"]
            assert (tmp_path / "copy").read_bytes() == data


@pytest.mark.sshd
async def test_a_launch_cut_in_the_middle_is_made_good(sshd: OpenSSH, tmp_path: Path) -> None:
    """A connection that is reset while a hundred jobs are launched costs a second launch of the same ids, no more."""
    async with FaultProxy("127.0.0.1", sshd.port, seed=1, after=(185_000, 185_000), kinds=("reset",)) as proxy:
        spec = replace(sshd.spec(tmp_path / "root"), port=proxy.port)
        async with Host(spec, keepalive_s=0.5) as host:
            proxy.calm()
            jobs = [JobSpec(f"j{n}", f"echo {n} >> {tmp_path}/runs\n# {'x' * 2000}") for n in range(100)]
            await host.launch(jobs)
            states = await ended(host, [job.id for job in jobs])
    assert proxy.faults == ["reset"]
    assert {state.rc for state in states.values()} == {0}
    assert sorted(map(int, (tmp_path / "runs").read_text().split())) == list(range(100))


@pytest.mark.sshd
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_two_hundred_jobs_through_a_bad_network(sshd: OpenSSH, tmp_path: Path, seed: int) -> None:
    """Through drops, stalls, resets and vanished connections: none lost, none started twice, every exit code right."""
    async with FaultProxy("127.0.0.1", sshd.port, seed=seed, after=(200_000, 400_000)) as proxy:
        spec = replace(sshd.spec(tmp_path / "root"), port=proxy.port)
        async with Host(spec, patience_s=60, keepalive_s=0.3) as host:
            rcs: dict[str, int | None] = {}
            events = host.events()

            async def listen() -> None:
                async for event in events:
                    if isinstance(event, JobEvent) and event.kind in ("exit", "lost"):
                        rcs[event.job.id] = event.job.rc if event.kind == "exit" else None
                        if len(rcs) == 200:
                            return

            async with anyio.create_task_group() as group:
                group.start_soon(listen)
                for start in range(0, 200, 10):
                    batch = range(start, start + 10)
                    script = "echo {0} >> {1}/runs; sleep 0.{2}; exit {3}\n# {4}"
                    jobs = [JobSpec(f"j{n}", script.format(n, tmp_path, n % 7, n % 100, "x" * 4000)) for n in batch]
                    await host.launch(jobs)
                    await host.status([job.id for job in jobs])
            proxy.calm()
            await end_jobs(host)
    assert rcs == {f"j{n}": n % 100 for n in range(200)}
    assert sorted(map(int, (tmp_path / "runs").read_text().split())) == list(range(200))
    assert len(proxy.faults) >= 3
