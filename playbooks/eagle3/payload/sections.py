"""The sections of the report, each from what the steps reported: words, tables, and pictures drawn on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import plots
from .config import Config
from .estimate import duration, size
from .measured import Measured
from .page import Code, Facts, Heading, Page, Picture, Quote, Table, Text
from .runtime import Result, Workdir

STEPS = ("fetch", "compose", "generate", "extract", "train", "baseline", "evaluate", "export")
FOLDERS = ("target", "answers.jsonl", "composed.jsonl", "sets", "shards", "drafter/checkpoints", "drafter/export")


def facts(results: dict[str, Result], measured: list[Measured]) -> Facts:
    train, trained = results["train"], results["evaluate"]
    facts = [
        (f"{trained['acceptance_length']:.2f}", f"tokens a round, predicted ({trained['rounds']:,} rounds)"),
        (f"{results['baseline']['acceptance_length']:.2f}", "before training"),
        (_short(train["tokens_seen"]), f"tokens trained on, {train['epochs']:g} passes"),
        (f"{train['tokens_per_second']:,}", f"tokens a second, on {_device(train)}"),
        (duration(sum(r["seconds"] for r in results.values())), "for all steps"),
    ]
    gains = [m.multiplier for m in measured if m.multiplier]
    if gains:
        facts.insert(2, (f"{min(gains):.2f} - {max(gains):.2f}x", "the throughput without a drafter, measured"))
    return Facts(facts)


def worth(page: Page, length: float, measured: list[Measured]) -> None:
    if not measured:
        page.add(
            Text(
                f"It pays where a speculative round costs less than {length:.2f} plain decoding steps. What a round "
                "costs is a matter of the engine, the GPU and the load: **it was not measured in this run**.",
            )
        )


def acceptance(
    page: Page, work: Workdir, results: dict[str, Result], rows: list[dict[str, Any]], measured: list[Measured]
) -> None:
    trained, before = results["evaluate"], results["baseline"]
    plots.acceptance(trained, before, work.report)
    header = ["drafter", "length", "rounds", *(f"draft {k + 1}" for k in range(trained["draft_tokens"]))]
    table = [
        [name, f"{r['acceptance_length']:.3f}", str(r["rounds"]), *(_percent(c) for c in r["conditional"])]
        for name, r in (("trained", trained), ("untrained", before))
    ]
    agreement = trained["greedy_agreement"]
    page.add(
        Heading("Acceptance"),
        Picture("acceptance", "Acceptance of the trained and the untrained drafter"),
        Table(header, table),
        Text(
            "A percentage is the share of drafts at that position that are accepted, of those whose predecessors were. "
            f"Measured over {trained['answers']} answers by walking the target's own greedy text, which gives exactly "
            "the rounds that draft-and-verify would have, up to ties."
        ),
        Text(
            f"{100 * agreement:.1f} % of these answers' tokens are what the target says greedily"
            + (
                ": the prediction holds."
                if agreement >= 0.97
                else ", so **the prediction is for text it would not say**."
            ),
            "" if agreement >= 0.97 else "warning",
        ),
    )
    if trained.get("verified"):
        proof = trained["verified"]
        page.add(
            Text(
                f"Draft-and-verify, run token by token over {proof['answers']} of them ({proof['tokens']} tokens), "
                "gave "
                f"the target's own greedy text in {proof['equal']}, and the predicted rounds in "
                f"{proof['as_predicted']}."
            )
        )
    if plots.acceptance_over_steps(rows, work.report):
        page.add(Picture("acceptance_steps", "Held-out acceptance over the training steps"))
    _by_set(page, work, trained, before, measured)


def _by_set(page: Page, work: Workdir, trained: Result, before: Result, measured: list[Measured]) -> None:
    found = {m.set: m.length for m in reversed(measured) if m.length}  # of one set, the fewest requests in flight
    lengths = {
        name: {
            "predicted": entry["length"],
            **({"untrained": before["sets"][name]["length"]} if name in before["sets"] else {}),
            **({"measured": found[name]} if name in found else {}),
        }
        for name, entry in trained["sets"].items()
    }
    plots.by_set(lengths, work.report)
    chains = sorted({int(k) for entry in trained["sets"].values() for k in entry["chains"]})
    page.add(
        Heading("By prompt set"),
        Picture("sets", "Acceptance length by prompt set"),
        Table(
            ["set", "answers", *(f"{k} drafts" for k in chains), *(["measured"] if found else [])],
            [
                [
                    name, str(entry["answers"]), *(f"{entry['chains'][str(k)]['length']:.2f}" for k in chains),
                    *([f"{found[name]:.2f}" if name in found else "–"] if found else []),
                ]
                for name, entry in trained["sets"].items()
            ],
        ),
    )  # fmt: skip
    if list(trained["sets"]) == ["held-out"]:
        page.add(
            Text(
                "These are answers to prompts of the kind that it was trained on. Other prompts may do worse: give "
                "sets "
                "of your own with `--set eval_sets=name=file.jsonl`."
            )
        )


def engine(page: Page, work: Workdir, measured: list[Measured]) -> None:
    if not measured:
        return
    pairs = [m for m in measured if m.plain]
    page.add(Heading("In the engine"))
    if pairs:
        plots.throughput([(f"{m.set}, {m.concurrency} at once", m.plain or 0.0, m.rate) for m in pairs], work.report)
        page.add(Picture("throughput", "Tokens a second without and with the drafter"))
    page.add(
        Text(f"Measured with {measured[0].engine}, greedily, on the very prompts of the prediction."),
        Table(
            ["set", "at once", "tok/s", "plain tok/s", "multiplier", "length", "cost of a round"],
            [
                [
                    m.set, str(m.concurrency), f"{m.rate:,.0f}", f"{m.plain:,.0f}" if m.plain else "–",
                    f"{m.multiplier:.2f}x" if m.multiplier else "–", f"{m.length:.2f}" if m.length else "–",
                    f"{m.cost:.2f}" if m.cost else "–",
                ]
                for m in measured
            ],
        ),
        Text(
            "The cost of a round is in plain decoding steps: acceptance length over multiplier. Where the measured "
            "length "
            "is far below the predicted one, the engine does not run this drafter as it was trained: `turnout drafter "
            "doctor` finds out why."
        ),
    )  # fmt: skip


def training(page: Page, config: Config, work: Workdir, results: dict[str, Result], rows: list[dict[str, Any]]) -> None:
    r, settings = results["train"], config.train
    plots.training_curves(rows, work.report)
    passes = f" in {settings.accumulate} passes" if settings.accumulate > 1 else ""
    page.add(
        Heading("Training"),
        Picture("training", "Loss and accuracy during training"),
        Text(
            f"{r['steps']} steps of at most {settings.batch_tokens:,} tokens{passes} on {_device(r)}, "
            f"{r['epochs']:g} passes over {r['sequences']:,} answers, {settings.unroll_steps} unrolled steps, AdamW at "
            f"{settings.learning_rate:g} with {settings.warmup_steps} steps of warm-up and a cosine decay; hidden "
            "states "
            f"{'stored' if settings.states == 'stored' else 'computed beside it'}. The drafter has "
            f"{r['parameters'] / 1e6:.1f} million parameters and {r['draft_vocab_size']:,} tokens to draft. The loss "
            "fell "
            f"from {r['loss_first']:.2f} to {r['loss_last']:.2f}."
        ),
        Text(
            "Accuracy on the training answers far above the acceptance on held-out ones means that it has learnt them "
            "by "
            "heart: give it more answers, not more steps."
        ),
    )
    if not r.get("tensorboard"):
        page.add(
            Text("TensorBoard is not installed where it was trained, so there are no files of it; the log is whole.")
        )


def data(page: Page, work: Workdir, results: dict[str, Result]) -> None:
    answers, stored, target = results["generate"], results.get("extract") or {}, results["fetch"]
    composed = results.get("compose", {}).get("prompts") or 0
    where = (
        f"Its hidden states at the boundaries {stored['boundaries']} (k is the input of layer k) take "
        f"{size(stored['bytes'])}."
        if stored.get("boundaries")
        else "Its hidden states were not stored."
    )
    page.add(
        Heading("Data"),
        Text(
            f"The target ({target['layers']} layers, hidden size {target['hidden_size']}, {target['vocab_size']} "
            "tokens) "
            f"answered {answers['answers']:,} prompts"
            + (f", {composed:,} of which it wrote itself" if composed else "")
            + f": {answers['tokens']['train']:,} tokens to train on and {answers['tokens']['eval']:,} to evaluate on. "
            f"{answers['stopped_by_themselves']:,} answers ended by themselves, the others at the limit. {where}"
        ),
    )
    if answers.get("template_arguments"):
        page.add(Text(f"The chat template was given `{json.dumps(answers['template_arguments'])}`: serve it so, too."))
    page.add(Text("Some of what it said:"), *_samples(work))


def serving(page: Page, results: dict[str, Result]) -> None:
    drafts = results["evaluate"]["draft_tokens"]
    target, drafter = results["fetch"]["path"], results["export"]["path"]
    page.add(
        Heading("Serving it"),
        Code(
            "python -m sglang.launch_server \\\n"
            f"  --model-path {target} \\\n"
            "  --speculative-algorithm EAGLE3 \\\n"
            f"  --speculative-draft-model-path {drafter} \\\n"
            f"  --speculative-num-steps {drafts} --speculative-eagle-topk 1 --speculative-num-draft-tokens {drafts + 1}"
        ),
        Code(
            f"vllm serve {target} \\\n"
            f"  --speculative-config "
            f'\'{{"method": "eagle3", "model": "{drafter}", "num_speculative_tokens": {drafts}}}\''
        ),
        Text(
            "Greedy, on prompts of the same kind, the engine's acceptance length should come close to the prediction "
            f"(drafter `{results['evaluate'].get('drafter', '')}`). `turnout drafter tune` looks for the fastest "
            "setting."
        ),
    )


def spent(page: Page, work: Workdir, results: dict[str, Result]) -> None:
    seconds = {step: results[step]["seconds"] for step in STEPS if step in results}
    sizes = {name: total for name in FOLDERS if (total := disk_usage(work.root / name))}
    plots.spent(seconds, sizes, work.report)
    train = results["train"]
    versions = ", ".join(f"{name} {version}" for name, version in train.get("versions", {}).items())
    page.add(
        Heading("Time and disk"),
        Picture("spent", "Time of each step and what lies on disk"),
        Table(["step", "time"], [[step, duration(s)] for step, s in seconds.items()]),
        Text(f"On {_device(train)}, with {versions}." if versions else ""),
    )


def _samples(work: Workdir, count: int = 3) -> list[Quote]:
    with work.answers.open(encoding="utf-8") as file:
        rows = (json.loads(line) for line in file)
        held = [row for row in rows if row["split"] == "eval"][:count]
    return [Quote(_clip(row["prompt"]), _clip(row["answer"])) for row in held]


def disk_usage(path: Path) -> int:
    """Bytes of a file, or of all files in a folder, links followed."""
    if path.is_file():
        return path.stat().st_size
    return sum(p.stat().st_size for p in path.resolve().rglob("*") if p.is_file()) if path.is_dir() else 0


def _device(train: Result) -> str:
    several = f"{train['processes']} x " if train.get("processes", 1) > 1 else ""
    return several + str(train.get("device", "this host"))


def _clip(text: str, most: int = 240) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[:most].rsplit(" ", 1)[0] + " …"


def _short(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 10_000_000 else f"{count:,}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
