"""What the panes of the watching screen hold at a moment: head, messages, graph, lanes, jobs.

Makes text in rich's terms and reads nothing but the recording; the screen (`agent/watch_app.py`) asks for lines within
a width and a height. The board is carried on message by message while a recording plays, and found anew after a jump.
"""

from __future__ import annotations

import json
from io import StringIO

from rich.console import Console
from rich.text import Text

from agent.board import Board
from agent.pace import clock
from agent.painter import SYMBOLS, plain
from agent.picture import draw
from agent.replay import Entry, advance
from agent.replay_player import Player
from agent.replay_source import news
from agent.replay_spans import Spans
from agent.replay_words import SPEAKERS, body, group, job_name, words
from agent.watch_lanes import lanes
from state.db import Database

GROUP_STYLE = {
    "talk": "",
    "todos": "",
    "jobs": "dim",
    "reports": "dim",
    "session": "dim",
    "details": "dim",
    "other": "dim",
}
KEYS = [
    ("Space", "play, pause"),
    ("← →", "one message back, on (also k j)"),
    ("Shift ← →", "ten messages (also PgUp PgDn)"),
    ("Home End", "begin, end"),
    ("< >", "slower, faster"),
    ("g", "go to a message number, a time (12:30, 90s) or a todo"),
    ("/  n N", "search; next, previous match"),
    ("Enter", "the message in full"),
    ("l", "the log of the job that runs, from its host"),
    ("↑ ↓", "the lines of what is opened, else messages"),
    ("Tab", "messages, graph, lanes, jobs"),
    ("? Esc q", "these keys; close; leave"),
]
_WRAPS = Console(file=StringIO(), width=200)
"""Breaks lines between words, wide characters counted as such; nothing is printed to it."""
HERE = "bold on #263a55"
"""The message of the moment."""
LOOK_AHEAD = 400
"""A board is carried on over at most so many messages; further is a jump."""


class Panes:
    """The content of the screen at the place of `player`."""

    def __init__(self, player: Player) -> None:
        self.player, self.recording = player, player.recording
        self.opened = self.helping = self.logging = False
        self.scrolled = 0
        self.logs: dict[str, dict[str, str]] | None = None
        self.missing: list[str] = []
        self._board: tuple[int, Board] | None = None
        self.changed()

    def changed(self) -> None:
        """The recording has grown."""
        self.spans = Spans(self.recording.entries)

    def news(self, db: Database) -> bool:
        """Read on; from a thread."""
        return news(db, self.recording)

    def read_logs(self, db: Database) -> None:
        """Read the logs of all jobs, as far as their hosts can be reached; from a thread."""
        from agent.replay_logs import fetch  # SSH is not needed to watch

        missing: list[str] = []
        self.logs = fetch(db, self.recording, missing.append)
        self.missing = missing

    @property
    def covered(self) -> bool:
        """Whether something is shown in place of the messages."""
        return self.opened or self.helping or self.logging

    def scroll(self, by: int) -> bool:
        """Move within the message or log that is shown; whether one is."""
        if self.opened or self.logging:
            self.scrolled += -by if self.logging else by
        return self.opened or self.logging

    def lane_count(self) -> int:
        started = sum(bool(todo.attempts) for todo in self.spans.todos.values())
        return started + len(self.spans.leases) + len(self.spans.children) + bool(self.spans.calls)

    def board(self) -> Board:
        place = self.player.place
        if self._board is not None and 0 <= place - self._board[0] <= LOOK_AHEAD:
            at, board = self._board
            advance(board, self.recording.entries[at:place])
        else:
            board = self.recording.board(place)
        self._board = place, board
        return board

    @property
    def now(self) -> float:
        return self.recording.time(self.player.place)

    def head(self, width: int, *, playing: bool, live: bool) -> Text:
        """Title and status, the scrubber, a rule."""
        board, recording, place = self.board(), self.recording, self.player.place
        mark, style = SYMBOLS.get(board.status, SYMBOLS["cancelled"])
        state = "live" if live and self.player.at_end else "▶ playing" if playing else "‖ paused"
        right = f"{state}  {self.player.speed:g}x"
        title = Text.assemble((f"{mark} ", style), (plain(recording.title), "bold"))
        title.truncate(max(4, width - len(right) - 1), overflow="ellipsis", pad=True)
        title.append(" " + right, "cyan" if playing or live else "dim")
        seq = recording.entries[place - 1].seq if place else 0
        where = f" {seq}/{recording.entries[-1].seq if recording.entries else 0}  {clock(self.now - recording.began)}"
        where += f" of {clock(recording.seconds)}"
        room = max(4, width - len(where))
        full = room * place // max(1, len(recording))
        bar = Text.assemble(("━" * full, "cyan"), ("─" * (room - full), "dim"), (where, ""))
        return Text("\n").join([title, bar, Text("")])

    def left(self, width: int, height: int, wanted: str) -> Text:
        """The messages up to the moment; the keys, or the last message in full, when asked for."""
        if self.helping:
            return Text("\n").join(Text.assemble((f"{key:>10}  ", "cyan"), what) for key, what in KEYS)
        if self.logging:
            return self._log(width, height)
        place = self.player.place
        if self.opened and place:
            return self._full(self.recording.entries[place - 1], width, height)
        first = max(0, place - height + 2)
        rows = [
            self._row(entry, width, last=first + n == place - 1) for n, entry in enumerate(self._entries(first, place))
        ]
        ahead = [self._row(entry, width, last=False, ahead=True) for entry in self._entries(place, first + height)]
        for row in rows:
            if wanted:
                row.highlight_words([wanted], "black on yellow", case_sensitive=False)
        return Text("\n").join([*rows, *ahead][:height])

    def _entries(self, first: int, end: int) -> list[Entry]:
        return self.recording.entries[first:end]

    def _row(self, entry: Entry, width: int, *, last: bool, ahead: bool = False) -> Text:
        kind = group(entry.kind)
        number = f"{entry.seq:>5} {clock(entry.time - self.recording.began):>7} "
        text = Text(number, "dim")
        style = "bright_black" if ahead else self._style(entry) or GROUP_STYLE.get(kind, "")
        if entry.kind in SPEAKERS:
            text.append(f"{SPEAKERS[entry.kind]}  ", "bright_black" if ahead else "bold magenta")
        text.append(words(entry), style)
        text.truncate(width, overflow="ellipsis", pad=last)
        if last:
            text.stylize(HERE)
        return text

    def _style(self, entry: Entry) -> str:
        if entry.kind == "todo.status":
            return SYMBOLS.get(entry.payload.get("now", ""), ("", ""))[1]
        if entry.kind in ("approval.asked", "approval.answered"):
            return "magenta"
        return "red" if entry.kind == "model.failed" else ""

    def _full(self, entry: Entry, width: int, height: int) -> Text:
        said = body(entry) or json.dumps(dict(entry.payload), ensure_ascii=False, indent=2)
        lines = [Text(f"message {entry.seq}: {entry.kind} by {entry.actor}", "bold"), Text()]
        for line in said.splitlines():
            indent = " " * (len(line) - len(line.lstrip()))
            lines += Text(indent + plain(line)).wrap(_WRAPS, width) if line.strip() else [Text()]
        return Text("\n").join([*lines[:2], *self._window(lines[2:], height - 2)])

    def _window(self, lines: list[Text], room: int, *, from_end: bool = False) -> list[Text]:
        """As many lines as there is room for, from where it was scrolled to, and how many there are beside them."""
        most = max(0, len(lines) - room)
        self.scrolled = max(0, min(self.scrolled, most))
        first = most - self.scrolled if from_end else self.scrolled
        shown, below = lines[first : first + room], most - first
        if below:
            shown[-1:] = [Text(f"… {below + 1} more lines: ↓", "dim")]
        if first:
            shown[:1] = [Text(f"… {first + 1} more lines: ↑", "dim")]
        return shown

    def _log(self, width: int, height: int) -> Text:
        """The end of the log of the job that began last before the moment, as it is on its host now."""
        jobs = self.board().jobs
        if not jobs:
            return Text("no job has begun at this moment", "dim")
        job = next((job for job in reversed(jobs.values()) if job.alive), next(reversed(jobs.values())))
        found = (self.logs or {}).get(job.id)
        lines = [Text(f"log of {job_name(job.id)} on {job.host}, as it is there now", "bold"), Text()]
        if found is None:
            why = self.missing or ["its host was not asked"]
            return Text("\n").join([*lines, *(Text(line, "yellow") for line in why)])
        lines[1] = Text(str(found["note"]), "dim")
        body = [row for line in str(found["text"]).splitlines() for row in Text(line or " ").wrap(_WRAPS, width)]
        return Text("\n").join([*lines, *self._window(body, max(1, height - len(lines)), from_end=True)])

    def right(self, width: int, shares: dict[str, int]) -> dict[str, Text | None]:
        """Graph, lanes and jobs, each within its share of lines."""
        made: dict[str, Text | None] = {"graph": None, "lanes": None, "jobs": None}
        if shares["graph"]:
            board = self.board()
            lines = draw(board, width=width, height=shares["graph"], now=self.now) if board.todos else []
            made["graph"] = Text("\n").join(lines or [Text("no todos at this moment", "dim")])
        if shares["lanes"]:
            drawn = lanes(self.spans, at=self.now, width=width, height=shares["lanes"] - 1)
            made["lanes"] = Text("\n").join([Text(""), *drawn])
        if shares["jobs"]:
            made["jobs"] = Text("\n").join(self._jobs(width, shares["jobs"]))
        return made

    def _jobs(self, width: int, height: int) -> list[Text]:
        """What the jobs that run at the moment have said of themselves, newest last."""
        alive = [job.id for job in self.board().jobs.values() if job.alive]
        said: list[Text] = []
        if alive:
            each = max(1, (height - 1) // len(alive[: height - 1 or 1]))
            for id in alive[: max(1, (height - 1) // each)]:
                said += self._tail(id, width, each)
        lines = [Text(""), *said] if said else [Text(""), Text("no job runs at this moment", "dim")]
        return lines[:height]

    def _said(self, entry: Entry, job: str) -> str:
        """What a job says in a message, other than that it counts."""
        line = str(entry.payload.get("line", "")) if entry.kind == "job.reported" and entry.payload["id"] == job else ""
        return "" if line.startswith("::progress") else line

    def _tail(self, job: str, width: int, lines: int) -> list[Text]:
        """The last lines that a job reported before the moment, each once."""
        found: list[str] = []
        entries = self.recording.entries
        for place in range(self.player.place - 1, max(-1, self.player.place - 5000), -1):
            entry = entries[place]
            if entry.kind == "job.submitted" and entry.payload["id"] == job:
                break
            if (line := self._said(entry, job)) and line not in found:
                found.append(line)
                if len(found) >= lines:
                    break
        name = job_name(job)
        told = [Text.assemble((f"{name}  ", "cyan"), (plain(line), "dim")) for line in reversed(found)]
        told = told or [Text.assemble((f"{name}  ", "cyan"), ("has said nothing yet", "dim"))]
        for text in told:
            text.truncate(width, overflow="ellipsis")
        return told

    def foot(self, width: int, view: str) -> Text:
        """The keys one needs, and on a narrow screen which pane is shown."""
        keys = "? keys  q leaves  Space plays  ←→ steps  g goes to  / searches  Enter opens  l logs  <> speed"
        text = Text((f"[{view}] Tab  " if view else "") + keys)
        text.truncate(width, overflow="ellipsis")
        return text
