"""What a template says before it runs: the names it uses, the results it waits for, and itself with one name filled in.

Used when a playbook is loaded, so that a misspelt name is found before anything starts. It renders nothing; that is
`templates`.

    references("{{ host }}: {{ todos.bench.rate }}")           -> names {"host", "todos"}, todos {"bench"}
    bind({"host": "{{ h }}", "run": "x {{ n }}"}, "h", "red")  -> {"host": "red", "run": "x {{ n }}"}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import nodes
from jinja2.meta import find_undeclared_variables

from agent.templates import chains, has_template
from agent.templates_sandbox import environment, parse

Token = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class References:
    """`names` come from the context, `loops` from `for`; `todos` and `params` are the keys read of those two.

    `members` are reads of one key of a todo's result, `(todo, key)`: of a group, one member. `wholes` are the todos
    that are read as a whole, other than to ask whether they are there.
    """

    names: frozenset[str]
    loops: frozenset[str]
    todos: frozenset[str]
    params: frozenset[str]
    members: frozenset[tuple[str, str]] = frozenset()
    wholes: frozenset[str] = frozenset()


def references(text: str, *, expression: bool = False) -> References:
    """What `text` refers to. Raises `jinja2.TemplateSyntaxError` with a line within the text."""
    tree = parse(text, expression=expression)
    names = find_undeclared_variables(tree) - set(environment.globals)
    paths = [path for path in chains(tree) if len(path) > 1 and path[0] in names]
    keyed = Counter((str(p[1]), str(p[2])) for p in paths if p[0] == "todos" and len(p) == 3)
    read = Counter(str(p[1]) for p in paths if p[0] == "todos" and len(p) == 2)
    read.subtract(todo for todo, _ in keyed.elements())
    read.subtract(_asked_for(tree))
    return References(
        names=frozenset(names),
        loops=frozenset(node.name for node in tree.find_all(nodes.Name) if node.ctx == "store"),
        todos=frozenset(str(path[1]) for path in paths if path[0] == "todos"),
        params=frozenset(str(path[1]) for path in paths if path[0] == "params"),
        members=frozenset(keyed),
        wholes=frozenset(todo for todo, number in read.items() if number > 0),
    )


def _asked_for(tree: nodes.Template) -> list[str]:
    """The todos in `todos.x is defined` and `todos.x | default(...)`: one that has no result yet is provided for."""
    found = []
    for node in (*tree.find_all(nodes.Filter), *tree.find_all(nodes.Test)):
        if node.name in ("default", "d", "defined", "undefined") and isinstance(node.node, nodes.Getattr):
            path = next(chains(node.node), ())
            if len(path) == 2 and path[0] == "todos":
                found.append(str(path[1]))
    return found


def bind(value: Any, name: str, item: Any) -> Any:
    """`value` (JSON) with `name` filled in wherever a template uses it, other names left for later.

    `item` is plain data. A string that is one `{{ name }}` or `{{ name.key }}` becomes that value, type kept.
    """
    if isinstance(value, Mapping):
        return {key: bind(part, name, item) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [bind(part, name, item) for part in value]
    return _bind_text(value, name, item) if isinstance(value, str) and has_template(value) else value


def bind_expression(expression: str, name: str, item: Any) -> str:
    """A bare expression with `name` filled in."""
    tokens = list(environment.lex("{{ " + expression + "\n}}"))
    return "".join(_bind_tokens(tokens, name, item))[3:-3]


def _bind_text(text: str, name: str, item: Any) -> Any:
    """Works on tokens, since Jinja reads a template into a tree but does not write the tree back as text."""
    tokens = list(environment.lex(text))
    parts: list[str] = []
    while tokens:
        end = next((n for n, (_, kind, _) in enumerate(tokens) if kind == "variable_end"), len(tokens) - 1) + 1
        begin = next((n for n, (_, kind, _) in enumerate(tokens[:end]) if kind == "variable_begin"), end)
        parts += _bind_tokens(tokens[:begin], name, item)
        segment = [token for token in tokens[begin:end] if token[1] != "whitespace"]
        if segment and (segment[0][2], segment[-1][2]) == ("{{", "}}") and segment[1][1:] == ("name", name):
            value, used = _follow(segment, 1, item)
            if used == len(segment) - 2 and not has_template(str(value)):
                if not parts and end == len(tokens):
                    return value
                parts.append(str(value))
                tokens = tokens[end:]
                continue
        parts += _bind_tokens(tokens[begin:end], name, item)
        tokens = tokens[end:]
    return "".join(parts)


def _bind_tokens(tokens: list[Token], name: str, item: Any) -> list[str]:
    """The tokens' texts, each use of `name` a literal. Python's literals of JSON data are also Jinja's."""
    parts: list[str] = []
    index = 0
    while index < len(tokens):
        _, kind, text = tokens[index]
        if kind == "name" and text == name and _is_variable(tokens, index):
            value, used = _follow(tokens, index, item)
            parts.append(f"({value!r})")  # the parentheses keep `-1 ** 2` what it was
            index += used
        else:
            parts.append(text)
            index += 1
    return parts


def _follow(tokens: list[Token], index: int, value: Any) -> tuple[Any, int]:
    """The value of `name.key.key` at `index` as far as there are such keys, and the number of tokens that it takes."""
    used = 1
    while isinstance(value, Mapping) and index + used + 1 < len(tokens):
        dot, key = tokens[index + used], tokens[index + used + 1]
        if dot[2] != "." or key[1] != "name" or key[2] not in value:
            break
        value, used = value[key[2]], used + 2
    return value, used


def _is_variable(tokens: list[Token], index: int) -> bool:
    """Whether the name stands for a variable: no attribute, filter, test or keyword argument."""
    before = next((token for token in reversed(tokens[:index]) if token[1] != "whitespace"), (0, "", ""))
    after = next((token for token in tokens[index + 1 :] if token[1] != "whitespace"), (0, "", ""))
    return before[2] not in (".", "|", "is") and after[2] != "="
