"""What a job is, what is known of one, and how its end is named.

A job is a script that runs on a host and outlives the connection; its id is one attempt and is never started twice.
`JobSpec` is what is sent, `JobState` what comes back, `Backend` what every way to run jobs offers (`tools.ssh.Host` is
one, for hosts that run jobs themselves and for login nodes of Slurm). Nothing here talks to a host.

States, in the order in which the host decides them:

    exited      an exit record exists: return code or signal, or cancelled before it started
    queued      Slurm has it and has not started it; its progress says why
    prepared    the directory is there, nothing ran; `launching` while a supervisor is about to write `run`
    lost        the machine rebooted, or supervisor and command are gone without a record; `reason` says what was found
    running     the supervisor holds its lock; `ready` once the spec's readiness check has passed
    orphan      the supervisor died, the command lives on
    unknown     the host knows no such id; also what a driver holds while a host is out of contact
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from state.errors import UsageError
from tools.shell import clean_text as clean_text

State = Literal["queued", "prepared", "launching", "running", "ready", "exited", "orphan", "lost", "unknown"]
FailureKind = Literal["failed", "timeout", "oom", "lost", "cancelled"]
READY_KINDS = ("log", "http", "file")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# Exact phrases of the CUDA runtime, PyTorch, the C++ and C libraries and the kernel; not every line that says "memory".
_OOM_TEXT = re.compile(
    r"CUDA out of memory|torch(?:\.cuda)?\.OutOfMemoryError|CUDA error: out of memory|cudaErrorMemoryAllocation"
    r"|CUBLAS_STATUS_ALLOC_FAILED|HIP out of memory|NCCL.*Cuda failure.*out of memory|std::bad_alloc"
    r"|\[Errno 12\] Cannot allocate memory|^MemoryError\b|Out of memory: Killed process"
    r"|DefaultCPUAllocator: can't allocate",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One attempt at running a script on a host.

    `run` is bash text (any length: it travels on stdin). `cwd` is a path on the host, by default the home directory.
    `timeout_s` and `grace_s` (between TERM and KILL) are enforced on the host. `ready` holds one of `{"log": regex}`,
    `{"http": url}`, `{"file": path}`. `max_log` in bytes: beyond it the middle of the log is dropped, offsets stay.
    `slurm` is for a login node of Slurm: `gpus` to ask it for, and further `options` for `sbatch`.
    Raises UsageError for an id or a readiness check that no host could take.
    """

    id: str
    run: str
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    grace_s: float = 10.0
    ready: Mapping[str, str] | None = None
    max_log: int | None = None
    slurm: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_id(self.id)
        if self.ready is not None and (len(self.ready) != 1 or next(iter(self.ready)) not in READY_KINDS):
            raise UsageError(
                f"job `{self.id}`: `ready` is `{dict(self.ready)}`",
                hint="give exactly one of " + ", ".join(f"`{kind}`" for kind in READY_KINDS),
            )

    def to_wire(self) -> dict[str, Any]:
        """The spec as the remote half reads it (JSON types only).

        A field that is added later must default to None: to the host, which compares a repeated launch with the spec
        that it stored, perhaps from an older version of us, a key with None is as good as no key.
        """
        return {
            "id": self.id, "run": self.run, "cwd": self.cwd, "env": dict(self.env), "timeout_s": self.timeout_s,
            "grace_s": self.grace_s, "ready": dict(self.ready) if self.ready else None, "max_log": self.max_log,
            "slurm": dict(self.slurm) if self.slurm is not None else None,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job says it is: `done` of `total` `unit` (None where it did not say) and its last log line."""

    done: float | None = None
    total: float | None = None
    unit: str | None = None
    line: str = ""


@dataclass(frozen=True, slots=True)
class JobState:
    """What the host knows of one job. Times are seconds of the host's clock; `duration` is measured, not subtracted.

    `rc` or `signal` (a name such as `SIGKILL`) is set once it ran to an end. `oom` is the evidence found for the
    kernel's OOM killer. `leftovers` are processes of the job that outlive it, `removed` the shared memory files that a
    kill cleared away. `refused` says why a launch was not done, `already` that the id was known before. `output` is the
    JSON object that the job wrote to `$TURNOUT_OUTPUT`; `output_error` why it could not be read. `node` is the machine
    that Slurm chose.
    """

    id: str
    state: State
    pid: int | None = None
    node: str | None = None
    started: float | None = None
    ended: float | None = None
    duration: float | None = None
    rc: int | None = None
    signal: str | None = None
    timed_out: bool = False
    cancelled: bool = False
    oom: str | None = None
    reason: str | None = None
    refused: str | None = None
    already: bool = False
    ready_at: float | None = None
    leftovers: tuple[int, ...] = ()
    removed: tuple[str, ...] = ()
    log_size: int = 0
    log_dropped: int = 0
    output: Mapping[str, Any] | None = None
    output_error: str | None = None
    progress: Progress | None = None
    tail: str = ""

    @property
    def terminal(self) -> bool:
        """Nothing more will happen to this attempt."""
        return self.state in ("exited", "lost")

    @property
    def ok(self) -> bool:
        """It ran to its end and said 0."""
        return self.state == "exited" and self.rc == 0 and not (self.timed_out or self.cancelled)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> JobState:
        """The state as the remote half writes it; the log's tail arrives as latin-1 text and is cleaned here."""
        known = {name: data[name] for name in cls.__slots__ if name in data and data[name] is not None}
        if "progress" in known:
            known["progress"] = _progress(known["progress"])
        if "tail" in known:
            known["tail"] = clean_text(known["tail"].encode("latin-1"))
        for name in ("leftovers", "removed"):
            known[name] = tuple(known.get(name, ()))
        return cls(**known)


def _progress(data: Mapping[str, Any]) -> Progress:
    line = clean_text(str(data.get("line", "")).encode("latin-1")).strip()
    return Progress(data.get("done"), data.get("total"), data.get("unit"), line)


def check_id(job_id: str) -> None:
    """Raise UsageError unless `job_id` can be a directory's name on every host."""
    if not _ID.fullmatch(job_id):
        raise UsageError(
            f"`{job_id[:140]}` is no job id",
            hint="use 1 to 128 letters, digits, `.`, `_` and `-`, beginning with a letter or digit",
        )


# With these `sbatch` would run something else, or more than one job, or none, or not answer before the end, or give
# the job to where nobody looks for it. (Name, output and the like are ours too: they come last, and win.)
_NOT_FOR_A_JOB = ("array", "clusters", "help", "test-only", "usage", "version", "wait", "wrap")
_NOT_FOR_A_JOB_SHORT = re.compile(r"-[aMWhV]|(:|--)$|.*\0", re.DOTALL)


def sbatch_options(text: str) -> tuple[str, ...]:
    """Options for `sbatch`, written as in a shell. Raises UsageError for an open quote, and what no job can have."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(
            f"the options for sbatch `{text}` are no words: {error}", hint="quote as in a shell"
        ) from error
    for number, word in enumerate(words):
        if _makes_no_job(word) or (number == 0 and not word.startswith("-")):
            raise UsageError(
                f"`{word[:80]}` among the options for sbatch makes no job that can be supervised",
                hint="leave it out: one todo is one job (a value that begins with `-` is written `--name=value`)",
            )
    return words


def _makes_no_job(word: str) -> bool:
    name = word.partition("=")[0].removeprefix("--") if word.startswith("--") else ""
    long = bool(name) and any(full.startswith(name) for full in _NOT_FOR_A_JOB)  # sbatch takes abbreviations
    return long or bool(_NOT_FOR_A_JOB_SHORT.match(word))


def failure_kind(state: JobState) -> FailureKind | None:
    """Why a job that ended did not succeed; `None` when it did, or has not ended.

    `oom` wants evidence: the kernel's own record, or an out-of-memory message in the tail of the log. A bare SIGKILL
    is `failed`, because anybody may send one.
    """
    if not state.terminal or state.ok:
        return None
    if state.cancelled:
        return "cancelled"
    if state.timed_out:
        return "timeout"
    if state.oom or (state.state == "exited" and _OOM_TEXT.search(state.tail)):
        return "oom"
    return "lost" if state.state == "lost" else "failed"


def describe_end(state: JobState) -> str:
    """One line for a person: `exit code 1`, `SIGKILL (out of memory: ...)`, `timed out`, `lost: reboot`."""
    if state.state == "lost":
        return f"lost: {state.reason or 'no reason found'}"
    if state.state != "exited":
        return state.state
    end = state.signal or ("not started" if state.pid is None else "no exit code")
    if state.rc is not None:
        # A shell reports a command that signal n killed as 128 + n.
        killed = next((s.name for s in signal.Signals if s == state.rc - 128), None)
        end = f"exit code {state.rc} ({killed})" if killed else f"exit code {state.rc}"
    notes = [note for note, there in (("cancelled", state.cancelled), ("timed out", state.timed_out)) if there]
    if state.oom:
        notes.append(f"out of memory: {state.oom}")
    return f"{end} ({', '.join(notes)})" if notes else end


JobEventKind = Literal["queued", "running", "exit", "ready", "progress", "lost", "orphan"]


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something happened to a watched job. May be told twice (after a reconnect), is never left out."""

    kind: JobEventKind
    host: str
    job: JobState


@dataclass(frozen=True, slots=True)
class ContactEvent:
    """Contact with a host was made or lost. `since` is this machine's clock; `why` what was seen when it was lost."""

    kind: Literal["connected", "lost contact"]
    host: str
    since: float
    why: str = ""


class Backend(Protocol):
    """What every way of running jobs offers; one contract suite holds them all to it."""

    async def launch(self, specs: Sequence[JobSpec], *, watch: bool = True) -> list[JobState]:
        """Start each spec unless its id is known; answer each with its state, in order."""

    async def status(self, ids: Sequence[str]) -> list[JobState]:
        """The state of each id, in order; `unknown` for one that the host does not have."""

    async def watch(self, ids: Sequence[str]) -> list[JobState]:
        """From now on tell `events()` what happens to these jobs, beginning with what already has; their states."""

    def events(self) -> AsyncIterator[JobEvent | ContactEvent]:
        """Job and contact events from now on."""

    async def kill(self, ids: Sequence[str], grace_s: float | None = None) -> list[JobState]:
        """End these jobs and all their processes; the state is what was proved afterwards."""

    async def read_log(self, job_id: str, offset: int = 0, limit: int = 65536) -> LogPiece:
        """At most `limit` bytes of the job's log from `offset`; a negative offset counts from the end."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Bytes of a log. `offset` is where `data` starts, `size` the log's size then; `inode` tells a replaced file.

    `truncated` is set when the log is now shorter than the offset asked for (somebody emptied it): `offset` is then 0.
    """

    data: bytes
    offset: int
    size: int
    inode: int
    truncated: bool = False

    @property
    def end(self) -> int:
        """Where the next read goes on."""
        return self.offset + len(self.data)
