"""The command line: `python3 -m onhost ACTION JSON`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from . import asking, gpus, procs, stopping

ACTIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "describe": procs.describe,
    "holders": procs.holders,
    "stop": stopping.stop,
    "free": gpus.free,
    "token": asking.token,
    "figures": asking.figures,
}


def main() -> int:
    """Do what is asked; the exit code."""
    try:
        action, given = ACTIONS[sys.argv[1]], json.loads(sys.argv[2])
        print(json.dumps(action(given)))
    except procs.Refused as error:
        print(json.dumps({"error": str(error), "hint": error.hint}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
