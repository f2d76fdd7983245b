"""JSONL that may be broken: a first pass that finds the records, and reading one of them again by its place.

    lines = Lines(path, losses)
    for record in lines: ...                     # `Record`: its number, line, value
    value = lines.value(record.number)           # again, later, in any order

The file is read in order and never held in memory: the second reading is by offset. It is opened for reading only.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from state.foreign.damage import Losses, clean, decode

WATCHED = 1000
MAX_LINE = 64 * 1024 * 1024
"""A longer line is no record of any of the programs; it is passed over without being held."""


_NUL = b"\\u0000"


class Record(NamedTuple):
    """One record. `number` counts from 0 over the records, `line` from 1 over the lines of the file."""

    number: int
    line: int
    value: dict[str, Any]


class Lines:
    """The records of one file."""

    def __init__(self, path: Path, losses: Losses, *, name: str | None = None, share: float = 1.0) -> None:
        self.path = path
        self.share = share  # of all the work, what this first pass is
        self.name = name or path.name
        self._losses = losses
        self._starts = array("Q")
        self._sizes = array("L")
        self._line_of = array("L")
        self._mended: dict[int, dict[str, Any]] = {}
        self._file = open(path, "rb")  # noqa: SIM115 - it lives as long as this object
        self._size = max(1, os.fstat(self._file.fileno()).st_size)
        self.whole_end = True

    def close(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._starts)

    def place(self, number: int) -> str:
        """The name of a record's place, for people."""
        return f"{self.name} line {self._line_of[number]}"

    def __iter__(self) -> Iterator[Record]:
        """The first pass. Damage is told once, here."""
        for line, start, raw, last in self._raw_lines():
            if line % WATCHED == 0:
                self._losses.watch(self.share * start / self._size)
            place = f"{self.name} line {line}"
            told = len(self._losses.lines) + self._losses.more
            for value in decode(raw, self._losses, place, at=start, last=last):
                if not isinstance(value, dict):
                    self._losses.add(place, f"a {type(value).__name__} and no record")
                    continue
                number = len(self._starts)
                self._starts.append(start)
                self._sizes.append(len(raw))
                self._line_of.append(line)
                if len(self._losses.lines) + self._losses.more != told:
                    self._mended[number] = value
                elif _NUL in raw:
                    value = clean(value)
                yield Record(number, line, value)

    def value(self, number: int) -> dict[str, Any]:
        """A record's value once more."""
        if number in self._mended:
            return self._mended[number]
        raw = os.pread(self._file.fileno(), self._sizes[number], self._starts[number])
        try:
            value: dict[str, Any] = orjson.loads(raw)
        except orjson.JSONDecodeError:  # mended without a loss, such as half a surrogate pair
            return decode(raw, Losses(), "")[0]  # type: ignore[no-any-return]
        return clean(value) if _NUL in raw else value

    def _raw_lines(self) -> Iterator[tuple[int, int, bytes, bool]]:
        """Every line with its number, offset, bytes, and whether the file ends with it without a newline."""
        self._file.seek(0)
        start = 0
        line = 0
        while raw := self._file.readline(MAX_LINE):
            line += 1
            size = len(raw)
            if size == MAX_LINE and not raw.endswith(b"\n"):
                size += self._pass_over()
                self._losses.add(f"{self.name} line {line}, byte {start}", f"{size} bytes in one line: passed over")
                start += size
                continue
            self.whole_end = raw.endswith(b"\n")
            text = raw.removeprefix(b"\xef\xbb\xbf") if start == 0 else raw
            if text.strip():
                yield line, start + size - len(text), text, not self.whole_end
            start += size

    def _pass_over(self) -> int:
        """Read on to the end of the line. Returns how many bytes that were."""
        passed = 0
        while more := self._file.readline(MAX_LINE):
            passed += len(more)
            if more.endswith(b"\n"):
                break
        return passed
