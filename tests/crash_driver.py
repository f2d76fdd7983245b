"""Runs `turnout` many times without importing it many times: a process that forks one child for each command.

    python tests/crash_driver.py      # reads a JSON object a line: argv, env, out, err; answers with the exit status

The child is a real process with its own pid, which a failpoint kills with a real SIGKILL; only its imports are shared.
A status below 0 is the signal that ended it, as in `subprocess`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import agent.cli_run
import agent.runner  # noqa: F401
import tools.local  # noqa: F401
from agent.__main__ import main
from state import failpoints


def child(request: dict[str, Any]) -> None:
    """Become the command: its own output, environment and failpoint."""
    os.environ.update(request["env"])
    failpoints._target = request["env"].get("TURNOUT_FAILPOINT")
    failpoints._trace = request["env"].get("TURNOUT_FAILPOINT_TRACE")
    for number, target in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    sys.argv = ["turnout", *request["argv"]]
    main()


def serve() -> None:
    """One command after the other."""
    for line in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                child(json.loads(line))
                code = 0
            except SystemExit as leaving:
                code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
