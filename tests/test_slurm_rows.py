"""What is made of Slurm's answers, and what its tools are given: without a Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from state.errors import UsageError
from tools.jobs import sbatch_options
from tools.remote import batch, jobs, slurm

PENDING, RUNNING, FAILED = (("7", state, "None", "turnout-x-j") for state in ("PENDING", "RUNNING", "FAILED"))


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tools.remote.slurm.time.monotonic", clock)
    return clock


def heard(queue: slurm.Queue, clock: Clock, asked: float, *rows: tuple[str, ...]) -> float:
    """How long the job is over after an answer that was asked for at `asked` and came now."""
    now, clock.now = clock.now, asked
    queue.begin()
    clock.now = now
    queue.take(rows)
    return queue.over_for("turnout-x-j", begun=True)


def test_a_slow_answer_ends_no_job(clock: Clock) -> None:
    """An answer knows nothing of what was submitted after it was asked for, however late it comes."""
    queue = slurm.Queue()
    assert queue.over_for("turnout-x-j", begun=False) == 0  # nobody was asked yet
    heard(queue, clock, 90.0)
    clock.now = 200.0
    assert heard(queue, clock, 99.0) < slurm.SETTLE_S
    assert heard(queue, clock, 199.0, RUNNING) == 0


def test_a_job_is_over_when_a_later_answer_says_so_again(clock: Clock) -> None:
    """One answer without the job, between others with it, is forgotten."""
    queue = slurm.Queue()
    heard(queue, clock, 100.0)
    clock.now += 5
    assert heard(queue, clock, 105.0, RUNNING) == 0
    clock.now += 100
    assert heard(queue, clock, 205.0, FAILED) <= 0
    clock.now += 20
    assert heard(queue, clock, 225.0, FAILED) == 20


def test_a_job_that_has_run_and_waits_again_is_over(clock: Clock) -> None:
    """Slurm may put a job back into the queue; an id runs once."""
    queue = slurm.Queue()
    assert heard(queue, clock, 100.0, PENDING) <= 0
    clock.now += 20
    assert heard(queue, clock, 120.0, PENDING) == 20
    assert queue.over_for("turnout-x-j", begun=False) == 0


def test_of_two_submissions_of_one_id_the_one_that_runs_counts() -> None:
    """A submission whose answer was lost may have been repeated: the second one leaves and says nothing of the job."""
    queue = slurm.Queue()
    later = ("8", "COMPLETED", "None", "turnout-x-j")
    for rows in ([RUNNING, later], [later, RUNNING]):
        queue.take(rows)
        assert queue.rows["turnout-x-j"].number == "7"


def test_a_name_is_kept_with_the_job(tmp_path: Path) -> None:
    """Another login node may see the root folder under another path, and still finds what was submitted."""
    (tmp_path / "jobs" / "j").mkdir(parents=True)
    fresh = slurm.name_of(str(tmp_path), "j")
    assert fresh.endswith("-j")
    (tmp_path / "jobs" / "j" / "submitting").write_text(json.dumps({"name": "turnout-other-j"}))
    assert slurm.name_of(str(tmp_path), "j") == "turnout-other-j"


def test_what_was_said_of_the_queue_is_taken_back(tmp_path: Path) -> None:
    """A job that started and says nothing is not shown as waiting; one that ended unheard has no last words."""
    folder = tmp_path / "jobs" / "j"
    folder.mkdir(parents=True)
    (folder / "slurm").write_text(json.dumps({"number": "7", "name": "turnout-x-j"}))
    waits = jobs.state(str(tmp_path), "j", "boot")
    assert (waits["state"], waits["progress"]["line"]) == ("queued", "in Slurm's queue as job 7: submitted")
    (folder / "run").write_text(json.dumps({"node": "n1"}))
    runs = jobs.state(str(tmp_path), "j", "boot")
    assert (runs["state"], runs["progress"]["line"]) == ("running", "started on n1")
    (folder / "exit").write_text(json.dumps({"rc": 0}))
    assert jobs.state(str(tmp_path), "j", "boot")["progress"]["line"] == ""


def test_defaults_of_a_person_and_of_another_job_are_left_out() -> None:
    """What would hide jobs from us, ask us back or make two jobs of one never reaches Slurm's tools; the rest does."""
    own = {"SLURM_CONF": "c", "SBATCH_ACCOUNT": "a", "SLURM_MPI_TYPE": "pmix", "HOME": "h"}
    bad = {"SQUEUE_PARTITION": "p", "SCANCEL_INTERACTIVE": "1", "SBATCH_WAIT": "1", "SBATCH_ARRAY_INX": "1-3"}
    assert slurm.environment({**own, **bad}) == own
    inside = slurm.environment({**own, "SLURM_JOB_ID": "1", "SLURM_MEM_PER_CPU": "4"})
    assert inside == {"SLURM_CONF": "c", "SBATCH_ACCOUNT": "a", "HOME": "h"}


@pytest.mark.parametrize(
    "text",
    ["--wrap 'echo'", "--arr=1-3", "-a 1-3", "-W", "--wait", "-Mother", "--test-only", "-p a : -p b", "job.sh", "--"],
)
def test_options_that_make_no_job_are_refused(text: str) -> None:
    """With these sbatch would run something else, more than one job, or none: said before anything is sent."""
    with pytest.raises(UsageError, match="makes no job"):
        sbatch_options(text)


def test_options_of_a_job_are_taken() -> None:
    """Whatever else sbatch knows is the operator's affair."""
    text = "-p gpu --account=nlp --comment 'two words' --wait-all-nodes=1 --signal B:USR1@120 --hold -d afterok:1"
    assert len(sbatch_options(text)) == 11


@pytest.mark.parametrize(
    ("says", "taken"),
    [("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", True),
     ("sbatch: error: invalid partition specified: nowhere", False), ("Version 22.05", False)],
)  # fmt: skip
def test_a_submission_that_timed_out_is_not_called_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, taken: bool
) -> None:
    """A slow controller may yet take what sbatch gave up on: unknown is not refused."""
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\necho '{says}' >&2; exit {int(says.startswith('sbatch'))}\n")
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    for tool in ("sbatch", "squeue"):
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    told: list[dict[str, object]] = []

    class Report:
        def send(self, header: dict[str, object]) -> None:
            told.append(header)

    spec = {"id": "j", "run": "true"}
    batch.submit(str(tmp_path), spec, [], Report())  # type: ignore[arg-type]
    (answer,) = told
    state = answer["state"]
    assert isinstance(state, dict)
    assert ("refused" not in state) == taken
    assert state["state"] == ("launching" if taken else "prepared")
    assert (tmp_path / "jobs" / "j" / "submitting").exists() == taken
