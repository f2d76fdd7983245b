"""The drafter's unrolled pass and its objective are what the slow, obvious computation says."""

from __future__ import annotations

import dataclasses

import pytest

torch = pytest.importorskip("torch")

from playbooks.eagle3.payload import objective  # noqa: E402
from playbooks.eagle3.payload.attention import attend, attend_reference  # noqa: E402
from playbooks.eagle3.payload.compiled import use_compiled  # noqa: E402
from playbooks.eagle3.payload.data import Conversation  # noqa: E402
from playbooks.eagle3.payload.feed import Form, Online  # noqa: E402
from playbooks.eagle3.payload.objective import unrolled_loss  # noqa: E402
from playbooks.eagle3.payload.target import fuse_norms  # noqa: E402
from tests.eagle3_helpers import (  # noqa: E402
    VOCAB,
    batch_of,
    greedy_sequence,
    target_head,
    tiny_drafter,
    tiny_model,
    tiny_target,
)

pytestmark = pytest.mark.train
STEPS = 4


def test_each_unrolled_step_equals_a_chain_that_is_grown_token_by_token() -> None:
    """At every root and step, the parallel pass gives what plain causal attention gives over that one chain."""
    target = tiny_target()
    drafter = tiny_drafter(target, list(range(VOCAB)))
    sequence = greedy_sequence(target, [1, 9, 17], 9)
    ids, features = sequence.ids, sequence.features[None]
    unrolled = list(drafter.unroll(ids[None], features, STEPS))
    for root in range(len(ids) - STEPS):
        tokens, hidden = ids[1 : root + 2], drafter.fc(features[:, : root + 1])
        for step in range(STEPS):
            newest = drafter.extend(tokens, hidden)[:, -1:]
            torch.testing.assert_close(unrolled[step][:, root], newest[:, 0], atol=1e-5, rtol=1e-5)
            tokens, hidden = ids[1 : root + 3 + step], torch.cat([hidden, newest], dim=1)


@pytest.mark.parametrize("later", [1, 3, 6])
def test_merged_attention_equals_the_written_out_softmax(later: int) -> None:
    """Output and every gradient of the fused attention are those of the softmax over all scores at once."""
    torch.manual_seed(later)
    shape = (2, 3, 37, 8)
    tensors = [torch.randn(shape, requires_grad=True) for _ in range(3 + 2 * later)]
    slope = torch.randn(shape)
    memory = list(zip(tensors[1::2], tensors[2::2], strict=True))
    found, wanted = attend(tensors[0], memory), attend_reference(tensors[0], memory)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    pairs = zip(torch.autograd.grad(found, tensors, slope), torch.autograd.grad(wanted, tensors, slope), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_the_loss_and_its_gradient_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits a few positions at a time give what all at once give, in two rows of which one is padded."""
    target = tiny_target()
    drafter = tiny_drafter(target, list(range(VOCAB)))
    batch = batch_of([greedy_sequence(target, [1, 9], 5), greedy_sequence(target, [1, 30, 31], 12)], drafter)
    results = []
    for rows in (1000, 3):
        monkeypatch.setattr(objective, "CHUNK_BYTES", rows * 4 * 3 * VOCAB)
        drafter.zero_grad()
        losses = unrolled_loss(drafter, target_head(target, drafter), batch, 3, 0.8)
        losses.loss.backward()
        results.append([losses.loss.detach(), losses.steps, *(w.grad.clone() for w in drafter.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    """A small step against the gradient, computed beside the loss, lowers it by what the gradient says."""
    target = tiny_target()
    drafter = tiny_drafter(target, list(range(VOCAB))).double()
    sequence = greedy_sequence(target, [1, 9, 17], 9)
    whole = dataclasses.replace(sequence, features=sequence.features.double(), last=sequence.last.double())
    batch, head = batch_of([whole], drafter), target_head(target, drafter).double()
    before = unrolled_loss(drafter, head, batch, 3, 0.8).loss
    before.backward()
    square = sum(float((w.grad**2).sum()) for w in drafter.parameters())
    with torch.no_grad():
        for weight in drafter.parameters():
            weight -= 1e-3 / square * weight.grad
    after = unrolled_loss(drafter, head, batch, 3, 0.8).loss
    assert float((before - after).detach()) == pytest.approx(1e-3, rel=0.02)  # sums are float32: no smaller step


def test_padding_on_the_right_changes_nothing_before_it() -> None:
    """A sequence has the same states alone as in a batch with a longer one."""
    target = tiny_target()
    drafter = tiny_drafter(target, list(range(VOCAB)))
    short, long = greedy_sequence(target, [1, 9], 5), greedy_sequence(target, [1, 30, 31, 32], 12)
    both = batch_of([short, long], drafter)
    alone = list(drafter.unroll(short.ids[None], short.features[None], 3))
    padded = list(drafter.unroll(both.ids, both.features, 3))
    for step in range(3):
        meaningful = len(short.ids) - 1 - step
        torch.testing.assert_close(padded[step][:1, :meaningful], alone[step][:, :meaningful], atol=1e-5, rtol=1e-5)


def brute_force_loss(drafter, head, sequence, steps, decay) -> float:
    """The objective position by position, from its definition."""
    total = 0.0
    said = zip(sequence.mask[1:], drafter.t2d[sequence.argmax[:-1]], strict=True)
    taught = sum(bool(spoken and drafted) for spoken, drafted in said)
    states = list(drafter.unroll(sequence.ids[None], sequence.features[None], steps))
    for step in range(steps):
        terms = []
        for p in range(len(sequence.ids)):
            t = p + 2 + step
            if t >= len(sequence.ids) or not sequence.mask[t] or not drafter.t2d[sequence.argmax[t - 1]]:
                continue
            truth = (head @ sequence.last[t - 1]).softmax(-1)
            terms.append(-(truth * drafter.logits(states[step][0, p]).log_softmax(-1)).sum())
        total += decay**step * sum(terms).item()
    return total / taught


def test_the_loss_is_the_one_that_is_defined() -> None:
    """The batched loss equals the loss summed up position by position, with a cut vocabulary and two turns."""
    target = tiny_target()
    sequence = greedy_sequence(target, [1, 9, 17, 40], 14)
    mask = sequence.mask.clone()
    mask[9:12] = False  # a second user turn in the middle
    sequence = dataclasses.replace(sequence, mask=mask)
    seen = sorted(set(sequence.ids.tolist()))
    drafter = tiny_drafter(target, sorted(set(range(0, VOCAB, 3)) | set(seen[::2])))
    head = target_head(target, drafter)
    losses = unrolled_loss(drafter, head, batch_of([sequence], drafter), 3, 0.8)
    assert losses.mean.item() == pytest.approx(brute_force_loss(drafter, head, sequence, 3, 0.8), rel=1e-5)


def test_only_tokens_of_the_assistant_are_learnt() -> None:
    """The gradient at step s comes from exactly the positions p whose token p+2+s the assistant says."""
    target = tiny_target()
    sequence = greedy_sequence(target, [1, 9, 17, 40], 8)
    mask = torch.tensor([0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1], dtype=torch.bool)
    drafter = tiny_drafter(target, list(range(VOCAB)))
    batch = batch_of([dataclasses.replace(sequence, mask=mask)], drafter)
    for step in range(3):
        outputs = []

        def unroll(ids, features, steps, outputs=outputs):
            outputs += [h.detach().requires_grad_() for h in type(drafter).unroll(drafter, ids, features, steps)]
            return iter(outputs)

        drafter.unroll = unroll
        unrolled_loss(drafter, target_head(target, drafter), batch, 3, 1.0).loss.backward()
        learnt = outputs[step].grad[0].abs().sum(-1).nonzero().flatten() + 2 + step
        assert learnt.tolist() == [t for t in mask.nonzero().flatten().tolist() if t >= 2 + step]


def test_where_the_target_would_say_a_token_that_cannot_be_drafted_nothing_is_learnt() -> None:
    """A vocabulary without the target's favourite tokens leaves a loss of zero, not a distorted one."""
    target = tiny_target()
    sequence = greedy_sequence(target, [1, 9, 17, 40], 8)
    favourites = set(sequence.argmax.tolist())
    drafter = tiny_drafter(target, [t for t in range(VOCAB) if t not in favourites])
    losses = unrolled_loss(drafter, target_head(target, drafter), batch_of([sequence], drafter), 2, 0.8)
    assert losses.loss.item() == 0.0
    assert losses.positions == 0


def test_batches_of_every_length_of_row_have_the_same_number_of_positions() -> None:
    """What is filled in to reach a fixed shape changes neither losses nor gradients."""
    target = tiny_target()
    found = []
    for form in (Form(), Form.of(192, 40)):
        drafter = tiny_drafter(target, list(range(VOCAB)))
        batch = Online(talks(5, 20, 31, 9, 40), target, drafter.t2d, 40, form).batch([0, 1, 2])
        loss = unrolled_loss(drafter, target_head(target, drafter), batch, 3, 0.8)
        loss.mean.backward()
        found.append((loss.mean, drafter.fc.weight.grad, tuple(batch.ids.shape)))
    assert [shape for _, _, shape in found] == [(3, 31), (6, 32)]
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][1], found[0][1], atol=1e-6, rtol=1e-4)
    form = Form.of(192, 40)
    assert form.lengths == (8, 16, 24, 32, 48)
    assert [form.room(n) for n in (1, 16, 17, 48)] == [8, 16, 24, 48]
    assert Form.of(130, 40).lengths == ()


def talks(*lengths: int) -> list[Conversation]:
    return [Conversation(str(n), list(range(3, 3 + n)), [0] * 2 + [1] * (n - 2)) for n in lengths]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch hides it from itself, not from pytest
def test_one_compilation_serves_batches_of_every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, the losses are the same, and no later batch has anything compiled anew."""
    build = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, dynamic: build(f, dynamic=dynamic, backend="aot_eager"))
    target = tiny_target()
    drafter = tiny_drafter(target, list(range(VOCAB)))
    head = target_head(target, drafter)
    feed = Online(talks(5, 9, 12, 20, 31, 40, 45), target, drafter.t2d, 45, Form.of(192, 45))
    picked = [[0, 1], [3, 4], [5, 6], [0, 1, 2], [6]]
    plain = [unrolled_loss(drafter, head, feed.batch(p), 3, 0.8).mean.item() for p in picked]
    graphs = []
    use_compiled(True)
    try:
        for numbers, wanted in zip(picked, plain, strict=True):
            loss = unrolled_loss(drafter, head, feed.batch(numbers), 3, 0.8).mean
            loss.backward()
            assert loss.item() == pytest.approx(wanted, rel=1e-5)
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    finally:
        use_compiled(False)
    assert graphs[0] > 0
    assert set(graphs) == {graphs[0]}


def test_norms_are_fused_only_where_that_changes_nothing() -> None:
    """The tiny target's norms give the same fused; one with another weight convention is left alone."""
    model = tiny_model()
    ids = torch.arange(3, 12)[None]
    before = model(ids).logits
    assert fuse_norms(model) == 9
    torch.testing.assert_close(model(ids).logits, before, atol=1e-5, rtol=1e-4)

    class OddRMSNorm(torch.nn.Module):
        variance_epsilon = 1e-6

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((8,), 0.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.rms_norm(x, (8,), self.weight + 1, 1e-6)

    assert fuse_norms(OddRMSNorm()) == 0
