"""Tells whoever looks on what a conversation is doing, as far as they want to know.

    tell = Tell(face)
    tell("text", call, delta)       # calls face.text(call, delta) if there is such a method

The methods that a face may have are listed in docs/agent.md. They are called on the event loop and must not block.
"""

from __future__ import annotations

from typing import Any


class Tell:
    """`watcher` is any object, or `None`."""

    def __init__(self, watcher: object | None) -> None:
        self._watcher = watcher

    def __call__(self, what: str, *details: Any) -> None:
        method = getattr(self._watcher, what, None)
        if method is not None:
            method(*details)
