"""Promises of the templates: typed values, errors that name what was missing, and a sandbox that stays small."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.templates import evaluate, render, render_tree
from agent.templates_sandbox import MAX_OUTPUT, MAX_RANGE, MAX_TEXT, duration, size
from state.errors import TurnoutError

CONTEXT: dict[str, Any] = {
    "host": "gpu1",
    "n": 2,
    "flags": ["--tp", "2 4"],
    "todos": {"bench": {"rate": 1.5, "items": [10, 20], "ok": True}, "empty": {}},
}


def test_a_text_without_templates_stays_as_it_is() -> None:
    """Shell text with braces, lengths and percent signs is no template."""
    text = "echo ${#list[@]} ${x%.*} {a,b} $((1+1)) | awk '{print $1}'\n"
    assert render(text, {}) == text


def test_a_lone_expression_keeps_its_type() -> None:
    """A string that is exactly one expression gives the value itself; with anything around it, text."""
    tree = {"gpus": "{{ n }}", "flags": ["{{ flags }}"], "ok": "{{ todos.bench.ok }}", "text": "{{ n }} ", "k": 3}
    assert render_tree(tree, CONTEXT) == {"gpus": 2, "flags": [["--tp", "2 4"]], "ok": True, "text": "2 ", "k": 3}
    assert render_tree("{{ n }}{{ n }}", CONTEXT) == "22"


def test_an_expression_gives_json_data() -> None:
    """Filters give generators inside; what comes out is a list, and what is no data is refused."""
    assert evaluate("flags | map('upper')", CONTEXT) == ["--TP", "2 4"]
    assert evaluate("todos.bench.keys()", CONTEXT) == ["rate", "items", "ok"]
    for expression in ("flags.index", "[todos.bench, todos.empty] | map(attribute='rate')"):
        with pytest.raises(TurnoutError):
            evaluate(expression, CONTEXT)


def test_the_last_newline_of_a_script_is_kept() -> None:
    """A here-document needs its final newline."""
    assert render("cat <<X\n{{ host }}\nX\n", CONTEXT) == "cat <<X\ngpu1\nX\n"


def test_a_result_named_like_a_method_is_the_result() -> None:
    """`items`, `keys` and `values` are read as results first and are methods only where there is no such key."""
    assert evaluate("todos.bench.items", CONTEXT) == [10, 20]
    assert render("{% for k, v in todos.empty.items() %}{{ k }}{% endfor %}", CONTEXT) == ""


@pytest.mark.parametrize(
    ("expression", "words", "hint"),
    [
        ("todos.bench.multiplier", "`todos.bench.multiplier` is missing: `bench` has `rate`, `items`, `ok`", None),
        ("todos.bnch.rate", "`todos.bnch` is missing: `todos` has `bench`, `empty`", "did you mean `bench`?"),
        ("todos['bench']['rat'] > 1", "`todos.bench.rat` is missing", "did you mean `rate`?"),
        ("todos.empty.rate > 1", "`empty` has no keys", None),
        ("todos.bench.items[7]", "`items` is a list of 2 elements", None),
        ("hots", "`hots` is missing: the context has", "did you mean `host`?"),
        ("n.rate", "`n` is a int", None),
        ("hots | json", "`hots` is missing", "did you mean `host`?"),
    ],
)
def test_a_missing_value_is_named_with_what_is_there(expression: str, words: str, hint: str | None) -> None:
    """The error names the todo, the path that is missing and the keys that exist, and guesses what was meant."""
    for run, text in ((evaluate, expression), (render, "x {{ " + expression + " }}")):
        with pytest.raises(TurnoutError) as caught:
            run(text, CONTEXT, what="todo `worth_it`")
        assert "todo `worth_it`" in caught.value.message
        assert words in caught.value.message
        assert hint is None or caught.value.hint == hint


def test_a_default_stands_in_for_a_missing_value() -> None:
    """`default` and `is defined` look without failing."""
    assert evaluate("todos.bench.missing | default(3)", CONTEXT) == 3
    assert evaluate("todos.skipped is defined", CONTEXT) is False


def test_a_gate_does_not_decide_on_what_is_no_number() -> None:
    """`int` and `float` refuse text that is no number, where Jinja's own would say 0."""
    assert evaluate("'3' | int + '0.5' | float", {}) == 3.5
    for expression in ("'n/a' | float > 1", "'' | int == 0"):
        with pytest.raises(TurnoutError, match="cannot be evaluated"):
            evaluate(expression, {})


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ (1).__class__.__mro__ }}",
        "{{ range.__globals__ }}",
        "{{ todos.__init__.__globals__ }}",
        "{{ flags.append(1) }}",
        "{{ todos.update(x=1) }}",
        "{{ todos.pop('bench') }}",
        "{{ '{0.__class__}'.format(n) }}",
        "{{ n | attr('real') }}",
        "{{ [todos] | map(attribute='__class__') | list }}",
        "{{ self }}",
        "{{ cycler }}",
        "{{ namespace(x=1) }}",
        "{{ [1, 2] | random }}",
        "{% set x = 1 %}",
        "{% macro f() %}{% endmacro %}",
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% for x in flags recursive %}{{ loop(flags) }}{% endfor %}",
    ],
)
def test_no_template_reaches_beyond_its_data(text: str) -> None:
    """Attributes of Python objects, changes to results, randomness and statements that name things are refused."""
    with pytest.raises(TurnoutError):
        render(text, CONTEXT)
    assert CONTEXT["flags"] == ["--tp", "2 4"]
    assert set(CONTEXT["todos"]) == {"bench", "empty"}


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'x' * 10 ** 9 }}",
        "{{ 10 ** 9 * [1] }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ range(10 ** 9) | list }}",
        "{{ ('x' * 40000) | join('x' * 40000) }}",
        "{% for a in range(1000) %}{% for b in range(1000) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}",
        "{% for a in [1] %}{% for b in [1] %}{% for c in [1] %}{% endfor %}{% endfor %}{% endfor %}",
        "{{ x }}" + " " * MAX_TEXT,
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "(1+" * 190 + "1" + ")" * 190 + " }}",
        "{{ " + "9" * 5000 + " }}",
        "{{ 1 / 0 }}",
    ],
    ids=lambda text: text[:24],
)
def test_a_template_cannot_exhaust_the_process(text: str) -> None:
    """Length of text and output, sizes of values, loops and nesting are bounded, and the bound is an ordinary error."""
    with pytest.raises(TurnoutError):
        render(text, CONTEXT)


def test_bounds_leave_room_for_real_use() -> None:
    """Just below a bound there is an answer."""
    assert len(render("{{ 'x' * " + str(MAX_OUTPUT) + " }}y"[:-1], CONTEXT)) == MAX_OUTPUT
    assert evaluate(f"range({MAX_RANGE}) | sum", {}) == sum(range(MAX_RANGE))


def test_a_condition_is_written_without_braces() -> None:
    """Braces around a gate's expression are the likeliest mistake and named as such."""
    with pytest.raises(TurnoutError, match="a condition is an expression, without"):
        evaluate("{{ n }}", CONTEXT)


def test_a_filter_that_does_not_exist_is_guessed() -> None:
    """An unknown filter names the one that was meant, even inside a branch that is not taken."""
    with pytest.raises(TurnoutError, match="no filter is named `tojson`; did you mean `json`"):
        render("{% if false %}{{ n | tojson }}{% endif %}", CONTEXT)


def test_our_filters_give_what_they_say() -> None:
    """`basename`, `json`, `duration`, `size` and `join` in one line each."""
    assert evaluate("'/models/kimi/' | basename", {}) == "kimi"
    assert evaluate("{'a': [1, true, none], 'b': 'é'} | json", {}) == '{"a": [1, true, null], "b": "é"}'
    assert [duration(s) for s in (0, 3.25, 90, 5400, 90_061, -60)] == ["0s", "3.2s", "1m 30s", "1h 30m", "1d 1h", "-1m"]
    assert [size(b) for b in (0, 1023, 1536, 828 << 30, 1 << 60)] == ["0 B", "1023 B", "1.5 KiB", "828 GiB", "1024 PiB"]
    assert evaluate("flags | join(',')", CONTEXT) == "--tp,2 4"


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1))
def test_quoted_text_is_one_word_to_a_shell(words: list[str]) -> None:
    """`shquote` makes one word of a text and one word each of a list's elements, whatever they hold."""
    assert shlex.split(render("{{ words | shquote }}", {"words": words})) == words
    assert shlex.split(render("{{ words[0] | shquote }}", {"words": words})) == words[:1]
