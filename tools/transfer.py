"""Folders and files as archives and pieces: what is sent to a host by content, and what comes back from one.

An archive is the same for the same content whatever the owner, the times or the order on disk, so that its hash names
the folder. What a host sends back is not trusted: it is unpacked with the standard library's `data` filter.
"""

from __future__ import annotations

import hashlib
import secrets
import tarfile
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import IO, Any

import anyio
from anyio import to_thread

from state.errors import JobError, UsageError
from tools.lane import Lane
from tools.remote.wire import CHUNK, Frame

_LEFT_OUT = ("__pycache__", ".git", ".venv")
_IN_FLIGHT = 8


def pack(folder: Path) -> tuple[IO[bytes], str]:
    """The archive of a folder (an open temporary file, at its start) and its SHA-256. Caches and `.git` are left out.

    Raises UsageError when there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder `{folder}`", hint="give the path of a folder on this machine")
    archive = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            relative = path.relative_to(folder)
            if not any(part in _LEFT_OUT for part in relative.parts):
                _add(tar, path, relative)
    archive.seek(0)
    digest = hashlib.file_digest(archive, "sha256").hexdigest()
    archive.seek(0)
    return archive, digest


def digest(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def _add(tar: tarfile.TarFile, path: Path, relative: Path) -> None:
    info = tar.gettarinfo(str(path), arcname=str(relative))
    if info is None:
        return  # a socket: nothing that could be sent
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
    if info.islnk():  # a second name of a file already in: sent as a file, since names are what counts
        info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
    if info.isreg():
        with path.open("rb") as file:
            tar.addfile(info, file)
    else:
        tar.addfile(info)


async def send(lane: Lane, data: IO[bytes], digest: str, **finish: Any) -> str:
    """Upload `data` in pieces, several in flight, and have it put in place; the path on the host."""
    upload = secrets.token_hex(16)
    room = anyio.Semaphore(_IN_FLIGHT)

    async def piece(offset: int, body: bytes) -> None:
        try:
            await lane.request("put", body, again=True, upload=upload, offset=offset)
        finally:
            room.release()

    async with anyio.create_task_group() as group:
        offset = 0
        while body := await to_thread.run_sync(data.read, CHUNK):
            await room.acquire()
            group.start_soon(piece, offset, body)
            offset += len(body)
        if offset == 0:
            await room.acquire()
            group.start_soon(piece, 0, b"")
    answer, _ = await lane.request("finish", again=True, answer_s=None, upload=upload, hash=digest, **finish)
    return str(answer["path"])


async def receive(frames: AsyncGenerator[Frame, None], target: Path, max_bytes: int) -> int:
    """Unpack the pieces of an archive below `target`; its size in bytes.

    Raises JobError for what may not be unpacked, and for more than `max_bytes`: the host has the same limit and says
    so before it sends, but what arrives is counted here.
    """
    with tempfile.TemporaryFile() as archive:
        size = 0
        async with aclosing(frames):
            async for header, body in frames:
                if header.get("more"):
                    size += len(body)
                    if size > max_bytes:
                        raise JobError(f"the host sends more than the allowed `{max_bytes}` bytes")
                    await to_thread.run_sync(archive.write, body)
                elif header.get("size") != size:
                    raise JobError(f"the host sent `{size}` of `{header.get('size')}` bytes", hint="get it again")
        archive.seek(0)
        await to_thread.run_sync(_unpack, archive, target)
    return size


def _unpack(archive: IO[bytes], target: Path) -> None:
    try:
        with tarfile.open(fileobj=archive, mode="r:") as tar:  # never decompressed: its size is what was counted
            tar.extractall(target, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise JobError(f"what the host sent cannot be unpacked at `{target}`: `{error}`") from error
