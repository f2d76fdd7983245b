"""What an engine's command line takes: a table of its options, shipped or dumped on a host, and a parser made of it.

    table = load("sglang", "0.5.14")
    table.find("--tp")                 # the option of that name, `None` for one that is not there
    table.parse(["--model-path", "M"]) # {"model_path": "M"}; raises Refused with argparse's own words

A table is JSON: `engine`, `version`, `options`; each option has `flags`, `dest`, `action` and, where they are not the
usual ones, `type`, `nargs`, `choices`, `const`, `default`, `required`, `instead` (the flag that replaces it). The
parser is a real argparse with the engine's own converters, so abbreviations, choices and numbers of values behave.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NoReturn

from state.errors import UsageError

TABLES = Path(__file__).with_name("tables")
DEFAULT_VERSION = {"sglang": "0.5.14", "vllm": "0.23.0"}
_SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_IEC = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_FLAGS_WITHOUT_VALUE = (
    "StoreTrueAction",
    "DeprecatedStoreTrueAction",
    "DeprecatedStoreConstAction",
    "DeprecatedAction",
)
_TWO_SIDED = ("BooleanOptionalAction", "EnableDisableAction")


class Refused(Exception):
    """The engine's parser would not take this command line; the text is argparse's."""


@dataclass(frozen=True)
class Option:
    """One option. `values` is how many it takes: 0, 1, or more (`None`)."""

    flags: tuple[str, ...]
    dest: str
    action: str
    type: str = "str"
    nargs: str | int | None = None
    choices: tuple[Any, ...] | None = None
    const: Any = None
    default: Any = None
    required: bool = False
    instead: str | None = None
    deprecated: bool = False

    @property
    def name(self) -> str:
        """Its first long name; of a positional its dest."""
        return next((flag for flag in self.flags if flag.startswith("--")), self.dest)

    @property
    def switch(self) -> bool:
        """Whether it stands alone, without a value."""
        return self.action in _FLAGS_WITHOUT_VALUE or self.action in _TWO_SIDED

    def negates(self, flag: str) -> bool:
        """Whether this spelling of a two-sided switch turns it off."""
        plain = "--" + self.dest.replace("_", "-")
        return self.action in _TWO_SIDED and flag.startswith(("--no-", "--disable-", "--enable-")) and flag != plain

    @property
    def many(self) -> bool:
        """Whether it takes as many values as follow."""
        return self.nargs in ("+", "*")


@dataclass(frozen=True)
class Table:
    """The options of one version of one engine."""

    engine: str
    version: str
    options: tuple[Option, ...]

    @cached_property
    def by_flag(self) -> Mapping[str, Option]:
        """Every spelling of every option."""
        return {flag: option for option in self.options for flag in option.flags}

    @cached_property
    def by_dest(self) -> Mapping[str, Option]:
        """The option that sets a dest: of several the first that is not on its way out."""
        found: dict[str, Option] = {}
        for option in sorted(self.options, key=lambda option: bool(option.instead or option.deprecated)):
            found.setdefault(option.dest, option)
        return found

    def find(self, flag: str) -> Option | None:
        """The option of exactly this spelling."""
        return self.by_flag.get(flag)

    def abbreviated(self, flag: str) -> tuple[str, ...]:
        """The long spellings that begin with `flag`, which argparse would take for it when there is one alone."""
        if not flag.startswith("--"):
            return ()
        names = {name: option.dest for name, option in self.by_flag.items() if name.startswith(flag)}
        return tuple(sorted(names))

    @cached_property
    def _argparse(self) -> argparse.ArgumentParser:
        return self.parser()

    def parser(self) -> argparse.ArgumentParser:
        """A fresh argparse parser that takes what the engine's takes. Errors raise `Refused`."""
        parser = _Parser(prog=self.engine, add_help=False)
        for option in self.options:
            flags = option.flags
            if option.action == "BooleanOptionalAction":
                flags = tuple(flag for flag in flags if not flag.startswith("--no-"))
            parser.add_argument(*(flags or (option.dest,)), **_arguments(option))
        return parser

    def parse(self, words: Sequence[str]) -> dict[str, Any]:
        """What `words` set, without what they leave or set to its default. Raises `Refused`."""
        found = vars(self._argparse.parse_args(list(words)))
        return {dest: value for dest, value in found.items() if value != self.by_dest[dest].default}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(message)


def _arguments(option: Option) -> dict[str, Any]:
    """What `add_argument` is given for an option."""
    given: dict[str, Any] = {"default": option.default}
    if option.flags:
        given |= {"dest": option.dest, "required": option.required}
    if option.action == "DeprecatedAction":
        return {"action": "store_true", "dest": option.dest, "default": option.default}
    if option.action == "BooleanOptionalAction":
        return {**given, "action": argparse.BooleanOptionalAction}
    if option.action == "EnableDisableAction":
        return {**given, "action": "store_true"}
    if option.switch:
        const = option.const if option.action == "DeprecatedStoreConstAction" else True
        return {**given, "action": "store_const", "const": const}
    if option.action == "AppendAction":
        given["action"] = "append"
    given["type"] = CONVERTERS.get(option.type.removeprefix("optional ").strip(), str)
    for name, value in (("nargs", option.nargs), ("choices", option.choices), ("const", option.const)):
        if value is not None:
            given[name] = value
    if option.action == "LoRAPathAction":
        given["nargs"] = option.nargs or "*"
    return given


def human_readable_int(text: str) -> int:
    """`32k` is 32000 and `32Ki` is 32768, as in SGLang: the letters' case counts. Raises `ArgumentTypeError`."""
    text = text.strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)", text)
    if match is None:
        try:
            return int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"`{text}` is no number such as 1000, 1k or 1Ki") from None
    number, suffix = match.groups()
    if suffix in _SI:
        return int(Decimal(number) * _SI[suffix])
    if "." in number:
        raise argparse.ArgumentTypeError(f"`{text}`: no decimals before {suffix}")
    return int(number) * _IEC[suffix]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"`{text}` is no JSON") from None


CONVERTERS: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "human_readable_int": human_readable_int,
    "loads": _json,
    "json_list_type": _json,
    "parse_cuda_graph_config_arg": _json,
    "nullable_str": lambda text: None if text in ("", "None") else text,
}


def from_json(raw: Mapping[str, Any]) -> Table:
    """A table from its JSON, shipped or dumped."""
    options = tuple(_option(one) for one in raw["options"])
    return Table(engine=str(raw["engine"]), version=str(raw["version"]), options=options)


def _option(raw: Mapping[str, Any]) -> Option:
    choices = raw.get("choices")
    return Option(**{**raw, "flags": tuple(raw["flags"]), "choices": None if choices is None else tuple(choices)})


def versions(engine: str) -> list[str]:
    """The versions whose tables are shipped, oldest first."""
    names = [path.stem.removeprefix(f"{engine}-") for path in TABLES.glob(f"{engine}-*.json")]
    return sorted(names, key=_order)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def is_of(table: Table, version: str) -> bool:
    """Whether a table is that of exactly this version."""
    return _order(table.version) == _order(version)


@cache
def load(engine: str, version: str | None = None) -> Table:
    """A shipped table; by default of the version that Turnout was written against.

    For a version without one it is the nearest older; `is_of` tells. Raises `UsageError` for one older than all.
    """
    shipped = versions(engine)
    wanted = version or DEFAULT_VERSION[engine]
    fitting = [one for one in shipped if _order(one) <= _order(wanted)]
    if not fitting or not _order(wanted):
        raise UsageError(
            f"no options are known of {engine} `{wanted}`",
            hint=f"there are tables for {', '.join(shipped)}; `--host` asks the one installed there",
        )
    return from_json(json.loads((TABLES / f"{engine}-{fitting[-1]}.json").read_text(encoding="utf-8")))
