"""A command of vLLM, what it means to SGLang, and the two judges of what comes out: bash and SGLang's parser."""

from __future__ import annotations

import subprocess
from typing import Any

from tools.serving.flags.table import load


def in_bash(script: str) -> list[list[str]]:
    """The argument lists with which a script calls `python`: bash itself says what it made of it."""
    stub = 'python() { printf "%s\\0" "$@"; printf "\\n"; }; exec() { "$@"; }; nohup() { "$@"; }\n'
    done = subprocess.run(["bash", "-c", stub + script], capture_output=True, text=True, check=False)
    return [line.rstrip("\0").split("\0") for line in done.stdout.splitlines() if line]


def server(words: list[str]) -> dict[str, Any]:
    """What SGLang's parser makes of `-m sglang.launch_server ...`."""
    assert words[:2] == ["-m", "sglang.launch_server"], words
    return load("sglang").parse(words[2:])


COMMAND = 'vllm serve org/m -tp 2 --max-model-len 4096 --hf-overrides \'{"a": "b c"}\''
WANTED = {
    "model_path": "org/m", "host": "0.0.0.0", "port": 8000, "tp_size": 2, "context_length": 4096,
    "json_model_override_args": '{"a": "b c"}',
}  # fmt: skip
