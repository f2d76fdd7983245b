"""What a session in memory holds of each todo, job and host: the entries of its books (see `agent/state.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from state.specs import FailureKind, TodoSpec


@dataclass(slots=True)
class TodoInfo:
    """What the graph's node does not hold: the order itself, the attempts so far, the outcome, the rendered host."""

    spec: TodoSpec
    attempts: int = 0
    attempts_before: int = 0
    result: dict[str, Any] | None = None
    reason: str | None = None
    failure: FailureKind | None = None
    host: str | None = None
    gpus: int | str = 0
    fell_back: bool = False

    @property
    def body(self) -> Mapping[str, Any]:
        """The body to run: of a research step without a model, its fallback."""
        return (self.spec.body.get("fallback") or {}) if self.spec.kind == "research" else self.spec.body

    @property
    def run_as(self) -> str:
        """The kind to run it as, where no model is configured."""
        if self.spec.kind != "research":
            return self.spec.kind
        return "tool" if "tool" in self.body else "job" if self.body else "research"


@dataclass(slots=True)
class JobInfo:
    """A job that has not ended."""

    id: str
    todo: str
    host: str
    spec: Mapping[str, Any]
    gpus: list[int]
    state: str
    is_service: bool
    cancel: str | None = None


@dataclass(slots=True)
class HostInfo:
    """Limits of a host. `gpus` are the indices that may be leased; `None` while nobody knows.

    `gpus_unknown` says why not, once somebody looked: unknown is not none, and is told as what it is.
    Where `slurm` runs the jobs it gives the GPUs, and nothing is leased.
    """

    name: str
    max_jobs: int = 32
    gpus: list[int] | None = None
    gpus_unknown: str = ""
    python: str = "python3"
    slurm: bool = False
