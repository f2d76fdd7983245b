"""Changing files on hosts, as tools of the graph: whole files, and one text within a file.

Both do the same when they run twice, as every tool must: a file that already is what it should be is left alone.
"""

from __future__ import annotations

import shlex
from typing import Any

from state.errors import ToolError
from tools.base import ToolCall, tool
from tools.shell import clean_text
from tools.ssh import Host

MAX_BYTES = 8 << 20


@tool
async def write_file(call: ToolCall) -> dict[str, Any]:
    """Write `content` to `path` on `host` by rename: `bytes`, `path`. What was there is kept as `*.before`."""
    host, path = await call.host(str(call.arg("host"))), _path(call)
    data = str(call.args.get("content") or "").encode()
    before = await _content(host, path)
    if before == data:
        return {"path": path, "bytes": len(data), "changed": False}
    kept = await _keep(host, path) if before is not None else None
    absolute = await host.put_file(data, path)
    return {"path": absolute, "bytes": len(data), "changed": True, "before": kept}


@tool
async def patch_file(call: ToolCall) -> dict[str, Any]:
    """Replace the text `old`, which must occur once, by `new` in the file `path` on `host`."""
    host, path = await call.host(str(call.arg("host"))), _path(call)
    old, new = str(call.arg("old")).encode(), str(call.args.get("new") or "").encode()
    before = await _content(host, path)
    if before is None:
        raise ToolError(f"there is no file `{path}` on `{host.spec.name}`")
    count = before.count(old)
    if count == 0 and new and before.count(new) == 1:
        return {"path": path, "bytes": len(before), "changed": False}
    if count != 1:
        raise ToolError(f"the text to replace occurs {count} times in `{path}`", hint="give more of what is around it")
    kept = await _keep(host, path)
    data = before.replace(old, new)
    absolute = await host.put_file(data, path)
    return {"path": absolute, "bytes": len(data), "changed": True, "before": kept}


def _path(call: ToolCall) -> str:
    """The path as hosts take it: what is relative starts at the home folder."""
    return str(call.arg("path")).removeprefix("~/")


async def _content(host: Host, path: str) -> bytes | None:
    """A file's bytes; `None` where there is none. Raises `ToolError` for what cannot be read, or is too large."""
    word = shlex.quote(path)
    done = await host.run(f"[ -e {word} ] || exit 3; cat -- {word}", timeout_s=60.0, max_output=MAX_BYTES)
    if done.rc == 3:
        return None
    if not done.ok:
        raise ToolError(f"`{path}` on `{host.spec.name}` cannot be read: {clean_text(done.stderr).strip()}")
    if done.stdout_bytes > MAX_BYTES // 2:
        limit = f"{MAX_BYTES // 2:,}"
        raise ToolError(f"`{path}` has {done.stdout_bytes:,} bytes", hint=f"change files above {limit} bytes by a job")
    return done.stdout


async def _keep(host: Host, path: str) -> str:
    """Keep what is there, and its permissions, beside itself."""
    kept = f"{path}.before"
    done = await host.run(f"cp -p -- {shlex.quote(path)} {shlex.quote(kept)}", timeout_s=60.0)
    if not done.ok:
        raise ToolError(f"`{path}` cannot be kept as `{kept}`: {clean_text(done.stderr).strip()}")
    return kept
