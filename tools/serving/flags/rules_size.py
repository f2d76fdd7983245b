"""Rules for sizes: memory, batches, CUDA graphs, adapters. What they mean differs, so each says its arithmetic."""

from __future__ import annotations

import json
from decimal import Decimal

from tools.serving.flags.items import Item
from tools.serving.flags.repair import mend
from tools.serving.flags.work import Work, finish, fraction, open_value, rule, whole

SHARE_LEFT_OUT = Decimal("0.9")
SHARE_ON_TOP = Decimal("0.05")


@rule("gpu-memory-utilization")
def memory(work: Work, item: Item) -> None:
    """vLLM's share is of everything, SGLang's of weights and KV cache: what is above comes on top.

    A high share means "all there is": SGLang computes that better itself. A deliberate low one is carried over lower.
    """
    share = fraction(work.resolve(item.first))
    if share is None or not 0 < share <= 1:
        reason = "the value is not known here" if open_value(work.resolve(item.first)) else "it is no share of a GPU"
        work.say(item, "changed", "", f"{reason}: set --mem-fraction-static to about 0.05 less by hand", cost=6)
        return
    if share >= SHARE_LEFT_OUT:
        why = (
            f"{share} of the card is `all there is`: SGLang computes --mem-fraction-static from the card (its share "
            "has no room for activations and CUDA graphs, so copying the number ends in out-of-memory)"
        )
        work.say(item, "changed", "", why)
        return
    lower = max(share - SHARE_ON_TOP, share / 2).quantize(Decimal("0.0001")).normalize()
    why = f"{share} - {SHARE_ON_TOP} = {lower}: SGLang's share is weights and KV cache alone, the rest comes on top"
    work.copy(item, "--mem-fraction-static", f"{lower:f}", kind="changed", why=why)


@rule("max-num-seqs")
def sequences(work: Work, item: Item) -> None:
    """Per rank in vLLM, in all in SGLang."""
    ranks = work.number("data-parallel-size", 1)
    value = whole(work.resolve(item.first))
    if ranks > 1 and value is not None:
        why = f"{value} a rank x {ranks} ranks = {value * ranks}: SGLang counts all ranks together"
        work.copy(item, "--max-running-requests", str(value * ranks), kind="changed", why=why)
    elif value is not None and str(value) != work.resolve(item.first):
        work.copy(item, "--max-running-requests", str(value), why=f"{item.first} = {value}")
    else:
        work.copy(item, "--max-running-requests")


@rule("max-num-batched-tokens")
def batched(work: Work, item: Item) -> None:
    """A budget for prefill and decode together in vLLM, for one prefill chunk in SGLang."""
    ranks = work.number("data-parallel-size", 1)
    value = whole(work.resolve(item.first))
    if value is None:
        work.copy(item, "--chunked-prefill-size", kind="changed", why="decode tokens do not count in SGLang")
    elif ranks > 1 and work.dp_attention:
        why = f"{value} a rank x {ranks} ranks = {value * ranks}: with DP attention SGLang divides it by the ranks"
        work.copy(item, "--chunked-prefill-size", str(value * ranks), kind="changed", why=why)
    else:
        told = [] if str(value) == work.resolve(item.first) else [str(value)]
        why = "the tokens of one prefill chunk; decode tokens do not count, --max-prefill-tokens limits the batch"
        work.copy(item, "--chunked-prefill-size", *told, kind="renamed", why=why)


@rule("long-prefill-token-threshold")
def long_prefill(work: Work, item: Item) -> None:
    """Near to the chunk size, unless that is set already."""
    if work.item("max-num-batched-tokens") is not None:
        work.say(item, "none", "", "the chunk size is the only limit in SGLang, and it is set", cost=2)
    else:
        work.copy(item, "--chunked-prefill-size", kind="changed", why="the nearest there is")


@rule("kv-cache-memory-bytes")
def kv_bytes(work: Work, item: Item) -> None:
    """Bytes against tokens: the model's shape is wanted."""
    why = "SGLang counts tokens: --max-total-tokens = bytes / (layers x 2 x KV heads x head size x bytes of a number)"
    value, config = whole(work.resolve(item.first)), work.look(work.model)
    tokens = _tokens(value, config) if value is not None and config else None
    if tokens is None:
        work.say(item, "changed", "", why + "; the model's config.json was not there to compute it", cost=5)
    else:
        said = f"{value} / {value // tokens} bytes a token = {tokens}" if value else ""
        work.copy(item, "--max-total-tokens", str(tokens), kind="changed", why=said)


def _tokens(size: int, config: object) -> int | None:
    shape = config if isinstance(config, dict) else {}
    try:
        heads = shape.get("num_key_value_heads") or shape["num_attention_heads"]
        head = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
        return int(size // (shape["num_hidden_layers"] * 2 * heads * head * 2))
    except (KeyError, TypeError, ZeroDivisionError):
        return None


@rule("num-gpu-blocks-override")
def blocks(work: Work, item: Item) -> None:
    """Blocks times their size."""
    value, size = whole(work.resolve(item.first)), work.number("block-size", 16)
    if value is None:
        work.say(item, "changed", "", "--max-total-tokens = blocks x block size, by hand", cost=5)
    else:
        why = f"{value} blocks x {size} tokens = {value * size}"
        work.copy(item, "--max-total-tokens", str(value * size), kind="changed", why=why)


@rule("kv-offloading-size")
def offloading(work: Work, item: Item) -> None:
    """The host's memory as a second cache; LMCache when the backend says so."""
    if work.given("kv-offloading-backend") == "lmcache":
        work.say(item, "changed", "", "LMCache's own configuration says how much", cost=4)
        return
    value = fraction(work.resolve(item.first))
    first = work.emit("--enable-hierarchical-cache")
    told = item.first if value is None or value == int(value) else str(int(value) + 1)
    work.copy(item, "--hicache-size", told, kind="changed", why=f"GiB on the host, a rank; with {first}")


@rule("kv-offloading-backend")
def offloading_backend(work: Work, item: Item) -> None:
    """Only LMCache is a choice in SGLang."""
    if work.resolve(item.first) == "lmcache":
        work.copy(item, "--enable-lmcache", kind="renamed")
    else:
        work.say(item, "same", "", "SGLang's hierarchical cache")


def drafted(work: Work) -> int:
    """Tokens that one request takes in a verification: 1 without speculation."""
    value = whole("".join(work.flags.get("--speculative-num-draft-tokens", [])) or "1")
    return value or 1


@finish(20)
def graphs(work: Work) -> None:
    """vLLM captures numbers of tokens, SGLang numbers of requests: with speculation a request has several tokens."""
    most = work.item("max-cudagraph-capture-size")
    sizes = work.item("cudagraph-capture-sizes") or work.item("cuda-graph-sizes")
    each = drafted(work)
    if most is not None:
        value = whole(work.resolve(most.first))
        if value is None:
            work.say(most, "changed", "", "--cuda-graph-max-bs-decode, in requests: set by hand", cost=4)
        else:
            requests = max(1, value // each)
            why = f"{value} tokens / {each} tokens a request = {requests} requests" if each > 1 else ""
            kind = "changed" if each > 1 else "renamed"
            work.copy(most, _graph_flag(work, "max-bs"), str(requests), kind=kind, why=why)
    if sizes is not None:
        _sizes(work, sizes, each)
    config = work.item("compilation-config")
    if config is not None:
        compilation(work, config)


def _sizes(work: Work, item: Item, each: int) -> None:
    told = item.values[0].strip("[]").split(",") if len(item.values) == 1 else item.values
    numbers = [whole(value) for value in told]
    if None in numbers or not numbers:
        work.say(item, "changed", "", "--cuda-graph-bs-decode, in requests: set by hand", cost=4)
        return
    requests = sorted({max(1, number // each) for number in numbers if number})
    why = f"tokens / {each} tokens a request" if each > 1 else ""
    kind = "changed" if each > 1 else "renamed"
    work.copy(item, _graph_flag(work, "bs"), *map(str, requests), kind=kind, why=why)


def _graph_flag(work: Work, part: str) -> str:
    new = f"--cuda-graph-{part}-decode"
    return new if work.takes(new) else f"--cuda-graph-{part}"


@rule("max-cudagraph-capture-size", "cudagraph-capture-sizes", "cuda-graph-sizes", "compilation-config")
def later(work: Work, item: Item) -> None:
    """Said at the end, when it is known how many tokens a request has."""


def compilation(work: Work, item: Item) -> None:
    """The compiler is vLLM's own; sizes of CUDA graphs and "no graphs" have a counterpart."""
    value = item.value if isinstance(item.value, dict) else {}
    kept = []
    sizes = value.get("cudagraph_capture_sizes")
    if isinstance(sizes, list) and sizes and work.item("cudagraph-capture-sizes") is None:
        each = drafted(work)
        requests = sorted({max(1, int(size) // each) for size in sizes if isinstance(size, int)})
        kept.append(work.emit(_graph_flag(work, "bs"), *map(str, requests)))
    if str(value.get("cudagraph_mode", "")).upper() == "NONE" and work.takes("--cuda-graph-backend-decode"):
        kept.append(work.emit("--cuda-graph-backend-decode", "disabled"))
        kept.append(work.emit("--cuda-graph-backend-prefill", "disabled"))
    why = "vLLM's compiler does not exist in SGLang; its CUDA graphs are on by default"
    if kept and set(value) <= {"cudagraph_capture_sizes", "cudagraph_mode"}:
        work.say(item, "changed", " ".join(kept), "CUDA graphs alone; sizes are requests in SGLang")
        return
    entry = work.say(item, "none", " ".join(kept), why, cost=1)
    if kept:
        entry.notes.append("what has a counterpart was carried over, the rest is lost")


@rule("max-loras")
def loras(work: Work, item: Item) -> None:
    """SGLang's slots hold the base model too."""
    value = whole(work.resolve(item.first))
    if value is None:
        work.say(item, "changed", "", "--max-loras-per-batch, one more than this: set by hand", cost=4)
    else:
        why = f"{value} adapters + 1 for the base model = {value + 1}"
        work.copy(item, "--max-loras-per-batch", str(value + 1), kind="changed", why=why)


@rule("max-cpu-loras")
def cpu_loras(work: Work, item: Item) -> None:
    """At least as many as a batch may hold, and as are loaded at the start."""
    value = whole(work.resolve(item.first))
    modules = work.item("lora-modules")
    least = max(work.number("max-loras", 7) + 1, len(modules.values) if modules else 0)
    if value is not None and value < least:
        why = f"{value} is less than the {least} that SGLang must hold"
        work.copy(item, "--max-loaded-loras", str(least), kind="changed", why=why)
    else:
        work.copy(item, "--max-loaded-loras", kind="renamed")


@rule("lora-modules")
def modules(work: Work, item: Item) -> None:
    """Adapters by name. Clients call them in another way."""
    told: list[str] = []
    notes: list[str] = []
    for text in item.values:
        try:
            value = mend(text)[0] if text.lstrip()[:1] in "{[" else text
        except ValueError:
            value = text
        told += [_adapter(one, notes) for one in (value if isinstance(value, list) else [value])]
    entry = work.copy(item, "--lora-paths", *told, kind="changed")
    entry.why = "clients name an adapter as `model: BASE:NAME` or `lora_path: NAME`, not as `model: NAME`"
    entry.notes += notes


def _adapter(value: object, notes: list[str]) -> str:
    if isinstance(value, dict) and value.get("name") and value.get("path"):
        if value.get("base_model_name"):
            notes.append(f"base_model_name of {value['name']} is lost")
        return f"{value['name']}={value['path']}"
    return value if isinstance(value, str) else json.dumps(value)


@finish(40)
def lora_needs(work: Work) -> None:
    """Without adapters at the start SGLang must be told their rank and modules."""
    if "--enable-lora" not in work.flags and "--lora-paths" not in work.flags:
        return
    if "--lora-paths" in work.flags:
        return
    if "--max-lora-rank" not in work.flags:
        work.say(
            "--max-lora-rank (not given)", "default", work.emit("--max-lora-rank", "16"),
            "vLLM's default; SGLang wants it said where no adapter is loaded at the start",
        )  # fmt: skip
    targets = work.item("lora-target-modules")
    if targets is None:
        why = "SGLang wants the modules said where no adapter is loaded at the start"
        work.say("--lora-target-modules (not given)", "default", work.emit("--lora-target-modules", "all"), why)


@rule("lora-target-modules")
def targets(work: Work, item: Item) -> None:
    """Names of modules, where SGLang knows them all."""
    work.copy(item, "--lora-target-modules")
