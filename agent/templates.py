"""Renders a playbook's templates and evaluates its conditions, and says what was missing when that fails.

    render("--port {{ port }}", {"port": 8000})            -> "--port 8000"
    render_tree({"gpus": "{{ n }}"}, {"n": 2})             -> {"gpus": 2}
    evaluate("todos.bench.rate >= 1.0", {"todos": {...}})  -> True

What the language allows is in `templates_sandbox`; where the values come from is the dispatcher's business; which names
a template uses before anything runs is read off in `playbook_templates`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Undefined

from agent.templates_sandbox import MAX_OUTPUT, MAX_TEXT, duration, environment, parse
from state.errors import TurnoutError

__all__ = ["BUILTINS", "chains", "duration", "evaluate", "has_template", "lone_expression", "render", "render_tree"]

BUILTINS: Mapping[str, str] = {
    "params": "the playbook's parameters; each is also there by its own name",
    "todos": "results: `todos.<id>.<key>`, and `todos.<step>[<value>].<key>` for a step with `for_each`",
    "session": "the session's id",
    "host": "the host this todo runs on (a parameter or item named `host` goes first)",
    "python": "the Python interpreter on that host",
    "workdir": "the session's working folder on that host",
    "attempt": "1 for the first try of this todo, 2 for the first retry, ...",
    "playbook": "the playbook's name",
}
"""Names that the dispatcher puts into every context, beside the parameters."""

_FAILURES = (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError)


def has_template(text: str) -> bool:
    """Whether `text` asks to be rendered at all."""
    return "{{" in text or "{%" in text


def lone_expression(text: str) -> str | None:
    """The expression of a text that is exactly one `{{ expression }}`, else `None`."""
    if not (text.startswith("{{") and text.endswith("}}")) or len(text) > MAX_TEXT:
        return None
    try:
        tokens = list(environment.lex(text))
    except jinja2.TemplateSyntaxError:
        return None  # no expression at all; who renders or checks the text reports the same error with its line
    kinds = [kind for _, kind, _ in tokens]
    if kinds[0] != "variable_begin" or kinds.index("variable_end") != len(kinds) - 1:
        return None
    return "".join(value for _, _, value in tokens[1:-1])


def render(text: str, context: Mapping[str, Any], *, what: str = "a template") -> str:
    """`text` with its templates filled in. Raises `TurnoutError`, which names `what` (a todo) and what was missing."""
    if not has_template(text):
        return text
    chunks: list[str] = []
    length = 0
    try:
        for chunk in _template(text).generate(context):
            length += len(chunk)
            if length > MAX_OUTPUT:
                raise SecurityError(f"gives more than {MAX_OUTPUT} characters")
            chunks.append(chunk)
    except _FAILURES as error:
        raise _failure(text, context, what, error, expression=False) from error
    return "".join(chunks)


def evaluate(expression: str, context: Mapping[str, Any], *, what: str = "a condition") -> Any:
    """The value of a bare expression as JSON data; a gate takes its truth. Raises `TurnoutError` as `render` does."""
    try:
        return _plain(_expression(expression)(context))
    except _FAILURES as error:
        raise _failure(expression, context, what, error, expression=True) from error


def render_tree(value: Any, context: Mapping[str, Any], *, what: str = "a template") -> Any:
    """Every string of a JSON value rendered; a string that is one `{{ expression }}` gives its value, type kept."""
    if isinstance(value, Mapping):
        return {key: render_tree(item, context, what=what) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [render_tree(item, context, what=what) for item in value]
    if not isinstance(value, str) or not has_template(value):
        return value
    expression = lone_expression(value)
    return render(value, context, what=what) if expression is None else evaluate(expression, context, what=what)


def _plain(value: Any) -> Any:
    """JSON data of what an expression gave: filters give generators, and a missing value may hide within a list."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Undefined):
        value._fail_with_undefined_error()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    raise TypeError(f"it gives a {type(value).__name__}, which is no data")


@lru_cache(maxsize=512)
def _template(text: str) -> jinja2.Template:
    return environment.from_string(parse(text))


@lru_cache(maxsize=512)
def _expression(text: str) -> Any:
    parse(text, expression=True)
    return environment.compile_expression(text, undefined_to_none=False)


def _failure(text: str, context: Mapping[str, Any], what: str, error: Exception, *, expression: bool) -> TurnoutError:
    """The error that a person reads: which text, what was seen, and for a missing name what there is instead."""
    shown = text.strip() if len(text) < 200 else text.strip()[:200] + "..."
    seen = (error.message if isinstance(error, jinja2.TemplateError) else None) or str(error)
    hint = "correct the playbook; `turnout playbook check` finds most such errors before a run"
    if isinstance(error, jinja2.UndefinedError):
        for path, value in _missing(parse(text, expression=expression), context):
            if f"'{path[-1]}'" in seen or f"element {path[-1]!r}" in seen:
                seen = f"`{'.'.join(map(str, path))}` is missing: {_contents(path[:-1], value)}"
                keys = [str(key) for key in value] if isinstance(value, Mapping) else []
                close = difflib.get_close_matches(str(path[-1]), keys, 1)
                hint = f"did you mean `{close[0]}`?" if close else hint
                break
    return TurnoutError(f"{what}: `{shown}` cannot be evaluated: {seen}", hint=hint)


def _contents(path: tuple[Any, ...], value: Any) -> str:
    name = f"`{path[-1]}`" if path else "the context"
    if isinstance(value, Mapping):
        return f"{name} has " + (", ".join(f"`{key}`" for key in list(value)[:20]) or "no keys")
    return f"{name} is a {type(value).__name__}" + (f" of {len(value)} elements" if isinstance(value, list) else "")


def _missing(tree: nodes.Template, context: Mapping[str, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Paths that `context` cannot answer, each cut after the part that is missing, with the value that lacks it."""
    free = find_undeclared_variables(tree) - set(environment.globals)
    for chain in chains(tree):
        value: Any = context
        for depth, key in enumerate(chain if chain[0] in free else ()):
            indexed = isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value)
            if not indexed and not (isinstance(value, Mapping) and key in value):
                yield chain[: depth + 1], value
                break
            value = value[key]


def chains(tree: nodes.Node) -> Iterator[tuple[Any, ...]]:
    """The dotted paths that a tree reads: `todos.bench["rate"]` -> `("todos", "bench", "rate")`, and its beginnings.

    A path ends before a part that only a run knows, as in `todos[name]`.
    """
    path: list[Any] = []
    node = tree
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        path.append(_key(node))
        node = node.node
    if isinstance(node, nodes.Name):
        path = [node.name, *reversed(path)]
        yield tuple(path[: path.index(None)] if None in path else path)
    for child in tree.iter_child_nodes():
        yield from chains(child)


def _key(node: nodes.Getattr | nodes.Getitem) -> Any:
    """The key that is read, `None` when it is computed."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    try:
        return node.arg.as_const()
    except nodes.Impossible:
        return None
