"""SGLang into a virtual environment of its own; does nothing where it is there already.

python3 -m vllm_to_sglang.install --version 0.5.14 --venv ~/.turnout/engines/sglang-0.5.14 [--wheelhouse FOLDER]
python3 -m vllm_to_sglang.install --python /opt/sglang/bin/python3      # one that is there: only looked at

The disk is looked at before anything is written. An install that was interrupted goes on: pip does what is missing, and
the environment counts as whole only once its marker is written.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .common import StepError, main, result, write

NEED_GIB = 16.0
"""SGLang with torch, its CUDA libraries and kernels takes about 11 GiB, and pip as much again for a while."""
_ASK = "import importlib.metadata as m; print(m.version('sglang'))"


def version_of(python: str) -> str | None:
    """The version of SGLang that an interpreter has."""
    try:
        done = subprocess.run([python, "-c", _ASK], capture_output=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode().strip() if done.returncode == 0 else None


def check_disk(folder: Path, need_gib: float) -> float:
    """Free GiB where `folder` is to be. Raises StepError when that is too little."""
    there = next(place for place in [folder, *folder.parents] if place.exists())
    free = shutil.disk_usage(there).free / (1 << 30)
    if free < need_gib:
        raise StepError(
            f"`{there}` has {free:.1f} GiB free, and SGLang needs {need_gib:.1f}: "
            "make room, or give a folder on a larger disk with `--set venv=`"
        )
    return free


def install(given: argparse.Namespace) -> int:
    """Make the environment; the result names its interpreter."""
    if given.python:
        found = version_of(given.python)
        if found is None:
            raise StepError(f"`{given.python}` has no SGLang that can be read: give another, or none to install one")
        result({"python": given.python, "version": found, "installed": False})
        return 0
    venv = Path(os.path.expanduser(given.venv))
    python, marker = venv / "bin" / "python3", venv / ".turnout-whole"
    if marker.exists() and version_of(str(python)) == given.version:
        result({"python": str(python), "version": given.version, "installed": False})
        return 0
    free = check_disk(venv, given.need_gib)
    print(f"{free:.1f} GiB are free; installing SGLang {given.version} into {venv}", flush=True)
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(venv)])
    source = ["--no-index", "--find-links", os.path.expanduser(given.wheelhouse)] if given.wheelhouse else []
    _run([str(python), "-m", "pip", "install", "--disable-pip-version-check", *source, f"sglang=={given.version}"])
    seen = version_of(str(python))
    if seen != given.version:
        raise StepError(f"after the install `{python}` has SGLang {seen}, not {given.version}")
    write(marker, given.version)
    result({"python": str(python), "version": given.version, "installed": True})
    return 0


def _run(words: list[str]) -> None:
    print("$ " + " ".join(words), flush=True)
    code = subprocess.call(words, stdin=subprocess.DEVNULL)
    if code:
        raise StepError(f"`{' '.join(words[:6])} ...` ended with exit code {code}: the lines above say why")


def arguments() -> argparse.Namespace:
    """What it takes."""
    parser = argparse.ArgumentParser(prog="install")
    parser.add_argument("--version", default="0.5.14")
    parser.add_argument("--venv", default="")
    parser.add_argument("--wheelhouse", default="")
    parser.add_argument("--python", default="")
    parser.add_argument("--need-gib", type=float, default=NEED_GIB)
    return parser.parse_args()


if __name__ == "__main__":
    main(lambda: install(arguments()))
