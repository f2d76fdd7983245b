"""How SGLang and vLLM are started, seen to be ready and stopped: one description each, made into a service job.

    body = service(ENGINES["sglang"], ServeSpec(model="/models/k2", port=30000, drafter="/drafters/k2", steps=3))
    body["run"], body["ready"], body["grace_s"]

Written against sglang 0.5.14 and vllm 0.23.0. What is said here is all that other modules know of an engine's command
line; it starts nothing. Readiness is a GET: SGLang's `/health_generate` asks the model for a token, vLLM opens its port
only once the engine has run, so its `/health` is enough to begin with, and the bench makes sure by a token of its own.
Why a server is not ready is read from its log: `diagnose`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from state.errors import UsageError


@dataclass(frozen=True, slots=True)
class ServeSpec:
    """What to serve. A field that is `None` is left to the engine.

    `address` is what it listens on. `memory_fraction` is a share of the GPU, in each engine's own meaning (vLLM: of
    everything, SGLang: of weights and KV cache). `steps`, `topk` and `draft_tokens` are SGLang's words: a chain has
    top-k 1 and steps + 1 draft tokens. `extra` are further arguments, passed on as they are.
    """

    model: str
    port: int
    address: str = "127.0.0.1"
    served_name: str | None = None
    dtype: str | None = None
    memory_fraction: float | None = None
    tensor_parallel: int | None = None
    context: int | None = None
    max_running: int | None = None
    seed: int | None = None
    drafter: str | None = None
    steps: int = 3
    topk: int = 1
    draft_tokens: int | None = None
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.model:
            raise UsageError("there is no model to serve", hint="give `model`: a folder on the host, or a name")
        if not 0 < self.port < 65536:
            raise UsageError(f"`{self.port}` is no port", hint="give one from 1 to 65535")
        if self.memory_fraction is not None and not 0 < self.memory_fraction < 1:
            raise UsageError(f"`memory_fraction` is {self.memory_fraction}", hint="give a share between 0 and 1")
        if self.drafter is not None:
            self._check_drafts()

    def _check_drafts(self) -> None:
        if self.steps < 1 or self.topk < 1:
            raise UsageError(f"steps {self.steps}, top-k {self.topk}", hint="both are at least 1")
        most = self.topk + (self.steps - 1) * self.topk**2 + 1
        if self.topk == 1 and self.drafts != self.steps + 1:
            raise UsageError(
                f"a chain of {self.steps} steps has {self.steps + 1} draft tokens, not {self.draft_tokens}",
                hint="leave `draft_tokens` out, or raise `topk` for a tree",
            )
        if not 2 <= self.drafts <= most:
            raise UsageError(
                f"{self.drafts} draft tokens of a tree of {self.steps} steps and top-k {self.topk}",
                hint=f"it has room for 2 to {most}",
            )

    @property
    def drafts(self) -> int:
        """Draft tokens, the root among them."""
        return self.steps + 1 if self.draft_tokens is None else self.draft_tokens


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine. `flags` names the option for each field of a spec; `drafting` the arguments that speculation wants.

    `ready_path` answers 2xx once it serves, `metrics_path` needs `metrics` among the arguments; `busy` are the metrics
    that count requests which run or wait; `pattern` recognises its command line. On TERM it gets `grace_s`: SGLang
    finishes what it has begun, vLLM cuts it off unless it was started with `--shutdown-timeout`: drain it first.
    """

    name: str
    program: tuple[str, ...]
    flags: Mapping[str, str]
    drafting: Callable[[ServeSpec], list[str]]
    default_port: int
    ready_path: str
    metrics_path: str = "/metrics"
    pattern: str = ""
    metrics: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    grace_s: float = 60.0

    def arguments(self, spec: ServeSpec) -> list[str]:
        """The arguments for `spec`. Raises UsageError for what this engine cannot do."""
        given = [(flag, getattr(spec, field)) for field, flag in self.flags.items()]
        told = [part for flag, value in given if value is not None for part in (flag, str(value))]
        drafting = self.drafting(spec) if spec.drafter is not None else []
        return [*told, *self.metrics, *drafting, *spec.extra]

    def command(self, spec: ServeSpec, python: str = "python3") -> list[str]:
        """The whole command line."""
        return [python, *self.program, *self.arguments(spec)]

    def url(self, spec: ServeSpec) -> str:
        """Where it is asked from on its host."""
        return f"http://{'127.0.0.1' if spec.address == '0.0.0.0' else spec.address}:{spec.port}"


def _sglang_drafting(spec: ServeSpec) -> list[str]:
    return [
        "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(spec.drafter),
        "--speculative-num-steps", str(spec.steps), "--speculative-eagle-topk", str(spec.topk),
        "--speculative-num-draft-tokens", str(spec.drafts),
    ]  # fmt: skip


def _vllm_drafting(spec: ServeSpec) -> list[str]:
    if spec.topk != 1:
        raise UsageError(f"vLLM drafts chains, and `topk` is {spec.topk}", hint="set `topk` to 1, or serve with SGLang")
    settings = {"method": "eagle3", "model": spec.drafter, "num_speculative_tokens": spec.steps}
    return ["--speculative-config", json.dumps(settings)]


SGLANG = Engine(
    name="sglang",
    program=("-m", "sglang.launch_server"),
    flags={
        "model": "--model-path", "address": "--host", "port": "--port", "served_name": "--served-model-name",
        "dtype": "--dtype", "memory_fraction": "--mem-fraction-static", "tensor_parallel": "--tp-size",
        "context": "--context-length", "max_running": "--max-running-requests", "seed": "--random-seed",
    },
    drafting=_sglang_drafting,
    default_port=30000,
    pattern=r"\bsglang\.launch_server\b|(?:^|[/\s])sglang\s+serve\b",
    ready_path="/health_generate",
    metrics=("--enable-metrics",),
    busy=("sglang:num_running_reqs", "sglang:num_queue_reqs"),
)  # fmt: skip
VLLM = Engine(
    name="vllm",
    program=("-m", "vllm.entrypoints.openai.api_server"),
    flags={
        "model": "--model", "address": "--host", "port": "--port", "served_name": "--served-model-name",
        "dtype": "--dtype", "memory_fraction": "--gpu-memory-utilization", "tensor_parallel": "--tensor-parallel-size",
        "context": "--max-model-len", "max_running": "--max-num-seqs", "seed": "--seed",
    },
    drafting=_vllm_drafting,
    default_port=8000,
    pattern=r"(?:^|[/\s])vllm\s+serve\b|\bvllm\.entrypoints\.",
    ready_path="/health",
    busy=("vllm:num_requests_running", "vllm:num_requests_waiting"),
)  # fmt: skip
ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (SGLANG, VLLM)}


def engine(name: str) -> Engine:
    """An engine by name. Raises UsageError for one that is not known."""
    if name not in ENGINES:
        raise UsageError(f"no engine is named `{name}`", hint=f"choose one of {', '.join(ENGINES)}")
    return ENGINES[name]


def service(engine: Engine, spec: ServeSpec, *, python: str = "python3") -> dict[str, Any]:
    """The body of a service job: `run`, `ready` and `grace_s`; beside it `url`, `command` and `engine`."""
    command = shlex.join(engine.command(spec, python))
    return {
        "run": f"exec {command}",
        "ready": {"http": engine.url(spec) + engine.ready_path},
        "grace_s": engine.grace_s,
        "url": engine.url(spec),
        "command": command,
        "engine": engine.name,
    }


def bench_command(folder: str, url: str, sets: Mapping[str, str], *, python: str = "python3", **options: Any) -> str:
    """The command that measures a server with the bench that lies in `folder` on the host.

    `options` are the bench's own, with `_` for `-`: a list is joined by commas, `True` is a bare flag, `None` and
    `False` are left out.
    """
    words = [python, "-m", "bench", "--url", url]
    words += [word for name, path in sets.items() for word in ("--set", f"{name}={path}")]
    for name, value in options.items():
        words += _option(name, value)
    return f"PYTHONPATH={shlex.quote(folder)} exec {shlex.join(words)}"


def _option(name: str, value: Any) -> Sequence[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is None or value is False or value == "":
        return ()
    if value is True:
        return (flag,)
    return (flag, ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
