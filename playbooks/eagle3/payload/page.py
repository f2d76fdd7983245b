"""A page made of plain parts, written twice: as Markdown beside its pictures, and as one HTML file with them inside.

    page = Page("A drafter", "What was done, in a sentence.")
    page.add(Heading("Acceptance"), Text("It **accepts** `2.3` tokens."), Picture("acceptance", "how much"))
    page.markdown(), page.html(folder)

Texts know `**bold**` and `code` and nothing else; all else in them is shown as it is written.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

STYLE = """
:root { --ink: #1d242c; --soft: #5b6672; --line: #e3e7eb; --blue: #1f5fbf; --pale: #f5f7fa; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 3rem 1.5rem 5rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .6rem; letter-spacing: -.01em; }
h2 { font-size: 1.25rem; margin: 3rem 0 .8rem; padding-top: 1.2rem; border-top: 1px solid var(--line); }
p { max-width: 46rem; margin: .7rem 0; }
.lead { font-size: 1.12rem; color: var(--soft); }
code { background: var(--pale); border-radius: 4px; padding: .1em .35em; font-size: .88em;
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { background: #1d242c; color: #eef2f6; padding: 1rem 1.2rem; border-radius: 8px; overflow-x: auto;
  font-size: .85rem; line-height: 1.55; } pre code { background: none; padding: 0; color: inherit; font-size: 1em; }
figure { margin: 1.2rem 0; } figure svg { width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: .88rem; max-width: 46rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .38rem .9rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; color: var(--soft); font-size: .85rem; } th:first-child, td:first-child { text-align: left;
  padding-left: 0; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .9rem;
  margin: 1.8rem 0 .5rem; }
.fact { background: var(--pale); border-radius: 10px; padding: .9rem 1.1rem; }
.fact b { display: block; font-size: 1.65rem; line-height: 1.25; color: var(--blue); font-weight: 650; }
.fact span { color: var(--soft); font-size: .88rem; display: block; line-height: 1.4; }
blockquote { margin: .8rem 0; padding: .2rem 0 .2rem 1.1rem; border-left: 3px solid var(--line); color: var(--soft); }
.warning { background: #fff6e5; border-left: 3px solid #e0a100; padding: .6rem 1rem; border-radius: 0 8px 8px 0; }
"""


@dataclass(frozen=True)
class Heading:
    text: str

    def markdown(self) -> str:
        return f"## {self.text}"

    def html(self, folder: Path) -> str:
        return f"<h2>{_inline(self.text)}</h2>"


@dataclass(frozen=True)
class Text:
    text: str
    kind: str = ""  # `warning`, or nothing

    def markdown(self) -> str:
        return f"> **Note:** {self.text}" if self.kind else self.text

    def html(self, folder: Path) -> str:
        return f'<p class="{self.kind}">{_inline(self.text)}</p>' if self.kind else f"<p>{_inline(self.text)}</p>"


@dataclass(frozen=True)
class Facts:
    """Figures that come first: a value and what it is."""

    facts: Sequence[tuple[str, str]]

    def markdown(self) -> str:
        return "\n".join(f"- **{value}** {what}" for value, what in self.facts)

    def html(self, folder: Path) -> str:
        each = (
            f'<div class="fact"><b>{_inline(value)}</b><span>{_inline(what)}</span></div>' for value, what in self.facts
        )
        return f'<div class="facts">{"".join(each)}</div>'


@dataclass(frozen=True)
class Table:
    """Cells are texts; the first column is to the left, the others to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.header, ["---"] + ["---:"] * (len(self.header) - 1), *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    def html(self, folder: Path) -> str:
        head = "".join(f"<th>{_inline(cell)}</th>" for cell in self.header)
        body = "".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


@dataclass(frozen=True)
class Picture:
    """`name`.png beside the Markdown, `name`.svg within the HTML."""

    name: str
    what: str
    below: str = ""

    def markdown(self) -> str:
        return f"![{self.what}]({self.name}.png)" + (f"\n\n{self.below}" if self.below else "")

    def html(self, folder: Path) -> str:
        svg = (folder / f"{self.name}.svg").read_text(encoding="utf-8")
        svg = svg[svg.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{html.escape(self.what)}" ', 1)
        # Identifiers within one page must not meet those of another picture.
        svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}-", svg)
        caption = f"<figcaption>{_inline(self.below)}</figcaption>" if self.below else ""
        return f"<figure>{svg}{caption}</figure>"


@dataclass(frozen=True)
class Code:
    text: str

    def markdown(self) -> str:
        return f"```bash\n{self.text}\n```"

    def html(self, folder: Path) -> str:
        return f"<pre><code>{html.escape(self.text)}</code></pre>"


@dataclass(frozen=True)
class Quote:
    """What was asked and what was answered."""

    asked: str
    answered: str

    def markdown(self) -> str:
        return f"> **{_flat(self.asked)}**\n>\n> {_flat(self.answered)}"

    def html(self, folder: Path) -> str:
        return f"<blockquote><b>{html.escape(self.asked)}</b><br>{html.escape(self.answered)}</blockquote>"


Part = Heading | Text | Facts | Table | Picture | Code | Quote


@dataclass
class Page:
    title: str
    lead: str
    parts: list[Part] = field(default_factory=list)

    def add(self, *parts: Part) -> None:
        self.parts += parts

    def markdown(self) -> str:
        return "\n\n".join([f"# {self.title}", self.lead, *(part.markdown() for part in self.parts)]) + "\n"

    def html(self, folder: Path) -> str:
        """The whole page; its pictures lie in `folder`."""
        body = "\n".join(part.html(folder) for part in self.parts)
        plain = re.sub(r"[`*]", "", self.title)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(plain)}</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
            f'<body><main>\n<h1>{_inline(self.title)}</h1>\n<p class="lead">{_inline(self.lead)}</p>\n{body}\n'
            "</main></body></html>\n"
        )


def _inline(text: str) -> str:
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)


def _flat(text: str) -> str:
    return " ".join(text.split())
