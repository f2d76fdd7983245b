"""The process that starts one job, waits for it and records its end; forked, and on its own from then on.

It holds the lock of the job's `lock` for life, adopts the job's orphans, enforces the timeout and the log's cap, and
ignores TERM, INT and HUP. The order of its writes is the promise that an id runs at most once: take the lock; leave
if `run`, `exit` or `cancel` exists; write `run` durably; look for `cancel` again; only then start the command.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import traceback
from typing import Any, Callable, Dict

from . import ending, evidence, jobs, linux, logcap, proc, ready, store, worker

_TICK_S = 1.0
_LATE_S = 0.25
_RESERVE = 4096
_MOST_LEFTOVERS = 100
Spec = Dict[str, Any]


class Manager:
    """Who may order the supervisor itself to end its job: by default nobody. See `batch.Slurm`."""

    signals: frozenset[int] = frozenset()
    passed_on: frozenset[int] = frozenset()
    """Signals that are meant for the command."""
    ends_leftovers = False
    """Whether nothing outlives the command: what it left is told otherwise, and stays."""

    def where(self) -> dict[str, str]:
        """What the records say of the machine."""
        return {}

    def why(self) -> dict[str, Any]:
        """What such an order adds to the exit record."""
        return {}


def supervise(root: str, spec: Spec, report: worker.Report, manager: Manager | None = None) -> None:
    """Start the job of `spec` unless its id was used, tell `report` its state, and stay until it has ended."""
    folder = store.job_folder(root, spec["id"])
    try:
        seen = ready.look_for(folder, spec["ready"]) if spec.get("ready") else None
        prepare(root, folder, spec)
        lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # A directory without a spec was made by a kill that is just writing `cancel` into it.
        fresh = linux.try_lock(lock) and not _used(folder) and os.path.exists(os.path.join(folder, "spec.json"))
        if fresh:
            fresh = not is_other(folder, spec)
        if fresh:
            _reserve(folder, "child")
            _reserve(folder, "exit")
            supervisor = _Supervisor(root, folder, spec, seen, manager or Manager())
            supervisor.claim()
    except (OSError, ValueError) as error:
        report.send({"state": refusal(folder, spec, error)})
        return
    if fresh:
        supervisor.live(report)
    else:
        report.send({"state": existing(root, spec, proc.boot_id())})


def refusal(folder: str, spec: Spec, error: OSError | ValueError) -> jobs.State:
    """The answer to a launch that could not be: its id is not used up."""
    why = _no_room(error, folder) if isinstance(error, OSError) else str(error)
    return {"id": spec["id"], "state": "prepared" if os.path.isdir(folder) else "unknown", "refused": why}


def existing(root: str, spec: Spec, boot: str) -> jobs.State:
    """The answer to a launch of an id that is known: its state, `already`, and `refused` when the spec is another."""
    state = dict(jobs.state(root, spec["id"], boot), already=True)
    if is_other(store.job_folder(root, spec["id"]), spec):
        state["refused"] = "the id `{}` belongs to another spec; a new attempt needs a new id".format(spec["id"])
    return state


def is_other(folder: str, spec: Spec) -> bool:
    """Whether another spec is stored. A key without a value says nothing: another version may not know it at all."""
    stored = store.read_json(os.path.join(folder, "spec.json"))
    return bool(stored) and _given(stored or {}) != _given(spec)


def _given(spec: Spec) -> Spec:
    return {key: value for key, value in spec.items() if value is not None}


def _used(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, name)) for name in ("run", "exit", "cancel"))


def _no_room(error: OSError, folder: str) -> str:
    return f"cannot prepare `{folder}`: {error.strerror or error}"


def prepare(root: str, folder: str, spec: Spec) -> None:
    """Make the job's directory whole in one rename; one that is there already, from another launch or a kill, stays."""
    if os.path.exists(os.path.join(folder, "spec.json")) or _used(folder):
        return
    new = os.path.join(root, "jobs", ".new-{}-{}".format(spec["id"], os.getpid()))
    try:
        os.makedirs(new, mode=0o700, exist_ok=True)
        script = (spec["run"] + "\n").encode("utf-8", "surrogateescape")
        store.write(os.path.join(new, "cmd.sh"), script, named=False)
        store.write_json(os.path.join(new, "spec.json"), spec, named=False)
        store.sync_folder(new)
        os.rename(new, folder)
        store.sync_folder(os.path.dirname(folder))
    except (OSError, ValueError):
        shutil.rmtree(new, ignore_errors=True)
        if not os.path.isdir(folder):
            raise


def _reserve(folder: str, name: str) -> None:
    """Take the room for a record now, while there is some: a full disk later cannot make a job `lost`."""
    fd = os.open(os.path.join(folder, name + ".reserve"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, _RESERVE)
    finally:
        os.close(fd)


class _Supervisor:
    """One job's life: `claim` the id, then `live` from its start to its exit record."""

    def __init__(self, root: str, folder: str, spec: Spec, seen: Callable[[], bool] | None, manager: Manager) -> None:
        self.root, self.folder, self.spec, self.seen, self.manager = root, folder, spec, seen, manager
        self.ordered = False
        self.started, self.monotonic = time.time(), time.monotonic()
        self.kills = evidence.oom_kills()
        self.boot = proc.boot_id()
        self.child = self.checker = 0
        self.timed_out = False
        self.family = proc.Family(spec["id"])

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def claim(self) -> None:
        """Write `run`, durably. From here on the id is used up. Raises OSError, and then it is not."""
        run = dict(_identity(os.getpid()), boot=self.boot, started=self.started, monotonic=self.monotonic)
        run.update(self.manager.where())
        store.write_json(self.path("run"), run)

    def live(self, report: worker.Report) -> None:
        """Start the command, tell the state, wait, record the end."""
        for number in {signal.SIGTERM, signal.SIGHUP, signal.SIGINT} - self.manager.signals:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited())
        linux.become_subreaper()
        linux.set_name("turnout-job")
        if os.path.exists(self.path("cancel")):
            self._record({})
        else:
            self._try_to_start()
        report.send({"state": jobs.state(self.root, self.spec["id"], self.boot)})
        report.close()
        if self.child:
            status = self._wait()
            if self.manager.ends_leftovers:
                ending.end(self.root, [self.family], {self.spec["id"]: 0.0})
            if self.spec.get("max_log"):
                logcap.trim(self.folder, self.spec["max_log"])
            self._record(end_of(status))
            self._reap()  # pid 1 of a container may not do it

    def _try_to_start(self) -> None:
        """Start, or record that it was not possible (no more processes, no place for a log): that end is known."""
        try:
            self._start()
        except OSError as error:
            if self.child:
                raise
            self._record({"rc": 126, "reason": f"cannot start: {error}"})

    def _start(self) -> None:
        log = os.open(self.path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            shell = shutil.which("bash") or "/bin/sh"
            script, cwd = [shell, self.path("cmd.sh")], store.expand(self.spec.get("cwd") or "~")
            self.child = worker.spawn(script, self._environment(), cwd, {1: log, 2: log})
        except OSError as error:
            os.write(log, (f"turnout: cannot start: {error}\n").encode("utf-8", "surrogateescape"))
            raise
        finally:
            os.close(log)
        identity = _identity(self.child)
        self.family = proc.Family(self.spec["id"], self.child, identity["ticks"], os.getpid())
        self._fill("child", identity, durable=False)  # a pid means nothing after a power cut
        seen = self.seen
        if seen is not None:
            self.checker = os.fork()
            if self.checker == 0:
                worker.fork_body(lambda: ready.await_ready(self.folder, seen), keep=())

    def _environment(self) -> dict[str, str]:
        ours = {
            proc.COOKIE: self.spec["id"],
            proc.ROOT: self.root,
            "TURNOUT_OUTPUT": self.path("output.json"),
            "TURNOUT_PROGRESS": self.path("progress.json"),
        }
        return dict(os.environ, **dict(self.spec.get("env") or {}, **ours))

    def _wait(self) -> int:
        """The child's wait status. Reaps adopted orphans, keeps the log's cap, and ends everything at the deadline."""
        limit, cap = self.spec.get("timeout_s"), self.spec.get("max_log")
        while True:
            reaped = self._reap()
            if reaped is not None:
                self._hear_late_order()
                return reaped
            pause = _TICK_S if cap else 3600.0
            if limit is not None and not self.timed_out:
                remaining = self.monotonic + limit - time.monotonic()
                if remaining <= 0:
                    self.timed_out = True
                    self._end()
                    continue
                pause = min(pause, remaining)
            if cap:
                logcap.trim(self.folder, cap)
            woken = signal.sigtimedwait(self._awaited(), pause)
            if woken is not None and woken.si_signo in self.manager.passed_on:
                os.kill(self.child, woken.si_signo)
            if woken is not None and woken.si_signo in self.manager.signals and not self.ordered:
                self.ordered = True
                self._end()

    def _hear_late_order(self) -> None:
        """A manager tells the command and us at once, and the command may have ended before we heard of it."""
        if self.manager.signals and not self.ordered:
            self.ordered = signal.sigtimedwait(self.manager.signals, _LATE_S) is not None

    def _awaited(self) -> set[int]:
        return {signal.SIGCHLD, *self.manager.signals, *self.manager.passed_on}

    def _end(self) -> None:
        """End the command and all that belongs to it, with the grace that a kill wants or else the job's own."""
        store.refresh(self.folder)  # a kill writes `cancel` on another machine
        wanted = (store.read_json(self.path("cancel")) or {}).get("grace_s")
        grace = self.spec.get("grace_s", ending.DEFAULT_GRACE_S) if wanted is None else wanted
        ending.end(self.root, [self.family], {self.spec["id"]: grace})

    def _reap(self) -> int | None:
        """Collect what has ended; the child's status once it is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == self.child:
                return status
            if pid == self.checker:
                self.checker = 0  # it has seen the sign; from now on the number may be somebody else's
            if pid == 0:
                return None

    def _leftovers(self) -> list[tuple[int, int]]:
        """Processes (pid, start ticks) of the job that are still there; asks /proc only if there is a child at all."""
        if self.checker:
            os.kill(self.checker, signal.SIGKILL)
            os.waitpid(self.checker, 0)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return []
        return [(process.pid, process.ticks) for process in proc.families(self.root, [self.family])[self.spec["id"]]]

    def _record(self, end: dict[str, Any]) -> None:
        """Write `exit`. While that fails (disk full) keep trying, lock held: `running` is true, `lost` is not."""
        store.refresh(self.folder)
        cancelled = os.path.exists(self.path("cancel"))
        record = dict(end, pid=self.child or None, started=self.started, ended=time.time(), cancelled=cancelled)
        record.update(duration=time.monotonic() - self.monotonic, timed_out=self.timed_out, **self.manager.where())
        if self.ordered and not cancelled:
            record.update(self.manager.why())
        if not cancelled and self.child:
            record["leftovers"] = self._leftovers()[:_MOST_LEFTOVERS]
            if not self.timed_out and (end.get("signal") == "SIGKILL" or end.get("rc") == 137):
                record["oom"] = evidence.why_killed(self.monotonic, [self.child], self.kills)
        while os.path.isdir(self.folder):
            try:
                self._fill("exit", record)
            except OSError:
                time.sleep(_TICK_S)
            else:
                return

    def _fill(self, name: str, record: dict[str, Any], durable: bool = True) -> None:
        """Write a record into the room that was reserved for it, then rename: needs no free block."""
        data = json.dumps(record).encode("ascii")
        fd = os.open(self.path(name + ".reserve"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            store.write_all(fd, data)
            os.ftruncate(fd, len(data))
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(self.path(name + ".reserve"), self.path(name))
        if durable:
            store.sync_folder(self.folder)


def _identity(pid: int) -> dict[str, int]:
    process = proc.read(pid)
    return {"pid": pid, "ticks": process.ticks if process is not None else 0}


def end_of(status: int) -> dict[str, Any]:
    """`rc` or the `signal`'s name, from a wait status."""
    if os.WIFSIGNALED(status):
        return {"rc": None, "signal": signal_name(os.WTERMSIG(status))}
    return {"rc": os.WEXITSTATUS(status), "signal": None}


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; real-time signals without a name of their own as `signal 40`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def crashed(root: str, job: str, report: worker.Report) -> None:
    """Leave the traceback where `evidence.why_lost` looks for it, and with whoever waits for the start."""
    folder = store.job_folder(root, job)
    if os.path.isdir(folder):
        with open(os.path.join(folder, "supervisor.err"), "w") as file:
            traceback.print_exc(file=file)
    worker.tell_crash(report)
