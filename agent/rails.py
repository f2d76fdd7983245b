"""Draws a graph's edges as rails beside a list, one row a node, as version-control logs do.

    rows = lay([("a", []), ("b", [("a", "success")]), ...])      # in any order; sources need not come first
    rows[0].rail("✔")                                            # '✔─╮ '

Each row has its node's cell, the lanes that pass it, and the lanes that begin and end there. A lane leads to one node,
whoever it comes from, so the number of lanes is that of nodes waited for and not that of edges. A lane taken only on
failure is dotted. Pure text: colours and what stands beside the rails are the caller's.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Edges = Sequence[tuple[str, str]]
"""Incoming edges of a node: source and event (`success`, `failure`, `finish`)."""

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES = " │││─╯╮┤─╰╭├─┴┬┼"
"""Box-drawing character by the sum of the sides it touches; one end alone is drawn as a whole line."""


@dataclass(frozen=True, slots=True)
class Row:
    """One node. `cells` and `joints` (between cells) are the rail of its own line, `below` that of lines under it."""

    id: str
    column: int
    cells: tuple[str, ...]
    joints: tuple[str, ...]
    below: tuple[str, ...]

    def rail(self, symbol: str, width: int = 0) -> str:
        """The node's line with its symbol in place, padded to `width` characters."""
        cells = [symbol if column == self.column else cell for column, cell in enumerate(self.cells)]
        return "".join(cell + joint for cell, joint in zip(cells, self.joints, strict=True)).ljust(width)

    def under(self, width: int = 0) -> str:
        """The rail of a further line below the node."""
        return "".join(cell + " " for cell in self.below).ljust(width)

    @property
    def width(self) -> int:
        return 2 * len(self.cells)


def lay(nodes: Iterable[tuple[str, Edges]]) -> list[Row]:
    """Rows for nodes, sources first, else in the order given. Edges from unknown nodes and to itself do not count."""
    given = list(nodes)
    known = {id for id, _ in given}
    into = {id: {src: on for src, on in edges if src in known and src != id} for id, edges in given}
    out: dict[str, dict[str, str]] = {id: {} for id in into}
    for id, sources in into.items():
        for src, on in sources.items():
            out[src][id] = on
    order = _sorted(into)
    place = {id: number for number, id in enumerate(order)}
    lanes = _Lanes()
    rows = []
    for id in order:
        later = sorted((child for child in out[id] if place[child] > place[id]), key=place.__getitem__)
        rows.append(lanes.row(id, {child: out[id][child] for child in later}))
    return rows


def _sorted(into: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Sources first, ties in the given order. What is left of a cycle (groups may form one) keeps the given order."""
    position = {id: number for number, id in enumerate(into)}
    waiting = {id: len(sources) for id, sources in into.items()}
    after: dict[str, list[str]] = {id: [] for id in into}
    for id, sources in into.items():
        for src in sources:
            after[src].append(id)
    free = [position[id] for id, number in waiting.items() if not number]
    heapq.heapify(free)
    ids, order, taken = list(into), [], set()
    for _ in ids:
        number = heapq.heappop(free) if free else next(n for n, id in enumerate(ids) if id not in taken)
        order.append(ids[number])
        taken.add(ids[number])
        for id in after[ids[number]]:
            waiting[id] -= 1
            if waiting[id] == 0 and id not in taken:
                heapq.heappush(free, position[id])
    return order


class _Lanes:
    """The lanes at the current row: for each the node it leads to and whether only a failure leads there."""

    def __init__(self) -> None:
        self._lanes: list[tuple[str, bool] | None] = []

    def row(self, id: str, children: Mapping[str, str]) -> Row:
        """Place a node: the lane that leads to it ends, lanes to its children begin or are joined."""
        before = list(self._lanes)
        leading, _ = self._leading_to(id)
        column = self._free(0) if leading is None else leading
        self._lanes[column] = id, False  # held while lanes for the children are looked for
        touched: set[int] = set()
        continued = False
        for child, on in children.items():
            known, dotted = self._leading_to(child)
            lane = known if known is not None else self._free(column + 1) if continued else column
            continued = continued or known is None
            self._lanes[lane] = child, dotted and on == "failure"
            touched.add(lane)
        if not continued:
            self._lanes[column] = None
        row = self._draw(id, column, before, touched)
        while self._lanes and self._lanes[-1] is None:
            self._lanes.pop()
        return row

    def _leading_to(self, id: str) -> tuple[int | None, bool]:
        """The one lane to a node and whether it is dotted; a new lane would be, until something else joins it."""
        found = ((number, lane[1]) for number, lane in enumerate(self._lanes) if lane is not None and lane[0] == id)
        return next(found, (None, True))

    def _free(self, at_least: int) -> int:
        for number in range(at_least, len(self._lanes)):
            if self._lanes[number] is None:
                return number
        self._lanes.append(None)
        return len(self._lanes) - 1

    def _draw(self, id: str, column: int, before: list[tuple[str, bool] | None], touched: set[int]) -> Row:
        before = before + [None] * (len(self._lanes) - len(before))
        left, right = min(touched | {column}), max(touched | {column})
        cells, joints, below = [], [], []
        for number, (above, now) in enumerate(zip(before, self._lanes, strict=True)):
            sides = _UP * (above is not None) + _DOWN * (now is not None)
            if number in touched:
                sides += _LEFT * (number > left) + _RIGHT * (number < right)
            elif left < number < right and not sides:
                sides = _LEFT + _RIGHT
            lane = now or above
            cells.append("╎" if sides in (_UP, _DOWN, _UP + _DOWN) and lane and lane[1] else _LINES[sides])
            joints.append("─" if left <= number < right else " ")
            below.append(" " if now is None else "╎" if now[1] else "│")
        return Row(id, column, tuple(cells), tuple(joints), tuple(below))
