"""A stand-in for a model server: vLLM's or SGLang's HTTP interface and log, with a made-up model and drafter.

    python -m standin.engine sglang --name own --drafter own

It listens on a free port of the loopback and writes its address and pid to the file `<name>.json`. An answer takes real
time: so long for a round of the target, more for a round with a draft, and as many rounds as the drafter's acceptance
leaves. How often a drafter is accepted is scripted below, by engine: vLLM's integration is broken on purpose.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ROUND_S = 0.004
ACCEPT: dict[tuple[str, str], tuple[float, list[float]]] = {
    # What a round with a draft costs, in rounds without, and the chance of each further token of the draft.
    ("vllm", "own"): (1.75, [0.15, 0.05, 0.02]),
    ("vllm", "public"): (1.75, [0.14, 0.06, 0.02]),
    ("sglang", "public"): (1.35, [0.62, 0.50, 0.38]),
    ("sglang", "own"): (1.35, [0.80, 0.71, 0.63]),
}


class Engine:
    """One server: its scripted numbers and what it has counted."""

    def __init__(self, name: str, drafter: str) -> None:
        self.name, self.drafter = name, drafter
        self.cost, self.accept = ACCEPT.get((name, drafter), (1.0, []))
        self.lock = threading.Lock()
        self.tokens = self.rounds = self.drafted = self.accepted = 0
        self.draw = random.Random(f"{name} {drafter}")

    def answer(self, most: int) -> dict[str, Any]:
        """Take the time that so many tokens take, and say what they were made of."""
        made = rounds = accepted = 0
        began = time.monotonic()
        while made < most:
            run = 0
            with self.lock:
                while run < len(self.accept) and self.draw.random() < self.accept[run]:
                    run += 1
            made, rounds, accepted = made + 1 + run, rounds + 1, accepted + run
        time.sleep(max(0.0, rounds * ROUND_S * self.cost - (time.monotonic() - began)))
        with self.lock:
            self.tokens += made
            self.rounds += rounds
            self.drafted += rounds * len(self.accept)
            self.accepted += accepted
        return {"tokens": made, "rounds": rounds, "accepted": accepted, "drafted": rounds * len(self.accept)}


def say(engine: Engine, text: str) -> None:
    """A line of the log in the engine's own form."""
    now = time.localtime()
    if engine.name == "vllm":
        print(f"(APIServer pid={os.getpid()}) INFO {time.strftime('%m-%d %H:%M:%S', now)} {text}", flush=True)
    else:
        print(f"[{time.strftime('%Y-%m-%d %H:%M:%S', now)}] {text}", flush=True)


def start(engine: Engine) -> None:
    """What a server says while it loads."""
    if engine.name == "vllm":
        lines = ["[api_server.py:1977] vLLM API server version 0.23.0 (stand-in)"]
        lines += [f"[speculative.py:201] Loading drafter {engine.drafter}"] if engine.accept else []
        lines += [
            "[default_loader.py:308] Loading weights took 0.21 seconds",
            "[gpu_worker.py:298] Available KV cache memory: 61.33 GiB",
        ]
    else:
        lines = ["server_args=ServerArgs(model_path='standin/model', ...) (stand-in)"]
        lines += [f"Load draft model {engine.drafter} for EAGLE3"] if engine.accept else []
        lines += ["Load weight end. type=StandIn, avail mem=61.33 GB", "Capture cuda graph end. Time elapsed: 0.11 s"]
    for line in lines:
        say(engine, line)
        time.sleep(0.1)


def report(engine: Engine) -> None:
    """Every half second what was served, as each engine tells it."""
    before = 0
    while True:
        time.sleep(0.5)
        with engine.lock:
            rate = (engine.tokens - before) / 0.5
            before, accepted, rounds = engine.tokens, engine.accepted, engine.rounds
        if not rate:
            continue
        length, share = 1 + accepted / max(1, rounds), accepted / max(1, engine.drafted)
        if engine.name == "vllm":
            say(engine, f"[loggers.py:127] Engine 000: Avg generation throughput: {rate:.1f} tokens/s, Running: 1 reqs")
            spoken = f"Mean acceptance length: {length:.2f}, Avg Draft acceptance rate: {share:.1%}"
            if engine.accept:
                say(engine, f"[metrics.py:101] SpecDecoding metrics: {spoken}")
        else:
            told = f"accept len: {length:.2f}, " if engine.accept else ""
            say(engine, f"Decode batch. #running-req: 1, {told}gen throughput (token/s): {rate:.2f}, #queue-req: 0")


class Handler(BaseHTTPRequestHandler):
    """The three paths that the example uses."""

    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._give({"status": "ok", "engine": self.engine.name, "drafter": self.engine.drafter, "stand_in": True})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        made = self.engine.answer(
            int(body.get("max_tokens") or body.get("sampling_params", {}).get("max_new_tokens", 16))
        )
        self._give({"text": "tok " * made["tokens"], "usage": {"completion_tokens": made["tokens"]}, "spec": made})

    def _give(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    """Serve until TERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=("vllm", "sglang"))
    parser.add_argument("--name", required=True)
    parser.add_argument("--drafter", choices=("none", "public", "own"), default="none")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    engine = Engine(options.engine, options.drafter)
    start(engine)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"engine": engine}))
    with open(f"{options.name}.json", "w", encoding="utf-8") as file:
        json.dump({"url": f"http://127.0.0.1:{server.server_address[1]}", "pid": os.getpid()}, file)
    threading.Thread(target=report, args=(engine,), daemon=True).start()
    ready = "Application startup complete." if engine.name == "vllm" else "The server is fired up and ready to roll!"
    say(engine, ready)
    server.serve_forever(0.05)


if __name__ == "__main__":
    main()
