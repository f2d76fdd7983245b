"""The layout of the root folder, and files that are either whole or not there after a power cut.

Below the root folder:

    runner/<hash>.pyz     the remote half
    jobs/<id>/            one job: spec.json cmd.sh lock run child exit cancel log ready dropped
                          output.json progress.json
    files/<hash>/         folders sent by content
    incoming/, trash/     half-sent files; what is being deleted
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from contextlib import suppress
from typing import Any

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LONGEST_RECORD = 4 << 20


def job_folder(root: str, job: str) -> str:
    """The directory of `job`. Raises ValueError for an id that could name anything else."""
    if not isinstance(job, str) or not _ID.fullmatch(job):
        raise ValueError(f"`{str(job)[:140]}` is no job id")
    return os.path.join(root, "jobs", job)


def expand(path: str) -> str:
    """`path` with `~` and relative paths taken from the home directory, as everything on a host is."""
    return os.path.join(os.path.expanduser("~"), os.path.expanduser(path))


def sync_file(path: str) -> None:
    """Make the content of a file durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(path: str) -> None:
    """Make renames and new names in `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def refresh(folder: str) -> None:
    """Have NFS ask its server what is in `folder`: opening it does, while a look at a name may be a minute old."""
    with suppress(OSError):
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def write(path: str, data: bytes, *, durable: bool = True, named: bool = True) -> None:
    """Put `data` at `path` by rename: a reader sees the old file or the new one, `durable` also after a power cut.

    Not `named`: the content is durable, the name is not yet; the caller syncs the folder once for several files.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    if durable and named:
        sync_folder(os.path.dirname(path))


def write_all(fd: int, data: bytes) -> None:
    """`os.write` until everything is written."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_json(path: str, value: Any, *, durable: bool = True, named: bool = True) -> None:
    """`write` of JSON text."""
    write(path, json.dumps(value).encode("ascii"), durable=durable, named=named)


def read_json(path: str) -> dict[str, Any] | None:
    """The JSON object in `path`; None when there is no such file, `{}` when it is damaged."""
    try:
        data = read_file(path, _LONGEST_RECORD)
    except NotAFile:
        return {}
    try:
        value = None if data is None else json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) or data is None else {}


class NotAFile(OSError):
    """What has the name of a file is a folder, a pipe or a device."""


def open_file(path: str) -> int | None:
    """A descriptor of the regular file `path`; None when there is none. Raises NotAFile, and OSError as it comes.

    A job may put anything into its folder, and the reader must neither wait for a pipe nor read a device without end.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ELOOP):  # a socket, or links that lead nowhere
            raise NotAFile(errno.EINVAL, "it is no file") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotAFile(errno.EINVAL, "it is no file")
    return fd


def read_file(path: str, limit: int) -> bytes | None:
    """The first `limit` bytes of the regular file `path`; None when there is none. Raises as `open_file` does."""
    fd = open_file(path)
    if fd is None:
        return None
    with open(fd, "rb") as file:
        return file.read(limit)
