"""Looking at servers and deciding about them: commands, memory, what a log asks for, who wins; and proofs on a host."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from state.errors import ToolError
from tests.hosting import end_jobs, ended, free_port, gone
from tests.standin_process import lay_out
from tools.base import ToolCall
from tools.hostkeys import HostSpec
from tools.jobs import JobSpec
from tools.probe import facts
from tools.remote.probe import GPU_COLUMNS
from tools.serving import adjust, moving, operate, research
from tools.serving.adjust import change_for
from tools.serving.engines import SGLANG, VLLM
from tools.ssh import Host

pytest_plugins = ("tests.servers",)
pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Host]:
    async with Host(HostSpec(name="local", root=str(tmp_path / "root"))) as connected:
        yield connected
        await end_jobs(connected)


def call(there: Host | None = None, **args: Any) -> ToolCall:
    async def by_name(_: str) -> Host:
        assert there is not None
        return there

    return ToolCall("s1", "t1", args, by_name)


@pytest.fixture
def server(tmp_path: Path) -> Any:
    """Start stand-in vLLM servers; they are gone at the end."""
    modules, started = lay_out(tmp_path / "modules"), []

    def start(*more: str, port: int, through: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        words = [
            *through,
            sys.executable,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            "/m",
            "--port",
            str(port),
            *more,
        ]
        env = {"PYTHONPATH": str(modules), "CUDA_VISIBLE_DEVICES": "3", "HF_TOKEN": "hf_secretsecret"}
        process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE)
        assert process.stdout is not None
        for line in process.stdout:
            if b"startup complete" in line:
                break
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_a_running_server_is_found_with_its_command_and_no_secret(here: Host, server: Any) -> None:
    """Port, model and form are told; a key in the command and a token in the environment are not."""
    port = free_port()
    process = server("--api-key", "sk-verysecret", "--speculative-config", "{}", port=port)
    found = await operate.engine_find(call(here, host="local", port=port))
    assert (found["pid"], found["port"], found["model"], found["form"]) == (process.pid, port, "/m", "process")
    assert found["speculates"] is True
    assert found["env"]["CUDA_VISIBLE_DEVICES"] == "3"
    assert "secret" not in json.dumps(found)


async def test_nobody_on_the_port_is_said(here: Host) -> None:
    """An error names the port."""
    port = free_port()
    with pytest.raises(ToolError, match=f"nobody listens on port {port}"):
        await operate.engine_find(call(here, host="local", port=port))


async def test_the_server_is_found_below_the_shell_that_starts_it(here: Host, server: Any) -> None:
    """A unit may begin with a script: the process that serves is the one that is told, and no other is taken for it."""
    port = free_port()
    inner = server(port=port, through=["sh", "-c", '"$@"; true', "sh"])
    found = await operate.on_host(here, "describe", {"pid": inner.pid, "pattern": VLLM.pattern})
    assert found["parent"].startswith(f"{inner.pid} sh")
    with pytest.raises(ToolError, match="not the server that is looked for"):
        await operate.on_host(here, "describe", {"pid": inner.pid, "pattern": SGLANG.pattern})
    told = await operate.engine_stop(call(here, host="local", pid=inner.pid, settle_s=0))
    assert told["processes"] == 2


async def test_a_stop_is_proved_and_may_be_repeated(here: Host, server: Any) -> None:
    """The server is drained and gone; a second stop finds that, and another process of that number is left alone."""
    port = free_port()
    process = server(port=port)
    found = await operate.engine_find(call(here, host="local", port=port))
    asked = {"host": "local", "engine": "vllm", "pid": found["pid"], "ticks": found["ticks"], "settle_s": 0.1}
    told = await operate.engine_stop(call(here, **asked, url=found["url"], drain_s=5))
    assert (told["was_running"], told["drained"], told["requests_left"]) == (True, True, 0)
    assert await gone(process.pid)
    assert (await operate.engine_stop(call(here, **asked)))["was_running"] is False
    other = server(port=port)
    again = await operate.engine_stop(call(here, **{**asked, "pid": other.pid}))
    assert "another one" in again["note"]
    assert other.poll() is None


async def test_what_is_not_asked_for_is_not_stopped(here: Host) -> None:
    """`when: false` touches nothing."""
    assert (await operate.engine_stop(call(here, host="local", when=False, pid=1)))["was_running"] is None


async def test_health_is_a_token(here: Host, server: Any) -> None:
    """A server that generates is well; one that only answers `/health` is told by what it said."""
    port = free_port()
    server(port=port)
    assert (await operate.engine_health(call(here, host="local", url=f"http://127.0.0.1:{port}")))["healthy"] is True
    with pytest.raises(ToolError, match="does not generate"):
        await operate.engine_health(call(here, host="local", url=f"http://127.0.0.1:{free_port()}"))


async def test_a_candidate_is_not_planned_for_a_port_in_use(here: Host) -> None:
    """Whoever listens there is named."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ToolError, match="is taken by"):
            await moving.candidate_plan(call(here, host="local", model="/m", port=other.getsockname()[1]))


async def test_a_candidate_keeps_the_translated_flags_and_takes_its_own() -> None:
    """Port, name, key and speculation of the old command give way; the rest stays; a key is read from its file."""
    arguments = ["--model-path", "/m", "--port", "8000", "--host=0.0.0.0", "--tp-size", "2", "--api-key", "x",
                 "--speculative-num-steps", "9", "--mem-fraction-static", "0.25", "--dtype", "auto"]  # fmt: skip
    told = await moving.candidate_plan(
        call(
            translation={"arguments": arguments}, python="/p/python3", port=30001, served_name="k2", drafter="/d",
            steps=2, memory_fraction=0.6, key_file="/root/a key", drop=["--tp-size"],
            env={"CUDA_VISIBLE_DEVICES": "1", "PYTHONPATH": "/v"},
        )
    )  # fmt: skip
    assert told["run"].startswith("exec env CUDA_VISIBLE_DEVICES=1 /p/python3 -m sglang.launch_server --model-path /m")
    assert told["run"].endswith("""--dtype auto --api-key "$(cat '/root/a key')\"""")
    assert " --speculative-num-steps 2 " in told["run"]
    assert "8000" not in told["run"]
    assert "0.25" not in told["run"]
    assert told["ready"] == {"http": "http://127.0.0.1:30001/health_generate"}


async def test_the_last_try_is_the_old_command_without_speculation() -> None:
    """Only port, memory and speculation change; without room or speculation there is none."""
    argv = ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/m", "--port", "8000",
            "--speculative-config", "{}", "--gpu-memory-utilization=0.9"]  # fmt: skip
    asked = {"argv": argv, "speculates": True, "mode": "blue-green", "port": 8001, "memory_fraction": "0.2"}
    told = await moving.attempt_plan(call(**asked))
    assert told["run"].endswith("--model /m --port 8001 --gpu-memory-utilization 0.2")
    for change, said in (
        ({"mode": "stop-start", "why": "x"}, "no room"),
        ({"speculates": False}, "does not speculate"),
    ):
        with pytest.raises(ToolError, match=said):
            await moving.attempt_plan(call(**{**asked, **change}))


@pytest.mark.parametrize(
    ("remedy", "argv", "change"),
    [
        ("LOWER --mem-fraction-static by 0.05, or capture fewer", ["--mem-fraction-static", "0.7"], "0.65"),
        ("LOWER --mem-fraction-static by 0.05, or", [], "0.83"),
        ("RAISE --mem-fraction-static (now 0.5): the weights leave no room", [], "0.55"),
        ("GiB short. LOWER --gpu-memory-utilization from 0.95 to 0.89", ["--gpu-memory-utilization=0.95"], "0.89"),
        ("LOWER --max-model-len from 32768 to at most 3664, or RAISE --x", [], "3664"),
        ("LOWER --max-running-requests or RAISE --mem-fraction-static", ["--max-running-requests", "64"], "32"),
        ("LOWER --max-running-requests or", [], None),
        ("RAISE --mem-fraction-static", ["--mem-fraction-static", "0.95"], None),
        ("use more GPUs, or a smaller model", [], None),
    ],
)
def test_a_log_asks_for_one_change(remedy: str, argv: list[str], change: str | None) -> None:
    """The flag and its new value are read from the remedy; what asks for anything else is left to the operator."""
    found = change_for(remedy, argv)
    assert (found.value if found else None) == change


async def test_a_failed_start_is_planned_again_with_what_its_log_asks_for(here: Host) -> None:
    """The newest job of the todo is read; the change is told."""
    log = (
        "[2026-12-01 09:00:00] server_args=ServerArgs(model_path='/m', mem_fraction_static=0.9)\n"
        "[2026-12-01 09:00:01] Capture cuda graph begin. This can take up to several minutes. avail mem=0.41 GB\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    )
    jobs = [
        JobSpec("s1.serve_own-0123abcd.1", "exit 1"),
        JobSpec("s1.serve_own-0123abcd.2", f"cat <<'X'\n{log}\nX\nexit 1"),
    ]
    await here.launch(jobs)
    await ended(here, [job.id for job in jobs])
    plan = {"argv": ["python3", "--mem-fraction-static", "0.9"], "env": {}, "url": "http://x"}
    told = await adjust.adjusted_plan(call(here, host="local", job="serve@own", plan=plan))
    assert told["changed"] == "--mem-fraction-static from 0.9 to 0.85"
    assert told["run"] == "exec python3 --mem-fraction-static 0.85"
    why = await operate.engine_why(call(here, host="local", job="serve@own"))
    assert why["job"].endswith(".2")
    assert "out of memory" in why["kind"]


@pytest.mark.parametrize(
    ("length", "plain", "stay"), [(2.5, 100.0, True), (1.5, 100.0, False), (2.5, 400.0, False), (None, 100.0, False)]
)
async def test_vllm_stays_only_if_both_thresholds_hold(length: float | None, plain: float, stay: bool) -> None:
    """Length and multiplier are both wanted, and what was not measured holds nothing."""
    before = {"acceptance_length": length, "tokens_per_s": 200.0}
    told = await moving.weigh(
        call(before=before, attempt={"tokens_per_s": plain}, stay_length=2.0, stay_multiplier=1.2)
    )
    assert told["stay"] is stay
    told = await moving.weigh(call(before=before, stay_length=0.1, stay_multiplier=0.1))
    assert told["stay"] is False


async def test_the_fastest_that_answers_alike_wins() -> None:
    """Garbage, changed forms and what was not measured are left out, each with its reason; none left is an error."""
    candidates = [{"name": name, "drafter": ""} for name in ("base", "fast", "deaf", "lost", "wrong")]
    speeds = {"base": 100.0, "fast": 150.0, "deaf": 300.0, "wrong": 400.0}
    answers = {name: {"agree": 0.95, "broken": []} for name in speeds}
    answers["deaf"]["broken"] = ["a tool call is no longer parsed"]
    answers["wrong"]["agree"] = 0.1
    benches = {name: {"tokens_per_s": speed} for name, speed in speeds.items()}
    asked = {"candidates": candidates, "benches": benches, "answers": answers, "plans": {"fast": {"run": "a"}}}
    told = await moving.choose_candidate(call(**asked, agree=0.8))
    assert (told["name"], told["plan"]) == ("fast", {"run": "a"})
    why = {name: row["left_out"] for name, row in told["candidates"].items()}
    assert "did not come up" in why["lost"]
    assert "0.10" in why["wrong"]
    again = await moving.choose_candidate(call(**asked, adjusted={"fast": {"run": "b"}, "base": {"failure": "failed"}}))
    assert again["plan"] == {"run": "b"}
    with pytest.raises(ToolError, match="no candidate can take over"):
        await moving.choose_candidate(call(**asked, agree=0.99))


def test_room_is_that_of_the_freest_gpus() -> None:
    """For a server over two GPUs the second freest counts; without a tool the host's memory; unknown is none."""
    names = GPU_COLUMNS.replace("memory.total", "memory.total [MiB]").replace("memory.used", "memory.used [MiB]")
    rows = [names.replace(",", ", ")]
    for index, used in enumerate((70000, 1000, 30000)):
        rows.append(f"{index}, GPU-{index}, NVIDIA H100, 0:0, 9.0, 81920 MiB, {used} MiB, {81920 - used} MiB, 0 %, 30, "
                    "80 W, Disabled, 580.1, P0")  # fmt: skip
    told = facts({"gpu": {"query": "\n".join(rows)}, "memory": {"available": 1}})
    assert moving.free_gib(told)[0] == pytest.approx(79.02, abs=0.01)
    assert moving.free_gib(told, 2)[0] == pytest.approx(50.7, abs=0.01)
    assert moving.free_gib(told, 4)[0] is None
    assert (
        moving.free_gib(facts({"gpu": {"error": "no `nvidia-smi` on the PATH"}, "memory": {"available": 2 << 30}}))[0]
        == 2
    )
    assert moving.free_gib(facts({"gpu": {"error": "nvidia-smi does not answer in 5 s"}, "memory": {}}))[0] is None


async def test_what_no_host_can_tell_counts_as_no_room(here: Host, tmp_path: Path) -> None:
    """A model whose size is not known is served one after the other; one that is small, beside what runs."""
    (tmp_path / "model.safetensors").write_bytes(bytes(2 << 20))
    assert (await moving.gpu_room(call(here, host="local", model=str(tmp_path))))["mode"] == "blue-green"
    told = await moving.gpu_room(call(here, host="local", model="org/never-downloaded"))
    assert (told["mode"], told["need_gib"]) == ("stop-start", None)
    assert (await moving.gpu_room(call(here, host="local", mode="stop-start")))["why"] == "the operator chose it"


async def test_the_doctor_is_asked_only_when_something_is_wrong(tmp_path: Path) -> None:
    """Without speculation or a prediction there is no verdict, and the reason is told."""
    assert "does not speculate" in (await moving.doctor_if_low(call(measured={"acceptance_length": None})))["why"]
    assert "no prediction" in (await moving.doctor_if_low(call(measured={"acceptance_length": 1.1})))["why"]
    (tmp_path / "p.json").write_text('{"histogram": [200, 100, 700]}')
    measured = {"acceptance_length": 1.02, "histogram": [980, 15, 5]}
    told = await moving.doctor_if_low(call(measured=measured, prediction=str(tmp_path / "p.json")))
    assert told["verdict"] == "engine integration broken"


async def test_findings_need_no_model(here: Host) -> None:
    """What the translation lost and what is known of drafters is put together without a network."""
    translation = {"no_counterpart": ["--swap-space 4 (gone)"], "warnings": []}
    told = await research.engine_findings(call(here, host="local", translation=translation, speculates=True))
    assert any("--swap-space" in line for line in told["findings"])
    assert any("EAGLE" in line for line in told["findings"])
