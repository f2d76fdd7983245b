"""The template language: Jinja2 in a sandbox that is smaller than Jinja's own, because its data are only JSON.

The language is `{{ }}`, `{% if %}`, `{% for %}` two deep, `{% raw %}` and `{{# comments #}}` (`{#` is left to the
shell, where `${#list[@]}` is a length). There is no way to name an intermediate value, so what a template can build is
bounded by its own length; text, output and `range` are bounded besides. Attributes of Python objects cannot be reached:
a dot reads a key of a mapping, or one of the methods in `METHODS`. Nothing is random and nothing reads a clock, so that
a replay renders the same text.

Here are the rules only; `templates` renders. `parse` gives the tree of a text that keeps them, or says what it breaks.
"""

from __future__ import annotations

import difflib
import json
import posixpath
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.runtime import LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEXT = 64 << 10  # characters of a template
MAX_OUTPUT = 1 << 20  # characters that it may give, or elements of a list
MAX_RANGE = 1_000
MAX_LOOPS = 2  # nested `for`
MAX_POWER_BITS = 4_096

METHODS: Mapping[type, frozenset[str]] = {
    Mapping: frozenset({"get", "items", "keys", "values"}),
    str: frozenset({"endswith", "lower", "lstrip", "removeprefix", "removesuffix", "rstrip", "split", "splitlines"})
    | frozenset({"startswith", "strip", "upper"}),
    list: frozenset({"count", "index"}),
    LoopContext: frozenset({"first", "index", "index0", "last", "length"}),
}
"""The methods that a template may call, by the type of the value."""

# fmt: off
_JINJA_FILTERS = [
    "abs", "count", "d", "default", "dictsort", "first", "groupby", "items", "last", "length", "list", "lower", "map",
    "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr", "sort", "string", "sum", "title", "trim",
    "unique", "upper",
]
# fmt: on


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with attributes closed and the operators bounded that make a huge value of a short text."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        """A dot: the key of a mapping first (so that a result named `items` can be read), then an allowed method."""
        if isinstance(obj, Undefined):
            obj._fail_with_undefined_error()
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        if any(isinstance(obj, kind) and attribute in names for kind, names in METHODS.items()):
            return getattr(obj, attribute)
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Brackets: a key, an index or a slice, never an attribute."""
        try:
            return obj[argument]
        except (LookupError, TypeError):
            return self.undefined(obj=obj, name=argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """`*`, `**` and `%`, within bounds."""
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "%" and not numbers:
            raise SecurityError("`%` is only for numbers")
        if operator == "*" and not numbers:
            length, times = (len(left), right) if hasattr(left, "__len__") else (len(right), left)
            if length * times > MAX_OUTPUT:
                raise SecurityError(f"`*` would give more than {MAX_OUTPUT} elements")
        if operator == "**" and numbers and abs(left) > 1 and abs(right) * int(abs(left)).bit_length() > MAX_POWER_BITS:
            raise SecurityError("`**` would give too large a number")
        return super().call_binop(context, operator, left, right)


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise SecurityError(f"`range` of {len(numbers)} numbers, at most {MAX_RANGE} are allowed")
    return numbers


def _join(values: Iterable[Any], separator: str = "", attribute: str | None = None) -> str:
    texts = [str(value if attribute is None else value[attribute]) for value in values]
    if sum(map(len, texts)) + len(separator) * len(texts) > MAX_OUTPUT:
        raise SecurityError(f"`join` would give more than {MAX_OUTPUT} characters")
    return separator.join(texts)


def _shquote(value: Any) -> str:
    return shlex.join(map(str, value)) if isinstance(value, list | tuple) else shlex.quote(str(value))


def _basename(value: Any) -> str:
    return posixpath.basename(str(value).rstrip("/"))


def _json(value: Any) -> str:
    if isinstance(value, Undefined):
        value._fail_with_undefined_error()
    return json.dumps(value, ensure_ascii=False)


def _round(value: float, digits: int = 0) -> float:
    return round(float(value), digits)


def duration(seconds: float) -> str:
    """`5400` -> `1h 30m`: the two largest units that are not zero, seconds with one decimal below a minute."""
    if abs(seconds) < 60:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    left, parts = round(abs(seconds)), []
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, unit)
        if count:
            parts.append(f"{count}{name}")
    return ("-" if seconds < 0 else "") + " ".join(parts[:2])


def size(count: float) -> str:
    """`1536` bytes -> `1.5 KiB`."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while abs(count) >= 1024 and len(units) > 1:
        count /= 1024
        units.pop(0)
    return f"{count:.1f}".removesuffix(".0") + f" {units[0]}"


class _Missing(jinja2.StrictUndefined):
    """A missing value fails also where a list that holds it is printed."""

    __slots__ = ()
    __repr__ = jinja2.StrictUndefined.__str__


def _environment() -> Sandbox:
    sandbox = Sandbox(
        undefined=_Missing,
        keep_trailing_newline=True,
        comment_start_string="{{#",
        comment_end_string="#}}",
    )
    sandbox.filters = {name: FILTERS[name] for name in _JINJA_FILTERS}
    # Jinja's `int` and `float` answer 0 for what is no number, which would let a gate decide on nothing.
    sandbox.filters |= {"int": int, "float": float, "round": _round, "join": _join, "json": _json}
    sandbox.filters |= {"shquote": _shquote, "basename": _basename, "duration": duration, "size": size}
    sandbox.globals = {"range": _range}
    return sandbox


environment = _environment()


def parse(text: str, *, expression: bool = False) -> nodes.Template:
    """The syntax tree of a template, or of a bare expression, after the rules that the module's first lines give.

    Raises `jinja2.TemplateSyntaxError`, whose `lineno` counts from 1 within `text`.
    """
    if len(text) > MAX_TEXT:
        raise jinja2.TemplateSyntaxError(f"longer than {MAX_TEXT >> 10} Ki characters", 1)
    try:
        tree = environment.parse("{{ " + text + "\n}}" if expression else text)
        _confine(tree, 0)
        # Python's own limits on nesting show only when the template is compiled.
        if expression:
            environment.compile_expression(text)
        else:
            environment.from_string(tree)
    except jinja2.TemplateSyntaxError as error:
        if expression and ("{{" in text or "{%" in text):
            raise jinja2.TemplateSyntaxError("a condition is an expression, without `{{ }}` around it", 1) from error
        raise
    except (RecursionError, SyntaxError, ValueError) as error:
        # ValueError: an integer literal of thousands of digits.
        raise jinja2.TemplateSyntaxError("nested too deeply, or a number with too many digits", 1) from error
    return tree


def _confine(node: nodes.Node, loops: int) -> None:
    """Refuse the statements, names, filters and tests that are not part of our language."""
    if isinstance(node, nodes.Stmt) and not isinstance(node, nodes.Output | nodes.If | nodes.For):
        name = type(node).__name__.lower()
        raise jinja2.TemplateSyntaxError(f"the statement `{name}` is not available, only `if` and `for`", node.lineno)
    if isinstance(node, nodes.For):
        loops += 1
        if loops > MAX_LOOPS or node.recursive:
            raise jinja2.TemplateSyntaxError(f"`for` nests at most {MAX_LOOPS} deep, not recursively", node.lineno)
    if isinstance(node, nodes.Name) and node.name in ("self", "super", "caller"):
        raise jinja2.TemplateSyntaxError(f"`{node.name}` has no meaning here", node.lineno)
    for kind, known in ((nodes.Filter, environment.filters), (nodes.Test, environment.tests)):
        if isinstance(node, kind) and node.name not in known:
            close = difflib.get_close_matches(node.name, known, 1)
            meant = f"; did you mean `{close[0]}`?" if close else ""
            message = f"no {kind.__name__.lower()} is named `{node.name}`{meant}"
            raise jinja2.TemplateSyntaxError(message, node.lineno)
    for child in node.iter_child_nodes():
        _confine(child, loops)
