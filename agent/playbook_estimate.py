"""What a playbook will take, by its own word: the command of its key `estimate`, run here with the payload beside it.

It is the only command that a dry run starts. It runs on this machine in a folder of its own that is removed afterwards,
so it can say what the payload knows without a host: sizes and times, not what is on the host's disks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from agent.templates import render
from state.specs import Plan

TIMEOUT_S = 60


def estimate(plan: Plan) -> str | None:
    """What the command says, or why it said nothing; `None` when the playbook has none."""
    if plan.estimate is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        if plan.payload and plan.package:
            (Path(folder) / plan.package).symlink_to(plan.payload, target_is_directory=True)
        context = {**plan.params, "params": plan.params, "playbook": plan.name, "python": sys.executable}
        command = render(plan.estimate, {**context, "workdir": str(work)}, what="`estimate`")
        environment = {**os.environ, "PYTHONPATH": folder, "TURNOUT_OUTPUT": f"{folder}/output.json"}
        try:
            done = subprocess.run(
                ["bash", "-c", command], cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                text=True, errors="replace", timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"`{command}` said nothing within {TIMEOUT_S} s"
    told = done.stdout.strip()
    return told if done.returncode == 0 else f"{told}\n{done.stderr.strip()}".strip()
