"""The watching screen: a session's log played again, or followed while it runs. It changes nothing.

    code = show(db, Player(recording), playing=True)

Left are the messages up to the moment, right the todo graph as it was then, the time lanes, and what the jobs that ran
said. What the panes hold is made in `agent/watch_panes.py`; here are the keys and the clock. A session that still runs
is read on once a second; whoever stands at the end stays there.
"""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widgets import Input, Static

from agent.replay_player import Player
from agent.runner import ENDED
from agent.watch_panes import Panes
from state.db import Database
from state.errors import TurnoutError

POLL_S = 1.0
WIDE = 100
"""From this width on graph and lanes stand beside the messages; below it one of them is shown at a time."""
VIEWS = ("messages", "graph", "lanes", "jobs")


class WatchApp(App[None]):
    """One recording on the screen. `db` is where a running session is read on from, `None` for a file."""

    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    TITLE = "turnout replay"
    CSS = """
    Screen { layout: vertical; }
    #head { height: 3; padding: 0 1; }
    #body { height: 1fr; }
    #left { width: 1fr; padding: 0 1; }
    #right { width: 1fr; padding: 0 1; }
    #right.beside { border-left: solid $surface-lighten-2; }
    #graph { height: 1fr; }
    #lanes { height: auto; }
    #jobs { height: auto; }
    #foot { height: 1; padding: 0 1; color: $text-muted; }
    #ask { display: none; height: 1; border: none; padding: 0 1; }
    #ask.open { display: block; }
    .hidden { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "play", "play"),
        Binding("right,j", "move(1)", "on"),
        Binding("left,k", "move(-1)", "back"),
        Binding("shift+right", "move(10)", "ten on"),
        Binding("shift+left", "move(-10)", "ten back"),
        Binding("down", "scroll(1)", "on"),
        Binding("up", "scroll(-1)", "back"),
        Binding("pagedown", "scroll(10)", "ten on"),
        Binding("pageup", "scroll(-10)", "ten back"),
        Binding("home", "edge(0)", "start"),
        Binding("end", "edge(1)", "end"),
        Binding("greater_than_sign,full_stop", "faster(1)", "faster"),
        Binding("less_than_sign,comma", "faster(-1)", "slower"),
        Binding("g", "ask('go to')", "go to"),
        Binding("slash", "ask('search')", "search"),
        Binding("n", "again(1)", "next match"),
        Binding("N", "again(-1)", "match before"),
        Binding("tab", "view", "view", priority=True),
        Binding("enter", "open", "open"),
        Binding("l", "logs", "logs"),
        Binding("question_mark", "help", "keys"),
        Binding("escape", "close", "close"),
        Binding("q,ctrl+c,ctrl+q", "quit", "quit", priority=False),
    ]

    def __init__(self, db: Database | None, player: Player, *, playing: bool) -> None:
        super().__init__()
        self.db, self.player, self.playing = db, player, playing
        self.panes = Panes(player)
        self.view = "messages"
        self.wanted = ""
        self.told = ""
        self._timer: Timer | None = None
        self._asked = ""

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        with Horizontal(id="body"):
            yield Static(id="left")
            with Vertical(id="right"):
                yield Static(id="graph")
                yield Static(id="lanes")
                yield Static(id="jobs")
        yield Input(id="ask")
        yield Static(id="foot")

    def on_mount(self) -> None:
        self.query_one("#ask", Input).can_focus = False
        if self._runs():
            self.set_interval(POLL_S, self._poll)
        self._draw()
        self._schedule()

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    # Playing

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        wait = self.player.wait() if self.playing else None
        if wait is not None:
            self._timer = self.set_timer(max(wait, 0.001), self._next)
        elif self.playing and self.player.at_end and not self._runs():
            self.playing = False
            self._draw()

    def _next(self) -> None:
        self.player.place += 1
        while (wait := self.player.wait()) is not None and wait < 0.02:
            self.player.place += 1  # what came together is shown together
        self._draw()
        self._schedule()

    def _runs(self) -> bool:
        return self.db is not None and self.panes.spans.status not in ENDED

    async def _poll(self) -> None:
        if self.db is None or not self._runs():
            return
        follows = self.player.at_end
        db = self.db
        worker = self.run_worker(lambda: self.panes.news(db), thread=True, exclusive=True, group="news")
        if await worker.wait():
            if follows:  # whoever has seen everything sees what comes when it comes
                self.playing = False
                self.player.place = len(self.panes.recording)
            self.panes.changed()
            self._draw()
            self._schedule()

    # Keys

    def action_play(self) -> None:
        if self.player.at_end and not self.playing:
            self.player.place = 0
        self.playing = not self.playing
        self._draw()
        self._schedule()

    def action_move(self, by: int) -> None:
        self._go(self.player.place + by)

    def action_scroll(self, by: int) -> None:
        """Through the lines of what is opened, else through the messages."""
        if not self.panes.scroll(by):
            self._go(self.player.place + by)
        self._draw()

    def action_edge(self, end: int) -> None:
        self._go(len(self.panes.recording) if end else 0)

    def action_faster(self, by: int) -> None:
        self.player.faster(by)
        self._draw()
        self._schedule()

    def action_view(self) -> None:
        self.view = VIEWS[(VIEWS.index(self.view) + 1) % len(VIEWS)]
        self._draw()

    def action_open(self) -> None:
        self.panes.opened = not self.panes.opened
        self.panes.scrolled = 0
        self._draw()

    async def action_logs(self) -> None:
        """Show the log of the job that runs at the moment; read from its host, while it may grow each time anew."""
        self.panes.logging = not self.panes.logging
        self.panes.scrolled = 0
        unread = self.panes.logs is None or self._runs()
        if self.panes.logging and unread and self.db is not None:
            self._say("reading the logs of jobs from their hosts ...")
            db = self.db
            worker = self.run_worker(lambda: self.panes.read_logs(db), thread=True, exclusive=True, group="logs")
            await worker.wait()
            self.told = ""
        self._draw()

    def action_help(self) -> None:
        self.panes.helping = not self.panes.helping
        self._draw()

    def action_close(self) -> None:
        self.panes.opened = self.panes.helping = self.panes.logging = False
        self._close_ask()
        self._draw()

    def action_ask(self, what: str) -> None:
        self._asked = what
        ask = self.query_one("#ask", Input)
        ask.placeholder = (
            "message number, time (12:30, 90s) or todo" if what == "go to" else "search: any text, in any case"
        )
        ask.value = ""
        ask.can_focus = True
        ask.add_class("open")
        ask.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text, asked = event.value.strip(), self._asked
        self._close_ask()
        if not text:
            return
        if asked == "search":
            self.wanted = text
            self.action_again(1)
            return
        try:
            self._go(self.panes.recording.place(text))
        except TurnoutError as error:
            self._say(error.message)

    def action_again(self, by: int) -> None:
        if not self.wanted:
            return
        found = self.panes.recording.search(self.wanted, self.player.place, back=by < 0)
        if found is None:
            self._say(f"nothing {'before' if by < 0 else 'behind'} this says `{self.wanted}`")
        else:
            self._go(found)

    def _close_ask(self) -> None:
        ask = self.query_one("#ask", Input)
        ask.remove_class("open")
        ask.can_focus = False
        self.set_focus(None)

    def _go(self, place: int) -> None:
        self.playing = False
        self.player.place = place
        self.panes.scrolled = 0
        self.told = ""
        self._draw()
        self._schedule()

    def _say(self, text: str) -> None:
        self.told = text
        self._draw()

    # Drawing

    def _draw(self) -> None:
        width, height = self.size.width, self.size.height
        if not width:
            return
        wide = width >= WIDE and bool(self.panes.spans.todos)  # words alone take all the room
        left = self.view == "messages" or self.panes.covered
        room = max(4, height - 4)
        left_width = (width * 48 // 100 if wide else width) - 2
        right_width = (width - width * 48 // 100 if wide else width) - 3
        self.query_one("#left").styles.width = width * 48 // 100 if wide else "1fr"
        self.query_one("#left").set_class(not wide and not left, "hidden")
        self.query_one("#right").set_class(not wide and left, "hidden")
        self.query_one("#right").set_class(wide, "beside")
        self.query_one("#head", Static).update(self.panes.head(width - 2, playing=self.playing, live=self._runs()))
        self.query_one("#left", Static).update(self.panes.left(left_width, room, self.wanted))
        shares = self._shares(wide, room)
        for name, lines in self.panes.right(right_width, shares).items():
            pane = self.query_one(f"#{name}", Static)
            pane.set_class(lines is None, "hidden")
            if lines is not None:
                pane.update(lines)
        self.query_one("#foot", Static).update(self.told or self.panes.foot(width - 2, self.view if not wide else ""))

    def _shares(self, wide: bool, room: int) -> dict[str, int]:
        """Lines for each pane on the right; 0 hides it."""
        if not wide:
            return {name: room if name == self.view else 0 for name in ("graph", "lanes", "jobs")}
        lanes = min(self.panes.lane_count() + 2, max(4, room // 3))
        jobs = min(8, room // 4)
        return {"graph": room - lanes - jobs, "lanes": lanes, "jobs": jobs}


def show(db: Database | None, player: Player, *, playing: bool) -> int:
    """Open the screen until it is left."""
    WatchApp(db, player, playing=playing).run()
    return 0
