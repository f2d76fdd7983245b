"""Reads a vLLM or SGLang server log: is it loading, ready, at work, failed or stopped, and why.

The first cause decides, not the last line; of several runs in one log the last decides; what an engine lived through is
told under `also`. One pass, bounded memory (`log_scan`); the wordings stand in the tables `log_marks`, `log_memory`,
`log_setup`, `log_model`, `log_install` and `log_runtime`.

    reading = read_log([Path("server.log").read_bytes()])
    reading.state, reading.kind, reading.remedy
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tools.serving.log_install import IMPORT
from tools.serving.log_marks import engine, engine_votes, is_written
from tools.serving.log_model import ARCHITECTURE
from tools.serving.log_scan import FAILURES, chunks, scan
from tools.serving.log_signs import Facts, Hit, Role

# Who wrote a log shows at its beginning; later pieces are asked only while that is open.
VOTED_CHUNKS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """What a log says. `state`: loading, ready, running, failed, stopped or unknown; `kind` only when it failed.

    `engine` is the one that is named, also by a text which is no log: `written` says whether a line has a log's form.
    `family` is `kind` without its detail. `stage` is how far the last run got, `throughput` its last reported tokens a
    second. `evidence` are the lines that decided, `also` other troubles seen, each with its line number.
    """

    engine: str | None
    state: str
    kind: str | None = None
    family: str | None = None
    remedy: str | None = None
    stage: str | None = None
    throughput: float | None = None
    runs: int = 0
    evidence: tuple[tuple[int, str], ...] = ()
    also: tuple[tuple[int, str, str], ...] = ()
    notes: tuple[str, ...] = ()
    written: bool = False


def read_log(pieces: Iterable[bytes]) -> LogReading:
    """Reads a log given in pieces of any size, cut anywhere. Never raises on any bytes."""
    votes: dict[str, int] = {}
    run, line, written = _Run(), 1, False
    for at, chunk in enumerate(chunks(pieces)):
        hits = list(scan(chunk, line))
        written = written or is_written(chunk)
        if at < VOTED_CHUNKS or (hits and not engine(votes)):
            for name, count in engine_votes(chunk).items():
                votes[name] = votes.get(name, 0) + count
        for hit in hits:
            if run.ends_before(hit):
                run = _Run(number=run.number + 1)
            run.take(hit, engine(votes))
        line += chunk.count(b"\n")
    return replace(run.verdict(engine(votes)), written=written)


@dataclass(slots=True)
class _Run:
    """One start of a server, read sign by sign. Keeps the first hit of each sign, so its size is bounded."""

    number: int = 1
    facts: Facts = field(default_factory=Facts)
    seen: int = 0
    stage: Hit | None = None
    http_up: Hit | None = None
    ready: Hit | None = None
    serving: Hit | None = None
    stop: Hit | None = None
    rate: float | None = None
    failures: dict[int, tuple[Hit, str]] = field(default_factory=dict)
    survived: dict[int, tuple[Hit, str]] = field(default_factory=dict)

    def ends_before(self, hit: Hit) -> bool:
        """Whether this sign belongs to a later run."""
        over = bool(self.stop or self.ready or self._active(Role.SYMPTOM, Role.CAUSE))
        return (hit.sign.role is Role.START and self.seen > 0) or (hit.sign.role is Role.AGAIN and over)

    def take(self, hit: Hit, engine_now: str | None) -> None:
        role = hit.sign.role
        self.seen += role not in (Role.START, Role.AGAIN)
        if role in FAILURES:
            if self.stop is None:
                self.failures.setdefault(id(hit.sign), (hit, self._phase(hit)))
        elif role is Role.FACT:
            self.facts.values.update({k: v for k, v in hit.match.groupdict().items() if v})
        elif role is Role.STAGE:
            self.stage = hit
            self._survive(only_survivable=True)
        elif role is Role.READY or (role is Role.HTTP_UP and engine_now != "sglang"):
            # What was served before was its own warm-up, or belongs to a run whose end the log lacks.
            self.ready, self.serving = hit, None
            self._survive()
        elif role is Role.HTTP_UP:
            self.http_up = hit
        elif role is Role.SERVING:
            self.serving = hit
            rate = hit.match.groupdict().get("rate")
            self.rate = float(rate) if rate else self.rate
            if not self._active(Role.SYMPTOM):
                self._survive(only_survivable=self.ready is None)
        elif role is Role.STOP:
            self.stop = self.stop or hit

    def _phase(self, hit: Hit) -> str:
        if "apture" in hit.text or "warming up" in hit.text or "capture" in self.facts.values:
            return "in graph capture"
        if self.ready or "loop" in self.facts.values or (self.serving and not self.stage):
            return "at run time"
        return "in graph capture" if self.stage and self.stage.sign.name == "capturing graphs" else "at start"

    def _survive(self, *, only_survivable: bool = False) -> None:
        """What an engine worked on after was no end. CLUEs stay: they may explain a later one."""
        for key, (hit, phase) in list(self.failures.items()):
            soft = hit.sign.survivable or hit.sign.role in (Role.EXCEPTION, Role.TROUBLE)
            if hit.sign.role is not Role.CLUE and (soft or not only_survivable):
                self.survived.setdefault(key, (hit, phase))
                del self.failures[key]

    def _active(self, *roles: Role) -> list[tuple[Hit, str]]:
        return [entry for entry in self.failures.values() if entry[0].sign.role in roles]

    def _why(self) -> tuple[Hit, str] | None:
        """The hit that explains the failure, `None` when the run has not failed."""
        symptoms = self._active(Role.SYMPTOM)
        exceptions = [] if self.ready and not symptoms else self._active(Role.EXCEPTION)
        proofs = [*self._active(Role.CAUSE), *symptoms, *self._active(Role.TROUBLE), *exceptions]
        if not proofs:
            return None
        lived = [entry for entry in self.survived.values() if entry[0].sign.role is Role.CAUSE and self.ready]
        ranked = [*self._active(Role.CAUSE), *self._active(Role.CLUE), *(lived[-1:] if symptoms else []), *proofs]
        first = ranked[0]
        if first[0].sign.name == IMPORT:
            # The missing symbol says more than the message around it.
            first = next((e for e in ranked if e[0].sign.name == IMPORT and e[0].sign.detail == "ABI mismatch"), first)
        return first

    def verdict(self, name: str | None) -> LogReading:
        self.facts.values.setdefault("engine", name or "")
        why = self._why()
        if why:
            return self._failed(name, *why)
        state, last = self._state()
        return LogReading(
            engine=name,
            state=state,
            stage=self._stage_name(),
            throughput=self.rate,
            runs=self.number if self.seen or last else 0,
            evidence=((last.line, last.text[:300]),) if last else (),
            also=self._also(None),
            remedy="wait; probe /health until it answers" if state == "loading" else None,
            notes=self._notes(),
        )

    def _state(self) -> tuple[str, Hit | None]:
        if self.stop:
            return "stopped", self.stop
        if self.serving and (self.ready or not (self.stage or self.http_up)):
            return "running", self.serving
        if self.ready:
            return "ready", self.ready
        last = max((hit for hit in (self.stage, self.http_up) if hit), key=lambda hit: hit.line, default=None)
        return ("loading", last) if last else ("unknown", None)

    def _failed(self, name: str | None, hit: Hit, phase: str) -> LogReading:
        self.facts.phase = phase
        kind, family, remedy = hit.kind(self.facts), hit.sign.name, hit.remedy(self.facts)
        refused = next((e[0] for e in self.failures.values() if e[0].sign.name == ARCHITECTURE), None)
        if refused and (family == IMPORT or _contradicts(refused)):
            kind, family = f"{IMPORT} (looks like unsupported architecture)", IMPORT
            remedy = (
                "the architecture is not the trouble: looking it up failed on an import. Fix the first traceback"
                f" (line {hit.line}), not the model: "
                + (remedy if hit is not refused else "a compiled extension is missing")
            )
        return LogReading(
            engine=name,
            state="failed",
            kind=kind,
            family=family,
            remedy=remedy,
            stage=self._stage_name(),
            throughput=self.rate,
            runs=self.number,
            evidence=((hit.line, hit.text[:600]),),
            also=self._also(hit),
            notes=self._notes(),
        )

    def _stage_name(self) -> str | None:
        if self.ready or not self.stage:
            return None
        progress = self.stage.match.groupdict()
        if "percent" in progress:
            return f"{self.stage.sign.name}, {progress['done']} of {progress['all']}"
        return self.stage.sign.name

    def _also(self, chosen: Hit | None) -> tuple[tuple[int, str, str], ...]:
        others = [entry for entry in (*self.failures.values(), *self.survived.values()) if entry[0] is not chosen]
        told = []
        for hit, phase in sorted(others, key=lambda entry: entry[0].line):
            facts = Facts(self.facts.values, phase)
            told.append((hit.line, hit.kind(facts), hit.text[:300]))
        return tuple(told[:20])

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if self.number > 1:
            notes.append(f"{self.number} runs in this log: the last one decides")
        if self.http_up and not self.ready:
            notes.append("the port is open, but SGLang's own first request has not come back")
        return tuple(notes)


def _contradicts(refused: Hit) -> bool:
    """Whether the rejected architecture stands in the very list of supported ones."""
    name = refused.match.groupdict().get("arch")
    return bool(name) and refused.text.count(f"'{name}'") > 1
