"""A stand-in for a model server: SGLang's or vLLM's HTTP interface over a scripted model and a scripted drafter.

    with StandIn("sglang", accept=[0.8, 0.5, 0.2]) as engine:
        engine.url

Its "model" answers a prompt with tokens computed from the prompt's ids, its "drafter" has each draft accepted with the
given conditional probabilities, decided by a seed. Nothing takes time on purpose: it proves arithmetic, not speed.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EOS = 2


class StandIn:
    """One server on the loopback, on a free port unless one is given.

    `accept[k]` is the chance of draft k+1, given the k before it; `None` serves without speculation.
    `loops` makes every answer repeat two tokens, `broken_after` makes it fail once it has served so many requests.
    """

    handler: type[BaseHTTPRequestHandler]
    server: type[ThreadingHTTPServer] = ThreadingHTTPServer

    def __init__(
        self,
        engine: str,
        *,
        accept: Sequence[float] | None = None,
        topk: int = 1,
        model: str = "org/model",
        loops: bool = False,
        broken_after: int | None = None,
        max_running: int = 64,
        port: int = 0,
    ) -> None:
        self.engine, self.accept, self.topk, self.model = engine, accept, topk, model
        self.loops, self.broken_after, self.max_running = loops, broken_after, max_running
        self.asked: list[dict[str, Any]] = []
        self.flushed = 0
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        self.rounds = self.proposed = self.accepted = 0
        self.reached = [0] * len(accept or ())
        outer = self

        class Handler(self.handler):  # type: ignore[name-defined, misc]
            standin = outer

        self._server = self.server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> StandIn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, ids: Sequence[int], most: int) -> list[int]:
        """What the model says to `ids`: about half of the prompts end by themselves."""
        if self.loops:
            return [7, 8] * (most // 2) + [7] * (most % 2)
        draw = random.Random(repr(list(ids)))
        own = draw.randint(most // 2, most + most // 2)
        said = [draw.randint(10, 30000) for _ in range(min(own, most))]
        return [*said[:-1], EOS] if own < most else said

    def draft(self, ids: Sequence[int], tokens: int) -> list[int]:
        """The accepted drafts of each round of an answer of so many tokens, of which the first needs no round."""
        runs, made = [], 1
        draw = random.Random(f"draft {list(ids)}")
        while made < tokens:
            run = 0
            while run < len(self.accept or ()) and draw.random() < (self.accept or ())[run]:
                run += 1
            runs.append(run)
            made += run + 1
        return runs

    def count(self, runs: Sequence[int]) -> None:
        """Add to the totals that vLLM shows."""
        with self.lock:
            self.rounds += len(runs)
            self.proposed += len(runs) * len(self.reached)
            self.accepted += sum(runs)
            for place in range(len(self.reached)):
                self.reached[place] += sum(run > place for run in runs)

    def metrics(self) -> str:
        """vLLM's page of counters, with the lines around them that a reader has to pass over."""
        if self.accept is None:
            return "# HELP vllm:num_requests_running x\nvllm:num_requests_running 0.0\n"
        label = '{engine="0",model_name="m"}'
        lines = ["# TYPE vllm:spec_decode_num_drafts counter"]
        for name, value in (
            ("drafts", self.rounds),
            ("draft_tokens", self.proposed),
            ("accepted_tokens", self.accepted),
        ):
            lines.append(f"vllm:spec_decode_num_{name}_total{label} {float(value)}")
            lines.append(f"vllm:spec_decode_num_{name}_created{label} 1.7e+09")
        for place, value in enumerate(self.reached):
            labels = f'{{engine="0",model_name="m",position="{place}"}}'
            lines.append(f"vllm:spec_decode_num_accepted_tokens_per_pos_total{labels} {float(value)}")
        return "\n".join(lines) + "\n"


class _Handler(BaseHTTPRequestHandler):
    standin: StandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._route({})

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        self._route(json.loads(self.rfile.read(size)) if size else {})

    def routes(self) -> dict[str, Any]:
        """What is answered, by path."""
        return _SGLANG if self.standin.engine == "sglang" else _VLLM

    def _route(self, body: dict[str, Any]) -> None:
        path = self.path.partition("?")[0]
        found = self.routes().get(path)
        if found is None:
            self._say(404, {"detail": "Not Found"})
        else:
            found(self, body)

    def _say(self, status: int, value: Any) -> None:
        data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterator[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def _begin(self, body: dict[str, Any]) -> bool:
        standin = self.standin
        with standin.lock:
            standin.asked.append(body)
            standin.in_flight += 1
            standin.most_in_flight = max(standin.most_in_flight, standin.in_flight)
            return standin.broken_after is None or len(standin.asked) <= standin.broken_after

    def _end(self) -> None:
        with self.standin.lock:
            self.standin.in_flight -= 1

    def tokenize(self, body: dict[str, Any]) -> None:
        text = body.get("prompt")
        if text is None:
            text = json.dumps([body["messages"], body.get("chat_template_kwargs")])
        ids = [3 + ord(letter) for letter in text]
        self._say(200, {"tokens": ids, "count": len(ids), "max_model_len": 4096})

    def server_info(self, _: dict[str, Any]) -> None:
        s = self.standin
        steps = None if s.accept is None else len(s.accept)
        self._say(200, {
            "model_path": s.model, "version": "0.5.14", "tp_size": 1, "api_key": "secret", "dtype": "bfloat16",
            "speculative_algorithm": None if steps is None else "EAGLE3", "speculative_num_steps": steps,
            "speculative_eagle_topk": None if steps is None else s.topk,
            "speculative_num_draft_tokens": None if steps is None else steps * s.topk + 1,
            "speculative_draft_model_path": None if steps is None else "/drafter",
            "internal_states": [{"effective_max_running_requests_per_dp": s.max_running}],
        })  # fmt: skip

    def flush(self, _: dict[str, Any]) -> None:
        self.standin.flushed += 1
        self._say(200, "Cache flushed.")

    def generate(self, body: dict[str, Any]) -> None:
        try:
            if not self._begin(body):
                self._say(500, {"error": {"message": "scheduler died"}})
                return
            ids, most = body["input_ids"], body["sampling_params"]["max_new_tokens"]
            said = self.standin.answer(ids, most)
            meta: dict[str, Any] = {
                "completion_tokens": len(said), "finish_reason": {"type": "stop" if said[-1] == EOS else "length"},
            }  # fmt: skip
            if self.standin.accept is not None:
                meta |= self._counts(self.standin.draft(ids, len(said)))
            first = {"output_ids": said[:1], "meta_info": {"finish_reason": None, "completion_tokens": 1}}
            self._stream(iter([first, {"output_ids": said, "meta_info": meta}]))
        finally:
            self._end()

    def _counts(self, runs: list[int]) -> dict[str, Any]:
        drafts = len(self.standin.accept or ()) * self.standin.topk
        histogram = [runs.count(k) for k in range(max(runs, default=-1) + 1)]
        if not runs:
            return {}
        return {
            "spec_verify_ct": len(runs), "spec_num_correct_drafts": sum(runs),
            "spec_num_proposed_drafts": len(runs) * drafts, "spec_correct_drafts_histogram": histogram,
        }  # fmt: skip

    def completions(self, body: dict[str, Any]) -> None:
        try:
            if not self._begin(body):
                self._say(500, {"error": {"message": "engine died"}})
                return
            ids, most = body["prompt"], body["max_tokens"]
            said = self.standin.answer(ids, most)
            if not body.get("stream"):
                self._say(200, {"choices": [{"text": "x", "finish_reason": "length"}]})
                return
            if self.standin.accept is not None:
                self.standin.count(self.standin.draft(ids, len(said)))
            reason = "stop" if said[-1] == EOS else "length"
            chunks = [{"choices": [{"token_ids": [token], "finish_reason": None}]} for token in said[:-1]]
            chunks.append({"choices": [{"token_ids": said[-1:], "finish_reason": reason}]})
            self._stream(iter([*chunks, {"choices": [], "usage": {"completion_tokens": len(said)}}]))
        finally:
            self._end()

    def models(self, _: dict[str, Any]) -> None:
        self._say(200, {"data": [{"id": "served", "root": self.standin.model, "max_model_len": 4096}]})


StandIn.handler = _Handler
Handler = _Handler
_SGLANG = {
    "/server_info": _Handler.server_info,
    "/health_generate": lambda handler, _: handler._say(200, ""),
    "/tokenize": _Handler.tokenize,
    "/flush_cache": _Handler.flush,
    "/generate": _Handler.generate,
}
_VLLM = {
    "/version": lambda handler, _: handler._say(200, {"version": "0.23.0"}),
    "/health": lambda handler, _: handler._say(200, ""),
    "/v1/models": _Handler.models,
    "/tokenize": _Handler.tokenize,
    "/v1/completions": _Handler.completions,
    "/metrics": lambda handler, _: handler._say(200, handler.standin.metrics()),
}


def main() -> None:
    """Be `python3` for a job that starts SGLang: read its arguments, serve, and end on TERM.

    A chain of 7 steps "does not fit into memory", as a real one might not.
    """
    words = sys.argv[1:]
    given = {word: words[k + 1] for k, word in enumerate(words[:-1]) if word.startswith("--")}
    steps = int(given.get("--speculative-num-steps", 0))
    if steps == 7:
        raise SystemExit(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total ..."
        )
    accept = [0.9, 0.8, 0.7, 0.6, 0.5][:steps] or None
    with StandIn("sglang", accept=accept, model=given["--model-path"], port=int(given["--port"])):
        signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main()
