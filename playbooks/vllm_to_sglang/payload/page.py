"""The report's parts, and the two forms they are written in. A part is a heading with paragraphs, tables, bars or code.

parts(told) -> [Part("Throughput", [Bars(...), Table(...)]), ...] -> markdown(...), html(...)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple


class Table(NamedTuple):
    """Rows of text under a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Bars(NamedTuple):
    """Named values with what they are measured in; an empty value is not drawn."""

    unit: str
    values: Sequence[tuple[str, float | None]]


class Code(NamedTuple):
    """A command or a piece of a log."""

    text: str


class Items(NamedTuple):
    """A list of sentences."""

    lines: Sequence[str]


Block = Any
"""A paragraph's text, or one of the four above."""


class Part(NamedTuple):
    """One section."""

    heading: str
    blocks: Sequence[Block]


def parts(told: Any) -> list[Part]:
    """The sections, those that have something to say."""
    todos = told["todos"]
    found = [
        _top(told, todos), _speed(told), _answers(todos), _gap(told, todos), _flags(todos), _doctor(todos),
        _research(todos), Part("Not tested", [Items(told["untested"])]), _steps(told), _back(todos),
    ]  # fmt: skip
    return [part for part in found if part.blocks]


def _top(told: Any, todos: Any) -> Part:
    find, chosen = todos.get("find") or {}, todos.get("choose") or {}
    rows = [("host", str(told["params"].get("host"))), ("session", told["session"]), ("written", told["written"])]
    before = (todos.get("before") or {}).get("engine") or {}
    if find:
        rows.append(
            ("old server", f"{before.get('name', find['engine'])} {before.get('version') or ''} as a {find['form']}")
        )
        rows.append(("model", str(find.get("model"))))
    after = next(iter((todos.get("bench") or {}).values()), None) or {}
    if after.get("engine"):
        rows.append(("new server", f"sglang {after['engine'].get('version') or ''}"))
    if chosen.get("name"):
        rows.append(("chosen", f"{chosen['name']} {chosen.get('drafter') or ''}".strip()))
    if todos.get("room"):
        rows.append(("way", f"{todos['room']['mode']}: {todos['room']['why']}"))
    return Part(f"Outcome: {told['word']}", [f"{told['sentence']}.", Table(("", ""), rows)])


def _speed(told: Any) -> Part:
    rows = told["measured"]
    if not rows:
        return Part("Throughput and acceptance", [])
    table = [
        (
            row["name"], _number(row["tokens_per_s"], ".0f"), _number(row["acceptance_length"], ".2f"),
            _number(row["acceptance_rate"], ".3f"), _number(row["multiplier"], ".2f"), _first_ms(row["passes"]),
        )
        for row in rows
    ]  # fmt: skip
    weighed = told["todos"].get("weigh") or {}
    said = [f"vLLM's speculation: {weighed['why']}."] if weighed.get("why") else []
    head = ("", "tokens/s", "acceptance length", "rate", "multiplier", "first token, ms")
    return Part(
        "Throughput and acceptance",
        [
            "The same bench for each, at the lowest concurrency. A multiplier is over the engine without a drafter.",
            *said,
            Bars("tokens/s", [(row["name"], row["tokens_per_s"]) for row in rows]),
            Bars("tokens a round", [(row["name"], row["acceptance_length"]) for row in rows]),
            Table(head, table),
        ],
    )


def _first_ms(passes: Any) -> str:
    """The median time to the first token of the first pass."""
    told = passes[0].get("ttft_s") if passes else None
    return f"{1000 * told['median']:.0f}" if told else "-"


def _answers(todos: Any) -> Part:
    compared = {**(todos.get("answers") or {})}
    if todos.get("final_answers"):
        compared["the server that took over"] = todos["final_answers"]
    rows = [
        (
            name, _number(one.get("agree"), ".2f"), _number(one.get("exact"), ".2f"),
            _number(one.get("logprob"), ".3f"), "; ".join(one.get("broken") or ()) or "same",
        )
        for name, one in compared.items() if "agree" in one
    ]  # fmt: skip
    if not rows:
        return Part("Answers", [])
    head = ("new server", "first tokens agree", "answers the same", "log-probability differs by", "form")
    return Part("Answers, old server against new", [Table(head, rows)])


def _gap(told: Any, todos: Any) -> Part:
    gap, retired = told["gap"], todos.get("retire") or {}
    if retired.get("was_running") is None:
        retired = todos.get("make_room") or {}
    if not gap:
        return Part("Gap in service", [])
    said = [
        f"A client on the host made {gap['requests']} requests from before the door until after the switch; "
        f"{gap['failed']} failed. The longest time without service was {gap['gap_s']:.3f} s, the slowest answer took "
        f"{gap['slowest_s']:.3f} s."
    ]
    if retired.get("was_running"):
        left = retired.get("requests_left")
        drained = "it did not tell its load" if left is None else f"{left:g} requests were left when it was stopped"
        said.append(
            f"The old server was drained for {retired['drain_s']:g} s ({drained}); {retired['stop_s']:g} s to end."
        )
        if retired.get("gpu_after_mib") is not None:
            said.append(
                f"GPU memory in use: {retired['gpu_before_mib']} MiB before, {retired['gpu_after_mib']} MiB after."
            )
    errors = [f"{time.strftime('%H:%M:%S', time.gmtime(one['at']))} {one['error']}" for one in gap["errors"][:5]]
    return Part("Gap in service", [*said, *([Items(errors)] if errors else [])])


def _flags(todos: Any) -> Part:
    told = todos.get("translate") or {}
    if not told.get("command"):
        return Part("Flags", [])
    blocks: list[Block] = []
    find = todos.get("find") or {}
    blocks += ["The old command, and what the translation made of it:", Code(str(find.get("command", "")))]
    blocks.append(Code(told["command"]))
    rows = [
        (
            str(one["class"]),
            str(one["input"]),
            str(one["output"]) or "-",
            "; ".join([one["why"], *one["notes"]]).strip("; "),
        )
        for one in told.get("report") or ()
    ]
    plan = (todos.get("choose") or {}).get("plan")
    if plan:
        blocks += ["What was started in the end:", Code(str(plan["run"]))]
    return Part("Flags", [*blocks, Table(("", "vLLM", "SGLang", ""), rows)])


def _doctor(todos: Any) -> Part:
    rows = [
        (name, str(one["verdict"]), "; ".join(one.get("evidence") or ()))
        for name, one in (todos.get("verdict") or {}).items()
        if one.get("verdict")
    ]
    return Part("The doctor on the drafters", [Table(("", "verdict", "because"), rows)] if rows else [])


def _research(todos: Any) -> Part:
    found = todos.get("research") or {}
    lines = [str(line) for line in found.get("findings") or ()] or (
        [str(found["report"])] if found.get("report") else []
    )
    return Part("Findings", [f"By {found.get('by', 'research')}.", Items(lines)] if lines else [])


def _steps(told: Any) -> Part:
    rows = [
        (
            time.strftime("%H:%M:%S", time.gmtime(one["started"])), one["job"], one["attempt"],
            "-" if one["ended"] is None else f"{one['ended'] - one['started']:.1f} s", one["end"],
        )
        for one in told["jobs"]
    ]  # fmt: skip
    return Part("Steps on the host", [Table(("began", "job", "try", "took", "end"), rows)] if rows else [])


def _back(todos: Any) -> Part:
    kept = todos.get("record") or {}
    if not kept.get("command"):
        return Part("The way back", [])
    said = "One command on the host starts the old server as it was, gives it the port and stops the new one:"
    return Part("The way back", [said, Code(kept["command"])])


def _number(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def markdown(title: str, found: Sequence[Part]) -> str:
    """The page as Markdown."""
    lines = [f"# {title}", ""]
    for part in found:
        lines += [f"## {part.heading}", ""]
        for block in part.blocks:
            lines += [*_markdown(block), ""]
    return "\n".join(lines)


def _markdown(block: Block) -> list[str]:
    if isinstance(block, Table):
        rows = [block.head, ["---"] * len(block.head), *block.rows]
        return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    if isinstance(block, Code):
        return ["```", block.text, "```"]
    if isinstance(block, Items):
        return [f"- {line}" for line in block.lines]
    if isinstance(block, Bars):
        known = [(name, value) for name, value in block.values if value is not None]
        most = max((value for _, value in known), default=0) or 1
        wide = max((len(name) for name, _ in known), default=0)
        bars = [f"{name:<{wide}}  {'█' * max(1, round(40 * value / most))} {_short(value)}" for name, value in known]
        return ["```", *bars, f"{'':<{wide}}  {block.unit}", "```"] if known else []
    return [block]


STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem} h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid #8884;padding-bottom:.2rem}
table{border-collapse:collapse;font-size:.92rem} td,th{text-align:left;padding:.25rem .8rem .25rem 0;vertical-align:top}
tr+tr td{border-top:1px solid #8883} pre{background:#8882;padding:.7rem;overflow-x:auto;white-space:pre-wrap}
svg text{font:13px system-ui,sans-serif;fill:currentColor} .wide{overflow-x:auto}
"""


def html(title: str, found: Sequence[Part]) -> str:
    """The page as one HTML file that loads nothing."""
    body = "".join(
        f"<section><h2>{escape(part.heading)}</h2>{''.join(_html(block) for block in part.blocks)}</section>\n"
        for part in found
    )
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    style = f"<style>{STYLE}</style>"
    top = f'<!doctype html><html lang="en"><head>{head}{style}</head><body><h1>{escape(title)}</h1>'
    return f"{top}\n{body}</body></html>\n"


def _html(block: Block) -> str:
    if isinstance(block, Table):
        head = "".join(f"<th>{escape(cell)}</th>" for cell in block.head)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in block.rows
        )
        return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    if isinstance(block, Code):
        return f"<pre>{escape(block.text)}</pre>"
    if isinstance(block, Items):
        return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in block.lines) + "</ul>"
    if isinstance(block, Bars):
        return _svg(block)
    return f"<p>{escape(block)}</p>"


def _svg(bars: Bars) -> str:
    known = [(name, value) for name, value in bars.values if value is not None]
    if not known:
        return ""
    most = max(value for _, value in known) or 1
    rows = []
    for place, (name, value) in enumerate(known):
        y, wide = 26 * place, max(2, round(380 * value / most))
        colour = "#1f77b4" if name.startswith("SGLang") else "#9aa3ad"
        rows.append(
            f'<text x="0" y="{y + 16}">{escape(name)}</text>'
            f'<rect x="200" y="{y + 3}" width="{wide}" height="18" rx="2" fill="{colour}"/>'
            f'<text x="{206 + wide}" y="{y + 16}">{_short(value)}</text>'
        )
    tall = 26 * len(known) + 20
    label = f'<text x="200" y="{tall - 4}">{escape(bars.unit)}</text>'
    head = f'<svg viewBox="0 0 660 {tall}" width="660" role="img" aria-label="{escape(bars.unit)}">'
    return head + "".join(rows) + label + "</svg>"
