"""What the old server was, kept on the host, and the way back to it.

python3 -m vllm_to_sglang.old record --port 8000 --pid 4711 --new-port 30000 --mode blue-green --kit FOLDER
sh ~/.turnout/migrations/8000/back

The record holds the whole command, folder and environment, and stays on the host, readable by its user alone. The way
back is a script that needs nothing of Turnout: it starts the old server as it was (its unit, its container, or its very
command), waits until it listens, has the router give it the port, and stops the new one. Where both do not fit, the new
one is stopped first.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import units
from .common import StepError, fetch, home, main, read, result, said, write
from .router import listening
from .watch import look

WAIT_S = 1800.0
_NOT_ITS_OWN = ("TURNOUT_", "PYTHONUNBUFFERED")


def record(given: argparse.Namespace) -> int:
    """Keep what the process is, and write the way back. The result tells no secret."""
    folder = home(given.port)
    try:
        argv = Path(f"/proc/{given.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        pairs = Path(f"/proc/{given.pid}/environ").read_bytes().split(b"\0")
        cwd = os.readlink(f"/proc/{given.pid}/cwd")
    except OSError as error:
        raise StepError(f"process {given.pid} cannot be read: {error}: run as its user, or root") from error
    env = dict(os.fsdecode(pair).split("=", 1) for pair in pairs if b"=" in pair)
    env = {name: value for name, value in env.items() if not name.startswith(_NOT_ITS_OWN)}
    kept = {
        "argv": [os.fsdecode(word) for word in argv], "env": env, "cwd": cwd, "port": given.port,
        "pid": given.pid, "form": given.form, "unit": given.unit, "user_unit": given.user_unit,
        "container": given.container, "new_port": given.new_port, "mode": given.mode, "url": given.url,
        "users_url": given.users_url, "back_command": given.back_command, "at": time.time(),
    }  # fmt: skip
    write(folder / "old.json", json.dumps(kept), 0o600)
    key, key_file = key_of(kept["argv"], env), folder / "key"
    if key:
        write(key_file, key, 0o600)
    code = folder / "code"
    shutil.rmtree(code, ignore_errors=True)
    for name, source in (("vllm_to_sglang", Path(__file__).parent), ("onhost", Path(given.kit) / "onhost")):
        shutil.copytree(source, code / name, ignore=shutil.ignore_patterns("__pycache__"))
    words = [sys.executable, "-m", "vllm_to_sglang.old", "back", "--port", str(given.port)]
    base = f"TURNOUT_ROOT={shlex.quote(os.environ['TURNOUT_ROOT'])} " if os.environ.get("TURNOUT_ROOT") else ""
    base += f"TURNOUT_KEY_FILE={shlex.quote(str(key_file))} " if key else ""
    line = f"{base}PYTHONPATH={shlex.quote(str(code))} exec {' '.join(map(shlex.quote, words))}"
    write(folder / "back", f'#!/bin/sh\n# The way back to the old server on port {given.port}.\n{line} "$@"\n', 0o700)
    result(
        {
            "folder": str(folder),
            "key_file": str(key_file) if key else "",
            "back": str(folder / "back"),
            "command": f"sh {folder / 'back'}",
            "record": str(folder / "old.json"),
        }
    )
    return 0


def key_of(argv: list[str], env: dict[str, str]) -> str:
    """The key that the server wants of its clients, from its command or its environment."""
    for place, word in enumerate(argv):
        name, joined, value = word.partition("=")
        if name.replace("_", "-") == "--api-key":
            return value if joined else argv[place + 1]
    return env.get("VLLM_API_KEY", "")


def back(given: argparse.Namespace) -> int:
    """Bring the old server back. Does only what is missing, so it can be run again."""
    folder = home(given.port)
    kept = read(folder / "old.json")
    began = time.monotonic()
    told: dict[str, Any] = {"started": False, "router_released": False, "new_stopped": None}
    if not serving(kept):
        if kept["mode"] != "blue-green":
            told["new_stopped"] = stop_new(kept)
        start(kept, folder)
        told["started"] = True
        wait_for(kept, folder, WAIT_S)
    if kept["form"] == "unit":
        told["units_removed"] = units.remove(folder, kept["unit"])
    told["router_released"] = release(folder / "router.json")
    if kept["back_command"]:
        ports = {"OLD_PORT": str(kept["port"]), "NEW_PORT": str(kept["new_port"])}
        if subprocess.call(["bash", "-c", kept["back_command"]], env={**os.environ, **ports}):
            raise StepError(f"`{kept['back_command']}` failed: point your router to port {kept['port']} by hand")
    model = model_of(kept)
    wrong = look(kept["users_url"] or kept["url"], model)
    if wrong:
        raise StepError(f"the old server listens on port {given.port} and does not generate: {wrong}")
    told["new_stopped"] = told["new_stopped"] or stop_new(kept)
    result({**told, "seconds": round(time.monotonic() - began, 2), "port": given.port})
    return 0


def serving(kept: dict[str, Any]) -> bool:
    """Whether the old server listens on its port (the router does not count)."""
    return bool(owners(kept) & _family(kept))


def owners(kept: dict[str, Any]) -> set[int]:
    """The processes that listen on the port."""
    procs = _onhost("procs")
    return set(procs.owners(int(kept["port"])))


def _family(kept: dict[str, Any]) -> set[int]:
    """Living processes with the old command, and all below them."""
    procs = _onhost("procs")
    table = procs.everyone()
    roots = [one.pid for one in table.values() if one.argv == kept["argv"]]
    return {one.pid for root in roots for one in procs.tree(root, table)}


def _onhost(name: str) -> Any:
    """A module of the kit that lies beside this package in the record's folder."""
    return importlib.import_module(f"onhost.{name}")


def start(kept: dict[str, Any], folder: Path) -> None:
    """Start it the way it was started."""
    if kept["form"] == "unit":
        user = ["--user"] if kept.get("user_unit") else []
        _run(["systemctl", *user, "start", kept["unit"]])
    elif kept["form"] == "container":
        _run(["docker", "start", kept["container"]])
    else:
        with open(folder / "old.log", "ab") as log:
            subprocess.Popen(
                kept["argv"], env=kept["env"], cwd=kept["cwd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip


def _run(words: list[str]) -> None:
    if subprocess.call(words):
        raise StepError(f"`{' '.join(words)}` failed: run it by hand with the rights it needs")


def wait_for(kept: dict[str, Any], folder: Path, limit_s: float) -> None:
    """Until it listens, which engines do only once they can serve."""
    end, seen = time.monotonic() + limit_s, time.monotonic()
    while not serving(kept):
        if _family(kept):
            seen = time.monotonic()
        if time.monotonic() > end or time.monotonic() - seen > 30:
            log = f"; its log is `{folder / 'old.log'}`" if kept["form"] == "process" else ""
            raise StepError(f"the old server did not come up within {limit_s:.0f} s, or ended{log}")
        time.sleep(0.1)


def release(state: Path) -> bool:
    """Have the router give the port back, and wait for its end."""
    if not state.exists():
        return False
    pid = int(read(state).get("pid") or 0)
    try:
        if b"vllm_to_sglang.router" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return False
        os.kill(pid, signal.SIGTERM)
        port, before = int(read(state)["port"]), time.monotonic()
        while len(listening(port)) > 1 and time.monotonic() - before < 30:
            time.sleep(0.05)
    except OSError:
        return False
    return True


def stop_new(kept: dict[str, Any]) -> Any:
    """Stop what listens on the new server's port."""
    asked = {"port": kept["new_port"], "grace_s": 60, "settle_s": 1, "unless_gone": True}
    return _onhost("stopping").stop(asked)["was_running"]


def model_of(kept: dict[str, Any]) -> str:
    """The name under which the old server serves its model."""
    try:
        return str(fetch(f"{kept['url']}/v1/models")["data"][0]["id"])
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise StepError(f"the old server names no model: {said(error)}") from error


def arguments() -> argparse.Namespace:
    """What it takes."""
    parser = argparse.ArgumentParser(prog="old")
    parser.add_argument("action", choices=("record", "back"))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--url", default="")
    parser.add_argument("--pid", type=int, default=0)
    parser.add_argument("--new-port", type=int, default=0)
    parser.add_argument("--mode", default="blue-green")
    parser.add_argument("--kit", default="")
    parser.add_argument("--form", default="process")
    parser.add_argument("--unit", default="")
    parser.add_argument("--user-unit", action="store_true")
    parser.add_argument("--container", default="")
    parser.add_argument("--back-command", default="")
    parser.add_argument("--users-url", default="")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = arguments()
    main(lambda: (record if chosen.action == "record" else back)(chosen))
