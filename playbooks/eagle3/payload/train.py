"""Train the drafter by training-time test, with AdamW, a warm-up and a cosine decay.

Everything a step does is a function of the weights, the optimiser's moments and the step's number: which sequences it
sees comes from the seed and the epoch. So a run that was killed goes on from its newest checkpoint and repeats the
very losses of an undisturbed one. A loss or a gradient that is no number stops the run before it reaches the weights;
the last good checkpoint stays.

    drafter/log.jsonl        one line a step: losses, accuracies, learning rate, norm of the gradient
    drafter/checkpoints/     the newest two
    drafter/model/           the finished drafter, float32

    python -m eagle3.train --preset smoke --set train.steps=200
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .build import new_drafter
from .checkpoint import latest_checkpoint, save_checkpoint
from .config import Config, Train
from .errors import StepError
from .export import save_drafter
from .model import Drafter
from .objective import Batch, Losses, unrolled_loss
from .runtime import Progress, Result, Workdir, run_step, say, set_up_torch, write_text
from .shards import Shards


def train(config: Config, work: Workdir) -> Result:
    """Train the drafter, going on from its newest checkpoint."""
    device = set_up_torch(config)
    shards = Shards(work.shards, "train")
    drafter, head = new_drafter(config, work, shards)
    trainer = Trainer(config, shards, drafter.to(device), head.to(device), work.drafter)
    first = trainer.resume()
    started = time.monotonic()
    trainer.run(first)
    seconds = time.monotonic() - started
    save_drafter(drafter, work.drafter / "model", torch.float32)
    rows = read_log(work.drafter / "log.jsonl")
    if not rows:
        raise StepError("`train.steps` is 0: nothing was trained", hint="set `train.steps` to at least 1")
    tail = rows[-max(1, len(rows) // 10) :]
    return {
        "steps": config.train.steps,
        "resumed_at": first,
        "sequences": len(shards),
        "epochs": round(config.train.steps * config.train.batch_size / len(shards), 2),
        "parameters": sum(p.numel() for p in drafter.parameters()),
        "draft_vocab_size": len(drafter.d2t),
        "loss_first": rows[0]["loss"],
        "loss_last": sum(r["loss"] for r in tail) / len(tail),
        "accuracy_last": [sum(a) / len(tail) for a in zip(*(r["accuracy"] for r in tail), strict=True)],
        "positions_per_second": round(trainer.positions / seconds) if seconds else 0,
    }


class Trainer:
    """The loop, its optimiser and its files."""

    def __init__(self, config: Config, shards: Shards, drafter: Drafter, head: Tensor, folder: Path) -> None:
        self.config, self.shards, self.drafter, self.head, self.folder = config, shards, drafter, head, folder
        settings = config.train
        self.optimizer = torch.optim.AdamW(
            drafter.parameters(),
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
        )
        decides = [asdict(settings), asdict(config.draft), config.seed, shards.index["fingerprint"]]
        decides[0].pop("checkpoint_every")
        self.fingerprint = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]
        self.positions = 0

    def resume(self) -> int:
        """Load the newest checkpoint of this very run, cut the log to it, and return the number of steps done."""
        state = latest_checkpoint(self.folder / "checkpoints", self.fingerprint)
        done = 0
        if state:
            self.drafter.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            done = state["step"]
            say(f"going on after step {done}")
        log = self.folder / "log.jsonl"
        write_text(log, "".join(json.dumps(row) + "\n" for row in read_log(log)[:done]))
        return done

    def run(self, first: int) -> None:
        """Train from step `first` to the end. Raises StepError when the loss or the gradient is no number."""
        settings = self.config.train
        progress = Progress(settings.steps, "steps")
        progress.update(first)
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            for step in range(first, settings.steps):
                row = self.step(step)
                log.write(json.dumps(row) + "\n")
                log.flush()
                progress.update(step + 1)
                if (step + 1) % 10 == 0:
                    shares = " ".join(f"{a:.2f}" for a in row["accuracy"])
                    say(f"step {step + 1} loss {row['loss']:.4f} accuracy {shares} lr {row['lr']:.2e}")
                if (step + 1) % settings.checkpoint_every == 0 or step + 1 == settings.steps:
                    self.save(step + 1)

    def save(self, done: int) -> None:
        state = {
            "fingerprint": self.fingerprint,
            "model": self.drafter.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        save_checkpoint(self.folder / "checkpoints", done, state)

    def step(self, step: int) -> dict[str, Any]:
        """One update; the row for the log."""
        settings = self.config.train
        rate = learning_rate(settings, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        picked = batch_indices(len(self.shards), settings.batch_size, step, self.config.seed)
        batch = Batch.of([self.shards[n] for n in picked], settings.max_length, self.head.device)
        losses = unrolled_loss(self.drafter, self.head, batch, settings.unroll_steps, settings.loss_decay)
        self.optimizer.zero_grad(set_to_none=True)
        losses.total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), settings.clip).item()
        self._check(step, losses, norm)
        self.optimizer.step()
        self.positions += losses.positions
        return {
            "step": step + 1,
            "loss": losses.total.item(),
            "losses": losses.steps,
            "accuracy": losses.accuracy,
            "lr": rate,
            "gradient_norm": norm,
        }

    def _check(self, step: int, losses: Losses, norm: float) -> None:
        if math.isfinite(norm) and math.isfinite(losses.total.item()):
            return
        kept = sorted((self.folder / "checkpoints").glob("step-*.pt"))
        raise StepError(
            f"step {step + 1}: the loss is {losses.total.item()} and the gradient's norm {norm}; "
            f"the last good state is {kept[-1].name if kept else 'the beginning'}",
            hint="lower `train.learning_rate`, or look for broken hidden states in that batch",
        )


def learning_rate(settings: Train, step: int) -> float:
    """The rate of step `step` (from 0): linear up over the warm-up, then half a cosine down to zero at the end."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    left = max(1, settings.steps - settings.warmup_steps)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - settings.warmup_steps) / left))


def batch_indices(sequences: int, batch_size: int, step: int, seed: int) -> list[int]:
    """Which sequences step `step` sees: each epoch is a permutation of all, drawn from the seed and the epoch alone."""
    picked: list[int] = []
    for place in range(step * batch_size, (step + 1) * batch_size):
        epoch, index = divmod(place, sequences)
        order = torch.randperm(sequences, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        picked.append(int(order[index]))
    return picked


def read_log(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a training log."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


if __name__ == "__main__":
    raise SystemExit(run_step("train", train))
