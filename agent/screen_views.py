"""Panes of lines for the chat screen: drawn once, scrolled for nothing, redrawn only where something changed.

    pane = LinesPane(id="graph"); pane.show([Text("…"), ...])
    talk = EntriesPane(draw); talk.changed(entry)         # entries that grow at the end

Every pane keeps its lines as strips of terminal cells, so that a keystroke costs the same however long the conversation
is and however many jobs write. They know nothing of sessions: what an entry looks like is given to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.timer import Timer

MANY = 40
SETTLE_S = 0.1


class StripsPane(ScrollView, can_focus=False):
    """Lines with a scroll bar. `follows` keeps the end in sight while the operator has not scrolled away from it."""

    follows = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._strips: list[Strip] = []
        self.marked: int | None = None
        self._stuck = True

    def watch_scroll_y(self, old: float, new: float) -> None:
        """Whoever scrolls up lets go of the end; whoever comes back to it follows again."""
        super().watch_scroll_y(old, new)
        self._stuck = self.at_end or (self._stuck and new >= old)

    def stick(self) -> None:
        """Go to the end once what has changed is laid out, if the end is being followed."""
        if self.follows and self._stuck:
            self.call_after_refresh(self.scroll_end, animate=False, immediate=True)

    @property
    def room(self) -> Size:
        """Columns and rows that lines have."""
        return self.scrollable_content_region.size

    @property
    def at_end(self) -> bool:
        return self.scroll_offset.y >= self.max_scroll_y - 1

    def set_strips(self, strips: list[Strip], start: int = 0) -> None:
        """Replace the lines from `start` on."""
        del self._strips[start:]
        self._strips += strips
        self.virtual_size = Size(self.room.width, len(self._strips))
        self.stick()
        self.refresh()

    def strips_of(self, renderable: RenderableType, width: int) -> list[Strip]:
        """A renderable as lines of cells, at most `width` wide."""
        console = self.app.console
        options = console.options.update(width=max(1, width), height=None, highlight=False)
        return [Strip(line) for line in console.render_lines(renderable, options, pad=False)]

    def strip_of(self, line: Text, width: int) -> Strip:
        """One line, cut at `width`."""
        cut = line.copy()
        cut.no_wrap = True
        cut.truncate(max(1, width), overflow="ellipsis")
        cut.stylize(cut.style)  # a text without spans would be rendered without its own style
        return Strip(list(cut.render(self.app.console, "")))

    def render_line(self, y: int) -> Strip:
        place = y + int(self.scroll_offset.y)
        width = self.scrollable_content_region.width
        base = self.rich_style
        if place >= len(self._strips):
            return Strip.blank(width, base)
        strip = self._strips[place].adjust_cell_length(width).apply_style(base)
        return strip.apply_style(self.get_component_rich_style("pane--marked")) if place == self.marked else strip

    COMPONENT_CLASSES: ClassVar[set[str]] = {"pane--marked"}
    DEFAULT_CSS = """
    StripsPane { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; scrollbar-gutter: stable;
                 height: 1fr; overflow-x: hidden;
                 scrollbar-background: $background; scrollbar-background-hover: $background;
                 scrollbar-background-active: $background; scrollbar-color: $panel-lighten-2;
                 scrollbar-color-hover: $panel-lighten-3; scrollbar-color-active: $primary; }
    StripsPane > .pane--marked { background: $primary-muted; text-style: bold; }
    """


class LinesPane(StripsPane):
    """Lines that are drawn elsewhere for `room`, all at once."""

    def __init__(self, on_resize: Callable[[], None] | None = None, *, follows: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.follows = follows
        self._on_resize = on_resize
        self._lines: list[Text] = []

    def show(self, lines: Sequence[Text], marked: int | None = None) -> None:
        """These lines, the `marked` one standing out and in sight."""
        if not self.room.width:
            return  # not laid out yet; being laid out asks for them again
        moved = marked != self.marked
        if list(lines) == self._lines and not moved:
            return
        self._lines, self.marked = list(lines), marked
        self.set_strips([self.strip_of(line, self.room.width) for line in lines])
        if marked is not None and moved:
            top, height = int(self.scroll_offset.y), self.room.height
            if not top <= marked < top + height:
                self.scroll_to(y=max(0, marked - height // 2), animate=False)

    def add(self, lines: Sequence[Text], most: int) -> None:
        """More lines at the end, long ones over several rows; of all of them the last `most` are kept."""
        self._lines += lines
        if len(self._lines) > most + most // 4:
            del self._lines[:-most]
            self._wrap(self._lines, 0)
        else:
            self._wrap(lines, len(self._strips))

    def _wrap(self, lines: Sequence[Text], start: int) -> None:
        width = self.room.width
        self.set_strips([strip for line in lines for strip in self.strips_of(line, width)], start)

    def on_resize(self) -> None:
        if self._on_resize is not None:
            self._on_resize()
        else:
            self._wrap(self._lines, 0)


class EntriesPane(StripsPane):
    """A conversation: entries below each other, of which mostly the last ones change."""

    follows = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.draw: Callable[[Any, Any, int], list[RenderableType]] = lambda entry, before, width: []
        self._entries: list[Any] = []
        self._starts: list[int] = []
        self._places: dict[int, int] = {}
        self._width = 0
        self._again: Timer | None = None

    def changed(self, entries: Sequence[Any]) -> None:
        """These entries are new or have changed."""
        first = len(self._entries)
        for entry in entries:
            place = self._places.get(id(entry))
            if place is None:
                self._places[id(entry)] = len(self._entries)
                self._entries.append(entry)
                self._starts.append(len(self._strips))
            else:
                first = min(first, place)
        self._draw_from(first)

    def clear(self) -> None:
        """Show nothing."""
        self._entries, self._starts, self._places = [], [], {}
        self.set_strips([])

    def on_resize(self) -> None:
        if self._again is not None:
            self._again.stop()
            self._again = None
        if self.room.width != self._width:
            if self._width and len(self._entries) > MANY:  # a window that is being dragged has many sizes
                self._again = self.set_timer(SETTLE_S, lambda: self._draw_from(0))
            else:
                self._draw_from(0)
        self.stick()

    def _draw_from(self, first: int) -> None:
        self._width = self.room.width
        if not self._width or first >= len(self._entries):
            return
        start = self._starts[first] if first else 0
        strips: list[Strip] = []
        for place in range(first, len(self._entries)):
            self._starts[place] = start + len(strips)
            before = self._entries[place - 1] if place else None
            for part in self.draw(self._entries[place], before, self._width):
                strips += self.strips_of(part, self._width)
        self.set_strips(strips, start)
