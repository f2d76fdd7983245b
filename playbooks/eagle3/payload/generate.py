"""Let the target answer the prompts: a drafter learns what its target says, not what somebody else said.

Answers go to `answers.jsonl`, one a line, each with its token ids as they were produced (text that is tokenised again
does not always give the same ids), how it was sampled, and a key made of everything that decides it. A run that was
killed keeps the lines whose key still holds and answers the rest; a torn last line is dropped.

Answers for evaluation are greedy, since greedy decoding is what `evaluate` predicts; those to the sets of
`evaluate.prompts` go to `sets/<name>.jsonl`. How a conversation becomes token ids is written to `answers.json`. With
`generate.endpoint` a server of the target is asked, else transformers in this process.

    python -m eagle3.generate --preset smoke
    python -m eagle3.generate --preset h200-smollm2 --endpoint http://127.0.0.1:30000
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from .config import Config
from .data import chat_ids
from .endpoint import Answer, Endpoints, Request
from .errors import StepError
from .prompts import Prompt, load_prompts, named_files, read_prompts
from .provenance import describe, record, template_arguments
from .runtime import Progress, Result, Workdir, read_json, read_lines, run_step, say, set_up_torch, write_text
from .target import load_model, load_tokenizer, stop_tokens

Row = dict[str, Any]
COMPOSED = "composed.jsonl"
CHECKED = 20  # first answers whose text is held against the server's


class Answerer(Protocol):
    """A server or the model itself."""

    def answer(self, requests: Sequence[Request], *, until: float = ...) -> Iterator[tuple[int, Answer]]:
        """Yield the number and the answer of each request; none is begun after `until` on the monotonic clock."""


def generate(config: Config, work: Workdir) -> Result:
    """Let the target answer the prompts."""
    composed = work.root / COMPOSED
    tokenizer = load_tokenizer(work.target)
    made = record(config, work, tokenizer)
    prompts = load_prompts(config.data, [composed] if composed.is_file() else [])
    started = time.monotonic()
    rows, kept, left_out = answer_prompts(prompts, work.answers, config, work, config.generate.max_new_tokens)
    for name, path in named_files(config.evaluate.prompts):
        answer_set(name, path, config, work)  # now, while a server may be up
    tokens = {s: sum(len(r["answer_ids"]) for r in rows if r["split"] == s) for s in ("train", "eval")}
    return {
        "prompts": len(prompts),
        "answers": len(rows),
        "kept_from_before": kept,
        "too_long": left_out,
        "empty": sum(not r["answer_ids"] for r in rows),
        "tokens": tokens,
        "tokens_per_second": round(sum(tokens.values()) / (time.monotonic() - started)) if not kept else None,
        "stopped_by_themselves": sum(r["finish"] == "stop" for r in rows),
        **made,
    }


def answer_set(name: str, path: Path, config: Config, work: Workdir) -> list[Row]:
    """The target's greedy answers to the prompts in `path`, kept in `sets/<name>.jsonl`."""
    prompts = [dataclasses.replace(p, split="eval") for p in read_prompts(path)][: config.evaluate.limit or None]
    say(f"{name}: {len(prompts)} prompts from {path}")
    rows, _, _ = answer_prompts(prompts, work.set_of(name), config, work, config.evaluate.max_new_tokens)
    return rows


def answer_prompts(
    prompts: Sequence[Prompt], path: Path, config: Config, work: Workdir, max_new_tokens: int
) -> tuple[list[Row], int, int]:
    """The answers to `prompts` in the file `path`, in their order; how many were there before; how many are too long.

    When `generate.max_seconds` is over, some prompts are without an answer.
    """
    checkpoint = [read_json(work.target / "config.json"), describe(config, load_tokenizer(work.target))]
    keys = {p.digest: answer_key(p, config, checkpoint, max_new_tokens) for p in prompts}
    known = set(keys.values())
    done = {row["key"]: row for row in read_rows(path) if row["key"] in known}
    kept = len(done)
    write_text(path, "".join(_line(row) for row in done.values()))
    open_prompts = [p for p in prompts if keys[p.digest] not in done]
    left_out = 0
    if open_prompts:
        left_out = _answer(open_prompts, keys, done, path, config, work, max_new_tokens)
    rows = [done[keys[p.digest]] for p in prompts if keys[p.digest] in done]
    write_text(path, "".join(_line(row) for row in rows))
    return rows, kept, left_out


def answer_key(prompt: Prompt, config: Config, checkpoint: Any, max_new_tokens: int) -> str:
    """A hash of all that decides the answer to `prompt`: its text, the target, and how it is sampled."""
    sampling = [max_new_tokens, *_sampling(prompt, config), config.seed]
    parts = [prompt.digest, prompt.split, config.target, checkpoint, sampling]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def read_rows(path: Path) -> list[Row]:
    """The whole lines of an answers file; without the last one if the writer was killed inside it."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in read_lines(path, whole=True)]


def open_answerer(config: Config, work: Workdir) -> Answerer:
    """The servers of `generate.endpoint`, or the target itself."""
    if config.generate.endpoint:
        return Endpoints(config.generate.endpoint, config.generate.concurrency)
    from .local import Local

    return Local(load_model(config, work.target, set_up_torch(config)), config.generate.batch_size)


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _sampling(prompt: Prompt, config: Config) -> tuple[float, float]:
    greedy = prompt.split == "eval" or config.generate.temperature == 0.0
    return (0.0, 1.0) if greedy else (config.generate.temperature, config.generate.top_p)


def _answer(
    prompts: Sequence[Prompt], keys: dict[str, str], done: dict[str, Row], path: Path, config: Config, work: Workdir,
    max_new_tokens: int,
) -> int:  # fmt: skip
    """Answer `prompts` into `done` and, as each answer comes, into the file. Returns how many are too long to ask."""
    tokenizer = load_tokenizer(work.target)
    stops = stop_tokens(work.target, tokenizer)
    arguments = template_arguments(config)
    encoded = {p.digest: chat_ids(tokenizer, p.messages, generation_prompt=True, **arguments) for p in prompts}
    asked = [p for p in prompts if len(encoded[p.digest]) <= config.generate.max_prompt_tokens]
    # Evaluation first, then by a hash: when time runs out, every file has had its share.
    asked.sort(key=lambda p: (p.split != "eval", p.digest))
    requests = [Request(encoded[p.digest], max_new_tokens, stops, *_sampling(p, config)) for p in asked]
    limit = config.generate.max_seconds
    until = time.monotonic() + limit if limit else float("inf")
    progress, meter, differ = Progress(len(asked), "answers"), Meter(), 0
    with path.open("a", encoding="utf-8") as file:
        for number, answer in open_answerer(config, work).answer(requests, until=until):
            row = _row(asked[number], requests[number], answer, keys[asked[number].digest], tokenizer)
            done[row["key"]] = row
            file.write(_line(row))
            file.flush()
            meter.add(len(answer.ids))
            differ += answer.text is not None and answer.text.strip() != row["answer"].strip()
            if meter.answers == min(CHECKED, len(asked)) and differ > meter.answers / 2:
                raise StepError(
                    f"the server says {answer.text!r:.90} where the target's tokenizer reads {row['answer']!r:.90}",
                    hint="serve the very checkpoint that `target` names: the server's tokenizer is another one",
                )
            progress.update(meter.answers)
            if meter.due():
                say(f"{meter.text(len(asked))}; the last: {row['answer'][:60]!r}")
    say(f"{meter.text(len(asked))}; {len(prompts) - len(asked)} prompts are too long to ask")
    return len(prompts) - len(asked)


def _row(prompt: Prompt, request: Request, answer: Answer, key: str, tokenizer: Any) -> Row:
    text = tokenizer.decode(answer.ids, skip_special_tokens=True)
    return {
        "id": prompt.id, "split": prompt.split, "key": key, "prompt": prompt.text, "answer": text,
        "finish": "stop" if answer.stopped else "length", "temperature": request.temperature, "top_p": request.top_p,
        "prompt_ids": request.ids, "answer_ids": answer.ids,
    }  # fmt: skip


class Meter:
    """Answers and tokens so far, and their rate."""

    def __init__(self) -> None:
        self.answers = self.tokens = 0
        self._began = self._said = time.monotonic()

    def add(self, tokens: int) -> None:
        self.answers, self.tokens = self.answers + 1, self.tokens + tokens

    def due(self, every: float = 5.0) -> bool:
        """Whether it is time for a line."""
        now = time.monotonic()
        due = now - self._said >= every
        self._said = now if due else self._said
        return due

    def text(self, total: int) -> str:
        seconds = max(1e-6, time.monotonic() - self._began)
        left = (total - self.answers) * seconds / max(1, self.answers)
        rate = f"{self.tokens / seconds:,.0f} tokens/s"
        return f"{self.answers}/{total} answers, {self.tokens} tokens, {rate}, {left:.0f} s left"


if __name__ == "__main__":
    raise SystemExit(run_step("generate", generate, shorthands={"--endpoint": "generate.endpoint[]"}))
