"""Whole runs from outside: real processes, the embedded SSH server, jobs that are really there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def turnout(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent", *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def begin(*argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "agent", *argv],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def until(process: subprocess.Popen[str], wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Read JSON lines until one is as wanted."""
    assert process.stdout is not None
    for line in process.stdout:
        said: dict[str, Any] = json.loads(line)
        if wanted(said):
            return said
    raise AssertionError(f"ended first: {process.stderr.read() if process.stderr else ''}")


def job_runs(said: dict[str, Any]) -> bool:
    return said.get("kind") == "job.state" and said.get("state") == "running"


def last(text: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(text.splitlines()[-1])
    return result


def statuses(outcome: dict[str, Any]) -> dict[str, str]:
    return {todo: info["status"] for todo, info in outcome["todos"].items()}


def playbook(tmp_path: Path, steps: str) -> str:
    path = tmp_path / "p.yaml"
    path.write_text(f"name: p\nsteps:\n{steps}")
    return str(path)


def of_this_test(root: Path) -> list[psutil.Process]:
    """Living processes whose environment or open log belongs to this test's host folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(root) in process.environ().get("TURNOUT_ROOT", "") and "TURNOUT_JOB" in process.environ():
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Whatever a test does, its jobs are gone afterwards."""
    yield
    for process in of_this_test(tmp_path / "root"):
        process.kill()


def test_hedge_takes_the_first_success_and_cancels_the_other(tmp_path: Path) -> None:
    """The example of a race: one wins, the loser's job is proved gone."""
    outcome = last(turnout("run", str(EXAMPLES / "hedge.yaml"), "--json").stdout)
    assert outcome["status"] == "completed"
    assert statuses(outcome)["vllm"] == "cancelled"
    assert outcome["todos"]["engine"]["result"]["winner"] == "sglang"
    assert of_this_test(tmp_path / "root") == []


def test_contingency_takes_the_other_branch_when_the_gate_fails() -> None:
    """The example of a gate, both ways."""
    failing = last(turnout("run", str(EXAMPLES / "contingency.yaml"), "--json").stdout)
    holding = last(turnout("run", str(EXAMPLES / "contingency.yaml"), "--set", "enough=0.5", "--json").stdout)
    assert statuses(failing)["serve_plain"] == "completed"
    assert statuses(failing)["serve_drafter"] == "skipped"
    assert statuses(holding)["serve_plain"] == "skipped"
    assert statuses(holding)["serve_drafter"] == "completed"


def test_fanout_leases_each_gpu_to_one_job_at_a_time() -> None:
    """The example of a fan-out: more jobs than cards, and no two on one card at once."""
    process = turnout("run", str(EXAMPLES / "fanout.yaml"), "--json")
    assert last(process.stdout)["status"] == "completed"
    held: set[tuple[str, int]] = set()
    cards: dict[str, list[tuple[str, int]]] = {}
    for said in map(json.loads, process.stdout.splitlines()):
        if said.get("kind") == "job.submitted":
            cards[said["id"]] = [(said["host"], gpu) for gpu in said["gpus"]]
            assert not held.intersection(cards[said["id"]])
            held.update(cards[said["id"]])
        elif said.get("kind") == "job.state" and said["state"] == "exited":
            held.difference_update(cards[said["id"]])
    assert sum(bool(c) for c in cards.values()) == 6


def test_ctrl_c_once_stops_dispatching_and_the_job_goes_on(tmp_path: Path) -> None:
    """The first interrupt leaves jobs running and says how to come back; resume finds the very same job."""
    steps = """
  - {id: a, job: {host: local, run: "echo once >> $TURNOUT_ROOT/ran; sleep 2"}}
  - {id: b, after: a, job: {host: local, run: "true"}}
"""
    process = begin("run", playbook(tmp_path, steps), "--json")
    job = until(process, job_runs)["id"]
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 3
    assert last(out)["status"] == "paused"
    assert [p.environ()["TURNOUT_JOB"] for p in of_this_test(tmp_path / "root")]
    resumed = last(turnout("resume", "--json").stdout)
    assert statuses(resumed) == {"a": "completed", "b": "completed"}
    assert (tmp_path / "root" / "ran").read_text() == "once\n"
    assert job.endswith(".a.1")


def test_ctrl_c_twice_leaves_at_once(tmp_path: Path) -> None:
    """The second interrupt does not wait for anything, not even for a host that does not answer."""
    steps = '  - {id: a, job: {host: local, run: "sleep 30"}}\n'
    process = begin("run", playbook(tmp_path, steps), "--json")
    until(process, job_runs)
    process.send_signal(signal.SIGSTOP)  # so that both signals are there when it looks
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode in (3, 128 + signal.SIGTERM, 130)


def test_a_killed_driver_is_resumed_and_its_job_found_again(tmp_path: Path) -> None:
    """kill -9 in the middle: the job runs on, resume adopts it, and it ran once."""
    steps = """
  - {id: a, job: {host: local, run: "echo once >> $TURNOUT_ROOT/ran; sleep 1.5; echo '{\\"n\\": 1}' > $TURNOUT_OUTPUT"}}
  - {id: ok, after: a, gate: "todos.a.n == 1"}
"""
    process = begin("run", playbook(tmp_path, steps), "--json")
    until(process, job_runs)
    process.kill()
    process.communicate()
    resumed = turnout("resume", "--json")
    assert statuses(last(resumed.stdout)) == {"a": "completed", "ok": "completed"}
    assert (tmp_path / "root" / "ran").read_text() == "once\n"


def test_a_second_driver_is_told_who_owns_the_session(tmp_path: Path) -> None:
    """Two terminals, one session: the second may look, not drive."""
    process = begin("run", playbook(tmp_path, '  - {id: a, job: {host: local, run: "sleep 30"}}\n'), "--json")
    until(process, job_runs)
    try:
        second = turnout("resume")
        assert second.returncode == 4
        assert f"driven by process {process.pid}" in second.stderr
        todo = json.loads(turnout("todo", "--json").stdout)
        assert [(t["id"], t["status"]) for t in todo] == [("a", "in_progress")]
    finally:
        process.kill()
        process.communicate()


def test_local_leaves_no_process_behind(tmp_path: Path) -> None:
    """After a run nothing of it is alive: no server, no remote half, no supervisor."""
    before = {p.pid for p in psutil.process_iter()}
    assert turnout("run", str(EXAMPLES / "contingency.yaml")).returncode == 0
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = [p for p in psutil.process_iter() if p.pid not in before and str(tmp_path) in " ".join(cmdline(p))]
        if not left:
            return
    raise AssertionError([cmdline(p) for p in left])


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def test_a_failing_step_is_named_with_its_reason_and_retry_mends_it(tmp_path: Path) -> None:
    """The operator sees which step failed and how; after mending the host, `resume --retry` goes on from there."""
    steps = """
  - {id: a, job: {host: local, run: "echo a >> $TURNOUT_ROOT/ran"}}
  - {id: b, after: a, job: {host: local, run: "test -e $TURNOUT_ROOT/mended"}}
  - {id: c, after: b, job: {host: local, run: "true"}}
"""
    failed = turnout("run", playbook(tmp_path, steps), "--json")
    assert failed.returncode == 1
    outcome = last(failed.stdout)
    assert statuses(outcome) == {"a": "completed", "b": "failed", "c": "skipped"}
    assert outcome["todos"]["b"]["reason"] == "exit code 1"
    (tmp_path / "root" / "mended").touch()
    mended = turnout("resume", outcome["session"], "--retry", "--json")
    assert statuses(last(mended.stdout)) == {"a": "completed", "b": "completed", "c": "completed"}
    assert (tmp_path / "root" / "ran").read_text() == "a\n"


def test_a_question_without_a_terminal_is_a_no(tmp_path: Path) -> None:
    """A script that forgot `--yes` does nothing it was not allowed to."""
    steps = """
  - {id: door, ask: "Stop the server?"}
  - {id: go, after: door, job: {host: local, run: "touch $TURNOUT_ROOT/went"}}
"""
    outcome = last(turnout("run", playbook(tmp_path, steps), "--json").stdout)
    assert statuses(outcome) == {"door": "failed", "go": "skipped"}
    assert not (tmp_path / "root" / "went").exists()
    allowed = last(turnout("run", playbook(tmp_path, steps), "--json", "--yes").stdout)
    assert statuses(allowed) == {"door": "completed", "go": "completed"}


def test_the_payload_is_a_package_on_the_host_and_the_report_comes_back(tmp_path: Path) -> None:
    """A step imports what the playbook ships; the report named by the playbook lies here when the run is over."""
    folder = tmp_path / "book"
    (folder / "payload").mkdir(parents=True)
    (folder / "payload" / "__init__.py").write_text("")
    (folder / "payload" / "write.py").write_text(
        "import os, pathlib\npathlib.Path('report').mkdir()\npathlib.Path('report/report.md').write_text('# hello')\n"
    )
    (folder / "playbook.yaml").write_text(
        "name: book\nreport: report/report.md\nsteps:\n"
        '  - {id: a, job: {host: local, run: "{{ python }} -m book.write"}}\n'
    )
    outcome = last(turnout("run", str(folder), "--json").stdout)
    assert outcome["status"] == "completed", outcome
    assert Path(outcome["report"]).read_text() == "# hello"


def test_a_host_that_was_never_reached_fails_the_job_and_says_what_to_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is unknown about a job that was never sent: a misspelt host does not keep the run waiting for ever."""
    monkeypatch.setenv("TURNOUT_CONNECT_TIMEOUT", "1")
    steps = '  - {id: a, job: {host: nobody@127.0.0.1, run: "true"}}\n'
    monkeypatch.setenv("HOME", str(tmp_path))
    outcome = last(turnout("run", playbook(tmp_path, steps), "--json").stdout)
    assert statuses(outcome) == {"a": "failed"}
    assert "not started on `nobody@127.0.0.1`" in outcome["todos"]["a"]["reason"]
    assert os.environ["HOME"] == str(tmp_path)
