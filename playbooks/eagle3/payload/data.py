"""Conversations and the draft vocabulary. Nothing here knows the model; token ids are lists of int.

A conversation becomes token ids and a loss mask: 1 at each token that the assistant says, the end-of-turn token
included, so the mask at index t asks whether the drafter should learn to predict token t.

The draft vocabulary is the most frequent tokens of the training answers. SGLang stores it as two tensors: `d2t` [D]
int64, the OFFSET `target id - draft id`, and `t2d` [V] bool, which target ids are in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import StepError
from .runtime import read_lines

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Conversation:
    """Token ids and, of the same length, the loss mask. `greedy`: the answers are the likeliest ones."""

    id: str
    ids: list[int]
    mask: list[int]
    greedy: bool = True


def encode_conversation(
    tokenizer: Any, messages: Sequence[dict[str, str]], **arguments: Any
) -> tuple[list[int], list[int]]:
    """Token ids and loss mask of a conversation of any number of turns, through the tokenizer's own chat template.

    Each assistant turn is found by rendering the conversation up to it, once with the generation prompt and once with
    the answer. Both must begin alike, or the template shows the model one thing in training and another in serving (a
    `<think>` block that comes and goes is the usual case): that raises StepError. `arguments` are the template's.
    """
    ids: list[int] = []
    mask: list[int] = []
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = chat_ids(tokenizer, messages[:turn], generation_prompt=True, **arguments)
        after = chat_ids(tokenizer, messages[: turn + 1], generation_prompt=False, **arguments)
        if after[: len(before)] != before or before[: len(ids)] != ids:
            raise StepError(
                f"the chat template renders turn {turn} differently once it is answered",
                hint="render with the flags that serving uses (thinking on or off), or drop the earlier turns",
            )
        mask += [0] * (len(before) - len(ids)) + [1] * (len(after) - len(before))
        ids = after
    return ids, mask


def chat_ids(
    tokenizer: Any, messages: Sequence[dict[str, str]], *, generation_prompt: bool, **arguments: Any
) -> list[int]:
    """Token ids of `messages` as the target's chat template writes them when it is given `arguments`."""
    if not tokenizer.chat_template:
        raise StepError("the target's tokenizer has no chat template", hint="choose an instruction-tuned target")
    text = tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=generation_prompt, **arguments
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def load_answers(path: Path, split: str) -> list[Conversation]:
    """The conversations of one split from the answers file, in its order."""
    if not path.is_file():
        raise StepError(f"`{path}` is missing", hint="run `python -m eagle3.generate` first")
    rows = [json.loads(line) for line in read_lines(path)]
    return [conversation_of(row) for row in rows if row["split"] == split and row["answer_ids"]]


def conversation_of(row: dict[str, Any]) -> Conversation:
    """A line of an answers file as a conversation: the prompt is not learnt, the answer is."""
    prompt, answer = row["prompt_ids"], row["answer_ids"]
    mask = [0] * len(prompt) + [1] * len(answer)
    return Conversation(row["id"], prompt + answer, mask, greedy=row.get("temperature", 0.0) == 0.0)


def check_tokens(conversations: Iterable[Conversation], vocabulary: int) -> None:
    """Raises StepError when a token is beyond the target's vocabulary: the ids are another tokenizer's."""
    for conversation in conversations:
        highest = max(conversation.ids, default=0)
        if highest >= vocabulary:
            raise StepError(
                f"`{conversation.id}` has token {highest}, and the target has {vocabulary}: another tokenizer's ids",
                hint="let this target answer: run `python -m eagle3.generate` again",
            )


def draft_vocabulary(conversations: Iterable[Conversation], vocab_size: int, draft_size: int) -> list[int]:
    """The target ids of the draft vocabulary, ascending: the `draft_size` most frequent tokens under the mask.

    Tokens that occur equally often are taken by their id, lowest first, and so are those that never occur, when there
    is room for them. Raises StepError when the vocabulary is to be larger than the target's.
    """
    if not 0 < draft_size <= vocab_size:
        raise StepError(
            f"`draft.vocab_size` is {draft_size} and the target has {vocab_size} tokens",
            hint="choose at most that many",
        )
    counts: Counter[int] = Counter()
    for conversation in conversations:
        counts.update(token for token, learnt in zip(conversation.ids, conversation.mask, strict=True) if learnt)
    ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
    return sorted(ranked[:draft_size])


def mapping_tensors(kept: Sequence[int], vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`d2t` [D] int64 (offsets) and `t2d` [V] bool of the ascending target ids in `kept`."""
    import torch

    ids = torch.tensor(kept, dtype=torch.int64)
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[ids] = True
    return ids - torch.arange(len(ids)), t2d
