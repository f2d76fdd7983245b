"""A second start of a server that failed to come up, with the one change that its log asks for.

    - {id: again, tool: adjusted_plan, args: {host: gpu1, job: serve, plan: "{{ todos.plan }}"}}

The remedies of `tools.serving.logs` say `LOWER --flag from 0.9 to 0.85` or `RAISE --flag`; that is read here and done
to the command. A failure whose remedy asks for anything else is told, and left to the operator: guessing at flags is
how one ends with a server that starts and is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from state.errors import ToolError
from tools.base import ToolCall, tool
from tools.diagnose import diagnose
from tools.serving.moving import launched, without
from tools.serving.operate import TAIL_BYTES, newest_job, value_of

STEP = 0.05
"""A fraction is moved by this much where the log names no value."""
DEFAULTS = {"--mem-fraction-static": 0.88, "--gpu-memory-utilization": 0.9}
BOUNDS = (0.1, 0.95)
_CHANGE = re.compile(
    r"(?P<way>LOWER|RAISE) (?:the memory fraction \(.*?SGLang )?(?P<flag>--[a-z][\w-]*)"
    r"(?: \(now (?P<now>[\d.]+)\))?(?: from (?P<was>[\d.]+))?(?: to (?:at most )?(?P<to>\d+(?:\.\d+)?))?"
    r"(?: by (?P<by>\d+(?:\.\d+)?))?"
)


@dataclass(frozen=True, slots=True)
class Change:
    """One flag and its new value."""

    flag: str
    value: str
    was: str | None

    def __str__(self) -> str:
        return f"{self.flag} from {self.was or 'its default'} to {self.value}"


@tool
async def adjusted_plan(call: ToolCall) -> dict[str, Any]:
    """`plan` with the change that the log of `job` asks for; adds `changed`, `kind` and `remedy`.

    Raises ToolError, with the cause and its remedy, when the log asks for something else.
    """
    host, plan = await call.host(str(call.arg("host"))), call.arg("plan")
    job = await newest_job(host, call, str(call.arg("job")))
    piece = await host.read_log(job, -TAIL_BYTES, TAIL_BYTES)
    found = diagnose(piece.data, source=job)
    change = change_for(found.remedy or "", plan["argv"])
    if change is None:
        told = found.remedy or "its log names no cause"
        raise ToolError(f"{found.kind or 'the server ended'}: {told}", hint=f"`turnout logs {job}` shows the log")
    argv = applied(plan["argv"], change)
    again = launched(argv, plan["env"], plan["url"])
    return {**again, "changed": str(change), "kind": found.kind, "remedy": found.remedy}


def change_for(remedy: str, argv: Sequence[str]) -> Change | None:
    """The first change of a flag that a remedy asks for, with its value; `None` when it asks for none."""
    found = _CHANGE.search(remedy)
    if found is None:
        return None
    flag = found["flag"]
    given = value_of(list(argv), flag) or found["was"] or found["now"]
    if found["to"]:
        return Change(flag, found["to"].rstrip("."), given)
    number = _number(given) if given else DEFAULTS.get(flag)
    if number is None:
        return None
    down = found["way"] == "LOWER"
    if number < 1:
        moved = number + (-1 if down else 1) * float(found["by"] or STEP)
        value = f"{min(max(moved, BOUNDS[0]), BOUNDS[1]):.2f}"
    else:
        value = str(max(1, int(number // 2 if down else number * 2)))
    return None if _number(value) == number else Change(flag, value, given)


def applied(argv: Sequence[str], change: Change) -> list[str]:
    """The command line with the flag set."""
    return [*without(argv, (change.flag,)), change.flag, change.value]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
