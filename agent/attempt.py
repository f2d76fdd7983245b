"""One attempt at a job todo: its id and what is sent to the host.

Both are computed from the stored state alone, so that whoever computes them again gets the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from agent.state import SessionState
from agent.templates import render_tree
from state.errors import UsageError
from tools.jobs import sbatch_options

MAX_TODO_IN_JOB_ID = 80


def job_id(session: str, todo: str, attempt: int) -> str:
    """The id of one attempt: the same for the same attempt, whoever computes it, and fit for a directory's name."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", todo)[:MAX_TODO_IN_JOB_ID]
    if safe != todo:  # two todos must not meet in one name
        safe += "-" + hashlib.sha256(todo.encode()).hexdigest()[:8]
    return f"{session}.{safe}.{attempt}"


def job_spec(
    todo: str, body: Mapping[str, Any], context: Mapping[str, Any], state: SessionState, gpus: list[int]
) -> dict[str, Any]:
    """The body of a job todo, rendered into what is sent to the host: the fields of `tools.jobs.JobSpec` but its id."""

    def filled(value: Any) -> Any:
        return value if body.get("literal") else render_tree(value, context)

    env = {str(k): str(v) for k, v in filled(body.get("env") or {}).items()}
    if gpus:
        env.setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, gpus)))
    cwd = body.get("cwd")
    spec = {
        "run": state.prelude(todo, stay=bool(cwd)) + str(filled(body["run"])),
        "cwd": str(filled(cwd)) if cwd else None,
        "env": {"PYTHONUNBUFFERED": "1", "TURNOUT_SESSION": state.session, **env},
        "timeout_s": body.get("timeout_s"),
        "grace_s": body.get("grace_s") or 10.0,
        "ready": filled(body["ready"]) if body.get("ready") else None,
    }
    info = state.todos[todo]
    if info.host and state.host(info.host).slurm:
        options = sbatch_options(str(filled(body.get("sbatch") or "")))
        spec["slurm"] = {"gpus": _number(info.gpus), "options": list(options)}
    return spec


def _number(gpus: int | str) -> int:
    if gpus == "all":
        raise UsageError("`gpus: all` on a login node of Slurm says nothing", hint="give the number of GPUs to ask for")
    return int(gpus)
