"""What an engine measured of the drafter, as `turnout bench` wrote it: `bench/plain.json` and `bench/eagle3.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .runtime import read_json


@dataclass(frozen=True)
class Measured:
    """One pass over a prompt set: so many requests at once, greedy. `plain` is the rate without a drafter."""

    set: str
    concurrency: int
    rate: float  # tokens a second
    plain: float | None
    multiplier: float | None
    length: float | None
    cost: float | None  # of a round, in plain decoding steps
    engine: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_measured(folder: Path, drafts: int) -> list[Measured]:
    """The passes with the drafter, by set and the fewest requests first; none when nothing was measured.

    Only chains of `drafts` drafts are of interest here: a tree's length is no chain's.
    """
    path = folder / "eagle3.json"
    if not path.is_file():
        return []
    result = read_json(path)
    engine = f"{result['engine']['name']} {result['engine']['version']}"
    found = []
    for one in result["passes"]:
        accepted, versus = one.get("acceptance") or {}, one.get("versus") or {}
        if one["temperature"] or accepted.get("shape") == "tree" or accepted.get("drafts", drafts) != drafts:
            continue
        found.append(
            Measured(
                one["set"], one["concurrency"], one["tokens_per_s"], versus.get("plain_tokens_per_s"),
                versus.get("multiplier"), accepted.get("length"), versus.get("step_cost"), engine,
            )
        )  # fmt: skip
    return sorted(found, key=lambda m: (m.set, m.concurrency))
