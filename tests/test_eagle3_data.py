"""Conversations, masks, prompts, settings and the draft vocabulary say what they mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from playbooks.eagle3.payload.config import Data, load_config  # noqa: E402
from playbooks.eagle3.payload.data import (  # noqa: E402
    Conversation,
    draft_vocabulary,
    encode_conversation,
    load_answers,
    mapping_tensors,
)
from playbooks.eagle3.payload.errors import StepError  # noqa: E402
from playbooks.eagle3.payload.generate import read_rows  # noqa: E402
from playbooks.eagle3.payload.prompts import load_prompts, read_prompts  # noqa: E402
from tests.eagle3_helpers import TEMPLATE, tiny_tokenizer  # noqa: E402

pytestmark = pytest.mark.train
TALK = [
    {"role": "user", "content": "w6 w7"},
    {"role": "assistant", "content": "w8"},
    {"role": "user", "content": "w9"},
    {"role": "assistant", "content": "w10 w11"},
]


def test_the_mask_holds_what_the_assistant_says_and_its_end_of_turn() -> None:
    """In a conversation of two turns, exactly both answers and their end tokens are learnt, and none of the user's."""
    tokenizer = tiny_tokenizer()
    ids, mask = encode_conversation(tokenizer, TALK)
    words = tokenizer.convert_ids_to_tokens(ids)
    assert " ".join(words).startswith("<s> user w6 w7 </s> <s> assistant w8 </s> <s> user w9")
    assert [w for w, m in zip(words, mask, strict=True) if m] == ["w8", "</s>", "w10", "w11", "</s>"]


def test_a_template_that_writes_an_answer_differently_afterwards_is_refused() -> None:
    """A think block that only the finished turn has would train on text that serving never shows."""
    changed = TEMPLATE.replace(
        "{{ m['content'] }}", "{% if m['role'] == 'assistant' %}w60{% endif %} {{ m['content'] }}"
    )
    changed = changed.replace("<s> {{ m['role'] }}", "<s> {% if loop.last %}w61{% endif %} {{ m['role'] }}")
    with pytest.raises(StepError, match="renders turn 1 differently"):
        encode_conversation(tiny_tokenizer(changed), TALK)


def test_the_draft_vocabulary_is_the_most_frequent_learnt_tokens() -> None:
    """Counts come from the mask only, ties and unseen tokens go by id, and the result is ascending."""
    talk = Conversation("a", [5, 5, 5, 9, 9, 7, 3, 2], [0, 0, 0, 1, 1, 1, 1, 1])
    assert draft_vocabulary([talk], 12, 3) == [2, 3, 9]
    assert draft_vocabulary([talk], 12, 6) == [0, 1, 2, 3, 7, 9]
    with pytest.raises(StepError, match="13 and the target has 12"):
        draft_vocabulary([talk], 12, 13)


def test_d2t_is_an_offset_and_t2d_its_inverse() -> None:
    """draft id + d2t is the target id, and t2d names the same ids."""
    d2t, t2d = mapping_tensors([2, 3, 9], 12)
    assert (d2t + torch.arange(3)).tolist() == [2, 3, 9]
    assert d2t.dtype == torch.int64
    assert t2d.nonzero().flatten().tolist() == [2, 3, 9]


def test_the_prompts_that_come_along_are_disjoint() -> None:
    """No prompt is there twice, so none is both trained on and evaluated on; a prefix of either split is as asked."""
    prompts = load_prompts(Data())
    assert len({p.text for p in prompts}) == len({p.id for p in prompts}) == len(prompts)
    assert {p.split for p in prompts} == {"train", "eval"}
    assert [p.split for p in load_prompts(Data(train_prompts=5, eval_prompts=2))] == ["train"] * 5 + ["eval"] * 2


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2 is no prompt"),
        ('{"id": "b", "split": "eval"}', "line 2 is no prompt: KeyError"),
        ('{"id": "b", "split": "dev", "prompt": "x"}', "split `dev`"),
        ('{"id": "b", "turns": []}', "line 2 is no prompt: IndexError"),
        ('{"id": "b", "prompt": " "}', "no text in it"),
    ],
)
def test_a_prompt_file_that_does_not_fit_is_named_with_its_line(tmp_path: Path, line: str, problem: str) -> None:
    """The message names the line or the split that is wrong."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"id": "a", "split": "train", "prompt": "x"}) + "\n" + line + "\n")
    with pytest.raises(StepError, match=problem):
        load_prompts(Data(prompts=(str(path),)))


def test_prompt_files_of_every_usual_shape_are_read(tmp_path: Path) -> None:
    """Questions, instructions with their input, turns and messages become conversations that end with the user."""
    rows = [
        {"prompt": "a"}, {"question": "b", "answer": "no"}, {"instruction": "c", "input": "d"},
        {"instruction": "e", "instances": [{"input": "f"}]}, {"turns": ["g", "h"]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "i"},
                      {"role": "assistant", "content": "j"}]},
    ]  # fmt: skip
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    prompts = read_prompts(path)
    assert [p.text for p in prompts] == ["a", "b", "c\n\nd", "e\n\nf", "g", "i"]
    assert [m["role"] for m in prompts[-1].messages] == ["system", "user"]


def test_what_is_held_out_depends_on_the_texts_alone(tmp_path: Path) -> None:
    """The same prompts are held out of a file in another order, none is in both splits, and repeated texts are one."""
    texts = [f"question {n}" for n in range(20)]
    held = []
    for order in (texts, texts[::-1] + texts):
        path = tmp_path / "prompts.jsonl"
        path.write_text("\n".join(json.dumps({"prompt": t}) for t in order))
        prompts = load_prompts(Data(prompts=(str(path),), holdout=5))
        assert len(prompts) == 20
        held.append({p.text for p in prompts if p.split == "eval"})
    assert held[0] == held[1]
    assert len(held[0]) == 5


def test_settings_are_overridden_by_their_dotted_names() -> None:
    """Later overrides win, values are typed, and what is no TOML is a string."""
    overrides = [
        "train.steps=7",
        "train.learning_rate=1",
        "extract.boundaries=[1, 2, 3]",
        "target=/some/dir",
        "train.steps=8",
    ]
    config = load_config("smoke", overrides)
    assert (config.train.steps, config.train.learning_rate, config.target) == (8, 1.0, "/some/dir")
    assert config.extract.boundaries == (1, 2, 3)


@pytest.mark.parametrize(
    ("override", "problem", "hint"),
    [
        ("train.step=7", "no setting `train.step`", "train.steps"),
        ("train.steps=many", "`train.steps` is `'many'`", "int"),
        ("train.steps=1.5", "`train.steps` is `1.5`", "int"),
        ("target.path=x", "goes below `target`", "config.py"),
        ("seed", "has no `=`", "--set"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(override: str, problem: str, hint: str) -> None:
    """A misspelt or mistyped setting never runs with the default; the hint names what was probably meant."""
    with pytest.raises(StepError, match=problem) as caught:
        load_config("smoke", [override])
    assert hint in caught.value.hint


def test_lines_end_at_a_line_feed_alone(tmp_path: Path) -> None:
    """Separators that JSON may hold inside a text (U+2028, U+0085, a form feed) cut neither prompts nor answers."""
    text = "one\u2028two\u0085three\x0cfour"
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"prompt": text}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [p.text for p in read_prompts(path)] == [text]
    row = {"id": text, "split": "train", "prompt_ids": [1], "answer_ids": [2]}
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n" + '{"torn": "', encoding="utf-8")
    assert read_rows(path) == [row]
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [c.id for c in load_answers(path, "train")] == [text]
