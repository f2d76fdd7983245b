"""The list of sessions as a page: what `turnout view` shows first. Pure; no script."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from agent.pace import ago, clock

MARKS = {"completed": "✔", "failed": "✘", "running": "▶", "paused": "‖", "interrupted": "‖", "cancelled": "⊗"}

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Sessions · Turnout</title><style>{style}
.sessions {{ width: 100%; border-collapse: collapse; }}
.sessions td, .sessions th {{ padding: 8px 12px 8px 0; text-align: left; vertical-align: top; }}
.sessions td, .sessions th {{ border-bottom: 1px solid var(--line); }}
.sessions th {{ color: var(--quiet); font-weight: 500; }}
.sessions a {{ color: inherit; text-decoration: none; font-weight: 600; }}
.sessions a:hover {{ color: var(--accent); }}
body {{ padding-bottom: 20px; }}</style></head>
<body><div class="app"><h1>Sessions</h1>
<p class="quiet">Newest first. Pages of running sessions move by themselves.</p><br>
<section class="card"><table class="sessions"><thead><tr><th></th><th>session</th><th>todos</th><th>took</th>
<th>began</th></tr></thead><tbody>{rows}</tbody></table></section></div></body></html>
"""


def index(sessions: Sequence[Mapping[str, Any]], now: float) -> str:
    """`sessions` as `agent/look.py` tells them."""
    rows = "".join(_row(session, now) for session in sessions)
    rows = rows or "<tr><td></td><td>none yet: <code>turnout run examples/hedge.yaml</code></td></tr>"
    return _PAGE.format(style=(files("agent.page") / "page.css").read_text(encoding="utf-8"), rows=rows)


def _row(session: Mapping[str, Any], now: float) -> str:
    state, todos = session["state"], session["todos"]
    end = now if state == "running" else session["updated"]
    title, id = html.escape(session["title"] or session["id"]), html.escape(session["id"])
    hosts = html.escape(", ".join(session["hosts"]))
    return (
        f'<tr><td><span class="mark {state}" title="{state}">{MARKS.get(state, "•")}</span></td>'
        f'<td><a href="/s/{id}/">{title}</a><br><span class="quiet"><code>{id}</code> {hosts}</span></td>'
        f"<td>{todos['done']}/{todos['total']}</td><td>{clock(end - session['created'])}</td>"
        f"<td>{ago(now - session['created'])} ago</td></tr>"
    )
