"""A login node of Slurm keeps the promises of every host, and what Slurm adds to them is told."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from tests import test_jobs_life as jobs
from tests.cli_helpers import last, playbook, turnout
from tests.hosting import OpenSSH, end_jobs, ended, record, started, told
from tests.slurm_cluster import Cluster
from tools.hostkeys import HostSpec
from tools.jobs import JobSpec, describe_end, failure_kind
from tools.remote import proc, slurm
from tools.ssh import Host

pytest_plugins = ("tests.servers",)
pytestmark = [pytest.mark.anyio, pytest.mark.slurm]

# The contract: the very tests of every other host.
test_a_folder_that_is_not_there_is_said_in_the_log = jobs.test_a_folder_that_is_not_there_is_said_in_the_log
test_a_kill_before_the_launch_prevents_it = jobs.test_a_kill_before_the_launch_prevents_it
test_a_server_is_ready_when_it_says_so = jobs.test_a_server_is_ready_when_it_says_so
test_a_timeout_is_kept_by_the_host = jobs.test_a_timeout_is_kept_by_the_host
test_a_tree_that_ignores_term_and_runs_away_is_ended = jobs.test_a_tree_that_ignores_term_and_runs_away_is_ended
test_an_id_means_one_script_for_ever = jobs.test_an_id_means_one_script_for_ever
test_cleaning_takes_only_what_has_ended = jobs.test_cleaning_takes_only_what_has_ended
test_jobs_outlive_the_driver = jobs.test_jobs_outlive_the_driver
test_one_request_launches_many = jobs.test_one_request_launches_many
test_progress_is_the_last_thing_said = jobs.test_progress_is_the_last_thing_said
test_sixteen_launches_of_one_id_are_one_run = jobs.test_sixteen_launches_of_one_id_are_one_run
test_the_exit_is_what_the_host_recorded = jobs.test_the_exit_is_what_the_host_recorded
test_what_a_job_is_given = jobs.test_what_a_job_is_given


@pytest.fixture
def spec(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostSpec:
    """This machine as a login node. sbatch would make something else of `%j` in a file's name."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.config))
    return HostSpec(name="local", root=str(tmp_path / "100%j"), slurm=())


@pytest.fixture
async def host(spec: HostSpec) -> AsyncIterator[Host]:
    async with Host(spec, keepalive_s=1.0) as connected:
        yield connected
        await end_jobs(connected)


def number(host: Host, job: str) -> str:
    """Slurm's number of a job."""
    return str(json.loads(record(host, job, "slurm").read_text())["number"])


async def test_gpus_are_slurms_to_give(host: Host) -> None:
    """A job gets the GPUs that it asks for; one that must wait says why, and starts when they are free."""
    first, second = (JobSpec(name, "echo ::progress 1; echo GPUs $CUDA_VISIBLE_DEVICES; sleep 1000", slurm={"gpus": 2})
                     for name in ("first", "second"))  # fmt: skip
    await started(host, first)
    await host.launch([second])
    waiting = await told(host, "second", "queued")
    assert waiting.progress is not None
    assert waiting.progress.line.startswith("in Slurm's queue as job ")
    await host.kill(["first"])
    assert (await told(host, "second", "running")).node
    assert (await host.kill(["second"]))[0].signal == "SIGTERM"
    assert (await host.read_log("second")).data.decode().split("\n")[1] == "GPUs 0,1"


async def test_what_sbatch_refuses_is_refused_with_its_words(spec: HostSpec) -> None:
    """A partition that is not there: the job is not started, its id stays free, and sbatch says why."""
    async with Host(replace(spec, slurm=("--partition=nowhere",))) as host:
        (state,) = await host.launch([JobSpec("j", "exit 3")])
        assert state.refused is not None
        assert "invalid partition" in state.refused
    async with Host(spec) as host:
        await host.launch([JobSpec("j", "exit 3")])
        assert (await ended(host, ["j"]))["j"].rc == 3


LIAR = """#!/bin/sh
{sbatch} "$@" > {folder}/said
{then}
"""


DIES = "kill -9 $PPID"


async def lose_answer(spec: HostSpec, job: JobSpec, folder: Path, patch: pytest.MonkeyPatch, then: str) -> None:
    """Launch with an sbatch that takes the job and then does something else than to say so."""
    (folder / "bin").mkdir()
    liar = folder / "bin" / "sbatch"
    liar.write_text(LIAR.format(sbatch="/usr/bin/sbatch", folder=folder, then=then))
    liar.chmod(0o755)
    with patch.context() as patched:
        patched.setenv("PATH", f"{liar.parent}:{os.environ['PATH']}")
        async with Host(spec) as host:
            await host.launch([job])


@pytest.mark.parametrize("then", ["echo 'Socket timed out' >&2; exit 1", DIES])
async def test_a_submission_whose_answer_is_lost_runs_once(
    spec: HostSpec, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """sbatch says error though Slurm took the job, or we die before the answer: it is found by name, not sent again."""
    job = JobSpec("j", f"echo ran >> {tmp_path}/runs; sleep 0.5; exit 3")
    await lose_answer(spec, job, tmp_path, monkeypatch, then)
    async with Host(spec) as host:
        (again,) = await host.launch([job])
        assert again.refused is None
        assert (await ended(host, ["j"]))["j"].rc == 3
    assert (tmp_path / "runs").read_text() == "ran\n"
    name = await to_thread.run_sync(slurm.name_of, host.spec.root, "j")
    rows = await to_thread.run_sync(cluster.ask, "squeue", "--states", "all", "--noheader", "--format", "%A|%j")
    assert [row for row in rows.split() if row.endswith(name)] == [f"{(tmp_path / 'said').read_text().strip()}|{name}"]


async def test_a_job_whose_number_nobody_knows_is_seen_and_killed(
    spec: HostSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job runs though nobody saw that Slurm took it: that is told without another launch, and a kill ends it."""
    job = JobSpec("j", "trap 'exit 7' TERM; echo ::progress 1; sleep 1000 & wait")
    await lose_answer(spec, job, tmp_path, monkeypatch, DIES)
    async with Host(spec) as host:
        await host.watch(["j"])
        await told(host, "j", "progress")
        assert [state.state for state in await host.status(["j"])] == ["running"]
        assert [state.rc for state in await host.kill(["j"])] == [7]


async def test_a_signal_for_the_batch_step_reaches_the_job(host: Host, cluster: Cluster) -> None:
    """`--signal B:USR1@120` warns a job before its limit: the supervisor passes it on. What the job leaves is ended."""
    await started(host, JobSpec("j", "trap 'exit 9' USR1; echo ::progress 1; sleep 1000 & wait"))
    await to_thread.run_sync(cluster.ask, "scancel", "--batch", "--signal", "USR1", number(host, "j"))
    assert (await ended(host, ["j"]))["j"].rc == 9
    assert (await to_thread.run_sync(proc.families, host.spec.root, [proc.Family("j")])) == {"j": []}


async def test_a_job_that_slurm_ends_says_so(host: Host, cluster: Cluster) -> None:
    """`scancel` by somebody else ends the job with its grace; the record tells who gave the order."""
    await started(
        host, JobSpec("j", "trap 'echo bye; exit 7' TERM; echo ::progress 1; while :; do sleep 1000 & wait; done")
    )
    await to_thread.run_sync(cluster.ask, "scancel", number(host, "j"))
    state = (await ended(host, ["j"]))["j"]
    assert (state.state, state.rc, state.cancelled) == ("exited", 7, False)
    assert state.reason is not None
    assert f"Slurm, job {number(host, 'j')}" in state.reason
    assert "scancel" in state.reason
    assert (await host.read_log("j")).data.endswith(b"bye\n")


@pytest.mark.slow
async def test_slurms_own_limit_is_a_timeout(host: Host, cluster: Cluster) -> None:
    """A job that reaches Slurm's time limit has timed out, like one that reaches its own."""
    await started(host, JobSpec("j", "echo ::progress 1; sleep 1000", slurm={"options": ["--time=1"]}))
    await to_thread.run_sync(cluster.ask, "scontrol", "update", f"JobId={number(host, 'j')}", "EndTime=now+1")
    state = (await ended(host, ["j"]))["j"]
    assert failure_kind(state) == "timeout", (state, describe_end(state))


async def test_a_waiting_job_is_killed_in_the_queue(host: Host, tmp_path: Path) -> None:
    """A job that Slurm has not started never starts once it is cancelled."""
    held = JobSpec("j", f"touch {tmp_path}/ran", slurm={"options": ["--hold"]})
    assert [state.state for state in await host.launch([held])] == ["queued"]
    (state,) = await host.kill(["j"])
    assert (state.state, state.cancelled, state.pid) == ("exited", True, None)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
async def test_what_ignores_the_order_is_killed_by_slurm(host: Host) -> None:
    """A stopped supervisor obeys nobody: Slurm's own end of the job is what the kill then proves."""
    await started(host, JobSpec("j", "trap '' TERM; echo ::progress 1; sleep 1000 & wait", grace_s=0.1))
    supervisor = json.loads(record(host, "j", "run").read_text())["pid"]
    os.kill(supervisor, 19)
    (state,) = await host.kill(["j"])
    assert (state.state, state.cancelled) == ("exited", True)


@pytest.mark.slow
async def test_a_job_without_a_record_is_lost_with_slurms_word_for_it(host: Host) -> None:
    """When supervisor and command die together, Slurm says that the job is over, and it is lost, not failed."""
    await started(host, JobSpec("j", "echo ::progress 1; exec sleep 1000"))
    for name in ("run", "child"):
        os.kill(json.loads(record(host, "j", name).read_text())["pid"], 9)
    state = (await ended(host, ["j"]))["j"]
    assert state.state == "lost"
    assert state.reason is not None
    assert "without an exit record" in state.reason


@pytest.mark.slow
async def test_a_controller_that_is_away_ends_nothing(host: Host, cluster: Cluster) -> None:
    """While Slurm's controller is down jobs run on, their ends are told, and none is called lost."""
    await started(
        host, JobSpec("j", f"echo ::progress 1; until [ -e {host.spec.root}/go ]; do sleep 0.1; done; exit 3")
    )
    controller = cluster.daemons[0]
    await to_thread.run_sync(cluster.ask, "scontrol", "shutdown", "slurmctld")
    await to_thread.run_sync(controller.wait)
    try:
        assert [state.state for state in await host.status(["j"])] == ["running"]
        await anyio.Path(host.spec.root, "go").touch()
        assert (await ended(host, ["j"]))["j"].rc == 3
        (state,) = await host.launch([JobSpec("k", "exit 4")], watch=False)
        assert state.state == "launching"
    finally:
        cluster.restart_controller()
    (state,) = await host.launch([JobSpec("k", "exit 4")])
    assert state.state == "queued"
    assert (await ended(host, ["k"]))["k"].rc == 4


STEPS = """
  - id: two
    job: {host: hpc, gpus: 2, sbatch: "--comment 'two words'", run: "echo GPUs $CUDA_VISIBLE_DEVICES; sleep 1"}
  - {id: one, job: {host: hpc, gpus: 1, run: "echo GPUs $CUDA_VISIBLE_DEVICES"}}
  - id: after
    after: [one, two]
    job: {host: hpc, run: "echo '{\\"node\\": \\"'$SLURMD_NODENAME'\\"}' > $TURNOUT_OUTPUT"}
"""


@pytest.mark.sshd
def test_a_playbook_runs_on_a_login_node(cluster: Cluster, make_sshd: Callable[..., OpenSSH], tmp_path: Path) -> None:
    """Added with `--slurm` over real SSH, a host's jobs and GPUs are Slurm's, and the run is like any other."""
    server = make_sshd(SetEnv=f"SLURM_CONF={cluster.config}")
    where = [f"{getpass.getuser()}@127.0.0.1:{server.port}", "--identity", str(server.folder / "client")]
    options = ["--root", str(tmp_path / "remote"), "--sbatch", "--comment 'from turnout'", "--yes"]
    added = turnout("hosts", "add", "hpc", *where, *options)
    assert added.returncode == 0, added.stderr
    assert "main (default)" in added.stdout
    done = turnout("run", playbook(tmp_path, STEPS), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    node = last(done.stdout)["todos"]["after"]["result"]["node"]
    assert node == cluster.ask("sinfo", "--noheader", "--format", "%n").strip()
    assert turnout("logs", "two").stdout == "GPUs 0,1\n"
    checked = turnout("replay", last(done.stdout)["session"], "--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_host_without_slurm_is_not_taken_for_a_login_node(
    make_sshd: Callable[..., OpenSSH], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--slurm` for a host that has no `sbatch` is an error with what to do; options that are no words are refused."""
    server = make_sshd(SetEnv=f"PATH={tmp_path}")
    where = [f"{getpass.getuser()}@127.0.0.1:{server.port}", "--identity", str(server.folder / "client")]
    added = turnout("hosts", "add", "hpc", *where, "--root", str(tmp_path / "remote"), "--slurm", "--yes")
    assert added.returncode != 0
    assert "no `sbatch`" in added.stderr
    quote = turnout("hosts", "add", "hpc", *where, "--sbatch", "--comment 'open", "--yes")
    assert quote.returncode == 2
    assert "quote as in a shell" in quote.stderr
