"""Read a published drafter and save it as this trainer does: what `draft.start` would go on from, without training.

drafter/model/      float32, as after training: `evaluate` predicts its acceptance, `export` writes it for engines

python -m eagle3.import_drafter --preset h200-smollm2 --set draft.start=/models/some-eagle3
"""

from __future__ import annotations

from pathlib import Path

import torch

from .config import Config
from .errors import StepError
from .export import digest_of, load_drafter, save_drafter
from .runtime import Result, Workdir, run_step, say
from .target import read_config, read_embedding, resolve_boundaries


def import_drafter(config: Config, work: Workdir) -> Result:
    """Read the drafter that `draft.start` names and save it as `drafter/model`."""
    if not config.draft.start:
        raise StepError("`draft.start` names no drafter", hint="set `draft.start=FOLDER`")
    folder = Path(config.draft.start).expanduser()
    drafter = load_drafter(folder, read_embedding(work.target))
    boundaries = drafter.boundaries or resolve_boundaries((), read_config(work.target).num_hidden_layers)
    save_drafter(drafter, work.drafter / "model", torch.float32)
    say(f"{folder}: {len(drafter.d2t)} tokens to draft, boundaries {list(boundaries)}")
    return {"from": str(folder), "drafter": digest_of(drafter), "boundaries": list(boundaries)}


if __name__ == "__main__":
    raise SystemExit(run_step("import_drafter", import_drafter))
