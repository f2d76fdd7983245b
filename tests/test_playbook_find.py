"""Promises of finding playbooks: by path or name, the operator's own first, and nothing imported on the way."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.playbook import catalogue, check, find, load
from agent.playbook_find import shipped_folder
from agent.playbook_schema import Ask, Job, Param, Playbook, Ready, Research, Step
from agent.templates import BUILTINS
from agent.templates_sandbox import METHODS, environment
from state.errors import UsageError

ROOT = Path(__file__).parent.parent
GOOD = "name: x\ntitle: A fine title\nsteps: [{id: a, gate: 'true'}]\n"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's folder, empty, and an empty working folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "config" / "turnout" / "playbooks"
    folder.mkdir(parents=True)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder


def test_a_path_is_a_file_a_folder_or_a_file_without_its_suffix(own: Path) -> None:
    """`x.yaml`, `x` beside `x.yaml`, and a folder that holds `playbook.yaml`."""
    Path("x.yaml").write_text(GOOD, encoding="utf-8")
    Path("folder").mkdir()
    Path("folder/playbook.yaml").write_text(GOOD, encoding="utf-8")
    assert find("x.yaml") == find("x") == find("./x") == Path("x.yaml")
    assert find("folder") == find("./folder/") == find("folder/playbook.yaml") == Path("folder/playbook.yaml")


def test_the_operators_own_playbooks_have_names(own: Path) -> None:
    """Files and folders in the operator's folder are found by name with `-` or `_`, and listed with their title."""
    (own / "my_bench.yaml").write_text(GOOD, encoding="utf-8")
    (own / "broken").mkdir()
    (own / "broken" / "playbook.yaml").write_text("a: [", encoding="utf-8")
    (own / "notes.txt").write_text("no playbook", encoding="utf-8")
    assert find("my-bench") == find("my_bench") == own / "my_bench.yaml"
    listed = {name: (title, path) for name, title, path in catalogue()}
    assert listed["my-bench"] == ("A fine title", own / "my_bench.yaml")
    assert "does not load" in listed["broken"][0]
    assert "notes" not in listed


def test_an_unknown_name_says_which_there_are(own: Path) -> None:
    """The error guesses, lists what can be run by name, and is one of usage."""
    (own / "bench.yaml").write_text(GOOD, encoding="utf-8")
    with pytest.raises(UsageError, match="no playbook is named `bensh`; did you mean `bench`") as caught:
        find("bensh")
    assert "`bench`" in (caught.value.hint or "")
    Path("empty").mkdir()
    with pytest.raises(UsageError, match=r"`empty` has no `playbook\.yaml`"):
        find("empty")


def test_a_path_that_leads_nowhere_is_called_a_file(own: Path) -> None:
    """What was meant as a path is not looked up as a name: the file, its folder, or the one beside it is named."""
    Path("mine").mkdir()
    Path("mine/hedge.yaml").write_text(GOOD, encoding="utf-8")
    with pytest.raises(UsageError, match=r"no file `mine/hedg\.yaml`; did you mean `mine/hedge\.yaml`"):
        find("mine/hedg.yaml")
    with pytest.raises(UsageError, match="nor a folder `nowhere`"):
        find("nowhere/x.yaml")


SHIPPED = sorted(shipped_folder().glob("*/playbook.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
def test_every_shipped_playbook_is_found_by_name_and_has_no_problems(own: Path, path: Path) -> None:
    """What is shipped loads as it lies there, and looking for it imports none of its code."""
    name, before = path.parent.name.replace("_", "-"), set(sys.modules)
    assert find(name) == find(path.parent.name) == path
    assert check(path) == []
    assert not [module for module in set(sys.modules) - before if module.startswith("playbooks.")]


@pytest.mark.parametrize(
    ("name", "todos", "hosts"),
    [("hedge", 4, set()), ("contingency", 5, set()), ("fanout", 9, {"red", "blue"})],
)
def test_each_example_loads(name: str, todos: int, hosts: set[str]) -> None:
    """The examples of the documentation are valid and as large as they say."""
    plan = load(find(ROOT / "examples" / name), {}, tools=())
    assert (plan.name, len(plan.todos), set(plan.hosts)) == (name, todos, hosts)


def test_the_fan_out_has_more_jobs_than_gpus() -> None:
    """The example is about leases that must wait: six jobs of one GPU for four GPUs."""
    plan = load(ROOT / "examples" / "fanout.yaml", {})
    wanted = sum(todo.body.get("gpus", 0) for todo in plan.todos)
    assert wanted > sum(host["gpus"] for host in plan.hosts.values()) > 0


def test_the_playbooks_of_the_reference_page_load(tmp_path: Path) -> None:
    """Every whole playbook in docs/playbooks.md is valid as printed."""
    blocks = re.findall(r"```yaml\n(name: .*?)```", (ROOT / "docs" / "playbooks.md").read_text(encoding="utf-8"), re.S)
    assert len(blocks) >= 2
    for block in blocks:
        (tmp_path / "playbook.yaml").write_text(block, encoding="utf-8")
        assert check(tmp_path / "playbook.yaml", tools=()) == []


def test_the_reference_page_names_every_key_filter_method_and_built_in() -> None:
    """An author finds all of the language on the page: nothing that exists is left out."""
    page = (ROOT / "docs" / "playbooks.md").read_text(encoding="utf-8")
    models = (Playbook, Param, Step, Job, Ready, Research, Ask)
    keys = {field.alias or name for model in models for name, field in model.model_fields.items()}
    words = {*keys, *BUILTINS, *environment.filters, *METHODS[Mapping], *METHODS[str], *METHODS[list]}
    assert {word for word in words if not re.search(rf"`[^`\n]*\b{word}\b[^`\n]*`", page)} == set()
