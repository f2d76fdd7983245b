"""Fixtures for tests against real hosts: a real OpenSSH server, the embedded one, and hosts on either.

Load with `pytest_plugins = ("tests.servers",)`. Every host gets a root folder of its own below the test's temporary
directory; when a test ends, what it left running there is killed, and a process that is left over fails it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.hosting import SSHD, OpenSSH, end_jobs
from tests.slurm_cluster import Cluster
from tools.hostkeys import HostSpec
from tools.ssh import Host


@pytest.fixture
def anyio_backend() -> str:
    """asyncssh runs on asyncio only."""
    return "asyncio"


@pytest.fixture
def make_sshd(tmp_path: Path) -> Iterator[Callable[..., OpenSSH]]:
    """Start OpenSSH servers with settings of their own: `make_sshd(MaxSessions="1")`."""
    if not Path(SSHD).exists():
        pytest.skip("no OpenSSH server here: install openssh-server")
    servers: list[OpenSSH] = []

    def make(**settings: str) -> OpenSSH:
        folder = tmp_path / f"sshd{len(servers)}"
        folder.mkdir()
        servers.append(OpenSSH(folder, settings))
        servers[-1].start()
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def sshd(make_sshd: Callable[..., OpenSSH]) -> OpenSSH:
    """One OpenSSH server."""
    return make_sshd()


@pytest.fixture(params=[pytest.param("openssh", marks=pytest.mark.sshd), "embedded"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> HostSpec:
    """A host behind OpenSSH, then the same behind the embedded server."""
    if request.param == "embedded":
        return HostSpec(name="local", root=str(tmp_path / "root"))
    server: OpenSSH = request.getfixturevalue("sshd")
    return server.spec(tmp_path / "root")


@pytest.fixture
async def host(spec: HostSpec) -> AsyncIterator[Host]:
    """A connected host; at the end its jobs are killed and nothing of them may be left."""
    async with Host(spec, keepalive_s=1.0) as connected:
        yield connected
        await end_jobs(connected)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One Slurm for all tests of a process. Its end is bounded: what ran there is cancelled."""
    if not shutil.which("sbatch") or not Path("/usr/sbin/slurmd").exists() or os.getuid():
        pytest.skip("no Slurm here: install slurm-wlm, and be root")
    running = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        running.start()
    except RuntimeError as error:
        running.stop()
        pytest.skip(f"Slurm does not start on this machine: {error}")
    yield running
    running.stop()
