"""A stand-in for `python3 -m vllm.entrypoints.openai.api_server` and `python3 -m sglang.launch_server`, as a process.

`lay_out` makes the folder of modules that are called so.

It speaks the engines' HTTP (chat, completions, metrics, tools) over the scripted model of `standin_engine`, writes log
lines in their forms, opens its port with SO_REUSEPORT as vLLM does, and ends on TERM as vLLM does: at once, with what
runs cut off. Faults come by the environment, so that a test puts them into the wrapper that it calls `python3`:

    STANDIN_FRACTION=0.6     more --mem-fraction-static than this runs out of memory while graphs are captured
    STANDIN_GARBAGE=1        answers of another model
    STANDIN_DEAF=1           tool calls come as text
    STANDIN_SECONDS=0.05     what an answer takes at least
    STANDIN_LOADING=0.2      what a start takes
    STANDIN_SIZE=own         a drafter whose path has this word is of another size than the model
    STANDIN_DIES=30          ends by itself after so many requests, as a watchdog would end it
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Sequence
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.standin_engine import Handler, StandIn

STEP_S = 0.004
_SAID = {"vllm": "INFO 12-01 09:00:00 [api_server.py:1]", "sglang": "[2026-12-01 09:00:00]"}


class Server(ThreadingHTTPServer):
    """The port is shared, as vLLM shares it; many may wait to be taken."""

    allow_reuse_port = True
    request_queue_size = 1024
    daemon_threads = True


class Chat(Handler):
    """The interface for chats beside what the bench needs."""

    standin: Process

    def routes(self) -> dict[str, Any]:
        more = {
            "/v1/chat/completions": Chat.chat, "/v1/completions": Chat.complete, "/v1/models": Chat.served,
            "/metrics": Chat.page, "/generate": Chat.slowly_generate,
        }  # fmt: skip
        own = super().routes()
        return {**own, **{path: do for path, do in more.items() if path != "/generate" or path in own}}

    def _route(self, body: dict[str, Any]) -> None:
        key, guarded = self.standin.key, not self.path.startswith(("/health", "/metrics", "/version"))
        if key and guarded and self.headers.get("Authorization") != f"Bearer {key}":
            self._say(401, {"error": "Unauthorized"})
            return
        super()._route(body)

    def served(self, _: dict[str, Any]) -> None:
        self._say(200, {"data": [{"id": self.standin.name, "root": self.standin.model, "max_model_len": 4096}]})

    def page(self, _: dict[str, Any]) -> None:
        s = self.standin
        running = "vllm:num_requests_running" if s.engine == "vllm" else "sglang:num_running_reqs"
        told = s.metrics() if s.engine == "vllm" and s.accept is not None else ""
        self._say(200, told + f'{running}{{engine="0"}} {float(s.in_flight)}\n')

    def slowly_generate(self, body: dict[str, Any]) -> None:
        standin = self.standin
        ids = body["input_ids"]
        tokens = len(standin.answer(ids, body["sampling_params"]["max_new_tokens"]))
        standin.take_time(len(standin.draft(ids, tokens)) if standin.accept else tokens)
        super().generate(body)

    def complete(self, body: dict[str, Any]) -> None:
        self.standin.take_time()
        super().completions(body)

    def chat(self, body: dict[str, Any]) -> None:
        standin = self.standin
        try:
            self._begin(body)
            standin.take_time()
            ids = [3 + ord(letter) for letter in json.dumps(body["messages"])]
            tokens = [f" w{token}" for token in standin.answer(ids, min(body["max_tokens"], 64))]
            message: dict[str, Any] = {"role": "assistant", "content": "".join(tokens)}
            if body.get("tools") and not standin.deaf:
                call = {"name": body["tools"][0]["function"]["name"], "arguments": '{"city": "Paris"}'}
                message = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": call}]}
            told = [{"token": token, "logprob": -0.25} for token in tokens] if body.get("logprobs") else None
            logprobs = {"content": told} if told else None
            self._say(200, {"choices": [{"message": message, "logprobs": logprobs, "finish_reason": "stop"}]})
        finally:
            self._end()


class Process(StandIn):
    """A stand-in with what the command line and the environment say of it."""

    handler = Chat
    server = Server

    def __init__(self, engine: str, name: str, **given: Any) -> None:
        self.name, self.key = name, given.pop("key", None)
        self.deaf = bool(os.environ.get("STANDIN_DEAF"))
        self._seconds = float(os.environ.get("STANDIN_SECONDS") or 0)
        self._dies = int(os.environ.get("STANDIN_DIES") or 0)
        self._other = bool(os.environ.get("STANDIN_GARBAGE"))
        super().__init__(engine, **given)

    def answer(self, ids: Sequence[int], most: int) -> list[int]:
        said = super().answer([*ids, 1] if self._other else ids, most)
        random.Random(len(ids)).random()
        return said

    def take_time(self, rounds: int = 0) -> None:
        """What an answer takes, and each of its decoding steps; and the end of a server that dies by itself."""
        time.sleep(self._seconds + rounds * STEP_S)
        if self._dies and len(self.asked) > self._dies:
            say("sglang", "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)")
            os._exit(1)


def say(engine: str, text: str) -> None:
    print(f"{_SAID[engine]} {text}", flush=True)


def start(engine: str, argv: Sequence[str]) -> Process:
    """Read the command line, say what the engine says, and be up; or fail as it would."""
    given = {word: argv[k + 1] for k, word in enumerate(argv[:-1]) if word.startswith("--")}
    port = int(given.get("--port", 30000 if engine == "sglang" else 8000))
    model = given.get("--model-path") or given.get("--model") or argv[0]
    name = given.get("--served-model-name", model)
    if engine == "vllm":
        told = json.loads(given.get("--speculative-config", "{}"))
        accept = [0.3, 0.2, 0.1][: int(told.get("num_speculative_tokens", 3))] if told else None
        say(engine, "vLLM API server version 0.23.0")
    else:
        steps = int(given.get("--speculative-num-steps", 0))
        accept = [0.8, 0.7, 0.6, 0.5, 0.4] if "own" in given.get("--speculative-draft-model-path", "") else [0.0] * 5
        accept = accept[:steps] or None
        say(engine, f"server_args=ServerArgs(model_path='{model}', mem_fraction_static={fraction(given)})")
    time.sleep(float(os.environ.get("STANDIN_LOADING") or 0))
    size = os.environ.get("STANDIN_SIZE")
    if size and size in given.get("--speculative-draft-model-path", ""):
        say(engine, "Scheduler hit an exception: Traceback (most recent call last):")
        raise SystemExit("AssertionError: Tensor sizes do not match: parameter [576, 1728] and loaded [2048, 6144]")
    limit = os.environ.get("STANDIN_FRACTION")
    if engine == "sglang" and limit and fraction(given) > float(limit):
        say(engine, "Capture cuda graph begin. This can take up to several minutes. avail mem=0.41 GB")
        say(engine, "Scheduler hit an exception: Traceback (most recent call last):")
        raise SystemExit(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "139.80 GiB of which 410.00 MiB is free."
        )
    if engine == "sglang":
        with socket.socket() as probe:  # it does not share its port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    return Process(engine, name, key=given.get("--api-key"), accept=accept, model=model, port=port)


def fraction(given: dict[str, str]) -> float:
    return float(given.get("--mem-fraction-static", 0.88))


def main(engine: str) -> None:
    """Be the engine's module, as `python3 -m MODULE ARGUMENTS` runs it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    server = start(engine, sys.argv[1:])
    server.__enter__()
    say(engine, "The server is fired up and ready to roll!" if engine == "sglang" else "Started server process [1]")
    print("INFO:     Application startup complete.", flush=True)
    signal.sigwait({signal.SIGTERM})
    os._exit(0)  # what runs is cut off


def lay_out(folder: Path) -> Path:
    """A folder for PYTHONPATH in which both engines' modules are the stand-in's; SGLang's version can be asked for."""
    for engine, module in (("vllm", "vllm/entrypoints/openai/api_server.py"), ("sglang", "sglang/launch_server.py")):
        path = folder / module
        path.parent.mkdir(parents=True)
        root = str(Path(__file__).parent.parent)
        path.write_text(
            f"import sys\nsys.path.insert(0, {root!r})\nfrom tests.standin_process import main\nmain({engine!r})\n"
        )
    told = folder / "sglang-0.5.14.dist-info" / "METADATA"
    told.parent.mkdir()
    told.write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.14\n")
    return folder
