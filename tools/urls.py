"""Addresses that are asked over HTTP: one that cannot be is told when it is given, not when an answer is missing."""

from __future__ import annotations

from urllib.parse import urlsplit


def http_url(text: str) -> str:
    """The text, if it is `http[s]://HOST[:PORT][/PATH]`. Raises `ValueError` with what is wrong with it."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError as error:
        raise ValueError(f"it cannot be asked: {error}") from error
    if parts.scheme not in ("http", "https") or not host or any(letter.isspace() for letter in text):
        raise ValueError("write it like `http://127.0.0.1:30000`")
    return text
