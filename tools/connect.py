"""SSH connections to one host: host keys always verified, jump hosts one by one, few handshakes at a time.

`Links` opens channels and, when the server allows no more of them on one connection, further connections. Every jump
host is connected to explicitly, so its key is checked like any other. It does not know what runs in the channels.

    links = Links(Endpoint.of(HostSpec(name="gpu1")), "gpu1")
    session, freed = await links.open("uname -a", MySession)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import anyio
import asyncssh
from anyio.lowlevel import RunVar

from state.errors import HostUnusable, Unreachable
from tools.hostkeys import Endpoint as Endpoint
from tools.hostkeys import HostSpec as HostSpec
from tools.hostkeys import KnownHost, explained

CONNECT_S = 15.0
# OpenSSH allows 10 sessions a connection by default; 8 leaves room for somebody's multiplexed terminal.
_SESSIONS = 8
# OpenSSH's MaxStartups 10:30:100 starts to drop handshakes above 10; a jump host sees those of all hosts behind it.
_HANDSHAKES = 4
_KEEPALIVES = 3
S = TypeVar("S", bound=asyncssh.SSHClientSession[bytes])
_handshakes: RunVar[anyio.CapacityLimiter] = RunVar("turnout_handshakes")


class _Client(asyncssh.SSHClient):
    """Keeps the key that the server showed, and accepts it only if its fingerprint is the pinned one."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.offered: asyncssh.SSHKey | None = None

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.offered = key
        return bool(self.fingerprint) and key.get_fingerprint() == self.fingerprint


class _Link:
    """One connection (with the hops below it) and how many channels are open on it."""

    def __init__(self, connection: asyncssh.SSHClientConnection, hops: list[asyncssh.SSHClientConnection]) -> None:
        self.connection = connection
        self.hops = hops
        self.sessions = 0
        self.limit = _SESSIONS

    def freed(self) -> None:
        self.sessions -= 1

    def close(self) -> None:
        for connection in (self.connection, *reversed(self.hops)):
            connection.close()

    async def gone(self) -> None:
        for connection in (self.connection, *reversed(self.hops)):
            await connection.wait_closed()


class Links:
    """The connections to one host."""

    def __init__(self, endpoint: Endpoint, name: str, *, keepalive_s: float = 5.0) -> None:
        self._endpoint = endpoint
        self._name = name
        self._keepalive_s = keepalive_s
        self._links: list[_Link] = []
        self._connecting = asyncio.Lock()
        self._limit = _SESSIONS

    async def open(self, command: str, factory: Callable[[], S]) -> tuple[S, Callable[[], None]]:
        """Run `command` in a channel of its own, bytes in and out; opens a further connection when one is full.

        Gives the session, and what to call when its channel has ended. Raises Unreachable, HostKeyError, HostUnusable.
        """
        async with self._connecting:
            while True:
                link = next((link for link in self._links if link.sessions < link.limit), None) or await self._connect()
                try:
                    async with asyncio.timeout(CONNECT_S):
                        _, session = await link.connection.create_session(
                            cast(Any, factory), command, encoding=None, request_pty=False, x11_forwarding=False
                        )
                except asyncssh.ChannelOpenError as error:
                    if link.connection.is_closed():
                        self._forget(link)
                        raise Unreachable(f"the connection to `{self._name}` broke: `{error.reason}`") from error
                    # The command never ran. The server allows fewer sessions than we thought: remember it.
                    if link.sessions == 0:
                        self._forget(link)
                        raise HostUnusable(
                            f"`{self._name}` opens no session: `{error.reason}`",
                            hint="look at `MaxSessions` and `ForceCommand` in the server's sshd_config",
                        ) from error
                    link.limit = self._limit = link.sessions
                except TimeoutError as error:
                    # It may have become deaf: the sessions that it has stay, the next one is asked for on another.
                    if link.sessions == 0:
                        self._forget(link)
                        raise Unreachable(
                            f"`{self._name}` let us in, but did not answer in {CONNECT_S:.0f} s to open a session"
                        ) from error
                    link.limit = link.sessions
                except (asyncssh.Error, OSError) as error:
                    self._forget(link)
                    raise Unreachable(f"the connection to `{self._name}` broke: `{error}`") from error
                else:
                    link.sessions += 1
                    return cast(S, session), link.freed

    async def close(self) -> None:
        """Close all connections; waits until they are gone."""
        for link in self._links:
            link.close()
        while self._links:
            await self._links[-1].gone()
            self._links.pop()

    def abort(self) -> None:
        """Drop at once whatever connections there still are."""
        links, self._links = self._links, []
        for link in links:
            link.connection.abort()
            link.close()

    def _forget(self, link: _Link) -> None:
        if link in self._links:
            self._links.remove(link)
        link.close()

    async def _connect(self) -> _Link:
        self._links = [link for link in self._links if not link.connection.is_closed()]
        async with _limiter():
            link = await self._handshake()
        link.limit = self._limit
        self._links.append(link)
        return link

    async def _handshake(self) -> _Link:
        with _settings_of(self._name):
            known = await KnownHost.read(self._endpoint)
            hops = await self.hops(known)
            try:
                return _Link(await self._to(self._endpoint, known, hops), hops)
            except BaseException:
                _close(hops)
                raise

    async def hops(self, known: KnownHost) -> list[asyncssh.SSHClientConnection]:
        """Connections to the jump hosts, each through the one before, with its own configuration and its own key."""
        hops: list[asyncssh.SSHClientConnection] = []
        try:
            for text in known.jumps:
                hop = Endpoint.hop(text)
                hops.append(await self._to(hop, await KnownHost.read(hop), hops))
        except BaseException:
            _close(hops)
            raise
        return hops

    async def _to(
        self, endpoint: Endpoint, known: KnownHost, hops: list[asyncssh.SSHClientConnection]
    ) -> asyncssh.SSHClientConnection:
        pinned = endpoint.host_key if endpoint.host_key.startswith("SHA256:") else ""
        client = _Client(pinned)
        keys = [endpoint.key] if endpoint.key else [endpoint.identity] if endpoint.identity else ()
        try:
            return await asyncssh.connect(
                endpoint.address, endpoint.port or (), username=endpoint.user or (), client_keys=keys,
                config=() if endpoint.use_config else None, known_hosts=known.trusted, client_factory=lambda: client,
                server_host_key_algs=known.algorithms(endpoint), tunnel=hops[-1] if hops else None,
                connect_timeout=CONNECT_S, keepalive_interval=self._keepalive_s, keepalive_count_max=_KEEPALIVES,
            )  # fmt: skip
        except (asyncssh.Error, OSError, TimeoutError) as error:
            raise explained(error, endpoint, known, client.offered, self._name) from error
        except asyncssh.KeyImportError as error:
            message = f"cannot connect to `{self._name}`: `{error}`"
            raise HostUnusable(message, hint="use a key that ssh-agent holds") from error


async def host_key(spec: HostSpec) -> asyncssh.SSHKey:
    """The key that the host shows now, unverified: for an operator to compare. Jump hosts are verified."""
    endpoint = Endpoint.of(spec)
    with _settings_of(spec.name):
        known = await KnownHost.read(endpoint)
        hops = await Links(endpoint, spec.name).hops(known)
        try:
            tunnel = hops[-1] if hops else None
            async with asyncio.timeout(CONNECT_S):
                key = await asyncssh.get_server_host_key(endpoint.address, spec.port or (), tunnel=tunnel)
        except (asyncssh.Error, OSError) as error:
            raise explained(error, endpoint, known, None, spec.name) from error
        finally:
            _close(hops)
    if key is None:
        raise Unreachable(f"`{spec.name}` shows no host key")
    return key


@contextmanager
def _settings_of(name: str) -> Iterator[None]:
    """A pinned key, known_hosts, `~/.ssh/config`, address or port that nobody can read is the operator's to mend."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise HostUnusable(
            f"the settings of `{name}` cannot be read: `{error}`",
            hint="look at its address, port and key in `turnout hosts list --json`, at `~/.ssh/config` and known_hosts",
        ) from error


def _close(hops: list[asyncssh.SSHClientConnection]) -> None:
    for connection in reversed(hops):
        connection.close()


def _limiter() -> anyio.CapacityLimiter:
    try:
        return _handshakes.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_HANDSHAKES)
        _handshakes.set(limiter)
        return limiter
