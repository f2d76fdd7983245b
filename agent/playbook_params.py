"""The values of a playbook's parameters: its defaults, what the operator set, and whether they may be that.

A value from the operator is text and is read by the parameter's type; a default may be a template over the parameters
before it. A parameter with neither default nor value is `null`, unless it is `required`.

    values, problems = resolve(playbook, document, {"preset": "smoke", "hosts": "gpu1,gpu2"}, host="gpu1")
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent.playbook_errors import did_you_mean, listed
from agent.playbook_schema import Param, Playbook
from agent.playbook_yaml import Document
from agent.templates import BUILTINS, render_tree
from state.errors import PlaybookError, TurnoutError
from tools.urls import http_url

_PYTHON: Mapping[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "url": str}
_TRUTH = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}

# A parameter may take the name `host`: playbooks are about hosts, and the parameter then goes first.
RESERVED = frozenset(BUILTINS) - {"host"} | {"range", "loop", "self", "super", "caller", "true", "false", "none"}


def type_of(param: Param) -> str:
    """The declared type, else that of the default or of the first allowed value, else `str`."""
    if param.type:
        return param.type
    sample = param.enum[0] if param.default is None and param.enum else param.default
    return next((name for name, kind in _PYTHON.items() if type(sample) is kind), "str")


def from_text(text: str, kind: str) -> Any:
    """What the operator typed, as the type `kind`; a list is JSON or `a,b,c`. Raises `ValueError`."""
    if kind == "bool":
        if text.lower() not in _TRUTH:
            raise ValueError("write `true` or `false`")
        return _TRUTH[text.lower()]
    if kind == "list":
        value = json.loads(text) if text.lstrip().startswith("[") else [part.strip() for part in text.split(",")]
        return [item for item in value if item != ""]
    if kind in ("int", "float"):
        try:
            return _PYTHON[kind](text)
        except ValueError:
            raise ValueError("write a whole number" if kind == "int" else "write a number") from None
    return http_url(text) if kind == "url" and text else text


def resolve(
    playbook: Playbook,
    document: Document,
    sets: Mapping[str, str],
    *,
    host: str | None = None,
    placeholders: bool = False,
) -> tuple[dict[str, Any], list[PlaybookError]]:
    """The values and what is wrong with them. `placeholders` invents values for what is required and not set."""
    given = dict(sets) | ({"host": host} if host is not None else {})
    problems: list[PlaybookError] = []
    for name in given.keys() - playbook.params.keys():
        message = f"has no parameter `{name}`{did_you_mean(name, playbook.params)}"
        hint = f"its parameters: {listed(playbook.params) or 'none'}"
        problems.append(document.error(("params",), message, hint=hint))
    values: dict[str, Any] = {}
    wrong = False
    for name, param in playbook.params.items():
        try:
            values[name] = _value(name, param, given.get(name), values, placeholders=placeholders)
        except (ValueError, TurnoutError) as error:
            # A default that is made of a value which is wrong already is no second mistake.
            if not (wrong and name not in given and isinstance(error, TurnoutError)):
                problems.append(document.error(("params", name), f"parameter `{name}`: {error}", hint=param.help))
            wrong = True
            values[name] = None
    return values, problems


def _value(name: str, param: Param, text: str | None, before: Mapping[str, Any], *, placeholders: bool) -> Any:
    """One parameter's value. Raises `ValueError`, or `TurnoutError` from a default's template."""
    kind = type_of(param)
    if name in RESERVED:
        raise ValueError("this name is taken by a built-in: choose another")
    if param.required and param.default is not None:
        raise ValueError("it is `required` and has a `default`: remove one of the two")
    if text is not None:
        try:
            value = from_text(text, kind)
        except ValueError as error:
            raise ValueError(f"`{text}` is no {kind}: {error}") from error
    elif param.required:
        if not placeholders:
            raise ValueError(f"it must be set: add `--set {name}=...`")
        invented = {"str": name, "url": f"http://{name}", "list": [name]}
        value = param.enum[0] if param.enum else invented.get(kind, _PYTHON[kind]())
    else:
        default = param.default
        value = render_tree(default, before, what=f"the default of `{name}`") if default is not None else None
        if value is not None and kind == "float" and type(value) is int:
            value = float(value)
        if value is not None and type(value) is not _PYTHON[kind]:
            raise ValueError(f"the default `{value}` is no {kind}")
    _allowed(value, param)
    return value


def _allowed(value: Any, param: Param) -> None:
    if param.enum is None or value is None:
        return
    for item in value if isinstance(value, list) else [value]:
        if item not in param.enum:
            guess = did_you_mean(str(item), map(str, param.enum))
            raise ValueError(f"`{item}` is none of {listed(param.enum)}{guess}")
