"""Write the page that tells someone who was not there what was done, what came out and what to do with it.

    report/report.html       the page, everything in one file
    report/report.md         the same as Markdown, beside its pictures
    report/summary.json      its numbers

What a run did not do (no engine measured, no prompt sets) is said, not left out.

    python -m eagle3.report --preset smoke
"""

from __future__ import annotations

from . import sections
from .config import Config
from .errors import StepError
from .journal import read_log
from .measured import Measured, read_measured
from .page import Page
from .runtime import Result, Workdir, run_step, say, write_json, write_text

NEEDED = ("fetch", "generate", "train", "baseline", "evaluate", "export")


def report(config: Config, work: Workdir) -> Result:
    """Write the report with its pictures and numbers."""
    results = {step: work.result(step) for step in sections.STEPS if (work.root / "results" / f"{step}.json").is_file()}
    missing = [step for step in NEEDED if step not in results]
    if missing:
        raise StepError(
            f"{', '.join(f'`{s}`' for s in missing)} did not finish: there is nothing to report of them",
            hint="see their logs, and run them again; what was finished is kept",
        )
    work.report.mkdir(parents=True, exist_ok=True)
    measured = read_measured(work.root / "bench", results["evaluate"]["draft_tokens"])
    page = build(config, work, results, measured)
    write_text(work.report / "report.md", page.markdown())
    write_text(work.report / "report.html", page.html(work.report))
    summary = {
        "target": config.target,
        "acceptance_length": results["evaluate"]["acceptance_length"],
        "acceptance_length_untrained": results["baseline"]["acceptance_length"],
        "draft_tokens": results["evaluate"]["draft_tokens"],
        "drafter": results["export"]["path"],
        "measured": [entry.to_json() for entry in measured],
        "steps": results,
    }
    write_json(work.report / "summary.json", summary)
    say(f"report: {work.report / 'report.html'}")
    return {k: v for k, v in summary.items() if k != "steps"} | {"report": str(work.report / "report.html")}


def build(config: Config, work: Workdir, results: dict[str, Result], measured: list[Measured]) -> Page:
    """The page; its pictures are drawn on the way."""
    rows = read_log(work.drafter / "log.jsonl")
    trained, before = results["evaluate"], results["baseline"]
    length, untrained, drafts = trained["acceptance_length"], before["acceptance_length"], trained["draft_tokens"]
    page = Page(
        f"An EAGLE-3 drafter for `{config.target}`",
        f"**{length:.2f} tokens a round** is the predicted acceptance length of the trained drafter on text that it "
        "has "
        f"not seen, with chains of {drafts} drafts; before training it has {untrained:.2f}. 1.00 means that no draft "
        "is "
        f"ever accepted, {drafts + 1}.00 that all are.",
    )
    page.add(sections.facts(results, measured))
    sections.worth(page, length, measured)
    sections.acceptance(page, work, results, rows, measured)
    sections.engine(page, work, measured)
    sections.training(page, config, work, results, rows)
    sections.data(page, work, results)
    sections.serving(page, results)
    sections.spent(page, work, results)
    return page


if __name__ == "__main__":
    raise SystemExit(run_step("report", report))
