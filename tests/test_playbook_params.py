"""Promises of parameters: typed values from what was typed, and a clear no to everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.playbook import check, load
from state.errors import PlaybookError


def playbook(tmp_path: Path, params: str) -> Path:
    path = tmp_path / "playbook.yaml"
    path.write_text(f"name: x\nparams:\n  {params}\nsteps: [{{id: a, gate: 'true'}}]\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("param", "text", "value"),
    [
        ("a", "b c", "b c"),
        ("'1'", "2", "2"),
        ("1", "-20", -20),
        ("1.0", "3", 3.0),
        ("{type: float}", "1e-4", 1e-4),
        ("{default: 2, type: float}", None, 2.0),
        ("false", "yes", True),
        ("true", "off", False),
        ("[a]", "b, c", ["b", "c"]),
        ("[1]", "[1, 2]", [1, 2]),
        ("[a]", "", []),
        ("{enum: [smoke, h200], default: smoke}", "h200", "h200"),
        ("{enum: [1, 2]}", "2", 2),
        ("{enum: [a, b], default: [a], type: list}", "b,a", ["b", "a"]),
        ("{help: nothing}", None, None),
        ("{type: url, default: ''}", None, ""),
        ("{type: url}", "http://gpu1:30000/v1", "http://gpu1:30000/v1"),
        ("", None, None),
        ("", "text", "text"),
        ("'{{ 1 }}'", "{{ x }}", "{{ x }}"),
    ],
)
def test_a_value_has_the_type_of_its_parameter(tmp_path: Path, param: str, text: str | None, value: Any) -> None:
    """The type is the declared one, else the default's; what the operator types is never a template."""
    plan = load(playbook(tmp_path, f"p: {param}"), {} if text is None else {"p": text})
    assert plan.params["p"] == value
    assert type(plan.params["p"]) is type(value)


def test_a_default_may_be_made_of_the_parameters_before_it(tmp_path: Path) -> None:
    """Defaults are templates over earlier parameters, as they were set."""
    path = playbook(tmp_path, 'preset: smoke\n  out: "runs/{{ preset }}"')
    assert load(path, {"preset": "h200"}).params["out"] == "runs/h200"
    with pytest.raises(PlaybookError, match="`preset` is missing"):
        load(playbook(tmp_path, 'out: "{{ preset }}"\n  preset: x'), {})


@pytest.mark.parametrize(
    ("param", "text", "words"),
    [
        ("1", "two", "`two` is no int"),
        ("1", "9" * 5000, "is no int"),
        ("1.5", "fast", "`fast` is no float"),
        ("true", "maybe", "`maybe` is no bool"),
        ("[a]", "[1, 2", "is no list"),
        ("{enum: [smoke, h200]}", "smoek", "none of `smoke`, `h200`; did you mean `smoke`?"),
        ("{enum: [a], type: list}", "a,b", "`b` is none of `a`"),
        ("{type: url}", "foo", "`foo` is no url: write it like `http://127.0.0.1:30000`"),
        ("{type: url}", "http://gpu1:99999", "Port out of range"),
        ("{required: true}", None, "add `--set p=...`"),
        ("{default: x, enum: [y]}", None, "`x` is none of `y`"),
        ("{default: x, type: int}", None, "the default `x` is no int"),
        ("{default: x, required: true}", None, "remove one"),
        ("{default: {a: 1}}", None, "is no str"),
        ("{type: string}", None, "`type` in `params.p` is `string`; did you mean `str`?"),
        ("{defalt: 1}", None, "did you mean `default`?"),
    ],
)
def test_a_value_that_cannot_be_is_refused(tmp_path: Path, param: str, text: str | None, words: str) -> None:
    """Text of another type, values outside the list and missing ones name the parameter's line."""
    with pytest.raises(PlaybookError) as caught:
        load(playbook(tmp_path, f"p: {param}"), {} if text is None else {"p": text})
    assert words in caught.value.message
    assert caught.value.line == 3


def test_one_wrong_value_is_one_problem(tmp_path: Path) -> None:
    """Defaults that are made of a wrong value are not called wrong as well."""
    path = playbook(tmp_path, 'n: 1\n  twice: "{{ n * 2 }}x{{ n + 1 }}"')
    with pytest.raises(PlaybookError) as caught:
        load(path, {"n": "many"})
    assert "`many` is no int: write a whole number" in caught.value.message
    assert "twice" not in (caught.value.hint or "")


def test_a_parameter_that_does_not_exist_is_guessed(tmp_path: Path) -> None:
    """`--set` with a misspelt name, and `host` for a playbook without one, say which parameters there are."""
    path = playbook(tmp_path, "preset: x")
    with pytest.raises(PlaybookError, match="has no parameter `prest`; did you mean `preset`") as caught:
        load(path, {"prest": "y"})
    assert caught.value.exit_code == 2
    with pytest.raises(PlaybookError, match="has no parameter `host`"):
        load(path, {}, host="gpu1")


@pytest.mark.parametrize("name", ["todos", "params", "session", "range"])
def test_a_parameter_cannot_hide_a_built_in(tmp_path: Path, name: str) -> None:
    """A name that templates need for something else is refused, except `host`, which playbooks are about."""
    assert "taken by a built-in" in check(playbook(tmp_path, f"{name}: x"))[0].message
    assert check(playbook(tmp_path, "host: x")) == []
