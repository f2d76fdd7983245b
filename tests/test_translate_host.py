"""Translating with what a host knows: the options of the SGLang that is there, and the drafts' configurations."""

from __future__ import annotations

import ast
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from state.errors import HostUnusable, JobError
from tests.cli_helpers import ROOT
from tools.base import TOOLS, ToolCall
from tools.hostkeys import HostSpec
from tools.serving.flags import on_host
from tools.serving.flags.table import versions
from tools.ssh import Host

pytestmark = pytest.mark.anyio
SERVER_ARGS = """
print("noise of an import")

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=30000)
        parser.add_argument("--tp-size", type=int, default=1)
        parser.add_argument("--dtype", choices=["auto", "half"], default="auto")
        parser.add_argument("--disable-cuda-graph", action="store_true")
        for name in ("algorithm", "draft-model-path", "num-steps", "eagle-topk", "num-draft-tokens"):
            parser.add_argument("--speculative-" + name)
"""


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Host]:
    async with Host(HostSpec(name="local", root=str(tmp_path / "root"))) as connected:
        yield connected


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter that has a small SGLang of its own."""
    package = tmp_path / "lib" / "sglang" / "srt"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("__version__ = '9.9.9'\n", encoding="utf-8")
    (package / "server_args.py").write_text(SERVER_ARGS, encoding="utf-8")
    program = tmp_path / "my python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}/lib" exec "{sys.executable}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def call(reached: Host, **args: object) -> ToolCall:
    """A call of a tool that reaches this host by any name."""

    async def by_name(name: str) -> Host:
        return reached

    return ToolCall("s1", "t1", args, by_name)


async def test_the_options_on_the_host_decide(here: Host, python: str) -> None:
    """Flags that the SGLang there does not have are lost and said; older spellings are used."""
    table = await on_host.host_table(here, python)
    assert table.version == "9.9.9"
    found = await on_host.translate_for(
        here, "vllm serve M -tp 2 --enforce-eager --dtype bfloat16 --max-model-len 4096", table=table
    )
    assert found.parsed == {
        "model_path": "M", "host": "0.0.0.0", "port": 8000, "tp_size": 2, "disable_cuda_graph": True,
    }  # fmt: skip
    lost = " ".join(found.no_counterpart)
    assert "--dtype bfloat16" in lost
    assert "--max-model-len 4096" in lost
    assert "9.9.9" in lost


async def test_a_draft_on_the_host_is_looked_at(here: Host, python: str, tmp_path: Path) -> None:
    """The tool reads the draft's config.json where the draft is, and gives the keys of the command line."""
    draft = tmp_path / "a draft"
    draft.mkdir()
    (draft / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"]}', encoding="utf-8")
    text = f"""vllm serve M --speculative-config '{{"model": "{draft}", "num_speculative_tokens": 3}}'"""
    told = await TOOLS["translate"](call(here, text=text, host="gpu1", python=python))
    assert told["parsed"]["speculative_algorithm"] == "EAGLE3"
    assert told["sglang"] == "9.9.9"
    unseen = await TOOLS["translate"](call(here, text=text))
    assert unseen["parsed"]["speculative_algorithm"] == "STANDALONE"
    assert unseen["sglang"] == "0.5.14"


async def test_a_host_without_sglang_is_said_so(here: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No interpreter, or one whose SGLang cannot be imported, is an error with the next thing to do."""
    monkeypatch.setattr(Host, "probe", lambda self: _nothing())
    with pytest.raises(HostUnusable, match="no Python"):
        await on_host.host_table(here)
    with pytest.raises(JobError, match="sglang"):
        await on_host.host_table(here, sys.executable)


async def _nothing() -> dict[str, object]:
    return {"pythons": [{"path": "/usr/bin/python3", "packages": {"torch": "2"}}]}


def test_the_dump_for_hosts_is_python_of_long_ago() -> None:
    """What is sent to a host is one file of the standard library that Python 3.8 reads."""
    source = (ROOT / "tools" / "serving" / "flags" / "dump.py").read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= {"argparse", "enum", "importlib", "json", "sys"}
    assert versions("sglang") == ["0.5.14", "0.5.23"]
