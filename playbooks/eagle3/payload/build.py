"""The drafter that training starts from: an existing one, or vocabulary from the answers and seeded noise.

In both cases the embedding is the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .config import Config
from .data import Conversation, draft_vocabulary, mapping_tensors
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
    if config.draft.start:
        drafter = load_drafter(Path(config.draft.start).expanduser(), embedding)
        if drafter.boundaries not in (None, boundaries):
            raise StepError(
                f"the drafter in `{config.draft.start}` reads the boundaries {list(drafter.boundaries or ())}, and "
                f"`extract.boundaries` gives {list(boundaries)}",
                hint=f"set `extract.boundaries={list(drafter.boundaries or ())}` and store the states again",
            )
    else:
        size = min(config.draft.vocab_size, settings.vocab_size)
        d2t, t2d = mapping_tensors(draft_vocabulary(conversations, settings.vocab_size, size), settings.vocab_size)
        torch.manual_seed(config.seed)
        drafter = Drafter(drafter_config(settings, size, boundaries, config.draft.attention), embedding, d2t, t2d)
    return drafter, read_head(work.target)[drafter.kept].float()
