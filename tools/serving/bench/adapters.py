"""SGLang and vLLM seen alike: who serves, token ids of a conversation, one answer with its counts, an empty cache.

Written against sglang 0.5.14 (`/generate`, `meta_info`) and vllm 0.23.0 (`/v1/completions`, Prometheus counters). Both
are asked with token ids that their own `/tokenize` gave, so the chat template is the server's and two engines can be
held against each other on equal input; sampling settings that either would take from the model's files are pinned.

Answers are streamed for the time to the first token. SGLang repeats the whole text in each event, so it is asked for
the first and the last one only (`stream_interval`); vLLM sends what is new.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from .counters import Counts, settled
from .errors import BenchError
from .transport import NoAnswer, Refused, Server

ONLY_FIRST_AND_LAST = 1 << 20
_NOTHING: dict[str, Any] = {}
# Of SGLang's arguments those that decide speed or acceptance; the whole lot holds keys and passwords.
ARGUMENTS = (
    "served_model_name", "dtype", "quantization", "kv_cache_dtype", "tp_size", "dp_size", "pp_size", "ep_size",
    "enable_dp_attention", "mem_fraction_static", "context_length", "max_running_requests", "max_total_tokens",
    "chunked_prefill_size", "page_size", "schedule_policy", "attention_backend", "sampling_backend", "chat_template",
    "disable_radix_cache", "disable_cuda_graph", "cuda_graph_max_bs", "disable_overlap_schedule", "random_seed",
    "enable_deterministic_inference", "enable_torch_compile", "incremental_streaming_output", "speculative_algorithm",
    "speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
    "speculative_accept_threshold_single", "speculative_accept_threshold_acc", "speculative_attention_mode",
    "speculative_use_rejection_sampling", "speculative_draft_window_size", "speculative_token_map",
    "speculative_draft_model_quantization", "speculative_adaptive",
)  # fmt: skip


class Sampling(NamedTuple):
    """How answers are drawn; `max_tokens` each. At temperature 0 they are greedy."""

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    ignore_eos: bool = False
    seed: int = 0


class Answer(NamedTuple):
    """One answer. Times in seconds from the request; `counts` is `None` where the engine counts only in total."""

    tokens: int
    seconds: float
    first_s: float
    ids: list[int]
    finish: str
    counts: Counts | None = None


class Sglang:
    """`python -m sglang.launch_server`."""

    name = "sglang"
    counts_each_answer = True

    def __init__(self, server: Server) -> None:
        self.server = server

    def describe(self) -> dict[str, Any]:
        """Version, model, arguments and speculation, as the server tells them."""
        info = self.server.get("/server_info")
        if not isinstance(info, dict) or "model_path" not in info:
            raise BenchError(f"`{self.server.url}/server_info` is not SGLang's", "say `--engine vllm` if it is vLLM")
        states = info.get("internal_states") or [{}]
        return {
            "name": self.name,
            "version": info.get("version"),
            "model": info["model_path"],
            "max_running": states[0].get("effective_max_running_requests_per_dp") or info.get("max_running_requests"),
            "speculation": _sglang_speculation(info),
            "arguments": {name: info[name] for name in ARGUMENTS if info.get(name) is not None},
        }

    def alive(self) -> bool:
        """Whether it generates: `/health_generate` asks the model for a token, or sees that it is at work."""
        return _answers(lambda: self.server.get("/health_generate", timeout_s=30))

    def tokenize(self, **what: Any) -> list[int]:
        """Token ids of `messages=` through the chat template, or of `prompt=`. Raises BenchError with a remedy."""
        try:
            return _tokens(self.server.post("/tokenize", what))
        except Refused as error:
            if error.status != 500:
                raise
            # 0.5.14 puts the tokenizer's `model_max_length` into the answer, and 10^30 stands for "not said".
            remedy = "set `model_max_length` in the model's tokenizer_config.json, if it is missing or huge"
            raise BenchError(str(error), remedy) from error

    def flush(self) -> bool:
        """Empty the prefix cache. Raises BenchError while other requests run."""
        self.server.post("/flush_cache?timeout=30")
        return True

    def generate(self, ids: list[int], sampling: Sampling, salt: str) -> Answer:
        """Answer token ids. Raises BenchError when the server gives none."""
        settings = {
            "max_new_tokens": sampling.max_tokens, "temperature": sampling.temperature, "top_p": sampling.top_p,
            "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": sampling.ignore_eos,
            "stream_interval": ONLY_FIRST_AND_LAST,
        }  # fmt: skip
        began = time.monotonic()
        first, last = 0.0, _NOTHING
        pieces: list[list[int]] = []
        for data in self.server.events("/generate", {"input_ids": ids, "sampling_params": settings, "stream": True}):
            first = first or time.monotonic() - began
            last = json.loads(data)
            if "error" in last:
                raise _gave_up("SGLang", last["error"])
            pieces.append(last.get("output_ids") or [])
        took = time.monotonic() - began
        meta = last.get("meta_info") or {}
        reason = (meta.get("finish_reason") or {}).get("type")
        if reason not in ("stop", "length"):
            raise _gave_up("SGLang", meta.get("finish_reason"))
        tokens = int(meta["completion_tokens"])
        # With --incremental-streaming-output the pieces follow each other, without it the last one is everything.
        given = [token for piece in pieces for token in piece] if len(pieces[-1]) < tokens else pieces[-1]
        return Answer(tokens, took, first, given, reason, _sglang_counts(meta))

    def counts(self, at_least: int) -> Counts | None:
        """Nothing in total: every answer brings its own."""
        return None


class Vllm:
    """`vllm serve`."""

    name = "vllm"
    counts_each_answer = False

    def __init__(self, server: Server) -> None:
        self.server = server
        self.model = ""
        self._resets = True
        self._metrics = True

    def describe(self) -> dict[str, Any]:
        """Version and model; its arguments only where VLLM_SERVER_DEV_MODE=1 lets it tell them."""
        version = self.server.get("/version")
        model = self.server.get("/v1/models")["data"][0]
        self.model = model["id"]
        arguments: dict[str, Any] = {"max_model_len": model.get("max_model_len")}
        try:
            config = self.server.get("/server_info?config_format=json")["vllm_config"]
            arguments.update({part: config[part] for part in ("parallel_config", "scheduler_config") if part in config})
        except Refused:
            config = {}
        counts = self.counts(0)
        told = config.get("speculative_config") or {}
        speculation = None if counts is None else {
            "algorithm": told.get("method"), "steps": counts.longest, "topk": 1, "draft_tokens": counts.longest + 1,
            "drafter": told.get("model"), "shape": "chain",
        }  # fmt: skip
        return {
            "name": self.name,
            "version": version.get("version") if isinstance(version, dict) else version,
            "model": model.get("root") or self.model,
            "max_running": (config.get("scheduler_config") or {}).get("max_num_seqs"),
            "speculation": speculation,
            "arguments": arguments,
        }

    def alive(self) -> bool:
        """Whether it generates one token: its `/health` only says that the process is there."""
        body = {"prompt": [1], "max_tokens": 1, "temperature": 0}
        return _answers(lambda: self.server.post("/v1/completions", body, timeout_s=60))

    def tokenize(self, **what: Any) -> list[int]:
        """Token ids of `messages=` through the chat template, or of `prompt=`."""
        return _tokens(self.server.post("/tokenize", dict(what, model=self.model)))

    def flush(self) -> bool:
        """Empty the prefix cache where the server may be told to; else each pass has a salt of its own."""
        if self._resets:
            try:
                self.server.post("/reset_prefix_cache")
            except Refused:
                self._resets = False
        return self._resets

    def generate(self, ids: list[int], sampling: Sampling, salt: str) -> Answer:
        """Answer token ids. Raises BenchError when the server gives none."""
        body = {
            "model": self.model, "prompt": ids, "max_tokens": sampling.max_tokens, "temperature": sampling.temperature,
            "top_p": sampling.top_p, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "seed": sampling.seed,
            "ignore_eos": sampling.ignore_eos, "stream": True, "stream_options": {"include_usage": True},
            "return_token_ids": True, "cache_salt": salt,
        }  # fmt: skip
        began = time.monotonic()
        first, reason, tokens = 0.0, "", 0
        given: list[int] = []
        for data in self.server.events("/v1/completions", body):
            event = json.loads(data)
            if "error" in event:
                raise _gave_up("vLLM", event["error"])
            for choice in event.get("choices") or ():
                first = first or time.monotonic() - began
                given += choice.get("token_ids") or []
                reason = choice.get("finish_reason") or reason
            tokens = (event.get("usage") or {}).get("completion_tokens") or tokens
        took = time.monotonic() - began
        if reason not in ("stop", "length"):
            raise _gave_up("vLLM", reason or None)
        return Answer(tokens or len(given), took, first, given, reason)

    def counts(self, at_least: int) -> Counts | None:
        """What all answers so far counted, once that accounts for `at_least` tokens; `None` without speculation."""
        if not self._metrics:
            return None
        try:
            return settled(lambda: self.server.get("/metrics"), at_least)
        except Refused:
            self._metrics = False
            return None


def find(server: Server, name: str = "auto") -> Any:
    """The adapter for the engine at `server`, asked for by name or recognised. Raises BenchError for neither."""
    if name in ("sglang", "auto"):
        try:
            info = server.get("/server_info")
            if name == "sglang" or (isinstance(info, dict) and "model_path" in info):
                return Sglang(server)
        except Refused:
            if name == "sglang":
                raise
    adapter = Vllm(server)
    try:
        server.get("/version")
    except Refused as error:
        raise BenchError(
            f"`{server.url}` is neither SGLang nor vLLM: {error}", "give the engine's own address"
        ) from error
    return adapter


def wait_until_alive(server: Server, name: str, patience_s: float) -> Any:
    """The adapter, as soon as the server generates. Raises BenchError when it did not within `patience_s` seconds."""
    end = time.monotonic() + patience_s
    while True:
        try:
            adapter = find(server, name)
            if adapter.alive():
                return adapter
            seen = BenchError(f"`{server.url}` is there and generates nothing", "look at its log: `turnout diagnose`")
        except BenchError as error:
            seen = error
        if time.monotonic() >= end:
            raise seen
        time.sleep(1.0)


def new_salt() -> str:
    """What keeps one pass from finding the prefixes of another in vLLM's cache."""
    return uuid.uuid4().hex


def _gave_up(engine: str, why: Any) -> BenchError:
    return BenchError(f"{engine} ended an answer with `{json.dumps(why)[:300]}`", "look at the server's log")


def _answers(ask: Callable[[], Any]) -> bool:
    try:
        ask()
    except (NoAnswer, Refused):
        return False
    return True


def _tokens(reply: Any) -> list[int]:
    if not isinstance(reply, dict) or not isinstance(reply.get("tokens"), list):
        raise BenchError(f"`/tokenize` answered `{str(reply)[:200]}`", "give token ids (`input_ids`) instead")
    return list(reply["tokens"])


def _sglang_speculation(info: dict[str, Any]) -> dict[str, Any] | None:
    if not info.get("speculative_algorithm"):
        return None
    topk = info.get("speculative_eagle_topk")
    return {
        "algorithm": info["speculative_algorithm"],
        "steps": info.get("speculative_num_steps"),
        "topk": topk,
        "draft_tokens": info.get("speculative_num_draft_tokens"),
        "drafter": info.get("speculative_draft_model_path"),
        "shape": "chain" if topk in (None, 1) else "tree",
    }


def _sglang_counts(meta: dict[str, Any]) -> Counts | None:
    if "spec_verify_ct" not in meta:
        return None
    histogram = meta.get("spec_correct_drafts_histogram") or meta.get("spec_accept_histogram") or []
    return Counts(
        int(meta["spec_verify_ct"]),
        int(meta.get("spec_num_correct_drafts", meta.get("spec_accepted_drafts", 0))),
        int(meta.get("spec_num_proposed_drafts", meta.get("spec_proposed_drafts", 0))),
        [int(n) for n in histogram],
    )
