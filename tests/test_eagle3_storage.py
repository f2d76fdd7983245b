"""Stored hidden states: what is kept, what a restart does, and what happens when a disk or a file gives out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from playbooks.eagle3.payload.build import kept_tokens  # noqa: E402
from playbooks.eagle3.payload.config import load_config  # noqa: E402
from playbooks.eagle3.payload.data import conversation_of, load_answers  # noqa: E402
from playbooks.eagle3.payload.errors import StepError  # noqa: E402
from playbooks.eagle3.payload.extract import extract  # noqa: E402
from playbooks.eagle3.payload.feed import Stored  # noqa: E402
from playbooks.eagle3.payload.generate import generate  # noqa: E402
from playbooks.eagle3.payload.objective import unrolled_loss  # noqa: E402
from playbooks.eagle3.payload.runtime import Workdir  # noqa: E402
from playbooks.eagle3.payload.shards import Shards  # noqa: E402
from playbooks.eagle3.payload.target import Target  # noqa: E402
from playbooks.eagle3.payload.teacher import Fidelity, likeliest, spread  # noqa: E402
from playbooks.eagle3.payload.train import train  # noqa: E402
from tests.eagle3_helpers import VOCAB, save_tiny_target, tiny_drafter, tiny_tokenizer  # noqa: E402
from tests.eagle3_host import SETTINGS, Host  # noqa: E402

pytestmark = pytest.mark.train
CPU = torch.device("cpu")


def configured(work: Workdir, *more: str):
    return load_config("smoke", [*SETTINGS, f"target={work.target}", *more])


@pytest.fixture
def work(tmp_path: Path) -> Workdir:
    """A work directory with the tiny target's answers."""
    work = Workdir(tmp_path / "work")
    work.root.mkdir()
    work.target.symlink_to(save_tiny_target(tmp_path / "tiny"))
    generate(configured(work), work)
    return work


def test_the_whole_distribution_as_its_likeliest_tokens_teaches_the_same(work: Workdir) -> None:
    """With as many tokens kept as are drafted nothing is lost, and the loss is the one of the last state."""
    losses = []
    for top in (0, 60):
        config = configured(work, f"extract.teacher_top={top}", "extract.store_dtype=float32")
        result = extract(config, work)
        target = Target.load(config, work.target, CPU)
        shards = Shards(work.shards, "train")
        kept = sorted(torch.tensor(_kept(config, work)).tolist())
        drafter = tiny_drafter(target, kept)
        head = target.model.get_output_embeddings().weight.detach()[drafter.kept]
        batch = Stored(shards, drafter.t2d, 64, CPU, torch.float32).batch(range(4))
        losses.append(unrolled_loss(drafter, head, batch, 2, 0.8).mean.item())
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)  # logarithms are stored in half precision
    assert result["fidelity"]["divergence"] < 1e-3


def _kept(config, work: Workdir) -> list[int]:
    kept: list[int] = kept_tokens(config, work, load_answers(work.answers, "train")).tolist()
    return kept


def test_a_cut_teacher_says_what_it_loses_and_what_it_saves(work: Workdir) -> None:
    """Fewer tokens take less room and diverge more; both are in the step's result, and training goes on from them."""
    found = [extract(configured(work, f"extract.teacher_top={top}"), work) for top in (8, 4)]
    whole = extract(configured(work), work)
    assert whole["bytes"] > found[0]["bytes"] > found[1]["bytes"]
    assert 0 < found[0]["fidelity"]["divergence"] < found[1]["fidelity"]["divergence"]
    assert found[0]["fidelity"]["probability_kept"] > found[1]["fidelity"]["probability_kept"]
    config = configured(work, "extract.teacher_top=4", "train.steps=2")
    extract(config, work)
    assert train(config, work)["steps"] == 2
    with pytest.raises(StepError, match=r"stored with `extract.teacher_top=4`, and it is 0 now"):
        train(configured(work, "train.steps=2"), work)


def test_the_divergence_is_the_one_of_the_definition() -> None:
    """Mean Kullback-Leibler divergence of the cut, scaled-up distribution from the whole one."""
    torch.manual_seed(0)
    last, head = torch.randn(7, 32), torch.randn(20, 32)
    top, found = likeliest(last, head, 5), Fidelity()
    found.add(last, head, top)
    whole, cut = torch.softmax(last @ head.T, -1), spread(top, 20)
    wanted = torch.where(cut > 0, cut * (cut.clamp(min=1e-30) / whole).log(), 0.0).sum(-1).mean()
    assert found.to_json()["divergence"] == pytest.approx(wanted.item(), abs=1e-5)
    assert cut.sum(-1).allclose(torch.ones(7))


def test_a_damaged_shard_is_named_and_made_anew_alone(work: Workdir) -> None:
    """Training names the shard that is cut off; extracting again makes that one and leaves the others."""
    config = configured(work)
    extract(config, work)
    first, second = sorted(work.shards.glob("train-*.safetensors"))[:2]
    whole, before = second.read_bytes(), first.stat().st_mtime_ns
    second.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StepError, match=second.name):
        train(config, work)
    extract(config, work)
    assert first.stat().st_mtime_ns == before
    assert Shards(work.shards, "train").length(0) > 0
    assert len(second.read_bytes()) == len(whole)


@pytest.mark.slow
def test_a_full_disk_in_extraction_loses_nothing_that_was_stored(tmp_path: Path) -> None:
    """When a shard cannot be written the step says so and leaves the finished ones, from which the next run goes on."""
    host = Host(tmp_path)
    for step in ("fetch", "generate"):
        host.run(step)
    # A limit on the size of files lets the first shard through and not the larger second one: as a full disk does.
    small = "extract.shard_tokens=1"
    error = host.fails("extract", small, shell="ulimit -f 8;")
    assert "could not be written" in error
    assert "goes on from what is there" in error
    there = {p.name: p.stat().st_mtime_ns for p in (host.work / "shards").glob("*.safetensors")}
    assert not list((host.work / "shards").glob("*.tmp"))
    host.run("extract", small)
    assert all((host.work / "shards" / name).stat().st_mtime_ns == time for name, time in there.items())


def test_answers_of_another_tokenizer_are_refused(work: Workdir) -> None:
    """Neither extraction nor online training takes answers that another tokenizer or template made."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["another"])
    tokenizer.save_pretrained(work.target)
    with pytest.raises(StepError, match="another tokenizer"):
        extract(configured(work), work)
    tiny_tokenizer("{% for m in messages %}{{ m['content'] }} {% endfor %}").save_pretrained(work.target)
    with pytest.raises(StepError, match="another chat template"):
        train(configured(work, "train.states=online"), work)
    tiny_tokenizer().save_pretrained(work.target)
    with pytest.raises(StepError, match="another template arguments"):
        extract(configured(work, 'data.template=["enable_thinking=false"]'), work)


def test_token_ids_beyond_the_vocabulary_are_refused(work: Workdir) -> None:
    """Answers from elsewhere whose ids the target does not have are named, before anything is computed."""
    rows = [json.loads(line) for line in work.answers.read_text().splitlines()]
    rows[0]["answer_ids"].append(VOCAB + 5)
    work.answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(StepError, match=f"has token {VOCAB + 5}, and the target has {VOCAB}"):
        extract(configured(work), work)


def test_a_template_argument_decides_the_prompt_and_is_recorded(work: Workdir) -> None:
    """Thinking on or off is one argument of the template: it reaches the prompts and stands beside the answers."""
    template = (
        "{% for m in messages %}<s> {{ m['role'] }} {{ m['content'] }} </s> {% endfor %}"
        "{% if add_generation_prompt %}<s> assistant {% if not enable_thinking %}w60 {% endif %}{% endif %}"
    )
    tiny_tokenizer(template).save_pretrained(work.target)
    result = generate(configured(work, 'data.template=["enable_thinking=false"]'), work)
    assert result["template_arguments"] == {"enable_thinking": False}
    assert json.loads((work.root / "answers.json").read_text())["chat_template"] == template
    rows = [json.loads(line) for line in work.answers.read_text().splitlines()]
    assert all(row["prompt_ids"][-1] == 60 for row in rows)


def test_a_target_without_a_chat_template_is_refused(work: Workdir) -> None:
    """A base model has no turns to answer in: generation says so and asks nothing."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    (work.target / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer.save_pretrained(work.target)
    before = work.answers.read_text()
    with pytest.raises(StepError, match="no chat template"):
        generate(configured(work), work)
    assert work.answers.read_text() in ("", before)


def test_an_empty_answer_is_left_out_and_none_at_all_is_an_error(work: Workdir) -> None:
    """Turns in which the assistant says nothing teach nothing; a file of only such turns stops training."""
    rows = [json.loads(line) for line in work.answers.read_text().splitlines()]
    emptied = [{**row, "answer_ids": []} for row in rows if row["split"] == "train"]
    held = [row for row in rows if row["split"] == "eval"]
    work.answers.write_text("".join(json.dumps(row) + "\n" for row in [*emptied[:3], *rows[3:]]))
    assert extract(configured(work), work)["tokens"]["train"] == sum(
        len(conversation_of(row).ids) for row in rows[3:] if row["split"] == "train"
    )
    work.answers.write_text("".join(json.dumps(row) + "\n" for row in [*emptied, *held]))
    with pytest.raises(StepError, match="no answer to train on"):
        train(configured(work, "train.states=online"), work)


def test_the_size_on_disk_is_said_before_and_is_right(work: Workdir, capsys: pytest.CaptureFixture[str]) -> None:
    """The figure that is printed before the first forward pass is what the shards take, but for their headers."""
    result = extract(configured(work), work)
    said = capsys.readouterr().out
    assert f"hidden states: {result['bytes'] / 1e6:.1f} MB on disk" in said
    files = list(work.shards.glob("*.safetensors"))
    assert 0 <= sum(p.stat().st_size for p in files) - result["bytes"] < 1000 * len(files)


def test_a_disk_that_is_too_small_stops_before_anything_is_written(
    work: Workdir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is needed and what is free are both said; no shard is begun."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(StepError, match=r"need .* GB more"):
        extract(configured(work), work)
    assert not list(work.shards.glob("*.safetensors"))


def test_online_training_needs_no_disk(work: Workdir) -> None:
    """Online, extraction stores nothing and says so."""
    assert extract(configured(work, "train.states=online"), work)["bytes"] == 0
    assert not (work.shards / "index.json").exists()
