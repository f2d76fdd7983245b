"""One attempt at a model call: a request out, a streamed answer back. The only file that knows the anthropic SDK.

    model = Model(config)
    answer = await model.ask(request, hear)       # raises ModelError; see `agent/model_calls.py` for trying again
    await model.close()

What is an error here: any status that is one, an error event in the middle of a stream (it comes with status 200), a
stream that ends without a stop reason, a stream that goes silent. What is not: every stop reason. The SDK's own retries
are off, because three attempts in two seconds are none. Blocks of the answer are kept as the endpoint sent them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from agent.config import ModelConfig
from state.errors import ModelError, UsageError

Hear = Callable[[str, str], None]
"""Called with the kind of a delta (`text`, `thinking`, `tool`) and its text, while the answer comes in."""

MAX_RETRY_AFTER_S = 600.0
_OVERLOAD_TYPES = {"overloaded_error": "overloaded", "rate_limit_error": "rate_limit", "timeout_error": "timeout"}
_OUR_FAULT = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403,
    "not_found_error": 404, "request_too_large": 413,
}  # fmt: skip
"""Types of errors that asking again does not mend, with the status that says the same.

SGLang opens the stream before it looks at the request, so that these come within a 200 too.
"""


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent, in the words of the Messages API. `system`, `tools` and `messages` are lists of JSON objects."""

    model: str
    system: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    max_tokens: int
    more: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The body of the HTTP request."""
        named = {"model": self.model, "system": self.system, "messages": self.messages, "max_tokens": self.max_tokens}
        return {**named, **({"tools": self.tools} if self.tools else {}), **self.more}

    def described(self) -> dict[str, Any]:
        """What the log keeps of it: hashes and a count."""
        shas = {"system_sha": sha(self.system), "tools_sha": sha(self.tools), "sha": sha(self.body())}
        return {**shas, "messages": len(self.messages)}


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `usage` has input, output, cache_read, cache_write; `ttft_s` is the time to the first delta."""

    model: str
    content: list[dict[str, Any]]
    stop_reason: str
    usage: dict[str, int]
    ttft_s: float | None
    took_s: float

    @property
    def text(self) -> str:
        return "".join(block.get("text", "") for block in self.content if block.get("type") == "text")

    @property
    def tool_uses(self) -> list[dict[str, Any]]:
        return [block for block in self.content if block.get("type") == "tool_use"]


def sha(value: Any) -> str:
    """A short hash of a JSON value, the same wherever it is computed."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Model:
    """A connection to one endpoint. `config` says which; nothing is sent before the first `ask`."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._client: Any = None
        self._connecting = anyio.Lock()

    async def ask(self, request: Request, hear: Hear | None = None) -> Answer:
        """One attempt. Raises `ModelError` with a kind, and whether another attempt may help."""
        client, where = await self._connected(), self.where
        import anthropic  # both are loaded by now, in the thread that made the client
        import httpx2

        began, gathered = time.monotonic(), _Gathered(hear or (lambda kind, text: None))
        try:
            stream = await client.messages.create(**request.body(), stream=True)
            async with stream:
                async for event in stream:
                    gathered.take(event, time.monotonic() - began)
        except anthropic.APIStatusError as error:
            raise _of_status(error, gathered.usage, self.config) from error
        except anthropic.APITimeoutError as error:
            raise _down("timeout", f"`{where}` did not answer in time", gathered) from error
        except anthropic.APIConnectionError as error:
            raise _down("down", f"no connection to `{where}`: {error.__cause__ or error}", gathered) from error
        except httpx2.TimeoutException as error:
            raise _down("timeout", f"`{where}` went silent in the middle of its answer", gathered) from error
        except httpx2.HTTPError as error:
            raise _down("cut", f"the answer of `{where}` broke off: {error}", gathered) from error
        except (ValueError, anthropic.AnthropicError) as error:
            raise _down("cut", f"the answer of `{where}` cannot be read: {error}", gathered) from error
        return gathered.answer(request.model, time.monotonic() - began, where)

    async def prepare(self) -> None:
        """Make ready for the first call, which would otherwise wait for the SDK. What is wrong is told by that call."""
        with contextlib.suppress(UsageError):
            await self._connected()

    async def close(self) -> None:
        """Let go of the connections."""
        if self._client is not None:
            client, self._client = self._client, None
            with anyio.CancelScope(shield=True), anyio.move_on_after(2.0):
                await client.close()

    @property
    def where(self) -> str:
        """The endpoint, for messages to people."""
        return self.config.base_url or self.config.provider

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._client is None:
                # In a thread: the SDK takes half a second to import, and reads credentials and certificates from files.
                self._client = await anyio.to_thread.run_sync(_client, self.config)
            return self._client


def _client(config: ModelConfig) -> Any:
    import anthropic
    import httpx2

    # `read` bounds the silence between two pieces of the answer; servers send pings while a model thinks.
    timeout = httpx2.Timeout(connect=10.0, read=config.silence_s, write=60.0, pool=None)
    given: dict[str, Any] = {"max_retries": 0, "timeout": timeout, "base_url": config.base_url}
    # A server of one's own wants no key, and the SDK wants one.
    given["api_key"] = config.api_key or ("none" if config.base_url else None)
    make: Any = anthropic.AsyncAnthropic
    if config.provider == "bedrock":
        make = anthropic.AsyncAnthropicBedrock
        given["aws_region"] = config.region
    elif config.provider == "vertex":
        make = anthropic.AsyncAnthropicVertex
        given |= {"region": config.region, "project_id": config.project, "api_key": None}
    try:
        return make(**{key: value for key, value in given.items() if value is not None})
    except (anthropic.AnthropicError, ImportError, ValueError) as error:
        raise UsageError(
            f"the model client for `{config.provider}` cannot be made: {error}",
            hint="`pip install 'anthropic[bedrock]'` or `[vertex]`, and that provider's own credentials",
        ) from error


class _Gathered:
    """An answer as it comes in."""

    def __init__(self, hear: Hear) -> None:
        self._hear = hear
        self._blocks: dict[int, dict[str, Any]] = {}
        self._json: dict[int, str] = {}
        self._stop_reason: str | None = None
        self._ttft: float | None = None
        self._began = False
        self._tokens: dict[str, int] = {}

    @property
    def usage(self) -> dict[str, int] | None:
        """What was used so far; `None` when the endpoint never began to answer."""
        return self._tokens if self._began else None

    def take(self, event: Any, after_s: float) -> None:
        """One event of the stream. Kinds that are not known are passed over: the API may add some."""
        match event.type:
            case "message_start":
                self._began = True
                self._count(event.message.usage)
            case "content_block_start":
                self._blocks[event.index] = event.content_block.to_dict()
                if event.content_block.type == "tool_use":
                    self._hear("tool", event.content_block.name)
            case "content_block_delta":
                self._ttft = after_s if self._ttft is None else self._ttft
                self._delta(event.index, event.delta)
            case "content_block_stop":
                self._finish(event.index)
            case "message_delta":
                self._stop_reason = event.delta.stop_reason or self._stop_reason
                self._count(event.usage)

    def _delta(self, index: int, delta: Any) -> None:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        match delta.type:
            case "text_delta":
                block["text"] = block.get("text", "") + delta.text
                self._hear("text", delta.text)
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta.thinking
                self._hear("thinking", delta.thinking)
            case "signature_delta":
                block["signature"] = block.get("signature", "") + delta.signature
            case "input_json_delta":
                self._json[index] = self._json.get(index, "") + delta.partial_json
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta.citation.to_dict()]

    def _finish(self, index: int) -> None:
        """A tool's input is whole. What a weak model wrote that is no object is kept for the complaint about it."""
        text = self._json.pop(index, "")
        block = self._blocks.get(index)
        if block is None or not (text or "input" in block):
            return
        if text:
            try:
                block["input"] = json.loads(text)
            except ValueError:
                block["input"] = {UNREADABLE: text}
        if not isinstance(block["input"], dict):
            block["input"] = {UNREADABLE: json.dumps(block["input"])}

    def _count(self, usage: Any) -> None:
        names = {"input": "input_tokens", "output": "output_tokens"}
        names |= {"cache_read": "cache_read_input_tokens", "cache_write": "cache_creation_input_tokens"}
        for ours, theirs in names.items():
            value = getattr(usage, theirs, None)
            if value is not None:  # counts are cumulative; a later one may leave some out
                self._tokens[ours] = int(value)

    def answer(self, model: str, took_s: float, where: str) -> Answer:
        for index in list(self._json):
            self._finish(index)
        if self._stop_reason is None:
            raise _down("cut", f"the answer of `{where}` ended before it was complete", self)
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return Answer(model, content, self._stop_reason, self._tokens, self._ttft, took_s)


UNREADABLE = "_unreadable"
"""The key under which a tool's input is kept that was no JSON object."""


def _down(kind: str, message: str, gathered: _Gathered) -> ModelError:
    return ModelError(message, kind=kind, retryable=True, usage=gathered.usage)


def _of_status(error: Any, usage: dict[str, int] | None, config: ModelConfig) -> ModelError:
    """What an error status, or an error event within a stream, means."""
    status, told = error.status_code, error.api_message or error.message
    if status == 200:
        status = _OUR_FAULT.get(error.type or "", 200)
    kind = _OVERLOAD_TYPES.get(error.type or "")
    if kind is None:
        kind = {429: "rate_limit", 529: "overloaded", 503: "overloaded", 408: "timeout", 504: "timeout"}.get(status)
    if kind is None and (status >= 500 or error.type == "api_error" or status == 200):
        kind = "overloaded" if "overload" in str(told).lower() else "down"
    where = config.base_url or config.provider
    if kind is not None:
        return ModelError(
            f"`{where}` answered {status}: {told}",
            kind=kind,
            retryable=True,
            retry_after_s=_retry_after(error.response.headers) if status != 200 else None,
            usage=usage,
        )
    hints = {
        401: "the key is not accepted: set ANTHROPIC_API_KEY, or `api_key` under `[model]`",
        403: "the key may not use this model",
        404: f"the endpoint has no model `{config.name}`, or no Messages API: set TURNOUT_MODEL",
    }
    return ModelError(f"`{where}` refused the call ({status}): {told}", kind="bad_request", hint=hints.get(status))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """What the server asks to wait, in seconds; dates and nonsense are passed over."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
        if seconds >= 0:
            return min(seconds, MAX_RETRY_AFTER_S)
    return None
