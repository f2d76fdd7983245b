"""A large JSON document in pieces: the values of its outermost object one by one, of its arrays each element.

    for element in elements(path, losses): ...      # `Element`: key, number, value

The document is read once and in order; what is held is one element at a time, so that an export of any size can be
read. A document that is cut gives everything that was whole, and of the last element what was whole within it. What
stands before the first brace (a banner that was captured with the output) is passed over.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from state.foreign.damage import Losses, clean, decode

CHUNK = 1024 * 1024
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]"]', re.DOTALL)
_NEXT_BRACKET = re.compile(rb'[^"{}\[\]]*+(?:"(?:[^"\\]++|\\.)*+"[^"{}\[\]]*+)*+[{}\[\]]', re.DOTALL)
"""Everything up to the next bracket, texts passed over whole: one step where tokens would take many."""
_OPENS, _CLOSES = frozenset(b"{["), frozenset(b"}]")
_CLOSER = {ord("{"): b"}", ord("["): b"]"}
_QUOTE = ord('"')


class Element(NamedTuple):
    """A value of the outermost object, or (with its `number`) of an array in it. `at` is its offset in the file."""

    key: str | None
    number: int | None
    at: int
    value: Any

    def place(self, name: str) -> str:
        within = "" if self.key is None else f" {self.key}"
        return f"{name}{within}" + ("" if self.number is None else f"[{self.number}]") + f", byte {self.at}"


def elements(path: Path, losses: Losses, *, name: str | None = None) -> Iterator[Element]:
    """The elements of the document at `path`. Damage is told in `losses`."""
    with open(path, "rb") as file:
        yield from _Scanner(file, losses, name or path.name).run()


class _Scanner:
    """Finds where elements begin and end, by counting brackets outside of texts."""

    def __init__(self, file: Any, losses: Losses, name: str) -> None:
        self._file, self._losses, self._name = file, losses, name
        self._buffer = b""
        self._base = 0  # offset of the buffer in the file
        self._position = 0  # in the buffer: everything before it is understood
        self._stack: list[int] = []
        self._began: int | None = None  # in the buffer: where the element that is being read begins
        self._key: str | None = None
        self._index = 0
        self._outer = 1  # the depth within the element

    def run(self) -> Iterator[Element]:
        chunk = CHUNK
        size = max(1, os.fstat(self._file.fileno()).st_size)
        while more := self._file.read(chunk):
            self._losses.watch((self._base + len(self._buffer)) / size)
            self._drop()
            before = self._position
            self._buffer += more
            yield from self._scan()
            # A text that is longer than the chunk is looked at again: with twice as much, so that it costs little.
            chunk = CHUNK if self._position > before else chunk * 2
        yield from self._end()

    def _drop(self) -> None:
        """Forget what is understood and no part of the element that is being read."""
        keep = self._position if self._began is None else self._began
        self._buffer = self._buffer[keep:]
        self._base += keep
        self._position -= keep
        if self._began is not None:
            self._began = 0

    def _scan(self) -> Iterator[Element]:
        """Understand as much as is there. What is inside an element is passed over bracket by bracket."""
        while True:
            if self._began is not None:
                if not self._pass_inside():
                    return
                yield from self._close(self._position) or ()
            token = _TOKEN.search(self._buffer, self._position)
            if token is None:
                self._position = len(self._buffer)
                return
            start, end = token.span()
            first = self._buffer[start]
            if first == _QUOTE and end - start == 1:  # not closed within what was read so far
                self._position = start
                return
            self._position = end
            if first == _QUOTE:
                if len(self._stack) == 1:
                    yield from self._text(start, end)
            elif first in _OPENS:
                self._open(first, start)
            else:
                yield from self._close(end) or ()

    def _pass_inside(self) -> bool:
        """Go on to behind the bracket that closes the element. False where that is not there yet."""
        buffer, stack, outer, match = self._buffer, self._stack, self._outer, _NEXT_BRACKET.match
        position = self._position
        while found := match(buffer, position):
            position = found.end()
            bracket = buffer[position - 1]
            if bracket in _OPENS:
                stack.append(bracket)
            elif len(stack) == outer:
                self._position = position
                return True
            else:
                stack.pop()
        self._position = position
        return False

    def _text(self, start: int, end: int) -> Iterator[Element]:
        """A text in the outermost object: a key, or the value of one."""
        if self._stack != [ord("{")]:
            return
        text = self._buffer[start:end]
        if self._key is None or self._buffer[end : end + 16].lstrip()[:1] == b":":
            self._key = str(next(iter(decode(text, Losses(), "")), ""))
        else:
            key, self._key = self._key, None
            for value in decode(text, self._losses, self._name, at=self._base + start):
                yield Element(key, None, self._base + start, clean(value))

    def _open(self, first: int, start: int) -> None:
        self._stack.append(first)
        depth = len(self._stack)
        if self._began is not None:
            return
        if depth == 1:
            self._index = 0
            if first == ord("["):
                return
        elif depth == 2 and first == ord("[") and self._stack[0] == ord("{"):
            self._index = 0  # an array of the outermost object: its elements come one by one
        else:
            self._began, self._outer = start, depth

    def _close(self, end: int) -> list[Element] | None:
        if not self._stack:
            return None
        self._stack.pop()
        depth = len(self._stack)
        in_array = bool(self._stack) and self._stack[-1] == ord("[")
        if self._began is not None and (depth == 1 or (depth == 2 and in_array and self._element_of_array())):
            element = self._element(self._buffer[self._began : end], in_array)
            self._began = None
            if depth == 1 and not in_array:
                self._key = None
            return element
        if depth == 1 and not in_array and self._began is None:
            self._key = None
        return None

    def _element_of_array(self) -> bool:
        return self._stack[0] == ord("{")

    def _element(self, raw: bytes, in_array: bool) -> list[Element]:
        index = self._index if in_array else None
        at = self._base + (self._began or 0)
        self._index += in_array
        place = Element(self._key, index, at, None).place(self._name)
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return [Element(self._key, index, at, v) for v in decode(raw, self._losses, place, at=at)]
        return [Element(self._key, index, at, clean(value) if b"\\u0000" in raw else value)]

    def _end(self) -> Iterator[Element]:
        """What is left when the file ends: nothing, or an element that was cut."""
        if not self._stack:
            return
        at = self._base + (self._began if self._began is not None else self._position)
        in_array = len(self._stack) > 1 and self._stack[1] == ord("[")
        index = self._index if in_array else None
        place = Element(self._key, index, at, None).place(self._name)
        if self._began is None:
            self._losses.add(place, "the file ends here, in the middle of the document")
            return
        raw = self._buffer[self._began :]
        value, used = whole_part(raw)
        self._losses.add(place, f"the file ends inside this element: {used} of its {len(raw)} bytes could be read")
        if value is not None:
            yield Element(self._key, index, at, clean(value))


def whole_part(raw: bytes) -> tuple[Any, int]:
    """What is whole in a JSON value that was cut, and how many of its bytes that is. `None` if it is nothing."""
    stack: list[int] = []
    safe: list[tuple[int, bytes]] = []
    for token in _TOKEN.finditer(raw):
        first = raw[token.start()]
        if first == _QUOTE and token.end() - token.start() == 1:
            break
        if first in _OPENS:
            stack.append(first)
        elif first in _CLOSES and stack:
            stack.pop()
        safe.append((token.end(), b"".join(_CLOSER[opened] for opened in reversed(stack))))
    for end, closers in reversed(safe[-64:]):
        try:
            return orjson.loads(raw[:end] + closers), end
        except orjson.JSONDecodeError:
            continue
    return None, 0
