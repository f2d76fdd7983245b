"""What can be found out about moving a model to SGLang without a model to think: the fallback of the research step.

    - id: research
      research:
        prompt: ...
        fallback: {tool: engine_findings, args: {host: gpu1, translation: "{{ todos.translate }}", drafter: /d}}

It puts together what the installed tables, the drafter's folder and a short list of known faults say. It asks no
network: what it cannot know it does not claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyio import to_thread

from state.errors import UsageError
from tools.base import ToolCall, tool
from tools.serving.doctor_folder import examine

KNOWN = (
    ("eagle3", "vllm", "vLLM #43671", "auxiliary layers read one off: acceptance far below what the drafter can do"),
    ("eagle3", "vllm", "vLLM #14649", "the KV cache of accepted tokens is approximate: acceptance falls with length"),
    ("eagle3", "vllm", "vLLM #41838", "a stale prefix cache of the drafter: acceptance decays with traffic"),
    ("eagle3", "sglang", "SGLang #25454", "explicit layer ids mean another boundary than in vLLM: check the config"),
    ("eagle3", "sglang", "SGLang #32334", "`norm_before_fc` of a drafter is dropped without a word"),
    ("eagle3", "sglang", "SGLang #21272", "the algorithm EAGLE with an EAGLE-3 drafter starts, and accepts nothing"),
    ("eagle3", "sglang", "SGLang #6783", "a drafter config with a short context ends long answers' speculation"),
    ("serve", "sglang", "defaults", "it listens on 127.0.0.1:30000, not 0.0.0.0:8000; /metrics is off"),
    ("serve", "sglang", "answers", "`reasoning` is called `reasoning_content`, `stop_reason` `matched_stop`"),
    ("serve", "sglang", "0.5.14", "/tokenize answers 500 if the tokenizer names no `model_max_length`"),
    ("serve", "sglang", "limits", "with speculation at most 48 requests run at once, unless that is set"),
)
"""What it concerns, the engine, where it is told, and what an operator sees."""


@tool
async def engine_findings(call: ToolCall) -> dict[str, Any]:
    """Findings on a move of the server `find` to SGLang: `findings` (sentences), `sources`, `by`."""
    told: Mapping[str, Any] = call.args.get("translation") or {}
    found = [f"no counterpart in SGLang: {_said(one)}" for one in told.get("no_counterpart") or ()]
    found += [f"changes its meaning: {_said(one)}" for one in told.get("warnings") or ()]
    drafter = str(call.args.get("drafter") or "")
    concerns = {"serve", "eagle3"} if drafter or call.args.get("speculates") else {"serve"}
    known = [(engine, where, what) for about, engine, where, what in KNOWN if about in concerns]
    found += [f"{engine}: {what} ({where})" for engine, where, what in known]
    found += await _of_folder(drafter)
    return {"findings": found, "sources": [where for _, where, _ in known], "by": "tables and the drafter's folder"}


async def _of_folder(drafter: str) -> list[str]:
    """What the doctor finds in a drafter's folder, if that lies on this machine."""
    return await to_thread.run_sync(_examined, Path(drafter)) if drafter else []


def _examined(folder: Path) -> list[str]:
    folder = folder.expanduser()
    if not folder.is_dir():
        return []
    try:
        findings = examine(folder)
    except UsageError as error:
        return [f"the drafter in `{folder}` cannot be read: {error.message}"]
    return [f"drafter: {one.what}; {one.remedy}" for one in findings] or ["drafter: nothing wrong with its folder"]


def _said(one: Any) -> str:
    """One entry of a translation's report as a sentence."""
    if isinstance(one, Mapping):
        return ": ".join(
            str(part) for part in (one.get("flag") or one.get("source"), one.get("note") or one.get("why")) if part
        )
    return str(one)
