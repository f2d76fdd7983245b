"""Rules for speculative decoding: `--speculative-config` in all its shapes, and the old separate flags.

vLLM drafts a chain of k tokens. SGLang's words for that are k steps, top-k 1 and k + 1 draft tokens; leaving them out
would make it choose its own tree. A method without counterpart is left out whole: the answers stay right, the speed is
lost, and that is said first.
"""

from __future__ import annotations

import re
from typing import Any

from tools.serving.flags.items import Item
from tools.serving.flags.names import ATTENTION, METHODS
from tools.serving.flags.work import Work, finish, rule, short, whole

OLD = {
    "speculative-model": "model", "num-speculative-tokens": "num_speculative_tokens",
    "speculative-draft-tensor-parallel-size": "draft_tensor_parallel_size",
    "speculative-max-model-len": "max_model_len", "speculative-model-quantization": "quantization",
    "speculative-disable-by-batch-size": "disable_by_batch_size", "ngram-prompt-lookup-max": "prompt_lookup_max",
    "ngram-prompt-lookup-min": "prompt_lookup_min", "spec-decoding-acceptance-method": "acceptance_method",
    "typical-acceptance-sampler-posterior-threshold": "posterior_threshold",
    "typical-acceptance-sampler-posterior-alpha": "posterior_alpha",
    "disable-logprobs-during-spec-decoding": "disable_logprobs", "speculative-disable-mqa-scorer": "disable_mqa_scorer",
    "spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens",
}  # fmt: skip
"""Flags that say one part of the setting, and the part."""
_ENV_LONG = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_SHORT_HEAD = re.compile(r"(?:^|/)yuhuili/eagle|(?:^|/)eagle-(?:llama|vicuna|mixtral|qwen2)", re.IGNORECASE)
_HEAD_POSITIONS = 2048
_LOST = {
    "draft_tensor_parallel_size": "the draft always uses the target's TP",
    "disable_padded_drafter_batch": "SGLang has no such switch",
    "draft_sample_method": "--speculative-use-rejection-sampling is near, for EAGLE only",
    "disable_by_batch_size": "SGLang drafts at every batch size; see --speculative-adaptive",
    "disable_logprobs": "SGLang gives logprobs with speculation too",
    "prompt_lookup_min": "SGLang's n-grams have no least length",
    "acceptance_method": "SGLang has acceptance thresholds instead: --speculative-accept-threshold-single",
    "rejection_sample_method": "--speculative-use-rejection-sampling is near, for EAGLE only",
    "enforce_eager": "the draft's CUDA graphs follow the target's",
}


@rule("speculative-config", *OLD)
def later(work: Work, item: Item) -> None:
    """Said together, since several flags may make one setting."""


@finish(5)
def speculation(work: Work) -> None:
    """The whole of it."""
    whole_item = work.item("speculative-config")
    parts = [item for item in work.items if item.name in OLD]
    if whole_item is None and not parts:
        return
    settings: dict[str, Any] = {}
    if whole_item is not None:
        if not isinstance(whole_item.value, dict):
            _unreadable(work, whole_item)
            return
        settings.update(whole_item.value)
    settings |= {OLD[item.name]: _typed(work, item) for item in parts}
    _Speculation(work, whole_item, parts, settings).translate()


def _typed(work: Work, item: Item) -> Any:
    value = work.resolve(item.first)
    number = whole(value)
    return value if number is None else number


def _unreadable(work: Work, item: Item) -> None:
    example = '\'{"method": "eagle3", "model": "DRAFTER", "num_speculative_tokens": 3}\''
    work.say(
        item, "none", "", f"it cannot be read as JSON: speculation is lost. Write {item.written} {example}", cost=9
    )
    work.refused = f"`{item.written} {item.first[:120]}` is no JSON and cannot be repaired; quote it: {example}"


def method_of(work: Work, settings: dict[str, Any]) -> tuple[str, str]:
    """vLLM's method, and how it was found. vLLM infers a missing one from the draft, and so does this."""
    method, model = str(settings.get("method") or ""), str(settings.get("model") or "")
    if model.strip("[]") == "ngram":
        return "ngram", ""
    if method:
        return method, ""
    config = work.look(model) if model else None
    if config is not None:
        return _method_by_config(config), "found in the draft's config.json"
    for name in ("eagle3", "dflash", "medusa", "eagle"):
        if name in model.lower().replace("-", ""):
            return name, f"no method is given: the draft's name says {name}"
    if not model and settings.get("prompt_lookup_max"):
        return "ngram", ""
    if not model:
        return "mtp", "neither method nor model is given: vLLM takes the model's own MTP layers"
    return "draft_model", "no method is given: taken for a small model of the same kind; look at its config.json"


def _method_by_config(config: Any) -> str:
    words = " ".join([str(config.get("model_type", "")), *map(str, config.get("architectures") or [])]).lower()
    for name, method in (
        ("eagle3", "eagle3"),
        ("eagle", "eagle"),
        ("medusa", "medusa"),
        ("mtp", "mtp"),
        ("nextn", "mtp"),
    ):
        if name in words:
            return method
    return "draft_model"


class _Speculation:
    """One setting on its way. Each key of it is said once."""

    def __init__(self, work: Work, item: Item | None, parts: list[Item], settings: dict[str, Any]) -> None:
        self.work, self.item, self.parts, self.settings = work, item, parts, settings
        self.method, self.found = method_of(work, settings)
        self.written = item.written if item is not None else "--speculative-model"
        self.done: set[str] = set()

    def translate(self) -> None:
        algorithm = METHODS.get(self.method) or ("NEXTN" if self.method.endswith("mtp") else None)
        if algorithm is None or (algorithm == "DSPARK" and not self.work.takes("--speculative-dspark-block-size")):
            self._without()
            return
        said = [self.work.emit("--speculative-algorithm", algorithm)]
        self.done |= {"method"}
        said += self._model(algorithm)
        said += self._numbers(algorithm)
        said += self._details()
        self._main(said, algorithm)
        self._rest()

    def _main(self, said: list[str], algorithm: str) -> None:
        steps = self.settings.get("num_speculative_tokens")
        why = self.found
        if steps is not None and algorithm not in ("NGRAM", "DFLASH", "DSPARK"):
            sums = f"k = {steps}: {steps} steps, top-k 1, {steps} + 1 draft tokens"
            why = f"{why}; {sums}" if why else sums
        kind = "suspicious" if "no method" in self.found else "changed"
        if self.item is not None:
            entry = self.work.say(self.item, kind, " ".join(said), why, cost=5)
            if "--quantization" in self.work.flags and "quantization" not in self.done:
                entry.notes.append(
                    "the draft inherits --quantization in SGLang: if it is not quantised, add "
                    "--speculative-draft-model-quantization unquant"
                )
        for part in self.parts:
            if self.item is None and part is self.parts[0]:
                self.work.say(part, kind, " ".join(said), why, cost=5)
            elif OLD[part.name] in self.done:
                self.work.say(part, "renamed", "", "a part of the speculation above")
            else:
                self.work.say(part, "none", "", _LOST.get(OLD[part.name], "SGLang has nothing like it"), cost=2)

    def _model(self, algorithm: str) -> list[str]:
        model = self.settings.get("model")
        self.done |= {"model"}
        if not model or algorithm == "NGRAM" or (algorithm == "NEXTN" and model == self.work.model):
            return []
        said = [self.work.emit("--speculative-draft-model-path", str(model))]
        if self.settings.get("revision"):
            self.done |= {"revision"}
            said.append(self.work.emit("--speculative-draft-model-revision", str(self.settings["revision"])))
        return said

    def _numbers(self, algorithm: str) -> list[str]:
        steps = self.settings.get("num_speculative_tokens")
        self.done |= {"num_speculative_tokens"}
        if steps is None:
            return []
        count = whole(str(steps))
        if count is None or count < 1:
            return []
        if algorithm == "NGRAM":
            return self._ngram(count)
        if algorithm == "DFLASH":
            return [self.work.emit("--speculative-dflash-block-size", str(count + 1))]
        if algorithm == "DSPARK":
            return [self.work.emit("--speculative-dspark-block-size", str(count))]
        return [
            self.work.emit("--speculative-num-steps", str(count)),
            self.work.emit("--speculative-eagle-topk", "1"),
            self.work.emit("--speculative-num-draft-tokens", str(count + 1)),
        ]

    def _ngram(self, count: int) -> list[str]:
        """SGLang's draft tokens hold the token they start from: its ngram worker accepts one less than that."""
        said = [self.work.emit("--speculative-num-draft-tokens", str(count + 1))]
        depth = self.settings.get("prompt_lookup_max")
        if depth is not None and self.work.takes("--speculative-ngram-max-trie-depth"):
            said.append(self.work.emit("--speculative-ngram-max-trie-depth", str(depth)))
            self.done |= {"prompt_lookup_max"}
        return said

    def _details(self) -> list[str]:
        said, settings, work = [], self.settings, self.work
        quantization = settings.get("quantization")
        flag = "--speculative-draft-model-quantization"
        if quantization is not None and work.takes(flag, str(quantization)):
            said.append(work.emit(flag, str(quantization)))
            self.done |= {"quantization"}
        backend = ATTENTION.get(str(settings.get("attention_backend", "")).upper())
        if backend is not None:
            said.append(work.emit("--speculative-draft-attention-backend", backend))
            self.done |= {"attention_backend"}
        if settings.get("synthetic_acceptance_length") is not None:
            work.settings["SGLANG_SIMULATE_ACC_LEN"] = str(settings["synthetic_acceptance_length"])
            self.done |= {"synthetic_acceptance_length", "rejection_sample_method"}
            said.append(f"SGLANG_SIMULATE_ACC_LEN={settings['synthetic_acceptance_length']}")
        return said + self._positions()

    def _positions(self) -> list[str]:
        """A head that was made for fewer positions than the target has stops SGLang's start, unless told."""
        told = self.settings.get("max_model_len")
        head = _SHORT_HEAD.search(str(self.settings.get("model") or ""))
        config = self.work.look(str(self.settings.get("model") or ""))
        positions = (config or {}).get("max_position_embeddings") or (_HEAD_POSITIONS if head else None)
        context = whole(self.work.given("max-model-len"))
        if told is None and not (positions and (context is None or context > positions)):
            return []
        self.work.settings[_ENV_LONG] = "1"
        return [f"{_ENV_LONG}=1"]

    def _without(self) -> None:
        version = self.work.table.version
        why = f"SGLang {version} has no {self.method}: speculation is left out, answers stay right, speed is lost"
        first = self.item or self.parts[0]
        text = f"{self.written} method {self.method}" if self.item else ""
        self.work.say(first, "none", "", why, cost=9, text=text)
        for part in self.parts if self.item is not None else self.parts[1:]:
            self.work.say(part, "none", "", "a part of the speculation that is lost", cost=3)
        self.done |= {"method", "model", "num_speculative_tokens"}
        self._rest()

    def _rest(self) -> None:
        """What is left of the setting has no counterpart."""
        old = {OLD[part.name] for part in self.parts}
        for key, value in self.settings.items():
            if key in self.done or key in old or value is None:
                continue
            name = f"draft {key} {short(value)}" if key == "max_model_len" else f"{key} {short(value)}"
            why = _LOST.get(key, "SGLang has nothing like it")
            if key == "max_model_len":
                why = "SGLang gives the draft the target's context"
            entry = self.work.say(name, "none", "", why, cost=2)
            entry.given = False


@finish(6)
def pipeline(work: Work) -> None:
    """Pipeline parallelism and speculation exclude each other in SGLang: the GPUs become tensor parallel."""
    item, stages = work.item("pipeline-parallel-size"), work.number("pipeline-parallel-size", 1)
    if item is None or stages < 2 or "--speculative-algorithm" not in work.flags:
        return
    size = whole(" ".join(work.flags.get("--tp-size", ["1"]))) or 1
    work.flags.pop("--pp-size", None)
    said = work.emit("--tp-size", str(size * stages))
    work.entries = [entry for entry in work.entries if not entry.written.startswith(item.text)]
    why = (
        "SGLang asserts `Pipeline parallelism is not compatible with overlap schedule, speculative decoding`. Two "
        f"lawful choices: {said} with speculation (taken: {size} x {stages}), or --tp-size {size} --pp-size {stages}"
    )
    work.say(item, "none", said, why, cost=8, text=f"{item.text} together with speculation")


@finish(50)
def running(work: Work) -> None:
    """With speculation SGLang quietly runs 48 requests at once, unless told otherwise."""
    if "--speculative-algorithm" in work.flags and "--max-running-requests" not in work.flags:
        why = "with speculation SGLang runs 48 requests at once, vLLM 256 or more: set it for a fair comparison"
        work.say("--max-num-seqs (not given)", "default", "", why, cost=4)
