"""Playbooks and texts looked at from the command line, and the plain lines of a run."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path

import pytest

from agent.board import Board
from agent.views import JsonView, PlainView
from state.changes import Change
from tests.cli_helpers import EXAMPLES, playbook, turnout
from tools.jobs import ContactEvent, JobState, Progress


def test_check_names_every_problem_with_its_line(tmp_path: Path) -> None:
    """A playbook with two mistakes exits with 2 and tells both, with file and line; a good one is OK."""
    path = playbook(tmp_path, "  - {id: a, job: {host: local, rum: 'true'}}\n  - {id: b, gate: 'todos.zzz.x'}\n")
    done = turnout("playbook", "check", path)
    assert done.returncode == 2
    assert f"`{path}` line 4" in done.stdout
    told = json.loads(turnout("playbook", "check", path, "--json").stdout)
    assert told["ok"] is False
    assert all(problem["line"] for problem in told["problems"])
    good = turnout("playbook", "check", str(EXAMPLES / "hedge.yaml"))
    assert (good.returncode, good.stdout) == (0, f"{EXAMPLES / 'hedge.yaml'}: OK, 4 steps\n")


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_show_draws_every_step_of_the_examples(name: str) -> None:
    """Parameters with their defaults and each step stand in the picture, and in the JSON."""
    done = turnout("playbook", "show", str(EXAMPLES / name))
    assert done.returncode == 0, done.stderr
    found = json.loads(turnout("playbook", "show", str(EXAMPLES / name), "--json").stdout)
    for word in (*found["params"], *(step["id"] for step in found["steps"])):
        assert word in done.stdout


def test_list_names_what_run_takes() -> None:
    """Each name that is listed can be shown."""
    names = [row["name"] for row in json.loads(turnout("playbook", "list", "--json").stdout)]
    assert names
    assert turnout("playbook", "show", names[0]).returncode == 0


def test_diagnose_reads_a_file_or_stdin(tmp_path: Path) -> None:
    """A person sees state, cause, remedy and the lines that decide; a program gets one object of the same."""
    log = tmp_path / "server.log"
    log.write_text(
        "INFO vLLM API server version 0.11.0\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB\n"
    )
    shown = turnout("diagnose", str(log))
    assert shown.returncode == 0, shown.stderr
    found = json.loads(turnout("diagnose", "-", "--json", stdin=log.read_text()).stdout)
    assert (found["state"], found["source"]) == ("failed", "stdin")
    for expected in ("failed", found["kind"], "because  line 2: torch.OutOfMemoryError"):
        assert expected in shown.stdout


def board() -> Board:
    made = Board("abcd2345")
    added = {"kind": "job", "priority": "medium", "join": "all", "group": None, "body": {}}
    for place, id in enumerate(("bench", "serve")):
        made.apply("todo.added", {"id": id, "title": f"Title of {id}", "position": place, **added}, 0.0)
    return made


def told(*changes: Change) -> list[str]:
    """What the plain view says about changes, without the time in front."""
    out = io.StringIO()
    view = PlainView(board(), out=out)
    view.changed(changes, range(1, len(changes) + 1))
    view.progressed(JobState("j1", "running", progress=Progress(400, 1000, "samples", "loss 0.1")))
    view.contact(ContactEvent("lost contact", "gpu1", 0.0, "no answer"))
    view.contact(ContactEvent("lost contact", "gpu1", 0.0, "no answer"))
    view.asked("serve", "Go on?", "yes")
    view.close()
    return [line.partition("] ")[2] for line in out.getvalue().splitlines()]


def test_plain_lines_tell_what_a_person_would_ask() -> None:
    """One line for each start, end, retry and stop; progress at once, contact lost once, and the refused question."""
    status = {"id": "bench", "was": "pending"}
    lines = told(
        Change("todo.status", {**status, "now": "in_progress", "host": "gpu1", "attempt": 2}),
        Change("job.submitted", {"id": "j1", "todo": "bench", "host": "gpu1", "spec": {}, "gpus": []}),
        Change("job.cancel", {"id": "j1", "reason": "lost the race `x`"}),
        Change("todo.status", {**status, "was": "in_progress", "now": "pending", "reason": "lost; try 3"}),
        Change("todo.status", {**status, "was": "failed", "now": "pending", "reason": "to be tried again"}),
        Change("session.status", {"status": "paused", "reason": None}),
    )
    assert lines == [
        "bench started on gpu1 (try 2)   Title of bench",
        "bench being stopped: lost the race `x`",
        "bench to be tried again: lost; try 3",
        "bench to be tried again",
        "stopping: nothing new starts, jobs go on; Ctrl-C again leaves at once",
        "bench 400/1,000 samples  loss 0.1",
        "no contact with gpu1: no answer; jobs there go on, trying again",
        "serve asks: Go on? No: there is no terminal to ask on; `--yes` says yes.",
    ]


class StuckPipe(io.StringIO):
    """A pipe whose reader does not read until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def write(self, text: str) -> int:
        self.go.wait()
        return super().write(text)


def test_a_reader_that_does_not_read_holds_nothing_up() -> None:
    """A view whose pipe is full takes changes all the same, and writes them all, in order, when it can."""
    pipe = StuckPipe()
    view = JsonView(out=pipe)
    for seq in range(1000):  # would never return if each waited for the pipe
        view.changed([Change("todo.status", {"id": "bench", "was": "pending", "now": "skipped"})], [seq])
    pipe.go.set()
    view.close()
    lines = [json.loads(line) for line in pipe.getvalue().splitlines()]
    assert [line["seq"] for line in lines] == list(range(1000))
    assert lines[0].keys() == {"time", "seq", "kind", "actor", "id", "was", "now"}


def test_a_dry_run_shows_the_command_of_a_branch_that_only_a_run_can_decide(tmp_path: Path) -> None:
    """A text with `{% if %}` over results is shown as a command, with the results' names where they will stand."""
    path = tmp_path / "p.yaml"
    run = "x --port {{ port }}{% if todos.a.unit == 'u' %} --unit {{ todos.a.unit }}{% endif %}"
    steps = ["{id: a, job: {host: local, run: x}}", f'{{id: b, after: a, job: {{host: local, run: "{run}"}}}}']
    path.write_text("name: p\nparams: {port: 8000}\nsteps:\n" + "".join(f"  - {step}\n" for step in steps))
    told = json.loads(turnout("run", str(path), "--dry-run", "--json").stdout)
    assert told["todos"][1]["body"]["run"] == "x --port 8000 --unit {{ todos.a.unit }}"
