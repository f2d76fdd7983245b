"""Serves a drafter with one setting after another on a host and measures each: the search of `tune`, as a tool.

    - id: tune
      tool: drafter_tune
      args: {host: gpu1, model: /models/k2, drafter: /drafters/k2, sets: {mt: mt_bench.jsonl}, steps: [1, 2, 3, 5]}

Every server and every measurement is a job whose id follows from the todo and the setting, so a search that was
interrupted finds what it had started and goes on from the results that are there. A setting with which the server does
not come up counts as measured at zero, with the reason that its log gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import anyio

from state.errors import ToolError
from tools.base import ToolCall, tool
from tools.diagnose import diagnose
from tools.jobs import JobSpec, JobState, describe_end
from tools.serving.engines import SGLANG, ServeSpec, bench_command, service
from tools.serving.steps import prompt_sets, stage
from tools.serving.tune import Figures, Measured, Setting, grid, tune
from tools.ssh import Host

POLL_S = 1.0
TAIL_BYTES = 256 * 1024


@tool
async def drafter_tune(call: ToolCall) -> dict[str, Any]:
    """The best speculative setting of SGLang for a `drafter` of `model` on `host`; see `tune.Outcome.as_json`."""
    host = await call.host(str(call.arg("host")))
    folder, sets = await stage(host, prompt_sets(call))
    trials = Trials(call, host, folder, sets)
    settings = grid(_numbers(call.arg("steps", [1, 2, 3, 5])), _numbers(call.arg("topk", [1])))
    if not settings:
        raise ToolError(
            f"drafter_tune of `{call.todo}`: no setting to try", hint="give `steps` and `topk` of 1 or more"
        )
    try:
        outcome = await tune(trials.measure, settings, prompts=_numbers(call.arg("prompts", [8, 32])))
    finally:
        with anyio.CancelScope(shield=True):
            await trials.stop()
    return {**outcome.as_json(), "failed": trials.failed}


class Trials:
    """Runs the trials of one search. The server of a trial stays up until another setting is asked for."""

    def __init__(self, call: ToolCall, host: Host, folder: str, sets: Mapping[str, str]) -> None:
        self._call, self._host, self._folder, self._sets = call, host, folder, sets
        self._serving: str | None = None  # the setting whose server is up
        self._running: list[str] = []
        self.failed: dict[str, str] = {}

    async def measure(self, setting: Setting | None, prompts: int) -> Figures:
        """What each set gives. Raises ToolError when the server without speculation does not come up."""
        name = setting.name if setting else "plain"
        _, known = await self._attempt(f"bench-{name}-{prompts}")
        if not known.ok and name not in self.failed:
            await self._serve(name, setting)
        if name in self.failed:
            if setting is None:
                raise ToolError(f"the server without speculation did not come up: {self.failed[name]}")
            return {one: Measured(0.0) for one in self._sets}
        done = known if known.ok else await self._bench(name, prompts)
        return {one["set"]: _measured(one) for one in (done.output or {})["passes"]}

    async def stop(self) -> None:
        """End what is running."""
        if self._running:
            await self._host.kill(self._running)
        self._running, self._serving = [], None

    async def _attempt(self, what: str) -> tuple[str, JobState]:
        """The id of the attempt that counts, and its state: the first that was neither cancelled nor lost."""
        for number in count(1):
            job = f"{self._call.session}.{self._call.todo}.{what}.{number}"
            (state,) = await self._host.status([job])
            if not state.cancelled and state.state != "lost":
                break
        return job, state

    async def _launch(self, job: str, run: str, wanted: str, **more: Any) -> JobState:
        """Start a job, or find it, and wait until it is as wanted or over."""
        self._running.append(job)
        await self._host.launch([JobSpec(job, run, **more)])
        while True:
            (state,) = await self._host.status([job])
            if state.terminal or state.state in (wanted, "unknown"):
                return state
            await anyio.sleep(POLL_S)

    async def _serve(self, name: str, setting: Setting | None) -> None:
        if self._serving == name:
            return
        await self.stop()
        job, _ = await self._attempt(f"serve-{name}")
        body = service(SGLANG, self._spec(setting), python=str(self._call.arg("python", "python3")))
        env = {"CUDA_VISIBLE_DEVICES": str(self._call.args["gpus"])} if self._call.args.get("gpus") else {}
        state = await self._launch(
            job, body["run"], "ready", env=env, ready=body["ready"], grace_s=body["grace_s"]
        )  # fmt: skip
        self._serving = name
        if state.state != "ready":
            piece = await self._host.read_log(job, -TAIL_BYTES, TAIL_BYTES)
            found = diagnose(piece.data, source=job)
            self.failed[name] = (
                f"{found.kind or describe_end(state)}: {found.remedy or 'see `turnout logs ' + job + '`'}"
            )
            await self.stop()

    def _spec(self, setting: Setting | None) -> ServeSpec:
        args = self._call.args
        drafts: dict[str, Any] = {}
        if setting is not None:
            drafts = {
                "drafter": str(self._call.arg("drafter")), "steps": setting.steps, "topk": setting.topk,
                "draft_tokens": setting.draft_tokens,
            }  # fmt: skip
        return ServeSpec(
            str(self._call.arg("model")),
            int(args.get("port") or SGLANG.default_port),
            max_running=int(args.get("max_running") or 48),  # what speculation would set, for both alike
            extra=tuple(map(str, args.get("extra") or ())),
            **drafts,
        )

    async def _bench(self, name: str, prompts: int) -> JobState:
        job, _ = await self._attempt(f"bench-{name}-{prompts}")
        url = SGLANG.url(self._spec(None))
        command = bench_command(
            self._folder, url, self._sets, python=str(self._call.arg("python", "python3")), limit=prompts,
            max_tokens=self._call.args.get("max_tokens"), concurrency=self._call.args.get("concurrency"),
            wait=60, out=f"/tmp/{job}.json",
        )  # fmt: skip
        state = await self._launch(job, command, "exited")
        self._running.remove(job)
        if not state.ok or state.output is None:
            raise ToolError(
                f"measuring `{name}` did not end well: {describe_end(state)}", hint=f"see `turnout logs {job}`"
            )
        return state


def _measured(one: Mapping[str, Any]) -> Measured:
    accepted = one["acceptance"] or {}
    conditional = tuple(c or 0.0 for c in accepted.get("conditional", ()))
    return Measured(one["tokens_per_s"], accepted.get("length", 1.0), conditional)


def _numbers(value: Any) -> list[int]:
    return [int(one) for one in (value if isinstance(value, list) else str(value).split(","))]
