"""The rails beside a list of todos: every edge is drawn, at the least width, whatever the graph."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.rails import Row, lay


def drawn(*nodes: tuple[str, list[tuple[str, str]]]) -> list[str]:
    return [row.rail("o").rstrip() for row in lay(nodes)]


def after(*sources: str, on: str = "success") -> list[tuple[str, str]]:
    return [(source, on) for source in sources]


def test_a_chain_needs_no_more_than_one_column() -> None:
    """What simply follows stands below."""
    assert drawn(("a", []), ("b", after("a")), ("c", after("b"))) == ["o", "o", "o"]


def test_a_race_joins_its_members() -> None:
    """Members stand side by side and lead to the race."""
    assert drawn(("vllm", []), ("sglang", []), ("engine", after("vllm", "sglang"))) == ["o", "├─o", "o"]


def test_a_contingency_is_dotted() -> None:
    """The branch that is taken on failure has another line."""
    assert drawn(
        ("gate", []), ("yes", after("gate")), ("no", after("gate", on="failure")), ("end", after("yes", "no"))
    ) == ["o─╮", "o ╎", "├─o", "o"]


def test_a_lane_that_is_crossed_goes_on() -> None:
    """A line that passes a lane does not touch it."""
    assert drawn(("a", []), ("b", []), ("c", after("a")), ("d", after("b")), ("e", after("c", "b"))) == [
        "o",
        "│ o─╮",
        "o─│─┤",
        "  o │",
        "    o",
    ]


def test_sources_come_first_whatever_the_order() -> None:
    """Nodes may be given in any order, and unknown or circular edges do not stop the drawing."""
    assert [row.id for row in lay([("b", after("a", "ghost", "b")), ("a", [])])] == ["a", "b"]
    assert [row.id for row in lay([("a", after("b")), ("b", after("a"))])] == ["a", "b"]


graphs = st.integers(1, 14).flatmap(
    lambda n: st.lists(
        st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.sampled_from(["success", "failure", "finish"])),
        max_size=30,
    ).map(lambda edges: (n, [(min(a, b), max(a, b), on) for a, b, on in edges if a != b]))
)


@given(graphs)
def test_every_edge_can_be_followed(graph: tuple[int, list[tuple[int, int, str]]]) -> None:
    """From each node a line leads down to each of its children, and to nothing else: read back from the characters."""
    n, edges = graph
    rows = lay([(str(i), [(str(a), on) for a, b, on in edges if b == i]) for i in range(n)])
    assert followed(rows) == {(str(a), str(b)) for a, b, _ in edges}


DOWN, LEFT, RIGHT, UP = set("│╎╮┤╭├┬┼"), set("─╯╮┤┴┬┼"), set("─╰╭├┴┬┼"), set("│╎╯┤╰├┴┼")


def followed(rows: list[Row]) -> set[tuple[str, str]]:
    """Follow the lines from every node, as an eye does."""
    found = set()
    for place, row in enumerate(rows):
        for lane in _leaving(row):
            for below in rows[place + 1 :]:
                if lane == below.column:
                    found.add((row.id, below.id))
                    break
                if _ends_at_node(below, lane):
                    found.add((row.id, below.id))
                    break
                assert lane < len(below.cells), "a lane ends nowhere"
                assert below.cells[lane] in DOWN | UP, "a lane is broken"
    return found


def _reach(row: Row) -> list[int]:
    """The cells that the node's horizontal line touches."""
    touched = []
    for step in (-1, 1):
        lane = row.column
        while 0 <= lane + step < len(row.cells) and row.joints[min(lane, lane + step)] == "─":
            lane += step
            if row.cells[lane] in (LEFT if step > 0 else RIGHT) and row.cells[lane] != "─":
                touched.append(lane)
    return touched


def _leaving(row: Row) -> list[int]:
    below = [lane for lane, cell in enumerate(row.below) if cell != " "]
    return [lane for lane in below if lane == row.column or (lane in _reach(row) and row.cells[lane] in DOWN)]


def _ends_at_node(row: Row, lane: int) -> bool:
    return lane in _reach(row) and row.below[lane : lane + 1] in ((), (" ",))
