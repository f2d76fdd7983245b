"""Run the target over its answers and keep what the drafter learns from: three hidden states and the last one.

Boundary k is the input of layer k (`hidden_states[k]`); the default is [2, L//2, L-3], as SGLang and vLLM have it.
The size on disk is computed and held against the free space before the first forward pass. Sequences go into shards
by their order in the answers file, so a run that was killed skips the shards that are there and makes damaged ones
anew; when anything that decides the contents has changed, the fingerprint differs and all of it is made anew.

    python -m eagle3.extract --preset smoke
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .build import kept_tokens
from .config import Config
from .data import Conversation, check_tokens, load_answers
from .errors import StepError
from .held import groups
from .prompts import SPLITS
from .provenance import check
from .runtime import Progress, Result, Workdir, read_json, run_step, say, set_up_torch, torch_dtype, write_json
from .shards import INDEX, Features, Shards, is_whole, write_shard
from .target import Target, load_tokenizer, read_config, read_head, resolve_boundaries
from .teacher import Fidelity, Top, likeliest

Plan = dict[str, list[list[Conversation]]]


def extract(config: Config, work: Workdir) -> Result:
    """Store the target's hidden states over its answers."""
    check(config, work, load_tokenizer(work.target))
    if config.train.states != "stored":
        say("nothing to store: training runs the target itself (`train.states=online`)")
        return {"boundaries": None, "tokens": None, "bytes": 0}
    settings = read_config(work.target)
    boundaries = resolve_boundaries(config.extract.boundaries, settings.num_hidden_layers)
    conversations = {s: load_answers(work.answers, s) for s in SPLITS}
    for split in SPLITS:
        check_tokens(conversations[split], settings.vocab_size)
    plan = {s: list(_group(conversations[s], config.extract.shard_tokens)) for s in SPLITS}
    kept = kept_tokens(config, work, conversations["train"]) if config.extract.teacher_top else None
    index = _index(config, work, boundaries, settings.hidden_size, plan, kept)
    tokens = {s: sum(len(c.ids) for shard in plan[s] for c in shard) for s in SPLITS}
    result = {"boundaries": list(boundaries), "tokens": tokens, "bytes": index["bytes"]}
    _forget_others(work.shards, index["fingerprint"])
    missing = _missing(work, plan)
    if not missing and (work.shards / INDEX).is_file():
        say("all shards are there already")
        result["fidelity"] = read_json(work.shards / INDEX).get("fidelity")
    else:
        result |= _extract_missing(config, work, plan, missing, kept, index)
    agreement = {s: round(Shards(work.shards, s).greedy_agreement(), 4) for s in SPLITS}
    say(f"the target would say these shares of its answers' tokens again (1 for greedy answers): {agreement}")
    return {**result, "greedy_agreement": agreement}


def _group(conversations: list[Conversation], shard_tokens: int) -> Iterator[list[Conversation]]:
    shard: list[Conversation] = []
    for conversation in conversations:
        shard.append(conversation)
        if sum(len(c.ids) for c in shard) >= shard_tokens:
            yield shard
            shard = []
    if shard:
        yield shard


def _index(
    config: Config, work: Workdir, boundaries: tuple[int, ...], hidden: int, plan: Plan, kept: torch.Tensor | None
) -> dict[str, Any]:
    """What the folder will hold, with a fingerprint of everything that decides it."""
    bytes_each = torch_dtype(config.extract.store_dtype, torch.device("cpu")).itemsize
    teacher = 6 * min(config.extract.teacher_top, len(kept)) if kept is not None else hidden * bytes_each
    tokens = sum(len(c.ids) for shards in plan.values() for shard in shards for c in shard)
    index = {
        "target": config.target,
        "boundaries": list(boundaries),
        "boundary_convention": "k is the input of layer k, hidden_states[k]",
        "last": "after the final norm",
        "teacher_top": config.extract.teacher_top,
        "store_dtype": config.extract.store_dtype,
        "compute_dtype": config.dtype,
        "hidden_size": hidden,
        "bytes": tokens * (len(boundaries) * hidden * bytes_each + teacher + 9),  # 9: ids, argmax (4 each), mask
        "splits": {s: [f"{s}-{n:05d}.safetensors" for n in range(len(plan[s]))] for s in SPLITS},
    }
    digest = hashlib.sha256(json.dumps([index, read_json(work.target / "config.json")], sort_keys=True).encode())
    digest.update(work.answers.read_bytes())
    digest.update(str(None if kept is None else kept.tolist()).encode())
    return {**index, "fingerprint": digest.hexdigest()[:16]}


def _forget_others(folder: Path, fingerprint: str) -> None:
    """Remove shards that belong to other contents than `fingerprint`."""
    mark = folder / "fingerprint"
    if folder.exists() and (not mark.is_file() or mark.read_text() != fingerprint):
        if not mark.is_file():
            raise StepError(f"`{folder}` is there and holds no shards of this step", hint="move it away")
        say("the stored hidden states are of other answers or settings: starting over")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text(fingerprint)


def _shard(work: Workdir, split: str, number: int) -> Path:
    return work.shards / f"{split}-{number:05d}.safetensors"


def _missing(work: Workdir, plan: Plan) -> list[tuple[str, int]]:
    """Split and number of each shard that is not there or does not open; such a one is removed."""
    missing = []
    for split in SPLITS:
        for number, conversations in enumerate(plan[split]):
            path = _shard(work, split, number)
            if not is_whole(path, sum(len(c.ids) for c in conversations)):
                if path.exists():
                    say(f"shard {path.name} is damaged: it is made anew")
                    path.unlink()
                missing.append((split, number))
    return missing


def _check_space(work: Workdir, needed: int, there: int) -> None:
    free = shutil.disk_usage(work.shards).free
    say(f"hidden states: {needed / 1e6:.1f} MB on disk, {there / 1e6:.1f} MB of them there, {free / 1e9:.1f} GB free")
    if needed - there > free:
        raise StepError(
            f"the hidden states need {(needed - there) / 1e9:.1f} GB more and `{work.shards}` has {free / 1e9:.1f} GB",
            hint="free space, work in another directory, take fewer or shorter answers, or train with "
            "`train.states=online`, which stores nothing",
        )


def _extract_missing(
    config: Config, work: Workdir, plan: Plan, missing: list[tuple[str, int]], kept: torch.Tensor | None,
    index: dict[str, Any],
) -> Result:  # fmt: skip
    """Write each shard that is `missing`, then the index. Returns the rate and, for a cut teacher, what it loses."""
    needed = sum(len(c.ids) for s, n in missing for c in plan[s][n])
    total = sum(len(c.ids) for shards in plan.values() for shard in shards for c in shard)
    _check_space(work, index["bytes"], round(index["bytes"] * (total - needed) / max(1, total)))
    device = set_up_torch(config)
    target = Target.load(config, work.target, device)
    storer = Storer(config, target, None if kept is None else read_head(work.target)[kept].to(device))
    progress, done, began = Progress(total, "tokens"), total - needed, time.monotonic()
    for split, number in missing:
        conversations = plan[split][number]
        sequences: dict[int, Features] = {}
        for batch in groups([len(c.ids) for c in conversations], config.extract.batch_tokens):
            sequences |= dict(zip(batch, storer.run([conversations[n] for n in batch]), strict=True))
            done += sum(len(conversations[n].ids) for n in batch)
            progress.update(done)
        write_shard(_shard(work, split, number), [sequences[n] for n in range(len(conversations))])
    found: Result = {"tokens_per_second": round(needed / (time.monotonic() - began))}
    if storer.head is not None:
        found["fidelity"] = storer.fidelity.to_json()
        say(f"the {config.extract.teacher_top} likeliest tokens in place of the last state: {found['fidelity']}")
    write_json(work.shards / INDEX, {**index, "fidelity": found.get("fidelity")})
    return found


class Storer:
    """Runs the target and gives what is stored of each conversation; `head` [D, H] cuts the teacher to its top."""

    def __init__(self, config: Config, target: Target, head: torch.Tensor | None) -> None:
        self.target, self.head, self.top = target, head, config.extract.teacher_top
        self.dtype = torch_dtype(config.extract.store_dtype, torch.device("cpu"))
        self.fidelity = Fidelity()

    @torch.no_grad()
    def run(self, conversations: list[Conversation]) -> Iterator[Features]:
        """One batch."""
        width = max(len(c.ids) for c in conversations)
        ids = torch.tensor([c.ids + [0] * (width - len(c.ids)) for c in conversations])
        features, last = self.target.hidden_states(ids)
        for row, conversation in enumerate(conversations):
            n = len(conversation.ids)
            state, top = last[row, :n], None
            if self.head is not None:
                top = likeliest(state, self.head, self.top)
                self.fidelity.add(state, self.head, top)
                top = Top(top.logs.cpu(), top.ids.cpu())
            yield Features(
                ids=ids[row, :n],
                mask=torch.tensor(conversation.mask, dtype=torch.bool),
                features=features[row, :n].to("cpu", self.dtype),
                last=None if top else state.to("cpu", self.dtype),
                argmax=self.target.argmax(state).cpu(),
                top=top,
            )


if __name__ == "__main__":
    raise SystemExit(run_step("extract", extract))
