"""Launching engines: the command lines, and what an engine cannot do is refused before it is started."""

from __future__ import annotations

import json
import shlex

import pytest

from state.errors import UsageError
from tools.serving.engines import ENGINES, SGLANG, VLLM, ServeSpec, bench_command, engine, service


def test_sglang_is_told_a_chain_in_its_own_words() -> None:
    """Steps, top-k and draft tokens are all given, since leaving one out changes the others."""
    spec = ServeSpec("/m", 31000, drafter="/d", steps=3, memory_fraction=0.5, tensor_parallel=8, extra=("--log", "x"))
    assert SGLANG.command(spec) == [
        "python3", "-m", "sglang.launch_server", "--model-path", "/m", "--host", "127.0.0.1", "--port", "31000",
        "--mem-fraction-static", "0.5", "--tp-size", "8", "--enable-metrics", "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", "/d", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", "4", "--log", "x",
    ]  # fmt: skip


def test_vllm_is_told_the_same_in_its_own() -> None:
    """One JSON object, which survives the shell that runs the job."""
    body = service(VLLM, ServeSpec("/m", 8001, drafter="/a drafter", steps=2, served_name="k2", max_running=48))
    words = shlex.split(body["run"])
    assert words[:4] == ["exec", "python3", "-m", "vllm.entrypoints.openai.api_server"]
    assert words[words.index("--served-model-name") + 1] == "k2"
    assert json.loads(words[words.index("--speculative-config") + 1]) == {
        "method": "eagle3", "model": "/a drafter", "num_speculative_tokens": 2,
    }  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
def test_a_service_is_ready_when_the_engine_answers(name: str) -> None:
    """The readiness check is a URL of the server itself; stopping gives what runs time to end."""
    body = service(engine(name), ServeSpec("/m", 9000, address="0.0.0.0"))
    assert body["ready"]["http"].startswith("http://127.0.0.1:9000/health")
    assert body["grace_s"] >= 30
    assert "speculative" not in body["run"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": ""}, "no model"),
        ({"port": 0}, "no port"),
        ({"memory_fraction": 90}, "memory_fraction"),
        ({"drafter": "/d", "steps": 0}, "steps 0"),
        ({"drafter": "/d", "steps": 3, "draft_tokens": 8}, "4 draft tokens, not 8"),
        ({"drafter": "/d", "steps": 2, "topk": 2, "draft_tokens": 30}, "30 draft tokens"),
    ],
)
def test_what_no_engine_takes_is_refused(fields: dict[str, object], said: str) -> None:
    """The error says what was given and what would do."""
    with pytest.raises(UsageError, match=said):
        ServeSpec(**{"model": "/m", "port": 30000, **fields})  # type: ignore[arg-type]


def test_a_tree_is_for_sglang_only() -> None:
    """vLLM drafts chains; asking it for a tree is an error and not a chain in silence."""
    spec = ServeSpec("/m", 30000, drafter="/d", steps=3, topk=4, draft_tokens=16)
    assert "--speculative-eagle-topk 4" in " ".join(SGLANG.command(spec))
    with pytest.raises(UsageError, match="vLLM drafts chains"):
        VLLM.command(spec)
    with pytest.raises(UsageError, match="no engine is named `tgi`"):
        engine("tgi")


def test_the_benchs_options_are_words_of_its_command_line() -> None:
    """Lists are joined, flags stand alone, what is not set is left out, and paths with spaces survive."""
    command = bench_command("/a b", "http://h:1", {"x": "/p q"}, limit=0, concurrency=[1, 8], raw=True, split=None)
    assert shlex.split(command) == [
        "PYTHONPATH=/a b", "exec", "python3", "-m", "bench", "--url", "http://h:1", "--set", "x=/p q", "--limit", "0",
        "--concurrency", "1,8", "--raw",
    ]  # fmt: skip
