"""A stand-in for systemctl: units are files of a folder, `Restart=always` starts again what ends by itself.

STANDIN_SYSTEMD=folder python3 standin_systemctl.py start vllm.service
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ.get("STANDIN_SYSTEMD", "."))


def setting(unit: str, name: str) -> str:
    found = re.search(rf"^{name}=(.*)$", (FOLDER / unit).read_text(), re.MULTILINE)
    return found[1] if found else ""


def pid_of(unit: str) -> int:
    try:
        pid = int((FOLDER / f"{unit}.pid").read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return 0
    return pid


def supervise(unit: str) -> None:
    """Run the unit's command, again and again if it is to be."""
    (FOLDER / f"{unit}.stop").unlink(missing_ok=True)
    while not (FOLDER / f"{unit}.stop").exists():
        process = subprocess.Popen(["/bin/sh", "-c", "exec " + setting(unit, "ExecStart")])
        (FOLDER / f"{unit}.pid").write_text(str(process.pid))
        if process.wait() == 0 and setting(unit, "Restart") != "always":
            break
    (FOLDER / f"{unit}.pid").unlink()


def start(unit: str) -> None:
    if pid_of(unit):
        return
    with open(FOLDER / f"{unit}.log", "ab") as log:
        command = [sys.executable, __file__, "supervise", unit]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    while not pid_of(unit):
        time.sleep(0.02)


def stop(unit: str) -> None:
    (FOLDER / f"{unit}.stop").touch()
    while pid := pid_of(unit):
        try:
            os.kill(pid, 15)
        except ProcessLookupError:
            break
        time.sleep(0.05)


def main(words: list[str]) -> int:
    words = [word for word in words if word != "--user"]
    verb, units = words[0], [word for word in words[1:] if word.endswith(".service")]
    for unit in units:
        if not (FOLDER / unit).exists():
            print(f"Unit {unit} not found.", file=sys.stderr)
            return 5
        if verb == "show":
            name = words[words.index("-p") + 1]
            told = {"MainPID": str(pid_of(unit)), "FragmentPath": str(FOLDER / unit)}
            print(told[name] if name in told else setting(unit, name))
        elif verb in ("start", "stop", "supervise"):
            {"start": start, "stop": stop, "supervise": supervise}[verb](unit)
        elif verb == "enable":
            (FOLDER / f"{unit}.enabled").touch()
        elif verb == "disable":
            (FOLDER / f"{unit}.enabled").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
