"""The dispatcher where its work crosses: a tool begun anew while its old run ends, a GPU that another took first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent.dispatcher import Dispatcher
from agent.events import Cancel, Reset
from agent.hosts import open_hosts
from agent.launcher import Launcher
from agent.load import creation, load
from agent.views import View
from state import changes as c
from state import owner
from state.db import Database
from state.errors import HostUnusable, Unreachable
from state.log import append
from state.specs import Plan, TodoSpec
from tools.base import TOOLS, ToolCall
from tools.jobs import JobSpec, JobState

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def db() -> Iterator[Database]:
    db = Database.open()
    yield db
    db.close()


async def session(db: Database, id: str, *todos: TodoSpec, **settings: Any) -> None:
    plan = Plan("p", "P", {}, todos, (), "p.yaml")
    await db.awrite(lambda conn: append(conn, id, creation(plan, {"params": {}, **settings}), 1.0))
    await db.awrite(lambda conn: owner.acquire(conn, id, owner.this_process(), 1.0))


async def test_a_tool_that_is_given_up_and_begun_anew_runs_again(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new run does not wait in vain for the old one, which is still ending, and the old answer is not its own."""
    runs: list[int] = []
    begun, over = anyio.Event(), anyio.Event()

    async def slow(call: ToolCall) -> Mapping[str, Any]:
        runs.append(len(runs) + 1)
        if runs != [1]:
            return {"run": 2}
        begun.set()
        with anyio.CancelScope(shield=True):
            await over.wait()  # a tool that takes its time to end
        return {"run": 1}

    monkeypatch.setitem(TOOLS, "slow", slow)  # type: ignore[arg-type]
    await session(db, "s", TodoSpec("t", "T", "tool", {"tool": "slow"}))
    async with open_hosts({}) as hosts, anyio.create_task_group() as group:
        dispatcher = Dispatcher(db, await db.aread(lambda conn: load(conn, "s")), hosts, View())
        group.start_soon(dispatcher.run)
        with anyio.fail_after(20):
            await begun.wait()
            await dispatcher.edit("e", [Cancel("t"), Reset(("t",))])
            over.set()
            while dispatcher.state.status == "running":  # noqa: ASYNC110  its end is no event for others
                await anyio.sleep(0.01)
    assert runs == [1, 2]
    assert dispatcher.state.todos["t"].result == {"run": 2}


async def test_a_session_that_lost_a_gpu_to_another_goes_on_when_it_is_free(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a probe found is remembered when the state is read again: the job starts once the lease is given back."""

    async def probe(call: ToolCall) -> dict[str, Any]:
        lease = c.job_submitted("other.a.1", todo="a", attempt=1, host="local", spec={}, gpus=[0])
        await db.awrite(lambda conn: append(conn, "other", [lease], 2.0))  # just before ours
        return {"usable_gpus": [0]}

    monkeypatch.setitem(TOOLS, "probe", probe)
    body = {"host": "local", "run": "true", "gpus": 1}
    await session(db, "other", TodoSpec("a", "A", "job", body))
    await session(db, "s", TodoSpec("t", "T", "job", body))
    async with open_hosts({}) as hosts, anyio.create_task_group() as group:
        dispatcher = Dispatcher(db, await db.aread(lambda conn: load(conn, "s")), hosts, View())
        group.start_soon(dispatcher.run)
        with anyio.fail_after(20):
            while dispatcher.state.leases.get(("local", 0)) != "other.a.1":  # noqa: ASYNC110
                await anyio.sleep(0.01)
            ended = c.job_state("other.a.1", "local", "exited", rc=0)
            await db.awrite(lambda conn: append(conn, "other", [ended], 3.0))
            while dispatcher.state.status == "running":  # noqa: ASYNC110
                await anyio.sleep(0.01)
    assert dispatcher.state.graph["t"].status == "completed"


async def test_gpus_that_cannot_be_looked_for_yet_are_not_none(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is away when its GPUs are looked for is asked again; the job that wants one waits and then runs."""
    asked: list[str] = []

    async def probe(call: ToolCall) -> dict[str, Any]:
        asked.append(str(call.args["host"]))
        if len(asked) < 3:
            raise Unreachable("no answer")
        return {"usable_gpus": [0]}

    monkeypatch.setitem(TOOLS, "probe", probe)
    monkeypatch.setattr("agent.dispatcher.PROBE_AGAIN_S", 0)
    await session(db, "s", TodoSpec("t", "T", "job", {"host": "local", "run": "true", "gpus": 1}))
    async with open_hosts({}) as hosts:
        dispatcher = Dispatcher(db, await db.aread(lambda conn: load(conn, "s")), hosts, View())
        with anyio.fail_after(20):
            assert await dispatcher.run() == "completed"
    assert asked == ["local"] * 3


@pytest.mark.parametrize("raised", [False, True])
async def test_gpus_that_nobody_can_tell_are_unknown_and_not_none(
    db: Database, monkeypatch: pytest.MonkeyPatch, raised: bool
) -> None:
    """The job is not started and says why, instead of counting no GPU; tried again, the host is looked at anew."""
    why = "nvidia-smi does not answer in 15 s: driver may hang"
    answers: list[dict[str, Any]] = [{"usable_gpus": None, "gpu_error": why}, {"usable_gpus": [0]}]
    over = anyio.Event()

    async def probe(call: ToolCall) -> dict[str, Any]:
        answer = answers.pop(0)
        if raised and answers:
            raise HostUnusable(why)
        return answer

    async def meanwhile(call: ToolCall) -> dict[str, Any]:
        await over.wait()
        return {}

    monkeypatch.setitem(TOOLS, "probe", probe)
    monkeypatch.setitem(TOOLS, "meanwhile", meanwhile)
    job = TodoSpec("t", "T", "job", {"host": "local", "run": "true", "gpus": 1})
    await session(db, "s", job, TodoSpec("m", "M", "tool", {"tool": "meanwhile"}))
    async with open_hosts({}) as hosts, anyio.create_task_group() as group:
        dispatcher = Dispatcher(db, await db.aread(lambda conn: load(conn, "s")), hosts, View())
        group.start_soon(dispatcher.run)
        with anyio.fail_after(20):
            while dispatcher.state.graph["t"].status == "pending":  # noqa: ASYNC110  its end is no event for others
                await anyio.sleep(0.01)
            assert dispatcher.state.graph["t"].status == "failed"
            assert f"nobody can tell which host `local` has: {why}" in str(dispatcher.state.todos["t"].reason)
            await dispatcher.edit("e", [Reset(("t",))])
            while dispatcher.state.graph["t"].status != "completed":  # noqa: ASYNC110
                await anyio.sleep(0.01)
            over.set()
    assert dispatcher.state.status == "completed"


async def test_a_launch_that_was_refused_is_not_tried_again(tmp_path: Path) -> None:
    """The core was told that it did not start: the host must not be asked again, and perhaps start it after all."""
    spec = {"run": "true"}
    folder = tmp_path / "root" / "jobs" / "j"
    (folder / "child.reserve").mkdir(parents=True)  # no room for a record can be had there
    (folder / "spec.json").write_text(json.dumps(JobSpec("j", **spec).to_wire()))
    saw: list[JobState] = []
    async with open_hosts({}) as hosts:
        with anyio.fail_after(20):
            await Launcher(hosts, saw.append, [].append, payload=None, sent_before=()).launch("local", {"j": spec})
    assert [(state.state, state.refused) for state in saw] == [
        ("prepared", f"cannot prepare `{folder}`: Is a directory")
    ]
