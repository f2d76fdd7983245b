"""Reads a playbook's YAML into plain data and remembers on which line each value stands.

The data are strings, integers, floats, booleans, nulls, lists and mappings with string keys, after the YAML 1.2 core
schema: `on`, `yes` and `no` are text, so that `{todo: bench, on: failure}` means what it says. Everything a file can do
to its reader is bounded: size, nesting, number of values with aliases counted as often as they are used. Tags, merge
keys and second documents are refused. What the keys mean is not decided here but in `playbook_schema`.

    document = read(Path("playbook.yaml"))
    raise document.error(("steps", 2, "after"), "`after` names nothing")     # says the file and the line
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from state.errors import PlaybookError

Loc = Sequence[str | int]

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 20_000
MAX_ALIASES = 64
MAX_DIGITS = 18  # fits a signed 64-bit integer, which is what a database column or JSON reader can hold

# libyaml parses a full megabyte in well under a second; the pure Python parser needs many.
_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True, slots=True)
class Document:
    """A file's data with the lines (from 1) of its keys and list items, and of the first character of its texts."""

    file: str
    data: dict[str, Any]
    lines: dict[tuple[str | int, ...], int] = field(repr=False)
    texts: dict[tuple[str | int, ...], int] = field(repr=False)

    def known(self, loc: Loc) -> tuple[str | int, ...]:
        """`loc` without the parts that the file does not have, such as keys that a shorthand left out."""
        found: tuple[str | int, ...] = ()
        for part in loc:
            if (*found, part) in self.lines:
                found = (*found, part)
        return found

    def error(self, loc: Loc, message: str, *, hint: str | None = None, text_line: int | None = None) -> PlaybookError:
        """An error at `loc`; `text_line` counts from 1 within the text that stands there, for templates."""
        found = self.known(loc)
        line = self.lines.get(found)
        if text_line is not None and found in self.texts:
            line = self.texts[found] + text_line - 1
        return PlaybookError(message, file=self.file, line=line, hint=hint)


def read(path: Path) -> Document:
    """The document in `path`. Raises `PlaybookError` for a file that cannot be read or is no single YAML mapping."""
    file = str(path)
    try:
        # One byte more than allowed is enough to know, whatever the size that a device or a pipe reports.
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise PlaybookError(f"cannot be read: {error.strerror or error}", file=file) from error
    if len(raw) > MAX_BYTES:
        raise PlaybookError(
            f"is larger than {MAX_BYTES >> 10} KiB, too large for a playbook",
            file=file,
            hint="data and scripts belong in the payload folder beside the playbook",
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"is no UTF-8 text: byte `0x{raw[error.start]:02x}` at offset {error.start}"
        raise PlaybookError(message, file=file, line=line, hint="save the file as UTF-8") from error
    return _Reader(file, text).document()


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


class _Reader:
    """Builds the data from the parser's events, so that a bound is met before anything large is built."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.events: Iterator[Any] = yaml.parse(text, Loader=_Loader)
        self.lines: dict[tuple[str | int, ...], int] = {}
        self.texts: dict[tuple[str | int, ...], int] = {}
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.values = 0
        self.aliases = 0

    def document(self) -> Document:
        try:
            next(self.events)  # the start of the stream
            if isinstance(next(self.events), yaml.StreamEndEvent):
                raise PlaybookError("is empty", file=self.file, hint="a playbook has a `name` and `steps`")
            start = next(self.events)
            data = self._value(start, ())
            next(self.events)  # the end of the document
            after = next(self.events)
        except yaml.MarkedYAMLError as error:
            raise self._syntax(error) from error
        except yaml.reader.ReaderError as error:
            line = self.text.count("\n", 0, error.position) + 1
            message = f"holds a character that YAML does not allow, at offset {error.position}"
            raise PlaybookError(message, file=self.file, line=line, hint="remove control characters") from error
        if not isinstance(after, yaml.StreamEndEvent):
            raise self._error(after, "a second document begins here", hint="a playbook is one document: remove `---`")
        if not isinstance(data, dict):
            raise self._error(start, "is no mapping", hint="a playbook begins with `name:` and has `steps:`")
        return Document(self.file, data, self.lines, self.texts)

    def _value(self, event: Any, loc: tuple[str | int, ...]) -> Any:
        before = self.values
        self._count(event, 1, loc)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, loc)
        if event.tag is not None:
            raise self._error(event, f"the tag `{event.tag}` is not understood", hint="quote the value to make it text")
        value: Any
        if isinstance(event, yaml.ScalarEvent):
            # The text of a block scalar begins on the line after its `|` or `>`.
            self.texts[loc] = _line(event) + (event.style in ("|", ">"))
            value = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(loc)
        else:
            value = self._mapping(event, loc)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, self.values - before)
        return value

    def _count(self, event: Any, values: int, loc: tuple[str | int, ...]) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            raise self._error(
                event, f"more than {MAX_VALUES} values, aliases included", hint="a playbook of this size is a mistake"
            )
        if len(loc) > MAX_DEPTH:
            raise self._error(event, f"nested more than {MAX_DEPTH} levels deep", hint="see where a bracket is missing")

    def _alias(self, event: Any, loc: tuple[str | int, ...]) -> Any:
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise self._error(event, f"more than {MAX_ALIASES} aliases", hint="use `params` or `for_each` to repeat")
        if event.anchor not in self.anchors:
            message = f"`*{event.anchor}` names no anchor that is complete at this point"
            raise self._error(event, message, hint="quote the value if it is text that begins with `*`")
        value, size = self.anchors[event.anchor]
        self._count(event, size, loc)
        return value

    def _sequence(self, loc: tuple[str | int, ...]) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            here = (*loc, len(items))
            self.lines[here] = _line(event)
            items.append(self._value(event, here))
        return items

    def _mapping(self, start: Any, loc: tuple[str | int, ...]) -> dict[str, Any]:
        items: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._key(event, start)
            here = (*loc, key)
            if key in items:
                first = self.lines[here]
                raise self._error(event, f"`{key}` stands here twice, first on line {first}", hint="remove one of them")
            self.lines[here] = _line(event)
            items[key] = self._value(next(self.events), here)
        return items

    def _key(self, event: Any, start: Any) -> str:
        if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
            if self.text.startswith("{{", start.start_mark.index):
                raise self._error(start, "a value that begins with `{{` must be quoted", hint='write "{{ name }}"')
            raise self._error(event, "a key must be plain text")
        key = self._scalar(event)
        if key == "<<":
            raise self._error(event, "the merge key `<<` is not supported", hint="write the keys out")
        if not isinstance(key, str):
            raise self._error(event, f"the key `{event.value}` is no text", hint=f'quote it: "{event.value}"')
        return key

    def _scalar(self, event: Any) -> str | int | float | bool | None:
        text: str = event.value
        if not event.implicit[0]:
            return text
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if _INTEGER.fullmatch(text):
            if len(text.lstrip("+-0")) > MAX_DIGITS:
                raise self._error(event, f"a number of {len(text)} digits", hint="quote it if it is text")
            return int(text, 0 if text[:2] in ("0x", "0o") else 10)
        if _FLOAT.fullmatch(text):
            number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            if not math.isfinite(number):
                raise self._error(event, f"`{text[:40]}` is no finite number", hint="quote it if it is text")
            return number
        return text

    def _error(self, event: Any, message: str, *, hint: str | None = None) -> PlaybookError:
        return PlaybookError(message, file=self.file, line=_line(event), hint=hint)

    def _syntax(self, error: yaml.MarkedYAMLError) -> PlaybookError:
        index: int = error.problem_mark.line if error.problem_mark else 0
        lines = self.text.splitlines()
        line = lines[index] if index < len(lines) else ""
        problem = error.problem or error.context or "cannot be parsed"
        hint = "see whether a quote, a bracket or a colon is missing on this line or the one before"
        if "\t" in line[: len(line) - len(line.lstrip())]:
            problem, hint = "a tab in the indentation", "YAML is indented with spaces"
        elif re.search(r"[:-]\s+\{\{", line):
            problem, hint = "a value that begins with `{{` must be quoted", 'write "{{ name }} ..."'
        elif problem.startswith("mapping values"):
            problem, hint = "a second `: ` on this line", "quote a text that holds `: `, or write it below a `|`"
        elif re.search(r"[:-]\s+[@`%]", line):
            problem, hint = "a value that begins with `@`, `%` or a backtick must be quoted", 'write "..." around it'
        return PlaybookError(f"is no valid YAML: {problem}", file=self.file, line=index + 1, hint=hint)
