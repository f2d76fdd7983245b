"""The training loop: batches in, checkpoints and a log out.

Everything a step does is a function of the weights, the optimiser's moments and the step's number (and, under a budget
of seconds, of the seconds spent). So a run that was killed goes on from its newest checkpoint and, with a number of
steps, repeats the very losses of an undisturbed one. A loss or a gradient that is no number stops the run before it
reaches the weights; the last good checkpoint stays.

One transfer a step brings all its figures from the device: the only place where the processor waits for it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from .acceptance import Acceptance
from .checkpoint import latest_checkpoint, save_checkpoint
from .config import Train
from .distributed import Group
from .errors import StepError
from .export import save_drafter
from .feed import Feed, batches
from .journal import Journal, Row
from .model import Drafter
from .objective import unrolled_loss
from .profile import Phases, watch
from .runtime import Progress, compute, say

WARM = 20  # steps that do not count for the rate: they compile and allocate


class Trainer:
    """The loop, its optimiser and its files in `folder`. `names` are the feed's sequences', for messages."""

    def __init__(
        self, settings: Train, drafter: Drafter, head: Tensor, feed: Feed, names: Sequence[str],
        folder: Path, *, seed: int, fingerprint: str, group: Group, judge: Callable[[], Acceptance] | None = None,
    ) -> None:  # fmt: skip
        self.settings, self.drafter, self.head, self.feed, self.names = settings, drafter, head, feed, names
        self.folder, self.seed, self.fingerprint, self.group, self.judge = folder, seed, fingerprint, group, judge
        self.device = head.device
        self.weights = list(drafter.parameters())
        self.optimizer = torch.optim.AdamW(
            self.weights,
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=self.device.type == "cuda",
        )
        self.phases = Phases(settings.profile, self.device)
        self.done, self.read, self.seconds, self.best = 0, 0, 0.0, 0.0
        self.tokens, self.rate = 0, 0.0

    def resume(self) -> int:
        """Load the newest checkpoint of this very run and return the number of steps done."""
        state = latest_checkpoint(self.folder / "checkpoints", self.fingerprint)
        if state:
            self.drafter.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.done, self.read, self.seconds, self.best = (state[k] for k in ("step", "read", "seconds", "best"))
            self.tokens = state["tokens"]
            say(f"going on after step {self.done}")
        elif self.group.leads:
            shutil.rmtree(self.folder / "best", ignore_errors=True)  # of another run
        return self.done

    def run(self) -> None:
        """Train to the end. Raises StepError when the loss is no number or the device's memory does not suffice."""
        progress = Progress(100, "% of training")
        if share_done(self.settings, self.done, self.seconds) >= 1:
            progress.update(100)
            return
        journal = Journal(self.folder, self.done) if self.group.leads else None
        per_step = self.group.size * self.settings.accumulate
        rooms = [self.feed.form.room(length) for length in self.feed.lengths]
        stream = itertools.islice(batches(rooms, self.settings.batch_tokens, self.seed), self.read, None)
        began, first, clock, counted = time.monotonic() - self.seconds, self.done, 0.0, 0
        with (
            contextlib.closing(journal) if journal else contextlib.nullcontext(),
            watch(self.settings.profile and self.group.leads, self._show_profile) as profiler,
        ):
            while (share := share_done(self.settings, self.done, self.seconds)) < 1:
                picked = list(itertools.islice(stream, per_step))[self.group.rank :: self.group.size]
                row = self._step(picked, share, time.monotonic() - began)
                self.done, self.read = self.done + 1, self.read + per_step
                if self.done - first == WARM:
                    clock, counted = time.monotonic(), self.tokens
                elif self.done - first > WARM:
                    self.rate = (self.tokens - counted) / (time.monotonic() - clock)
                paused = time.monotonic()
                self._after(row, journal, share_done(self.settings, self.done, self.seconds) >= 1)
                clock += time.monotonic() - paused  # judging and saving are no training: the rate is without them
                progress.update(min(100, int(100 * share_done(self.settings, self.done, self.seconds))))
                if profiler:
                    profiler.step()
        self.seconds = time.monotonic() - began

    def _after(self, row: Row, journal: Journal | None, last: bool) -> None:
        """Log, judge and save what this step calls for."""
        settings = self.settings
        if self.judge and settings.evaluate_every and (self.done % settings.evaluate_every == 0 or last):
            found = self.judge()
            length = row["acceptance_length"] = found.length
            row["acceptance"] = found.conditional
            say(f"step {self.done}: acceptance length {length:.3f} on held-out answers")
            if length > self.best and self.group.leads:
                save_drafter(self.drafter, self.folder / "best", torch.float32)
            self.best = max(self.best, length)
        if journal:
            journal.write(row)
        if self.done % 10 == 0 or last:
            shares = " ".join(f"{a:.2f}" for a in row["accuracy"])
            rate = f" {self.rate:,.0f} tokens/s" if self.rate else ""
            say(f"step {self.done} loss {row['loss']:.4f} accuracy {shares} lr {row['lr']:.2e}{rate}")
        if self.group.leads and (self.done % settings.checkpoint_every == 0 or last):
            state = {"model": self.drafter.state_dict(), "optimizer": self.optimizer.state_dict()}
            save_checkpoint(
                self.folder / "checkpoints", self.done,
                {**state, "fingerprint": self.fingerprint, "read": self.read, "seconds": self.seconds,
                 "tokens": self.tokens, "best": self.best},
            )  # fmt: skip

    def _step(self, picked: list[list[int]], share: float, seconds: float) -> Row:
        """One update from this process's batches; the row for the log."""
        rate = learning_rate(self.settings, self.done, share)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.phases.mark("start")
        try:
            figures = self._gradients(picked, seconds)
        except torch.OutOfMemoryError as error:
            raise self._too_large(error) from error
        loss, norm, positions, tokens, self.seconds, *rest = figures.tolist()
        steps = self.settings.unroll_steps
        count = max(1.0, positions)
        row = {
            "step": self.done + 1,
            "loss": loss / count,
            "losses": [x / count for x in rest[:steps]],
            "accuracy": [x / count for x in rest[steps:]],
            "lr": rate,
            "gradient_norm": norm / count,
            "positions": int(positions),
        }
        self._check(row, picked)
        # Clipping and the division by the number of positions are one pass over the gradients.
        scale = min(1.0, self.settings.clip / (norm / count + 1e-6)) / count
        torch._foreach_mul_([w.grad for w in self.weights], scale)
        self.optimizer.step()
        self.phases.mark("update")
        self.tokens += int(tokens)
        return row

    def _gradients(self, picked: list[list[int]], seconds: float) -> Tensor:
        """Leave the summed gradient of all processes in the weights; return the figures of the step as one vector.

        They are loss, norm of the gradient, positions, tokens, seconds, losses [S] and agreements [S]: sums.
        """
        self.optimizer.zero_grad(set_to_none=True)
        settings = self.settings
        sums = torch.zeros(4 + 2 * settings.unroll_steps, device=self.device, dtype=torch.float64)
        for numbers in picked:
            batch = self.feed.batch(numbers)
            self.phases.mark("target")
            with compute(self.device):
                losses = unrolled_loss(self.drafter, self.head, batch, settings.unroll_steps, settings.loss_decay)
            self.phases.mark("forward")
            losses.loss.backward()
            self.phases.mark("backward")
            counts = losses.loss.new_tensor([losses.positions, sum(self.feed.lengths[n] for n in numbers), 0.0])
            sums += torch.cat([losses.loss.detach()[None], counts, losses.steps, losses.agreed])
        sums[3] = seconds if self.group.leads else 0.0
        self.group.add_up([sums, *(w.grad for w in self.weights if w.grad is not None)])
        norm = torch.nn.utils.get_total_norm([w.grad for w in self.weights if w.grad is not None])
        return torch.cat([sums[:1], norm.double()[None], sums[1:]])

    def _check(self, row: Row, picked: list[list[int]]) -> None:
        if math.isfinite(row["gradient_norm"]) and math.isfinite(row["loss"]):
            return
        kept = sorted((self.folder / "checkpoints").glob("step-*.pt"))
        names = [f"`{self.names[n]}`" for batch in picked for n in batch]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        raise StepError(
            f"step {row['step']}: the loss is {row['loss']} and the gradient's norm {row['gradient_norm']} on the "
            f"sequences {', '.join(names[:8])}{more}; the last good state is "
            f"{kept[-1].name if kept else 'the beginning'}",
            hint="lower `train.learning_rate`, or look for broken hidden states in that batch",
        )

    def _too_large(self, error: Exception) -> StepError:
        tokens, passes = self.settings.batch_tokens, self.settings.accumulate
        return StepError(
            f"step {self.done + 1} with `train.batch_tokens={tokens}` does not fit the device's memory: "
            f"{str(error).splitlines()[0] if str(error) else 'out of memory'}",
            hint=f"set `train.batch_tokens={tokens // 2}` and `train.accumulate={2 * passes}`: the same update in "
            f"twice as many passes (a smaller `train.max_length` or `draft.vocab_size` helps as well)",
        )

    def _show_profile(self, kernels: str) -> None:
        table = f"phases, by the device's clock:\n{self.phases.table()}\n\nkernels, a step:\n{kernels}\n"
        (self.folder / "profile.txt").write_text(table, encoding="utf-8")
        say(table)
        self.phases.on = False


def share_done(settings: Train, steps: int, seconds: float) -> float:
    """How much of the training is done, by steps or by seconds, whichever is further; 1 is all.

    Raises StepError when neither is limited.
    """
    if not settings.steps and not settings.max_seconds:
        raise StepError(
            "`train.steps` and `train.max_seconds` are both 0: training would not end", hint="set one of them"
        )
    by_steps = steps / settings.steps if settings.steps else 0.0
    return max(by_steps, seconds / settings.max_seconds if settings.max_seconds else 0.0)


def learning_rate(settings: Train, step: int, share: float) -> float:
    """The rate of step `step` (from 0): half a cosine down to zero at the end, times a linear warm-up."""
    warmth = min(1.0, (step + 1) / max(1, settings.warmup_steps))
    return settings.learning_rate * warmth * 0.5 * (1 + math.cos(math.pi * share))
