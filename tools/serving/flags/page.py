"""Writes docs/flags.md: `python -m tools.serving.flags.page > docs/flags.md`.

Every row is a translation made while the page is written, so the page says what the program does. A test holds the page
in the repository against it.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator

from tools.serving.flags.items import STRUCTURED, vocabulary
from tools.serving.flags.names import (
    ATTENTION,
    METHODS,
    MOE_A2A,
    MOE_RUNNER,
    REASONING_PARSERS,
    TOOL_PARSERS,
)
from tools.serving.flags.report import CLASSES, Entry, Translation
from tools.serving.flags.rules_env import LOST, NEEDLESS, RENAMED
from tools.serving.flags.table import Option, load
from tools.serving.flags.translate import translate

SAMPLES = {
    "speculative-config": '{"method":"eagle3","model":"D","num_speculative_tokens":3}',
    "compilation-config": '{"cudagraph_mode":"NONE"}',
    "kv-transfer-config": '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}',
    "structured-outputs-config": '{"backend":"guidance"}',
    "attention-config": '{"backend":"FLASHINFER"}',
    "default-chat-template-kwargs": '{"enable_thinking":false}',
    "hf-overrides": '{"a":1}',
    "rope-scaling": '{"type":"yarn","factor":4.0}',
    "mm-processor-kwargs": '{"num_crops":4}',
    "limit-mm-per-prompt": '{"image":4}',
    "lora-modules": "a=/adapters/a",
    "max-model-len": "32K",
    "gpu-memory-utilization": "0.8",
    "tool-call-parser": "llama3_json",
    "reasoning-parser": "deepseek_r1",
    "attention-backend": "FLASH_ATTN",
    "scheduling-policy": "priority",
    "quantization": "awq",
    "kv-cache-dtype": "fp8",
    "generation-config": "vllm",
    "runner": "pooling",
    "task": "embed",
    "mm-encoder-tp-mode": "data",
    "distributed-executor-backend": "ray",
    "guided-decoding-backend": "guidance",
    "cudagraph-capture-sizes": "8",
    "device": "cuda",
    "all2all-backend": "deepep_low_latency",
    "moe-backend": "triton",
    "load-format": "safetensors",
    "tokenizer-mode": "slow",
    "served-model-name": "a",
    "api-key": "$KEY",
    "chat-template": "/t.jinja",
    "kv-offloading-backend": "lmcache",
    "disable-access-log-for-endpoints": "/health,/metrics",
    "dtype": "bfloat16",
    "model-impl": "transformers",
    "config-format": "mistral",
    "download-dir": "/models",
}
"""Values for the rows; others are the first choice, a number, or a word."""

_HEAD = """# From vLLM's flags to SGLang's

Written by `python -m tools.serving.flags.page`; each row is a translation that was made while the page was written,
against SGLang {version}'s own options. `turnout translate --sglang-version {newest}` uses the newest shipped table,
`--host HOST` the options of the SGLang that is installed there.

```
turnout translate 'vllm serve M --max-model-len 32K'    the command, and a report of every flag
turnout translate run.sh > run-sglang.sh                the script; the report goes to stderr
turnout translate vllm.service --host gpu1              a systemd unit, by the SGLang that is on gpu1
kubectl get deploy x -o yaml | turnout translate -      a manifest, KServe, compose, docker run, a logged list
turnout translate run.sh --json                         for programs
```

The output has the form of the input. Exit code 0: nothing lost, nothing means something else. 10: translated, with
warnings. 20: refused, because the original would not start and a translation would guess; there is a draft to look at.

| class | meaning |
|---|---|
| same | carried over as it is, or SGLang's default anyway |
| renamed | the same thing under another name or spelling |
| default | not said in the input, and the engines differ |
| changed | carried over, but it counts or means something else; the arithmetic is said |
| suspicious | looks wrong in the original |
| none | no counterpart, and what that costs |

`--json` prints `command` (`null` when refused, then `draft`), `form` (shell, docker, compose, systemd, k8s, kserve,
config, log), `parsed` (what SGLang's parser reads, without defaults), `env` (variables that the command's prefix or
the translation sets), `no_counterpart`, `warnings`, `refused`, `arguments` (SGLang's, as a list), `server` (the bare
command line), `sglang` (whose options), `others` (further starts in the text) and `report` (an object for each flag and
variable: `class`, `input`, `output`, `why`, `notes`, and `given`, false for what was not in the input).

Secrets are not repeated: a key in a command line becomes `$API_KEY`.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD.format(version=load("sglang").version, newest=_newest())]
    parts.append("## Said by nobody\n\n" + _table(("in vLLM", "in SGLang", "why"), _unsaid()))
    parts.append("## Flags\n\n" + _table(("vLLM", "SGLang", "class", "why"), _flags()))
    parts.append("## Variables\n\n" + _table(("vLLM", "SGLang", "why"), _variables()))
    for title, names in (
        ("Methods of speculation", METHODS), ("Tool call parsers", TOOL_PARSERS),
        ("Reasoning parsers", REASONING_PARSERS), ("Attention backends", ATTENTION),
        ("MoE backends", MOE_RUNNER), ("Exchange between experts", MOE_A2A),
    ):  # fmt: skip
        rows: list[tuple[str, ...]] = [(f"`{old}`", f"`{new}`") for old, new in sorted(names.items()) if old != new]
        parts.append(f"## {title}\n\n" + _table(("vLLM", "SGLang"), rows))
    parts.append("Names that are not here are the same, where SGLang has them, and lost where it has not.\n")
    return "\n".join(parts)


def _newest() -> str:
    from tools.serving.flags.table import versions

    return versions("sglang")[-1]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _unsaid() -> list[tuple[str, ...]]:
    found = translate('vllm serve M --speculative-config \'{"method":"mtp","num_speculative_tokens":1}\'')
    told = [entry for entry in found.entries if entry.kind == "default"]
    return [(_code(entry.written.replace(" (not given)", "")), _code(entry.result), entry.why) for entry in told]


def _flags() -> list[tuple[str, ...]]:
    rows = {}
    for table in vocabulary().tables:
        for option in table.options:
            name = option.dest.replace("_", "-")
            if option.flags and name not in rows and option.dest not in ("help", "config"):
                rows[name] = _row(option, name)
    return [row for _, row in sorted(rows.items())]


def _row(option: Option, name: str) -> tuple[str, ...]:
    flag = option.name
    sample = [] if option.switch else [_sample(option, name)]
    found = translate(shlex.join(["vllm", "serve", *([] if name == "model" else ["M"]), flag, *sample]))
    entry = _own(found, flag)
    if entry is None:
        return (_code(" ".join([flag, *sample])), "", "", "")
    return (_code(entry.written), _code(entry.result), entry.kind, "; ".join(p for p in (entry.why, *entry.notes) if p))


def _own(found: Translation, flag: str) -> Entry | None:
    return next((entry for entry in found.entries if entry.written.split(" ")[0] == flag), None)


def _sample(option: Option, name: str) -> str:
    if name in SAMPLES:
        return SAMPLES[name]
    if name in STRUCTURED:
        return '{"a":1}'
    choices = [str(one) for one in option.choices or () if one is not None and one != option.default]
    if choices:
        return choices[0]
    kind = option.type.rpartition(" ")[2]
    return {"int": "8", "float": "0.5", "human_readable_int": "8192"}.get(kind, "VALUE")


def _variables() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [(f"`{old}`", f"`{new}`", "") for old, new in RENAMED.items()]
    rows += [(f"`{name}`", "", why) for name, why in {**NEEDLESS, **LOST}.items()]
    for text in (
        "VLLM_API_KEY=$KEY", "VLLM_ATTENTION_BACKEND=FLASHINFER", "VLLM_LOGGING_LEVEL=DEBUG", "VLLM_BATCH_INVARIANT=1",
        "VLLM_SLEEP_WHEN_IDLE=1", "VLLM_USE_FLASHINFER_SAMPLER=1", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
    ):  # fmt: skip
        entry = next(one for one in translate(f"{text} vllm serve M").entries if one.variable)
        rows.append((f"`{text}`", _code(entry.result), entry.why))
    others = [("any other `VLLM_...`", "", "lost, and said"), ("any other variable", "stays", "")]
    return [*sorted(rows), *others]


def _code(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip()
    return f"`{text}`" if text else ""


def missing() -> Iterator[str]:
    """Options whose row says nothing: there must be none."""
    yield from (row[0] for row in _flags() if row[2] not in CLASSES)


if __name__ == "__main__":
    sys.stdout.write(page())
