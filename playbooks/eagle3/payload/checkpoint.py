"""Training states on disk: whole files only, the newest two, and never one of another run.

A checkpoint holds everything the next step depends on: weights, optimiser moments, the step. The order of the data
and the learning rate are functions of the step, so nothing else has to be stored for a resumed run to repeat the
undisturbed one.
"""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from .errors import StepError
from .runtime import say

State = dict[str, Any]
KEEP = 2


def save_checkpoint(folder: Path, step: int, state: State) -> None:
    """Write `state` as the checkpoint after `step` steps and drop all but the newest two."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:08d}.pt"
    partial = folder / f"{path.name}.{os.getpid()}.tmp"
    try:
        with partial.open("wb") as file:
            torch.save({**state, "step": step}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:  # torch turns a full disk into a RuntimeError
        partial.unlink(missing_ok=True)
        raise _not_written(path, error) from error
    for old in sorted(folder.glob("step-*.pt"))[:-KEEP]:
        old.unlink()
    for torn in folder.glob("*.tmp"):
        torn.unlink()


def latest_checkpoint(folder: Path, fingerprint: str) -> State | None:
    """The newest checkpoint that opens and belongs to `fingerprint`; `None` when there is none."""
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        try:
            state: State = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            say(f"checkpoint {path.name} does not open ({error}); trying the one before")
            continue
        if state["fingerprint"] == fingerprint:
            return state
        say(f"checkpoint {path.name} is of other data or settings; it is not used")
    return None


def save_tensors(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        whole = {name: t.contiguous() for name, t in tensors.items()}
        save_file(whole, partial, metadata={"format": "pt", **(metadata or {})})
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise _not_written(path, error) from error


def _not_written(path: Path, error: Exception) -> StepError:
    free = shutil.disk_usage(path.parent).free
    return StepError(
        f"`{path}` could not be written: {str(error).strip().splitlines()[0]} ({free / 1e9:.2f} GB are free there)",
        hint="free space on that disk and run the step again: it goes on from what is there",
    )
