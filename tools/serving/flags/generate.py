"""Make the shipped tables from wheels: `python -m tools.serving.flags.generate WHEEL... [--into FOLDER]`.

A wheel's Python sources are unpacked into a scratch folder and the engine's own code is asked for its parser
(`dump.py`), with stand-ins for what is compiled or not installed. It wants the `train` extra and what an engine's
front needs of light packages: msgspec, orjson, fastapi, dill, openai, openai_harmony, einops, pyzmq, cachetools, regex.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from state.errors import TurnoutError
from tools.serving.flags.table import TABLES

DUMP = Path(__file__).with_name("dump.py")
MARK = "TURNOUT-FLAGS "
STAND_INS: tuple[list[str], ...] = ([], ["transformers", "torchvision", "huggingface_hub"])
"""Packages to replace although they are installed, in the order of trying: engines are choosy about their versions."""


def generate(wheel: Path) -> dict[str, Any]:
    """The table of one wheel. Raises `TurnoutError` with the end of what the engine said when it cannot be asked."""
    engine, version = wheel.name.split("-")[:2]
    with tempfile.TemporaryDirectory(prefix="turnout-flags-") as folder:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder, [name for name in packed.namelist() if name.endswith((".py", "METADATA"))])
        said = ""
        for without in STAND_INS:
            done = subprocess.run(
                [sys.executable, str(DUMP), engine, "--stubs", *without],
                env={**os.environ, "PYTHONPATH": folder}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            line = next((line for line in done.stdout.splitlines() if line.startswith(MARK)), None)
            if line is not None:
                table: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return {**table, "version": version}
            said = done.stderr[-2000:]
    raise TurnoutError(f"`{wheel.name}` does not tell its options:\n{said}", hint="install what is missing and repeat")


def write(table: dict[str, Any], folder: Path) -> Path:
    """One option a line, so that two versions can be compared by eye."""
    path = folder / f"{table['engine']}-{table['version']}.json"
    options = ",\n".join(json.dumps(option, ensure_ascii=False) for option in table["options"])
    head = json.dumps({key: table[key] for key in ("engine", "version")})[:-1]
    path.write_text(f'{head}, "options": [\n{options}\n]}}\n', encoding="utf-8")
    return path


def main(arguments: list[str]) -> int:
    """Write a table for each wheel and say where."""
    folder = TABLES
    if "--into" in arguments:
        at = arguments.index("--into")
        folder = Path(arguments[at + 1])
        del arguments[at : at + 2]
    for name in arguments:
        table = generate(Path(name))
        print(f"{write(table, folder)}: {len(table['options'])} options")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
