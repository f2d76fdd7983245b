"""Run the target over its answers and keep what the drafter learns from: three hidden states and the last one.

Boundary k is the input of layer k (`hidden_states[k]`); the default is [2, L//2, L-3], as SGLang and vLLM have it.
The size on disk is computed and held against the free space before the first forward pass. Sequences go into shards
by their order in the answers file, so a run that was killed skips the shards that are there; when anything that
decides the contents has changed, the fingerprint differs and all of it is made anew.

    python -m eagle3.extract --preset smoke
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .config import Config
from .data import Conversation, load_answers
from .errors import StepError
from .held import groups
from .prompts import SPLITS
from .runtime import Progress, Result, Workdir, read_json, run_step, say, set_up_torch, torch_dtype, write_json
from .shards import INDEX, Features, Shards, write_shard
from .target import Target, read_config, resolve_boundaries

Plan = dict[str, list[list[Conversation]]]


def extract(config: Config, work: Workdir) -> Result:
    """Store the target's hidden states over its answers."""
    settings = read_config(work.target)
    boundaries = resolve_boundaries(config.extract.boundaries, settings.num_hidden_layers)
    plan = {s: list(_group(load_answers(work.answers, s), config.extract.shard_tokens)) for s in SPLITS}
    index = _index(config, work, boundaries, settings.hidden_size, plan)
    tokens = {s: sum(len(c.ids) for shard in plan[s] for c in shard) for s in SPLITS}
    result = {"boundaries": list(boundaries), "tokens": tokens, "bytes": index["bytes"]}
    if _forget_others(work.shards, index["fingerprint"]):
        say("all shards are there already")
    else:
        _check_space(work, index["bytes"])
        _extract_missing(config, work, plan, boundaries, sum(tokens.values()))
        write_json(work.shards / INDEX, index)
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


def _index(config: Config, work: Workdir, boundaries: tuple[int, ...], hidden: int, plan: Plan) -> dict[str, Any]:
    """What the folder will hold, with a fingerprint of everything that decides it."""
    bytes_each = torch_dtype(config.extract.store_dtype, torch.device("cpu")).itemsize
    tokens = sum(len(c.ids) for shards in plan.values() for shard in shards for c in shard)
    index = {
        "target": config.target,
        "boundaries": list(boundaries),
        "boundary_convention": "k is the input of layer k, hidden_states[k]",
        "last": "after the final norm",
        "store_dtype": config.extract.store_dtype,
        "compute_dtype": config.dtype,
        "hidden_size": hidden,
        "bytes": tokens * ((len(boundaries) + 1) * hidden * bytes_each + 9),  # 9: ids, argmax (4 each), mask
        "splits": {s: [f"{s}-{n:05d}.safetensors" for n in range(len(plan[s]))] for s in SPLITS},
    }
    digest = hashlib.sha256(json.dumps([index, read_json(work.target / "config.json")], sort_keys=True).encode())
    digest.update(work.answers.read_bytes())
    return {**index, "fingerprint": digest.hexdigest()[:16]}


def _forget_others(folder: Path, fingerprint: str) -> bool:
    """Remove shards that belong to other contents; whether those of `fingerprint` are complete."""
    mark = folder / "fingerprint"
    if folder.exists() and (not mark.is_file() or mark.read_text() != fingerprint):
        if not mark.is_file():
            raise StepError(f"`{folder}` is there and holds no shards of this step", hint="move it away")
        say("the stored hidden states are of other answers or settings: starting over")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text(fingerprint)
    return (folder / INDEX).is_file()


def _check_space(work: Workdir, needed: int) -> None:
    free = shutil.disk_usage(work.shards).free
    say(f"hidden states: {needed / 1e6:.1f} MB on disk, {free / 1e9:.1f} GB free")
    if needed > free:
        raise StepError(
            f"the hidden states need {needed / 1e9:.1f} GB and `{work.shards}` has {free / 1e9:.1f} GB free",
            hint="free space, work in another directory, or take fewer or shorter answers",
        )


def _extract_missing(config: Config, work: Workdir, plan: Plan, boundaries: tuple[int, ...], total: int) -> None:
    """Write each shard that is not there."""
    device = set_up_torch(config)
    target = Target.load(config, work.target, device)
    dtype = torch_dtype(config.extract.store_dtype, torch.device("cpu"))
    progress = Progress(total, "tokens")
    done = 0
    for split in SPLITS:
        for number, conversations in enumerate(plan[split]):
            path = work.shards / f"{split}-{number:05d}.safetensors"
            if path.is_file():
                done += sum(len(c.ids) for c in conversations)
                continue
            sequences: dict[int, Features] = {}
            for batch in groups([len(c.ids) for c in conversations], config.extract.batch_tokens):
                for n, features in zip(batch, _run(target, [conversations[n] for n in batch], dtype), strict=True):
                    sequences[n] = features
                    done += len(features.ids)
                progress.update(done)
            write_shard(path, [sequences[n] for n in range(len(conversations))])


def _run(target: Target, conversations: list[Conversation], dtype: torch.dtype) -> Iterator[Features]:
    width = max(len(c.ids) for c in conversations)
    ids = torch.tensor([c.ids + [0] * (width - len(c.ids)) for c in conversations])
    features, last = target.hidden_states(ids)
    for row, conversation in enumerate(conversations):
        n = len(conversation.ids)
        yield Features(
            ids=ids[row, :n],
            mask=torch.tensor(conversation.mask, dtype=torch.bool),
            features=features[row, :n].to("cpu", dtype),
            last=last[row, :n].to("cpu", dtype),
            argmax=target.argmax(last[row, :n]).cpu(),
        )


if __name__ == "__main__":
    raise SystemExit(run_step("extract", extract))
