"""Logs and kills from the command line, on jobs that really run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.cli_logs import HEAD_BYTES, TAIL_BYTES
from tests.cli_helpers import SLEEPS, begin, job_runs, playbook, turnout, until


def run(tmp_path: Path, script: str) -> str:
    """Run one job; its session."""
    step = "  - id: talk\n    job:\n      host: local\n      run: |\n"
    done = turnout("run", playbook(tmp_path, step + "".join(f"        {line}\n" for line in script.splitlines())))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()[1].rstrip(";")


def test_a_log_is_found_by_todo_job_or_a_beginning_of_either(tmp_path: Path) -> None:
    """All four ways to name the newest job of a todo show the same text, cleaned of control sequences."""
    session = run(tmp_path, r"printf '\033[31mred\033[0m\n'; printf '10%%\r100%%\n'; echo end")
    shown = {turnout("logs", name).stdout for name in ("talk", "ta", f"{session}.talk.1", f"{session}.ta")}
    assert shown == {"red\n100%\nend\n"}
    assert turnout("logs", "talk", "--raw").stdout.startswith("\033[31mred")


def test_an_ambiguous_name_lists_what_it_may_mean(tmp_path: Path) -> None:
    """Nothing is guessed: the candidates are named and the exit code is 2."""
    steps = "".join(f"  - {{id: talk_{n}, job: {{host: local, run: 'true'}}}}\n" for n in (1, 2))
    turnout("run", playbook(tmp_path, steps))
    done = turnout("logs", "talk")
    assert done.returncode == 2
    assert "`talk_1`, `talk_2`" in done.stderr


def test_a_long_log_shows_head_and_tail_with_exact_counts(tmp_path: Path) -> None:
    """What is left out is counted to the byte, and the command that shows it continues exactly there."""
    run(tmp_path, "seq 1 20000")
    whole = "".join(f"{n}\n" for n in range(1, 20001))
    shown = turnout("logs", "talk").stdout
    before, gap, after = shown.partition("--- ")
    gap, _, after = after.partition(" ---\n")
    assert whole.startswith(before)
    assert whole.endswith(after)
    left_out = len(whole) - len(before) - len(after)
    assert gap.startswith(f"{left_out:,} of {len(whole):,} bytes not shown")
    assert f"--offset {len(before)}`" in gap
    assert len(before) <= HEAD_BYTES
    assert len(after) <= TAIL_BYTES
    assert turnout("logs", "talk", "--offset", str(len(before))).stdout == whole[len(before) :]
    assert turnout("logs", "talk", "--raw", "--offset", "0").stdout == whole


@pytest.mark.parametrize(("lines", "expected"), [(0, ""), (1, "3\n"), (2, "2\n3\n"), (9, "1\n2\n3\n")])
def test_tail_shows_the_last_lines(tmp_path: Path, lines: int, expected: str) -> None:
    """`--tail N` is exactly the last N lines, or all there are."""
    run(tmp_path, "seq 1 3")
    assert turnout("logs", "talk", "--tail", str(lines)).stdout == expected


def test_an_offset_behind_the_end_is_an_error(tmp_path: Path) -> None:
    """Nothing is shown in place of what was asked for."""
    run(tmp_path, "echo short")
    done = turnout("logs", "talk", "--offset", "1000")
    assert (done.returncode, done.stdout) == (2, "")
    assert "which has 6 bytes" in done.stderr


def test_following_ends_when_the_job_ends(tmp_path: Path) -> None:
    """`logs -f` of a running job gives all of its log, also what comes later, and returns."""
    gate = tmp_path / "gate"
    step = (
        f"  - {{id: slow, job: {{host: local, run: 'echo one; until [ -e {gate} ]; do sleep 0.05; done; echo two'}}}}\n"
    )
    driver = begin("run", playbook(tmp_path, step), "--json")
    until(driver, job_runs)
    follower = begin("logs", "slow", "-f")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "one\n"
    gate.touch()
    assert follower.communicate(timeout=60)[0] == "two\n"
    assert follower.returncode == 0
    driver.communicate(timeout=60)
    assert driver.returncode == 0


def test_a_kill_wants_an_answer_or_yes(tmp_path: Path) -> None:
    """Without a terminal and without `--yes` nothing is killed; with it the job ends, and its session learns of it."""
    driver = begin("run", playbook(tmp_path, SLEEPS), "--json")
    until(driver, job_runs)
    refused = turnout("kill", "slow")
    assert refused.returncode == 2
    assert "add `--yes`" in refused.stderr
    assert json.loads(turnout("jobs", "--json").stdout)[0]["state"] == "running"
    killed = turnout("kill", "slow", "--yes", "--grace", "1")
    assert killed.returncode == 0, killed.stderr
    assert "no process of it is left" in killed.stdout
    driver.communicate(timeout=60)
    assert driver.returncode == 1
    (job,) = json.loads(turnout("jobs", "--json").stdout)
    assert (job["state"], job["cancel"]) == ("exited", "killed by the operator")
    assert "nothing to do" in turnout("kill", "slow", "--yes").stdout


def test_watching_ends_with_the_session(tmp_path: Path) -> None:
    """`watch` in another process tells what the driving one commits, and exits with the session's code."""
    gate = tmp_path / "gate"
    step = f"  - {{id: slow, job: {{host: local, run: 'until [ -e {gate} ]; do sleep 0.05; done; exit 4'}}}}\n"
    driver = begin("run", playbook(tmp_path, step), "--json")
    until(driver, job_runs)
    watcher = begin("watch")
    assert watcher.stdout is not None
    assert "looking on at session" in watcher.stdout.readline()
    gate.touch()
    out, _ = watcher.communicate(timeout=60)
    assert "exit code 4" in out
    assert watcher.returncode == 1
    driver.communicate(timeout=60)
