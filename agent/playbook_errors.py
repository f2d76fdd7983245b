"""What a person reads when a playbook does not load: the likely intention, and every problem at once.

Turns pydantic's errors into `PlaybookError`s with a line and a guess at what was meant, and joins several problems into
one error. It judges nothing itself; the rules are in `playbook_schema`, `playbook_params` and `playbook_graph`.
"""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from agent.playbook_yaml import Document, Loc
from state.errors import PlaybookError

MAX_PROBLEMS = 40  # guessing what was meant takes time, and nobody reads more
MAX_SHOWN = 20
MAX_COMPARED = 128

# Words of other workflow tools, for people who know those.
_MEANT = {
    "depends_on": "after",
    "needs": "after",
    "requires": "after",
    "when": "gate",
    "if": "gate",
    "condition": "gate",
    "command": "run",
    "cmd": "run",
    "script": "run",
    "shell": "job",
    "retries": "retry",
    "loop": "for_each",
    "with_items": "for_each",
    "matrix": "for_each",
    "vars": "params",
    "parameters": "params",
    "inputs": "params",
    "tasks": "steps",
    "todos": "steps",
    "jobs": "steps",
    "environment": "env",
    "timeout_s": "timeout",
    "options": "enum",
    "choices": "enum",
}

_TYPES = {
    "string_type": "must be text",
    "bool_type": "must be `true` or `false`",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """`; did you mean ...?` when one of `options` is close to `word`, else nothing."""
    known = list(options)
    meant = _MEANT.get(word)
    # Comparing is slow: of thousands of names only those of nearly the same length are looked at.
    likely = heapq.nsmallest(MAX_COMPARED, known, key=lambda other: abs(len(other) - len(word)))
    close = [meant] if meant in known else difflib.get_close_matches(word, likely, 1)
    return f"; did you mean `{close[0]}`?" if close else ""


def listed(words: Iterable[object]) -> str:
    """The words in backticks, with commas; a long list is cut."""
    known = [f"`{word}`" for word in words]
    return ", ".join(known[:MAX_SHOWN]) + (f" and {len(known) - MAX_SHOWN} more" if len(known) > MAX_SHOWN else "")


def from_pydantic(
    error: ValidationError, document: Document, model: type[BaseModel], prefix: Sequence[str | int] = ()
) -> list[PlaybookError]:
    """A `PlaybookError` for each of the first things that pydantic found wrong, at the line where it stands."""
    return [_one(detail, document, model, prefix) for detail in error.errors(include_url=False)[:MAX_PROBLEMS]]


def _one(detail: Any, document: Document, model: type[BaseModel], prefix: Loc) -> PlaybookError:
    loc = (*prefix, *detail["loc"])
    key, kind = str(detail["loc"][-1]) if detail["loc"] else "", detail["type"]
    owner = _describe(document, loc[:-1])
    if kind == "extra_forbidden":
        known = _keys(_model_at(model, detail["loc"][:-1]))
        message = f"unknown key `{key}` in {owner}{did_you_mean(key, known)}"
        return document.error(loc, message, hint=f"known keys: {listed(known)}")
    if kind == "missing":
        return document.error(loc, f"{owner} needs `{key}`")
    value = detail["input"]
    if kind == "literal_error":
        known = re.findall(r"'([^']*)'", detail["ctx"]["expected"])
        guess = did_you_mean(str(value), known)
        return document.error(loc, f"`{key}` in {owner} is `{value}`{guess}", hint=f"it may be {listed(known)}")
    reason = _TYPES.get(kind) or str(detail["msg"]).removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        reason = f"is `{str(value)[:60]}`, which is no valid name: it must match `{detail['ctx']['pattern']}`"
    elif kind in _TYPES and value and isinstance(value, str | int | float):
        reason += f", not `{str(value)[:60]}`"
    return document.error(loc, f"{_describe(document, loc)} {reason}")


def _describe(document: Document, loc: Loc) -> str:
    """`steps[2].job` as a person says it: `job` of step `extract`."""
    found = document.known(loc)
    if not found:
        return "the playbook"
    if found[0] == "steps" and len(found) > 1 and isinstance(found[1], int):
        step = document.data["steps"][found[1]]
        name = step.get("id", found[1] + 1) if isinstance(step, dict) else found[1] + 1
        inner = ".".join(map(str, found[2:]))
        return f"`{inner}` of step `{name}`" if inner else f"step `{name}`"
    return f"`{'.'.join(map(str, found))}`"


def _model_at(model: type[BaseModel], loc: Loc) -> type[BaseModel] | None:
    """The model that validates the value at `loc`."""
    for part in loc:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        if isinstance(part, int) or part not in fields:
            continue  # an index, or the free key of a mapping: still within the same annotation
        inner = [kind for kind in _flatten(fields[part].annotation) if issubclass(kind, BaseModel)]
        if not inner:
            return None
        model = inner[0]
    return model


def _flatten(annotation: Any) -> list[type]:
    parts = get_args(annotation)
    if not parts:
        return [annotation] if isinstance(annotation, type) else []
    return [kind for part in parts for kind in _flatten(part)]


def _keys(model: type[BaseModel] | None) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()] if model else []


def together(problems: Sequence[PlaybookError]) -> PlaybookError:
    """The first problem in the order of the file, with the others in its hint."""
    first, *others = sorted(problems, key=lambda problem: problem.line or 0)
    if others:
        also = [f"also: {problem.message}" for problem in others[:MAX_SHOWN]]
        if len(others) > MAX_SHOWN:
            also.append(f"and {len(others) - MAX_SHOWN} more")
        first.hint = "\n".join([*([first.hint] if first.hint else []), *also])
    return first
