"""vLLM's settings by name: what one is, the options of all releases that are known, a written flag's full name."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from tools.serving.flags.report import HIDDEN, is_secret
from tools.serving.flags.table import Option, Table, load, versions

STRUCTURED = {
    "speculative-config", "compilation-config", "hf-overrides", "limit-mm-per-prompt", "mm-processor-kwargs",
    "media-io-kwargs", "override-generation-config", "default-chat-template-kwargs", "kv-transfer-config",
    "kv-events-config", "structured-outputs-config", "attention-config", "rope-scaling", "additional-config",
    "model-loader-extra-config", "override-neuron-config", "override-pooler-config", "pooler-config", "eplb-config",
    "kernel-config", "reasoning-config", "profiler-config", "ec-transfer-config", "weight-transfer-config",
    "default-mm-loras", "quantization-config", "hf-config-overrides", "guided-decoding-config", "logging-config",
    "watchdog-config", "diffusion-config", "ir-op-priority", "quantization-param-config", "mm-process-config",
}  # fmt: skip


NEAR = 0.8
"""How alike a flag must be to the one that it may have been meant to be, from 0 to 1."""


@dataclass(slots=True)
class Item:
    """One setting of the input.

    `written` is the flag as it stands there, `name` vLLM's own name without dashes (of a dotted flag that of the part
    before the dot), `values` what it was given. `value` is the structured value where it is one. `negative` is a
    switch turned off. `known` says whether some vLLM takes it. `notes` tell what was repaired, `twice` how often more.
    """

    written: str
    name: str
    values: list[str] = field(default_factory=list)
    value: Any = None
    negative: bool = False
    known: bool = True
    switch: bool = False
    source: str = ""
    notes: list[str] = field(default_factory=list)
    twice: int = 0
    gone: str = ""

    @property
    def first(self) -> str:
        """Its value where it takes one."""
        return self.values[0] if self.values else ""

    @property
    def text(self) -> str:
        """As a person would say it: the flag and its value, but no secret."""
        if self.name == "optimization-level" and self.written.startswith("-O"):
            return self.written
        hide = is_secret(self.name, self.first) if self.values else False
        return " ".join([self.written, *([HIDDEN] * len(self.values) if hide else self.values)])


@dataclass(frozen=True)
class Vocabulary:
    """The options of all vLLM releases that are known, the usual one first."""

    tables: tuple[Table, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The long spellings of all releases."""
        return tuple({flag: None for table in self.tables for flag in table.by_flag if flag.startswith("--")})

    def find(self, flag: str) -> tuple[Option, Table] | None:
        """The option of exactly this spelling, in the first release that has it."""
        for table in self.tables:
            option = table.find(flag)
            if option is not None:
                return option, table
        return None

    def complete(self, flag: str) -> tuple[str, ...]:
        """What an abbreviation stands for, in the first release that takes it at all."""
        for table in self.tables:
            names = table.abbreviated(flag)
            if names:
                return names
        return ()


@cache
def vocabulary() -> Vocabulary:
    """vLLM's options, of the release that Turnout was written against, then newer and older ones."""
    usual = load("vllm")
    others = [load("vllm", version) for version in reversed(versions("vllm"))]
    return Vocabulary((usual, *(table for table in others if table.version != usual.version)))


def closest(written: str) -> str | None:
    """The flag of some vLLM that a misspelt one may have been meant to be; `None` when none is near."""
    flag = written.partition(".")[0].replace("_", "-")
    likely = [name for name in vocabulary().names if abs(len(name) - len(flag)) <= 3]
    return next(iter(difflib.get_close_matches(flag, likely, 1, NEAR)), None)


def resolve(written: str) -> tuple[Item, Option | None]:
    """An item for a flag as written, and vLLM's option; the item is not `known` when no release has it."""
    base, dot, _ = written.partition(".")
    flag = base.replace("_", "-") if base.startswith("--") else base
    words, negative = vocabulary(), False
    found = words.find(flag)
    notes: list[str] = []
    if found is None and flag.startswith("--"):
        names = words.complete(flag)
        options = [words.find(name) for name in names]
        dests = {one[0].dest for one in options if one}
        if len(dests) == 1:
            found = next(one for one in options if one)
            flag = found[0].name
            notes.append(f"short for {flag}")
        elif dests:
            notes.append(f"could be {' or '.join(names)}")
    if found is None and flag.startswith(("--no-", "--disable-", "--enable-")):
        found, negative = _other_side(words, flag)
    if found is None:
        return Item(written=written, name=flag.lstrip("-"), known=False, notes=notes), None
    option, table = found
    item = Item(written=written, name=option.name.lstrip("-"), notes=notes)
    item.negative = negative or option.negates(flag)
    item.name = option.dest.replace("_", "-") if option.flags else option.dest
    if table.version != words.tables[0].version:
        item.gone = table.version
    if dot:
        item.value = None
    return item, (None if dot else option)


def _other_side(words: Vocabulary, flag: str) -> tuple[tuple[Option, Table] | None, bool]:
    """A switch that this release has only the other way round: `--no-X`, `--disable-log-requests`."""
    for here, there, negative in (
        ("--no-", "--", True),
        ("--disable-", "--enable-", True),
        ("--enable-", "--disable-", True),
    ):
        if flag.startswith(here):
            found = words.find(there + flag.removeprefix(here))
            if found is not None and found[0].switch:
                return found, negative
    return None, False
