"""Rules for settings with parts of their own: overrides of the model, structured output, KV transfer, media."""

from __future__ import annotations

import json
from math import ceil
from typing import Any

from tools.serving.flags.items import Item
from tools.serving.flags.names import ATTENTION
from tools.serving.flags.work import Work, finish, rule, short

_OVERRIDES = ("hf-overrides", "rope-scaling", "rope-theta")
_GRAMMAR = {"guidance": "llguidance", "llguidance": "llguidance", "xgrammar": "xgrammar", "outlines": "outlines"}


@rule(*_OVERRIDES)
def later(work: Work, item: Item) -> None:
    """Said together: they are one JSON object in SGLang."""


@finish(7)
def overrides(work: Work) -> None:
    """One object of overrides, with today's names of the rope's keys."""
    merged: dict[str, Any] = {}
    items = [item for name in _OVERRIDES if (item := work.item(name)) is not None]
    for item in items:
        merged |= _override(work, item)
    if not merged:
        return
    text = json.dumps(merged, ensure_ascii=False)
    said = work.emit("--json-model-override-args", text)
    for item in items:
        if item.name == "hf-overrides" and not isinstance(item.value, dict):
            continue
        entry = work.say(item, "renamed", said, "")
        if item.name.startswith("rope"):
            entry.notes.append("replacing the model's own rope scaling may cost quality: compare answers")


def _override(work: Work, item: Item) -> dict[str, Any]:
    if item.name == "rope-theta":
        value = work.resolve(item.first)
        return {"rope_theta": float(value)} if value.replace(".", "", 1).isdigit() else {"rope_theta": value}
    if not isinstance(item.value, dict):
        work.say(item, "none", "", "it is no JSON object: SGLang takes nothing else", cost=7)
        return {}
    if item.name == "rope-scaling":
        return {"rope_scaling": {"rope_type" if key == "type" else key: value for key, value in item.value.items()}}
    return item.value


@rule("structured-outputs-config", "guided-decoding-backend")
def structured(work: Work, item: Item) -> None:
    """The backend has a counterpart, the rest is a matter of requests."""
    value = item.value if isinstance(item.value, dict) else {"backend": work.resolve(item.first)}
    backend = str(value.get("backend", "auto")).partition(":")[0]
    rest = [f"{key} {short(inner)}" for key, inner in value.items() if key != "backend"]
    if backend in _GRAMMAR:
        entry = work.copy(item, "--grammar-backend", _GRAMMAR[backend], kind="renamed")
    elif backend == "auto":
        entry = work.say(item, "same", "", "SGLang's default (xgrammar)")
    else:
        entry = work.say(item, "none", "", f"SGLang has no grammar backend {backend}", cost=4)
    if rest:
        entry.notes.append(f"lost: {', '.join(rest)}")


@rule("attention-config")
def attention(work: Work, item: Item) -> None:
    """The few parts that SGLang has."""
    value = item.value if isinstance(item.value, dict) else {}
    said, lost = [], []
    for key, inner in value.items():
        backend = ATTENTION.get(str(inner).upper()) if key == "backend" else None
        if key == "use_fp4_indexer_cache" and work.takes("--enable-deepseek-v4-fp4-indexer"):
            said += [work.emit("--enable-deepseek-v4-fp4-indexer")] if inner is True else []
        elif backend is not None:
            said.append(work.emit("--attention-backend", backend))
        else:
            lost.append(f"{key} {short(inner)}")
    entry = work.say(item, "renamed" if said and not lost else "none" if lost else "same", " ".join(said))
    if lost:
        entry.why = f"lost: {', '.join(lost)}"


@rule("kv-transfer-config")
def transfer(work: Work, item: Item) -> None:
    """LMCache as a cache; a producer or a consumer is disaggregation, and needs SGLang's router."""
    value = item.value if isinstance(item.value, dict) else {}
    connector, role = str(value.get("kv_connector", "")), str(value.get("kv_role", ""))
    if "lmcache" in connector.lower() and role in ("kv_both", ""):
        entry = work.copy(item, "--enable-lmcache", kind="renamed")
        entry.notes.append("check LMCache's configuration for keys that its SGLang adapter does not read")
        return
    mode = {"kv_producer": "prefill", "kv_consumer": "decode"}.get(role)
    backend = {"nixl": "nixl", "mooncake": "mooncake", "mori": "mori"}.get(_family(connector))
    if mode is None:
        work.say(item, "none", "", f"{connector or 'no connector'} as {role or 'nothing'} has no counterpart", cost=7)
        return
    said = [work.emit("--disaggregation-mode", mode)]
    if backend is not None:
        said.append(work.emit("--disaggregation-transfer-backend", backend))
    why = "prefill and decode apart: it needs SGLang's router in front, and both sides moved together"
    work.say(item, "changed", " ".join(said), why, cost=8)


def _family(connector: str) -> str:
    return next((name for name in ("nixl", "mooncake", "mori") if name in connector.lower()), "")


@rule("mm-processor-kwargs")
def processor(work: Work, item: Item) -> None:
    """SGLang wants to know of which kind of input."""
    if not isinstance(item.value, dict):
        work.say(item, "none", "", "it is no JSON object", cost=4)
        return
    wrapped = item.value if set(item.value) <= {"image", "video", "audio"} else {"image": item.value}
    text = json.dumps(wrapped, ensure_ascii=False)
    work.copy(item, "--mm-process-config", text, kind="changed", why="SGLang takes it by kind: taken for images")


@rule("disable-log-stats")
def log_stats(work: Work, item: Item) -> None:
    """SGLang's line for every so many decoded batches."""
    work.copy(item, "--decode-log-interval", "1000000", kind="changed", why="no switch: the interval is made huge")


@rule("disable-uvicorn-access-log")
def access(work: Work, item: Item) -> None:
    """By the level of the HTTP server's log."""
    work.copy(item, "--log-level-http", "warning", kind="renamed")


@rule("api-server-count")
def servers(work: Work, item: Item) -> None:
    """Not more HTTP servers, but more tokenizers."""
    work.copy(item, "--tokenizer-worker-num", kind="changed", why="SGLang multiplies tokenizers, not HTTP servers")


@rule("cpu-offload-gb")
def offload(work: Work, item: Item) -> None:
    """Whole GiB in SGLang."""
    value = work.resolve(item.first)
    told = [str(ceil(float(value)))] if value.replace(".", "", 1).isdigit() and "." in value else []
    work.copy(item, "--cpu-offload-gb", *told, why=f"whole GiB: {value}" if told and float(value) % 1 else "")


@rule("decode-context-parallel-size")
def context_parallel(work: Work, item: Item) -> None:
    """Near, not equal."""
    work.copy(item, "--attn-cp-size", kind="changed", why="the nearest there is; measure it")


@rule("device")
def device(work: Work, item: Item) -> None:
    """Both find it themselves."""
    value = work.resolve(item.first)
    if value in ("auto", ""):
        work.say(item, "same", "", "SGLang finds it itself")
    else:
        work.copy(item, "--device")


@rule("config")
def config(work: Work, item: Item) -> None:
    """A file of settings that was not at hand; what was read has been put in its place before."""
    why = "the file was not there to be read: its settings are missing here. Give it beside, or put it into the text"
    work.say(item, "suspicious", "", why, cost=9)


@rule("enable-flashinfer-autotune")
def autotune(work: Work, item: Item) -> None:
    """On in both unless turned off."""
    if item.negative:
        work.copy(item, "--disable-flashinfer-autotune", kind="renamed")
    else:
        work.say(item, "same", "", "SGLang tunes by itself")


@rule("kernel-config")
def kernel(work: Work, item: Item) -> None:
    """Tuning can be turned off, the rest is vLLM's own."""
    value = item.value if isinstance(item.value, dict) else {}
    if value == {"enable_flashinfer_autotune": False}:
        work.copy(item, "--disable-flashinfer-autotune", kind="renamed")
    elif value == {"enable_flashinfer_autotune": True}:
        work.say(item, "same", "", "SGLang tunes by itself")
    else:
        work.say(item, "none", "", "kernels are chosen by SGLang's own backends", cost=2)


@rule("eplb-config")
def balancing(work: Work, item: Item) -> None:
    """The number of redundant experts and the interval have counterparts."""
    names = {"num_redundant_experts": "--ep-num-redundant-experts", "step_interval": "--eplb-rebalance-num-iterations"}
    value = item.value if isinstance(item.value, dict) else {}
    said = [work.emit(names[key], str(inner)) for key, inner in value.items() if key in names]
    lost = [f"{key} {short(inner)}" for key, inner in value.items() if key not in names]
    entry = work.say(item, "none" if lost or not value else "renamed", " ".join(said), cost=2)
    if lost:
        entry.why = f"lost: {', '.join(lost)}"


@rule("mm-encoder-attn-backend")
def encoder_attention(work: Work, item: Item) -> None:
    """Attention of the encoder, by name."""
    known = {"FLASH_ATTN": "fa3", "TORCH_SDPA": "sdpa", "TRITON_ATTN": "triton_attn"}
    target = known.get(work.resolve(item.first).upper())
    if target is None:
        work.say(item, "none", "", f"SGLang has no {item.first} for encoders; it chooses itself", cost=2)
    else:
        work.copy(item, "--mm-attention-backend", target, kind="renamed")


@rule("limit-mm-per-prompt")
def media(work: Work, item: Item) -> None:
    """Numbers by kind; vLLM may also be told sizes, which SGLang does not take."""
    value = item.value
    if not isinstance(value, dict):
        work.copy(item, "--limit-mm-data-per-request")
        return
    told = {kind: inner.get("count", 0) if isinstance(inner, dict) else inner for kind, inner in value.items()}
    entry = work.copy(item, "--limit-mm-data-per-request", json.dumps(told))
    if told != value:
        entry.kind = "changed"
        entry.notes.append("sizes are lost, the numbers are kept")
