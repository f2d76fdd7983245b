"""Promises of the loader: a plan that says what the file said, and for every mistake the line and what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.playbook import check, load
from agent.playbook_errors import MAX_PROBLEMS
from agent.templates import render
from state.errors import PlaybookError
from state.specs import EdgeSpec, Plan, Retry, TodoSpec

FULL = """\
name: full
title: Everything once
params: {host: {default: local, help: where}, n: 2, limit: {default: 1.5}}
steps:
  - id: build
    title: "Build on {{ host }}"
    priority: high
    job:
      host: "{{ host }}"
      run: make {{ n }}
      gpus: "{{ n }}"
      timeout: 1h30m
      grace: 5
      env: {JOBS: 4, NAME: "{{ playbook }}"}
      cwd: "{{ workdir }}"
      ready: {http: "http://localhost:{{ n }}/health"}
      keep: true
    retry: {times: 2, on: [lost, oom]}
  - id: probe
    after: build
    tool: gpu_probe
    args: {host: "{{ host }}", deep: true}
  - {id: probe2, tool: {name: gpu_probe, args: {host: x}}}
  - id: study
    research: {prompt: "Why {{ todos.probe.used }}?", fallback: {tool: gpu_probe, args: {host: y}}}
    after: [probe, {todo: probe2, on: finish}]
  - {id: study2, research: {prompt: Why, fallback: {host: local, run: "true", timeout: 5}}}
  - {id: study3, research: {prompt: Why}}
  - {id: good, gate: "todos.study.answer == n", after: [study, study2], join: any}
  - {id: sure, ask: "Stop {{ host }}?", after: good}
  - {id: sure2, ask: {question: Sure, default: yes}, after: {todo: good, on: failure}}
  - {id: first, race: [probe, probe2], losers: keep}
  - {id: halt, stop: build, after: first}
report: "{{ todos.sure.answer }}.md"
"""


def write(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "playbook.yaml"
    path.write_text(content, encoding="utf-8")
    return path


def steps(tmp_path: Path, *lines: str, head: str = "params: {host: local}") -> Path:
    """A playbook whose steps begin on line 4, one a line."""
    return write(tmp_path, f"name: x\n{head}\nsteps:\n" + "".join(f"  - {line}\n" for line in lines))


def refusal(path: Path, **sets: str) -> PlaybookError:
    with pytest.raises(PlaybookError) as caught:
        load(path, sets, tools={"gpu_probe", "read_file"})
    return caught.value


@pytest.fixture
def full(tmp_path: Path) -> Plan:
    return load(write(tmp_path, FULL), {"host": "gpu1"})


def body(plan: Plan, todo: str) -> object:
    return next(spec.body for spec in plan.todos if spec.id == todo)


def test_every_kind_of_step_becomes_a_todo_with_its_body(full: Plan) -> None:
    """Shorthands are spelt out, durations are seconds, and templates stay text until the todo starts."""
    assert full.todos[0] == TodoSpec(
        id="build",
        title="Build on gpu1",
        kind="job",
        priority="high",
        retry=Retry(2, ("lost", "oom")),
        body={
            "host": "{{ host }}",
            "run": "make {{ n }}",
            "gpus": "{{ n }}",
            "timeout_s": 5400.0,
            "grace_s": 5.0,
            "env": {"JOBS": "4", "NAME": "{{ playbook }}"},
            "cwd": "{{ workdir }}",
            "ready": {"http": "http://localhost:{{ n }}/health"},
            "keep": True,
        },
    )
    assert body(full, "probe") == {"tool": "gpu_probe", "args": {"host": "{{ host }}", "deep": True}}
    assert body(full, "probe2") == {"tool": "gpu_probe", "args": {"host": "x"}}
    assert body(full, "study") == {
        "prompt": "Why {{ todos.probe.used }}?",
        "fallback": {"tool": "gpu_probe", "args": {"host": "y"}},
    }
    assert body(full, "study3") == {"prompt": "Why", "fallback": None}
    assert body(full, "good") == {"if": "todos.study.answer == n"}
    assert body(full, "sure") == {"question": "Stop {{ host }}?", "default": "no"}
    assert body(full, "sure2") == {"question": "Sure", "default": "yes"}
    assert body(full, "first") == {"losers": "keep"}
    assert body(full, "halt") == {"todo": "build"}
    fallback = full.todos[4].body["fallback"]
    assert (fallback["run"], fallback["timeout_s"], fallback["gpus"]) == ("true", 5.0, 0)


def test_edges_and_joins_are_those_of_the_file(full: Plan) -> None:
    """`after` in each of its forms, and a race that joins its members' successes by `any`."""
    assert set(full.edges) == {
        EdgeSpec("build", "probe"),
        EdgeSpec("probe", "study"),
        EdgeSpec("probe2", "study", "finish"),
        EdgeSpec("study", "good"),
        EdgeSpec("study2", "good"),
        EdgeSpec("good", "sure"),
        EdgeSpec("good", "sure2", "failure"),
        EdgeSpec("probe", "first"),
        EdgeSpec("probe2", "first"),
        EdgeSpec("first", "halt"),
    }
    assert {todo.id for todo in full.todos if todo.join == "any"} == {"good", "first"}


def test_the_plan_carries_what_stands_beside_the_steps(tmp_path: Path) -> None:
    """Name, parameters, extra hosts, report and the payload folder with the package's name."""
    (tmp_path / "payload").mkdir()
    head = "params: {host: local, n: 3}\nhosts: {red: {kind: local, gpus: 2}}\nreport: r/{{ n }}.md"
    plan = load(steps(tmp_path, "{id: a, gate: 'true'}", head=head).rename(tmp_path / "p.yaml"), {}, host="red")
    assert (plan.name, plan.title, plan.params) == ("x", "x", {"host": "red", "n": 3})
    assert plan.hosts == {"red": {"kind": "local", "gpus": 2}}
    assert (plan.source, plan.report) == (str(tmp_path / "p.yaml"), "r/{{ n }}.md")
    assert (plan.payload, plan.package) == (str(tmp_path / "payload"), "x")


def test_a_payload_lies_beside_the_playbook(tmp_path: Path) -> None:
    """Without a folder there is no payload; one that is named must exist within the playbook's own folder."""
    plan = load(steps(tmp_path, "{id: a, gate: 'true'}"), {})
    assert (plan.payload, plan.package) == (None, None)
    for named in ("missing", "..", "/tmp"):
        error = refusal(steps(tmp_path, "{id: a, gate: 'true'}", head=f"payload: {named}"))
        assert error.line == 2
        assert "no folder beside the playbook" in error.message


JOB = "job: {host: local, run: x}"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{{id: a, afer: [b], {JOB}}}", "unknown key `afer` in step `a`; did you mean `after`?"),
        (f"{{id: a, when: x, {JOB}}}", "did you mean `gate`?"),
        (f"{{id: a, depends_on: b, {JOB}}}", "did you mean `after`?"),
        ("{id: a, job: {host: local, cmd: x, run: x}}", "did you mean `run`?"),
        (f"{{id: a, priority: hihg, {JOB}}}", "`priority` in step `a` is `hihg`; did you mean `high`?"),
        (f"{{id: a, after: {{todo: a, on: fail}}, {JOB}}}", "is `fail`; did you mean `failure`?"),
        (f"{{id: a, retry: {{times: 1, on: [ooom]}}, {JOB}}}", "did you mean `oom`?"),
        (f"{{id: a, retry: {{times: many}}, {JOB}}}", "must be a whole number, not `many`"),
        ("{id: a, job: {run: x}}", "`job` of step `a` needs `host`"),
        ("{id: a, job: {host: local}}", "`job` of step `a` needs `run`"),
        ("{id: a, job: {host: local, run: x, timeout: 6 hours}}", "`6 hours` is no duration"),
        ("{id: a, job: {host: local, run: x, timeout: 0}}", "`0` is no duration"),
        ("{id: a, job: {host: local, run: x, gpus: -1}}", "`-1` is no number of GPUs"),
        ("{id: a, job: {host: local, run: x, gpus: true}}", "`True` is no number of GPUs"),
        ("{id: a, job: {host: local, run: x, sbatch: --array 1-3}}", "`--array` among the options for sbatch"),
        ("{id: a, job: {host: local, run: x, env: {A: true}}}", "quote it"),
        ("{id: a, job: {host: local, run: x, env: {A-B: x}}}", "must match"),
        ("{id: a, job: {host: local, run: x, ready: {}}}", "exactly one of `log`, `http` and `file`"),
        ("{id: a, job: {host: local, run: x, ready: {log: '('}}}", "is no regular expression"),
        (
            "{id: a, job: {host: local, run: x, ready: {http: localhost}}}",
            "`http: localhost` is no URL: write it like `http://",
        ),
        ("{id: a, job: {host: local, run: ''}}", "must not be empty"),
        ("{id: a, job: make}", "`job` of step `a` must be a mapping, not `make`"),
        ("{id: a, job: }", "has an empty `job`"),
        ("{id: a}", "it has none"),
        (f"{{id: a, ask: x, {JOB}}}", "it has `job` and `ask`"),
        ("{id: a, gate: x, args: {}}", "`args` that belong to no `tool`"),
        ("{id: a, gate: 'true', losers: keep}", "`losers` but is no `race`"),
        ("{id: a, race: [b], after: c}", "give `after` and `join` to the members"),
        ("{id: a, ask: {question: x, default: maybe}}", "`default` in `ask` of step `a` is `maybe`"),
        ("{id: a b, gate: 'true'}", "is `a b`, which is no valid name"),
        ("{id: a@b, gate: 'true'}", "no valid name"),
        ("just text", "must be a mapping, not `just text`"),
        ("{id: a, gate: 'true', for_each: {item: x, in: abc}}", "must be a list or a template"),
    ],
)
def test_a_mistake_in_a_step_is_named_with_its_line_and_what_was_meant(tmp_path: Path, line: str, words: str) -> None:
    """Misspelt keys and values, missing and contradictory parts are found without starting anything."""
    error = refusal(steps(tmp_path, "{id: fine, gate: 'true'}", line))
    assert words in error.message
    assert error.line == 5


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{id: b, gate: 'true', after: aa}", "no step has the id `aa`; did you mean `a`?"),
        ("{id: b, race: [a, c]}", "no step has the id `c`"),
        ("{id: b, stop: c}", "no step has the id `c`"),
        ("{id: b, stop: a}", "no `job`"),
        ("{id: a, gate: 'true'}", "two steps have the id `a`"),
        ("{id: b, gate: todos.aa.x, after: a}", "`todos.aa` names no step; did you mean `a`?"),
        ("{id: b, gate: todos.a.x}", "`todos.a` is read here, but `b` does not wait for `a`"),
        ("{id: b, gate: todos.b.x}", "`b` does not wait for `b`"),
        ("{id: b, gate: 'a.x > 1', after: a}", "`a` is not defined; did you mean `todos.a`?"),
        ("{id: b, gate: 'hots == 1'}", "`hots` is not defined; did you mean `host`?"),
        ("{id: b, gate: 'params.hots == 1'}", "`params.hots` does not exist; did you mean `host`?"),
        ("{id: b, gate: '{{ host }}'}", "without `{{ }}`"),
        ("{id: b, gate: 'host ='}", "error"),
        ("{id: b, gate: 'host | tojson'}", "did you mean `json`?"),
        ("{id: b, job: {host: local, run: '{{ host'}}", "the template in `run` has an error"),
        ("{id: b, job: {host: local, run: '{{ hots }}'}}", "`hots` is not defined"),
        ("{id: b, job: {host: local, run: x, env: {A: '{{ hots }}'}}}", "`hots` is not defined"),
        ("{id: b, job: {host: local, run: x, timeout: '{{ host }}'}}", "`local` is no duration"),
        ("{id: b, after: a, job: {host: x, run: x, timeout: '{{ todos.a.x }}'}}", "known only when the todo starts"),
        ("{id: b, title: '{{ attempt }}', gate: 'true'}", "known only when the todo starts"),
        ("{id: b, tool: gpu_prob}", "no tool is named `gpu_prob`; did you mean `gpu_probe`?"),
        ("{id: b, tool: gpu_probe, args: {x: [{y: '{{ hots }}'}]}}", "`hots` is not defined"),
        ("{id: b, research: {prompt: x, fallback: {tool: gpu_prob}}}", "did you mean `gpu_probe`?"),
        ("{id: b, research: {prompt: '{{ hots }}'}}", "`hots` is not defined"),
        ("{id: b, ask: '{{ hots }}'}", "`hots` is not defined"),
    ],
)
def test_a_name_that_means_nothing_is_found_before_anything_starts(tmp_path: Path, line: str, words: str) -> None:
    """References, templates, gates and tools are checked against what exists and what has ended by then."""
    error = refusal(steps(tmp_path, "{id: a, gate: 'true'}", line))
    assert words in error.message
    assert error.line == 5


def test_a_template_error_in_a_script_names_the_line_of_the_script(tmp_path: Path) -> None:
    """Within a block of text the line is the one in the file, not that of the key."""
    head = "name: x\nsteps:\n  - id: a\n    job:\n      host: local\n"
    error = refusal(write(tmp_path, head + "      run: |\n        ok\n        {% if %}\n"))
    assert error.line == 8
    assert "raw" in (error.hint or "")


def test_a_cycle_is_shown_as_a_path(tmp_path: Path) -> None:
    """Steps that wait for each other are named in order, closed, with a line."""
    circle = (f"{{id: {id}, gate: 'true', after: {blocker}}}" for id, blocker in ("ac", "ba", "cb"))
    error = refusal(steps(tmp_path, "{id: z, gate: 'true'}", *circle))
    assert "these todos wait for each other: " in error.message
    shown = error.message.split(": ")[-1].replace("`", "").split(" -> ")
    assert shown[0] == shown[-1]
    assert "->".join(shown) in "a->b->c->a->b->c->a"
    assert error.line in (5, 6, 7)
    assert "these todos wait" in refusal(steps(tmp_path, "{id: a, gate: 'true', after: a}")).message


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    """The first is the error, the others stand in its hint; `check` lists each with its line."""
    path = steps(tmp_path, "{id: a, gate: 'x'}", "{id: b, gate: 'true', priority: low}", "{id: c, gate: 'y', after: a}")
    error = refusal(path)
    assert "`x` is not defined" in error.message
    assert "also: " in (error.hint or "")
    assert "line 6: `y` is not defined" in (error.hint or "")
    assert [problem.line for problem in check(path)] == [4, 6]


@pytest.mark.parametrize("line", ["after: x{n}, gate: 'true'", "gate: todos.x{n}", "gate: x{n}", "x{n}: 1, stop: x"])
def test_only_the_first_of_very_many_problems_are_guessed_at(tmp_path: Path, line: str) -> None:
    """A thousand mistakes are answered with the first few dozen, since guessing at each takes time."""
    problems = check(steps(tmp_path, *(f"{{id: s{n}, {line.replace('{n}', str(n))}}}" for n in range(1000))))
    assert len(problems) == MAX_PROBLEMS
    assert problems[0].line == 4


def test_templates_of_excessive_length_are_refused(tmp_path: Path) -> None:
    """One text and all texts together have a bound, below what parsing would take seconds for."""
    long = "x" * 60_000 + "{{ host }}"
    assert "longer than 128 Ki" in refusal(steps(tmp_path, *(f"{{id: a{n}, ask: '{long}'}}" for n in range(3)))).message
    assert "longer than 64 Ki" in refusal(steps(tmp_path, f"{{id: a, ask: '{long * 2}'}}")).message


def test_check_needs_no_values_and_accepts_what_loads(tmp_path: Path) -> None:
    """A required parameter is no problem of the file; a good file has no problems; an unreadable one has one."""
    params = "params: {m: {required: true}, n: {required: true, type: int}}"
    assert check(steps(tmp_path, "{id: a, gate: 'm == n'}", head=params)) == []
    assert [problem.line for problem in check(write(tmp_path, "a: [\n"))] == [2]


def test_an_unknown_tool_is_left_alone_when_the_tools_are_not_known(tmp_path: Path) -> None:
    """Without a set of names there is nothing to compare with."""
    assert check(steps(tmp_path, "{id: a, tool: anything}")) == []


def test_shell_text_needs_no_escapes(tmp_path: Path) -> None:
    """Lengths of lists, parameter expansion and single braces pass through a job as they are."""
    script = "n=${#list[@]}; echo ${x%.*} {a,b} \"${y:-}\" | awk '{print $1}'"
    path = write(tmp_path, f"name: x\nsteps:\n  - id: a\n    job:\n      host: local\n      run: |\n        {script}\n")
    (todo,) = load(path, {}).todos
    assert render(todo.body["run"], {}) == script + "\n"
