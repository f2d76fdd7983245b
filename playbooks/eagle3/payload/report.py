"""Write the page that tells someone who was not there what was done, what came out and what to do with it.

report/report.md         the page
report/*.png             its pictures
report/summary.json      its numbers

python -m eagle3.report --preset smoke
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from . import plots
from .config import Config
from .runtime import Result, Workdir, run_step, say, write_json, write_text

STEPS = ("fetch", "generate", "extract", "train", "baseline", "evaluate", "export")


def report(config: Config, work: Workdir) -> Result:
    """Write report/report.md with its pictures and numbers."""
    results = {step: work.result(step) for step in STEPS}
    rows = [json.loads(line) for line in (work.drafter / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    work.report.mkdir(parents=True, exist_ok=True)
    plots.training_curves(rows, work.report / "training.png")
    plots.acceptance(results["evaluate"], results["baseline"], work.report / "acceptance.png")
    samples = _samples(work)
    write_text(work.report / "report.md", page(config, results, samples))
    summary = {
        "target": config.target,
        "acceptance_length": results["evaluate"]["acceptance_length"],
        "acceptance_length_untrained": results["baseline"]["acceptance_length"],
        "draft_tokens": config.evaluate.draft_tokens,
        "drafter": results["export"]["path"],
        "steps": results,
    }
    write_json(work.report / "summary.json", summary)
    say(f"report: {work.report / 'report.md'}")
    return {k: v for k, v in summary.items() if k != "steps"} | {"report": str(work.report / "report.md")}


def page(config: Config, results: dict[str, Result], samples: list[dict[str, Any]]) -> str:
    """The page, as Markdown."""
    parts = [
        *_headline(config, results),
        *_acceptance(results),
        *_training(config, results),
        *_data(results, samples),
        *_serving(config, results),
        *_times(results),
    ]
    return "\n\n".join(parts) + "\n"


def _headline(config: Config, results: dict[str, Result]) -> list[str]:
    trained, before = results["evaluate"], results["baseline"]
    length, untrained = trained["acceptance_length"], before["acceptance_length"]
    return [
        f"# An EAGLE-3 drafter for `{config.target}`",
        f"**{length:.2f} tokens a round** is the predicted acceptance length of the trained drafter on answers that it "
        f"has not seen, with chains of {trained['draft_tokens']} drafts; before training it has {untrained:.2f}. "
        f"1.00 means that no draft is ever accepted, {trained['draft_tokens'] + 1}.00 that all are.",
        f"It pays where a speculative round costs less than {length:.2f} plain decoding steps. What a round costs is a "
        "matter of the engine, the GPU and the load: measure it, then compare.",
    ]


def _acceptance(results: dict[str, Result]) -> list[str]:
    trained, before = results["evaluate"], results["baseline"]
    header = ["drafter", "length", "rounds", *(f"draft {k + 1}" for k in range(trained["draft_tokens"]))]
    rows = [
        [name, f"{r['acceptance_length']:.3f}", str(r["rounds"]), *(_percent(c) for c in r["conditional"])]
        for name, r in (("trained", trained), ("untrained", before))
    ]
    agreement = trained["greedy_agreement"]
    return [
        "## Acceptance",
        "![Acceptance of the trained and the untrained drafter](acceptance.png)",
        _table(header, rows),
        "A percentage is the share of drafts at that position that are accepted, of those whose predecessors were. "
        f"Measured over {trained['answers']} held-out answers by walking the target's own greedy text, which gives "
        "exactly the rounds that draft-and-verify would have, up to ties. "
        f"{100 * agreement:.1f} % of these answers' tokens are what the target says greedily"
        + (": the prediction holds." if agreement >= 0.99 else ", so **the prediction is for text it would not say**."),
    ]


def _training(config: Config, results: dict[str, Result]) -> list[str]:
    r, settings = results["train"], config.train
    return [
        "## Training",
        "![Loss and accuracy during training](training.png)",
        f"{r['steps']} steps of {settings.batch_tokens} tokens ({r['epochs']} passes over {r['sequences']} answers), "
        f"{settings.unroll_steps} unrolled steps, AdamW at {settings.learning_rate:g} with {settings.warmup_steps} "
        f"steps of warm-up and a cosine decay. The drafter has {r['parameters'] / 1e6:.1f} million parameters and "
        f"{r['draft_vocab_size']} tokens to draft. The loss fell from {r['loss_first']:.2f} to {r['loss_last']:.2f}.",
        "Accuracy on the training answers far above the acceptance on held-out ones means that it has learnt them by "
        "heart: give it more answers, not more steps.",
    ]


def _data(results: dict[str, Result], samples: list[dict[str, Any]]) -> list[str]:
    answers, stored, target = results["generate"], results["extract"], results["fetch"]
    quoted = [f"> **{s['prompt']}**\n>\n> {_clip(s['answer'])}" for s in samples]
    return [
        "## Data",
        f"The target ({target['layers']} layers, hidden size {target['hidden_size']}, {target['vocab_size']} tokens) "
        f"answered {answers['answers']} prompts: {answers['tokens']['train']} tokens to train on and "
        f"{answers['tokens']['eval']} to evaluate on. Its hidden states at the boundaries {stored['boundaries']} (k is "
        f"the input of layer k) take {stored['bytes'] / 1e6:.0f} MB.",
        "Some of what it said:",
        *quoted,
    ]


def _serving(config: Config, results: dict[str, Result]) -> list[str]:
    drafts = config.evaluate.draft_tokens
    command = (
        "python -m sglang.launch_server \\\n"
        f"  --model-path {results['fetch']['path']} \\\n"
        "  --speculative-algorithm EAGLE3 \\\n"
        f"  --speculative-draft-model-path {results['export']['path']} \\\n"
        f"  --speculative-num-steps {drafts} --speculative-eagle-topk 1 --speculative-num-draft-tokens {drafts + 1}"
    )
    return [
        "## Serving it",
        f"```bash\n{command}\n```",
        "Greedy, on prompts of the same kind, the engine's `spec_accept_length` should come close to the prediction. "
        "Far below it, the engine does not run this drafter as it was trained.",
    ]


def _times(results: dict[str, Result]) -> list[str]:
    rows = [[step, f"{results[step]['seconds']:.1f}"] for step in STEPS]
    return ["## Time", _table(["step", "seconds"], rows)]


def _samples(work: Workdir, count: int = 3) -> list[dict[str, Any]]:
    lines = work.answers.read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["split"] == "eval"][:count]


def _clip(text: str, most: int = 240) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[:most].rsplit(" ", 1)[0] + " …"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _table(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    raise SystemExit(run_step("report", report))
