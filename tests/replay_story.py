"""Sessions to replay, written through the log as the product writes them: a story with everything in it, and long ones.

    id = tell(db)                 # the move from one engine to another, with a person, a model, subagents and GPUs
    id = long(db, messages=20_000)

Used by the tests of the replay and of the page, and by benchmarks/page.py. Nothing is random, and no clock is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from state import changes as c
from state import conversation as talk
from state.changes import Change
from state.db import Database
from state.log import append
from state.specs import EdgeSpec, Kind, Status, TodoSpec

BEGAN = 1_796_000_000.0
MODEL = "claude-sonnet-4-5"


@dataclass
class Tape:
    """One session being written. `at` moves the clock, `put` commits changes at that time."""

    conn: Connection
    session: str
    now: float = BEGAN
    status: dict[str, Status] = field(default_factory=dict)
    calls: int = 0

    def at(self, seconds: float) -> Tape:
        self.now = BEGAN + seconds
        return self

    def put(self, *changes: Change) -> Tape:
        append(self.conn, self.session, changes, self.now)
        return self

    def begin(self, title: str, *, kind: str = "chat", parent: str | None = None, **settings: Any) -> Tape:
        playbook = settings.pop("playbook", None)
        return self.put(
            c.session_created(kind=kind, title=title, playbook=playbook, source=None, parent=parent, settings=settings)
        )

    def todo(self, id: str, title: str, kind: Kind = "job", body: Mapping[str, Any] | None = None, **more: Any) -> Tape:
        after = more.pop("after", ())
        self.put(c.todo_added(TodoSpec(id, title, kind, body or {}, **more), len(self.status), "model"))
        self.status[id] = "pending"
        for src in after:
            name, _, on = src.partition(":")
            self.put(c.todo_linked(EdgeSpec(name, id, on or "success"), "model"))  # type: ignore[arg-type]
        return self

    def move(self, id: str, now: Status, **more: Any) -> Tape:
        was, self.status[id] = self.status[id], now
        return self.put(c.todo_status(id, was, now, **more))

    def start(
        self, id: str, host: str = "gpu1", gpus: tuple[int, ...] = (), *, attempt: int = 1, run: str = "true"
    ) -> Tape:
        self.move(id, "in_progress", attempt=attempt, host=host)
        job = f"{self.session}.{id}.{attempt}"
        self.put(c.job_submitted(job, todo=id, attempt=attempt, host=host, spec={"run": run}, gpus=gpus))
        return self.put(c.job_state(job, host, "running", started=self.now))

    def end(self, id: str, rc: int = 0, *, host: str = "gpu1", attempt: int = 1, **more: Any) -> Tape:
        job = f"{self.session}.{id}.{attempt}"
        self.put(c.job_state(job, host, "exited", rc=rc, ended=self.now))
        return self.move(id, more.pop("to", "completed" if rc == 0 else "failed"), **more)

    def report(self, id: str, done: float, total: float, line: str, *, host: str = "gpu1", unit: str = "steps") -> Tape:
        job = f"{self.session}.{id}.1"
        return self.put(c.job_reported(job, host, done=done, total=total, unit=unit, line=line))

    def model(self, seconds: float, text: str, **tools: Mapping[str, Any]) -> Tape:
        """A model's turn that takes so long: words, then calls of tools by name."""
        self.calls += 1
        call = f"{self.session}-{self.calls}"
        self.put(talk.model_asked(call, model=MODEL, purpose="turn", request={"messages": self.calls, "notices": []}))
        self.now += seconds
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}]
        blocks += [
            {"type": "tool_use", "id": f"{call}-{n}", "name": n, "input": dict(given)} for n, given in tools.items()
        ]
        usage = {"input": 900, "output": 40 + len(text) // 4, "cache_read": 14_000, "cache_write": 300}
        answered = talk.model_answered(
            call, model=MODEL, content=blocks, stop_reason="tool_use" if tools else "end_turn", usage=usage,
            cost=0.0187, ttft_s=0.6, took_s=seconds,
        )  # fmt: skip
        return self.put(answered)

    def tool(self, name: str, content: str, *, is_error: bool = False) -> Tape:
        call = f"{self.session}-{self.calls}"
        return self.put(talk.tool_answered(call, f"{call}-{name}", name, content, is_error=is_error))

    def say(self, text: str) -> Tape:
        return self.put(talk.operator_said(text))


def tell(db: Database, session: str = "pivot234") -> str:
    """The story: two ways at once, a gate that fails, a question that waits, a night in which nobody drove it."""
    db.write(lambda conn: _tell(conn, session))
    return session


def _tell(conn: Connection, session: str) -> None:
    t = Tape(conn, session).begin("Move gpu1 from vLLM to SGLang", params={"host": "gpu1", "target": "Kimi-K2.5"})
    t.at(2).say(
        "vLLM gives 0.66x with the drafter. Try once more, and find out what SGLang would need at the same time."
    )
    t.model(
        6, "I start both at once: a last attempt with vLLM, and research on SGLang's EAGLE-3 support.", todo={"add": 5}
    )
    t.tool("todo", "5 todos added")
    t.todo("probe", "Look at the host", "tool", {"tool": "probe"})
    t.todo("retry_vllm", "A last attempt with vLLM", body={"run": "vllm serve"}, after=["probe"], priority="high")
    t.todo("research", "What must be known of SGLang", "research", {"prompt": "EAGLE-3 in SGLang"}, after=["probe"])
    t.todo(
        "first", "The first way that works", "race", {"losers": "cancel"}, after=["retry_vllm", "research"], join="any"
    )
    t.todo(
        "faster", "Is it faster than without a drafter?", "gate", {"if": "todos.first.multiplier >= 1"}, after=["first"]
    )
    t.move("probe", "in_progress", host="gpu1").at(14).move(
        "probe", "completed", result={"gpus": 8, "driver": "570.86"}
    )
    t.at(15).start("retry_vllm", gpus=(0, 1, 2, 3), run="exec vllm serve moonshotai/Kimi-K2.5 --speculative-config ...")
    t.move("research", "in_progress", host="gpu1")
    t.put(
        talk.child_started(
            "resea234", title="EAGLE-3 in SGLang", prompt="Find out how SGLang loads an EAGLE-3 drafter."
        )
    )
    _child(conn, "resea234", session)
    for step in range(1, 25):
        rate = 2100 - 900 * math.exp(-step / 5)
        line = f"Avg generation throughput: {rate:.1f} tokens/s, Running: {8 + step % 3} reqs"
        line += f", acceptance rate: {0.15 + step % 4 / 100:.2f}"
        t.at(30 + step * 24).report("retry_vllm", step, 24, line, unit="requests")
    t.at(640).put(
        talk.child_reported(
            "resea234", "completed", {"text": "SGLang 0.5.14 serves it with --speculative-algorithm EAGLE3."}
        )
    )
    t.move("research", "completed", result={"engine": "sglang", "multiplier": 1.0})
    t.move("first", "completed", result={"winner": "research", "engine": "sglang"})
    t.put(c.job_cancel(f"{session}.retry_vllm.1", "lost the race `first`"))
    t.move("retry_vllm", "cancelled", reason="lost the race `first`")
    t.at(646).put(
        c.job_state(f"{session}.retry_vllm.1", "gpu1", "exited", signal="SIGTERM", reason="SIGTERM (cancelled)")
    )
    t.put(talk.notice_raised("n1", "Todo `research` completed: SGLang serves it.", about={"todo": "research"}))
    t.model(
        8,
        "SGLang can serve the drafter. I stop vLLM and go on step by step.\n\n- base\n- public drafter\n- own drafter",
        todo={"add": 6},
    )
    t.put(talk.notice_delivered(["n1"], f"{session}-2")).tool("todo", "6 todos added")
    _second_half(t)


def _second_half(t: Tape) -> None:
    """From here on with SGLang."""
    t.move("faster", "failed", reason="`todos.first.multiplier >= 1` does not hold")
    t.todo(
        "leave",
        "May vLLM be stopped?",
        "ask",
        {"question": "Stop vLLM on gpu1 and free its GPUs?"},
        after=["faster:failure"],
    )
    for n, name in enumerate(("base", "public", "own")):
        t.todo(
            f"bench_{name}",
            f"Serve and measure: {name}",
            body={"run": "sglang"},
            after=["leave" if not n else f"bench_{('base', 'public')[n - 1]}"],
        )
    for size in (1, 8, 32, 64, 128):
        t.todo(
            f"warm@{size}", f"Warm up with {size}", body={"run": "warm"}, after=["leave"], group="warm", priority="low"
        )
    t.todo("keep_vllm", "Put vLLM back", body={"run": "vllm"}, after=["bench_base:failure"])
    t.todo("report", "Write the report", body={"run": "report"}, after=["bench_own:finish"])
    t.move("leave", "in_progress").put(c.approval_asked("leave", "Stop vLLM on gpu1 and free its GPUs?", "no"))
    t.at(1010).put(c.approval_answered("leave", "yes", "operator"))
    t.move("leave", "completed", result={"answer": "yes", "by": "operator"})
    t.start("bench_base", gpus=(0, 1, 2, 3))
    sizes = list(enumerate((1, 8, 32, 64, 128)))
    for n, size in sizes:
        t.at(1012 + n).start(f"warm@{size}", gpus=(4 + n % 4,) if n < 4 else ())
    for n, size in sizes:
        t.at(1040 + n * 31).end(f"warm@{size}")
    t.at(1240).end("bench_base", rc=1, to="pending", reason="out of memory: CUDA out of memory on GPU 2; try 2")
    t.start("bench_base", gpus=(0, 1, 2, 3), attempt=2).at(1700).end(
        "bench_base", attempt=2, result={"tokens_per_s": 3165.4}
    )
    t.start("bench_public", gpus=(0, 1, 2, 3))
    for step in range(1, 40):
        t.at(1700 + step * 20).report(
            "bench_public",
            step * 10,
            400,
            f"accept len: {1.1 + step % 5 / 20:.2f}, gen throughput (token/s): {3100 + 40 * step}",
            unit="requests",
        )
    t.at(2520).end(
        "bench_public", result={"tokens_per_s": 4410.0, "accept_length": 1.31, "by_position": [0.71, 0.42, 0.2]}
    )
    t.move("keep_vllm", "skipped", reason="`bench_base` completed")
    t.start("bench_own", gpus=(0, 1, 2, 3)).at(2700).report(
        "bench_own", 40, 400, "accept len: 2.41, gen throughput (token/s): 5230.1", unit="requests"
    )
    t.at(9900).put(c.session_resumed({"pid": 4242}))
    t.at(9905).put(c.job_state(f"{t.session}.bench_own.1", "gpu1", "exited", rc=0, ended=BEGAN + 3400))
    t.move(
        "bench_own",
        "completed",
        result={"tokens_per_s": 6890.2, "accept_length": 2.43, "by_position": [0.86, 0.64, 0.47]},
    )
    t.start("report").at(9921).end("report", result={"path": "report/report.md"})
    t.model(
        7,
        "Done. The own drafter gives **2.18x** over the base model:\n\n| | tokens/s | accepted |\n|---|---|---|\n"
        "| base | 3,165 | |\n| public | 4,410 | 1.31 |\n| own | 6,890 | 2.43 |",
    )
    t.put(c.session_status("completed"))


def _child(conn: Connection, id: str, parent: str) -> None:
    t = Tape(conn, id).at(16).begin("EAGLE-3 in SGLang", kind="subagent", parent=parent)
    for n in range(8):
        t.at(20 + n * 74).model(
            9, f"Looking at file {n} of the installed package.", grep={"pattern": "EAGLE3", "path": "sglang/srt"}
        )
        t.now += 3
        t.tool("grep", "\n".join(f"speculative/eagle_worker.py:{n * 100 + line}: eagle3" for line in range(40)))
    t.at(630).model(6, "SGLang 0.5.14 serves it with `--speculative-algorithm EAGLE3`.").put(
        c.session_status("completed")
    )


def long(db: Database, messages: int = 20_000, session: str = "longs234") -> str:
    """A day's session of about so many messages: talk, tools, todos, jobs that report."""
    db.write(lambda conn: _long(conn, session, messages))
    return session


def _long(conn: Connection, session: str, messages: int) -> None:
    t = Tape(conn, session).begin("A day of benchmarks", params={"host": "gpu1"})
    step = 86_400 / messages
    written, n = 1, 0
    while written < messages - 60:
        n += 1
        id = f"bench_{n}"
        at = written * step
        t.at(at).say(f"Measure configuration {n} of the drafter, please, with {n * 3} requests.")
        t.model(
            4,
            f"Configuration {n}: I add a todo and look at its log when it is done. " * 3,
            todo={"add": id},
            run={"host": "gpu1", "command": f"nvidia-smi --query-gpu=memory.used -i {n % 8}"},
        )
        t.tool("todo", "1 todo added").tool(
            "run", "\n".join(f"{n + line}, {line * 977 % 81559} MiB" for line in range(24))
        )
        t.todo(
            id,
            f"Measure configuration {n}",
            body={"run": f"bench --config {n}"},
            after=[f"bench_{n - 1}"] if n > 1 else [],
        )
        t.start(id, gpus=(n % 8,))
        for k in range(1, 41):
            t.at(at + 10 * step + k * step).report(
                id, k, 40, f"step {k} loss {4 / k + n % 7 / 10:.4f} gen throughput (token/s): {3000 + k * 7 + n}"
            )
        t.end(id, result={"tokens_per_s": 3000.0 + n, "accept_length": 2 + n % 10 / 10})
        written += 51 if n == 1 else 52
    t.at(86_400).put(c.session_status("completed"))
