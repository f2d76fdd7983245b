"""Promises of the YAML reader: exact lines, YAML 1.2 words, and every bound met before anything large is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.playbook_yaml import MAX_ALIASES, MAX_BYTES, MAX_DEPTH, MAX_VALUES, read
from state.errors import PlaybookError


def refusal(tmp_path: Path, content: str | bytes) -> PlaybookError:
    path = tmp_path / "playbook.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(PlaybookError) as caught:
        read(path)
    return caught.value


def data(tmp_path: Path, content: str) -> dict[str, object]:
    path = tmp_path / "playbook.yaml"
    path.write_text(content, encoding="utf-8")
    return read(path).data


def test_words_that_yaml_1_1_takes_for_booleans_are_text(tmp_path: Path) -> None:
    """`on`, `yes`, `no` and `off` are text, as key and as value; only `true` and `false` are booleans."""
    seen = data(tmp_path, "{on: failure, yes: no, off: y, really: true, never: False}")
    assert seen == {"on": "failure", "yes": "no", "off": "y", "really": True, "never": False}


def test_numbers_dates_and_times_are_read_after_the_core_schema(tmp_path: Path) -> None:
    """Numbers keep their type; a version, a date, a time and a quoted number stay text."""
    seen = data(tmp_path, "{a: 017, b: 0x1f, c: 0o17, d: 1e3, e: .5, f: 1.2.3, g: 2026-01-01, h: 1:30, i: '5', j: ~}")
    assert seen == {
        "a": 17, "b": 31, "c": 15, "d": 1000.0, "e": 0.5,
        "f": "1.2.3", "g": "2026-01-01", "h": "1:30", "i": "5", "j": None,
    }  # fmt: skip


def test_each_key_item_and_text_knows_its_line(tmp_path: Path) -> None:
    """A line is that of the key or list item; within a block of text lines count on from its first."""
    path = tmp_path / "playbook.yaml"
    path.write_text("name: x\nsteps:\n  - id: a\n    job:\n      run: |\n        one\n        two\n", encoding="utf-8")
    document = read(path)
    assert document.error(("name",), "m").line == 1
    assert document.error(("steps", 0), "m").line == 3
    assert document.error(("steps", 0, "job", "run"), "m").line == 5
    assert document.error(("steps", 0, "job", "run"), "m", text_line=2).line == 7
    assert document.error(("steps", 0, "job", "host"), "m").line == 4, "a missing key stands at its owner"


def test_an_alias_repeats_the_value_of_its_anchor(tmp_path: Path) -> None:
    """A value may be named once with `&` and used again with `*`."""
    assert data(tmp_path, "a: &jobs {gpus: 1}\nb: *jobs\n") == {"a": {"gpus": 1}, "b": {"gpus": 1}}


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ("", None, "is empty"),
        ("# nothing\n", None, "is empty"),
        ("- a\n- b\n", 1, "is no mapping"),
        ("a: 1\nb: 2\na: 3\n", 3, "`a` stands here twice, first on line 1"),
        ("a: 1\n2: b\n", 2, "the key `2` is no text"),
        ("a: 1\nnull: b\n", 2, "the key `null` is no text"),
        ("? [a]\n: b\n", 1, "a key must be plain text"),
        ("a: 1\n<<: {b: 2}\n", 2, "merge key"),
        ("a: !!python/object:os.system x\n", 1, "tag"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("a:\n\tb: 1\n", 2, "tab"),
        ("a: {{ host }}\n", 1, "must be quoted"),
        ("a: 1\nb: {{ host }}/x\n", 2, "must be quoted"),
        ("a: 1\nb: @x\n", 2, "must be quoted"),
        ("a: 1\nb: echo x: y\n", 2, "a second `: `"),
        ("a: [1, 2\nb: 3\n", 2, "no valid YAML"),
        ("a: 'x\n", 2, "no valid YAML"),
        ("a: *b\n", 1, "`*b` names no anchor"),
        ("a: &b [*b]\n", 1, "`*b` names no anchor"),
        ("a: 1\nb: " + "9" * 5000 + "\n", 2, "5000 digits"),
        ("a: 1e999\n", 1, "no finite number"),
        ("a: .nan\n", 1, "no finite number"),
    ],
)
def test_what_is_no_playbook_text_is_refused_with_its_line(
    tmp_path: Path, content: str, line: int | None, words: str
) -> None:
    """Each mistake in the YAML itself is named, with the line on which it stands."""
    error = refusal(tmp_path, content)
    assert words in error.message
    assert error.line == line
    assert error.hint or "plain text" in error.message


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path: Path) -> None:
    """Invalid UTF-8, UTF-16 and control characters are errors of the file, not tracebacks; a BOM is not one."""
    assert refusal(tmp_path, b"a: 1\nb: \xff\n").line == 2
    assert "no UTF-8" in refusal(tmp_path, "a: 1".encode("utf-16")).message
    assert refusal(tmp_path, b"a: 1\nb: \x01\n").line == 2
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read(tmp_path / "bom.yaml").data == {"a": 1}


def test_a_file_that_cannot_be_read_is_an_error_of_the_playbook(tmp_path: Path) -> None:
    """A missing file and a folder give the system's reason."""
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(PlaybookError, match="cannot be read"):
            read(path)


BOMB = "".join(f"k{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]\n" for n in range(8))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: " + "x" * MAX_BYTES, "larger than"),
        ("a: [" + "x," * MAX_VALUES + "]", f"more than {MAX_VALUES} values"),
        (BOMB, f"more than {MAX_VALUES} values"),
        ("a: &a x\nb: [" + "*a," * (MAX_ALIASES + 1) + "]", f"more than {MAX_ALIASES} aliases"),
        ("a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), f"more than {MAX_DEPTH} levels"),
        ("a: " + "[" * 500_000, "nesting"),
        ("a: " + "{b: " * 200_000, "nested"),
        ("- " * 500_000, "nested"),
    ],
    ids=["size", "values", "bomb", "aliases", "depth", "brackets", "braces", "dashes"],
)
def test_a_file_made_to_exhaust_its_reader_is_refused(tmp_path: Path, content: str, words: str) -> None:
    """Size, number of values, aliases and nesting each have a bound that ends the reading."""
    assert words in refusal(tmp_path, content).message
