"""Evidence without a model: what a host's engines say about speculative decoding, as a report like a subagent's.

    - id: research
      research:
        prompt: Does the installed SGLang serve this model with an EAGLE-3 drafter?
        fallback: {tool: evidence, args: {host: gpu1, model: /models/k2}}

It collects and does not judge: installed versions, lines of `--help` and of the installed sources that speak of the
words asked for, the model's config, the GPUs. `answer` is a summary of these facts and says that nobody weighed them;
`findings` have `claim`, `source`, `quote`; `unknown` is what could not be looked at; `by` is `evidence`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from importlib import resources
from typing import Any

from anyio import to_thread

from state.errors import ToolError
from tools.base import ToolCall, tool
from tools.shell import clean_text

ENGINES = ("vllm", "sglang")
PACKAGES = (*ENGINES, "torch", "transformers", "flashinfer-python", "sgl-kernel", "triton", "speculators")
WORDS = ("eagle3", "eagle-3", "speculative")
CONFIG_KEYS = (
    "architectures", "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "vocab_size", "max_position_embeddings", "torch_dtype", "dtype", "quantization_config", "rope_scaling",
)  # fmt: skip
COLLECT_S = 300.0
MAX_ANSWER = 1 << 20
QUOTED = 12


@tool
async def evidence(call: ToolCall) -> dict[str, Any]:
    """What is found on `host` about `words` (default: EAGLE-3) for the engines of `pythons`, and about `model`."""
    host = await call.host(str(call.arg("host", "local")))
    hello = await host.hello()
    pythons = _list(call.args.get("pythons")) or [hello.executable, "python3"]
    words = _list(call.args.get("words")) or list(WORDS)
    asked = {
        "pythons": list(dict.fromkeys(pythons)), "packages": list(PACKAGES), "engines": list(ENGINES), "words": words,
        "model": str(call.args.get("model") or ""), "commands": _helps(pythons),
    }  # fmt: skip
    script = await to_thread.run_sync(_script)
    command = f"{shlex.quote(hello.executable)} - {shlex.quote(json.dumps(asked))}"
    done = await host.run(command, timeout_s=COLLECT_S, stdin=script, max_output=MAX_ANSWER)
    if not done.ok:
        end = "it took too long" if done.timed_out else clean_text(done.stderr)[-500:]
        raise ToolError(f"no evidence could be collected on `{host.spec.name}`: {end}")
    try:
        raw = json.loads(done.stdout)
    except ValueError as error:
        raise ToolError(f"what was collected on `{host.spec.name}` cannot be read: {error}") from error
    return report(raw, host.spec.name, words)


def _script() -> bytes:
    return resources.files("tools").joinpath("evidence_collect.py").read_bytes()


def _list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) and value else [str(item) for item in value or ()]


def _helps(pythons: list[str]) -> list[list[str]]:
    first = pythons[0]
    return [
        [first, "-m", "sglang.launch_server", "--help"],
        [first, "-m", "vllm.entrypoints.cli.main", "serve", "--help=all"],
    ]


def report(raw: Mapping[str, Any], host: str, words: list[str]) -> dict[str, Any]:
    """What was collected, in the shape of a subagent's report. Pure."""
    findings: list[dict[str, str]] = []
    unknown: list[str] = []
    versions = _interpreters(raw, host, findings, unknown)
    for folder, found in raw["sources"].items():
        _sources(folder, found, host, words, findings)
    for help_ in raw["helps"]:
        _help(help_, host, findings, unknown)
    _model(raw.get("model"), host, findings, unknown)
    _gpus(raw["gpus"], host, findings, unknown)
    engines = ", ".join(f"{name} {version}" for name, version in versions.items() if name in ENGINES) or "no engine"
    answer = (
        f"Collected on `{host}` without a model to weigh it: {engines} installed; {len(findings)} findings about"
        f" {', '.join(words)}, {len(unknown)} things that could not be looked at."
    )
    return {"answer": answer, "findings": findings, "unknown": unknown, "by": "evidence", "versions": versions}


def _interpreters(
    raw: Mapping[str, Any], host: str, findings: list[dict[str, str]], unknown: list[str]
) -> dict[str, str]:
    versions: dict[str, str] = {}
    for found in raw["interpreters"]:
        if "error" in found:
            unknown.append(f"what `{found['python']}` on `{host}` has installed: {found['error']}")
            continue
        for name, package in found["packages"].items():
            versions.setdefault(name, package["version"])
            claim = f"{name} {package['version']} is installed for Python {found['python']}"
            findings.append({"claim": claim, "source": f"{host}: {found['executable']}", "quote": ""})
        if not any(name in found["packages"] for name in ENGINES):
            unknown.append(
                f"an engine for `{found['executable']}` on `{host}`: neither vLLM nor SGLang is installed there"
            )
    return versions


def _sources(
    folder: str, found: Mapping[str, Any], host: str, words: list[str], findings: list[dict[str, str]]
) -> None:
    claim = f"{found['hits']} lines in {found['files']} source files speak of {' or '.join(words)}"
    findings.append({"claim": claim, "source": f"{host}: {folder}", "quote": ""})
    said = "in the installed sources"
    shown = found["lines"][:QUOTED]
    findings += [{"claim": said, "source": f"{host}: {line['where']}", "quote": line["line"]} for line in shown]


def _help(help_: Mapping[str, Any], host: str, findings: list[dict[str, str]], unknown: list[str]) -> None:
    if help_["rc"] != 0:
        unknown.append(f"what `{help_['command']}` says on `{host}`: {help_['end'].strip()[-200:] or 'nothing'}")
        return
    source = f"{host}: {help_['command']}"
    findings += [
        {"claim": "an option of the engine", "source": source, "quote": line} for line in help_["lines"][:QUOTED]
    ]


def _model(model: Mapping[str, Any] | None, host: str, findings: list[dict[str, str]], unknown: list[str]) -> None:
    if model is None:
        return
    if "error" in model:
        unknown.append(f"the model's config `{model['path']}` on `{host}`: {model['error']}")
        return
    inner = model["config"].get("text_config")
    config = {**model["config"], **(inner if isinstance(inner, dict) else {})}
    told = ", ".join(f"{key} {json.dumps(config[key])}" for key in CONFIG_KEYS if config.get(key) is not None)
    findings.append({"claim": f"the model: {told}", "source": f"{host}: {model['path']}", "quote": ""})


def _gpus(gpus: Mapping[str, Any], host: str, findings: list[dict[str, str]], unknown: list[str]) -> None:
    if gpus["rc"] != 0:
        unknown.append(f"the GPUs of `{host}`: nvidia-smi {gpus['text'] or 'says nothing'}")
        return
    for line in gpus["text"].splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 5:
            claim = f"GPU {parts[0]}: {parts[1]}, compute capability {parts[2]}, {parts[3]}, driver {parts[4]}"
            findings.append({"claim": claim, "source": f"{host}: nvidia-smi", "quote": line.strip()})
