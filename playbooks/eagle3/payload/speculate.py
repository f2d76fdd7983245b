"""Speculative decoding, slow and obvious: nothing is cached and nothing is done in parallel.

This is what `evaluate` claims to predict, written so that it can be believed by reading it: draft one token after the
other, let the target check them, keep the leading run that it agrees with and the token it says itself. The target's
own greedy answer must come out, whatever the drafter is. Every round runs the target over the whole text, so use it
for short texts; serving is the engines' business.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .model import Drafter
from .target import Target


@dataclass
class Decoded:
    """The answer's tokens, and of each round where its root was and how many drafts the target agreed with."""

    tokens: list[int] = field(default_factory=list)
    rounds: list[tuple[int, int]] = field(default_factory=list)


def greedy_decode(target: Target, prompt: list[int], max_new_tokens: int, stops: Collection[int]) -> list[int]:
    """The target's greedy answer, one token and one whole forward pass at a time; a stop token is its last."""
    text = list(prompt)
    while len(text) < len(prompt) + max_new_tokens:
        _, last = target.hidden_states(torch.tensor([text]))
        text.append(int(target.argmax(last[0, -1])))
        if text[-1] in stops:
            break
    return text[len(prompt) :]


def speculative_decode(
    target: Target, drafter: Drafter, prompt: list[int], drafts: int, max_new_tokens: int, stops: Collection[int]
) -> Decoded:
    """The same answer by draft and verify, with chains of `drafts` tokens."""
    out = Decoded(tokens=greedy_decode(target, prompt, 1, stops))
    while len(out.tokens) < max_new_tokens and out.tokens[-1] not in stops:
        text = prompt + out.tokens
        features, _ = target.hidden_states(torch.tensor([text[:-1]]))  # the last token is chosen but not yet read
        chain = draft_chain(drafter, torch.tensor(text), features.float(), drafts)
        _, last = target.hidden_states(torch.tensor([text + chain]))
        says = target.argmax(last[0, len(text) - 1 :]).tolist()  # after the text, after each draft
        run = next((n for n, (draft, true) in enumerate(zip(chain, says, strict=False)) if draft != true), drafts)
        out.rounds.append((len(text) - 2, run))
        for token in says[: run + 1]:
            out.tokens.append(token)
            if token in stops or len(out.tokens) == max_new_tokens:
                break
    return out


@torch.inference_mode()
def draft_chain(drafter: Drafter, text: Tensor, features: Tensor, drafts: int) -> list[int]:
    """`drafts` tokens after `text` [T], from the target's `features` [1, T-1, 3H] over all of it but the last token.

    The pairs are (text[1], g_0) ... (text[T-1], g_{T-2}); each draft appends itself beside the state that it came from.
    """
    device = drafter.fc.weight.device
    tokens = text[1:].to(device)
    hidden = drafter.fc(features.to(device))
    chain: list[int] = []
    while len(chain) < drafts:
        newest = drafter.extend(tokens, hidden)[:, -1:]
        chain.append(int(drafter.predict(newest)))
        tokens = torch.cat([tokens, tokens.new_tensor(chain[-1:])])
        hidden = torch.cat([hidden, newest], dim=1)
    return chain
