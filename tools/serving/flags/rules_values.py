"""Rules for settings whose values are spelt differently: names, parsers, backends, units, secrets."""

from __future__ import annotations

from tools.serving.flags.items import Item
from tools.serving.flags.names import ATTENTION, MOE_A2A, MOE_RUNNER, REASONING_PARSERS, TOOL_PARSERS
from tools.serving.flags.report import is_secret
from tools.serving.flags.work import Work, open_value, rule, whole, without_colon


@rule("host")
def host(work: Work, item: Item) -> None:
    """An empty host is all interfaces in vLLM."""
    work.copy(item, "--host", *(item.values if item.first else ["0.0.0.0"]))


@rule("max-model-len")
def context(work: Work, item: Item) -> None:
    """Units are made plain, because `32K` is a number to vLLM and an error to SGLang."""
    resolved = work.resolve(item.first)
    value = whole(resolved)
    if resolved.lower() in ("auto", "-1"):
        work.say(item, "changed", "", "vLLM fits the context into memory; SGLang takes the model's own length")
    elif value is None and not open_value(resolved):
        work.say(item, "suspicious", "", f"`{resolved}` is no length", cost=6)
    elif value is not None and resolved != str(value):
        work.copy(item, "--context-length", str(value), kind="renamed", why=f"{resolved} = {value}")
    else:
        work.copy(item, "--context-length")


@rule("served-model-name")
def served(work: Work, item: Item) -> None:
    """SGLang keeps one name, without a colon."""
    first, *others = item.values or [""]
    kind, why = "same", ""
    if others:
        kind = "changed"
        why = f"SGLang answers to one name alone: clients that ask for {', '.join(others)} get the first one's answers"
    if ":" in work.resolve(first) and not open_value(first):
        clean = without_colon(work.resolve(first))
        kind, why = "changed", f"SGLang refuses a colon in the name: clients must ask for `{clean}`"
        first = clean
    work.copy(item, "--served-model-name", first, kind=kind, why=why)


@rule("api-key")
def api_key(work: Work, item: Item) -> None:
    """The key is never repeated: it comes from the environment."""
    key, *others = item.values or [""]
    hidden = "***" if is_secret("api-key", key) else key
    if hidden == "***":
        work.secrets[key] = "$API_KEY"
        for other in others:
            work.secrets[other] = "***"
        key = {"k8s": "$(API_KEY)", "kserve": "$(API_KEY)", "compose": "${API_KEY}", "systemd": "${API_KEY}"}.get(
            work.form, "$API_KEY"
        )
    notes = ["set API_KEY in the environment: a key in a command line can be read with ps"] if hidden == "***" else []
    if others:
        notes.append(f"SGLang takes one key; {len(others)} more are lost")
    entry = work.copy(item, "--api-key", key, kind="changed" if others else "same")
    entry.written = f"{item.written} {hidden}" + " ***" * len(others)
    entry.notes += notes


@rule("quantization")
def quantization(work: Work, item: Item) -> None:
    """Most names are the same; what a checkpoint says of itself is best left to it."""
    value = work.resolve(item.first)
    if value in ("None", "none", ""):
        work.say(item, "same", "", "the checkpoint decides in both")
    elif value == "compressed-tensors":
        work.say(item, "same", "", "SGLang finds it in the checkpoint")
    else:
        known = {"inc": "auto-round", "auto_round": "auto-round", "modelopt_mxfp8": "mxfp8"}
        work.copy(item, "--quantization", *([known[value]] if value in known else []))


@rule("kv-cache-dtype")
def kv_dtype(work: Work, item: Item) -> None:
    """SGLang wants the whole name of an fp8."""
    value = work.resolve(item.first)
    if value == "fp8":
        work.copy(item, "--kv-cache-dtype", "fp8_e4m3", kind="renamed", why="fp8 is e4m3 in vLLM; SGLang refuses `fp8`")
    else:
        work.copy(item, "--kv-cache-dtype", *(["bfloat16"] if value == "bf16" else []))


@rule("tokenizer-mode")
def tokenizer_mode(work: Work, item: Item) -> None:
    """`mistral` is found by SGLang itself."""
    if work.resolve(item.first) == "mistral":
        work.say(item, "same", "", "SGLang's `auto` finds a Mistral tokenizer itself")
    elif work.resolve(item.first) == "hf":
        work.say(item, "same", "", "SGLang's `auto` is that")
    else:
        work.copy(item, "--tokenizer-mode")


@rule("load-format")
def load_format(work: Work, item: Item) -> None:
    """The same names, but for two."""
    value = {"hf": "auto", "runai_streamer_sharded": "runai_streamer"}.get(work.resolve(item.first))
    work.copy(item, "--load-format", *([value] if value else []))


@rule("tool-call-parser")
def tools(work: Work, item: Item) -> None:
    """The two lists spell the same parsers differently; a parser without counterpart is left out."""
    _parser(work, item, "--tool-call-parser", TOOL_PARSERS, "tool calls come back as plain text")


@rule("reasoning-parser")
def reasoning(work: Work, item: Item) -> None:
    """The answer's field is another one too: `reasoning` in vLLM, `reasoning_content` in SGLang."""
    _parser(work, item, "--reasoning-parser", REASONING_PARSERS, "thoughts come back within the answer")


def _parser(work: Work, item: Item, flag: str, names: dict[str, str], cost: str) -> None:
    value = work.resolve(item.first)
    for name in (names.get(value, value), value.replace("_", "-"), value.replace("_", "")):
        if work.takes(flag, name):
            unchanged = name == value
            work.copy(item, flag, *([] if unchanged else [name]), kind="same" if unchanged else "renamed")
            return
    why = f"no {value} parser in SGLang {work.table.version}: {cost}"
    work.say(item, "none", "", why, cost=8)


@rule("enable-auto-tool-choice")
def auto_tools(work: Work, item: Item) -> None:
    """Implied by the parser; without one vLLM would not start."""
    if item.negative:
        work.say(item, "same", "", "off in SGLang unless a parser is named")
    elif work.item("tool-call-parser") is None:
        why = "vLLM refuses it without --tool-call-parser: the original does not start"
        work.say(item, "suspicious", "", why, cost=5)
    else:
        work.say(item, "same", "", "SGLang parses tool calls as soon as a parser is named")


@rule("attention-backend")
def attention(work: Work, item: Item) -> None:
    """Backends by name; those that only vLLM has are left to SGLang's choice."""
    value = work.resolve(item.first)
    known = ATTENTION.get(value.upper())
    if known is None:
        work.say(item, "none", "", f"SGLang has no {value}; it chooses a backend for the card itself", cost=4)
    else:
        work.copy(item, "--attention-backend", known, kind="renamed", why="check on start that the card has it")


@rule("moe-backend")
def moe(work: Work, item: Item) -> None:
    """How the experts are computed."""
    value = work.resolve(item.first)
    if value == "deep_gemm_mega_moe":
        why = "near: --moe-a2a-backend megamoe; other requirements, so it is not set"
        work.say(item, "none", "", why, cost=4)
    elif value in MOE_RUNNER:
        work.copy(item, "--moe-runner-backend", MOE_RUNNER[value])
    else:
        work.say(item, "none", "", f"SGLang has no MoE backend {value}", cost=4)


@rule("all2all-backend")
def all2all(work: Work, item: Item) -> None:
    """How experts on several GPUs exchange tokens."""
    value = work.resolve(item.first)
    target = MOE_A2A.get(value)
    if target is None:
        work.say(item, "none", "", f"SGLang has no {value}", cost=4)
    else:
        work.copy(item, "--moe-a2a-backend", target, kind="renamed")


@rule("scheduling-policy")
def policy(work: Work, item: Item) -> None:
    """Priorities run the other way round unless told."""
    if work.resolve(item.first) == "priority":
        first = work.emit("--enable-priority-scheduling")
        second = work.emit("--schedule-low-priority-values-first")
        why = "SGLang serves high numbers first unless told otherwise"
        work.say(item, "renamed", f"{first} {second}", why)
    else:
        work.copy(item, "--schedule-policy")


@rule("generation-config")
def generation(work: Work, item: Item) -> None:
    """Where default sampling parameters come from."""
    value = work.resolve(item.first)
    if value == "auto":
        work.say(item, "same", "", "the model's own sampling defaults, as SGLang's default")
    elif value == "vllm":
        why = "neutral sampling defaults instead of the model's"
        work.copy(item, "--sampling-defaults", "openai", kind="renamed", why=why)
    else:
        why = "SGLang reads generation_config.json of the model folder alone: copy the file there"
        work.say(item, "none", "", why, cost=5)
