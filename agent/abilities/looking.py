"""Looking without a graph: `probe` a host, `translate` a vLLM command, `bench` a server.

The first two answer at once. A bench takes minutes, so it becomes two todos: its plan, and the job that measures.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field

from agent.abilities.base import Ability, Input, Result, Use, _Answered, fenced, free_id
from agent.abilities.commands import After, HostName, edges, guarded
from agent.events import Add, Op
from state.errors import ToolError
from state.specs import TodoSpec
from tools import builtin  # noqa: F401 - registers the tools
from tools.base import TOOLS, ToolCall
from tools.permissions import Decision, decide_path


class ProbeInput(Input):
    host: HostName = "local"


class TranslateInput(Input):
    text: Annotated[str, Field(description="A vLLM command, script, unit, compose file or manifest.")]
    host: Annotated[str | None, Field(description="Translate for the SGLang that is installed there.")] = None
    sglang_version: str | None = None


class BenchInput(Input):
    url: Annotated[str, Field(description="Of the server, as its host sees it.")]
    host: HostName = "local"
    sets: Annotated[
        dict[str, str], Field(description="Prompt sets: a name, and a JSONL file on the operator's machine.")
    ]
    options: Annotated[
        dict[str, Any], Field(default_factory=dict, description="Such as concurrency, max_tokens, limit.")
    ]
    after: list[After | str] = Field(default_factory=list)


async def call_tool(use: Use, name: str, args: dict[str, Any]) -> dict[str, Any]:
    """One of Turnout's tools, called here and now."""
    if name not in TOOLS:
        raise ToolError(f"this Turnout has no tool `{name}`")
    return await TOOLS[name](ToolCall(use.desk.session, use.id, args, use.desk.host))


async def probe(use: Use, given: ProbeInput) -> Result:
    return Result(fenced(json.dumps(await call_tool(use, "probe", {"host": given.host}), ensure_ascii=False, indent=1)))


async def translate(use: Use, given: TranslateInput) -> Result:
    args = given.model_dump(exclude_none=True)
    return Result(fenced(json.dumps(await call_tool(use, "translate", args), ensure_ascii=False, indent=1)))


async def bench(use: Use, given: BenchInput) -> _Answered:
    state = use.graph.state
    plan, measure = free_id(state, "bench-plan"), free_id(state, "bench")
    args = {"host": given.host, "url": given.url, "sets": given.sets, **given.options}
    copied = f"copy {', '.join(given.sets.values())} from local to {given.host}"
    planned = {"tool": "bench_plan", "plain": args, "by": "model", "run": copied}
    first = TodoSpec(plan, f"Plan the bench of {given.url}", "tool", planned)
    body = {"host": given.host, "run": f"{{{{ todos['{plan}'].run }}}}", "by": "model"}
    second = TodoSpec(measure, f"Bench {given.url}", "job", body)
    free = Decision("allow", "a bench only sends requests")
    # The prompt files are copied to the host: what the policy would not simply read here is asked about.
    reading = [decide_path(use.desk.policy, "local", path, "read") for path in given.sets.values()]
    worst = next((decision for decision in reading if decision.verdict != "allow"), free)
    if worst.verdict == "deny":
        raise ToolError(f"the prompt files may not be read: {worst.why}")
    ops: list[Op] = guarded(use, [(Add(first, edges(given.after)), worst), (Add(second, ((plan, "success"),)), free)])
    return await use.edit(ops)


PROBE = Ability(
    "probe",
    "What one look can tell of a host: system, disks, Python, GPUs and who uses them, engines installed and running.",
    ProbeInput,
    probe,
    read_only=True,
    deadline_s=120.0,
)
TRANSLATE = Ability(
    "translate",
    "Translate how vLLM is launched to SGLang, with every flag accounted for.",
    TranslateInput,
    translate,
    read_only=True,
)
BENCH = Ability("bench", "Measure a model server: throughput, latency, acceptance of speculation.", BenchInput, bench)
