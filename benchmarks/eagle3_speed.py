"""Speed of the EAGLE-3 trainer on this machine, after a check of its mathematics there.

First the merged attention and the chunked loss are held against the written-out reference in float32, on the device
and in the precision that training uses. Then the target writes some prompts and answers them, and two trainers learn
from that, from the same weights and in the same order, with the target beside them: the naive one of
`eagle3_naive` and the payload's. Their losses are compared step by step, and their tokens (without padding) a second.
Last come larger batches, and for the first of them where the time goes and what share of the device's bfloat16 peak
that is.

    PYTHONPATH=FOLDER_OF_eagle3 python benchmarks/eagle3_speed.py --target CHECKPOINT [--seconds 8] [--out speed.json]
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import eagle3_naive as naive
import torch
from eagle3.attention import attend, attend_reference
from eagle3.compiled import use_compiled
from eagle3.compose import open_turn
from eagle3.config import Config, Extract, Train
from eagle3.data import Conversation, chat_ids, draft_vocabulary, mapping_tensors
from eagle3.distributed import Group
from eagle3.drafter_config import drafter_config
from eagle3.endpoint import Request
from eagle3.extract import Storer
from eagle3.feed import Form, Online, batches
from eagle3.held import groups
from eagle3.journal import read_log
from eagle3.local import Local
from eagle3.model import Drafter
from eagle3.objective import Batch, unrolled_loss
from eagle3.runtime import compute
from eagle3.shards import write_shard
from eagle3.target import Target, load_model, load_tokenizer, read_config, read_embedding, read_head, stop_tokens
from eagle3.trainer import Trainer, learning_rate, share_done

PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # dense bfloat16, operations a second, by the makers' sheets


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each setting, after its first steps")
    parser.add_argument("--vocabulary", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=5, help="unrolled")
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[15360, 46080, 92160])
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--answer-tokens", type=int, default=256)
    parser.add_argument("--compare-steps", type=int, default=60)
    parser.add_argument("--check-only", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("eagle3_speed.json"))
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    results: dict[str, Any] = {"device": name, "torch": torch.__version__}

    def keep(key: str, value: Any) -> None:
        results[key] = value
        given.out.write_text(json.dumps(results, indent=1))

    for compiled in (False, True) if device.type == "cuda" else (False,):
        use_compiled(compiled)
        keep(f"attention, compiled={compiled}", check_attention(device))
        keep(f"loss, compiled={compiled}", check_loss(given.target, device))
    print(json.dumps(results, indent=1), flush=True)
    if given.check_only:
        return
    bench = Bench(given, device)
    keep("data", {"sequences": len(bench.feed.lengths), "tokens": sum(bench.feed.lengths)})
    keep("compared", bench.compare())
    keep("extraction", bench.extraction())
    keep("rates", [])
    for tokens in given.batch_tokens:
        results["rates"].append(bench.rate(tokens))
        keep("rates", results["rates"])
    bench.table(results, name)


class Bench:
    """The target, its answers, and a drafter to start from, for all that is measured."""

    def __init__(self, given: argparse.Namespace, device: torch.device) -> None:
        self.given, self.device = given, device
        began = time.monotonic()
        talks = sample(given, device)
        print(
            f"{sum(len(t.ids) for t in talks)} tokens of text sampled in {time.monotonic() - began:.0f} s", flush=True
        )
        self.talks = talks
        self.drafter, self.head, target = parts(given.target, device, given.vocabulary, talks)
        self.feed = Online(talks, target, self.drafter.t2d, 1024)
        self.settings = Train(
            unroll_steps=given.steps, steps=given.compare_steps, batch_tokens=given.batch_tokens[0],
            learning_rate=1e-3, warmup_steps=10, checkpoint_every=10**9,
        )  # fmt: skip

    def compare(self) -> dict[str, Any]:
        """Both trainers over the same batches: losses, the largest relative difference of them, and rates.

        The naive one's rate is of batches without the room that fixed shapes take: it has no use for them.
        """
        settings, given = self.settings, self.given
        use_compiled(False)
        self._shape(settings.batch_tokens)
        slow, _ = self._naive(settings.steps)
        self.feed.form = Form()
        _, slow_rate = self._naive(settings.steps)
        print(f"naive: {slow_rate:,.0f} tokens/s, loss {slow[0]:.3f} to {slow[-1]:.3f}", flush=True)
        self._shape(settings.batch_tokens)
        found = {"naive": {"tokens_per_second": round(slow_rate), "losses": slow}}
        for name in ("plain", "compiled"):
            use_compiled(name == "compiled" and self.device.type == "cuda")
            losses, rate, _ = self._train(settings)
            found[name] = {"tokens_per_second": round(rate), "losses": losses}
        mean = settings.steps // 4 or 1
        differ = {
            name: max(abs(a - b) / a for a, b in zip(slow, one["losses"], strict=True)) for name, one in found.items()
        }
        last = {name: sum(one["losses"][-mean:]) / mean for name, one in found.items()}
        return {**found, "largest_difference": differ, "last_quarter": last, "unrolled_steps": given.steps}

    def _naive(self, steps: int) -> tuple[list[float], float]:
        """The naive trainer over as many batches of the feed's form: losses and tokens a second."""
        settings = self.settings
        rooms = [self.feed.form.room(length) for length in self.feed.lengths]
        stream = batches(rooms, settings.batch_tokens, 0)
        picked = [next(stream) for _ in range(steps)]
        rates = [learning_rate(settings, n, share_done(settings, n, 0.0)) for n in range(steps)]
        return naive.train(
            copy.deepcopy(self.drafter), self.head, self.feed, picked, steps=self.given.steps,
            decay=settings.loss_decay, rates=rates, clip=settings.clip,
        )  # fmt: skip

    def _shape(self, tokens: int) -> None:
        """Let the feed make batches of this many positions."""
        self.feed.form = Form.of(tokens, max(self.feed.lengths))

    def rate(self, tokens: int) -> dict[str, Any]:
        """Tokens a second with batches of `tokens`; the first setting says where the time goes."""
        settings = replace(
            self.settings, steps=0, max_seconds=self.given.seconds, batch_tokens=tokens,
            profile=tokens == self.given.batch_tokens[0],
        )  # fmt: skip
        self._shape(tokens)
        # Compiling takes longer than the whole budget: pay for it first, in a run that is thrown away.
        began = time.monotonic()
        self._train(replace(settings, max_seconds=0.0, steps=6, profile=False))
        compiling = time.monotonic() - began
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        _, rate, steps = self._train(settings)
        peak = torch.cuda.max_memory_allocated() / 2**30 if self.device.type == "cuda" else 0.0
        found = {"batch_tokens": tokens, "tokens_per_second": round(rate), "steps": steps, "peak_gib": round(peak, 1),
                 "compile_seconds": round(compiling)}  # fmt: skip
        print(f"RATE {found}", flush=True)
        return found

    def _train(self, settings: Train) -> tuple[list[float], float, int]:
        """Losses, tokens a second, and steps of the payload's trainer."""
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                settings, copy.deepcopy(self.drafter), self.head, self.feed, [str(n) for n in self.feed.lengths],
                Path(folder), seed=0, fingerprint="", group=Group(),
            )  # fmt: skip
            trainer.run()
            rows = read_log(Path(folder) / "log.jsonl")
            profile = Path(folder) / "profile.txt"
            if profile.is_file():
                self.given.out.with_name("profile.txt").write_text(profile.read_text())
        return [row["loss"] for row in rows], trainer.rate, trainer.done

    def extraction(self) -> dict[str, Any]:
        """Tokens a second of the target's forward pass alone, and with its states brought over and stored."""
        config = Config(extract=Extract(batch_tokens=self.given.batch_tokens[0]))
        storer, talks = Storer(config, self.feed.target, None), self.talks
        plan = list(groups(self.feed.lengths, config.extract.batch_tokens))
        tokens = {}
        for kind in ("forward", "forward", "stored"):  # the first time to warm up
            began, done, number = time.monotonic(), 0, 0
            with tempfile.TemporaryDirectory() as folder:
                while time.monotonic() - began < self.given.seconds / 2 or not done:
                    picked = [talks[n] for n in plan[number % len(plan)]]
                    if kind == "forward":
                        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(t.ids) for t in picked], batch_first=True)
                        self.feed.target.hidden_states(ids)
                    else:
                        write_shard(Path(folder) / f"{number % 4}.safetensors", list(storer.run(picked)))
                    number, done = number + 1, done + sum(len(t.ids) for t in picked)
                    if self.device.type == "cuda":
                        torch.cuda.synchronize()
            tokens[kind] = round(done / (time.monotonic() - began))
        print(f"EXTRACTION {tokens} tokens/s", flush=True)
        return tokens

    def operations(self) -> float:
        """Multiplications and additions of one token: the target forward, the drafter forward and backward."""
        settings, steps = read_config(self.given.target), self.given.steps
        size, layers = settings.hidden_size, settings.num_hidden_layers
        target = sum(p.numel() for p in self.feed.target.model.get_decoder().layers.parameters())
        body = sum(p.numel() for p in self.drafter.midlayer.parameters())
        taught = sum(sum(t) for t in map(torch.Tensor.tolist, self.feed.mask)) / sum(self.feed.lengths)
        head = self.given.vocabulary * size * taught
        mean = sum(n * n for n in self.feed.lengths) / sum(self.feed.lengths)  # keys in reach, twice the mean
        attention = size * mean * (layers + 3 * steps)
        return float(2 * target + 6 * (steps * body + 3 * size * size) + 2 * head + 6 * steps * head + 2 * attention)

    def table(self, results: dict[str, Any], name: str) -> None:
        """What was found, in a few lines."""
        compared = results["compared"]
        slow = compared["naive"]["tokens_per_second"]
        peak = next((p for n, p in PEAKS.items() if n in name), None)
        lines = [(f"{kind}, {self.settings.batch_tokens}", compared[kind]["tokens_per_second"], None)
                 for kind in ("naive", "plain", "compiled")]  # fmt: skip
        lines += [(f"compiled, {r['batch_tokens']}", r["tokens_per_second"], r["peak_gib"]) for r in results["rates"]]
        print(f"\n{'trainer, batch tokens':<28}{'tokens/s':>10}{'x naive':>9}{'TFLOP/s':>9}{'of peak':>9}{'GiB':>7}")
        for kind, rate, gib in lines:
            flops = rate * self.operations()
            share = f"{100 * flops / peak:.1f} %" if peak else ""
            print(f"{kind:<28}{rate:>10,}{rate / slow:>9.2f}{flops / 1e12:>9.1f}{share:>9}{gib or '':>7}")
        weights = sum(p.numel() for p in self.feed.target.model.get_decoder().layers.parameters())
        for kind, rate in results["extraction"].items():
            share = f"{100 * 2 * weights * rate / peak:.1f} %" if peak else ""
            print(f"{'extraction, ' + kind:<28}{rate:>10,}{'':>9}{2 * weights * rate / 1e12:>9.1f}{share:>9}")
        print(f"losses differ by at most {compared['largest_difference']}; last quarter {compared['last_quarter']}")


def sample(given: argparse.Namespace, device: torch.device) -> list[Conversation]:
    """What training reads: prompts that the target writes itself, sampled, and its greedy answers to them."""
    torch.manual_seed(0)
    tokenizer = load_tokenizer(given.target)
    stops = stop_tokens(given.target, tokenizer)
    local = Local(load_model(Config(), given.target, device), 512)
    turn = Request(open_turn(tokenizer), 64, stops, temperature=1.0)
    texts = [tokenizer.decode(a.ids, skip_special_tokens=True) for _, a in local.answer([turn] * given.answers)]
    talks = [[{"role": "user", "content": text.strip() or "Hello"}] for text in texts]
    ids = [chat_ids(tokenizer, talk, generation_prompt=True) for talk in talks]
    found = {}
    for n, answer in local.answer([Request(i, given.answer_tokens, stops) for i in ids]):
        mask = [0] * len(ids[n]) + [1] * len(answer.ids)
        found[n] = Conversation(str(n), ids[n] + answer.ids, mask)
    return [found[n] for n in range(len(ids))]


def check_attention(device: torch.device) -> dict[str, float]:
    """Relative error of output and gradients against the float32 reference, with four later steps."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    tensors = [torch.randn(3, 9, 300, 64, device=device).to(dtype).requires_grad_() for _ in range(11)]
    exact = [t.detach().float().requires_grad_() for t in tensors]
    slope = torch.randn(3, 9, 300, 64, device=device)
    found = attend(tensors[0], list(zip(tensors[1::2], tensors[2::2], strict=True)))
    wanted = attend_reference(exact[0], list(zip(exact[1::2], exact[2::2], strict=True)))
    found.backward(slope.to(dtype))
    wanted.backward(slope)
    errors = {"output": error(found, wanted)}
    for name, pick in (("q", 0), ("k0", 1), ("v0", 2), ("k4", 9), ("v4", 10)):
        errors[f"gradient of {name}"] = error(tensors[pick].grad, exact[pick].grad)
    return errors


def check_loss(folder: Path, device: torch.device) -> dict[str, float]:
    """The loss and its gradient in training's precision against float32, on one batch through the real target."""
    text = talks(16, read_config(folder).vocab_size)
    drafter, head, target = parts(folder, device, min(4096, read_config(folder).vocab_size), text)
    feed = Online(text, target, drafter.t2d, 512)
    batch = feed.batch(list(range(16)))
    exact = Batch(batch.ids, batch.features.float(), batch.last.float(), batch.taught)
    with compute(device):
        fast = unrolled_loss(drafter, head, batch, 4, 0.8)
    fast.loss.backward()
    gradients = {n: w.grad.clone() for n, w in drafter.named_parameters()}
    drafter.zero_grad()
    slow = unrolled_loss(drafter, head, exact, 4, 0.8)
    slow.loss.backward()
    names = ("fc.weight", "midlayer.self_attn.k_proj.weight", "midlayer.mlp.up_proj.weight", "lm_head.weight")
    wanted = dict(drafter.named_parameters())
    return {
        "loss": fast.mean.item(),
        "exact loss": slow.mean.item(),
        **{f"gradient of {n}": error(gradients[n], wanted[n].grad) for n in names},
    }


def parts(
    folder: Path, device: torch.device, vocabulary: int, talks: list[Conversation]
) -> tuple[Drafter, torch.Tensor, Target]:
    """A random drafter over the likeliest tokens of `talks`, the target's head cut to them, and the target."""
    settings = read_config(folder)
    layers = settings.num_hidden_layers
    target = Target.load(Config(), folder, device)
    kept = draft_vocabulary(talks, settings.vocab_size, vocabulary)
    d2t, t2d = mapping_tensors(kept, settings.vocab_size)
    torch.manual_seed(0)
    config = drafter_config(settings, vocabulary, (2, layers // 2, layers - 3))
    drafter = Drafter(config, read_embedding(folder), d2t, t2d).to(device)
    return drafter, read_head(folder)[torch.tensor(kept)].float().to(device), target


def talks(count: int, vocabulary: int) -> list[Conversation]:
    """Conversations of 96 to 384 random tokens, a quarter of each the prompt."""
    random = torch.Generator().manual_seed(0)
    found = []
    for n in range(count):
        length = int(torch.randint(96, 385, (), generator=random))
        ids = torch.randint(0, vocabulary // 16, (length,), generator=random).tolist()
        prompt = length // 4
        found.append(Conversation(str(n), ids, [0] * prompt + [1] * (length - prompt)))
    return found


def error(found: torch.Tensor | None, wanted: torch.Tensor | None) -> float:
    """Relative, by norms."""
    assert found is not None
    assert wanted is not None
    return round(((found.float() - wanted).norm() / wanted.norm()).item(), 6)


if __name__ == "__main__":
    main()
