"""A result for those who read it: remarks, a summary for later steps, and lines for a person."""

from __future__ import annotations

import os
from typing import Any

from . import compare

_HEAD = ("set", "temp", "streams", "tok/s", "each", "ttft ms", "p95", "length", "95 %", "rate", "multiplier", "cost")


def remarks(result: dict[str, Any]) -> list[str]:
    """What a reader of the figures has to know."""
    engine, found = result["engine"], []
    for one in result["passes"]:
        found += [f"{one['set']} at {one['concurrency']}: {what}" for what in _of_pass(one, engine)]
    speculation = engine["speculation"]
    if speculation and speculation["shape"] == "tree":
        found.append(f"drafts are a tree (top-k {speculation['topk']}): its length and rate are not those of a chain")
    sampled = any(one["temperature"] > 0 for one in result["passes"])
    rejects = engine["arguments"].get("speculative_use_rejection_sampling")
    if speculation and sampled and engine["name"] == "sglang" and not rejects:
        found.append(
            "at a temperature above 0 this SGLang does not use rejection sampling: "
            "start it with --speculative-use-rejection-sampling to measure that"
        )
    for name, one in result["sets"].items():
        agrees = one["template_agrees"]
        if agrees is not None and agrees < 1:
            found.append(
                f"{name}: for {100 * (1 - agrees):.0f} % of the prompts the server's chat template gives other token "
                "ids than the file has"
            )
    return found


def _of_pass(one: dict[str, Any], engine: dict[str, Any]) -> list[str]:
    found = []
    if one["degenerate"] > 0.1 * one["prompts"]:
        found.append(f"{one['degenerate']} of {one['prompts']} answers go in circles, which raises acceptance")
    if one["prompts"] < 2 * one["concurrency"]:
        found.append(f"{one['prompts']} prompts keep the streams busy only for a moment: the total rate is too low")
    if (engine["max_running"] or one["concurrency"]) < one["concurrency"]:
        found.append(f"the server runs at most {engine['max_running']} requests at a time")
    if engine["speculation"] and one["acceptance"] is None:
        found.append("the engine speculates and counted no round")
    if not one["prefix_cache_flushed"] and engine["name"] == "sglang":
        found.append("the prefix cache was not emptied")
    return found


def summary(result: dict[str, Any], path: str) -> dict[str, Any]:
    """The result for later steps: figures of all sets together on top, nothing of single prompts."""
    return {
        **compare.headline(result),
        **{key: value for key, value in result.items() if key != "passes"},
        "passes": [{k: v for k, v in one.items() if k != "per_prompt"} for one in result["passes"]],
        "result": os.path.abspath(path),
    }


def lines(result: dict[str, Any]) -> list[str]:
    """The figures for a person, one line a pass."""
    rows = [_HEAD, *(_row(one) for one in result["passes"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    told = ["  ".join(cell.ljust(widths[k]) for k, cell in enumerate(row)).rstrip() for row in rows]
    why = {reason for one in result["passes"] for reason in (one.get("versus") or {}).get("not_comparable", ())}
    told += [f"not comparable: {reason}" for reason in sorted(why)]
    return told + [f"note: {note}" for note in result["notes"]]


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    accepted, versus = one["acceptance"] or {}, one.get("versus") or {}
    interval = accepted.get("interval")
    return (
        one["set"],
        f"{one['temperature']:g}",
        str(one["concurrency"]),
        f"{one['tokens_per_s']:.0f}",
        f"{one['tokens_per_s_stream']:.0f}",
        f"{1e3 * one['ttft_s']['median']:.1f}",
        f"{1e3 * one['ttft_s']['p95']:.1f}",
        _shown(accepted.get("length"), ".2f"),
        f"{interval[0]:.2f}-{interval[1]:.2f}" if interval else "-",
        _shown(accepted.get("rate"), ".3f"),
        _shown(versus.get("multiplier"), ".2f"),
        _shown(versus.get("step_cost"), ".2f"),
    )


def _shown(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)
