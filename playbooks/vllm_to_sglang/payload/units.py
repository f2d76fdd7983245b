"""SGLang and the router start at boot from now on, and the old unit does not: for a server that systemd ran.

python3 -m vllm_to_sglang.units --port 8000 --new-port 30000 --unit vllm.service --unit-file FILE --serve sglang.sh

Two units are written and enabled, not started: both run already, as jobs. The way back takes them out again. Without
the rights to do this the step fails and says what to type; nothing that serves is touched either way.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from .common import StepError, home, main, result, write

UNIT = """[Unit]
Description={what}
After=network-online.target
Wants=network-online.target

[Service]
{user}WorkingDirectory={folder}
ExecStart=/bin/sh {script}
Restart=on-failure
RestartSec=5
TimeoutStartSec=infinity
TimeoutStopSec=120
LimitNOFILE=1048576

[Install]
WantedBy={target}
"""


def folder_of(unit_file: str, user: bool) -> Path:
    """Where units of the operator's own go; beside the old one, unless that is the distribution's."""
    beside = Path(unit_file).parent
    if unit_file and not str(beside).startswith(("/usr/", "/lib/")):
        return beside
    return Path("~/.config/systemd/user").expanduser() if user else Path("/etc/systemd/system")


def install(given: argparse.Namespace) -> int:
    """Write the units, enable them, disable the old one."""
    place, kept = folder_of(given.unit_file, given.user_unit), home(given.port)
    router = (
        f"TURNOUT_ROOT={shlex.quote(str(kept.parent.parent))} PYTHONPATH={shlex.quote(str(kept / 'code'))} "
        f"exec {shlex.quote(sys.executable)} -m vllm_to_sglang.router --port {given.port} --to {given.new_port} "
        f"--state {shlex.quote(str(kept / 'router.json'))}\n"
    )
    shutil.copyfile(given.serve, kept / "sglang.sh")
    write(kept / "router.sh", router, 0o700)
    names = [f"sglang-{given.port}.service", f"turnout-router-{given.port}.service"]
    whats = (f"SGLang, for port {given.port}", f"Passes port {given.port} on to SGLang")
    user = "" if given.user_unit else f"User={pwd.getpwuid(os.geteuid()).pw_name}\n"
    target = "default.target" if given.user_unit else "multi-user.target"
    try:
        for name, what, script in zip(names, whats, ("sglang.sh", "router.sh")):  # noqa: B905 - Python 3.8
            text = UNIT.format(what=what, user=user, folder=kept, script=kept / script, target=target)
            write(place / name, text)
        systemctl(given.user_unit, "daemon-reload")
        systemctl(given.user_unit, "disable", given.unit)
        systemctl(given.user_unit, "enable", *names)
    except OSError as error:
        raise StepError(f"`{place}` cannot be written: {error}; the units' scripts lie in `{kept}`") from error
    write(kept / "units.json", json.dumps({"units": names, "folder": str(place), "user_unit": given.user_unit}))
    result({"units": names, "folder": str(place), "disabled": given.unit})
    return 0


def remove(kept: Path, unit: str) -> bool:
    """Take the units out again and enable the old one; for the way back. Nothing where none were written."""
    told = kept / "units.json"
    if not told.exists():
        return False
    found = json.loads(told.read_text(encoding="utf-8"))
    systemctl(found["user_unit"], "disable", *found["units"])
    for name in found["units"]:
        (Path(found["folder"]) / name).unlink()
    systemctl(found["user_unit"], "daemon-reload")
    systemctl(found["user_unit"], "enable", unit)
    told.unlink()
    return True


def systemctl(user: bool, *words: str) -> None:
    """Run systemctl. Raises StepError with what to type."""
    command = ["systemctl", *(["--user"] if user else []), *words]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise StepError(f"`{' '.join(command)}` failed: {said}; run it by hand with the rights it needs")


def arguments() -> argparse.Namespace:
    """What it takes."""
    parser = argparse.ArgumentParser(prog="units")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--new-port", type=int, required=True)
    parser.add_argument("--unit", required=True)
    parser.add_argument("--unit-file", default="")
    parser.add_argument("--user-unit", action="store_true")
    parser.add_argument("--serve", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main(lambda: install(arguments()))
