"""Puts a page together: the data squeezed, the style and the script within, and a policy that allows nothing else.

The data is deflated and written as base64: it cannot end a script element, whatever a host wrote, and a day's session
fits into two megabytes. Browsers inflate it themselves (`DecompressionStream`). When it would still be too large, texts
are folded more and more.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import zlib
from functools import cache
from importlib.resources import files
from typing import Any

import orjson

from agent.page.fold import lengths
from agent.page.model import MAX_TEXT, Logs, model
from agent.replay import Recording

LIMIT = 1_900_000
"""Bytes of a page that may be data, style and script together."""
LADDER = (MAX_TEXT, 2_000, 600, 200, 60, 0)
"""How much of each text is kept, tried one after the other; with 0 only what fits on a line is."""
SQUEEZED = 4
"""Characters of text to a byte of a page that could still fit: what is plainly too much is not tried."""
SCRIPTS = (
    "tools",
    "data",
    "markdown",
    "summary",
    "scale",
    "spans",
    "lanes",
    "graph",
    "messages",
    "log",
    "plots",
    "detail",
    "player",
    "main",
)


def page(recording: Recording, *, logs: Logs | None = None, limit: int = LIMIT) -> str:
    """The page of a recording, of at most `limit` bytes if folding can bring it there."""
    rungs = [most for most in LADDER if _weight(recording, most) <= limit * SQUEEZED] or [LADDER[-1]]
    for most in rungs:
        made = assemble(model(recording, most=most, logs=logs), recording.title)
        if len(made) <= limit:
            break
    return made


def _weight(recording: Recording, most: int) -> int:
    """About how many characters its texts have when each is folded to `most`."""
    own = sum(min(length, most) for entry in recording.entries for length in lengths(entry.payload))
    return own + sum(_weight(child, most) for child in recording.children)


def squeeze(data: Any) -> bytes:
    """JSON, deflated without a header as `DecompressionStream("deflate-raw")` takes it."""
    try:
        text = orjson.dumps(data, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # half of a surrogate pair, which no page can hold
        text = orjson.dumps(_whole(data), default=str, option=orjson.OPT_NON_STR_KEYS)
    squeezer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return squeezer.compress(text) + squeezer.flush()


def _whole(value: Any) -> Any:
    """The same value, with a question mark for each half of a character."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_whole(key): _whole(inner) for key, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def assemble(data: Any, title: str, *, live: bool = False) -> str:
    """The page with this data. A `live` one asks the server that sent it for more and has its policy from there."""
    script = _script()
    policy = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy_of("none"))}">'
    parts = {
        "policy": "" if live else policy,
        "title": html.escape(f"{title} · Turnout"),
        "style": _text("page.css"),
        "data": base64.b64encode(squeeze(data)).decode("ascii"),
        "script": script,
    }
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: parts[match[1]], _text("page.html"))


def policy_of(connect: str) -> str:
    """The Content-Security-Policy: this script and style, no picture, no frame, no connection but `connect`."""
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode("ascii")
    allowed = "'none'" if connect == "none" else f"'{connect}'"
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src {allowed}; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _text(name: str) -> str:
    return (files("agent.page") / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    parts = [_text(f"js/{name}.js") for name in SCRIPTS]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "\n})();\n"
