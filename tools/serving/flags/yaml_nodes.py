"""A YAML text as nodes that know their places, by PyYAML; templates are carried through as letters and put back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MOST_DEEP = 60
_TEMPLATE = re.compile(r"\{\{[^{}\n]{0,300}\}\}")
_CONTROL = re.compile(r"(?m)^[ \t]*\{\{[^{}\n]{0,300}\}\}[ \t]*$")
Nodes = dict[str, Any]


def broken(text: str) -> str:
    """What is wrong with a text as YAML, with the line; "" when nothing is."""
    try:
        for _ in yaml.parse(_TEMPLATE.sub("T", _CONTROL.sub("", text)), Loader=LOADER):
            pass
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return f"line {mark.line + 1 if mark else '?'}: {error.problem}"
    except yaml.YAMLError as error:
        return str(error)
    return ""


def documents(text: str) -> list[Any] | None:
    """The root nodes of a YAML text, `None` when it is none."""
    if _too_deep(text):
        return None
    text = _CONTROL.sub(lambda match: " " * len(match[0]), text)
    plain = _TEMPLATE.sub(lambda match: "T" * len(match[0]), text).replace("\t", " ")
    try:
        return [node for node in yaml.compose_all(plain, Loader=LOADER) if node is not None]
    except (yaml.YAMLError, RecursionError, ValueError):
        return None


def _too_deep(text: str) -> bool:
    """Whether brackets or indents nest deeper than any manifest: such text is not worth a parser's stack."""
    depth = 0
    for match in re.finditer(r"[\[{\]}]", text):
        depth += 1 if match[0] in "[{" else -1 if depth else 0
        if depth > MOST_DEEP:
            return True
    return bool(re.search(r"(?m)^ {400}|(?:- ){60}|(?:\? ){60}", text))


def is_map(node: Any) -> bool:
    """Whether a node is a mapping."""
    return isinstance(node, yaml.MappingNode)


def mappings(root: Any) -> Iterator[Any]:
    """Every mapping of a document once, also where anchors make it appear twice."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if is_map(node):
            yield node
            waiting += [value for _, value in reversed(node.value)]
        elif isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)


def source(text: str, node: Any) -> str:
    """A scalar's value, with templates as they stand in the text."""
    raw = text[node.start_mark.index : node.end_mark.index]
    value = str(node.value)
    return _restored(value, raw)


def _restored(value: str, raw: str) -> str:
    """Put the templates of the text back where the parser saw letters."""
    for template in _TEMPLATE.findall(raw):
        value = value.replace("T" * len(template), template, 1)
    return value


def values(text: str, node: Any) -> list[str]:
    """The strings of a scalar or of a list."""
    if node is None:
        return []
    if isinstance(node, yaml.ScalarNode):
        value = source(text, node)
        return [] if node.tag.endswith(":null") or not value.strip() else [value]
    if isinstance(node, yaml.SequenceNode):
        return [source(text, one) for one in node.value if isinstance(one, yaml.ScalarNode)]
    return []


def block_indent(raw: str) -> str:
    """The indent of a block scalar's lines."""
    match = re.match(r"[|>][^\n]*\n(?:[ \t]*\n)*( +)", raw)
    return match[1] if match else ""


def span(text: str, first: Any, last: Any) -> tuple[int, int]:
    """From the beginning of one node to the end of another."""
    return first.start_mark.index, end_of(text, last)


def end_of(text: str, node: Any) -> int:
    """Where a node's own text ends; a block's mark lies behind the line breaks that follow it."""
    end = int(node.end_mark.index)
    raw = text[node.start_mark.index : end]
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        return int(node.start_mark.index) + len(raw.rstrip("\n "))
    if not isinstance(node, yaml.ScalarNode) and not node.flow_style:
        last = node.value[-1] if node.value else None
        last = last[1] if isinstance(last, tuple) else last
        if last is not None:
            return end_of(text, last)
    return end


def element(word: str) -> str:
    """A word as an element of a block list."""
    if re.fullmatch(r"-{0,2}[A-Za-z][\w./=:$(){}-]*|--?[a-z][\w-]*", word) and not word.endswith(":"):
        return (
            json.dumps(word) if word.startswith("-") or word.lower() in ("true", "false", "null", "yes", "no") else word
        )
    return json.dumps(word, ensure_ascii=False)
