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

from .checkpoint import save_tensors
from .config import Config
from .drafter_config import LATENT, LLAMA, is_latent, read_drafter_config
from .errors import StepError
from .foreign import read_drafter
from .model import Drafter
from .runtime import Result, Workdir, run_step, say, write_text
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
    config = {**drafter.config.to_dict(), "dtype": str(dtype).split(".")[1]}
    config["architectures"] = [LATENT if is_latent(drafter.config) else LLAMA]
    for key in ("_name_or_path", "transformers_version"):
        config.pop(key, None)
    save_tensors(stored_tensors(drafter, dtype), folder / "model.safetensors", {"drafter": digest_of(drafter)})
    write_text(folder / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")


def load_drafter(folder: Path, embedding: Tensor) -> Drafter:
    """The drafter in `folder`, in float32, beside the target's `embedding` [V, H].

    Raises StepError when the folder is not there, lacks a tensor, has one too many or one of another shape, when its
    mapping contradicts itself, or when it is a drafter for another target.
    """
    if not (folder / "config.json").is_file():
        raise StepError(f"no drafter in `{folder}`", hint="run `python -m eagle3.train` first")
    settings, tensors = read_drafter(folder)
    for name, mine, its in (("hidden_size", settings.get("hidden_size"), embedding.shape[1]),
                            ("vocab_size", settings.get("vocab_size"), embedding.shape[0])):  # fmt: skip
        if mine != its:
            raise StepError(
                f"the drafter in `{folder}` has `{name}` {mine}, and the target has {its}: it is another target's",
                hint="choose a drafter of this target, or the target of this drafter",
            )
    drafter = Drafter(read_drafter_config(settings), embedding, tensors["d2t"], tensors["t2d"])
    own = drafter.state_dict()
    wrong = sorted(own.keys() ^ tensors.keys())
    wrong += [f"{n} {list(tensors[n].shape)}" for n in own.keys() & tensors.keys() if own[n].shape != tensors[n].shape]
    if wrong:
        raise StepError(
            f"`{folder}` is no drafter of this kind: {', '.join(wrong)} missing, unknown or of another shape",
            hint="one decoder layer over pairs, as SGLang's LlamaForCausalLMEagle3, is what is read",
        )
    drafter.load_state_dict(tensors)
    return drafter.float()


def check_mapping(d2t: Tensor, t2d: Tensor) -> bool:
    """Whether `d2t` [D] holds the offsets of exactly those target ids that `t2d` [V] names, ascending or not."""
    ids = d2t + torch.arange(len(d2t))
    return bool((ids >= 0).all() and (ids < len(t2d)).all()) and ids.sort().values.equal(t2d.nonzero().flatten())


if __name__ == "__main__":
    raise SystemExit(run_step("export", export))
