"""Puts files and folders onto the host by content, gets them back, and throws jobs away.

An upload is bytes at an offset of a file in `incoming`, so a piece sent twice does no harm; `finish` checks the hash
and renames. A folder is a tar archive, known by the hash of the archive and unpacked once into `files/<hash>`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
import time
from typing import Any, Sequence

from . import jobs, proc, store, wire, worker

_HASH = re.compile(r"[0-9a-f]{64}")
_STALE_S = 86400.0


def _check_hash(value: Any) -> str:
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise ValueError(f"`{value}` is no SHA-256")
    return value


def folder_of(root: str, digest: str) -> str:
    """Where the folder whose archive has this hash lies."""
    return os.path.join(root, "files", _check_hash(digest)[:32])


def incoming(root: str, upload: str) -> str:
    """The half-sent file of one upload; `upload` is a name that the sender made up (32 hex digits)."""
    if not re.fullmatch(r"[0-9a-f]{32}", str(upload)):
        raise ValueError(f"`{upload}` is no upload")
    return os.path.join(root, "incoming", upload)


def put(root: str, upload: str, offset: int, body: bytes) -> None:
    """Write one piece of an upload. Twice the same piece is once."""
    path = incoming(root, upload)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.lseek(fd, offset, os.SEEK_SET)
        store.write_all(fd, body)
    finally:
        os.close(fd)


def finish(root: str, request: dict[str, Any], report: worker.Report) -> None:
    """Check a complete upload and move it to its place; report `path`. A finish sent twice finds it done."""
    digest, path = _check_hash(request["hash"]), incoming(root, request["upload"])
    target = store.expand(request["path"]) if request.get("path") else folder_of(root, digest)
    if not os.path.exists(path) and os.path.exists(target):
        report.send({"path": target})
        return
    seen = hash_file(path)
    if seen != digest:
        report.send({"error": {"kind": "host", "message": f"the upload arrived as `{seen}`, not `{digest}`"}})
        return
    if request.get("path"):
        _into_place(path, target, int(request.get("mode", 0o644)))
    elif not os.path.isdir(target):
        _unpack(path, target)
    if os.path.exists(path):
        os.unlink(path)
    report.send({"path": target})


def hash_file(path: str) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(wire.CHUNK), b""):
            digest.update(piece)
    return digest.hexdigest()


def _into_place(path: str, target: str, mode: int) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    beside = f"{target}.{os.getpid()}.tmp"  # the target may be on another file system than the root
    shutil.copyfile(path, beside)
    os.chmod(beside, mode)
    store.sync_file(beside)
    os.rename(beside, target)


def _unpack(path: str, target: str) -> None:
    """The archive is our own (its hash was checked), so its members are taken as they are."""
    new = f"{target}.{os.getpid()}.new"
    os.makedirs(new, exist_ok=True)
    with tarfile.open(path) as archive:
        archive.extractall(new)
    for folder, _, names in os.walk(new):  # else a power cut could leave a tree under its hash with empty files
        for name in names:
            if not os.path.islink(os.path.join(folder, name)):
                store.sync_file(os.path.join(folder, name))
        store.sync_folder(folder)
    try:
        os.rename(new, target)
    except OSError:
        shutil.rmtree(new)
        if not os.path.isdir(target):
            raise


class _Pieces:
    """What `tarfile` writes into: passes pieces on as frames, counts them, and stops above a limit."""

    def __init__(self, report: worker.Report, limit: int) -> None:
        self.report, self.limit, self.sent = report, limit, 0
        self.buffer = bytearray()

    def write(self, data: bytes) -> int:
        self.buffer += data
        if self.sent + len(self.buffer) > self.limit:
            raise ValueError(f"there is more than the allowed `{self.limit}` bytes")
        if len(self.buffer) >= wire.CHUNK:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self.buffer and not self.report.send({"more": True}, bytes(self.buffer)):
            raise BrokenPipeError("nobody reads any more")
        self.sent += len(self.buffer)
        self.buffer.clear()


def get(request: dict[str, Any], report: worker.Report) -> None:
    """Send a file or folder as a tar archive in pieces; then its size, or why not."""
    path = store.expand(request["path"])
    pieces = _Pieces(report, int(request["max_bytes"]))
    try:
        with tarfile.open(fileobj=pieces, mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
            archive.add(path, arcname="." if os.path.isdir(path) else os.path.basename(path))
        pieces.flush()
    except (OSError, ValueError) as error:
        report.send({"error": {"kind": "job", "message": f"cannot read `{path}`: {error}"}})
        return
    report.send({"size": pieces.sent})


def listing(root: str, limit: int) -> list[str]:
    """The ids of the `limit` newest jobs that have a directory, newest first."""
    folder = os.path.join(root, "jobs")
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except FileNotFoundError:
        return []
    entries.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime, reverse=True)
    return [entry.name for entry in entries[:limit]]


def clean(root: str, ids: Sequence[str], report: worker.Report) -> None:
    """Delete jobs that have ended (others are refused), then everything that was left half-done for a day."""
    boot = proc.boot_id()
    trash = os.path.join(root, "trash")
    os.makedirs(trash, mode=0o700, exist_ok=True)
    refused = {}
    for job in ids:
        found = jobs.state(root, job, boot)["state"]
        if found in ("exited", "lost", "prepared"):
            os.rename(store.job_folder(root, job), os.path.join(trash, f"{job}-{time.time_ns()}"))
        elif found != "unknown":
            refused[job] = f"is `{found}`"
    for name in os.listdir(trash):
        shutil.rmtree(os.path.join(trash, name), ignore_errors=True)
    for folder, prefix in ((os.path.join(root, "incoming"), ""), (os.path.join(root, "jobs"), ".new-")):
        _sweep(folder, prefix)
    report.send({"refused": refused})


def _sweep(folder: str, prefix: str) -> None:
    if not os.path.isdir(folder):
        return
    for entry in os.scandir(folder):
        if entry.name.startswith(prefix) and entry.stat(follow_symlinks=False).st_mtime < time.time() - _STALE_S:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)
