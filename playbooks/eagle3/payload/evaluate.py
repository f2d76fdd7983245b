"""Predict what the drafter is worth when it is served, from the target's own hidden states and without an engine.

The prediction is exact for a greedy chain (see acceptance) and is made for each set of prompts on its own: the held-out
answers under the name `held-out`, and every `--prompts name=file.jsonl`, answered greedily first (by
`generate.endpoint` or in this process). The result, in `results/evaluate.json`, is what an engine is held against:

    target, drafter, template     hashes: checkpoint, exported tensors, chat template
    draft_tokens                  the length of the chain that `length` and its neighbours speak of
    sets: {name: {length, rounds, histogram, conditional, answers, greedy_agreement,
                  chains: {"3": {length, rounds, histogram, conditional}, "5": ...}}}

`histogram[k]` rounds had exactly k drafts accepted; `conditional[k-1]` is the share of those with k-1 accepted that
accepted a k-th. Beside them stand `acceptance_length`, `histogram`, `conditional` and `rounds` of all sets together.

    python -m eagle3.evaluate --preset smoke
    python -m eagle3.evaluate --preset h200-smollm2 --prompts mt-bench=mt.jsonl --prompts gsm8k=gsm8k.jsonl
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from .acceptance import Acceptance, acceptances
from .config import Config
from .data import Conversation, conversation_of, load_answers
from .errors import StepError
from .export import digest_of as drafter_digest
from .export import load_drafter
from .generate import answer_set
from .held import Held, HeldOnline, HeldStored
from .model import Drafter
from .prompts import named_files
from .runtime import Progress, Result, Workdir, compute, run_step, say, set_up_torch
from .shards import INDEX, Shards
from .target import Target, load_tokenizer, read_embedding
from .target import digest_of as target_digest
from .verify import verify


def evaluate(config: Config, work: Workdir) -> Result:
    """Predict the trained drafter's acceptance, for each set of prompts."""
    drafter = load_drafter(work.drafter / "model", read_embedding(work.target))
    result = measure(config, work, drafter)
    if config.evaluate.verify:
        held = load_answers(work.answers, "eval")[: config.evaluate.verify]
        target = Target.load(config, work.target, set_up_torch(config))
        result["verified"] = verify(target, drafter, held, config.evaluate.draft_tokens)
        say(f"draft and verify, token by token: {result['verified']}")
    return result


def measure(config: Config, work: Workdir, drafter: Drafter) -> Result:
    """The acceptance of `drafter` on every set, as a step's result."""
    drafts = config.evaluate.draft_tokens
    chains = sorted({drafts, *config.evaluate.chains})
    if chains[0] < 1:
        raise StepError(f"`evaluate.draft_tokens` is {chains[0]}", hint="a chain has at least one draft")
    answers = {}
    for name, path in named_files(config.evaluate.prompts):
        rows = answer_set(name, path, config, work)
        answers[name] = [conversation_of(row) for row in rows if row["answer_ids"]]
    device = set_up_torch(config)
    drafter = drafter.to(device).eval()
    sets = dict(_held_sets(config, work, answers, device))
    if not sets:
        raise StepError("nothing is held out to evaluate on", hint="give `--prompts name=file.jsonl`")
    progress, results, total = Progress(len(sets), "sets"), {}, Acceptance((0,) * (drafts + 1))
    for done, (name, held) in enumerate(sets.items(), 1):
        with compute(device):
            found = acceptances(drafter, held, chains)
        total += found[drafts]
        results[name] = _entry(found, drafts, held)
        _say(name, results[name])
        progress.update(done)
    agreement = min(r["greedy_agreement"] for r in results.values())
    return {
        "acceptance_length": round(total.length, 4),
        **{k: v for k, v in total.to_json().items() if k != "length"},
        "draft_tokens": drafts,
        "answers": sum(r["answers"] for r in results.values()),
        "greedy_agreement": agreement,
        "sets": results,
        "files": {
            **({"held-out": str(work.answers)} if "held-out" in results else {}),
            **{name: str(work.set_of(name)) for name in answers},
        },
        "target": target_digest(work.target),
        "drafter": drafter_digest(drafter),
        "template": hashlib.sha256(str(load_tokenizer(work.target).chat_template).encode()).hexdigest()[:16],
    }


def held_answers(config: Config, work: Workdir, target: Target | None, limit: int) -> Held | None:
    """The held-out answers of `generate`; `None` when there are none. Stored states are used when `target` is none."""
    if target:
        conversations = load_answers(work.answers, "eval")[: limit or None]
        return HeldOnline(conversations, target) if conversations else None
    device = set_up_torch(config)
    shards = Shards(work.shards, "eval")
    return HeldStored(shards, device, limit) if len(shards) else None


def _held_sets(config: Config, work: Workdir, answers: dict[str, list[Conversation]], device: torch.device) -> Any:
    """Name and answers of each set. The target is loaded only when states are not stored."""
    stored = config.train.states == "stored" and (work.shards / INDEX).is_file()
    target = None
    if answers or not stored:
        target = Target.load(config, work.target, device)
    held = held_answers(config, work, None if stored else target, 0)
    if held:
        yield "held-out", held
    for name, conversations in answers.items():
        yield name, HeldOnline(conversations, target)  # type: ignore[arg-type]


def _entry(found: dict[int, Acceptance], drafts: int, held: Held) -> dict[str, Any]:
    return {
        **found[drafts].to_json(),
        "draft_tokens": drafts,
        "answers": len(held.lengths),
        "greedy_agreement": round(held.agreement(), 4),
        "chains": {str(k): a.to_json() for k, a in found.items()},
    }


def _say(name: str, entry: dict[str, Any]) -> None:
    lengths = ", ".join(f"{a['length']:.3f} with {k} drafts" for k, a in entry["chains"].items())
    say(f"{name}: acceptance length {lengths} ({entry['answers']} answers)")
    if entry["greedy_agreement"] < 0.97:
        share = entry["greedy_agreement"]
        say(f"{name}: only {share:.3f} of the answers is what the target says greedily: a prediction for other text")


if __name__ == "__main__":
    raise SystemExit(run_step("evaluate", evaluate, shorthands={"--prompts": "evaluate.prompts[]"}))
