"""The drafter that training starts from: an existing one, or vocabulary from the answers, the target's head and noise.

In both cases the embedding is the target's. A new drafter's head begins as the target's own, which knows what words
are alike; of what comes before it, all is seeded noise, and its final norm lets the logits begin with a spread of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .config import Config
from .data import Conversation, check_tokens, draft_vocabulary, mapping_tensors
from .drafter_config import drafter_config
from .errors import StepError
from .export import load_drafter
from .model import Drafter
from .runtime import Workdir
from .target import read_config, read_embedding, read_head, resolve_boundaries


def first_drafter(config: Config, work: Workdir, conversations: Sequence[Conversation]) -> tuple[Drafter, Tensor]:
    """The drafter before training, and the target's head cut to its vocabulary [D, H] in float32.

    Raises StepError when the drafter to start from does not fit the target or the boundaries asked for.
    """
    settings = read_config(work.target)
    boundaries = resolve_boundaries(config.extract.boundaries, settings.num_hidden_layers)
    embedding = read_embedding(work.target)
    check_tokens(conversations, len(embedding))
    if config.draft.start:
        drafter = load_drafter(Path(config.draft.start).expanduser(), embedding)
        if drafter.boundaries not in (None, boundaries):
            raise StepError(
                f"the drafter in `{config.draft.start}` reads the boundaries {list(drafter.boundaries or ())}, and "
                f"`extract.boundaries` gives {list(boundaries)}",
                hint=f"set `extract.boundaries={list(drafter.boundaries or ())}` and store the states again",
            )
    else:
        kept = draft_ids(config, settings.vocab_size, conversations)
        d2t, t2d = mapping_tensors(kept, settings.vocab_size)
        torch.manual_seed(config.seed)
        draft = config.draft
        shape = drafter_config(settings, len(kept), boundaries, draft.attention, draft.intermediate_size)
        drafter = Drafter(shape, embedding, d2t, t2d)
    head = read_head(work.target)[drafter.kept].float()
    if not config.draft.start:
        with torch.no_grad():
            drafter.lm_head.weight.copy_(head)
            drafter.norm.weight.fill_(1 / float(head.norm(dim=-1).mean()))
    return drafter, head


def kept_tokens(config: Config, work: Workdir, conversations: Sequence[Conversation]) -> Tensor:
    """The target ids of the draft vocabulary that training will have, by draft id."""
    if config.draft.start:
        return load_drafter(Path(config.draft.start).expanduser(), read_embedding(work.target)).kept
    return torch.tensor(draft_ids(config, read_config(work.target).vocab_size, conversations))


def draft_ids(config: Config, vocabulary: int, conversations: Sequence[Conversation]) -> list[int]:
    """The target ids of a new draft vocabulary."""
    return draft_vocabulary(conversations, vocabulary, min(config.draft.vocab_size, vocabulary))
