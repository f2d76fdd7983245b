"""Save a drafter as the folder that SGLang and vLLM load: `config.json` and `model.safetensors`.

The tensors are the drafter's own parameters, `d2t` and `t2d`; no embedding, since SGLang takes the target's and vLLM
does when there is none. What an engine skips in silence is checked here: after writing, the folder is read back,
every tensor is compared with what was meant, and the mapping is applied both ways.

    python -m eagle3.export          # drafter/model (float32) -> drafter/export (bfloat16)
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig

from .checkpoint import save_tensors
from .config import Config
from .errors import StepError
from .model import Drafter
from .runtime import Result, Workdir, read_json, run_step, say, write_text
from .target import read_embedding


def export(config: Config, work: Workdir) -> Result:
    """Save the trained drafter as SGLang and vLLM load it."""
    drafter = load_drafter(work.drafter / "model", read_embedding(work.target))
    folder = work.drafter / "export"
    save_drafter(drafter, folder, torch.bfloat16)
    again = load_file(folder / "model.safetensors")
    wanted = stored_tensors(drafter, torch.bfloat16)
    wrong = sorted(
        n for n in wanted.keys() | again.keys() if n not in wanted or n not in again or not again[n].equal(wanted[n])
    )
    if wrong or not check_mapping(again["d2t"], again["t2d"]):
        raise StepError(
            f"`{folder}` does not hold what was trained: {', '.join(wrong) or 'd2t, t2d'}", hint="run it again"
        )
    size = (folder / "model.safetensors").stat().st_size
    say(f"exported {folder} ({size / 1e6:.1f} MB, {len(again)} tensors)")
    tensors = {n: [str(t.dtype), *t.shape] for n, t in again.items()}
    return {"path": str(folder), "drafter": digest_of(drafter), "bytes": size, "tensors": tensors}


def stored_tensors(drafter: Drafter, dtype: torch.dtype) -> dict[str, Tensor]:
    """What is saved of `drafter`: parameters in `dtype`, `d2t` int64 and `t2d` bool."""
    return {
        name: tensor.detach().cpu().to(dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in drafter.state_dict().items()
    }


def digest_of(drafter: Drafter) -> str:
    """A hash of `drafter` as it is served: its tensors in bfloat16, by name. It stands in the file's metadata."""
    digest = hashlib.sha256()
    for name, tensor in sorted(stored_tensors(drafter, torch.bfloat16).items()):
        digest.update(f"{name} {list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def save_drafter(drafter: Drafter, folder: Path, dtype: torch.dtype) -> None:
    """Write `drafter` to `folder` with its parameters in `dtype`."""
    config = {
        **drafter.config.to_dict(),
        "architectures": ["LlamaForCausalLMEagle3"],
        "dtype": str(dtype).split(".")[1],
    }
    for key in ("_name_or_path", "transformers_version"):
        config.pop(key, None)
    save_tensors(stored_tensors(drafter, dtype), folder / "model.safetensors", {"drafter": digest_of(drafter)})
    write_text(folder / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")


def load_drafter(folder: Path, embedding: Tensor) -> Drafter:
    """The drafter in `folder`, in float32, beside the target's `embedding` [V, H].

    Raises StepError when the folder is not there, lacks a tensor, has one too many, or its mapping contradicts itself.
    """
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise StepError(f"no drafter in `{folder}`", hint="run `python -m eagle3.train` first")
    settings = read_json(folder / "config.json")
    tensors = load_file(weights)
    wrong = {"d2t", "t2d"} - tensors.keys()
    if not wrong and not check_mapping(tensors["d2t"], tensors["t2d"]):
        wrong = {"d2t or t2d"}
    if not wrong:
        drafter = Drafter(LlamaConfig(**settings), embedding, tensors["d2t"], tensors["t2d"])
        wrong = drafter.state_dict().keys() ^ tensors.keys()
    if wrong:
        raise StepError(
            f"`{weights}` is no drafter of this kind: {', '.join(sorted(wrong))} missing, unknown or contradictory",
            hint="a mapping is required (`d2t` holds offsets, target id - draft id); other layouts are not read",
        )
    drafter.load_state_dict(tensors)
    return drafter.float()


def check_mapping(d2t: Tensor, t2d: Tensor) -> bool:
    """Whether `d2t` [D] holds the offsets of exactly those target ids that `t2d` [V] names."""
    ids = d2t + torch.arange(len(d2t))
    return bool((ids >= 0).all() and (ids < len(t2d)).all()) and ids.equal(t2d.nonzero().flatten())


if __name__ == "__main__":
    raise SystemExit(run_step("export", export))
