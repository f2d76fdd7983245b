"""Jobs that do odd things to their own folder: what they write is read with bounds, and hurts nobody else's job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosting import ended
from tools.jobs import JobSpec
from tools.remote import ending
from tools.ssh import Host

pytest_plugins = ("tests.servers",)
pytestmark = pytest.mark.anyio

RESULTS = {
    "pipe": ('mkfifo "$TURNOUT_OUTPUT"', "output.json cannot be read: it is no file"),
    "folder": ('mkdir "$TURNOUT_OUTPUT"', "output.json cannot be read: it is no file"),
    "device": ('ln -s /dev/zero "$TURNOUT_OUTPUT"', "output.json cannot be read: it is no file"),
    "circle": ('ln -s "$TURNOUT_OUTPUT" "$TURNOUT_OUTPUT"', "output.json cannot be read: it is no file"),
    "deep": ("head -c 200000 /dev/zero | tr '\\0' '[' > $TURNOUT_OUTPUT", "output.json is nested too deeply"),
}
PROGRESS = {
    "pipe": 'mkfifo "$TURNOUT_PROGRESS"',
    "folder": 'mkdir "$TURNOUT_PROGRESS"',
    "deep": "head -c 200000 /dev/zero | tr '\\0' '[' > $TURNOUT_PROGRESS",
    "huge": "{ printf '{\"done\": 1'; printf '0%.0s' {1..400}; echo '}'; } > $TURNOUT_PROGRESS",
    "hugeline": "printf '::progress 1'; printf '0%.0s' {1..400}; echo ' steps'",
    "nolog": 'rm "$(dirname "$TURNOUT_OUTPUT")/log"; sleep 1.2',
    "pipelog": 'cd "$(dirname "$TURNOUT_OUTPUT")"; rm log; mkfifo log',
}


async def test_whatever_a_job_leaves_as_its_result_is_read_with_bounds(host: Host) -> None:
    """A pipe, a device or a text of brackets in place of a result is that job's error; the next job is served."""
    await host.launch([JobSpec(name, script) for name, (script, _) in RESULTS.items()])
    states = await ended(host, list(RESULTS))
    assert {name: states[name].output_error for name in RESULTS} == {name: said for name, (_, said) in RESULTS.items()}
    assert all(state.rc == 0 for state in states.values())
    await host.launch([JobSpec("next", "exit 3")])
    assert (await ended(host, ["next"]))["next"].rc == 3


async def test_whatever_a_job_says_of_its_progress_the_others_are_told_of(host: Host) -> None:
    """Odd progress files, counts of 400 digits and a log that is gone end no job and no watch."""
    specs = [JobSpec(name, f"{script}; sleep 1.2; exit 3", max_log=1 << 20) for name, script in PROGRESS.items()]
    await host.launch(specs)
    states = await ended(host, list(PROGRESS))
    assert {name: state.rc for name, state in states.items()} == dict.fromkeys(PROGRESS, 3)
    assert (await host.hello()).pid  # the same remote half still answers


async def test_a_result_holds_json_numbers_only(host: Host) -> None:
    """A loss that became NaN is `null`: no reader of JSON, and no database, would take Python's own word for it."""
    await host.launch(
        [JobSpec("j", 'echo \'{"loss": NaN, "max": -Infinity, "big": 1e999, "n": 1.5}\' > $TURNOUT_OUTPUT')]
    )
    assert (await ended(host, ["j"]))["j"].output == {"loss": None, "max": None, "big": None, "n": 1.5}


async def test_a_service_that_ends_by_itself_after_it_was_ready_keeps_its_exit_code(host: Host) -> None:
    """Whoever looked for the sign has long gone by then; the end is recorded all the same."""
    script = 'echo up; until [ -e "$(dirname "$TURNOUT_OUTPUT")/ready" ]; do sleep 0.1; done; sleep 1; exit 3'
    await host.launch([JobSpec("j", script, ready={"log": "up"})])
    state = (await ended(host, ["j"]))["j"]
    assert (state.state, state.rc) == ("exited", 3), state
    assert state.ready_at is not None


# A supervisor that is cancelled between its look for `cancel` and the start of the command.
LATE = """
import os, sys, time
from tools.remote import supervisor, worker
root, real = sys.argv[1], worker.spawn
def late(*wanted):
    print("about to start", flush=True)
    while not os.path.exists(root + "/jobs/j/cancel"):
        time.sleep(0.01)
    time.sleep(0.3)
    return real(*wanted)
worker.spawn = late
spec = {"id": "j", "run": "sleep 60", "env": {}, "grace_s": 1.0}
supervisor.supervise(root, spec, worker.Report(os.open(os.devnull, os.O_WRONLY)))
"""


def test_a_kill_that_meets_a_job_just_before_its_start_ends_it(tmp_path: Path) -> None:
    """A job that is starting when it is cancelled does not run on."""
    (tmp_path / "jobs").mkdir()
    starter = subprocess.Popen(
        [sys.executable, "-c", LATE, str(tmp_path)], cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE
    )
    assert starter.stdout is not None
    assert starter.stdout.readline() == b"about to start\n"
    (state,) = ending.kill(str(tmp_path), ["j"], None)
    starter.communicate()
    assert (state["state"], state["cancelled"], state["signal"]) == ("exited", True, "SIGTERM")
