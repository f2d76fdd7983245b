"""The evidence collector: the shape of a subagent's report, from what a host really has."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio

from tools.base import ToolCall
from tools.evidence import evidence, report
from tools.ssh import Host, HostSpec


def test_what_a_host_has_is_reported_like_a_subagent_would(tmp_path: Path) -> None:
    """The fallback of a research step needs no model and gives `answer`, `findings`, `unknown` from the host itself."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "vocab_size": 49152}))

    async def main() -> dict[str, object]:
        async with Host(HostSpec(name="local", root=str(tmp_path / "root"))) as host:

            async def reach(name: str) -> Host:
                return host

            args = {"host": "local", "model": str(model), "pythons": [sys.executable]}
            return await evidence(ToolCall("s", "t", args, reach))

    told = anyio.run(main)
    assert told["by"] == "evidence"
    claims = [finding["claim"] for finding in told["findings"]]  # type: ignore[attr-defined, index]
    assert any("LlamaForCausalLM" in claim and "49152" in claim for claim in claims)
    assert any("nvidia-smi" in str(unknown) for unknown in told["unknown"])  # type: ignore[attr-defined]
    assert "without a model to weigh it" in str(told["answer"])


def test_sources_help_and_gpus_are_told_with_where_they_were_seen() -> None:
    """Every finding names its source, and lines are quoted."""
    raw = {
        "interpreters": [
            {
                "python": "3.12.3",
                "executable": "/v/bin/python",
                "packages": {"sglang": {"version": "0.5.14", "folder": "/v/s"}},
            },
            {"python": "/no/python", "error": "not found"},
        ],
        "sources": {
            "/v/s": {"files": 3, "hits": 1, "lines": [{"where": "/v/s/spec.py:7", "line": "class EAGLE3Worker"}]}
        },
        "helps": [
            {"command": "python -m sglang --help", "rc": 0, "lines": ["--speculative-algorithm"], "hits": 1, "end": ""},
            {"command": "vllm serve", "rc": None, "lines": [], "hits": 0, "end": "not found"},
        ],
        "model": {"path": "/m/config.json", "error": "No such file"},
        "gpus": {"rc": 0, "text": "0, NVIDIA H200, 9.0, 143771 MiB, 580.95.05"},
    }
    told = report(raw, "gpu1", ["eagle3"])
    assert told["versions"] == {"sglang": "0.5.14"}
    assert {
        "claim": "in the installed sources",
        "source": "gpu1: /v/s/spec.py:7",
        "quote": "class EAGLE3Worker",
    } in told["findings"]
    assert any(f["quote"] == "--speculative-algorithm" for f in told["findings"])
    assert any("compute capability 9.0" in f["claim"] for f in told["findings"])
    assert len(told["unknown"]) == 3
