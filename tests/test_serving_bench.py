"""The bench: what it asks, counts and computes, against a stand-in for each engine."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.standin_engine import _SGLANG, Handler, StandIn
from tools.serving.bench import compare, counters, figures, passes, prompts, report
from tools.serving.bench.__main__ import main
from tools.serving.bench.adapters import Answer
from tools.serving.bench.counters import Counts
from tools.serving.bench.errors import BenchError

HERE = Path(passes.__file__).parent
CHAIN = {"shape": "chain", "steps": 3, "topk": 1, "draft_tokens": 4}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of twelve prompts, in a working folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(passes, "gpus", lambda: [])
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"question": f"What is {n} + {n}?"}) + "\n" for n in range(12)))
    return path


def bench(engine: StandIn, prompts: Path, *more: str) -> dict[str, Any]:
    """Run the bench to a good end; its whole result."""
    assert main(["--url", engine.url, "--set", f"sums={prompts}", "--max-tokens", "40", *more]) == 0
    result: dict[str, Any] = json.loads(Path("bench.json").read_text())
    return result


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_acceptance_is_counted_as_the_drafter_was_scripted(asked: Path, engine: str, concurrency: int) -> None:
    """Rounds, accepted drafts and histogram are exactly those of the scripted drafter, for each answer and together."""
    with StandIn(engine, accept=[0.7, 0.5, 0.3]) as server:
        result = bench(server, asked, "--concurrency", str(concurrency))
        questions = [{"role": "user", "content": f"What is {n} + {n}?"} for n in range(12)]
        ids = [[3 + ord(c) for c in json.dumps([[question], None])] for question in questions]
        runs = [run for one in ids for run in server.draft(one, len(server.answer(one, 40)))]
    (found,) = result["passes"]
    assert found["tokens"] == sum(len(server.answer(one, 40)) for one in ids)
    assert found["acceptance"]["histogram"] == [runs.count(k) for k in range(4)]
    assert found["acceptance"]["rounds"] == len(runs)
    assert found["acceptance"]["length"] == round(1 + sum(runs) / len(runs), 4)
    assert found["acceptance"]["rate"] == round(sum(runs) / (3 * len(runs)), 4)
    if engine == "sglang" or concurrency == 1:
        assert sum(found["per_prompt"]["rounds"]) == len(runs)
        low, high = found["acceptance"]["interval"]
        assert low < found["acceptance"]["length"] < high
    else:
        assert found["acceptance"]["interval"] is None


def test_a_tokenizer_that_breaks_sglangs_answer_is_named(
    asked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SGLang 0.5.14 answers 500 to `/tokenize` when the tokenizer names no length: the remedy says which file."""
    monkeypatch.setattr(Handler, "tokenize", lambda self, _: self._say(500, "Internal Server Error"))
    monkeypatch.setitem(_SGLANG, "/tokenize", Handler.tokenize)
    with StandIn("sglang") as server:
        assert main(["--url", server.url, "--set", f"sums={asked}"]) == 1
    assert "`model_max_length` in the model's tokenizer_config.json" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_each_pass_is_warmed_up_flushed_and_pinned(asked: Path, engine: str) -> None:
    """At least as many requests as are kept in flight warm up; no setting of the model's own files can creep in."""
    with StandIn(engine) as server:
        bench(server, asked, "--concurrency", "5", "--warmup", "2", "--temperature", "0,0.7")
        sent = [body for body in server.asked if body.get("stream")]
    assert server.most_in_flight <= 5
    assert len(sent) == 2 * (5 + 12)
    if engine == "sglang":
        assert server.flushed == 2
        settings = [body["sampling_params"] for body in sent]
        assert {one["temperature"] for one in settings} == {0.0, 0.7}
    else:
        settings = sent
        assert len({one["cache_salt"] for one in settings}) == 4  # one for each warm-up and each pass
    assert {(one["top_p"], one["min_p"], one["repetition_penalty"]) for one in settings} == {(1.0, 0.0, 1.0)}


def test_two_engines_are_asked_the_same_token_ids(asked: Path) -> None:
    """Prompts go through the server's own template to token ids, whose hash says whether two results are about one."""
    hashes = []
    for engine in ("sglang", "vllm"):
        with StandIn(engine) as server:
            hashes.append(bench(server, asked)["sets"]["sums"]["sha256"])
            assert {"input_ids", "prompt"} & set(server.asked[-1])
    assert hashes[0] == hashes[1]


def test_a_result_names_engine_and_arguments_and_no_secret(asked: Path) -> None:
    """Version, model, speculation and launch arguments are in the result; a server's API key is not."""
    with StandIn("sglang", accept=[0.5, 0.5], topk=4) as server:
        engine = bench(server, asked)["engine"]
    assert (engine["version"], engine["model"], engine["arguments"]["dtype"]) == ("0.5.14", "org/model", "bfloat16")
    assert engine["speculation"] == {
        "algorithm": "EAGLE3", "steps": 2, "topk": 4, "draft_tokens": 9, "drafter": "/drafter", "shape": "tree",
    }  # fmt: skip
    assert "secret" not in json.dumps(engine)


def test_speculation_is_held_against_the_same_server_without(asked: Path) -> None:
    """With a second address the plain server is measured first, and each pass gets a multiplier and a step's cost."""
    with StandIn("sglang") as plain, StandIn("sglang", accept=[0.9, 0.9]) as fast:
        (found,) = bench(fast, asked, "--baseline-url", plain.url)["passes"]
    versus = found["versus"]
    assert versus["multiplier"] > 0
    assert versus["step_cost"] == pytest.approx(found["acceptance"]["length"] / versus["multiplier_decode"], rel=1e-3)


def test_an_answer_to_a_job_has_figures_on_top_and_nothing_of_single_prompts(
    asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What later steps of a playbook read stands at the top of the job's output."""
    monkeypatch.setenv("TURNOUT_OUTPUT", "output.json")
    with StandIn("sglang", accept=[0.7, 0.5]) as server:
        result = bench(server, asked)
    output = json.loads(Path("output.json").read_text())
    assert output["acceptance_length"] == result["passes"][0]["acceptance"]["length"]
    assert output["tokens_per_s"] > 0
    assert output["multiplier"] is None
    assert "per_prompt" not in json.dumps(output)


def test_a_server_that_dies_leaves_what_was_measured(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first failed request ends the bench with its reason; the passes before it stand in the result."""
    with StandIn("sglang", broken_after=30) as server:
        code = main(["--url", server.url, "--set", f"a={asked}", "--set", f"b={asked}"])
    assert code == 1
    assert "500" in capsys.readouterr().err
    left = json.loads(Path("bench.json").read_text())
    assert (left["complete"], [one["set"] for one in left["passes"]]) == (False, ["a"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "a=nowhere.jsonl"], "cannot read prompts"),
        ([], "nothing to ask"),
        (["--set", "a=prompts.jsonl", "--out", "no/out.json"], "make it: `mkdir -p no`"),
        (["--set", "nothing"], "NAME=FILE"),
        (["--set", "a=prompts.jsonl", "--expect-model", "other"], "not `other`"),
        (["--set", "a=prompts.jsonl", "--baseline", "prompts.jsonl"], "cannot read the baseline"),
    ],
)
def test_a_mistake_is_said_before_anything_is_measured(
    asked: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """The message names what was given and what to do."""
    with StandIn("sglang") as server:
        assert main(["--url", server.url, *arguments]) == 1
        assert not server.asked
    assert said in capsys.readouterr().err


def test_nobody_at_the_address_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --wait a server that is not there is an error with the address in it."""
    assert main(["--url", "http://127.0.0.1:9", "--set", "a=b"]) == 1
    assert "http://127.0.0.1:9/server_info" in capsys.readouterr().err


def test_answers_that_go_in_circles_are_told(asked: Path) -> None:
    """Repetition raises acceptance, so it is counted and remarked."""
    with StandIn("sglang", accept=[1.0], loops=True) as server:
        result = bench(server, asked)
    assert result["passes"][0]["degenerate"] == 12
    assert any("go in circles" in note for note in result["notes"])


def test_the_targets_own_answers_tell_another_template(asked: Path) -> None:
    """Given token ids and answers from training, the bench says whether this server's template and answers agree."""
    with StandIn("sglang") as server:
        ids = [3 + ord(c) for c in json.dumps([[{"role": "user", "content": "Hi"}], None])]
        rows = [
            {"prompt": "Hi", "prompt_ids": ids, "answer_ids": server.answer(ids, 40)},
            {"prompt": "Hi", "prompt_ids": ids[:-1], "answer_ids": [1, 2, 3]},
        ]
        asked.write_text("\n".join(map(json.dumps, rows)))
        result = bench(server, asked)
    assert result["sets"]["sums"]["template_agrees"] == 0.5
    assert result["passes"][0]["like_reference"] == 0.5
    assert any("chat template" in note for note in result["notes"])


def answers(*counts: Counts, seconds: float = 1.0) -> list[Answer]:
    """One answer of 10 tokens for each."""
    return [Answer(10, seconds, 0.1, list(range(10)), "length", one) for one in counts]


def test_a_tree_and_a_chain_are_kept_apart() -> None:
    """The longest histogram is draft tokens - 1 of a chain and steps of a tree, and the result says which it was."""
    one = answers(Counts(4, 4, 28, [1, 2, 1]))
    tree = figures.acceptance(one, None, {**CHAIN, "shape": "tree", "topk": 4, "draft_tokens": 8}, 0)
    chain = figures.acceptance(one, None, CHAIN, 0)
    assert tree is not None
    assert chain is not None
    assert (tree["shape"], tree["histogram"]) == ("tree", [1, 2, 1, 0])
    assert (chain["shape"], chain["conditional"]) == ("chain", [0.75, 0.3333, 0.0])


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8))
def test_a_chains_conditionals_give_back_its_length(histogram: list[int]) -> None:
    """1 + c1 + c1*c2 + ... is the mean of the histogram it was computed from."""
    rounds = sum(histogram)
    if rounds:
        length, chance = 1.0, 1.0
        for share in figures.conditional(histogram):
            chance *= share or 0.0
            length += chance
        assert length == pytest.approx(1 + sum(k * n for k, n in enumerate(histogram)) / rounds, abs=0.01)


def test_an_interval_holds_the_value_and_is_the_same_for_the_same_seed() -> None:
    """The bootstrap is over prompts and seeded."""
    values = [1.0, 2.3, 3.1, 4.7, 10.9, 0.13, 5.71]

    def middle(at: Any) -> float:
        return sum(values[i] for i in at) / len(at)

    first = figures.bootstrap(middle, 7, 7)
    assert first == figures.bootstrap(middle, 7, 7) != figures.bootstrap(middle, 7, 8)
    assert first is not None
    assert first[0] < 4.0 < first[1]
    assert figures.bootstrap(middle, 1, 7) is None


def test_vllms_page_of_counters_is_read_over_all_engines() -> None:
    """Counters of several data-parallel engines are added; `_created` lines and other metrics are passed over."""
    page = "".join(
        f'vllm:spec_decode_num_{name}_total{{engine="{e}"{extra}}} {value}\n'
        for e in (0, 1)
        for name, extra, value in (
            ("drafts", "", 10.0), ("draft_tokens", "", 20.0), ("accepted_tokens", "", 9.0),
            ("accepted_tokens_per_pos", ',position="1"', 3.0), ("accepted_tokens_per_pos", ',position="0"', 6.0),
        )
    )  # fmt: skip
    page += "vllm:spec_decode_num_drafts_created 1.7e9\nvllm:other 5\n"
    assert counters.parse(page) == Counts(20, 18, 40, [8, 6, 6])
    assert counters.parse("vllm:other 5\n") is None


def test_counters_are_awaited_until_they_account_for_the_tokens() -> None:
    """Counters trail the answers: a reading is taken again until rounds and accepted drafts add up to the tokens."""
    line = "vllm:spec_decode_num_drafts_total {}\nvllm:spec_decode_num_accepted_tokens_total {}\n"
    pages = iter([line.format(1, 0), line.format(2, 1), line.format(4, 6)])
    found = counters.settled(lambda: next(pages), 10)
    assert found is not None
    assert (found.rounds, found.correct) == (4, 6)


def result_of(**changed: Any) -> dict[str, Any]:
    """A small result, with some of its parts changed by dotted names."""
    one = {
        "set": "a", "concurrency": 8, "temperature": 0.0, "acceptance": {"length": 2.0, "rounds": 10, "accepted": 10,
        "proposed": 30}, "wall_s": 1.0, **figures.measure(answers(None, None), 1.0, None, None, 0),  # type: ignore[arg-type]
    }  # fmt: skip
    result: dict[str, Any] = {
        "engine": {"name": "sglang", "version": "1", "model": "m", "speculation": CHAIN, "max_running": 48,
                   "arguments": {"dtype": "bfloat16"}},
        "gpus": ["H200"], "settings": {"max_tokens": 10, "top_p": 1.0, "ignore_eos": False, "seed": 0},
        "sets": {"a": {"sha256": "x"}}, "passes": [one],
    }  # fmt: skip
    for name, value in changed.items():
        *path, last = name.split("__")
        inside = result
        for part in path:
            inside = inside[int(part) if part.isdigit() else part]
        inside[last] = value
    return result


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"engine__speculation": CHAIN}, "speculates too"),
        ({"engine__name": "vllm"}, "engine"),
        ({"engine__version": "2"}, "version"),
        ({"engine__model": "n"}, "model"),
        ({"engine__arguments": {"dtype": "float16"}}, "dtype"),
        ({"gpus": ["A100"]}, "GPUs"),
        ({"settings__max_tokens": 20}, "max_tokens"),
        ({"settings__ignore_eos": True}, "ignore_eos"),
        ({"sets__a__sha256": "y"}, "token ids differ"),
        ({"engine__max_running": 4}, "at most 4 requests"),
        ({"passes__0__tokens": 90}, "not the same text"),
        ({"passes__0__concurrency": 1}, "no such pass"),
    ],
)
def test_what_is_not_comparable_is_refused_with_the_reason(changed: dict[str, Any], why: str) -> None:
    """No multiplier is given where something else than speculation differs that would show in it."""
    result = result_of()
    compare.against(result, result_of(**{"engine__speculation": None, **changed}))
    assert "multiplier" not in result["passes"][0]["versus"]
    assert any(why in reason for reason in result["passes"][0]["versus"]["not_comparable"])
    assert any(line.startswith("not comparable") for line in report.lines({**result, "notes": []}))


def test_a_multiplier_is_the_ratio_of_rates() -> None:
    """Twice the seconds for the same tokens is half the rate, for each stream and for decoding alone."""
    slow = result_of(engine__speculation=None)
    slow["passes"][0] |= figures.measure(answers(None, None, seconds=2.0), 2.0, None, None, 0)  # type: ignore[arg-type]
    fast = result_of()
    compare.against(fast, slow)
    versus = fast["passes"][0]["versus"]
    assert (versus["multiplier"], versus["multiplier_total"]) == (2.0, 2.0)
    assert versus["multiplier_decode"] == pytest.approx(1.9 / 0.9, rel=1e-3)


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"prompt": "a"}, [{"role": "user", "content": "a"}]),
        ({"turns": ["a", "b"]}, [{"role": "user", "content": "a"}]),
        ({"instruction": "a", "input": "b"}, [{"role": "user", "content": "a\n\nb"}]),
        ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
                       {"role": "assistant", "content": "b"}]},
         [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},
                            {"from": "human", "value": "c"}]}, [{"role": "user", "content": "a"}]),
        ("a", [{"role": "user", "content": "a"}]),
    ],
)  # fmt: skip
def test_prompts_are_read_in_the_shapes_that_sets_come_in(tmp_path: Path, row: Any, wanted: list[Any]) -> None:
    """Each shape becomes the conversation up to what is to be answered."""
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(row) + "\n\n")
    assert [one.messages for one in prompts.load(str(path))] == [wanted]


def test_a_line_that_is_no_prompt_is_named(tmp_path: Path) -> None:
    """The error has the file and the line."""
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n{"answer": 3}\n')
    with pytest.raises(BenchError, match=r"line 2 holds no prompt"):
        prompts.load(str(path))
    assert len(prompts.load(str(path), limit=1)) == 1


@pytest.mark.parametrize("path", sorted(HERE.glob("*.py")), ids=lambda path: path.name)
def test_the_bench_runs_on_a_bare_host(path: Path) -> None:
    """Every file is Python 3.8 and imports only the standard library and its own folder."""
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names), names
