"""The todo graph in memory: what is ready, what a finished todo releases, what becomes impossible.

Pure data, no I/O and no clock. The core (`agent/core.py`) drives it, the tables mirror it (`state/projection.py` keeps
the same counters in SQL), and a slow, obvious model checks it in the tests.

Every incoming edge of a todo is `open` (its source is not yet decided), `met` or `dead` (can never be met):

    edge on     source completed   failed   skipped   cancelled
    success     met                dead     dead      dead
    failure     dead               met      dead      dead
    finish      met                met      met       met

A todo that joins by `all` is ready when no edge is open and none dead, and is skipped as soon as one is dead. One that
joins by `any` is ready at the first met edge and is skipped when all are dead. So finishing a todo costs its outgoing
edges and no more, however large the graph.

Cycles are refused when an edge is added. `Graph` keeps a topological order and repairs only the part that an edge
disturbs (D. J. Pearce and P. H. J. Kelly, "A dynamic topological sort algorithm for directed acyclic graphs",
ACM JEA 11, 2007), so most edges cost O(1).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from state.errors import CycleError, GraphError, NotFound
from state.specs import PRIORITIES, TERMINAL, Join, Kind, On, Priority, Status

MET: dict[On, frozenset[Status]] = {
    "success": frozenset({"completed"}),
    "failure": frozenset({"failed"}),
    "finish": frozenset({"completed", "failed", "skipped", "cancelled"}),
}


@dataclass(slots=True, frozen=True)
class Transition:
    """A todo went from one status to another; `because` is the todo that caused it, if another one did."""

    id: str
    was: Status
    now: Status
    because: str | None = None


class Node:
    """One todo: its status, its counters and both ends of its edges. `order` is its place in the topological order."""

    __slots__ = ("dead", "id", "into", "join", "kind", "met", "open", "order", "out", "position", "priority", "status")

    def __init__(
        self,
        id: str,
        position: int,
        *,
        kind: Kind = "job",
        priority: Priority = "medium",
        join: Join = "all",
        status: Status = "pending",
    ) -> None:
        self.id = id
        self.position = position
        self.order = position
        self.kind = kind
        self.priority = priority
        self.join = join
        self.status: Status = status
        self.open = self.met = self.dead = 0
        self.out: list[tuple[Node, On]] = []
        self.into: list[tuple[Node, On]] = []

    @property
    def is_ready(self) -> bool:
        if self.status != "pending":
            return False
        if self.join == "any" and self.into:
            return self.met > 0
        return self.open == 0 and self.dead == 0

    @property
    def may_run(self) -> bool:
        """Whether what it waits for lets it run, or may yet. One that has begun loses that when an edge is reset."""
        if self.join == "any":
            return not self.into or self.open > 0 or self.met > 0
        return self.dead == 0

    @property
    def is_impossible(self) -> bool:
        return self.status == "pending" and not self.may_run

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key for dispatch: priority first, then the order in which todos were added."""
        return PRIORITIES[self.priority], self.position

    def count(self, on: On, source: Status, by: int = 1) -> None:
        """Book an incoming edge whose source has this status; `by=-1` takes the booking back."""
        if source not in TERMINAL:
            self.open += by
        elif source in MET[on]:
            self.met += by
        else:
            self.dead += by


def _place(end: tuple[Node, On]) -> tuple[int, On]:
    """Where an edge stands among those of a node: what follows from an end must not depend on how edges were read."""
    return end[0].position, end[1]


class Graph:
    """Todos and edges of one session. Raises `GraphError` for an edit or a transition that cannot be."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._sorted = True

    def __len__(self) -> int:
        return len(self.nodes)

    def __contains__(self, id: str) -> bool:
        return id in self.nodes

    def __getitem__(self, id: str) -> Node:
        try:
            return self.nodes[id]
        except KeyError:
            raise NotFound(f"no todo `{id}` in this session", hint="`turnout todo` lists them") from None

    def ready(self) -> list[Node]:
        """All todos that may start now, in the order in which they should."""
        return sorted((n for n in self.nodes.values() if n.is_ready), key=attrgetter("rank"))

    # Building

    def add(self, node: Node) -> None:
        if node.id in self.nodes:
            raise GraphError(f"there is already a todo `{node.id}`", hint="choose another id")
        self.nodes[node.id] = node

    def link(self, src: str, dst: str, on: On = "success") -> list[Transition]:
        """Add "`dst` after `src`". Returns the skips that follow when `src` has already ended the other way."""
        a, b = self[src], self[dst]
        if any(n is a and o == on for n, o in b.into):
            return []
        if b.status != "pending":
            raise GraphError(f"`{dst}` is {b.status} and cannot be made to wait for `{src}`")
        self._keep_acyclic(a, b)
        insort(a.out, (b, on), key=_place)
        insort(b.into, (a, on), key=_place)
        b.count(on, a.status)
        return self._settle([(b, a.id)])

    def restore(self, edges: Iterable[tuple[str, str, On]]) -> None:
        """Add stored edges, known to be acyclic, without touching the counters, which were stored with the todos."""
        nodes = self.nodes
        for src, dst, on in edges:
            a, b = nodes[src], nodes[dst]
            a.out.append((b, on))
            b.into.append((a, on))
        for node in nodes.values():
            for ends in (node.out, node.into):
                if len(ends) > 1:
                    ends.sort(key=_place)
        self._sorted = False  # put in order when the first new edge asks for it: most sessions never do

    def _sort(self) -> None:
        """Kahn's algorithm over the whole graph: a valid `order` for every node."""
        waiting = {n: len(n.into) for n in self.nodes.values() if n.into}
        done = [n for n in self.nodes.values() if not n.into]
        for place, node in enumerate(done):
            node.order = place
            for after, _ in node.out:
                waiting[after] -= 1
                if not waiting[after]:
                    done.append(after)
        self._sorted = True

    def _keep_acyclic(self, a: Node, b: Node) -> None:
        """Make room for the edge a -> b in the topological order, or raise `CycleError` with the path against it."""
        if a is b:
            raise CycleError([a.id, a.id])
        if not self._sorted:
            self._sort()
        if a.order < b.order:
            return
        ahead = _reach(b, lambda n: (m for m, _ in n.out if m.order <= a.order), goal=a)
        behind = _reach(a, lambda n: (m for m, _ in n.into if m.order >= b.order))
        moved = sorted(behind, key=attrgetter("order")) + sorted(ahead, key=attrgetter("order"))
        for node, order in zip(moved, sorted(n.order for n in moved), strict=True):
            node.order = order

    # Living

    def start(self, id: str) -> Transition:
        """`pending` to `in_progress`, for a todo that is ready."""
        node = self[id]
        if not node.is_ready:
            raise GraphError(f"`{id}` is not ready: {node.status}, {node.open} edges open, {node.dead} impossible")
        node.status = "in_progress"
        return Transition(id, "pending", "in_progress")

    def requeue(self, id: str) -> Transition:
        """`in_progress` back to `pending`, for another attempt. Raises `GraphError` for what could start no more."""
        node = self[id]
        if node.status != "in_progress":
            raise GraphError(f"`{id}` is {node.status}: only what is in progress can be tried again")
        if not node.may_run:
            raise GraphError(f"`{id}` cannot run again as long as what it waits for has ended as it has")
        node.status = "pending"
        return Transition(id, "in_progress", "pending")

    def end(self, id: str, status: Status, because: str | None = None) -> list[Transition]:
        """Bring a todo to a terminal status. Returns that transition and the skips it causes, in causal order."""
        node = self[id]
        if node.status in TERMINAL:
            raise GraphError(f"`{id}` is already {node.status}; a terminal status is never overwritten")
        first = Transition(id, node.status, status, because)
        return [first, *self._settle(self._decide(node, status))]

    def reset(self, id: str) -> list[Transition]:
        """Reopen an ended todo and whatever was skipped because of it. Completed successors are left as they are.

        Raises `GraphError` for a todo that has not ended, or could not run because of an edge that is still dead.
        """
        node = self[id]
        if node.status not in TERMINAL:
            raise GraphError(f"`{id}` is {node.status}: only an ended todo can be reset")
        was = node.status
        if not self._reopen(node):
            raise GraphError(f"`{id}` cannot run again as long as what it waits for has ended as it has")
        changes = [Transition(id, was, "pending")]
        queue = [node]
        for current in queue:
            for after, _ in current.out:
                if after.status == "skipped" and self._reopen(after):
                    changes.append(Transition(after.id, "skipped", "pending", current.id))
                    queue.append(after)
        return changes

    @staticmethod
    def _reopen(node: Node) -> bool:
        """Back to `pending`, with its outgoing edges open again; not if an incoming edge forbids it."""
        was, node.status = node.status, "pending"
        if node.is_impossible:
            node.status = was
            return False
        for after, on in node.out:
            after.count(on, was, -1)
            after.count(on, "pending")
        return True

    def losers(self, race: str) -> list[str]:
        """The open members of a decided race, and upstream of them every open todo that now serves nobody else."""
        gone: dict[Node, None] = {}
        stack = [n for n, _ in reversed(self[race].into)]
        while stack:
            node = stack.pop()
            if node.status in TERMINAL or node in gone:
                continue
            serves = (m for m, _ in node.out if m.id != race and m.status not in TERMINAL and m not in gone)
            if any(serves):
                continue
            gone[node] = None
            stack.extend(n for n, _ in reversed(node.into))
        return [n.id for n in gone]

    def _decide(self, node: Node, status: Status) -> Iterator[tuple[Node, str]]:
        node.status = status
        for after, on in node.out:
            after.open -= 1
            after.count(on, status)
            yield after, node.id

    def _settle(self, touched: Iterable[tuple[Node, str]]) -> list[Transition]:
        """Skip what has become impossible, and what that makes impossible in turn."""
        changes: list[Transition] = []
        queue = list(touched)
        for node, because in queue:
            # A race that lost all its members has failed; the core says so when it sees it, with the reasons.
            if node.is_impossible and node.kind != "race":
                changes.append(Transition(node.id, "pending", "skipped", because))
                queue.extend(self._decide(node, "skipped"))
        return changes


def _reach(start: Node, step: Callable[[Node], Iterable[Node]], goal: Node | None = None) -> list[Node]:
    """Everything that `step` leads to from `start`, itself included. Raises `CycleError` when `goal` is among it."""
    parent: dict[Node, Node | None] = {start: None}
    stack = [start]
    while stack:
        node = stack.pop()
        for following in step(node):
            if following in parent:
                continue
            parent[following] = node
            if following is goal:
                raise CycleError(_path(parent, following))
            stack.append(following)
    return list(parent)


def _path(parent: dict[Node, Node | None], end: Node) -> list[str]:
    """From the node that closes the cycle, along the way it was found, back to itself."""
    path: list[str] = []
    at: Node | None = end
    while at is not None:
        path.append(at.id)
        at = parent[at]
    return [end.id, *reversed(path)]
