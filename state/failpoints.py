"""Named places where a process may be killed, to prove that nothing is lost there.

Every commit and every effect has one before and one after it. `TURNOUT_FAILPOINT=NAME` or `NAME#3` kills this process
with SIGKILL the first or third time it gets there; `TURNOUT_FAILPOINT_TRACE=FILE` writes each one reached to a file, a
line each, which is how the crash matrix learns where to kill. Without these variables a failpoint is one look-up.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable

from state.changes import Change

_target = os.environ.get("TURNOUT_FAILPOINT")
_trace = os.environ.get("TURNOUT_FAILPOINT_TRACE")
_hits: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Die here, if the environment says so."""
    if _target is None and _trace is None:
        return
    _hits[name] += 1
    label = f"{name}#{_hits[name]}"
    if _trace is not None:
        with open(_trace, "a", encoding="utf-8") as file:
            file.write(label + "\n")
    if _target == label or (_target == name and _hits[name] == 1):
        os.kill(os.getpid(), signal.SIGKILL)


def failpoints(place: str, changes: Iterable[Change]) -> None:
    """One failpoint for each fact that is being committed, named after it: the same in every run of a playbook."""
    if _target is None and _trace is None:
        return
    for change in changes:
        p = change.payload
        about = p.get("id") or p.get("todo") or p.get("name") or p.get("src") or ""
        what = p.get("now") or p.get("state") or p.get("status") or ""
        failpoint(f"{place}:{change.kind}:{str(about).partition('.')[2] or about}:{what}")
