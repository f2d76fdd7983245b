"""The code that a playbook ships: kept here by the hash of its content for as long as a session may need it.

A session refers to its payload by hash, so a resumed session runs the code it began with, whatever was installed since.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from state.db import state_dir
from tools import transfer

IGNORED = ("__pycache__", "*.pyc", ".*")


def snapshot(folder: Path, package: str) -> dict[str, str]:
    """Copy `folder` as the package `package` below the state directory. Returns what the session remembers of it."""
    home = state_dir() / "payloads"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    staging = Path(tempfile.mkdtemp(dir=home, prefix=".new-"))
    try:
        shutil.copytree(folder, staging / package, ignore=shutil.ignore_patterns(*IGNORED))
        archive, digest = transfer.pack(staging)
        archive.close()
        try:
            os.rename(staging, home / digest)
        except OSError:
            if not (home / digest).is_dir():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return {"hash": digest, "package": package}


def snapshot_path(payload: Mapping[str, Any] | None) -> Path | None:
    """Where the snapshot of a stored session lies; `None` for a session without one."""
    return None if payload is None else state_dir() / "payloads" / str(payload["hash"])
