"""Train the drafter by training-time test, with AdamW, a warm-up and a cosine decay.

With `train.states=stored` the hidden states come from extract; with `online` the frozen target computes them for each
batch in this process, and nothing is stored. Runs on a CPU, on a GPU, or by `torchrun` on several.

    drafter/log.jsonl        one line a step: losses, accuracies, learning rate, norm of the gradient
    drafter/checkpoints/     the newest two
    drafter/best/            with `train.evaluate_every`: the one with the longest acceptance on held-out answers
    drafter/model/           the finished drafter, float32: the best one, or else the last
    drafter/profile.txt      with --profile: where the time goes

    python -m eagle3.train --preset smoke --set train.steps=200
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch
import transformers

from .acceptance import Acceptance, acceptances
from .build import first_drafter
from .compiled import is_compiled, uncompiled, use_compiled
from .config import Config
from .data import Conversation, load_answers
from .distributed import Group
from .errors import StepError
from .evaluate import held_answers
from .export import save_drafter
from .feed import Feed, Form, Online, Stored
from .journal import read_log
from .model import Drafter
from .provenance import check
from .runtime import Result, Workdir, compute, run_step, set_up_torch
from .shards import Shards
from .target import Target, load_tokenizer, read_config, resolve_boundaries
from .trainer import Trainer

WITHOUT_EFFECT = ("checkpoint_every", "evaluate_every", "evaluate_answers", "compile", "profile")


def train(config: Config, work: Workdir) -> Result:
    """Train the drafter, going on from its newest checkpoint."""
    device = set_up_torch(config)
    group = Group.join(device)
    if config.train.compile not in ("auto", "on", "off"):
        raise StepError(f"`train.compile` is `{config.train.compile}`", hint="choose auto, on or off")
    use_compiled(config.train.compile == "on" or (config.train.compile == "auto" and device.type == "cuda"))
    check(config, work, load_tokenizer(work.target))
    conversations = load_answers(work.answers, "train")
    if not conversations:
        raise StepError(f"`{work.answers}` has no answer to train on", hint="run `python -m eagle3.generate` first")
    drafter, head = first_drafter(config, work, conversations)
    drafter.to(device)
    target = Target.load(config, work.target, device) if config.train.states == "online" else None
    feed, fingerprint = open_feed(config, work, drafter, conversations, target)
    trainer = Trainer(
        config.train, drafter, head.to(device), feed, [c.id for c in conversations], work.drafter,
        seed=config.seed, fingerprint=fingerprint, group=group, judge=judge(config, work, drafter, target),
    )  # fmt: skip
    first = trainer.resume()
    trainer.run()
    if group.leads:
        _finish(config, work, drafter)
    group.leave()
    return {
        **_figures(config, work, conversations, feed, trainer),
        "resumed_at": first,
        "tokens_per_second": round(trainer.rate or (trainer.tokens / trainer.seconds if trainer.seconds else 0)),
        "trained_seconds": round(trainer.seconds, 1),  # of all runs together
        "peak_gpu_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else 0,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "processes": group.size,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "tensorboard": (work.drafter / "tensorboard").is_dir(),
    }


def open_feed(
    config: Config, work: Workdir, drafter: Drafter, conversations: Sequence[Conversation], target: Target | None
) -> tuple[Feed, str]:
    """Where batches come from, and a hash of all that decides what this training computes."""
    feed: Feed
    decides = [{k: v for k, v in asdict(config.train).items() if k not in WITHOUT_EFFECT}, asdict(config.draft)]
    device, longest = drafter.fc.weight.device, config.train.max_length
    form = Form.of(config.train.batch_tokens, longest) if is_compiled() else Form()
    if target:
        feed = Online(conversations, target, drafter.t2d, longest, form)
        data = hashlib.sha256(work.answers.read_bytes()).hexdigest()
    elif config.train.states == "stored":
        shards = Shards(work.shards, "train")
        boundaries = resolve_boundaries(config.extract.boundaries, read_config(work.target).num_hidden_layers)
        if list(boundaries) != shards.index["boundaries"]:
            raise StepError(
                f"the stored states are of the boundaries {shards.index['boundaries']}, not {list(boundaries)}",
                hint="run `python -m eagle3.extract` again",
            )
        top = shards.index.get("teacher_top", 0)
        if top != config.extract.teacher_top:
            raise StepError(
                f"the shards were stored with `extract.teacher_top={top}`, and it is {config.extract.teacher_top} now",
                hint="run `python -m eagle3.extract` again",
            )
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        feed, data = Stored(shards, drafter.t2d, longest, device, dtype, form), shards.index["fingerprint"]
    else:
        raise StepError(f"`train.states` is `{config.train.states}`", hint="choose stored or online")
    digest = hashlib.sha256(json.dumps([*decides, config.seed, data], sort_keys=True).encode())
    return feed, digest.hexdigest()[:16]


def judge(config: Config, work: Workdir, drafter: Drafter, target: Target | None) -> Callable[[], Acceptance] | None:
    """Something that measures the drafter as it is, or `None` when nothing is held out."""
    drafts = config.evaluate.draft_tokens
    if not config.train.evaluate_every:
        return None
    held = held_answers(config, work, target, config.train.evaluate_answers)
    if held is None:
        return None

    def measure() -> Acceptance:
        with compute(drafter.fc.weight.device), uncompiled():  # answers have lengths of their own
            return acceptances(drafter, held, [drafts])[drafts]

    return measure


def _finish(config: Config, work: Workdir, drafter: Drafter) -> None:
    """Put the finished drafter in its place."""
    best, model = work.drafter / "best", work.drafter / "model"
    if config.train.evaluate_every and best.is_dir():
        shutil.copytree(best, model, dirs_exist_ok=True)
    else:
        save_drafter(drafter, model, torch.float32)


def _figures(
    config: Config, work: Workdir, conversations: Sequence[Conversation], feed: Feed, trainer: Trainer
) -> Result:
    rows = read_log(work.drafter / "log.jsonl")
    tail = rows[-max(1, len(rows) // 10) :]
    return {
        "steps": trainer.done,
        "sequences": len(conversations),
        "tokens_in_all": sum(feed.lengths),
        "tokens_seen": trainer.tokens,
        "epochs": round(trainer.tokens / max(1, sum(feed.lengths)), 2),
        "parameters": sum(p.numel() for p in trainer.weights),
        "draft_vocab_size": len(trainer.drafter.d2t),
        "loss_first": rows[0]["loss"],
        "loss_last": sum(r["loss"] for r in tail) / len(tail),
        "accuracy_last": [sum(a) / len(tail) for a in zip(*(r["accuracy"] for r in tail), strict=True)],
        "best_acceptance_length": trainer.best or None,
    }


if __name__ == "__main__":
    raise SystemExit(run_step("train", train, shorthands={"--profile": "train.profile"}))
