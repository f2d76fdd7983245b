"""Logs stay on the host, whole; what is read of them is bounded, and a full disk makes no job a liar."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.hosting import end_jobs, ended, record, told
from tools.jobs import JobSpec, LogPiece
from tools.shell import TextCleaner
from tools.ssh import Host, HostSpec

pytest_plugins = ("tests.servers",)
pytestmark = pytest.mark.anyio


async def test_a_log_is_followed_to_its_end(host: Host, tmp_path: Path) -> None:
    """Following gives every byte once, in order, and ends when the job has ended."""
    script = "for i in 1 2 3; do echo line $i; done; while [ ! -e go ]; do sleep 0.02; done; seq 1 200000; echo end"
    await host.launch([JobSpec("j", script, cwd=str(tmp_path))])
    pieces: list[LogPiece] = []
    async for piece in host.follow("j"):
        pieces.append(piece)
        if not (tmp_path / "go").exists():
            (tmp_path / "go").touch()
    text = b"".join(piece.data for piece in pieces)
    assert text == b"line 1\nline 2\nline 3\n" + b"".join(b"%d\n" % n for n in range(1, 200001)) + b"end\n"
    assert all(before.end == after.offset for before, after in pairwise(pieces))


async def test_following_from_an_offset_gives_the_rest(host: Host) -> None:
    """Where one reader stopped another goes on; a negative offset is the tail."""
    await host.launch([JobSpec("j", "printf 0123456789")])
    await ended(host, ["j"])
    assert [piece.data async for piece in host.follow("j", 4)] == [b"456789"]
    assert (await host.read_log("j", -3)).data == b"789"
    assert (await host.read_log("j", 2, 3)).data == b"234"
    assert (await host.read_log("j", 10)).data == b""


async def test_a_log_that_was_emptied_is_a_recorded_truncation(host: Host) -> None:
    """A log that became shorter than what was read is read from its start again, and the answer says so."""
    await host.launch([JobSpec("j", "printf 0123456789")])
    await ended(host, ["j"])
    before = await host.read_log("j")
    record(host, "j", "log").write_text("new")
    after = await host.read_log("j", before.end)
    assert (after.truncated, after.offset, after.data, after.inode) == (True, 0, b"new", before.inode)


async def test_a_log_without_a_newline_is_bounded(host: Host) -> None:
    """Fifty megabytes in one line, NUL and colours in it: the tail, the progress and the text stay small."""
    script = "printf 'x\\0\\033[31m' ; head -c 50000000 /dev/zero | tr '\\0' y; printf '::progress 3/4 parts'; exit 1"
    await host.launch([JobSpec("j", script)])
    state = (await ended(host, ["j"]))["j"]
    assert state.progress is not None
    assert (state.log_size, state.progress.done, state.progress.unit) == (50_000_027, 3, "parts")
    assert len(state.tail) < 5000
    assert len(state.progress.line) <= 500
    cleaner = TextCleaner()
    piece = await host.read_log("j", limit=100_000)
    assert cleaner.feed(piece.data).startswith("xyyy")


@pytest.mark.slow
async def test_five_gigabytes_are_read_in_small_pieces(host: Host) -> None:
    """Of a huge log only what is asked for moves: size, head, tail and any middle are there at once."""
    script = "echo first; truncate -s 5G /proc/self/fd/1; echo ::progress 9/9 files; echo last"
    await host.launch([JobSpec("j", script)])
    state = (await ended(host, ["j"]))["j"]
    assert state.log_size > 5 << 30
    assert state.progress is not None
    assert state.progress.line == "last"
    assert (await host.read_log("j", 0, 6)).data == b"first\n"
    assert (await host.read_log("j", -5)).data == b"last\n"
    assert (await host.read_log("j", 3 << 30, 1 << 30)).data == bytes(16 << 20)


async def test_a_capped_log_loses_its_middle_and_keeps_its_offsets(host: Host) -> None:
    """With a cap the head and the tail stay where they were, the range between is stepped over and counted."""
    script = 'seq 1 400000; while [ ! -e "${TURNOUT_OUTPUT%/*}/dropped" ]; do sleep 0.05; done; echo end'
    await host.launch([JobSpec("j", script, max_log=400_000)])
    state = (await ended(host, ["j"]))["j"]
    log = record(host, "j", "log")
    assert log.stat().st_blocks * 512 <= 410_000
    assert state.log_dropped > 2_000_000
    pieces = [piece async for piece in host.follow("j")]
    text = b"".join(piece.data for piece in pieces)
    whole = b"".join(b"%d\n" % n for n in range(1, 400001)) + b"end\n"
    assert len(text) == len(whole) - state.log_dropped == state.log_size - state.log_dropped
    for piece in pieces:
        assert piece.data == whole[piece.offset : piece.end]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    if os.getuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.sshd
async def test_a_full_disk_makes_no_job_lost(small_disk: Path) -> None:
    """A job that fills the disk still has its exit code on record; one that finds no room is refused, not half-made."""
    async with Host(HostSpec(name="local", root=str(small_disk))) as host:
        await host.launch([JobSpec("fill", "head -c 100000000 /dev/zero; echo rc $? > /dev/null; exit 9")])
        state = (await ended(host, ["fill"]))["fill"]
        assert (state.state, state.rc) == ("exited", 9)
        (refused,) = await host.launch([JobSpec("late", "true")])
        assert refused.refused is not None
        assert "No space left" in refused.refused
        record(host, "fill", "log").unlink()
        await host.launch([JobSpec("late", "true")])
        assert (await ended(host, ["late"]))["late"].ok


async def test_shared_memory_of_a_killed_job_is_cleared_away(host: Host, tmp_path: Path) -> None:
    """A kill removes the known shared memory files that the job's processes held, and nothing else in /dev/shm."""
    theirs, foreign = f"/dev/shm/nccl-turnout-{os.getpid()}", f"/dev/shm/nccl-other-{os.getpid()}"
    unnamed = f"/dev/shm/turnout-{os.getpid()}"
    touch(foreign)
    script = (
        f"python3 -c \"import mmap, time; files = [open(p, 'wb+') for p in ('{theirs}', '{unnamed}')]; "
        "[f.truncate(4096) for f in files]; maps = [mmap.mmap(f.fileno(), 4096) for f in files]; "
        "print('::progress 1', flush=True); time.sleep(1000)\""
    )
    try:
        await host.launch([JobSpec("j", script)])
        await told(host, "j", "progress")
        (state,) = await host.kill(["j"], grace_s=0.1)
        assert state.removed == (theirs,)
        assert there(theirs, foreign, unnamed) == [False, True, True]
        await end_jobs(host)
    finally:
        remove(theirs, foreign, unnamed)


def touch(path: str) -> None:
    Path(path).touch()


def there(*paths: str) -> list[bool]:
    return [Path(path).exists() for path in paths]


def remove(*paths: str) -> None:
    for path in paths:
        Path(path).unlink(missing_ok=True)
