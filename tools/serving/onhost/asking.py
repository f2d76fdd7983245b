"""HTTP on the loopback: does the server generate, and what do its figures say."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any

# A proxy that the environment names is not on the way to this machine's own servers.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url: str, body: dict[str, Any] | None = None, limit_s: float = 30.0, key: str = "") -> Any:
    """The reply to a GET, or to a POST of JSON: JSON where it is JSON, else text. Raises OSError, ValueError."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    if key:
        request.add_header("Authorization", "Bearer " + key)
    with _OPENER.open(request, timeout=limit_s) as reply:
        text = reply.read().decode("utf-8", "replace")
    try:
        return json.loads(text)
    except ValueError:
        return text


def token(given: dict[str, Any]) -> dict[str, Any]:
    """Ask the server at `url` for one token: `healthy`, `model` and `seconds`; `error` says what came instead."""
    url, began = str(given["url"]), time.monotonic()
    try:
        model = given.get("model") or fetch(url + "/v1/models", limit_s=10)["data"][0]["id"]
        body = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        reply = fetch(url + "/v1/completions", body, float(given.get("limit_s") or 60))
        said = reply["choices"][0]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        # Somebody who answers /health and serves no model is found out here.
        return {"healthy": False, "error": f"{type(error).__name__}: {error}"}
    seconds = round(time.monotonic() - began, 4)
    return {"healthy": said.get("finish_reason") in ("length", "stop"), "model": model, "seconds": seconds}


def figures(given: dict[str, Any]) -> dict[str, Any]:
    """The sums over all labels of those metrics of `url` whose names are in `names`; `error` when there is no page."""
    try:
        page = str(fetch(str(given["url"]) + str(given.get("path") or "/metrics"), limit_s=10))
    except (OSError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"figures": sums(page, given["names"])}


def sums(page: str, names: Iterable[str]) -> dict[str, float]:
    """The sum over all labels of each named metric that a page of Prometheus text has."""
    found = {}
    for name in names:
        values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})?\s+([0-9.eE+-]+)", page, re.MULTILINE)
        if values:
            found[name] = sum(map(float, values))
    return found


def busy(url: str, names: Iterable[str]) -> float | None:
    """Requests that run or wait; nothing when the server does not tell."""
    told = figures({"url": url, "names": list(names)}).get("figures") or {}
    return sum(told.values()) if told else None
