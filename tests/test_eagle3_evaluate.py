"""The predicted acceptance is the one that real speculative decoding has."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")

from playbooks.eagle3.payload.acceptance import Acceptance, answer_spans, leading_runs, walk, walked  # noqa: E402
from playbooks.eagle3.payload.objective import unrolled_loss  # noqa: E402
from playbooks.eagle3.payload.speculate import greedy_decode, speculative_decode  # noqa: E402
from tests.eagle3_helpers import VOCAB, batch_of, greedy_sequence, target_head, tiny_drafter, tiny_target  # noqa: E402

pytestmark = pytest.mark.train
PROMPTS = [[1, 9, 17], [1, 33], [1, 50, 51, 52, 53], [1, 22, 7]]
NEW = 40
DRAFTS = 3
WHOLE = tuple(range(VOCAB))


@functools.cache
def drafter_after(updates: int, kept: tuple[int, ...]):
    """The tiny target, a drafter with so many updates on its answers, and those answers."""
    target = tiny_target()
    sequences = [greedy_sequence(target, prompt, NEW) for prompt in PROMPTS]
    drafter = tiny_drafter(target, list(kept))
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=3e-3)
    batch = batch_of(sequences, drafter)
    for _ in range(updates):
        optimizer.zero_grad()
        unrolled_loss(drafter, target_head(target, drafter), batch, DRAFTS, 0.8).mean.backward()
        optimizer.step()
    return target, drafter.eval(), sequences


def predicted(drafter, sequences, drafts: int, longest: int = DRAFTS) -> Acceptance:
    """The walks of chains of `drafts` over all sequences, from runs of chains of `longest`."""
    total = Acceptance((0,) * (drafts + 1))
    for sequence in sequences:
        runs = leading_runs(drafter, sequence.ids[None], sequence.features[None], longest)[0].tolist()
        total += walked(runs, sequence.mask, drafts)
    return total


@pytest.mark.parametrize("updates", [0, 15, 60])
@pytest.mark.parametrize("kept", [WHOLE, tuple(range(0, VOCAB, 2))], ids=["whole", "half"])
def test_prediction_equals_speculative_decoding(updates: int, kept: tuple[int, ...]) -> None:
    """For a bad, a middling and a good drafter, each predicted round is one of draft and verify, root and count."""
    target, drafter, sequences = drafter_after(updates, kept)
    for prompt, sequence in zip(PROMPTS, sequences, strict=True):
        runs = leading_runs(drafter, sequence.ids[None], sequence.features[None], DRAFTS)[0].tolist()
        ((first, last),) = answer_spans(sequence.mask)
        predicted = [(root, runs[root]) for root in walk(runs, first - 1, last - DRAFTS - 1)]
        decoded = speculative_decode(target, drafter, prompt, DRAFTS, NEW, stops=())
        assert decoded.tokens == greedy_decode(target, prompt, NEW, stops=())
        assert predicted == decoded.rounds[: len(predicted)]
        assert all(root > last - DRAFTS - 1 for root, _ in decoded.rounds[len(predicted) :])


def test_training_raises_the_acceptance_and_every_length_of_run_occurs() -> None:
    """The cases above are no accident of an empty histogram: a trained drafter meets runs of each length."""
    _, untrained, sequences = drafter_after(0, WHOLE)
    _, trained, _ = drafter_after(60, WHOLE)
    before, after = predicted(untrained, sequences, DRAFTS), predicted(trained, sequences, DRAFTS)
    assert after.length > before.length + 0.5
    assert all(after.histogram)


@pytest.mark.parametrize("drafts", [1, 2, 5])
def test_one_pass_serves_chains_of_every_length(drafts: int) -> None:
    """The walk of a short chain is the same from its own runs and from those of a chain of seven, cut."""
    _, drafter, sequences = drafter_after(60, WHOLE)
    assert predicted(drafter, sequences, drafts, longest=7) == predicted(drafter, sequences, drafts, longest=drafts)


def test_a_stop_token_ends_the_answer_in_the_middle_of_a_run() -> None:
    """What was drafted beyond the stop token is not said."""
    target, drafter, sequences = drafter_after(60, WHOLE)
    answer = sequences[0].ids[len(PROMPTS[0]) :].tolist()
    stop = answer[10]
    decoded = speculative_decode(target, drafter, PROMPTS[0], DRAFTS, NEW, stops=(stop,))
    assert decoded.tokens == answer[: answer.index(stop) + 1]


def test_length_and_conditional_follow_from_the_histogram() -> None:
    """Of 4 rounds 2 get no draft, 1 one, 1 two: length 1.75; half get a first, half of those a second."""
    acceptance = Acceptance((2, 1, 1, 0))
    assert acceptance.length == 1.75
    assert acceptance.conditional == [0.5, 0.5, 0.0]
    assert Acceptance((3, 0, 0)).conditional == [0.0, None]


def test_each_turn_of_the_assistant_is_walked_on_its_own() -> None:
    """Spans are the runs of the mask, those at either end included."""
    assert list(answer_spans(torch.tensor([True, True, False, False, True, False, True]))) == [(0, 1), (4, 4), (6, 6)]
