"""One translation while it is made: the settings of the input, the arguments so far, what has been said.

A rule is a function of a `Work` and an `Item`, registered for vLLM's names; it emits SGLang arguments and says exactly
one entry. Whole-command rules (`finish`) run after them, in order of their rank, for what several settings make
together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from tools.serving.flags.items import Item
from tools.serving.flags.report import Entry, is_secret
from tools.serving.flags.table import Option, Refused, Table

Rule = Callable[["Work", Item], None]
Look = Callable[[str], Mapping[str, Any] | None]
RULES: dict[str, Rule] = {}
FINISHING: list[tuple[int, Callable[[Work], None]]] = []
_VARIABLE = re.compile(r"\$\((\w+)\)|\$\{(\w+)(?::?[-=]([^}]*))?\}|\$(\w+)")
_HUMAN = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30, "t": 10**12, "T": 2**40}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for vLLM's names, without dashes in front."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def finish(rank: int) -> Callable[[Callable[[Work], None]], Callable[[Work], None]]:
    """Register a rule for the whole command; the lower rank runs first."""

    def register(function: Callable[[Work], None]) -> Callable[[Work], None]:
        FINISHING.append((rank, function))
        return function

    return register


@dataclass
class Work:
    """The state of one translation.

    `flags` are the SGLang arguments in order, `variables` what is known of the environment (for `$NAME` in values),
    `settings` the environment variables that the translation sets. `look` reads a model's config.json, if anything can.
    """

    items: list[Item]
    table: Table
    variables: Mapping[str, str] = field(default_factory=dict)
    look: Look = lambda model: None
    form: str = "shell"
    flags: dict[str, list[str]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    refused: str | None = None
    model: str = ""
    dp_attention: bool = False
    secrets: dict[str, str] = field(default_factory=dict)

    def item(self, name: str) -> Item | None:
        """The setting of that vLLM name, if it was given."""
        return next((item for item in self.items if item.name == name), None)

    def given(self, name: str) -> str:
        """The resolved value of a vLLM setting, "" when it was not given."""
        item = self.item(name)
        return self.resolve(item.first) if item is not None else ""

    def number(self, name: str, otherwise: int) -> int:
        """A vLLM setting as a whole number."""
        value = whole(self.given(name))
        return otherwise if value is None else value

    def resolve(self, text: str) -> str:
        """A value with its variables put in, as far as they are known."""

        def put(match: re.Match[str]) -> str:
            name = match[1] or match[2] or match[4]
            known = self.variables.get(name)
            if known is None:
                return match[3] if match[3] is not None else match[0]
            return known

        for _ in range(4):
            put_in = _VARIABLE.sub(put, text)
            if put_in == text:
                break
            text = put_in[:4096]
        return text

    def emit(self, flag: str, *values: str) -> str:
        """Set an SGLang argument; the text that stands for it in the report."""
        self.flags[flag] = list(values)
        return " ".join([flag, *values])

    def takes(self, flag: str, value: str | None = None) -> bool:
        """Whether this SGLang has the flag, and takes the value."""
        option = self.table.find(flag)
        if option is None or value is None or option.choices is None or open_value(value):
            return option is not None
        return value in option.choices

    def say(
        self, item: Item | str, kind: str, result: str = "", why: str = "", *, cost: int = 3, text: str = ""
    ) -> Entry:
        """Add an entry. For an item it is the item's own; for a text it is about something that was not given."""
        given = isinstance(item, Item)
        notes = list(item.notes) if isinstance(item, Item) else []
        written = text or (item.text if isinstance(item, Item) else item)
        source = f" [{item.source}]" if isinstance(item, Item) and item.source else ""
        entry = Entry(kind, written + source, result, why, cost, notes, given=given)
        self.entries.append(entry)
        return entry

    def copy(self, item: Item, flag: str, *values: str, kind: str = "", why: str = "") -> Entry:
        """Carry a setting over, under SGLang's name; without counterpart where this SGLang does not take it."""
        told = list(values) or item.values
        resolved = self.resolve(told[0]) if told else None
        if not self.takes(flag):
            return self.say(item, "none", "", f"SGLang {self.table.version} has no {flag}", cost=4)
        if not self.takes(flag, resolved):
            option = self.table.find(flag)
            choices = ", ".join(str(one) for one in (option.choices or ())) if option else ""
            return self.say(item, "none", "", f"{flag} of SGLang {self.table.version} takes {choices}", cost=5)
        option = self.table.find(flag)
        said = self.emit(flag, *([] if option is not None and option.switch else told))
        kind = kind or ("same" if flag.lstrip("-") == item.name and told == item.values else "renamed")
        return self.say(item, kind, said, why)

    def parsed(self) -> dict[str, Any]:
        """What SGLang's parser makes of the arguments, without defaults. Raises `Refused`."""
        words, kept = [], {}
        for flag, values in self.flags.items():
            option = self.table.find(flag)
            resolved = values if is_secret(flag, "?") else [self.resolve(value) for value in values]
            if option is not None and any(map(open_value, resolved)) and not _is_text(option):
                kept[option.dest] = resolved[0]
                resolved = [str(option.choices[0])] if option.choices else ["8000"]
            words += [f"{flag}={resolved[0]}"] if len(resolved) == 1 and resolved[0][:1] == "-" else [flag, *resolved]
        found = self.table.parse(words)
        return found | kept


def _is_text(option: Option) -> bool:
    return option.choices is None and option.type == "str"


def without_colon(name: str) -> str:
    """A served name that SGLang takes: it refuses colons, and a dash at the start would make an option of it."""
    return name.replace(":", "-").lstrip("-") or "model"


def open_value(text: str) -> bool:
    """Whether a value still waits for something: a variable, a template, a placeholder."""
    waits = _VARIABLE.search(text) or re.search(r"\$\(|`", text) or "{{" in text or re.fullmatch(r"<.*>", text)
    return bool(waits)


def whole(text: str) -> int | None:
    """A whole number in vLLM's human form: `32k` is 32000, `32K` is 32768. `None` for anything else."""
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?)", text.strip())
    if match is None:
        return None
    number, suffix, binary = Decimal(match[1]), match[2], match[3]
    factor = _HUMAN[suffix.upper() if binary else suffix] if suffix else 1
    return int(number * factor)


def fraction(text: str) -> Decimal | None:
    """A number as it is written, for arithmetic without surprises."""
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def short(value: Any) -> str:
    """A structured value in one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def check(work: Work) -> dict[str, Any] | None:
    """The parsed arguments; `None` after a refusal. What SGLang's parser will not take is a refusal of our own."""
    try:
        return work.parsed()
    except Refused as error:
        if work.refused is None:
            work.refused = f"SGLang {work.table.version} would not take the result: {error}"
        return None
