"""The tools that ship with Turnout: looking at a host, reading a job's log, asking whether a server is well."""

from __future__ import annotations

from typing import Any

from tools import evidence, files  # noqa: F401 - registers their tools
from tools.base import ToolCall, tool
from tools.diagnose import diagnose as read_text
from tools.jobs import check_id
from tools.probe import facts
from tools.serving import adjust, moving, operate, research, steps, tune_trials  # noqa: F401 - registers their tools
from tools.serving.flags import on_host  # noqa: F401 - registers its tool

TAIL_BYTES = 256 * 1024


@tool
async def probe(call: ToolCall) -> dict[str, Any]:
    """Everything one round trip can tell of a host: system, disk, Python, GPUs, engines installed and running."""
    host = await call.host(str(call.arg("host")))
    return facts(await host.probe())


@tool
async def diagnose(call: ToolCall) -> dict[str, Any]:
    """What the end of a job's log means: `state`, `kind`, `remedy` and the lines that say so."""
    host, job = await call.host(str(call.arg("host"))), str(call.arg("job"))
    check_id(job)
    piece = await host.read_log(job, -TAIL_BYTES, TAIL_BYTES)
    return read_text(piece.data, source=job).as_json()
