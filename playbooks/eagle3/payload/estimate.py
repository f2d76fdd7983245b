"""What training a drafter will take, before anything is started: disk, memory and time of each step, and why.

Sizes are exact for the lengths that are assumed; times are the slowest of what has to be computed, read and written,
each at a stated share of the host's peak (`[estimate]` in a preset). Torch is not needed, nor the target: its
`config.json` is enough.

    python -m eagle3.estimate --preset kimi-k2.5
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .config import Config
from .errors import StepError
from .prompts import load_prompts
from .runtime import Result, Workdir, run_step, say
from .shape import Shape, read_shape

SERVER_CEILING = 13_000.0  # tokens/s that one SGLang server gave for SmolLM2-135M on an H200: its scheduler's bound
ROUND = 0.002  # seconds of a decoding round that are not the GPU's
OF_ANSWER = 12  # bytes of a token in answers.jsonl: its text and its id
OF_PROMPT = 600  # bytes of a prompt in composed.jsonl


@dataclass(frozen=True)
class Row:
    """One step: bytes that stay on disk, bytes of memory on each GPU, seconds, and what the seconds rest on."""

    step: str
    disk: float = 0.0
    memory: float = 0.0
    seconds: float = 0.0
    because: str = ""


def estimate(config: Config, work: Workdir) -> Result:
    """Say what disk, memory and time each step will take."""
    try:
        shape = read_shape(config, work.root)
    except StepError as error:
        say(f"no estimate: {error.message} ({error.hint})")
        return {"known": False}
    prompts, tokens = data_size(config)
    rows = list(rows_of(config, shape, prompts, tokens))
    free = shutil.disk_usage(existing(work.root)).free
    disk = sum(row.disk for row in rows)
    for line in lines(config, shape, rows, prompts, tokens, free):
        say(line)
    return {
        "known": True,
        "target": {
            "weights": shape.weights, "active": shape.active, "bytes": target_bytes(shape), "from": shape.source,
            "latent_attention": shape.latent,
        },
        "prompts": prompts,
        "tokens": tokens,
        "bytes_per_token": token_bytes(config, shape),
        "disk_bytes": round(disk),
        "disk_free": free,
        "seconds": round(sum(row.seconds for row in rows)),
        "steps": [asdict(row) for row in rows],
        "warnings": list(warnings(config, rows, disk, free)),
    }  # fmt: skip


def data_size(config: Config) -> tuple[int, int]:
    """Prompts, and tokens of prompts with their answers. A file that is out of reach counts for nothing."""
    try:
        given = len(load_prompts(config.data))
    except StepError:
        given = 0
    prompts = given + config.compose.prompts
    answer = config.estimate.answer_share * config.generate.max_new_tokens
    return prompts, round(prompts * (config.estimate.prompt_tokens + answer))


def token_bytes(config: Config, shape: Shape) -> int:
    """Bytes of one token's stored states; 0 when they are not stored."""
    if config.train.states != "stored":
        return 0
    each = 4 if config.extract.store_dtype == "float32" else 2
    last = 6 * config.extract.teacher_top or each * shape.hidden
    return 3 * each * shape.hidden + last + 9


def target_bytes(shape: Shape) -> float:
    return shape.weights * shape.bytes_per_weight


def rows_of(config: Config, shape: Shape, prompts: int, tokens: int) -> Iterator[Row]:
    """The steps in their order."""
    host, weights = config.estimate, target_bytes(shape)
    yield Row("fetch", weights, 0, weights / (1e9 * host.disk_rate), "written at the disk's rate, without the network")
    rate, why = decode_rate(config, shape)
    each = weights / gpus_of(config)
    if config.compose.prompts:
        sampled = 2 * config.compose.prompts * host.prompt_tokens  # about half of it is kept
        seconds = min(sampled / rate, config.compose.max_seconds or float("inf"))
        yield Row("compose", config.compose.prompts * OF_PROMPT, each, seconds, why)
    seconds = min((tokens - prompts * host.prompt_tokens) / rate, config.generate.max_seconds or float("inf"))
    yield Row("generate", tokens * OF_ANSWER, each, seconds, why)
    stored = tokens * token_bytes(config, shape)
    if stored:
        yield extract_row(config, shape, tokens, stored)
    yield train_row(config, shape)


def extract_row(config: Config, shape: Shape, tokens: int, stored: float) -> Row:
    """One process runs the target, so a target that is spread keeps one of its GPUs busy at a time."""
    host, weights = config.estimate, target_bytes(shape)
    seconds = {
        "computing": tokens * 2 * shape.active / (1e12 * host.gpu_operations * host.efficiency),
        "writing": stored / (1e9 * host.disk_rate),
    }
    memory = weights / (gpus_of(config) if config.device_map else 1)
    return Row("extract", stored, memory, max(seconds.values()), slowest(seconds))


def train_row(config: Config, shape: Shape) -> Row:
    """Weights, moments and gradients are float32; two checkpoints of weights and moments stay, and three drafters."""
    host, train, gpus = config.estimate, config.train, gpus_of(config)
    layer, drafter = drafter_weights(config, shape)
    head, online = config.draft.vocab_size * shape.hidden, train.states != "stored"
    of_token = 6 * (train.unroll_steps * (layer + head) + 3 * shape.hidden**2) + 2 * head
    of_token += 2 * (shape.active if online else 0)
    seen = (train.steps or float("inf")) * train.batch_tokens * train.accumulate * gpus
    seconds = {
        "computing": seen * of_token / (1e12 * host.gpu_operations * host.efficiency * gpus),
        "reading": seen * token_bytes(config, shape) / (1e9 * host.disk_rate),
        "train.max_seconds": train.max_seconds,
    }
    limits = {why: s for why, s in seconds.items() if s != float("inf")}
    if train.max_seconds:
        limits = {"train.max_seconds": min(train.max_seconds, max(limits.values()))}
    middle = config.draft.intermediate_size or shape["intermediate_size"]
    wide = 24 * shape.hidden + 4 * middle  # what a position keeps of one step for the way back
    memory = 16 * drafter + 2 * (2 << 29) + 2 * train.batch_tokens * train.unroll_steps * wide
    memory += 2 * shape.vocabulary * shape.hidden + (target_bytes(shape) if online else 0)
    return Row("train", (2 * 12 + 4 + 4 + 2) * drafter, memory, max(limits.values()), slowest(limits))


def decode_rate(config: Config, shape: Shape) -> tuple[float, str]:
    """Tokens a second of the target's answers, and what bounds them."""
    host, gpus, at_once = config.estimate, gpus_of(config), config.generate.concurrency
    used = 0
    if shape.experts:  # of which so many are touched by at least one of the answers
        used = round(shape.experts * (1 - (1 - shape.get("num_experts_per_tok") / shape.experts) ** at_once))
    context = host.prompt_tokens + config.generate.max_new_tokens / 2
    read = shape.body(used) * shape.bytes_per_weight + at_once * context * shape.cache
    seconds = {
        "reading weights and cache": read / (1e12 * host.gpu_bandwidth * host.efficiency * gpus),
        "computing": 2 * shape.active * at_once / (1e12 * host.gpu_operations * host.efficiency * gpus),
    }
    rate = at_once / (max(seconds.values()) + ROUND)
    if rate > SERVER_CEILING:
        return SERVER_CEILING, f"a server's own bound, {SERVER_CEILING:,.0f} tokens/s"
    return rate, f"{slowest(seconds)} for {at_once} answers at once, {rate:,.0f} tokens/s"


def latent_drafter(config: Config, shape: Shape) -> bool:
    return shape.latent if config.draft.attention == "auto" else config.draft.attention == "mla"


def drafter_weights(config: Config, shape: Shape) -> tuple[int, int]:
    """Weights of the drafter's layer, and of all of it."""
    draft = config.draft
    return shape.drafter(draft.vocab_size, latent_drafter(config, shape), draft.intermediate_size)


def gpus_of(config: Config) -> int:
    return max(1, config.estimate.gpus)


def slowest(seconds: dict[str, float]) -> str:
    return max(seconds, key=lambda why: seconds[why])


def warnings(config: Config, rows: list[Row], disk: float, free: int) -> Iterator[str]:
    """What will not work on such a host."""
    if disk > free:
        yield f"{size(disk)} are needed on disk and {size(free)} are free here"
    room = 1e9 * config.estimate.gpu_memory
    for row in rows:
        if row.memory > 0.9 * room:
            yield f"`{row.step}` wants about {size(row.memory)} on each GPU of {size(room)}"


def lines(config: Config, shape: Shape, rows: list[Row], prompts: int, tokens: int, free: int) -> Iterator[str]:
    """The estimate for a person."""
    host, layer_of = config.estimate, "latent" if latent_drafter(config, shape) else "grouped-query"
    _, drafter = drafter_weights(config, shape)
    yield (
        f"target   {config.target}: {count(shape.weights)} weights ({count(shape.active)} for a token), "
        f"{size(target_bytes(shape))}; {shape.layers} layers, hidden size {shape.hidden} ({shape.source})"
    )
    yield f"drafter  {count(drafter)} weights, {layer_of} attention, {config.draft.vocab_size} tokens to draft"
    yield (
        f"data     {prompts:,} prompts, {tokens:,} tokens if a prompt has {host.prompt_tokens} and an answer "
        f"{100 * host.answer_share:.0f} % of {config.generate.max_new_tokens}"
    )
    of_token = token_bytes(config, shape)
    yield "states   " + (f"{of_token:,} bytes a token" if of_token else "online: nothing is stored")
    yield ""
    yield f"{'step':<10}{'disk':>10}{'each GPU':>11}{'time':>10}   bound by"
    for row in rows:
        yield f"{row.step:<10}{size(row.disk):>10}{size(row.memory):>11}{duration(row.seconds):>10}   {row.because}"
    total, seconds = sum(row.disk for row in rows), sum(row.seconds for row in rows)
    yield f"{'all':<10}{size(total):>10}{'':>11}{duration(seconds):>10}   {size(free)} free on disk here"
    yield (
        f"for {host.gpus} x {host.gpu_memory:.0f} GB, {host.gpu_operations:g} TFLOP/s, {host.gpu_bandwidth:g} TB/s, of "
        f"which {100 * host.efficiency:.0f} % are reached, and disks of {host.disk_rate:g} GB/s"
    )
    yield from (f"warning: {text}" for text in warnings(config, rows, total, free))


def size(number: float) -> str:
    """Bytes in powers of 1000, as disks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def count(number: float) -> str:
    for unit in ("", " thousand", " million", " billion"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.2f} trillion"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def existing(path: Path) -> Path:
    """The nearest folder above `path` that is there."""
    return path if path.exists() else existing(path.parent)


if __name__ == "__main__":
    raise SystemExit(run_step("estimate", estimate))
