"""The chat in plain lines: everything but prose without a model, in a pipe and on a terminal, and how it is left."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from agent.scripted import ScriptedModel
from tests.cli_helpers import COMMAND, EXAMPLES, ROOT, SLEEPS, begin, job_runs, playbook, turnout, until
from tests.test_cli_terminal import Terminal, terminal  # noqa: F401 - the fixture

ASKS = "  - {id: leave, ask: 'Stop it?'}\n  - {id: stop, after: leave, job: {host: local, run: 'true'}}\n"


def chat(*lines: str, session: str = "") -> tuple[int, str]:
    """Run `turnout chat --plain` with these lines as its input; exit code and what it said."""
    done = turnout("chat", *([session] if session else []), "--plain", stdin="".join(f"{line}\n" for line in lines))
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def session_of(said: str) -> str:
    """The session that can be come back to."""
    found = re.search(r"turnout resume (\w+)", said)
    assert found is not None, said
    return found[1]


def test_a_pipe_runs_a_playbook_to_its_end_without_a_model() -> None:
    """The chat goes on after the end of its input until nothing moves, and its exit code is the work's success."""
    code, said = chat(f"/run {EXAMPLES / 'hedge.yaml'}")
    assert code == 0, said
    assert "hedge joined the graph" in said
    assert re.search(r"✔ engine completed", said)
    assert re.search(r"⊗ vllm cancelled .*lost the race `engine`", said)


def test_a_failure_that_nothing_answers_is_the_exit_code(tmp_path: Path) -> None:
    """A script sees that the work failed, and where."""
    code, said = chat(f"/run {playbook(tmp_path, '  - {id: bad, job: {host: local, run: exit 3}}')}")
    assert code == 1
    assert "✘ bad failed" in said


def test_prose_without_a_model_is_answered_once_with_the_lines_that_set_one_up() -> None:
    """Words are kept in the log; what is missing is said once, not with each sentence."""
    _, said = chat("vLLM is dead", "hello?")
    assert said.count("no model is set up") == 1
    assert "ANTHROPIC_API_KEY" in said
    log = json.loads(turnout("sessions", "--json").stdout)[0]
    assert log["title"] == "vLLM is dead"
    _, said = chat("/replay 1", session=log["id"])
    assert "vLLM is dead" in said
    assert "hello?" in said


def test_a_question_without_a_terminal_is_answered_with_no(tmp_path: Path) -> None:
    """Nobody is there to ask: the todo is refused, and the output says so."""
    code, said = chat(f"/run {playbook(tmp_path, ASKS)}")
    assert code == 1
    assert "no terminal to ask on" in said
    assert "leave failed" in said


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/nonsense", "there is no command `/nonsense`"),
        ("/todos", "did you mean `/todo`"),
        ("/run nothing", "no playbook is named `nothing`"),
        ("/run 'x", "close every quote"),
        ("/kill nothing", "no job or todo `nothing`"),
        ("/todo nothing", "no todo `nothing`"),
        ("/approve", "nothing is asked"),
        ("/export x.txt", "neither `.jsonl`"),
        ("/export no/such/x.md", "`mkdir -p no/such`"),
    ],
)
def test_a_mistake_is_told_and_nothing_ends(line: str, told: str) -> None:
    """A command that cannot be done says why and what to type; the chat goes on."""
    code, said = chat(line, "/session")
    assert told in said
    assert re.search(r"^session \w+: ", said, re.MULTILINE)
    assert code == 0


def test_commands_show_and_change_the_work(tmp_path: Path) -> None:
    """Add a job by hand, look at it, read its log, export the log: no model, no playbook."""
    out = tmp_path / "log.jsonl"
    code, said = chat("/todo add hello run='echo \"good  morning\"; exit 0' title=Greet", f"/export {out}")
    assert code == 0, said
    assert "hello started on local  Greet" in said
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert "todo.added" in {row["kind"] for row in rows}
    _, said = chat("/jobs", "/logs hello", "/todo hello", "/hosts", "/cost", session=session_of(said))
    assert "good  morning" in said
    assert re.search(r"hello\.1 +local +exited", said)
    assert re.search(r"status +completed", said)
    assert "this machine" in said


def test_quit_leaves_jobs_running_and_says_how_to_come_back(tmp_path: Path) -> None:
    """After `/quit` the job goes on; the chat that comes back finds it and can end it."""
    _, said = chat(f"/run {playbook(tmp_path, SLEEPS)}", "/quit")
    assert "1 job goes on without you: slow on local" in said
    session = session_of(said)
    jobs = json.loads(turnout("jobs", "--session", session, "--json").stdout)
    assert [job["state"] for job in jobs] in (["submitted"], ["running"])
    code, said = chat("/kill slow enough", session=session)
    assert code == 1
    assert "slow failed" in said or "slow cancelled" in said
    assert json.loads(turnout("jobs", "--session", session, "--json").stdout)[0]["state"] == "exited"


def test_a_session_that_another_process_drives_is_only_watched(tmp_path: Path) -> None:
    """The second one is told who owns it, may look, and changes nothing."""
    driver = begin("run", playbook(tmp_path, SLEEPS), "--json")
    job = until(driver, job_runs)["id"]
    code, said = chat("/kill slow", "/quit", session=job.partition(".")[0])
    assert f"is driven by process {driver.pid}" in said
    assert "cannot be done here" in said
    assert code == 0
    assert turnout("kill", "slow", "--yes").returncode == 0
    driver.communicate(timeout=60)


def test_one_chat_goes_on_with_another_session(tmp_path: Path) -> None:
    """`/resume ID` leaves this session and takes up that one; lines that were typed ahead are its lines."""
    _, said = chat("/todo add first run='true'")
    first = session_of(said)
    code, said = chat("/todo add second run='true'", f"/resume {first}", "/session", "/todo first")
    assert f"session {first}: " in said
    assert re.search(r"status +completed", said)
    assert code == 0


def test_yes_answers_in_a_session_that_is_come_back_to(tmp_path: Path) -> None:
    """`--yes` is this process's word and not the session's: it holds for what is asked again after a resume."""
    _, said = chat(f"/run {playbook(tmp_path, ASKS)}")
    done = turnout("chat", session_of(said), "--plain", "--yes", stdin="/todo retry leave\n")
    assert "answered yes by --yes" in done.stdout
    assert done.returncode == 0


def test_a_conversation_in_which_nothing_was_asked_is_not_resumed() -> None:
    """Opening the chat and leaving it leaves no session that `turnout resume` would go back to."""
    assert chat("/help")[0] == 0
    resumed = turnout("resume")
    assert "there is no unfinished session" in resumed.stderr


@pytest.mark.parametrize("face", [["--plain"], []])
def test_a_closed_window_ends_the_chat_and_not_its_jobs(
    terminal: type[Terminal],  # noqa: F811
    tmp_path: Path,
    face: list[str],
) -> None:
    """When the terminal itself is gone the process does not stay behind, and the session is given back."""
    window = terminal("chat", *face, rows=24, columns=200)
    window.wait_for("/help")
    window.type(f"/run {playbook(tmp_path, SLEEPS)}\r")
    window.wait_for("started on local")
    window.hang_up()
    assert window.process.wait(60) == 128 + signal.SIGHUP
    session = json.loads(turnout("sessions", "--json").stdout)[0]
    assert session["state"] == "paused"
    assert turnout("kill", "slow", "--session", session["id"], "--yes").returncode == 0


def test_questions_are_answered_by_command_on_a_terminal(terminal: type[Terminal], tmp_path: Path) -> None:  # noqa: F811
    """The question is shown with the commands that answer it; a reason given with no is kept."""
    window = terminal("chat", "--plain", rows=24, columns=200)
    window.wait_for("/quit")
    window.type(f"/run {playbook(tmp_path, ASKS)}\r")
    window.wait_for("? leave asks: Stop it?")
    window.type("/approve no clients are connected\r")
    window.wait_for("leave answered no by operator: clients are connected")
    window.type("/todo retry leave\r")
    window.wait_for("? leave asks: Stop it?")
    window.type("/approve\r")
    window.wait_for("stop completed")
    window.type("/quit\r")
    assert window.end()[0] == 0


def test_turnout_alone_is_the_chat_on_a_terminal_and_the_help_in_a_pipe(terminal: type[Terminal]) -> None:  # noqa: F811
    """Whoever just types `turnout` lands in the chat; a script is told what there is, with the code of a mistake."""
    window = terminal()
    window.wait_for("ay something")
    window.type("\x04")
    assert window.end()[0] == 0
    done = turnout()
    assert done.returncode == 2
    assert "Usage: turnout" in done.stderr


def test_killed_in_mid_turn_it_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """kill -9 while the model speaks and its tool runs: the words said before are there, and the endpoint takes the
    next request, with every call answered.
    """
    slow = {"name": "run", "input": {"command": "sleep 300", "host": "local", "wait_s": 60}}
    talk = [
        {"when": "first", "say": "One line that is whole.\n", "tools": [slow]},
        {"when": "second", "say": "Here again.\n"},
        {"again": True, "say": "Noted.\n"},
    ]
    with ScriptedModel(talk) as model:
        for name, value in {"BASE_URL": model.base_url, "API_KEY": "none"}.items():
            monkeypatch.setenv(f"ANTHROPIC_{name}", value)
        monkeypatch.setenv("TURNOUT_MODEL", "scripted-model")
        first = subprocess.Popen(
            [*COMMAND, "chat", "--plain", "--yes"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert first.stdin is not None
        assert first.stdout is not None
        first.stdin.write("first\n")
        first.stdin.flush()
        for line in first.stdout:
            if "sleep 300" in line:
                break
        first.kill()
        first.communicate()
        session = json.loads(turnout("sessions", "--json").stdout)[0]
        assert session["state"] == "interrupted"
        code, said = chat("second", "/todo cancel run", session=session["id"])
    assert "One line that is whole." in said
    assert "Here again." in said
    assert code == 0
