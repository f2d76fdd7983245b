"""The frames both halves speak over one channel.

A frame is two big-endian 32-bit lengths, then a JSON header of the first length, then raw bytes of the second. A
request has `id` and `op`; an answer repeats `id`, with `more` true on all frames but the last; an `events` header
answers nothing. Nothing here reads or writes: `encode` gives bytes, `Decoder` takes them as they come.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Dict, Tuple

# Both halves travel together by content hash, so this changes only when a frame's layout does.
PROTOCOL = 1
MAX_HEADER = 64 << 20
MAX_BODY = 16 << 20
CHUNK = 256 << 10
_GROUP = 4 << 20
_LENGTHS = struct.Struct(">II")

Frame = Tuple[Dict[str, Any], bytes]


def groups(values: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """States or events in groups that fit into a frame each: the result that a job wrote may have a megabyte."""
    found: list[list[dict[str, Any]]] = []
    size = _GROUP
    for value in values:
        own = len(json.dumps(value)) if "output" in value or "output" in value.get("state", ()) else 1000
        if size + own > _GROUP:
            found.append([])
            size = 0
        found[-1].append(value)
        size += own
    return found


class WireError(ValueError):
    """Bytes that are no frame: the two halves have lost step, and the channel is of no more use."""


def encode(header: dict[str, Any], body: bytes = b"") -> bytes:
    """One frame. Text is escaped to ASCII, so file names that are no UTF-8 (lone surrogates) pass unharmed."""
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    if len(text) > MAX_HEADER or len(body) > MAX_BODY:
        raise WireError(f"a frame of `{len(text)}` + `{len(body)}` bytes is too large to send")
    return _LENGTHS.pack(len(text), len(body)) + text + body


class Decoder:
    """Bytes in, frames out; keeps what is incomplete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Raises WireError on lengths or headers that cannot be."""
        self._buffer += data
        frames = []
        start = 0
        while len(self._buffer) - start >= _LENGTHS.size:
            head, body = _LENGTHS.unpack_from(self._buffer, start)
            if head > MAX_HEADER or body > MAX_BODY:
                raise WireError(f"the channel announced a frame of `{head}` + `{body}` bytes")
            middle = start + _LENGTHS.size + head
            if len(self._buffer) < middle + body:
                break
            try:
                header = json.loads(self._buffer[start + _LENGTHS.size : middle])
            except (ValueError, RecursionError) as error:
                raise WireError("a frame's header is no JSON") from error
            if not isinstance(header, dict):
                raise WireError("a frame's header is no JSON object")
            frames.append((header, bytes(self._buffer[middle : middle + body])))
            start = middle + body
        del self._buffer[:start]
        return frames
