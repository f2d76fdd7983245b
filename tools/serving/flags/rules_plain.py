"""Rules for settings that are carried over one by one: names, values that are spelt differently, defaults, losses."""

from __future__ import annotations

import json

from tools.serving.flags.argv import Item
from tools.serving.flags.names import (
    ATTENTION,
    COPIES,
    DEFAULTS,
    LOSSES,
    MOE_A2A,
    MOE_RUNNER,
    REASONING_PARSERS,
    TOOL_PARSERS,
)  # fmt: skip
from tools.serving.flags.report import is_secret
from tools.serving.flags.work import RULES, Work, open_value, rule, whole


def apply(work: Work, item: Item) -> None:
    """Apply the rule of one setting; whatever has none is said to be lost."""
    if item.name.endswith("=false"):
        work.say(item, "same", "", "off, as in vLLM")
    elif not item.known:
        if not (work.form == "kserve" and kserve(work, item)):
            unknown(work, item)
    elif item.name in RULES:
        RULES[item.name](work, item)
    elif item.name in COPIES:
        _copy(work, item)
    elif item.name in DEFAULTS:
        work.say(item, "same", "", DEFAULTS[item.name])
    else:
        _lost(work, item)


def _copy(work: Work, item: Item) -> None:
    if item.negative:
        work.say(item, "same", "", "off in SGLang too")
    elif item.value is not None:
        work.copy(item, COPIES[item.name], json.dumps(item.value, ensure_ascii=False))
    else:
        work.copy(item, COPIES[item.name])


def _lost(work: Work, item: Item) -> None:
    why, cost = LOSSES.get(item.name, ("SGLang has nothing like it", 3))
    own = f"--{item.name}"
    if item.negative:
        work.say(item, "same", "", "off in SGLang too")
    elif item.name not in LOSSES and work.takes(own, item.first or None):
        work.copy(item, own, why="a setting of the same name; compare what it means there")
    else:
        work.say(item, "none", "", why, cost=cost)


def unknown(work: Work, item: Item) -> None:
    """A flag of no vLLM. Where SGLang would take it, it must not slip through."""
    if not item.name:
        why = "a word that belongs to no flag; vLLM would refuse it"
        if open_value(item.written) or "$" in item.written:
            why = "what it holds is not known here: any flags of vLLM in it are missing, translate them too"
        work.say(item, "suspicious", "", why, cost=7)
        return
    own = work.table.find(f"--{item.name}")
    names = work.table.abbreviated(f"--{item.name}")
    dests = {option.dest for name in names if (option := work.table.find(name))}
    if own is None and len(dests) != 1:
        why = "no vLLM from 0.6.6 to 0.33.0 knows it: the original would not start"
        work.say(item, "none", "", why, cost=7)
        return
    meant = "--lora-modules name=path was meant" if item.name.startswith("lora-path") else "what was meant is not known"
    near = own.name if own else names[0]
    why = f"no vLLM flag; {meant}. SGLang would take it as {near}, so it is not passed on"
    work.say(item, "none", "", why, cost=9)
    start = f"`{item.written}` is no vLLM flag, so the original does not start"
    work.refused = f"{start}, and SGLang would read it as `{near}`: {meant}"


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
        clean = work.resolve(first).replace(":", "-")
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


@rule("runner", "task", "convert")
def runner(work: Work, item: Item) -> None:
    """Whether it generates or embeds."""
    value = work.resolve(item.first)
    if value in ("embed", "embedding", "pooling", "classify", "reward", "score"):
        work.copy(item, "--is-embedding", kind="renamed", why="" if "embed" in value else f"for {value}, too")
    else:
        work.say(item, "same", "", "SGLang generates unless told to embed")


@rule("mm-encoder-tp-mode")
def encoder(work: Work, item: Item) -> None:
    """Data parallel encoder or not."""
    if work.resolve(item.first) == "data":
        work.copy(item, "--mm-enable-dp-encoder", kind="renamed")
    else:
        work.say(item, "same", "", "SGLang's default")


@rule("disable-access-log-for-endpoints")
def access_log(work: Work, item: Item) -> None:
    """One word with commas becomes several words."""
    paths = [path for path in item.first.split(",") if path]
    work.copy(item, "--uvicorn-access-log-exclude-prefixes", *paths, kind="renamed", why="prefixes, not whole paths")


@rule("default-chat-template-kwargs")
def template_kwargs(work: Work, item: Item) -> None:
    """What every client gets; newer SGLang has it, older must be told per request."""
    if work.takes("--default-chat-template-kwargs"):
        work.copy(item, "--default-chat-template-kwargs", json.dumps(item.value))
        return
    why = "clients must send chat_template_kwargs with each request, or the template file must be changed"
    thinking = isinstance(item.value, dict) and "enable_thinking" in item.value
    why += ": what every client gets changes" + (", thinking is as the model has it" if thinking else "")
    work.say(item, "none", "", why, cost=9)


@rule("chat-template")
def chat_template(work: Work, item: Item) -> None:
    """A file must be there; an inline template must become one."""
    value = work.resolve(item.first)
    if "{%" in value or ("{{" in value and len(value) > 60):
        why = "SGLang takes a file: write the template to one and name it"
        work.say(item, "none", "", why, cost=6)
        return
    entry = work.copy(item, "--chat-template")
    if value and not value.startswith(("/", "$")):
        entry.notes.append("a relative path: the file must lie where SGLang is started")


@rule("seed")
def seed(work: Work, item: Item) -> None:
    """The start of the random numbers; the seed of a request is another matter."""
    work.copy(item, "--random-seed")


@rule("enforce-eager")
def eager(work: Work, item: Item) -> None:
    """No CUDA graphs at all."""
    if item.negative:
        work.say(item, "same", "", "CUDA graphs are SGLang's default")
    elif work.takes("--cuda-graph-backend-decode"):
        first = work.emit("--cuda-graph-backend-decode", "disabled")
        second = work.emit("--cuda-graph-backend-prefill", "disabled")
        work.say(item, "renamed", f"{first} {second}")
    else:
        work.copy(item, "--disable-cuda-graph")


@rule("enable-prefix-caching")
def prefix_caching(work: Work, item: Item) -> None:
    """On in both unless turned off."""
    if item.negative:
        work.copy(item, "--disable-radix-cache", kind="renamed")
    else:
        work.say(item, "same", "", "SGLang's default (radix cache)")


@rule("async-scheduling")
def overlap(work: Work, item: Item) -> None:
    """On in both unless turned off."""
    if item.negative:
        work.copy(item, "--disable-overlap-schedule", kind="renamed")
    else:
        work.say(item, "same", "", "SGLang's default (overlap schedule)")


@rule("enable-chunked-prefill")
def chunked(work: Work, item: Item) -> None:
    """On in both unless turned off."""
    if item.negative:
        work.copy(item, "--chunked-prefill-size", "-1", kind="renamed")
    else:
        work.say(item, "same", "", "SGLang's default")


@rule("enable-log-requests")
def log_requests(work: Work, item: Item) -> None:
    """Off in both unless turned on."""
    if item.negative:
        work.say(item, "same", "", "SGLang's default")
    else:
        work.copy(item, "--log-requests", kind="renamed")


@rule("otlp-traces-endpoint")
def traces(work: Work, item: Item) -> None:
    """SGLang traces only when told to."""
    work.emit("--enable-trace")
    work.copy(item, "--otlp-traces-endpoint", why="with --enable-trace")


@rule("model-impl")
def implementation(work: Work, item: Item) -> None:
    """Whose model code."""
    value = work.resolve(item.first)
    work.copy(item, "--model-impl", *(["sglang"] if value == "vllm" else []))


_KSERVE = {"model_name": "--served-model-name", "model-name": "--served-model-name", "model_id": "--model-path"}
_KSERVE |= {"model-id": "--model-path", "model_dir": "--model-path", "model-dir": "--model-path", "http_port": "--port"}
_KSERVE |= {"http-port": "--port"}


def kserve(work: Work, item: Item) -> bool:
    """Arguments of KServe's own server, which starts vLLM inside. Returns whether it was one."""
    if item.name in _KSERVE and item.values:
        work.copy(item, _KSERVE[item.name], kind="renamed")
        work.model = work.model or (item.first if "model-path" in _KSERVE[item.name] else "")
        return True
    if item.name == "backend":
        work.say(item, "same", "", "KServe's choice of an engine; SGLang is a container of its own")
        return True
    return False
