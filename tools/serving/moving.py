"""Tools that a move from one engine to another decides by: room on the GPUs, the command of a candidate, what won.

They read hosts and results and start nothing. The playbook `vllm-to-sglang` is their user; docs/migration.md says what
their rules mean for an operator.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from anyio import to_thread

from state.errors import ToolError
from tools.base import ToolCall, tool
from tools.probe import facts
from tools.serving.doctor_evidence import diagnose_acceptance
from tools.serving.doctor_weights import read_json
from tools.serving.engines import SGLANG, ServeSpec, engine
from tools.serving.operate import on_host, value_of
from tools.serving.steps import worst_of
from tools.ssh import Host

GIB = 1 << 30
BESIDE_FRACTION = 0.7
"""SGLang's share of the memory that is free at its start, when it starts beside another server."""
KEY = "@key:"
"""Begins a word of a command that stands for the content of a file on the host."""
_OURS = (
    "--host", "--port", "--api-key", "--served-model-name", "--enable-metrics", "--speculative-algorithm",
    "--speculative-algo", "--speculative-draft-model-path", "--speculative-draft-model", "--speculative-num-steps",
    "--speculative-eagle-topk", "--speculative-num-draft-tokens",
)  # fmt: skip
_ITS_OWN = ("PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "VLLM_")
"""Of the old server's environment what belongs to its installation, and would mislead another one."""


@tool
async def gpu_room(call: ToolCall) -> dict[str, Any]:
    """Whether a second server of `model` fits beside what runs: `mode` `blue-green` or `stop-start`, `why`, the sizes.

    `mode` other than `auto` is taken as it is. Each of `tensor_parallel` GPUs needs `need_gib`, else its share of the
    weights on disk times 1.3 and up to 4 GiB. Without a GPU the host's memory decides. What cannot be told counts as no
    room.
    """
    wanted = str(call.args.get("mode") or "auto")
    if wanted != "auto":
        return {"mode": wanted, "why": "the operator chose it", "free_gib": None, "need_gib": None}
    host, over = await call.host(str(call.arg("host"))), int(call.args.get("tensor_parallel") or 1)
    free, of = free_gib(facts(await host.probe()), over)
    need = float(call.args.get("need_gib") or 0) or await _need_gib(host, str(call.args.get("model") or ""), over)
    sizes = {"free_gib": free, "need_gib": need}
    if free is None or need is None:
        what = "how much memory is free" if free is None else "how large the model is"
        return {"mode": "stop-start", "why": f"it cannot be told {what}", **sizes}
    why = f"{free:.1f} GiB of {of} are free, about {need:.1f} are needed"
    return {"mode": "blue-green" if free >= need else "stop-start", "why": why, **sizes}


def free_gib(told: Mapping[str, Any], over: int = 1) -> tuple[float | None, str]:
    """What is free on each of the `over` freest GPUs, and what that is a share of; `None` when it cannot be told."""
    if not told["gpus"] and "no `nvidia-smi`" in str(told["gpu_error"]):
        return round(told["memory"]["available"] / GIB, 2), "the host's memory"
    known = [card for card in told["gpus"] if card["memory_total_mib"] and card["memory_used_mib"] is not None]
    free = sorted(((card["memory_total_mib"] - card["memory_used_mib"]) / 1024 for card in known), reverse=True)
    return (round(free[over - 1], 2) if len(free) >= over else None), f"each of {over} GPUs" if over > 1 else "a GPU"


async def _need_gib(host: Host, model: str, over: int) -> float | None:
    """What each GPU of a server needs at least: its part of the weights, a third more, up to 4 GiB to work in."""
    if not model:
        return None
    hub = (
        f'"${{HF_HUB_CACHE:-${{HF_HOME:-$HOME/.cache/huggingface}}/hub}}/models--{model.replace("/", "--")}/snapshots"'
    )
    places = shlex.quote(model) + ("" if model.startswith(("/", ".", "~")) else f" {hub}/*")
    done = await host.run(f"find -L {places} -maxdepth 1 -type f -size +1M -printf '%s\\n' 2>/dev/null")
    sizes = [int(line) for line in done.stdout.decode("ascii", "replace").split() if line.isdigit()]
    if not sizes:
        return None
    weights = sum(sizes) / GIB / over
    return round(1.3 * weights + min(4.0, 1 + weights), 2)


@tool
async def candidate_plan(call: ToolCall) -> dict[str, Any]:
    """How SGLang is started as a candidate: `run`, `ready`, `url`, `argv`, `grace_s`.

    `translation` is what `translate` made of the old command; its port, address, name and speculation give way to
    `port`, `served_name`, `drafter`, `steps`, `memory_fraction` and `key_file`. Without one, `model` and these are all.
    `drop` are flags of the translation to leave out; `env` goes before the command, `extra` after it. Raises ToolError
    when somebody listens on that port of `host`.
    """
    told: Mapping[str, Any] = call.args.get("translation") or {}
    dropped = (*_OURS, *map(str, call.args.get("drop") or ()))
    kept = without([str(word) for word in told.get("arguments") or ()], dropped)
    model = value_of(kept, "--model-path", "--model") or str(call.args.get("model") or "")
    fraction = call.args.get("memory_fraction") or None
    if fraction:
        kept = without(kept, ("--mem-fraction-static",))
    spec = ServeSpec(
        model, int(call.args.get("port") or SGLANG.default_port),
        served_name=call.args.get("served_name") or None,
        memory_fraction=float(fraction) if fraction else None,
        drafter=call.args.get("drafter") or None, steps=int(call.args.get("steps") or 3),
        extra=(*without(kept, ("--model-path", "--model")), *map(str, call.args.get("extra") or ())),
    )  # fmt: skip
    if call.args.get("key_file"):
        spec = replace(spec, extra=(*spec.extra, "--api-key", f"{KEY}{call.args['key_file']}"))
    if call.args.get("host"):
        await _port_is_free(await call.host(str(call.args["host"])), spec.port)
    argv = SGLANG.command(spec, str(call.arg("python", "python3")))
    env = {name: value for name, value in (call.args.get("env") or {}).items() if not name.startswith(_ITS_OWN)}
    return {**launched(argv, env, SGLANG.url(spec)), "model": model}


async def _port_is_free(host: Host, port: int) -> None:
    """Raises ToolError when somebody listens there: whoever it is would answer for the server that cannot start."""
    held = (await on_host(host, "holders", {"port": port}))["holders"]
    if held:
        raise ToolError(f"port {port} of `{host.spec.name}` is taken by {held[0]}", hint="give another with `new_port`")


def launched(argv: Sequence[str], env: Mapping[str, str], url: str) -> dict[str, Any]:
    """A command as the body of a service job."""
    settings = "".join(f"{name}={shlex.quote(value)} " for name, value in env.items())
    ready = {"http": url + SGLANG.ready_path}
    command = " ".join(_word(word) for word in argv)
    run = f"{'exec env ' if settings else 'exec '}{settings}{command}"
    return {"run": run, "argv": list(argv), "env": dict(env), "url": url, "ready": ready, "grace_s": SGLANG.grace_s}


def _word(word: str) -> str:
    """A word of a command for the shell; a key stays in its file on the host until it is needed."""
    if word.startswith(KEY):
        return f'"$(cat {shlex.quote(word.removeprefix(KEY))})"'
    return shlex.quote(word)


def without(argv: Sequence[str], flags: Sequence[str]) -> list[str]:
    """The arguments without these flags and their values."""
    found: list[str] = []
    dropping = False
    for word in argv:
        if word.startswith("--"):
            name, joined, _ = word.partition("=")
            dropping = name.replace("_", "-") in flags
            if not dropping:
                found.append(word)
            dropping = dropping and not joined
        elif not dropping:
            found.append(word)
    return found


@tool
async def attempt_plan(call: ToolCall) -> dict[str, Any]:
    """A last try with the old engine beside itself: the same command (`argv`) on another `port`, without speculation.

    What it measures is what the speculation of the old server is worth. Raises ToolError when there is no such server
    to try, or `mode` says that there is no room.
    """
    chosen = engine(str(call.arg("engine", "vllm")))
    argv = [str(word) for word in call.arg("argv")]
    if str(call.args.get("wanted", "yes")) == "no":
        raise ToolError("the operator left the last try out")
    if call.args.get("key_file"):
        argv = [*without(argv, ("--api-key",)), "--api-key", f"{KEY}{call.args['key_file']}"]
    if "[redacted]" in argv:
        raise ToolError("the old command has a secret in it, and cannot be repeated", hint="set `last_try` to no")
    if not call.args.get("speculates"):
        raise ToolError("the old server does not speculate: there is nothing to try again without")
    if call.args.get("mode") != "blue-green":
        raise ToolError(f"there is no room for a second server: {call.args.get('why')}")
    port, extra = int(call.arg("port")), [str(word) for word in call.args.get("extra") or ()]
    dropped = ("--port", "--speculative-config", "--gpu-memory-utilization", "--spec-config")
    kept = without(argv, [*dropped, *(word for word in extra if word.startswith("--"))])
    share = ["--gpu-memory-utilization", str(call.args["memory_fraction"])] if call.args.get("memory_fraction") else []
    words = [*kept, "--port", str(port), *share, *extra]
    url = f"http://127.0.0.1:{port}"
    return {**launched(words, call.args.get("env") or {}, url), "ready": {"http": url + chosen.ready_path}}


@tool
async def weigh(call: ToolCall) -> dict[str, Any]:
    """What the old engine's speculation is worth: `acceptance_length`, `multiplier`, and whether to `stay`, with `why`.

    `before` and `attempt` are results of the bench with and without speculation. To stay, both thresholds have to hold;
    what was not measured holds none.
    """
    before: Mapping[str, Any] = call.arg("before")
    attempt: Mapping[str, Any] = call.args.get("attempt") or {}
    length, rate = before.get("acceptance_length"), before.get("tokens_per_s")
    plain = attempt.get("tokens_per_s")
    multiplier = round(rate / plain, 3) if rate and plain else None
    least_length, least = float(call.arg("stay_length", 2.0)), float(call.arg("stay_multiplier", 1.2))
    stay = length is not None and multiplier is not None and length >= least_length and multiplier >= least
    shown = [
        f"acceptance length {length:.2f} (to stay: {least_length:.2f})" if length else "no acceptance was measured",
        f"{multiplier:.2f} times as fast as without speculation (to stay: {least:.2f})"
        if multiplier
        else "what speculation gains was not measured",
    ]
    return {
        "acceptance_length": length, "acceptance_rate": before.get("acceptance_rate"), "tokens_per_s": rate,
        "plain_tokens_per_s": plain, "multiplier": multiplier, "stay": stay, "why": "; ".join(shown),
    }  # fmt: skip


@tool
async def choose_candidate(call: ToolCall) -> dict[str, Any]:
    """The fastest of `candidates` whose answers agree: `name`, `drafter`, and each one's figures or reason not to.

    `benches` and `answers` are results by name, `agree` the least agreement. A drafter has to be faster than none.
    `plan` is the chosen one's of `plans`, or of `adjusted` where its first start had failed.
    Raises ToolError when none is left.
    """
    benches: Mapping[str, Any] = call.args.get("benches") or {}
    answers: Mapping[str, Any] = call.args.get("answers") or {}
    least = float(call.arg("agree", 0.8))
    table, fit = {}, []
    for one in call.arg("candidates"):
        name = str(one["name"])
        bench, said = benches.get(name) or {}, answers.get(name) or {}
        why = _unfit(bench, said, least)
        table[name] = {
            "tokens_per_s": bench.get("tokens_per_s"), "acceptance_length": bench.get("acceptance_length"),
            "multiplier": bench.get("multiplier"), "agree": said.get("agree"), "left_out": why,
        }  # fmt: skip
        if why is None:
            fit.append((float(bench["tokens_per_s"]), one))
    if not fit:
        reasons = "; ".join(f"{name}: {row['left_out']}" for name, row in table.items())
        raise ToolError(f"no candidate can take over: {reasons}", hint="the report has each one's figures and logs")
    best = max(fit, key=lambda pair: pair[0])[1]
    adjusted = (call.args.get("adjusted") or {}).get(best["name"]) or {}
    plan = adjusted if "run" in adjusted else (call.args.get("plans") or {}).get(best["name"])
    return {"name": best["name"], "drafter": best["drafter"], "plan": plan, "candidates": table}


def _unfit(bench: Mapping[str, Any], said: Mapping[str, Any], least: float) -> str | None:
    if not bench.get("tokens_per_s"):
        return "it did not come up, or was not measured"
    if said.get("agree") is None:
        return "its answers were not compared"
    if said["agree"] < least:
        return f"its answers agree by {said['agree']:.2f} with the old server's, at least {least:.2f} are wanted"
    if said.get("broken"):
        return f"its answers differ in form: {', '.join(said['broken'])}"
    return None


@tool
async def doctor_if_low(call: ToolCall) -> dict[str, Any]:
    """The doctor's verdict where the acceptance of `measured` is below `low` and there is a `prediction` (a file here).

    Else `verdict` is `None`, and `why` says so: without a prediction a weak drafter and a broken engine look alike.
    """
    measured: Mapping[str, Any] = call.arg("measured")
    length, low = measured.get("acceptance_length"), float(call.arg("low", 2.0))
    path = str(call.args.get("prediction") or "")
    if length is None:
        return {"verdict": None, "why": "it does not speculate"}
    if not path:
        low_or_not = "low" if length < low else "not low"
        return {"verdict": None, "why": f"the acceptance length {length:.2f} is {low_or_not}; no prediction was given"}
    prediction = await to_thread.run_sync(lambda: read_json(Path(path).expanduser()))
    return worst_of(diagnose_acceptance(prediction, measured, []))
