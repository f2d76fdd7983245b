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
    """Rows for nodes, sources first, otherwise in the order given. Edges from unknown nodes and to itself are ignored."""
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
    return [lanes.row(id, {c: on for c, on in sorted(out[id].items(), key=lambda e: place[e[0]]) if place[c] > place[id]})
            for id in order]  # fmt: skip


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
    """The lanes at the current row: which node each leads to, and whether only by failure."""

    def __init__(self) -> None:
        self._to: list[str | None] = []
        self._failure: list[bool] = []

    def row(self, id: str, children: Mapping[str, str]) -> Row:
        """Place a node: lanes that lead to it end, lanes to its children begin or are joined."""
        before, ending = list(self._to), [lane for lane, to in enumerate(self._to) if to == id]
        was_failure = list(self._failure)
        column = ending[0] if ending else self._free(0)
        before += [None] * (len(self._to) - len(before))
        for lane in ending:
            self._to[lane] = None
        joined = {lane for lane in ending if lane != column}
        self._to[column] = id  # held while lanes for the others are looked for
        own = False
        for child, on in children.items():
            lane = self._to.index(child) if child in self._to else None
            if lane is None and not own:
                lane, own = column, True
            elif lane is None:
                lane = self._free(column + 1)
            self._failure[lane] = on == "failure" and (self._to[lane] != child or self._failure[lane])
            self._to[lane] = child
            joined.add(lane)
        if not own:
            self._to[column] = None
        before += [None] * (len(self._to) - len(before))
        was_failure += [False] * (len(self._to) - len(was_failure))
        row = self._draw(id, column, before, was_failure, joined - {column})
        while self._to and self._to[-1] is None:
            self._to.pop()
            self._failure.pop()
        return row

    def _free(self, at_least: int) -> int:
        for lane in range(at_least, len(self._to)):
            if self._to[lane] is None:
                return lane
        self._to.append(None)
        self._failure.append(False)
        return len(self._to) - 1

    def _draw(self, id: str, column: int, before: list[str | None], was: list[bool], joined: set[int]) -> Row:
        left, right = min(joined | {column}), max(joined | {column})
        cells, joints, below = [], [], []
        for lane, to in enumerate(self._to):
            sides = (_UP if before[lane] is not None and lane != column else 0) + (_DOWN if to is not None else 0)
            dotted = self._failure[lane] if to is not None else was[lane]
            if lane in joined:
                sides += (_LEFT if lane > left else 0) + (_RIGHT if lane < right else 0)
            elif left < lane < right and not sides:
                sides = _LEFT + _RIGHT
            plain = _LINES[sides]
            cells.append("╎" if plain == "│" and dotted else plain)
            joints.append("─" if left <= lane < right else " ")
            below.append(" " if to is None else "╎" if self._failure[lane] else "│")
        return Row(id, column, tuple(cells), tuple(joints), tuple(below))
