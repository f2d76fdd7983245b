"""Let the target answer the prompts: a drafter learns what its target says, not what somebody else said.

Answers go to `answers.jsonl`, one a line, each with its token ids as they were produced (text that is tokenised again
does not always give the same ids) and with a key made of everything that decides it. A run that was killed keeps the
lines whose key still holds and answers the rest; a torn last line is dropped.

Answers for evaluation are greedy, since greedy decoding is what `evaluate` predicts.

    python -m eagle3.generate --preset smoke
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from .config import Config
from .data import Prompt, chat_ids, load_prompts
from .runtime import Progress, Result, Workdir, read_json, run_step, say, set_up_torch, torch_dtype, write_text
from .target import load_model, load_tokenizer, stop_tokens

Row = dict[str, Any]


def generate(config: Config, work: Workdir) -> Result:
    """Let the target answer the prompts."""
    prompts = load_prompts(config.data.prompts, config.data.train_prompts, config.data.eval_prompts)
    checkpoint = read_json(work.target / "config.json")
    keys = {p.id: answer_key(p, config, checkpoint) for p in prompts}
    done = [row for row in read_rows(work.answers) if keys.get(row["id"]) == row["key"]]
    write_text(work.answers, "".join(_line(row) for row in done))
    open_ids = set(keys) - {row["id"] for row in done}
    rows = done + _answer([p for p in prompts if p.id in open_ids], keys, config, work)
    order = {p.id: n for n, p in enumerate(prompts)}
    rows.sort(key=lambda row: order[row["id"]])
    write_text(work.answers, "".join(_line(row) for row in rows))
    return {
        "answers": len(rows),
        "kept_from_before": len(done),
        "tokens": {s: sum(len(r["answer_ids"]) for r in rows if r["split"] == s) for s in ("train", "eval")},
        "stopped_by_themselves": sum(r["finish"] == "stop" for r in rows),
        "chat_template": load_tokenizer(work.target).chat_template,
    }


def answer_key(prompt: Prompt, config: Config, checkpoint: Any) -> str:
    """A hash of all that decides the answer to `prompt`: its text, the target, and how it is sampled."""
    sampling = [config.generate.max_new_tokens, *_sampling(prompt, config), config.seed]
    parts = [prompt.text, prompt.split, config.target, checkpoint, sampling]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def read_rows(path: Path) -> list[Row]:
    """The whole lines of an answers file; without the last one if the writer was killed inside it."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _sampling(prompt: Prompt, config: Config) -> tuple[float, float]:
    greedy = prompt.split == "eval" or config.generate.temperature == 0.0
    return (0.0, 1.0) if greedy else (config.generate.temperature, config.generate.top_p)


def _answer(prompts: list[Prompt], keys: dict[str, str], config: Config, work: Workdir) -> list[Row]:
    """Answer `prompts` in batches of one way of sampling and similar length, and append each batch to the file."""
    if not prompts:
        return []
    device = set_up_torch(config)
    tokenizer = load_tokenizer(work.target)
    model = load_model(work.target, torch_dtype(config.dtype, device), device)
    stops = stop_tokens(work.target, tokenizer)
    encoded = {
        p.id: chat_ids(tokenizer, [{"role": "user", "content": p.text}], generation_prompt=True) for p in prompts
    }
    prompts = sorted(prompts, key=lambda p: (_sampling(p, config), len(encoded[p.id])))
    progress = Progress(len(prompts) * config.generate.max_new_tokens, "tokens")
    rows: list[Row] = []
    for batch in _batches(prompts, config):
        before = len(rows) * config.generate.max_new_tokens
        answers = _generate(
            model, [encoded[p.id] for p in batch], stops, _sampling(batch[0], config), config, progress, before
        )
        new = []
        for prompt, answer in zip(batch, answers, strict=True):
            finish = "stop" if answer[-1] in stops else "length"
            text = tokenizer.decode(answer, skip_special_tokens=True)
            new.append(
                {"id": prompt.id, "split": prompt.split, "key": keys[prompt.id], "prompt": prompt.text, "answer": text,
                 "finish": finish, "prompt_ids": encoded[prompt.id], "answer_ids": answer}
            )  # fmt: skip
        with work.answers.open("a", encoding="utf-8") as file:
            file.write("".join(_line(row) for row in new))
            file.flush()
            os.fsync(file.fileno())
        rows += new
        progress.update(len(rows) * config.generate.max_new_tokens)
        say(f"{len(rows)}/{len(prompts)} answers; the last: {rows[-1]['answer'][:80]!r}")
    return rows


def _batches(prompts: list[Prompt], config: Config) -> list[list[Prompt]]:
    batches: list[list[Prompt]] = []
    for prompt in prompts:
        full = batches and len(batches[-1]) == config.generate.batch_size
        if not batches or full or _sampling(batches[-1][0], config) != _sampling(prompt, config):
            batches.append([])
        batches[-1].append(prompt)
    return batches


class _Tick(StoppingCriteria):
    """Reports progress at each token of a batch and never stops it."""

    def __init__(self, progress: Progress, before: int) -> None:
        self.progress = progress
        self.done = before

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.done += len(input_ids)
        self.progress.update(self.done)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _generate(
    model: Any,
    prompts: list[list[int]],
    stops: list[int],
    sampling: tuple[float, float],
    config: Config,
    progress: Progress,
    before: int,
) -> list[list[int]]:
    """The answers' token ids, each cut after its first stop token."""
    width = max(map(len, prompts))
    pad = stops[0]
    ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts], device=model.device)
    seen = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    temperature, top_p = sampling
    how = {"do_sample": True, "temperature": temperature, "top_p": top_p} if temperature else {"do_sample": False}
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=seen,
            max_new_tokens=config.generate.max_new_tokens,
            eos_token_id=stops,
            pad_token_id=pad,
            stopping_criteria=StoppingCriteriaList([_Tick(progress, before)]),
            **how,
        )
    answers = []
    for row in out[:, width:].tolist():
        end = next((n for n, token in enumerate(row, 1) if token in stops), len(row))
        answers.append(row[:end])
    return answers


if __name__ == "__main__":
    raise SystemExit(run_step("generate", generate))
