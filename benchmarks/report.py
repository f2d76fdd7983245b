"""Writes the tables of docs/benchmarks.md from `benchmarks/results/*.json`, so that text and figures cannot part.

    python -m benchmarks.report            # write them
    python -m benchmarks.report --check    # exit 1 when they are not what the results say

Between the lines `<!-- results: NAME -->` and `<!-- end -->` of the page everything is written by this module.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
RESULTS = Path(__file__).parent / "results"
_NAMED = ("python", "openssh", "asyncssh", "sqlalchemy", "parallel-ssh", "fabric", "ansible-core")
_BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table_of(result: Mapping[str, Any]) -> list[str]:
    """A result as Markdown lines: where and when, the aims with what was reached, and the figures."""
    return [_taken_on(result), "", *_aims(result), "", *_figures(result["figures"])]


def _taken_on(result: Mapping[str, Any]) -> str:
    machine, versions = result["machine"], {**result["versions"], **result.get("peers", {})}
    of_machine = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux {machine['kernel']}"
    disk = f"{machine['file_system']} with {machine['fsync_ms']} ms an fsync"
    said = ", ".join(f"{name} {version}" for name, version in versions.items() if name in _NAMED)
    looks = sorted(_idle(result))
    quiet = f" Idle before each measurement: {looks[0]:.0%} to {looks[-1]:.0%}." if looks else ""
    return f"{result['date'][:10]}, revision {result['revision']}; {of_machine}, {disk}; {said}.{quiet}"


def _idle(tree: Any) -> list[float]:
    """Every look at the idle share that a result holds, wherever it stands."""
    if isinstance(tree, Mapping):
        own = [value for name, value in tree.items() if name == "idle_before"]
        lists = [look for name, looks in tree.items() if name == "idle_before_and_after" for look in looks]
        return own + lists + [look for value in tree.values() for look in _idle(value)]
    return [look for item in tree for look in _idle(item)] if isinstance(tree, list) else []


def _aims(result: Mapping[str, Any]) -> list[str]:
    rows = [
        f"| {aim['what']} | {_said(aim['value'])} {aim['unit']} | {aim['sense']} {_said(aim['bound'])} {aim['unit']} |"
        f" {'met' if aim['met'] else '**missed**'} |"
        for aim in result["aims"]
    ]
    return ["| aim | measured | wanted | |", "|---|---|---|---|", *rows]


def _figures(figures: Mapping[str, Any]) -> list[str]:
    """One row a figure; a table with columns where every figure is a group of the same ones."""
    groups = list(figures.values())
    if not all(isinstance(group, Mapping) for group in groups):
        return ["| figure | |", "|---|---|", *(f"| {name} | {_said(value)} |" for name, value in figures.items())]
    columns = list(groups[0])
    head = "| | " + " | ".join(columns) + " |"
    rows = [f"| {name} | " + " | ".join(_said(group[c]) for c in columns) + " |" for name, group in figures.items()]
    return [head, "|---" * (len(columns) + 1) + "|", *rows]


def _said(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.3g}"


def page() -> str:
    """The page with every table as the results say; a benchmark that never ran says so."""

    def block(match: re.Match[str]) -> str:
        path = RESULTS / f"{match[2]}.json"
        lines = table_of(json.loads(path.read_text())) if path.exists() else ["Not measured yet."]
        return match[1] + "\n".join(lines) + "\n" + match[3]

    return _BLOCK.sub(block, PAGE.read_text())


def write() -> None:
    """Bring the page up to date."""
    PAGE.write_text(page())


def main() -> None:
    """Write, or check."""
    if "--check" not in sys.argv:
        write()
    elif page() != PAGE.read_text():
        sys.exit(f"{PAGE.name} is not what the results say; run `python -m benchmarks.report`")


if __name__ == "__main__":
    main()
