"""Ask a running server of the target, many requests at a time, with token ids both ways.

SGLang's `/generate` takes and gives token ids. A server that speaks the OpenAI completions API takes them as `prompt`
and gives them back when asked with `return_token_ids` (vLLM does); one that does not is refused, because text that is
tokenised again does not always give the same ids, and a drafter trained on other ids drafts for another text.

    for number, answer in Endpoints(["http://127.0.0.1:30000"], 256).answer(requests): ...
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .errors import StepError

TRIES = 5
TIMEOUT = 600.0  # seconds for one answer


@dataclass(frozen=True)
class Request:
    """A prompt as token ids and how it is answered; temperature 0 is greedy."""

    ids: list[int]
    max_new_tokens: int
    stops: list[int]
    temperature: float = 0.0
    top_p: float = 1.0


@dataclass(frozen=True)
class Answer:
    """Token ids, the stop token included if one was said, and the server's text where it gives one."""

    ids: list[int]
    stopped: bool
    text: str | None = None


class Endpoints:
    """Servers of one model at `urls`, asked in turn; `concurrency` requests are in flight, all of them together."""

    def __init__(self, urls: Sequence[str], concurrency: int) -> None:
        """Raises StepError when one of them does not answer."""
        self._servers = [Server(url) for url in urls]
        self._concurrency = concurrency

    def answer(
        self, requests: Sequence[Request], *, until: float = float("inf"), clock: Callable[[], float] = time.monotonic
    ) -> Iterator[tuple[int, Answer]]:
        """Yield the number and the answer of each request as it comes; none is begun after `until` on the clock.

        Raises StepError when a server refuses a request, or gives no token ids, or is gone.
        """
        turn = itertools.cycle(self._servers)
        with (
            contextlib.ExitStack() as connections,
            ThreadPoolExecutor(self._concurrency, thread_name_prefix="endpoint") as pool,
        ):
            for server in self._servers:
                connections.callback(server.close)  # once the threads have ended
            running: dict[Future[Answer], int] = {}
            todo = iter(enumerate(requests))
            try:
                while True:
                    while len(running) < 2 * self._concurrency and clock() < until:
                        number, request = next(todo, (-1, None))
                        if request is None:
                            break
                        running[pool.submit(next(turn).answer, request)] = number
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        yield running.pop(future), future.result()
                    if clock() >= until:
                        for future in [f for f in running if f.cancel()]:
                            del running[future]
            finally:
                for future in running:
                    future.cancel()


class Server:
    """One server; each thread keeps its own connection to it."""

    def __init__(self, url: str) -> None:
        """Find out which API it speaks. Raises StepError when it does not answer."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StepError(f"`generate.endpoint` is `{url}`", hint="write it as `http://host:port`")
        self.url, self._local = url, threading.local()
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._connections: list[http.client.HTTPConnection] = []
        try:
            self._native = self._call("GET", "/model_info", None)[0] == 200
            self._name = None if self._native else self._served_name()
        finally:
            self.close()

    def close(self) -> None:
        """Close the connections of all threads; the next request opens one."""
        while self._connections:
            self._connections.pop().close()
        self._local = threading.local()

    def answer(self, request: Request) -> Answer:
        """Its answer to `request`."""
        greedy = request.temperature == 0
        sampling = {"temperature": request.temperature, **({} if greedy else {"top_p": request.top_p})}
        if self._native:
            params = {"max_new_tokens": request.max_new_tokens, "stop_token_ids": request.stops, **sampling}
            reply = self._post("/generate", {"input_ids": request.ids, "sampling_params": params})
            ids, reason, text = reply.get("output_ids"), reply["meta_info"]["finish_reason"], reply.get("text")
            stopped, matched = reason["type"] == "stop", reason.get("matched")
        else:
            body = {
                "model": self._name, "prompt": request.ids, "max_tokens": request.max_new_tokens,
                "stop_token_ids": request.stops, "return_token_ids": True, **sampling,
            }  # fmt: skip
            choice = self._post("/v1/completions", body)["choices"][0]
            ids, stopped, text = choice.get("token_ids"), choice["finish_reason"] == "stop", choice.get("text")
            matched = choice.get("stop_reason")
        if ids is None:
            raise StepError(
                f"`{self.url}` answers without token ids", hint="use a server that gives them: SGLang, or vLLM >= 0.10"
            )
        if stopped and (not ids or ids[-1] not in request.stops) and matched in request.stops:
            ids = [*ids, matched]
        return Answer(ids, stopped, text)

    def _served_name(self) -> str:
        status, body = self._call("GET", "/v1/models", None)
        if status != 200:
            raise StepError(
                f"`{self.url}` answers neither `/model_info` (SGLang) nor `/v1/models` (OpenAI): status {status}",
                hint="set `generate.endpoint` to a server of the target that is up",
            )
        name: str = json.loads(body)["data"][0]["id"]
        return name

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        status, text = self._call("POST", path, json.dumps(body).encode())
        if status != 200:
            raise StepError(
                f"`{self.url}{path}` refused a request of {len(body.get('input_ids', body.get('prompt', [])))} tokens "
                f"with status {status}: {text[:300].decode(errors='replace')}",
                hint="see the server's log; `generate.max_prompt_tokens` leaves out what is too long for it",
            )
        return json.loads(text)

    def _call(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Status and body. A broken connection and a 5xx are tried again, with pauses that double."""
        pause = 0.5
        for attempt in range(1, TRIES + 1):
            try:
                status, text = self._once(method, path, body)
                if status < 500 or attempt == TRIES:
                    return status, text
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                if attempt == TRIES:
                    raise StepError(
                        f"`{self.url}` does not answer after {TRIES} tries: {error!r}",
                        hint="see that the server is up and reachable from this host; what was answered is kept",
                    ) from error
            time.sleep(pause)
            pause *= 2
        raise AssertionError("the last try returns or raises")

    def _drop(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
        self._local.connection = None

    def _once(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            connection = self._local.connection = kind(self._host, self._port, timeout=TIMEOUT)
            self._connections.append(connection)
        connection.request(method, self._base + path, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        return response.status, response.read()
