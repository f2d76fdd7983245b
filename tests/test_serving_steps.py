"""Serving from playbooks: the bench and the search as jobs on a host, through the embedded SSH server."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.playbook import check, find
from state.errors import ToolError
from tests.hosting import end_jobs, ended, free_port
from tests.standin_engine import StandIn
from tools.base import ToolCall
from tools.hostkeys import HostSpec
from tools.jobs import JobSpec, JobState
from tools.serving import tune_trials
from tools.serving.steps import bench_plan, drafter_verdict, serve_plan
from tools.ssh import Host

pytest_plugins = ("tests.servers",)
pytestmark = pytest.mark.anyio
STANDIN = Path(__file__).with_name("standin_engine.py")


@pytest.fixture
async def local_host(tmp_path: Path) -> AsyncIterator[Host]:
    """The host `local`; at the end nothing of its jobs may be left."""
    async with Host(HostSpec(name="local", root=str(tmp_path / "root"))) as connected:
        yield connected
        await end_jobs(connected)


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "my prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Say {n}"}) + "\n" for n in range(6)))
    return str(path)


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A `python3` that becomes the stand-in when it is to start SGLang."""
    path = tmp_path / "python3"
    path.write_text(
        "#!/bin/sh\n"
        f'[ "$2" = sglang.launch_server ] && exec {sys.executable} {STANDIN} "$@"\n'
        f'exec {sys.executable} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


def call(there: Host, **args: Any) -> ToolCall:
    async def by_name(_: str) -> Host:
        return there

    return ToolCall("s1", "t1", args, by_name)


async def finish(host: Host, job: str, run: str) -> JobState:
    """Run a job to its end."""
    await host.launch([JobSpec(job, run)])
    return (await ended(host, [job]))[job]


async def test_the_bench_travels_to_the_host_with_the_prompts(local_host: Host, prompts: str) -> None:
    """Prompt files that are here are sent; the job's output has the figures, and progress is told on the way."""
    with StandIn("sglang", accept=[0.8, 0.5]) as server:
        planned = await bench_plan(
            call(
                local_host,
                host="local",
                url=server.url,
                sets=[f"mine={prompts}"],
                python=sys.executable,
                concurrency="1,2",
                limit=5,
            )
        )
        assert prompts not in planned["run"]
        again = await bench_plan(
            call(
                local_host,
                host="local",
                url=server.url,
                sets={"mine": prompts},
                python=sys.executable,
                concurrency="1,2",
                limit=5,
            )
        )
        assert again == planned
        state = await finish(local_host, "bench", planned["run"])
    assert state.ok, state.tail
    assert state.output is not None
    assert state.output["acceptance_length"] > 1
    assert [one["prompts"] for one in state.output["passes"]] == [5, 5]
    assert state.progress is not None
    assert state.progress.done == state.progress.total


async def test_a_path_that_is_not_here_is_the_hosts(local_host: Host) -> None:
    """A set may lie on the host already; then its path is passed on as it is."""
    planned = await bench_plan(call(local_host, host="local", url="http://x", sets={"a": "/there/a.jsonl"}))
    assert "a=/there/a.jsonl" in planned["run"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"url": "u", "sets": "gsm8k.jsonl"}, "`sets` of `t1`"),
        ({"url": "u", "sets": {"a/b": "x"}}, "`sets` of `t1`"),
        ({"url": "u", "sets": {"a": "x"}, "concurency": 3}, "`concurency`"),
        ({"sets": {"a": "x"}}, "`url` is missing"),
    ],
)
async def test_a_wrong_argument_is_said_to_be(local_host: Host, args: dict[str, Any], said: str) -> None:
    """The error names the todo and the argument."""
    with pytest.raises(ToolError, match=said):
        await bench_plan(call(local_host, host="local", **args))


async def test_a_server_is_planned_for_a_service_job(local_host: Host) -> None:
    """What a step needs stands in the plan: `run`, `ready.http` and `url`; an unknown field is refused."""
    planned = await serve_plan(call(local_host, engine="vllm", model="/m"))
    assert planned["url"] == "http://127.0.0.1:8000"
    assert planned["ready"] == {"http": "http://127.0.0.1:8000/health"}
    with pytest.raises(ToolError, match="`modell`"):
        await serve_plan(call(local_host, engine="sglang", modell="/m"))


async def test_the_worst_set_speaks_for_a_drafter(local_host: Host) -> None:
    """A gate reads one verdict: that of the set that went worst."""
    good, bad = {"histogram": [100, 100, 800]}, {"histogram": [900, 90, 10]}
    found = await drafter_verdict(call(local_host, prediction={"a": good, "b": good}, measured={"a": good, "b": bad}))
    assert found["verdict"] == "engine integration broken"
    assert [one["verdict"] for one in found["sets"]] == ["healthy", "engine integration broken"]


async def test_a_search_serves_measures_stops_and_goes_on(
    local_host: Host, prompts: str, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each setting is a job; one that does not come up is told with its cause; a second run measures nothing twice."""
    monkeypatch.setattr(tune_trials, "POLL_S", 0.1)
    search = call(
        local_host, host="local", model="/m", drafter="/d", sets={"mine": prompts}, steps="1,3,7", prompts="2,4",
        max_tokens=20, port=free_port(), python=python,
    )  # fmt: skip
    found = await tune_trials.drafter_tune(search)
    tried = {trial["setting"]: trial for trial in found["trials"]}
    assert set(tried) == {"1-1-2", "3-1-4", "7-1-8"}
    assert found["failed"].keys() == {"7-1-8"}
    assert "memory" in found["failed"]["7-1-8"]
    assert tried["3-1-4"]["lengths"]["mine"] > 1
    assert found["best"] in (None, "1-1-2", "3-1-4")
    before = {state.id: state for state in await local_host.list_jobs()}
    assert all(state.terminal for state in before.values())
    again = await tune_trials.drafter_tune(search)
    measured = {state.id for state in await local_host.list_jobs() if ".bench-" in state.id}
    assert measured == {id for id in before if ".bench-" in id}
    assert again["trials"] == found["trials"]


@pytest.mark.parametrize("name", ["bench", "drafter-tune", "vllm-to-sglang", "back-to-vllm"])
def test_the_playbooks_use_tools_that_are_there(name: str) -> None:
    """Both load with the tools that serving registers."""
    assert check(find(name)) == []
