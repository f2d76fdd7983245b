"""Jobs over both servers: each starts at most once, ends with the truth, and leaves nothing behind when killed."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from tests.hosting import end_jobs, ended, gone, living, oldest_python, record, started, told
from tools.hostkeys import HostSpec
from tools.jobs import JobSpec, JobState, describe_end, failure_kind
from tools.remote import proc
from tools.ssh import Host

pytest_plugins = ("tests.servers",)
pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("true", "exit code 0"),
        ("exit 255", "exit code 255"),
        ("exit 300", "exit code 44"),
        ("kill -9 $$", "SIGKILL"),
        ("sh -c 'kill -9 $$'; exit $?", "exit code 137 (SIGKILL)"),
        ("kill -TERM $$", "SIGTERM"),
        ("syntax error (", "exit code 2"),
    ],
)
async def test_the_exit_is_what_the_host_recorded(host: Host, script: str, end: str) -> None:
    """255 is an exit code like any other, a signal has its name, and a shell's 137 is shown for what it is."""
    await host.launch([JobSpec("j", script)])
    state = (await ended(host, ["j"]))["j"]
    assert describe_end(state) == end
    assert state.duration is not None
    assert state.duration >= 0


async def test_what_a_job_is_given(host: Host, tmp_path: Path) -> None:
    """A job has its folder, its environment, no stdin, both outputs in one log, and a place for its result."""
    script = 'pwd; echo "$WORD-$TURNOUT_JOB"; echo err >&2; cat; echo \'{"answer": 42}\' > "$TURNOUT_OUTPUT"'
    await host.launch([JobSpec("j", script, cwd=str(tmp_path), env={"WORD": "a b'c\"$d"})])
    state = (await ended(host, ["j"]))["j"]
    piece = await host.read_log("j")
    assert piece.data.decode() == f"{tmp_path}\na b'c\"$d-j\nerr\n"
    assert (state.ok, state.output, state.log_size) == (True, {"answer": 42}, len(piece.data))


@pytest.mark.parametrize("text", ["[1]", "{", "x" * 2_000_000])
async def test_a_result_that_is_no_object_is_said_to_be_none(host: Host, text: str) -> None:
    """A damaged or huge output.json is an error to read about, not a result and not a crash."""
    await host.launch([JobSpec("j", f"head -c {len(text)} /dev/zero | tr '\\0' '{text[0]}' > $TURNOUT_OUTPUT")])
    state = (await ended(host, ["j"]))["j"]
    assert state.output is None
    assert state.output_error is not None
    assert "output.json" in state.output_error


async def test_a_folder_that_is_not_there_is_said_in_the_log(host: Host) -> None:
    """A command that cannot be started ends with 126 and says why where its output would be."""
    await host.launch([JobSpec("j", "true", cwd="/no/such/folder")])
    state = (await ended(host, ["j"]))["j"]
    assert (state.rc, "/no/such/folder" in state.tail) == (126, True)


async def test_sixteen_launches_of_one_id_are_one_run(spec: HostSpec, host: Host, tmp_path: Path) -> None:
    """Whoever launches an id, on however many connections, it runs once, and all are told of the same run."""
    job = JobSpec("once", f"echo $$ >> {tmp_path}/runs; echo ::progress 1; sleep 1000")
    states: list[JobState] = []

    async def launch(host: Host) -> None:
        states.extend(await host.launch([job]))

    async with Host(spec) as second, anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(launch, host)
            group.start_soon(launch, second)
    await told(host, "once", "progress")
    again = (await host.launch([job]))[0]
    assert sum(not state.already for state in states) == 1
    assert {state.refused for state in states} == {None}
    assert (again.already, again.state) == (True, "running")
    await host.kill(["once"], grace_s=0)
    assert len((tmp_path / "runs").read_text().split()) == 1


async def test_an_id_means_one_script_for_ever(host: Host) -> None:
    """Another script under a used id is refused, and the answer says what became of the first."""
    await host.launch([JobSpec("j", "exit 3")])
    await ended(host, ["j"])
    state = (await host.launch([JobSpec("j", "exit 4")]))[0]
    assert state.refused is not None
    assert (state.state, state.rc) == ("exited", 3)


async def test_a_kill_before_the_launch_prevents_it(host: Host, tmp_path: Path) -> None:
    """A launch that arrives after its kill starts nothing."""
    assert [state.cancelled for state in await host.kill(["late"])] == [True]
    state = (await host.launch([JobSpec("late", f"touch {tmp_path}/ran")]))[0]
    assert (state.already, state.cancelled, state.state) == (True, True, "exited")
    assert not (tmp_path / "ran").exists()


async def test_one_request_launches_many(host: Host) -> None:
    """A hundred jobs are launched together, each has its own exit code, and each end is told."""
    specs = [JobSpec(f"j{n}", f"exit {n}") for n in range(100)]
    states = await host.launch(specs)
    assert [state.id for state in states] == [spec.id for spec in specs]
    assert {int(job[1:]): state.rc for job, state in (await ended(host, [s.id for s in specs])).items()} == {
        n: n for n in range(100)
    }


async def test_a_timeout_is_kept_by_the_host(host: Host) -> None:
    """A job that exceeds its time is ended where it runs, and the record says so."""
    await host.launch([JobSpec("j", "trap '' TERM; sleep 1000 & wait; sleep 1000", timeout_s=0.3, grace_s=0.2)])
    state = (await ended(host, ["j"]))["j"]
    assert (state.timed_out, state.signal, state.leftovers) == (True, "SIGKILL", ())


TERM_PROOF = """
trap '' TERM
export -n TURNOUT_JOB
python3 - <<'PY' &
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        break
signal.pause()
PY
setsid sh -c 'trap "" TERM; echo ::progress 1; while :; do sleep 1000; done' &
wait
while :; do sleep 1000; done
"""


async def test_a_tree_that_ignores_term_and_runs_away_is_ended(host: Host) -> None:
    """Neither a trap, nor a session of its own, nor an environment without the cookie saves a process from a kill."""
    await started(host, JobSpec("tree", TERM_PROOF))
    run = json.loads(record(host, "tree", "run").read_text())
    child = json.loads(record(host, "tree", "child").read_text())
    family = proc.Family("tree", child["pid"], child["ticks"], run["pid"])
    members = [p.pid for p in (await to_thread.run_sync(proc.families, host.spec.root, [family]))["tree"]]
    assert len(members) >= 4
    state = (await host.kill(["tree"], grace_s=0.2))[0]
    assert (state.state, state.cancelled, state.signal, state.leftovers) == ("exited", True, "SIGKILL", ())
    assert not await living(members)


async def test_a_kill_reaches_no_job_of_the_same_id_below_another_root(spec: HostSpec, host: Host) -> None:
    """Ids are unique below one root folder: one account may serve two of them, and each knows its own processes."""
    async with Host(replace(spec, root=f"{spec.root}-other")) as other:
        waiting = await started(other, JobSpec("j", "sleep 1000 & echo ::progress 1; wait"))
        await started(host, JobSpec("j", "sleep 1000 & echo ::progress 1; wait"))
        (killed,) = await host.kill(["j"])
        assert (killed.state, killed.cancelled, killed.signal) == ("exited", True, "SIGTERM")
        assert (await other.status(["j"]))[0].state == waiting.state
        (killed,) = await other.kill(["j"])
        assert (killed.state, killed.cancelled, killed.signal) == ("exited", True, "SIGTERM")


async def test_a_job_that_ends_names_what_it_left_running(host: Host) -> None:
    """A daemon that outlives its job is reported, left alone, and ended by a kill of that job."""
    await host.launch([JobSpec("j", "setsid sleep 1000 > /dev/null 2>&1 & echo $!")])
    state = (await ended(host, ["j"]))["j"]
    assert state.ok
    (left,) = state.leftovers
    assert await living([left])
    await host.kill(["j"], grace_s=0)
    assert not await living([left])


async def test_a_dead_supervisor_leaves_an_orphan_not_a_failure(host: Host) -> None:
    """Without its supervisor a command lives on as an orphan: told, not launched again, and killable."""
    await started(host, JobSpec("j", "echo ::progress 1; sleep 1000"))
    run = json.loads(record(host, "j", "run").read_text())
    os.kill(run["pid"], signal.SIGKILL)
    orphan = await told(host, "j", "orphan")
    assert orphan.state == "orphan"
    again = (await host.launch([JobSpec("j", "echo ::progress 1; sleep 1000")]))[0]
    assert (again.already, again.state) == (True, "orphan")
    state = (await host.kill(["j"], grace_s=0.2))[0]
    assert (state.state, state.cancelled, state.rc, state.leftovers) == ("exited", True, None, ())


async def test_a_job_without_record_or_processes_is_lost_with_a_reason(host: Host) -> None:
    """Supervisor and command killed together: lost, never failed, and the reason names the supervisor."""
    await started(host, JobSpec("j", "echo ::progress 1; exec sleep 1000"))
    run, child = (json.loads(record(host, "j", name).read_text()) for name in ("run", "child"))
    os.kill(run["pid"], signal.SIGSTOP)
    os.kill(child["pid"], signal.SIGKILL)
    os.kill(run["pid"], signal.SIGKILL)
    state = await told(host, "j", "lost")
    assert state.reason is not None
    assert f"the supervisor (pid {run['pid']}) was killed" in state.reason


@pytest.mark.parametrize("change", ["boot", "ticks"])
async def test_another_boot_or_another_process_is_not_the_job(host: Host, change: str) -> None:
    """After a reboot, or when the pids were given to others, nothing that runs is taken for the job."""
    await started(host, JobSpec("j", "echo ::progress 1; exec sleep 1000"))
    run, child = (json.loads(record(host, "j", name).read_text()) for name in ("run", "child"))
    await host.unwatch(["j"])
    if change == "boot":
        record(host, "j", "run").write_text(json.dumps({**run, "boot": "another"}))
        state = (await host.status(["j"]))[0]
        assert (state.state, state.reason) == ("lost", "reboot: the job ran before the host's last start")
        record(host, "j", "run").write_text(json.dumps(run))
    else:
        os.kill(run["pid"], signal.SIGKILL)
        assert await gone(run["pid"])
        record(host, "j", "child").write_text(json.dumps({**child, "ticks": child["ticks"] - 1}))
        (Path(host.spec.root) / "jobs" / "j").rename(Path(host.spec.root) / "jobs" / "other")
        state = (await host.status(["other"]))[0]  # the cookie says `j`, the pid is another process: no trace is left
        assert state.state == "lost"
        os.kill(child["pid"], signal.SIGKILL)


@pytest.mark.parametrize("sign", ["log", "file", "http"])
async def test_a_server_is_ready_when_it_says_so(host: Host, tmp_path: Path, sign: str) -> None:
    """Ready is told once the log line, the file or the URL is there; the job runs on, and stays ready on a new look."""
    script = (
        "import http.server, pathlib\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n"
        f"pathlib.Path('{tmp_path}/port').write_text(str(server.server_port))\n"
        "print('Uvicorn running', flush=True)\n"
        "server.serve_forever()\n"
    )
    if sign == "http":
        await started(host, JobSpec("first", f"echo ::progress 1; python3 - <<'E'\n{script}E\n", cwd=str(tmp_path)))
        while not (tmp_path / "port").exists():
            await anyio.lowlevel.checkpoint()
        ready = {"http": f"http://127.0.0.1:{(tmp_path / 'port').read_text()}/"}
        await host.launch([JobSpec("j", "sleep 1000", ready=ready)])
    else:
        ready = {"log": "Uvicorn (running|up)"} if sign == "log" else {"file": f"{tmp_path}/port"}
        await host.launch([JobSpec("j", f"python3 - <<'E'\n{script}E\n", ready=ready, cwd=str(tmp_path))])
    state = await told(host, "j", "ready")
    assert state.ready_at is not None
    assert [s.state for s in await host.status(["j"])] == ["ready"]


@pytest.mark.parametrize(
    ("sign", "said"),
    [
        ({"log": "a++"}, "Python 3.8"),
        ({"log": "(?>a)b"}, "`(?>a)b`"),
        ({"log": "(?u)up"}, "bytes pattern"),
        ({"http": "http://[::1/"}, "Invalid IPv6"),
        ({"http": "http://127.0.0.1:port/"}, "cannot be asked"),
        ({"http": "http://a..b/"}, "cannot be asked"),
        ({"http": "http://127.0.0.1/ü"}, "cannot be asked"),
        ({"http": 8000}, "no text"),
    ],
)
async def test_a_readiness_check_that_this_host_cannot_do_is_refused(
    spec: HostSpec, sign: dict[str, str], said: str
) -> None:
    """What the driver's Python can read and the host's cannot is said at the launch; nothing is started or stored."""
    async with Host(replace(spec, python=oldest_python())) as host:
        (state,) = await host.launch([JobSpec("j", "sleep 1000", ready=sign)])
        assert state.refused is not None
        assert said in state.refused
        assert [s.state for s in await host.status(["j"])] == ["unknown"]


async def test_a_launch_is_repeated_across_an_upgrade(host: Host) -> None:
    """A key that another version of us writes without a value makes no other spec; another script does."""
    await host.launch([JobSpec("j", "exit 3")])
    await ended(host, ["j"])
    stored = json.loads(record(host, "j", "spec.json").read_text())
    del stored["max_log"]
    record(host, "j", "spec.json").write_text(json.dumps({**stored, "later": None}))
    (again,) = await host.launch([JobSpec("j", "exit 3")])
    assert (again.already, again.refused, again.rc) == (True, None, 3)
    (other,) = await host.launch([JobSpec("j", "exit 4")])
    assert other.refused == "the id `j` belongs to another spec; a new attempt needs a new id"


async def test_progress_is_the_last_thing_said(host: Host) -> None:
    """Numbers of the last `::progress` line and the last line of the log come with a running job."""
    await host.launch([JobSpec("j", "printf '::progress 1/10 steps\\n::progress 4/10 steps\\nloss 0.5'; sleep 1000")])
    state = await told(host, "j", "progress")
    assert state.progress is not None
    assert (state.progress.done, state.progress.total, state.progress.unit) == (4, 10, "steps")
    assert state.progress.line == "loss 0.5"


async def test_cleaning_takes_only_what_has_ended(host: Host) -> None:
    """A running job's directory is never deleted; an ended one's is, and its id is unknown afterwards."""
    await host.launch([JobSpec("done", "true"), JobSpec("busy", "sleep 1000")])
    await ended(host, ["done"])
    assert list(await host.clean(["done", "busy"])) == ["busy"]
    assert [s.state for s in await host.status(["done", "busy"])] == ["unknown", "running"]


async def test_jobs_outlive_the_driver(spec: HostSpec) -> None:
    """When the driver goes away nothing of it stays on the host but its jobs, and a new driver finds them."""
    async with Host(spec) as first:
        await started(first, JobSpec("j", "echo ::progress 1; sleep 1000"))
        serving = (await first.hello()).pid
    assert await gone(serving)
    async with Host(spec) as second:
        assert [s.state for s in await second.status(["j"])] == ["running"]
        await end_jobs(second)


async def test_the_remote_half_runs_on_the_oldest_python(spec: HostSpec) -> None:
    """All of it works on the oldest Python that is promised."""
    async with Host(replace(spec, python=oldest_python())) as host:
        assert (await host.hello()).python.startswith(("3.8", "3.9", "3.10"))
        await host.launch([JobSpec("j", "echo hi; exit 3", ready={"log": "hi"}), JobSpec("k", "sleep 1000")])
        assert (await ended(host, ["j"]))["j"].rc == 3
        assert (await host.run("cat", stdin=b"x")).stdout == b"x"
        assert (await host.kill(["k"], 0.1))[0].cancelled
        assert (await host.probe())["cpus"] >= 1


async def test_large_results_of_many_jobs_are_all_told(host: Host) -> None:
    """Results of nearly a megabyte each come through, for one question about all of them."""
    script = 'printf \'{"x": "%s"}\' "$(head -c 900000 /dev/zero | tr \'\\0\' z)" > "$TURNOUT_OUTPUT"'
    ids = [f"j{n}" for n in range(20)]
    await host.launch([JobSpec(job, script) for job in ids])
    await ended(host, ids)
    states = await host.status(ids)
    assert [len(state.output["x"]) for state in states if state.output] == [900_000] * 20


async def test_a_script_that_cannot_be_written_is_refused(host: Host) -> None:
    """Text that has no bytes is refused with the reason, and the id stays free."""
    (state,) = await host.launch([JobSpec("j", "echo \ud800")])
    assert state.refused is not None
    assert "surrogates" in state.refused
    await host.launch([JobSpec("j", "exit 5")])
    assert (await ended(host, ["j"]))["j"].rc == 5


async def test_the_oom_killers_work_is_named(host: Host) -> None:
    """A job that the kernel killed for memory is `oom`, with the kernel's own line as evidence."""
    group = f"/sys/fs/cgroup/memory/turnout-{os.getpid()}"
    try:
        os.mkdir(group)
    except OSError as error:
        pytest.skip(f"no memory control group to be had here: {error}")
    try:
        script = (
            f"echo 30M > {group}/memory.limit_in_bytes && echo $$ > {group}/cgroup.procs && "
            "exec python3 -c 'x = bytearray(10**9)'"
        )
        await host.launch([JobSpec("j", script)])
        state = (await ended(host, ["j"]))["j"]
        assert (state.signal, failure_kind(state)) == ("SIGKILL", "oom")
        assert state.oom is not None
        assert "Killed process" in state.oom
    finally:
        os.rmdir(group)
