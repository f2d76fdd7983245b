"""The todo graph against a slow, obvious model."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from state.errors import CycleError, GraphError
from state.graph import MET, Graph, Node
from state.specs import TERMINAL, On, Status

ENDS: list[Status] = ["completed", "failed", "cancelled"]
ONS: list[On] = ["success", "failure", "finish"]


class Obvious:
    """Everything recomputed from scratch from statuses and edges, until nothing changes."""

    def __init__(self) -> None:
        self.status: dict[str, Status] = {}
        self.join: dict[str, str] = {}
        self.race: set[str] = set()
        self.edges: list[tuple[str, str, On]] = []

    def counts(self, id: str) -> tuple[int, int, int]:
        edges = [(on, self.status[src]) for src, dst, on in self.edges if dst == id]
        is_open = sum(status not in TERMINAL for _, status in edges)
        met = sum(status in MET[on] for on, status in edges)
        return is_open, met, len(edges) - is_open - met

    def ready(self, id: str) -> bool:
        is_open, met, dead = self.counts(id)
        if self.status[id] != "pending":
            return False
        if self.join[id] == "any" and is_open + met + dead:
            return met > 0
        return is_open == 0 and dead == 0

    def impossible(self, id: str) -> bool:
        is_open, met, dead = self.counts(id)
        if self.status[id] != "pending":
            return False
        if self.join[id] == "any":
            return is_open + met == 0 and dead > 0
        return dead > 0

    def settle(self) -> None:
        while True:
            gone = [id for id in self.status if self.impossible(id) and id not in self.race]
            if not gone:
                return
            for id in gone:
                self.status[id] = "skipped"

    def reaches(self, a: str, b: str) -> bool:
        seen, stack = set(), [a]
        while stack:
            at = stack.pop()
            if at == b:
                return True
            if at not in seen:
                seen.add(at)
                stack.extend(dst for src, dst, _ in self.edges if src == at)
        return False


class GraphMachine(RuleBasedStateMachine):
    """Any order of edits and endings leaves the graph as the obvious model says."""

    @initialize()
    def begin(self) -> None:
        self.graph = Graph()
        self.model = Obvious()

    def pick(self, data: st.DataObject, ids: list[str]) -> str:
        return data.draw(st.sampled_from(ids))

    @rule(join=st.sampled_from(["all", "any"]), race=st.booleans())
    def add(self, join: str, race: bool) -> None:
        id = f"t{len(self.model.status)}"
        join = "any" if race else join
        self.graph.add(Node(id, len(self.graph), join=join, kind="race" if race else "job"))  # type: ignore[arg-type]
        self.model.status[id] = "pending"
        self.model.join[id] = join
        if race:
            self.model.race.add(id)

    @precondition(lambda self: self.model.status)
    @rule(data=st.data(), on=st.sampled_from(ONS))
    def link(self, data: st.DataObject, on: On) -> None:
        ids = list(self.model.status)
        src, dst = self.pick(data, ids), self.pick(data, ids)
        if (src, dst, on) in self.model.edges:
            assert self.graph.link(src, dst, on) == []
        elif self.model.status[dst] != "pending":
            with pytest.raises(GraphError):
                self.graph.link(src, dst, on)
        elif self.model.reaches(dst, src):
            with pytest.raises(CycleError) as raised:
                self.graph.link(src, dst, on)
            path = raised.value.path
            assert path[0] == path[-1]
            known = {(a, b) for a, b, _ in self.model.edges} | {(src, dst)}
            assert all(step in known for step in itertools.pairwise(path))
        else:
            self.graph.link(src, dst, on)
            self.model.edges.append((src, dst, on))
            self.model.settle()

    @precondition(lambda self: any(self.model.ready(i) for i in self.model.status))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        id = self.pick(data, [i for i in self.model.status if self.model.ready(i)])
        self.graph.start(id)
        self.model.status[id] = "in_progress"

    @precondition(lambda self: any(s not in TERMINAL for s in self.model.status.values()))
    @rule(data=st.data(), end=st.sampled_from(ENDS))
    def end(self, data: st.DataObject, end: Status) -> None:
        id = self.pick(data, [i for i, s in self.model.status.items() if s not in TERMINAL])
        before = dict(self.model.status)
        told = self.graph.end(id, end)
        self.model.status[id] = end
        self.model.settle()
        assert told[0].id == id
        changed = {i: s for i, s in self.model.status.items() if before[i] != s}
        assert {t.id: t.now for t in told} == changed

    @precondition(lambda self: "in_progress" in self.model.status.values())
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        id = self.pick(data, [i for i, s in self.model.status.items() if s == "in_progress"])
        self.model.status[id] = "pending"
        if self.model.impossible(id):  # what it waits for was reset since it began, and has ended otherwise
            self.model.status[id] = "in_progress"
            with pytest.raises(GraphError):
                self.graph.requeue(id)
        else:
            self.graph.requeue(id)

    @precondition(lambda self: any(s in TERMINAL and s != "skipped" for s in self.model.status.values()))
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        ended = [i for i, s in self.model.status.items() if s in TERMINAL and s != "skipped"]
        before = dict(self.model.status)
        id = self.pick(data, ended)
        self.model.status[id] = "pending"
        if self.model.impossible(id):
            self.model.status[id] = before[id]
            with pytest.raises(GraphError):
                self.graph.reset(id)
            return
        for t in self.graph.reset(id):
            assert before[t.id] == t.was
            self.model.status[t.id] = t.now
        assert not any(self.model.impossible(i) for i in self.model.status if i not in self.model.race)

    @invariant()
    def agrees(self) -> None:
        assert {n.id: n.status for n in self.graph.nodes.values()} == self.model.status
        for node in self.graph.nodes.values():
            assert (node.open, node.met, node.dead) == self.model.counts(node.id)
        assert {n.id for n in self.graph.ready()} == {i for i in self.model.status if self.model.ready(i)}

    @invariant()
    def is_in_topological_order(self) -> None:
        for node in self.graph.nodes.values():
            assert all(node.order < after.order for after, _ in node.out)


TestGraph = GraphMachine.TestCase
TestGraph.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def chain(*ids: str) -> Graph:
    graph = Graph()
    for place, id in enumerate(ids):
        graph.add(Node(id, place))
    for a, b in itertools.pairwise(ids):
        graph.link(a, b)
    return graph


def test_a_cycle_is_refused_with_its_path_and_changes_nothing() -> None:
    """The operator sees which todos wait for each other, and the graph stays as it was."""
    graph = chain("a", "b", "c", "d")
    with pytest.raises(CycleError, match="`d` -> `a` -> `b` -> `c` -> `d`"):
        graph.link("d", "a")
    assert [n.id for n in graph.ready()] == ["a"]
    assert graph["a"].into == []


def test_ready_todos_come_by_priority_then_by_age() -> None:
    """What is urgent starts first; what is equally urgent starts in the order in which it was asked for."""
    graph = Graph()
    for place, (id, priority) in enumerate([("m1", "medium"), ("l", "low"), ("h", "high"), ("m2", "medium")]):
        graph.add(Node(id, place, priority=priority))  # type: ignore[arg-type]
    assert [n.id for n in graph.ready()] == ["h", "m1", "m2", "l"]


def test_a_won_race_drops_its_losers_and_what_only_served_them() -> None:
    """Work upstream of a loser is dropped with it, unless somebody else still wants it."""
    graph = Graph()
    for place, id in enumerate(["only_b", "shared", "a", "b", "other"]):
        graph.add(Node(id, place))
    graph.add(Node("race", 9, kind="race", join="any"))
    for src, dst in [("only_b", "b"), ("shared", "b"), ("shared", "other"), ("a", "race"), ("b", "race")]:
        graph.link(src, dst)
    graph.start("a")
    graph.end("a", "completed")
    graph.end("race", "completed")
    assert graph.losers("race") == ["b", "only_b"]


def test_finish_edges_run_whatever_happened() -> None:
    """A clean-up after `finish` runs also when its source was skipped or cancelled."""
    for end in ("failed", "cancelled"):
        graph = chain("a", "b")
        graph.add(Node("cleanup", 5))
        graph.link("b", "cleanup", "finish")
        graph.end("a", end)  # type: ignore[arg-type]
        assert graph["b"].status == "skipped"
        assert graph["cleanup"].is_ready


def test_a_terminal_status_is_never_overwritten() -> None:
    """A late report about a todo that has ended is refused."""
    graph = chain("a")
    graph.end("a", "completed")
    with pytest.raises(GraphError, match="already completed"):
        graph.end("a", "failed")


def test_what_began_behind_an_edge_that_no_longer_holds_is_not_tried_again() -> None:
    """A contingency branch under way, whose cause is tried again and succeeds, is not left waiting for ever."""
    graph = Graph()
    graph.add(Node("attempt", 0))
    graph.add(Node("branch", 1))
    graph.link("attempt", "branch", "failure")
    graph.start("attempt")
    graph.end("attempt", "failed")
    graph.start("branch")
    graph.reset("attempt")
    graph.end("attempt", "completed")
    assert not graph["branch"].may_run
    with pytest.raises(GraphError, match="cannot run again"):
        graph.requeue("branch")
