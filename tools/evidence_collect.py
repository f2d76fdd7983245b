"""Runs on a host, as a script on stdin of its Python: what is installed, what it says of itself, what the GPUs are.

Standard library, Python 3.8 and newer. Reads one JSON object as its last argument:

    {"pythons": [...], "words": [...], "packages": [...], "engines": [...], "model": path, "commands": [[...], ...]}

and prints one JSON object. Nothing is imported that it looks at, nothing is changed, every part is bounded.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

MAX_LINES = 60
MAX_FILES = 4000
MAX_BYTES = 2_000_000
LOOK = """
import json, sys
from importlib import metadata, util
found = {}
for name in json.loads(sys.argv[1]):
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        continue
    try:
        spec = util.find_spec(name.replace("-", "_"))
    except (ImportError, ValueError):
        spec = None
    places = list(spec.submodule_search_locations or []) if spec else []
    found[name] = {"version": version, "folder": places[0] if places else None}
print(json.dumps({"python": sys.version.split()[0], "executable": sys.executable, "packages": found}))
"""


def run(argv: list[str], seconds: float) -> tuple[int | None, str]:
    """The end and the text of a command; a reason where it did not run."""
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=seconds
        )
    except FileNotFoundError:
        return None, "not found"
    except subprocess.TimeoutExpired:
        return None, f"took longer than {seconds:.0f} s"
    except OSError as error:
        return None, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace")


def interpreter(python: str, packages: list[str]) -> dict[str, Any]:
    """What is installed for one Python."""
    code, text = run([python, "-c", LOOK, json.dumps(packages)], 60)
    if code != 0:
        return {"python": python, "error": text.strip()[-300:]}
    try:
        told: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
        return told
    except (ValueError, IndexError):
        return {"python": python, "error": "no answer: " + text.strip()[-300:]}


def sources(folder: str, words: list[str]) -> dict[str, Any]:
    """Lines of a package's sources that hold one of the words, with where they are."""
    pattern = re.compile("|".join(map(re.escape, words)), re.IGNORECASE)
    found: list[dict[str, str]] = []
    files = hits = 0
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in ("__pycache__", ".git", "test", "tests"))
        for name in sorted(names):
            if not name.endswith(".py") or files >= MAX_FILES:
                continue
            path = os.path.join(root, name)
            files += 1
            try:
                if os.path.getsize(path) > MAX_BYTES:
                    continue
                with open(path, encoding="utf-8", errors="replace") as file:
                    lines = file.read().splitlines()
            except OSError:
                continue
            for number, line in enumerate(lines, 1):
                if pattern.search(line):
                    hits += 1
                    if len(found) < MAX_LINES:
                        found.append({"where": f"{path}:{number}", "line": line.strip()[:240]})
    return {"files": files, "hits": hits, "lines": found}


def helps(command: list[str], words: list[str]) -> dict[str, Any]:
    """The lines of a command's help that hold one of the words."""
    code, text = run(command, 120)
    pattern = re.compile("|".join(map(re.escape, words)), re.IGNORECASE)
    lines = [line.strip()[:240] for line in text.splitlines() if pattern.search(line)]
    return {
        "command": " ".join(command),
        "rc": code,
        "lines": lines[:MAX_LINES],
        "hits": len(lines),
        "end": text[-300:],
    }


def config(path: str) -> dict[str, Any]:
    """A model's `config.json`, if `path` is a folder or the file."""
    path = os.path.expanduser(path)
    path = os.path.join(path, "config.json") if os.path.isdir(path) else path
    try:
        with open(path, encoding="utf-8") as file:
            return {"path": path, "config": json.load(file)}
    except (OSError, ValueError) as error:
        return {"path": path, "error": str(error)}


def main() -> None:
    asked = json.loads(sys.argv[-1])
    answer: dict[str, Any] = {"interpreters": [interpreter(python, asked["packages"]) for python in asked["pythons"]]}
    answer["sources"] = {}
    for found in answer["interpreters"]:
        for name, package in found.get("packages", {}).items():
            folder = package.get("folder")
            if name in asked["engines"] and folder and folder not in answer["sources"]:
                answer["sources"][folder] = sources(folder, asked["words"])
    answer["helps"] = [helps(command, asked["words"]) for command in asked["commands"]]
    answer["model"] = config(asked["model"]) if asked.get("model") else None
    query = ["nvidia-smi", "--query-gpu=index,name,compute_cap,memory.total,driver_version", "--format=csv,noheader"]
    code, text = run(query, 30)
    answer["gpus"] = {"rc": code, "text": text.strip()[-4000:]}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
