"""What programs may rely on: exit codes, JSON on stdout, remarks on stderr, and no question without a terminal."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from agent.cli_frame import guard
from state import owner
from state.changes import host_saved
from state.db import Database
from state.errors import Unreachable
from state.log import append_system
from tests.cli_helpers import COMMAND, EXAMPLES, ROOT, SLEEPS, begin, job_runs, last, playbook, turnout, until


def test_a_run_that_completes_exits_with_0_and_ends_with_its_outcome() -> None:
    """The last line of `run --json` is the outcome, with the result of every todo; each line before is an object."""
    done = turnout("run", str(EXAMPLES / "contingency.yaml"), "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert lines[0]["kind"] == "session"
    assert {"todo.status", "job.submitted", "job.state", "session.status"} <= {line.get("kind") for line in lines}
    outcome = lines[-1]
    assert set(outcome) == {"session", "status", "reason", "todos", "report"}
    assert outcome["session"] == lines[0]["session"]
    assert outcome["status"] == "completed"
    assert outcome["todos"]["bench"] == {
        "status": "completed",
        "result": {"multiplier": 0.66, "accept_length": 1.3},
        "reason": None,
    }


def test_a_run_that_fails_exits_with_1_and_names_the_log(tmp_path: Path) -> None:
    """A failed todo is told with its reason and with the command that shows its log."""
    done = turnout("run", playbook(tmp_path, "  - {id: bad, job: {host: local, run: 'exit 7'}}\n"))
    assert done.returncode == 1
    assert "exit code 7" in done.stdout
    session = done.stdout.split()[1].rstrip(";")
    assert f"turnout logs {session}.bad.1" in done.stdout
    assert f"turnout resume {session} --retry" in done.stdout


def test_a_failed_job_is_told_with_its_last_words(tmp_path: Path) -> None:
    """The end of a run shows the last line of a failed job's log, however short the job was, without its controls."""
    steps = (
        "  - {id: bad, job: {host: local, run: 'echo loading; printf \"\\033[31mno such model\\033[0m\\n\"; exit 7'}}\n"
    )
    done = turnout("run", playbook(tmp_path, steps))
    end = done.stdout[done.stdout.index("✘ failed") :]
    assert "its log ends with: no such model\n" in end
    assert "loading" not in end


def test_a_question_that_nobody_could_be_asked_names_yes(tmp_path: Path) -> None:
    """Without a terminal a question is answered with no; the end of the run says what answers it with yes."""
    path = playbook(tmp_path, "  - {id: leave, ask: 'May it be stopped?'}\n")
    done = turnout("run", path)
    assert done.returncode == 1
    assert "nobody was there to ask about leave: `--yes` answers every question with yes" in done.stdout
    session = done.stdout.split()[1].rstrip(";")
    again = turnout("resume", session, "--retry", "--yes")
    assert f"turnout resume {session} --retry --yes" in done.stdout
    assert (again.returncode, "nobody" in again.stdout) == (0, False)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["run", "no-such-playbook"], "no playbook is named `no-such-playbook`"),
        (["run", "hedge", "--bogus"], "No such option"),
        (["frobnicate"], "No such command"),
        (["run", str(EXAMPLES / "hedge.yaml"), "--set", "nonsense"], "`--set nonsense` has no `=`"),
        (["run", str(EXAMPLES / "hedge.yaml"), "--set", "vlm_seconds=1"], "did you mean `vllm_seconds`"),
        (["todo", "zzzz"], "no session `zzzz`"),
        (["resume"], "no unfinished session"),
        (["logs", "nothing"], "there is no session yet"),
        (["hosts", "probe"], "Missing argument"),
        (["hosts", "remove", "nobody"], "no host `nobody`"),
        (["hosts", "add", "local"], "`local` is this machine"),
        (["diagnose", "/no/such/file"], "cannot read `/no/such/file`"),
        (["translate", ""], "there is nothing to translate"),
        (["bench", "--url", "foo", "--set", "a=README.md"], "`--url foo` is no URL"),
        (["hosts", "add", "gpu1", "http://10.0.0.7"], "`http://10.0.0.7` is no address of a host"),
        (["translate", "README.md"], "no vLLM start was found in"),
    ],
)
def test_what_cannot_be_is_told_with_exit_code_2(argv: list[str], said: str) -> None:
    """A usage error says what was seen on stderr, without a traceback, and exits with 2."""
    Database.open().close()
    done = turnout(*argv)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_with_json_an_error_is_the_last_line_of_stdout_too() -> None:
    """A program that reads stdout finds the error and the hint there."""
    done = turnout("run", "no-such-playbook", "--json")
    assert done.returncode == 2
    assert set(last(done.stdout)) == {"error", "hint"}
    assert "no-such-playbook" in last(done.stdout)["error"]


def test_an_unusable_database_is_told_by_name(tmp_path: Path) -> None:
    """`--db` before or after the command is the database that is meant."""
    (tmp_path / "taken").mkdir()
    for argv in (["--db", str(tmp_path / "taken"), "sessions"], ["sessions", "--db", str(tmp_path / "taken")]):
        done = turnout(*argv)
        assert done.returncode == 2
        assert str(tmp_path / "taken") in done.stderr


def test_a_host_that_nobody_knows_is_told_at_once(tmp_path: Path) -> None:
    """A name that was not added and leads to no address begins no session; the hosts that are known are told."""
    Database.open().write(
        lambda conn: append_system(conn, [host_saved("gpu1.invalid", address="127.0.0.1", settings={}, key="")], 1.0)
    )
    done = turnout("run", str(EXAMPLES / "contingency.yaml"), "--host", "gpu2.invalid")
    assert done.returncode == 2
    assert "there is no host `gpu2.invalid`" in done.stderr
    assert "known are `gpu1.invalid`, `local`; did you mean `gpu1.invalid`?" in done.stderr
    assert "`turnout hosts add gpu2.invalid [USER@]ADDRESS`" in done.stderr
    assert turnout("sessions", "--json").stdout == "[]\n"


def test_a_host_that_a_result_names_and_nobody_knows_fails_its_todo(tmp_path: Path) -> None:
    """A job for a host of which only a result told the name is refused as soon as the name leads nowhere."""
    steps = (
        """  - {id: find, job: {host: local, run: 'echo ''{"h": "gpu2.invalid"}'' > "$TURNOUT_OUTPUT"'}}\n"""
        """  - {id: use, after: find, job: {host: "{{ todos.find.h }}", run: 'true'}}\n"""
    )
    todo = last(turnout("run", playbook(tmp_path, steps), "--json").stdout)["todos"]["use"]
    assert todo["status"] == "failed"
    assert "there is no host `gpu2.invalid`" in todo["reason"]
    assert "turnout hosts add" in todo["reason"]


def test_a_dry_run_says_that_a_host_is_unknown(tmp_path: Path) -> None:
    """What a run would refuse is told beside what it would do; a host in `~/.ssh/config` or an address is known."""
    where = ("run", str(EXAMPLES / "contingency.yaml"), "--dry-run", "--host")
    assert "there is no host `gpu2.invalid`" in turnout(*where, "gpu2.invalid").stdout
    assert json.loads(turnout(*where, "gpu2.invalid", "--json").stdout)["unknown_hosts"] == ["gpu2.invalid"]
    assert json.loads(turnout(*where, "op@127.0.0.1", "--json").stdout)["unknown_hosts"] == []
    assert not (tmp_path / "turnout.db").exists()


def test_a_model_that_cannot_be_reached_begins_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that is no URL is told before a session is stored."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "foo")
    done = turnout("run", str(EXAMPLES / "contingency.yaml"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "`ANTHROPIC_BASE_URL`: `foo` is no URL" in done.stderr
    monkeypatch.delenv("ANTHROPIC_BASE_URL")
    assert turnout("sessions", "--json").stdout == "[]\n"


READING = [
    "sessions", "todo", "jobs", "logs x", "kill x", "watch", "replay --plain", "replay --check", "resume", "export",
    "view --no-browser", "chat abcd2345", "hosts list", "hosts remove x",
]  # fmt: skip


@pytest.mark.parametrize("command", READING)
def test_what_only_reads_makes_no_database(command: str, tmp_path: Path) -> None:
    """A misspelt `--db` is told together with the place of the usual one, and no file is left behind."""
    done = turnout(*command.split(), "--db", str(tmp_path / "misspelt.db"))
    assert done.returncode == 2
    assert f"there is no database `{tmp_path / 'misspelt.db'}`" in done.stderr
    assert f"`{tmp_path / 'state' / 'turnout' / 'turnout.db'}`" in done.stderr
    assert not (tmp_path / "misspelt.db").exists()


def test_an_sqlite_url_is_made_no_more_than_a_path_is(tmp_path: Path) -> None:
    """The file in a URL is looked for as one in a path is; what begins something makes it, for its owner only."""
    url = f"sqlite:///{tmp_path / 'new.db'}"
    assert "there is no database" in turnout("sessions", "--db", url).stderr
    Database.open(url).close()
    assert (tmp_path / "new.db").stat().st_mode & 0o077 == 0
    assert turnout("sessions", "--json", "--db", url).stdout == "[]\n"


def test_a_database_is_not_made_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """A misspelt folder of `--db` is told and not made, not even by what begins a session."""
    done = turnout("run", str(EXAMPLES / "contingency.yaml"), "--db", str(tmp_path / "no" / "such" / "t.db"))
    assert done.returncode == 2
    assert f"there is no folder `{tmp_path / 'no' / 'such'}`" in done.stderr
    assert not (tmp_path / "no").exists()


def test_the_usual_database_is_made_by_whoever_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no database is named none can be misspelt: a first `turnout sessions` says that there is none yet."""
    monkeypatch.delenv("TURNOUT_DB")
    assert "no session yet" in turnout("sessions").stdout
    assert (tmp_path / "state" / "turnout" / "turnout.db").exists()


def test_doctor_says_that_there_is_no_database(tmp_path: Path) -> None:
    """A database that is not there is a warning with the place of the usual one; looking for it makes none."""
    found = {check["check"]: check for check in json.loads(turnout("doctor", "--json").stdout)}
    assert found["database"]["state"] == "warn"
    assert "there is no database" in found["database"]["said"]
    assert not (tmp_path / "turnout.db").exists()


def test_a_session_that_another_process_drives_is_busy() -> None:
    """`resume` of a driven session says who owns it and how to look on, and exits with 4."""
    turnout("run", str(EXAMPLES / "contingency.yaml"))
    db = Database.open()
    session = json.loads(turnout("sessions", "--json").stdout)[0]["id"]
    db.write(lambda conn: conn.exec_driver_sql("UPDATE sessions SET status = 'running'"))
    db.write(lambda conn: owner.acquire(conn, session, owner.this_process(), time.time()))
    db.close()
    done = turnout("resume", session)
    assert done.returncode == 4
    assert f"driven by process {os.getpid()}" in done.stderr
    assert f"turnout watch {session}" in done.stderr


def test_a_host_that_cannot_be_reached_exits_with_5() -> None:
    """Nobody listens on port 1: the host is not added, and the error says what to try."""
    done = turnout("hosts", "add", "gpu1", "nobody@127.0.0.1:1", "--yes")
    assert done.returncode == 5
    assert "cannot connect to `gpu1` (`127.0.0.1`): `connection refused" in done.stderr
    assert "try `ssh -p 1 nobody@127.0.0.1 true`" in done.stderr
    assert turnout("hosts", "list", "--json").stdout == "[]\n"


def test_ctrl_c_pauses_and_resume_goes_on(tmp_path: Path) -> None:
    """The first SIGINT ends `run` with 3 and leaves the job running; `resume` finds it and completes."""
    gate = tmp_path / "gate"
    step = f"  - {{id: slow, job: {{host: local, run: 'until [ -e {gate} ]; do sleep 0.05; done'}}}}\n"
    run = begin("run", playbook(tmp_path, step), "--json")
    until(run, job_runs)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 3
    assert last(out)["status"] == "paused"
    assert [s["state"] for s in json.loads(turnout("sessions", "--json").stdout)] == ["paused"]
    gate.touch()
    done = turnout("resume", "--json")
    assert done.returncode == 0, done.stderr
    assert last(done.stdout)["todos"]["slow"]["status"] == "completed"
    assert len(json.loads(turnout("jobs", "--json").stdout)) == 1


def test_a_killed_run_is_seen_as_interrupted(tmp_path: Path) -> None:
    """After `kill -9` of the driver, `sessions` says that nobody drives the session and how to go on."""
    run = begin("run", playbook(tmp_path, SLEEPS), "--json")
    session = until(run, lambda said: said["kind"] == "session")["session"]
    until(run, job_runs)
    run.kill()
    run.communicate(timeout=60)
    (row,) = json.loads(turnout("sessions", "--json").stdout)
    assert (row["id"], row["status"], row["state"], row["owner"]) == (session, "running", "interrupted", None)
    assert f"turnout resume {session}" in turnout("sessions").stdout
    assert turnout("kill", "slow", "--yes").returncode == 0


def test_an_ended_session_is_not_run_again() -> None:
    """`resume` of a session that has ended tells the same outcome with the same exit code, and starts nothing."""
    ran = turnout("run", str(EXAMPLES / "contingency.yaml"), "--json")
    session = last(ran.stdout)["session"]
    done = turnout("resume", session, "--json")
    assert (done.returncode, last(done.stdout)) == (0, last(ran.stdout))
    assert "nothing to do" in turnout("resume", session).stdout
    assert len(json.loads(turnout("jobs", "--json").stdout)) == 3


def test_retry_tries_failed_todos_again(tmp_path: Path) -> None:
    """`resume --retry` runs what failed, and not what had completed."""
    flag = tmp_path / "flag"
    steps = (
        "  - {id: good, job: {host: local, run: 'true'}}\n"
        f"  - {{id: bad, after: good, job: {{host: local, run: 'test -e {flag}'}}}}\n"
    )
    assert turnout("run", playbook(tmp_path, steps)).returncode == 1
    flag.touch()
    assert turnout("resume", "--retry").returncode == 0
    assert sorted(job["todo"] for job in json.loads(turnout("jobs", "--json").stdout)) == ["bad", "bad", "good"]


def test_a_dry_run_stores_and_starts_nothing(tmp_path: Path) -> None:
    """`--dry-run` shows every todo in order, its commands filled in as far as they are known; no session exists."""
    shown = turnout("run", str(EXAMPLES / "contingency.yaml"), "--set", "multiplier=1.5", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert 'echo \'{"multiplier": 1.5' in shown.stdout
    assert "{{ todos.bench.multiplier }}x, less than 1.0x" in shown.stdout
    planned = json.loads(turnout("run", str(EXAMPLES / "contingency.yaml"), "--dry-run", "--json").stdout)
    assert [todo["id"] for todo in planned["todos"]][:2] == ["bench", "worth_it"]
    assert planned["todos"][3]["after"] == [{"todo": "worth_it", "on": "failure"}]
    assert not (tmp_path / "turnout.db").exists()


def test_lists_are_one_json_array_each() -> None:
    """`sessions`, `todo`, `jobs`, `hosts list` and `playbook list` print one array, whatever is in it."""
    turnout("run", str(EXAMPLES / "hedge.yaml"), "--set", "sglang_seconds=0")
    found = {
        name: json.loads(turnout(*name.split(), "--json").stdout)
        for name in ("sessions", "todo", "jobs", "hosts list", "playbook list")
    }
    assert all(isinstance(rows, list) for rows in found.values())
    assert found["sessions"][0]["todos"] == {"done": 4, "total": 4}
    engine = next(todo for todo in found["todo"] if todo["id"] == "engine")
    assert engine["after"] == [{"todo": "vllm", "on": "success"}, {"todo": "sglang", "on": "success"}]
    assert engine["result"]["winner"] == "sglang"
    assert {"id", "session", "todo", "attempt", "host", "state", "rc", "signal", "gpus", "duration", "reason"} <= set(
        found["jobs"][0]
    )


def test_a_reader_that_leaves_does_not_change_the_outcome() -> None:
    """`turnout run --json | head -1` runs to its end, quietly, with the exit code of the run."""
    run = begin("run", str(EXAMPLES / "contingency.yaml"), "--json")
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.readline()
    run.stdout.close()
    assert (run.wait(timeout=60), run.stderr.read()) == (0, "")
    run.stderr.close()
    assert json.loads(turnout("sessions", "--json").stdout)[0]["status"] == "completed"


def test_a_bug_is_told_in_one_line_and_kept_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What nobody expected exits with 70; the traceback is in a file of the state directory, and not on the screen."""
    assert guard(lambda: 1 // 0, json=True) == 70
    shown = capsys.readouterr()
    assert "this is a bug in Turnout: ZeroDivisionError" in shown.err
    assert "Traceback" not in shown.err
    assert "ZeroDivisionError" in last(shown.out)["error"]
    (kept,) = (tmp_path / "state" / "turnout" / "bugs").iterdir()
    assert "Traceback" in kept.read_text(encoding="utf-8")
    assert kept.stat().st_mode & 0o077 == 0


def test_an_expected_error_is_found_within_a_task_group(capsys: pytest.CaptureFixture[str]) -> None:
    """What tasks that run side by side raise together is told by the error that says what to do."""

    def fails() -> int:
        raise ExceptionGroup("tasks", [ValueError("beside"), ExceptionGroup("inner", [Unreachable("no route")])])

    assert guard(fails, json=False) == 5
    assert capsys.readouterr().err == "error: no route\n"


def test_ctrl_c_elsewhere_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that only shows something and is interrupted says nothing and exits with 130."""

    def interrupted() -> int:
        raise KeyboardInterrupt

    assert guard(interrupted, json=False) == 130
    assert capsys.readouterr() == ("", "")


def test_a_broken_pipe_is_quiet() -> None:
    """`turnout sessions | true` prints no traceback."""
    turnout("run", str(EXAMPLES / "contingency.yaml"))
    done = subprocess.run(
        f"{' '.join(COMMAND)} todo --json | true; {' '.join(COMMAND)} sessions | true",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""


def test_doctor_finds_and_mends_a_table_that_is_not_what_the_log_says(tmp_path: Path) -> None:
    """A row that was changed behind the log's back is named; `--rebuild` puts it right, and all is well again."""
    turnout("run", str(EXAMPLES / "contingency.yaml"))
    with sqlite3.connect(tmp_path / "turnout.db") as raw:
        raw.execute("UPDATE todos SET reason = 'meddled' WHERE id = 'bench'")
    raw.close()
    found = {check["check"]: check for check in json.loads(turnout("doctor", "--json").stdout)}
    assert found["tables"]["state"] == "fail"
    assert "/bench in reason" in found["tables"]["said"]
    assert found["local"]["state"] == "ok"
    assert turnout("doctor").returncode == 1
    assert "was otherwise: todos" in turnout("doctor", "--rebuild").stdout
    assert turnout("doctor").returncode == 0
