"""Rules for switches, and for settings that are one in SGLang: on by default, or turned off by another flag."""

from __future__ import annotations

import json

from tools.serving.flags.items import Item
from tools.serving.flags.work import Work, rule


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
