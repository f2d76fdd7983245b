"""The scripted model: a real HTTP server that speaks the Messages API and answers from a script. No model is in it.

    with ScriptedModel(turns) as server:
        ...  ANTHROPIC_BASE_URL=server.base_url

    python -m agent.scripted FILE.yaml --port 8100

For examples, tests and benchmarks. It streams like the real API and is as strict about requests: a `tool_use` without
its one `tool_result` in the next message, an empty text block or a first message that is not the user's is a 400. A
script is a list of turns, of which the first that fits a request and is not used up answers it:

    when     text, or a list of texts, that the last message must hold        (what the operator or a tool just said)
    system   a text that the system prompt must hold                          (to tell planner and subagents apart)
    say      the answer's text; think: thinking before it
    tools    [{name, input, id}]: what the answer calls; `input` may be a string of bad JSON, `id` may be left out
    stop     the stop reason; by default `tool_use` with tools, else `end_turn`
    again    true: never used up
    wait_s   a pause before the answer; piece_s one between its pieces
    status   an HTTP status instead of an answer, with `retry_after` and `error` (its type)
    cut      true: the connection ends in the middle; overload: true: an error event in the middle, or the type of it
    usage    {input, output, cache_read, cache_write}
"""

from __future__ import annotations

import argparse
import itertools
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import yaml

Turn = Mapping[str, Any]
NOTHING_LEFT: Turn = {"say": "(The script of this stand-in model has nothing more to say.)"}
PIECE_CHARS = 24


class ScriptedModel:
    """A server on the loopback, in threads of its own. `requests` are the bodies it was sent, in order of arrival."""

    def __init__(self, turns: Iterable[Turn] = (), *, port: int = 0) -> None:
        self._turns = [dict(turn) for turn in turns]
        self._used: set[int] = set()
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self.requests: list[dict[str, Any]] = []
        self.arrivals: list[float] = []
        self._http = _Server(("127.0.0.1", port), _Handler)
        self._http.model = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="scripted", daemon=True)

    @classmethod
    def from_file(cls, path: Path, *, port: int = 0) -> Self:
        """A server with the `turns` of a YAML file."""
        return cls(yaml.safe_load(path.read_text(encoding="utf-8"))["turns"], port=port)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def add(self, *turns: Turn) -> None:
        """More turns, behind those that are there."""
        with self._lock:
            self._turns += [dict(turn) for turn in turns]

    def choose(self, body: dict[str, Any]) -> Turn:
        """The turn that answers this request; it is then used up."""
        last, system = _text(body["messages"][-1:]), _text([{"content": body.get("system") or ""}])
        with self._lock:
            self.requests.append(body)
            self.arrivals.append(time.monotonic())
            for place, turn in enumerate(self._turns):
                wanted = turn.get("when") or []
                wanted = [wanted] if isinstance(wanted, str) else wanted
                fits = all(text in last for text in wanted) and turn.get("system", "") in system
                if fits and place not in self._used:
                    if not turn.get("again"):
                        self._used.add(place)
                    return turn
        return NOTHING_LEFT

    def new_id(self) -> int:
        return next(self._ids)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    model: ScriptedModel


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.split("?")[0].endswith("/count_tokens"):
            self._json(200, {"input_tokens": len(json.dumps(body)) // 4})
            return
        if complaint := complain(body):
            self._error(400, "invalid_request_error", complaint)
            return
        turn = self.server.model.choose(body)
        time.sleep(float(turn.get("wait_s", 0)))
        if status := turn.get("status"):
            self._error(
                status, turn.get("error", _ERRORS.get(status, "api_error")), "as scripted", turn.get("retry_after")
            )
            return
        try:
            self._stream(turn, body)
        except OSError:
            self.close_connection = True  # the client hung up

    def _stream(self, turn: Turn, body: Mapping[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        written = list(events(turn, body, self.server.model.new_id()))
        middle = len(written) // 2 if turn.get("cut") or turn.get("overload") else None
        for place, event in enumerate(written):
            if place == middle:
                if turn.get("overload"):
                    kind = "overloaded_error" if turn["overload"] is True else turn["overload"]
                    self._event({"type": "error", "error": {"type": kind, "message": "as scripted"}})
                if turn.get("cut") != "clean":
                    self.close_connection = True
                    return
                break
            self._event(event)
            time.sleep(float(turn.get("piece_s", 0)))
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, event: Mapping[str, Any]) -> None:
        data = f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _error(self, status: int, kind: str, message: str, retry_after: float | None = None) -> None:
        self._json(status, {"type": "error", "error": {"type": kind, "message": message}}, retry_after)

    def _json(self, status: int, value: Any, retry_after: float | None = None) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if retry_after is not None:
            self.send_header("retry-after", str(retry_after))
        self.end_headers()
        self.wfile.write(data)


_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_ERRORS |= {529: "overloaded_error"}


def events(turn: Turn, body: Mapping[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """The stream of one answer, event by event."""
    usage = {
        "input": len(json.dumps(body)) // 4,
        "output": 1,
        "cache_read": 0,
        "cache_write": 0,
        **turn.get("usage", {}),
    }
    before = {"input_tokens": usage["input"], "output_tokens": 1}
    before |= {"cache_read_input_tokens": usage["cache_read"], "cache_creation_input_tokens": usage["cache_write"]}
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": body["model"], "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": before}
    yield {"type": "message_start", "message": message}
    place = -1
    for place, (block, deltas) in enumerate(_blocks(turn, number)):
        yield {"type": "content_block_start", "index": place, "content_block": block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": place, "delta": delta}
        yield {"type": "content_block_stop", "index": place}
    stop = turn.get("stop") or ("tool_use" if turn.get("tools") else "end_turn")
    delta = {"stop_reason": stop, "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": usage["output"]}}
    yield {"type": "message_stop"}


def _blocks(turn: Turn, number: int) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    if thought := turn.get("think"):
        pieces = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(thought)]
        start = {"type": "thinking", "thinking": "", "signature": ""}
        yield start, [*pieces, {"type": "signature_delta", "signature": f"sig{number}"}]
    if text := turn.get("say"):
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in _pieces(text)]
    for count, tool in enumerate(turn.get("tools") or ()):
        given = tool.get("input") or {}
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        id = tool.get("id", f"toolu_{number}_{count}")
        block = {"type": "tool_use", "id": id, "name": tool["name"], "input": {}}
        yield block, [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(text)]


def _pieces(text: str) -> list[str]:
    return [text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS)]


def complain(body: Mapping[str, Any]) -> str | None:
    """What the real API would refuse about a request; `None` if nothing."""
    messages = body.get("messages") or []
    if not messages or messages[0]["role"] != "user":
        return "messages: the first message must be the user's"
    waiting: set[str] = set()
    for place, message in enumerate(messages):
        blocks = (
            message["content"]
            if isinstance(message["content"], list)
            else [{"type": "text", "text": message["content"]}]
        )
        if not blocks or any(block["type"] == "text" and not block["text"].strip() for block in blocks):
            return f"messages.{place}: text content blocks must be non-empty"
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(results) != sorted(waiting):
            return f"messages.{place}: `tool_use` ids {sorted(waiting)} and `tool_result` ids {sorted(results)} differ"
        if results and any(b["type"] != "tool_result" for b in blocks[: len(results)]):
            return f"messages.{place}: `tool_result` blocks must come first"
        waiting = {block["id"] for block in blocks if block["type"] == "tool_use"}
    return f"the last message calls tools: {sorted(waiting)}" if waiting else None


def _text(messages: Iterable[Mapping[str, Any]]) -> str:
    """All text of some messages, with that of tool results."""
    found: list[str] = []
    for message in messages:
        content = message["content"]
        for block in [{"text": content}] if isinstance(content, str) else content:
            inner = block.get("content")
            found.append(block.get("text") or (inner if isinstance(inner, str) else _text([{"content": inner or []}])))
    return "\n".join(found)


def main() -> None:
    """Serve a script until Ctrl-C."""
    parser = argparse.ArgumentParser(description="A stand-in for a model: answers from a script.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--port", type=int, default=8100)
    given = parser.parse_args()
    with ScriptedModel.from_file(given.file, port=given.port) as server:
        print(f"export ANTHROPIC_BASE_URL={server.base_url} TURNOUT_MODEL=scripted", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
