"""What is read from a job's directory alone: order of the questions, progress, records that cannot be."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from pathlib import Path

import pytest

from tools.remote import evidence, jobs, linux, proc, ready, store, watch
from tools.remote.quick import Output

BOOT = proc.boot_id()
ME = proc.read(os.getpid())
assert ME is not None


def job(root: Path, **records: object) -> str:
    """A job's directory with these records."""
    folder = root / "jobs" / "j"
    folder.mkdir(parents=True)
    for name, value in records.items():
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return str(root)


GONE = {"pid": 2**22 - 1, "ticks": 1}


@pytest.mark.parametrize(
    ("records", "state"),
    [
        ({"exit": {"rc": 0}, "run": {**GONE, "boot": "x"}}, "exited"),
        ({"spec": "{}"}, "prepared"),
        ({"cancel": "{}"}, "exited"),
        ({"run": {**GONE, "boot": "another"}}, "lost"),
        ({"run": {**GONE, "boot": BOOT}, "child": GONE}, "lost"),
        ({"run": {**GONE, "boot": BOOT}}, "lost"),
        ({"run": "torn"}, "lost"),
        ({"run": {**GONE, "boot": BOOT}, "child": {"pid": ME.pid, "ticks": ME.ticks}}, "orphan"),
        ({"run": {**GONE, "boot": BOOT}, "child": {"pid": ME.pid, "ticks": 1}}, "lost"),
    ],
)
def test_the_state_follows_from_the_records(tmp_path: Path, records: dict[str, object], state: str) -> None:
    """An exit record decides; without one the boot, the lock and the processes do, in this order."""
    assert jobs.state(job(tmp_path, **records), "j", BOOT)["state"] == state


def test_asking_for_the_lock_never_takes_it(tmp_path: Path) -> None:
    """A held lock is seen from outside, is never taken by asking, and is free once its holder is gone."""
    path = str(tmp_path / "lock")
    assert not linux.lock_held(path)
    holder = os.open(path, os.O_RDWR | os.O_CREAT)
    assert linux.try_lock(holder)
    assert linux.lock_held(path)
    second = os.open(path, os.O_RDWR)
    assert not linux.try_lock(second)
    os.close(holder)
    assert not linux.lock_held(path)
    assert linux.try_lock(second)
    os.close(second)


@pytest.mark.parametrize(
    ("log", "extra", "expected"),
    [
        ("::progress 3/10 steps\n", None, (3, 10, "steps")),
        ("::progress 3.5\n", None, (3.5, None, None)),
        ("::progress 1/2\r::progress 2/2\r", None, (2, 2, None)),
        ("no number\n", None, (None, None, None)),
        ("x\n", {"done": 4, "total": 8, "unit": "shards"}, (4, 8, "shards")),
        ("x\n", {"done": "many"}, (None, None, None)),
        ("::progress of the work\n", None, (None, None, None)),
    ],
)
def test_progress_is_what_was_said_last(
    tmp_path: Path, log: str, extra: dict[str, object] | None, expected: tuple[object, ...]
) -> None:
    """The last `::progress` of the log or the progress file, and nothing made up from other text."""
    root = job(tmp_path, log=log, **({"progress.json": extra} if extra else {}))
    found = jobs.progress(os.path.join(root, "jobs", "j")) or {}
    assert (found.get("done"), found.get("total"), found.get("unit")) == expected


def test_a_record_is_whole_or_not_there(tmp_path: Path) -> None:
    """A write that fails leaves the old content and no temporary file."""
    path = str(tmp_path / "record")
    store.write(path, b"old")
    code = (
        "import resource, sys; sys.path.insert(0, sys.argv[1]); from tools.remote import store; import signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "store.write(sys.argv[2], b'x' * 1000)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, os.getcwd(), path], capture_output=True, check=False)
    assert b"File too large" in done.stderr
    assert os.listdir(tmp_path) == ["record"]
    assert Path(path).read_bytes() == b"old"


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x", "a\0b"])
def test_no_id_leads_out_of_the_jobs(name: str) -> None:
    """The host checks ids for itself, whatever the driver sends."""
    with pytest.raises(ValueError, match="no job id"):
        store.job_folder("/root", name)


def test_a_name_with_parentheses_does_not_confuse_the_process_table(tmp_path: Path) -> None:
    """A program may be called `x) R 1 (y`: state and start are still its own."""
    program = tmp_path / "x) R 1 (y"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(program), "1000"])
    try:
        seen = proc.read(process.pid)
        assert seen is not None
        assert (seen.parent, seen.dead) == (os.getpid(), False)
    finally:
        process.kill()
        process.wait()


def test_a_process_that_took_a_pid_is_not_signalled() -> None:
    """A signal meant for a process that is gone never reaches the one that has its number now."""
    process = subprocess.Popen(["/bin/sleep", "1000"])
    try:
        seen = proc.read(process.pid)
        assert seen is not None
        assert not proc.signal(seen._replace(ticks=seen.ticks - 1), 9)
        assert process.poll() is None
        assert proc.signal(seen, 9)
        assert process.wait() == -9
        assert not proc.signal(seen, 9)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("sizes", [[], [10], [100], [101], [60, 60], [1000, 3, 70000]])
def test_head_tail_and_count_are_exact(sizes: list[int]) -> None:
    """However output arrives, its first and last bytes and its length are right, and memory is bounded."""
    reader, writer = os.pipe()
    output = Output(reader, 100)
    data = os.urandom(sum(sizes))
    start = 0
    for size in sizes:
        for piece in range(start, start + size, 4096):
            os.write(writer, data[piece : min(piece + 4096, start + size)])
            output.read()
        start += size
    os.close(writer)
    while output.read():
        pass
    os.close(reader)
    head, tail = output.parts()
    assert output.count == len(data)
    assert head == data[:50]
    assert head + tail == data if len(data) <= 100 else tail == data[-50:]


def test_an_oom_kill_is_told_from_the_kernels_own_line() -> None:
    """Only a line of the kernel log for our process or user, after the job's start, is evidence."""
    line = "6,1,{time},-;Out of memory: Killed process {pid} (python3) total-vm:1kB, UID:{uid} pgtables:1kB"
    fits = line.format(time=2_000_000, pid=77, uid=os.getuid())
    assert evidence._matching(fits, 1.5, set()) == "the kernel log says: Killed process 77 (python3)"
    assert evidence._matching(line.format(time=2_000_000, pid=77, uid=4242), 1.5, {77}) is not None
    assert evidence._matching(line.format(time=2_000_000, pid=77, uid=4242), 1.5, {78}) is None
    assert evidence._matching(fits, 30.0, set()) is None
    assert evidence._matching("6,1,2000000,-;usb 1-1: new device", 0.0, {77}) is None


def test_an_old_kernel_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """Without pidfd and close_range a command runs, times out and is ended all the same."""
    code = (
        "import errno, json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from tools.remote import linux, quick\n"
        "def no(*a): raise OSError(errno.ENOSYS, 'no such call')\n"
        "linux.pidfd_open = no; linux._CLOSE_RANGE = 99999\n"
        "linux.close_range(50, 60)\n"
        "out = [quick.run(['sh', '-c', c], b'', 0.5, 100)[0] for c in ('exit 3', 'setsid sleep 1000; sleep 1000')]\n"
        "print(json.dumps([[r['rc'], r['timed_out'], r['held_by']] for r in out]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, os.getcwd()], capture_output=True, check=True)
    assert json.loads(done.stdout) == [[3, False, []], [None, True, []]]


def test_a_job_that_cannot_be_started_has_an_end(tmp_path: Path) -> None:
    """When there is no place for the log the job ends with 126 and the system's reason, not lost and not running."""
    code = (
        "import json, os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from tools.remote import jobs, proc, supervisor, worker\n"
        "root, spec = sys.argv[2], {'id': 'j', 'run': 'true'}\n"
        "os.makedirs(root + '/jobs/j'); os.symlink('/no/such/folder/log', root + '/jobs/j/log')\n"
        "for name, text in (('spec.json', json.dumps(spec)), ('cmd.sh', 'true')):\n"
        "    open(root + '/jobs/j/' + name, 'w').write(text)\n"
        "forked = worker.start(lambda report: supervisor.supervise(root, spec, report))\n"
        "os.waitpid(forked.pid, 0)\n"
        "print(json.dumps(jobs.state(root, 'j', proc.boot_id())))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, os.getcwd(), str(tmp_path)], capture_output=True, check=True)
    state = json.loads(done.stdout)
    assert (state["state"], state["rc"]) == ("exited", 126)
    assert "cannot start: [Errno 2] No such file or directory" in state["reason"]


def test_many_watched_jobs_leave_descriptors_for_other_work(tmp_path: Path) -> None:
    """Beyond the number of pidfds that may be open, jobs are watched by looking, and their ends are told as well."""
    for name in ("a", "b", "c"):
        folder = tmp_path / "jobs" / name
        folder.mkdir(parents=True)
        (folder / "run").write_text(json.dumps({"pid": ME.pid, "ticks": ME.ticks, "boot": BOOT}))
        holder = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
        assert linux.try_lock(holder)
    told: list[dict[str, object]] = []
    with selectors.DefaultSelector() as selector:
        watcher = watch.Watcher(str(tmp_path), BOOT, selector, told.extend, most=2)
        watcher.add(["a", "b", "c"])
        assert len(selector.get_map()) == 2
        (tmp_path / "jobs" / "c" / "exit").write_text('{"rc": 3}')
        watcher.tick()
        watcher.remove(["a", "b"])
    assert [(event["kind"], event["state"]["rc"]) for event in told] == [("exit", 3)]  # type: ignore[index]


def test_a_sign_seen_while_the_disk_was_full_is_told_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is looked for once and recorded as soon as a record can be written; a log that comes late is no end."""
    (tmp_path / "ready").mkdir()  # nothing can be renamed to it
    steps = [lambda: (tmp_path / "log").write_text("up\n"), (tmp_path / "ready").rmdir]
    monkeypatch.setattr(ready.time, "sleep", lambda seconds: steps.pop(0)())
    ready.await_ready(str(tmp_path), ready.look_for(str(tmp_path), {"log": "^up"}))
    assert json.loads((tmp_path / "ready").read_text())["at"] > 0
