"""Promises about reading server logs: the first cause decides, the last run decides, and the remedy carries numbers."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tools.serving.log_scan import LINE_MAX, SIGNS, chunks
from tools.serving.log_signs import Role, Sign
from tools.serving.logs import LogReading, read_log

DATA = Path(__file__).parent / "data" / "server_logs"
SHAPES = yaml.safe_load((DATA / "shapes.yaml").read_text())


def reading(text: str | bytes) -> LogReading:
    return read_log([text.encode() if isinstance(text, str) else text])


# name of the excerpt: engine, state, kind, words that the remedy must hold
CASES = {
    "vllm-starting-line-2026-not-yet-ready": ("vllm", "loading", None, ["/health"]),
    "vllm-loading-shards": ("vllm", "loading", None, []),
    "vllm-kv-too-small-v0": ("vllm", "failed", "kv cache too small", ["RAISE", "LOWER", "3664"]),
    "vllm-free-memory-less-than-desired": ("vllm", "failed", "gpu memory held by others", ["15.94", "zombie", "0.66"]),
    "sglang-not-enough-memory-between-two-errors": (
        "sglang",
        "failed",
        "kv cache too small (mem-fraction-static)",
        ["RAISE --mem-fraction-static", "opposite", "--cuda-graph-max-bs"],
    ),
    "sglang-negative-profiled-value": (
        "sglang",
        "failed",
        "kv cache too small",
        ["166.59", "188", "more GPUs", "--max-total-tokens does not help"],
    ),
    "sglang-loading-capture-bar": ("sglang", "loading", None, []),
    "sglang-watchdog": ("sglang", "failed", "watchdog timeout", ["py-spy", "RAISE --watchdog-timeout", "300"]),
    "sglang-oom-killer": ("sglang", "failed", "killed by OS OOM killer", ["swap", "fewer threads", "unified memory"]),
    "vllm-arch-not-supported-false": (
        "vllm",
        "failed",
        "import error (looks like unsupported architecture)",
        ["first traceback", "flash_attn"],
    ),
    "vllm-trust-remote-code": ("vllm", "failed", "trust_remote_code missing", ["operator agrees"]),
    "sgl-kernel-import-abi": ("sglang", "failed", "import error (ABI mismatch)", ["torch", "does not help"]),
    "eagle-lm-head-size-mismatch": (
        "sglang",
        "failed",
        "draft-model shape mismatch",
        ["32000", "128256", "draft_vocab_size"],
    ),
    "driver-too-old": (None, "failed", "driver / CUDA mismatch", ["12.8", "newer driver", "older CUDA"]),
}


@pytest.mark.parametrize("name", CASES)
def test_excerpts_of_public_reports(name: str) -> None:
    """Each excerpt is read as the people who solved it read it, and the remedy names what they did."""
    engine, state, kind, words = CASES[name]
    got = reading((DATA / f"{name}.log").read_bytes())
    assert (got.engine, got.state, got.kind) == (engine, state, kind)
    assert [word for word in words if word not in (got.remedy or "")] == []


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape["name"])
def test_shapes(shape: dict[str, object]) -> None:
    """Each wording of each version means what the table says."""
    got = reading(str(shape["log"]))
    assert (got.engine, got.state) == (shape["engine"], shape["state"])
    if "kind" in shape:
        assert (got.kind or "").startswith(str(shape["kind"]))
        assert got.remedy
    else:
        assert got.kind is None
    words = shape.get("remedy", [])
    assert isinstance(words, list)
    assert [word for word in words if word not in (got.remedy or "")] == []


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape["name"])
def test_bytes_around_a_log_change_nothing(shape: dict[str, object]) -> None:
    """Carriage returns, colour, NUL and bytes that are no UTF-8 leave the reading as it was."""
    plain = str(shape["log"]).encode()
    dirty = b"\xff\xfe\x80\n".join(
        b"\x1b[36m" + line.replace(b"o", b"\x00o") + b"\x1b[0m\r\n" for line in plain.splitlines()
    )
    once, twice = reading(plain), reading(dirty)
    assert (once.state, once.kind, once.engine) == (twice.state, twice.kind, twice.engine)


def test_evidence_names_the_line() -> None:
    """The deciding line is given by its number in the file, also behind progress bars joined by carriage returns."""
    bars = "\r".join(
        f"Loading safetensors checkpoint shards: {n:3}% Completed | {n}/100 [00:01<00:01]" for n in range(100)
    )
    log = f"vLLM API server version 0.10.0\n{bars}\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    got = reading(log)
    assert [line for line, _ in got.evidence] == [3]
    assert got.stage == "loading weights, 99 of 100"


def test_what_was_lived_through_is_told() -> None:
    """An error that an engine worked on after is no failure, and is told under `also` with its line."""
    log = (
        "INFO:     Application startup complete.\n"
        "ERROR 11-20 10:00:00 [serving.py:1] RuntimeError: CUDA out of memory\n"
        "INFO 11-20 10:00:10 [loggers.py:123] Engine 000: Avg generation throughput: 12.1 tokens/s\n"
    )
    got = reading(log)
    assert (got.state, got.throughput) == ("running", 12.1)
    assert [(line, kind) for line, kind, _ in got.also] == [(2, "cuda out of memory (at run time)")]


def test_a_symptom_after_work_takes_back_the_pardon() -> None:
    """When the engine dies after all, the cause it seemed to live through explains it."""
    log = (
        "INFO:     Application startup complete.\n"
        "RuntimeError: CUDA error: an illegal memory access was encountered\n"
        'INFO:     10.0.0.7:1 - "POST /v1/completions HTTP/1.1" 200 OK\n'
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    )
    assert reading(log).kind == "cuda illegal memory access"


def test_a_failure_before_the_shutdown_is_not_a_clean_stop() -> None:
    """A server that failed and then shut itself down has failed; what comes after a SIGTERM is not why it ended."""
    up, down = "INFO:     Application startup complete.\n", "INFO:     Shutting down\n"
    dead = "vllm EngineDeadError: EngineCore encountered an issue.\n"
    assert reading(up + dead + down).state == "failed"
    assert reading(up + down + dead).state == "stopped"


def test_runs_are_counted() -> None:
    """Of many starts in one log the last decides, and the reading says how many there were."""
    run = "INFO 08-03 09:00:01 [api_server.py:1] vLLM API server version 0.10.0\nValueError: cannot frobnicate\n"
    got = reading(
        run * 3 + "INFO 08-03 09:00:01 [api_server.py:1] vLLM API server version 0.10.0\nINFO Starting to load model\n"
    )
    assert (got.state, got.runs) == ("loading", 4)


def test_a_warning_is_no_failure() -> None:
    """The same words logged as a warning leave a loading server loading."""
    log = "INFO 08-03 09:00:01 [api_server.py:1] vLLM API server version 0.10.0\nINFO Starting to load model x\n"
    warned = "WARNING 08-03 09:00:02 [x.py:1] ImportError: libfoo.so: undefined symbol: bar\n"
    assert reading(log + warned).state == "loading"


def test_a_long_line_is_searched_at_its_head_only() -> None:
    """What stands deep in a line of megabytes is users' text, and such a line costs no memory."""
    head = "[2025-06-22 16:13:55 TP0] self.cur_batch.reqs=["
    log = (
        f"{head}{'x' * 3_000_000} CUDA out of memory\n[2025-06-22 16:13:56] The server is fired up and ready to roll!\n"
    )
    assert reading(log).state == "ready"
    pieces = list(chunks([b"y" * 900_000, b"z" * 900_000, b"\nlast"]))
    assert max(map(len, pieces)) < 600_000
    assert pieces[0].startswith(b"y" * LINE_MAX)
    assert pieces[-1] == b"last"


@given(st.binary(max_size=400), st.integers(1, 40))
def test_cutting_the_bytes_changes_nothing(data: bytes, size: int) -> None:
    """The reading of a log does not depend on the pieces it arrives in."""
    log = (DATA / "sglang-watchdog.log").read_bytes() + data
    cut = [log[i : i + size] for i in range(0, len(log), size)]
    assert read_log(cut) == read_log([log])


FRAGMENTS = [needle.decode() for sign in SIGNS for needle in sign.needles] + [s["log"] for s in SHAPES]


@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=10), st.just("\n")), max_size=30))
def test_no_log_breaks_the_reader(pieces: list[str]) -> None:
    """Any text, also one shuffled from what engines print, is read without an error, and only a failure has a kind."""
    got = reading(" ".join(pieces).encode("utf-8", "surrogatepass"))
    assert (got.kind is not None) == (got.state == "failed")


@pytest.mark.parametrize("sign", [s for s in SIGNS if isinstance(s.remedy, str)], ids=lambda s: s.name)
def test_remedies_can_be_written_out(sign: Sign) -> None:
    """Every remedy asks only for numbers that its own pattern finds, and every failure has a remedy."""
    assert isinstance(sign.remedy, str)
    wanted = {name for _, name, _, _ in string.Formatter().parse(sign.remedy) if name}
    assert wanted <= set(sign.pattern.groupindex if sign.pattern else ())
    if sign.role in (Role.CAUSE, Role.CLUE, Role.SYMPTOM, Role.TROUBLE):
        assert len(sign.remedy) > 20
