"""The host `local`: an SSH server inside this process, on the loopback, for this process only.

Keys are made in memory at each start; the one client key it accepts never leaves the process, and the client is pinned
to exactly its host key. What it runs goes through `/bin/sh`, as on a real host, so everything else is the same code.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import Any

import asyncssh

from tools.hostkeys import Endpoint

_PIECE = 1 << 18


class _Server(asyncssh.SSHServer):
    """Lets in one key, whoever it says it is."""

    def __init__(self, allowed: asyncssh.SSHKey) -> None:
        self._allowed = allowed

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return key == self._allowed


class LocalServer:
    """The embedded server. `endpoint` is what to connect to while it runs."""

    def __init__(self) -> None:
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._home = os.path.expanduser("~")
        self._running: set[asyncio.subprocess.Process] = set()

    async def start(self) -> Endpoint:
        """Listen on a free port of the loopback."""
        host_key = asyncssh.generate_private_key("ssh-ed25519")
        client_key = asyncssh.generate_private_key("ssh-ed25519")
        allowed = client_key.convert_to_public()
        self._acceptor = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[host_key], server_factory=lambda: _Server(allowed), encoding=None,
            process_factory=self._run, allow_pty=False, agent_forwarding=False, gss_host=None, config=None,
        )  # fmt: skip
        pinned = host_key.export_public_key().decode().strip()
        return Endpoint("127.0.0.1", self._acceptor.get_port(), "local", pinned, key=client_key, use_config=False)

    async def close(self) -> None:
        """Stop listening, drop connections, and wait for what was run: it ends with its stdin. Jobs live on."""
        if self._acceptor is not None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
            self._acceptor = None
        for process in list(self._running):
            await process.wait()

    async def _run(self, request: asyncssh.SSHServerProcess[bytes]) -> None:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", request.command or "exit 2", cwd=self._home, start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._running.add(process)
        try:
            feeding = asyncio.create_task(_copy(request.stdin, process.stdin))
            await asyncio.gather(_copy(process.stdout, request.stdout), _copy(process.stderr, request.stderr))
            status = await process.wait()
            feeding.cancel()
            if status < 0:
                request.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
            else:
                request.exit(status)
        finally:
            process.stdin.close()
            await process.wait()
            self._running.discard(process)


async def _copy(source: asyncio.StreamReader | asyncssh.SSHReader[bytes], sink: Any) -> None:
    """Copy until the source ends or the sink is closed, at the sink's pace; then close the sink's side of it."""
    with suppress(ConnectionError, asyncssh.Error):
        while data := await source.read(_PIECE):
            sink.write(data)
            await sink.drain()
    with suppress(ConnectionError, asyncssh.Error):
        if sink.can_write_eof():
            sink.write_eof()
