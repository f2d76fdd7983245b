"""Keeps what a page holds small: long texts become head, tail and the exact number of characters between them.

Pure. The whole stays in the log; a page says how much it left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MAX_DEPTH = 8
MAX_ITEMS = 200


def fold(text: str, most: int) -> str:
    """`text`, or its beginning and end with a line between them that says how much is not there."""
    if len(text) <= most:
        return text
    head, tail = most * 2 // 3, most // 3
    return (
        f"{text[:head]}\n… {len(text) - head - tail:,} of {len(text):,} characters are left out here …\n{text[-tail:]}"
    )


def fold_tree(value: Any, most: int, depth: int = 0) -> Any:
    """The same JSON value with its long texts folded, long lists cut, and nothing deeper than `MAX_DEPTH`."""
    if isinstance(value, str):
        return fold(value, most)
    if isinstance(value, Mapping):
        if depth >= MAX_DEPTH:
            return f"… {len(value)} keys …"
        kept = {str(k): fold_tree(v, most, depth + 1) for k, v in list(value.items())[:MAX_ITEMS]}
        return kept | ({"…": f"{len(value) - MAX_ITEMS} more keys"} if len(value) > MAX_ITEMS else {})
    if isinstance(value, (list, tuple)):
        if depth >= MAX_DEPTH:
            return f"… {len(value)} items …"
        kept_items = [fold_tree(v, most, depth + 1) for v in value[:MAX_ITEMS]]
        return kept_items + ([f"… {len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else [])
    return value


def lengths(value: Any) -> Iterator[int]:
    """The length of every text in a JSON value: what there is to fold."""
    if isinstance(value, str):
        yield len(value)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from lengths(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from lengths(inner)
