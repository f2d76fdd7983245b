"""Does draft-and-verify, run as it is served, say what the target says, in the rounds that were predicted?

It must, whatever the drafter is: this runs it, slowly and token by token, on some held-out answers, and counts. In
float32 all of them agree; in bfloat16 the target itself may say another token of two that are equally likely when it
reads more text at once, so a few that differ there are ties, not faults.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .acceptance import answer_spans, leading_runs, walk
from .data import Conversation
from .model import Drafter
from .runtime import Progress, Result
from .speculate import greedy_decode, speculative_decode
from .target import Target

LONGEST = 48  # tokens of an answer that are decoded: each costs a pass over the whole text


@torch.no_grad()
def verify(target: Target, drafter: Drafter, answers: Sequence[Conversation], drafts: int) -> Result:
    """Over `answers`: how many came out as the target's own greedy text, and how many in the predicted rounds."""
    progress = Progress(len(answers), "answers decoded")
    equal = as_predicted = tokens = 0
    for done, answer in enumerate(answers, 1):
        first = answer.mask.index(1)
        new = min(LONGEST, len(answer.ids) - first)
        prompt = answer.ids[:first]
        text = greedy_decode(target, prompt, new, ())
        decoded = speculative_decode(target, drafter, prompt, drafts, new, ())
        ids = torch.tensor([prompt + text])
        features, _ = target.hidden_states(ids)
        runs = leading_runs(drafter, ids.to(drafter.d2t.device), features, drafts)[0].tolist()
        ((start, last),) = answer_spans(torch.tensor([0] * first + [1] * new))
        predicted = [(root, runs[root]) for root in walk(runs, start - 1, last - drafts - 1)]
        equal += decoded.tokens == text
        as_predicted += predicted == decoded.rounds[: len(predicted)]
        tokens += new
        progress.update(done)
    return {"answers": len(answers), "tokens": tokens, "equal": equal, "as_predicted": as_predicted}
