"""Promises of `for_each` and of groups: one todo for each value, filled in, and a name that stands for all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.playbook import load
from agent.playbook_templates import bind, bind_expression, references
from agent.templates import evaluate, render, render_tree
from state.errors import PlaybookError
from state.specs import EdgeSpec, Plan, TodoSpec


def plan(tmp_path: Path, *lines: str, params: str = "{hosts: [red, blue], n: 2}", **sets: str) -> Plan:
    path = tmp_path / "playbook.yaml"
    content = f"name: x\nparams: {params}\nsteps:\n" + "".join(f"  - {line}\n" for line in lines)
    path.write_text(content, encoding="utf-8")
    return load(path, sets)


def refusal(tmp_path: Path, *lines: str, **sets: str) -> PlaybookError:
    with pytest.raises(PlaybookError) as caught:
        plan(tmp_path, *lines, **sets)
    return caught.value


def by_id(plan: Plan) -> dict[str, TodoSpec]:
    return {todo.id: todo for todo in plan.todos}


EACH = 'for_each: {item: h, in: "{{ hosts }}"}'


def test_each_value_becomes_a_todo_with_the_item_filled_in(tmp_path: Path) -> None:
    """Ids are `step@value`, the group is the step, and other templates wait for the start."""
    job = 'job: {host: "{{ h }}", run: "x {{ h }} {{ n }}", gpus: "{{ n }}", env: {H: "{{ h }}"}}'
    todos = by_id(plan(tmp_path, f'{{id: a, title: "On {{{{ h }}}}", {EACH}, {job}}}'))
    assert list(todos) == ["a@red", "a@blue"]
    red = todos["a@red"]
    assert (red.group, red.title, red.body["host"], red.body["env"]) == ("a", "On red", "red", {"H": "red"})
    assert (red.body["run"], red.body["gpus"]) == ("x red {{ n }}", "{{ n }}")


def test_titles_of_a_group_differ(tmp_path: Path) -> None:
    """A title that does not speak of the item gets the value added."""
    todos = plan(tmp_path, f"{{id: a, title: Warm up, {EACH}, gate: 'true'}}").todos
    assert [todo.title for todo in todos] == ["Warm up (red)", "Warm up (blue)"]


def test_an_item_keeps_its_type(tmp_path: Path) -> None:
    """Numbers, booleans and mappings are usable as such, in gates too."""
    each = "for_each: {item: x, in: [{name: s, gpus: 1, big: false}, {name: l, gpus: 8, big: true}]}"
    todos = by_id(
        plan(
            tmp_path,
            f'{{id: a, {each}, job: {{host: local, run: "{{{{ x.gpus * 2 }}}}", gpus: "{{{{ x.gpus }}}}"}}}}',
            f"{{id: b, {each}, gate: 'x.big and n == 2'}}",
        )
    )
    assert list(todos) == ["a@s", "a@l", "b@s", "b@l"]
    assert todos["a@l"].body["gpus"] == 8
    assert render(todos["a@l"].body["run"], {}) == "16"
    assert evaluate(todos["b@l"].body["if"], {"n": 2}) is True
    assert evaluate(todos["b@s"].body["if"], {"n": 2}) is False


def test_a_group_in_after_or_race_means_every_member(tmp_path: Path) -> None:
    """One edge from each member, or from the one that `step@value` names."""
    made = plan(
        tmp_path,
        f"{{id: a, {EACH}, gate: 'true'}}",
        "{id: every, gate: 'todos.a.red.value and todos.a[\"blue\"].value', after: a}",
        "{id: any, race: [a]}",
        "{id: one, gate: 'true', after: {todo: a@red, on: failure}}",
        f'{{id: own, {EACH}, gate: \'todos["a"][h].value\', after: [a, "a@{{{{ h }}}}"]}}',
    )
    assert EdgeSpec("a@blue", "every") in made.edges
    assert {edge.src for edge in made.edges if edge.dst == "any"} == {"a@red", "a@blue"}
    assert [edge for edge in made.edges if edge.dst == "one"] == [EdgeSpec("a@red", "one", "failure")]
    assert by_id(made)["own@blue"].body["if"] == "todos[\"a\"][('blue')].value"


def test_a_stop_reaches_the_member_for_the_same_value(tmp_path: Path) -> None:
    """`stop` names one todo: within a `for_each` that of the item, never a whole group."""
    serve = f'{{id: s, {EACH}, job: {{host: "{{{{ h }}}}", run: serve}}}}'
    made = by_id(plan(tmp_path, serve, f'{{id: halt, {EACH}, stop: "s@{{{{ h }}}}"}}'))
    assert made["halt@blue"].body == {"todo": "s@blue"}
    assert "names 2 todos" in refusal(tmp_path, serve, "{id: halt, stop: s}").message


def test_values_are_made_fit_for_ids(tmp_path: Path) -> None:
    """What an id may not hold becomes `-`; an id is safe as a folder's name and short."""
    values = '["org/model v1", 0.5, true, "../..", "€", ' + f'"{"x" * 300}"]'
    ids = [todo.id for todo in plan(tmp_path, f"{{id: a, gate: 'true', for_each: {{item: v, in: {values}}}}}").todos]
    assert ids[:3] == ["a@org-model-v1", "a@0.5", "a@true"]
    assert all(re.fullmatch(r"a@[A-Za-z0-9_.-]{1,80}", id) for id in ids)
    assert len(set(ids)) == len(values.split(","))


def test_a_value_names_its_member_as_it_was_written(tmp_path: Path) -> None:
    """`after: "a@{{ v }}"` finds the member even where its id holds `-` for what an id may not hold."""
    each = "for_each: {item: v, in: [org/model]}"
    after = 'after: "a@{{ v }}"'
    made = plan(tmp_path, f"{{id: a, {each}, gate: 'true'}}", f"{{id: b, {each}, gate: 'true', {after}}}")
    assert made.edges == (EdgeSpec("a@org-model", "b@org-model"),)


def test_a_group_may_be_read_only_after_all_of_it(tmp_path: Path) -> None:
    """Waiting for one member is not enough to read the group, or another member; that one may be read."""
    steps = f"{{id: a, {EACH}, gate: 'true'}}", "{id: b, gate: todos.a.values(), after: a@red}"
    assert "`b` does not wait for `a`" in refusal(tmp_path, *steps).message
    steps = f"{{id: a, {EACH}, gate: 'true'}}", "{id: b, gate: todos.a.blue.value, after: a@red}"
    assert "`b` does not wait for `a@blue`" in refusal(tmp_path, *steps).message
    steps = f"{{id: a, {EACH}, gate: 'true'}}", "{id: b, gate: todos.a.red.value, after: a@red}"
    assert plan(tmp_path, *steps)


def test_an_item_is_never_taken_for_a_template() -> None:
    """Braces within a value come out as they are, alone and within a text."""
    for text in ("{{ x }}", "a {{ x }}"):
        assert render_tree(bind(text, "x", "{{ y }}"), {"y": 1}) == text.replace("x", "y")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{{id: a, {EACH}, gate: 'true'}}", "no list with values"),
        ("{id: a, gate: 'true', for_each: {item: v, in: '{{ n }}'}}", "no list with values"),
        ("{id: a, gate: 'true', for_each: {item: v, in: []}}", "no list with values"),
        ("{id: a, gate: 'true', for_each: {item: v, in: [x, x]}}", "`x` would be the second todo `a@x`"),
        ("{id: a, gate: 'true', for_each: {item: v, in: [a/b, a b]}}", "would be the second todo `a@a-b`"),
        ("{id: a, gate: 'true', for_each: {item: v, in: '{{ todos.b }}'}}", "known only when the todo starts"),
        ("{id: a, gate: 'true', for_each: {item: v, in: '{{ v }}'}}", "`v` is not defined"),
        ("{id: a, gate: 'v == w', for_each: {item: v, in: [x]}}", "`w` is not defined"),
        ("{id: a, ask: '{% for v in hosts %}{% endfor %}', for_each: {item: v, in: [x]}}", "is the item of `for_each`"),
        ("{id: a, job: {host: x, run: x, gpus: '{{ v }}'}, for_each: {item: v, in: [x]}}", "`x` is no number of GPUs"),
        ("{id: a, gate: 'true', for_each: {item: v, in: [x]}, after: a@x}", "these todos wait for each other"),
        ("{id: a, gate: 'true', for_each: {item: v, in: [x]}, after: a@y}", "id `a@y`; did you mean `a@x`?"),
    ],
)
def test_a_for_each_that_cannot_be_is_refused(tmp_path: Path, line: str, words: str) -> None:
    """Empty lists, equal values, unknown names and a loop that hides the item name the step's line."""
    error = refusal(tmp_path, line, hosts="")
    assert words in error.message
    assert error.line == 4


def test_a_large_group_is_checked_quickly_enough_to_be_refused(tmp_path: Path) -> None:
    """Groups that wait for each other by the thousand are refused by their number, before they fill the memory."""
    many = str(list(range(1000)))
    steps = [f"{{id: s{n}, gate: 'true', for_each: {{item: v, in: {many}}}}}" for n in range(6)]
    assert "makes more than 5000 todos" in refusal(tmp_path, *steps).message
    steps[1] = steps[1][:-1] + ", after: s0}"
    assert "more than 100000 edges" in refusal(tmp_path, *steps[:2]).message


JSON = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
TEXTS = [
    "{{ x }}",
    "{{ x | json }}",
    "a {{ x }} b",
    "{{ [x, y] | json }} {{ x }}",
    "{% if x == y %}{{ x }}{% else %}{{ y }}{% endif %}",
    "{% raw %}{{ x }}{% endraw %}{{ y.x }} {{ {'x': x}['x'] }}",
    "{%- for i in [x] -%} {{ i }} {{- x -}} {% endfor %}\n",
]


@given(item=JSON, text=st.sampled_from(TEXTS))
def test_filling_in_early_gives_what_filling_in_late_would(item: Any, text: str) -> None:
    """For any JSON value, binding the item and rendering then equals rendering with the item in the context."""
    late = {"y": {"x": 1}}
    assert render_tree(bind(text, "x", item), late) == render_tree(text, {**late, "x": item})
    expression = "x == y.x or [x] == [x]"
    assert evaluate(bind_expression(expression, "x", item), late) == evaluate(expression, {**late, "x": item})


def test_references_are_read_off_without_running() -> None:
    """Names, results and parameters that a template uses are known from its text, computed keys excepted."""
    seen = references("{% for i in todos.a.list %}{{ i }}{{ params.p }}{% endfor %}{{ todos['b-c'].x }}{{ todos[n] }}")
    assert (seen.names, seen.loops) == ({"todos", "params", "n"}, {"i"})
    assert (seen.todos, seen.params) == ({"a", "b-c"}, {"p"})
    assert references("range(n) | sum > 1", expression=True).names == {"n"}
