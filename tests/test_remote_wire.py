"""The frames: what goes in comes out, however the bytes are cut, and nonsense is noticed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.remote.wire import MAX_BODY, Decoder, WireError, encode

leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters())
json = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3))
headers = st.dictionaries(st.text(max_size=5), json, max_size=4)


@given(st.lists(st.tuples(headers, st.binary(max_size=300)), max_size=5), st.data())
def test_frames_survive_any_cutting(frames: list[tuple[dict[str, object], bytes]], data: st.DataObject) -> None:
    """Frames come out whole and in order wherever the stream is cut, lone surrogates of file names included."""
    stream = b"".join(encode(header, body) for header, body in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = Decoder()
    out = [f for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) for f in decoder.feed(stream[a:b])]
    assert out == frames


@pytest.mark.parametrize(
    "stream",
    [
        b"Last login: Mon Dec 1",
        struct.pack(">II", 2, MAX_BODY + 1),
        struct.pack(">II", 2, 0) + b"[]",
        struct.pack(">II", 100_000, 0) + b"[" * 100_000,
    ],
)
def test_bytes_that_are_no_frame_end_the_channel(stream: bytes) -> None:
    """A stream that lost step is an error at once, never a wait for gigabytes."""
    with pytest.raises(WireError):
        Decoder().feed(stream)


def test_a_frame_too_large_is_refused_by_its_sender() -> None:
    """The sender finds out, not the receiver."""
    with pytest.raises(WireError, match="too large"):
        encode({}, bytes(MAX_BODY + 1))
