"""Signs of how far a server got: started, loading, ready, working, stopped. And which engine wrote the log.

"Starting vLLM server on" is printed before the port is open, a progress bar at 100 % is followed by others, and SGLang
opens its port before its own first request: none of these is ready.

Sources: messages in vLLM 0.2.7, 0.6.3, 0.10.0, 0.23.0 and SGLang 0.2.15 to 0.5.14; uvicorn; argparse.
"""

from __future__ import annotations

import re

from tools.serving.log_signs import Role, sign

_STAGES = (
    ("starting", ("non-default args", "args: Namespace(", "Init torch distributed", "Started engine process")),
    (
        "starting",
        (
            "Waiting for 1 core engine",
            "core engine proc",
            "Waiting for init message",
            "Automatically detected platform",
            "Downloading ",
            "Fetching ",
            "Loading model from",
            "Resolved architecture",
        ),
    ),
    ("loading weights", ("Starting to load model", "checkpoint shards:", "Load weight begin", "Loading model weights")),
    ("weights loaded", ("Loading weights took", "Load weight end", "Model loading took", "weights took")),
    (
        "compiling",
        ("torch.compile takes", "Dynamo bytecode", "Compiling num tokens", "Loading JIT ops", "compiling kernels"),
    ),
    ("allocating the KV cache", ("# GPU blocks:", "GPU KV cache size", "KV Cache is allocated", "Memory pool end")),
    ("allocating the KV cache", ("Available KV cache memory", "Memory profiling", "max_total_num_tokens=")),
    (
        "capturing graphs",
        ("Capture cuda graph", "Capture draft", "Capture target", "Capturing batches", "Capturing num"),
    ),
    (
        "capturing graphs",
        ("Capturing the model", "Capturing CUDA graph", "Graph capturing finished", "cuda graph addresses"),
    ),
    ("capturing graphs", ("piecewise CUDA graph", "Capturing decode", "Enabled custom fusions", "init engine (")),
    (
        "opening the port",
        ("Started server process", "Waiting for application startup", "Starting vLLM", "Available routes are"),
    ),
    ("opening the port", ("Supported tasks:", "Supported_tasks:", "Route: /")),
)
_STAGE_SIGNS = tuple(sign(Role.STAGE, stage, needles) for stage, needles in _STAGES)

MARKS = (
    sign(Role.START, "start", ("vLLM API server version", "vLLM server version", "server_args=ServerArgs(")),
    sign(
        Role.START,
        "start",
        "usage: ",
        r"usage: (?:vllm|api_server\.py|launch_server\.py|sglang|server\.py|__main__\.py)",
    ),
    sign(
        Role.AGAIN,
        "start",
        ("Initializing an LLM engine", "Initializing a V1 LLM engine", "Initializing a V0 LLM engine"),
    ),
    *_STAGE_SIGNS,
    sign(Role.STAGE, "loading weights", "Completed | ", r"(?P<percent>\d+)% Completed \| (?P<done>\d+)/(?P<all>\d+)"),
    sign(Role.READY, "ready", "The server is fired up and ready to roll"),
    sign(Role.HTTP_UP, "ready", ("Application startup complete", "Uvicorn running on")),
    sign(Role.SERVING, "serving", "throughput: ", r"generation throughput: (?P<rate>\d{1,9}\.?\d*) tokens/s"),
    sign(Role.SERVING, "serving", "Decode batch", r"gen throughput \(token/s\): (?P<rate>\d{1,9}\.?\d*)"),
    sign(
        Role.SERVING,
        "serving",
        '" 200',
        r'"POST /(?:v1/|generate|chat|invocations|score|rerank|embed)\S* HTTP/\d{1,9}\.?\d*" 200',
    ),
    sign(
        Role.STOP,
        "stopped",
        (
            "SIGTERM received",
            "Shutting down",
            "Gracefully exiting",
            "Finished server process",
            "Application shutdown complete",
            "shutting down API servers",
            "[shutdown] API server: shutdown triggered",
            "trigger received signal",
            "KeyboardInterrupt",
            "Received signal to shutdown",
            "Engine is gracefully shutting down",
            "Stopping vllm",
            "Stopping sglang",
            "signal SIGTERM",
        ),
        any_level=True,
    ),
)

FRAMES = (
    sign(Role.FACT, "loop", ("event_loop_", "run_busy_loop"), r"\bin (?P<loop>event_loop_\w+|run_busy_loop)"),
    sign(
        Role.FACT,
        "capture",
        ("in capture", "apture cuda graph failed"),
        r"(?P<capture>\bin capture\w*|apture cuda graph failed)",
    ),
    sign(
        Role.FACT,
        "draft",
        ("eagle", "Eagle", "draft", "--speculative"),
        r"(?P<draft>speculative_draft_model_path='|eagle\w*\.py|[Ee]agle3\w*|draft_worker|draft_model|--speculative)",
    ),
)

# Read in this order: SGLang's logs name vLLM's modules too, not the reverse.
_ENGINES = (
    (
        "sglang",
        (
            b"sglang",
            b"sgl_kernel",
            b"sgl-workspace",
            b"ServerArgs(",
            b"Prefill batch",
            b"Decode batch",
            b"fired up and ready",
            b"mem-fraction-static",
            b"max_total_tokens=",
            b"self.watchdog_timeout",
        ),
    ),
    (
        "vllm",
        (
            b"vllm",
            b"vLLM",
            b"Vllm",
            b"VLLM_",
            b"EngineCore",
            b"gpu_memory_utilization",
            b"tokens that can be stored in KV",
            b"less than desired GPU memory",
        ),
    ),
    ("tgi", (b"text_generation_router", b"text_generation_launcher")),
    ("tensorrt-llm", (b"[TensorRT-LLM]", b"tensorrt_llm")),
    ("llama.cpp", (b"llama_model_load", b"llama_context:", b"srv  update_slots")),
)
_SGLANG_STAMP = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[ ,](?:DP|TP|PP|EP|ATTN|\d)+\d*)*\] ")
_VLLM_STAMP = re.compile(rb"(?:INFO|WARNING|ERROR|DEBUG) (?:\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? )?\[?\w+\.py:\d+\]")

_LINE = re.compile(
    rb"(?m)^[^\w\n(]{0,40}+(?:\([\w ]{1,40}pid=\d+\)[ \t]*+)?+"
    rb"(?:(?:INFO|DEBUG|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b[:\s]|Traceback \(most recent|"
    rb"[\w./, -]{0,24}\d\d:\d\d:\d\d)"
)


def is_written(chunk: bytes) -> bool:
    """Whether a line has a log's form: a level or a time before what it says, or it begins a traceback."""
    return _LINE.search(chunk) is not None


def engine_votes(chunk: bytes) -> dict[str, int]:
    """How often each engine's own words and time stamps stand in a piece of log."""
    votes = {name: sum(chunk.count(word) for word in words) for name, words in _ENGINES}
    votes["sglang"] += 3 * len(_SGLANG_STAMP.findall(chunk))
    votes["vllm"] += 3 * len(_VLLM_STAMP.findall(chunk))
    return votes


def engine(votes: dict[str, int]) -> str | None:
    """The engine with the most votes; between SGLang and vLLM SGLang, unless its words are rare."""
    if votes.get("sglang", 0) * 2 >= votes.get("vllm", 0) > 0 and votes["sglang"]:
        return "sglang"
    best = max(votes, key=lambda name: votes[name], default=None)
    return best if best and votes[best] else None
