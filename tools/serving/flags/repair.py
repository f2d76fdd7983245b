"""JSON as it arrives on command lines: whole, backslash-escaped, stripped of its quotes, cut at its spaces.

`mend` reads what can be read unambiguously and says how; it never guesses a value.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import yaml

MAX = 64 * 1024


def mend(text: str) -> tuple[Any, str]:
    """The value of damaged JSON, and what was the matter with it ("" for none). Raises ValueError when unreadable."""
    text = text.strip()
    if len(text) > MAX:
        raise ValueError("too long for a setting")
    for candidate, how in _candidates(text):
        try:
            return json.loads(candidate), how
        except ValueError:
            continue
    for reader, how in ((ast.literal_eval, "a Python value"), (_flow, "JSON without its quotes")):
        try:
            value = reader(text.replace("\\", ""))
        except (ValueError, SyntaxError, yaml.YAMLError, TypeError, MemoryError, RecursionError):
            continue
        if isinstance(value, dict | list):
            return value, how
    raise ValueError("it is no JSON")


def _candidates(text: str) -> list[tuple[str, str]]:
    """The text itself, then what it was before something mangled it."""
    bare = text.strip("'").rstrip("\\").strip("'")
    return [
        (text, ""),
        (bare, "JSON with stray quotes around it"),
        (re.sub(r"\\(.)", r"\1", bare), "JSON with backslashes left in it"),
        (text.strip('"').replace('\\"', '"'), "JSON quoted twice"),
        (re.sub("[\u201c\u201d]", '"', text).strip("\u2018\u2019"), "JSON with typographic quotes"),
        (re.sub(r",\s*([}\]])", r"\1", bare), "JSON with a comma too many"),
    ]


def _flow(text: str) -> Any:
    value = yaml.safe_load(re.sub(r":(?=[^\s/])", ": ", text))
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        raise ValueError("its keys are no words")
    return value


def pairs(text: str) -> dict[str, Any]:
    """`image=2,video=1` as a mapping. Raises ValueError for anything else."""
    found = {}
    for part in text.split(","):
        name, sep, value = part.partition("=")
        if not sep or not name.strip():
            raise ValueError(f"`{part}` is no `name=value`")
        found[name.strip()] = int(value) if value.strip().isdigit() else value.strip()
    return found


def balanced(text: str) -> bool:
    """Whether every brace that opens closes again; what stands in double quotes does not count."""
    bare = re.sub(r'"(?:\\.|[^"\\])*"', "", text)
    return bare.count("{") <= bare.count("}") and bare.count("[") <= bare.count("]")
