"""What a drafter is worth before any training: the line that `evaluate` has to clear.

It is the very drafter that `train` starts from, so the difference between the two is what training bought.

    python -m eagle3.baseline --preset smoke
"""

from __future__ import annotations

from .build import first_drafter
from .config import Config
from .data import load_answers
from .evaluate import measure
from .runtime import Result, Workdir, run_step


def baseline(config: Config, work: Workdir) -> Result:
    """Predict the untrained drafter's acceptance on the held-out answers."""
    drafter, _ = first_drafter(config, work, load_answers(work.answers, "train"))
    return measure(config, work, drafter)


if __name__ == "__main__":
    raise SystemExit(run_step("baseline", baseline, shorthands={"--prompts": "evaluate.prompts[]"}))
