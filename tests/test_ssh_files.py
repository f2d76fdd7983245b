"""Files and folders, to a host and back: by content, whole or not at all, bounded, and not trusted on the way back."""

from __future__ import annotations

import io
import os
import tarfile
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from state.errors import HostUnusable, JobError, UsageError
from tools import transfer
from tools.ssh import Host

pytest_plugins = ("tests.servers",)
pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program, an empty file, a deep one, a link, a name that is no UTF-8, and a cache."""
    root = tmp_path / "folder"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "er" / "data.bin").write_bytes(os.urandom(1_000_000))
    (root / "empty").touch()
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("run.sh")
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9")).write_text("latin")
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "x.pyc").touch()
    return root


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


async def test_a_folder_is_sent_once_and_comes_back_the_same(host: Host, folder: Path, tmp_path: Path) -> None:
    """The same content has the same place on the host; there and back nothing changes but what is left out."""
    remote = await host.put_tree(folder)
    os.utime(folder / "empty", (1, 1))
    assert await host.put_tree(folder) == remote
    assert (await host.run(f"{remote}/link")).stdout == b"ran\n"
    await host.get_tree(remote, tmp_path / "back")
    sent = {name for name in names(folder) if "__pycache__" not in name}
    assert names(tmp_path / "back") == sent
    assert (tmp_path / "back" / "deep" / "er" / "data.bin").read_bytes() == (folder / "deep/er/data.bin").read_bytes()
    (folder / "empty").write_text("no more")
    assert await host.put_tree(folder) != remote


async def test_a_file_is_put_by_rename(host: Host, tmp_path: Path) -> None:
    """Whoever reads the file sees the old content or the new, with the mode asked for; folders are made."""
    target = tmp_path / "new" / "folder" / "file"
    big = os.urandom(3_000_000)
    assert await host.put_file(b"", str(target)) == str(target)
    assert target.read_bytes() == b""
    await host.put_file(big, str(target), mode=0o600)
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (big, 0o600)
    assert os.listdir(target.parent) == ["file"]
    await host.get_tree(str(target), tmp_path / "back")
    assert (tmp_path / "back" / "file").read_bytes() == big


async def test_what_cannot_be_is_said(host: Host, tmp_path: Path) -> None:
    """No such folder here, no such file there, no right to write: each is its own error, and the host stays usable."""
    with pytest.raises(UsageError, match="no folder"):
        await host.put_tree(tmp_path / "nothing")
    with pytest.raises(JobError, match="No such file"):
        await host.get_tree("/no/such/file", tmp_path)
    with pytest.raises(HostUnusable):
        await host.put_file(b"x", "/proc/no/such/file")
    assert (await host.run("true")).ok


async def test_more_than_was_allowed_is_not_taken(host: Host, folder: Path, tmp_path: Path) -> None:
    """A folder larger than the limit is refused on the host, before it has been sent."""
    with pytest.raises(JobError, match="more than the allowed `1000` bytes"):
        await host.get_tree(str(folder), tmp_path / "back", max_bytes=1000)
    assert not (tmp_path / "back").exists()


async def test_a_slow_reader_stops_the_host_not_the_memory(host: Host, tmp_path: Path) -> None:
    """Pieces that nobody takes stay on the host; when they are taken, all of them come."""
    (tmp_path / "big").write_bytes(bytes(80_000_000))
    frames = host._bulk.stream("get", path=str(tmp_path / "big"), max_bytes=1 << 30)
    first, body = await anext(frames)
    (request,) = host._bulk._requests.values()
    for _ in range(50):
        await host.run("true")
    assert first["more"]
    assert request.frames.qsize() < 100
    size = len(body)
    async for _, piece in frames:
        size += len(piece)
    assert size > 80_000_000


async def test_what_a_host_sends_stays_in_its_folder(tmp_path: Path) -> None:
    """An archive that would write elsewhere is refused, and nothing is written there."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../outside"), io.BytesIO())

    async def frames():
        yield {"more": True}, archive.getvalue()
        yield {"size": len(archive.getvalue())}, b""

    with pytest.raises(JobError, match="cannot be unpacked"):
        await transfer.receive(frames(), tmp_path / "back", 1 << 20)
    assert "outside" not in names(tmp_path)


@pytest.mark.parametrize("hidden", ["w:gz", "w:bz2", "w:xz"])
async def test_a_small_archive_does_not_become_a_large_folder(tmp_path: Path, hidden: str) -> None:
    """A compressed archive, which could grow without bound, is none: what is unpacked is what was counted."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode=hidden) as tar:
        large = tarfile.TarInfo("large")
        large.size = 10_000_000
        tar.addfile(large, io.BytesIO(bytes(large.size)))

    async def frames():
        yield {"more": True}, archive.getvalue()
        yield {"size": len(archive.getvalue())}, b""

    with pytest.raises(JobError, match="cannot be unpacked"):
        await transfer.receive(frames(), tmp_path / "back", 1 << 20)
    assert not (tmp_path / "back" / "large").exists()


async def test_a_host_that_sends_more_than_it_may_is_cut_off(tmp_path: Path) -> None:
    """A limit that the remote half does not keep is kept here: the stream is left at the first byte too many."""
    left = anyio.Event()

    async def frames():
        try:
            while True:
                yield {"more": True}, bytes(1000)
        finally:
            left.set()

    with pytest.raises(JobError, match="more than the allowed `2500` bytes"):
        await transfer.receive(frames(), tmp_path / "back", 2500)
    assert left.is_set()
    assert not (tmp_path / "back").exists()


async def test_a_file_that_grows_while_it_is_sent_comes_as_it_was(host: Host, tmp_path: Path) -> None:
    """What a writer adds meanwhile is left out: the size is taken before the first byte, and so the limit holds."""
    big = tmp_path / "big"
    big.write_bytes(bytes(80_000_000))
    async with aclosing(host._bulk.stream("get", path=str(big), max_bytes=1 << 30)) as frames:
        _, body = await anext(frames)
        with big.open("ab") as file:
            file.write(bytes(50_000_000))
        size = len(body) + sum([len(piece) async for _, piece in frames])
    assert 80_000_000 < size < 81_000_000
