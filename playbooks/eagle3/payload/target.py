"""The target model: loaded, asked for hidden states, or read in parts straight from its files.

Boundary k is the input of layer k, which Hugging Face calls `hidden_states[k]`; boundary 0 is the embedding. The last
hidden state kept here is the one after the final norm, so that `last @ head.T` are the logits.

`Target` needs the whole model in memory. `read_embedding` and `read_head` read one tensor each: training needs no more.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.utils import logging

from .config import Config
from .errors import StepError
from .runtime import torch_dtype

EMBEDDING_NAMES = ("model.embed_tokens.weight", "language_model.model.embed_tokens.weight")
HEAD_NAMES = ("lm_head.weight", "language_model.lm_head.weight")

logging.disable_progress_bar()
_remote_code = False


def default_boundaries(layers: int) -> tuple[int, int, int]:
    """The three boundaries that SGLang, vLLM and the EAGLE authors take for a target of `layers` layers."""
    return (2, layers // 2, layers - 3)


def resolve_boundaries(chosen: Sequence[int], layers: int) -> tuple[int, ...]:
    """`chosen`, or the default when it is empty. Raises StepError for a boundary that the target does not have."""
    boundaries = tuple(chosen) or default_boundaries(layers)
    if len(boundaries) != 3 or len(set(boundaries)) != 3 or not all(0 <= k < layers for k in boundaries):
        raise StepError(
            f"boundaries {list(boundaries)} do not fit a target of {layers} layers",
            hint=f"choose three different ones from 0 to {layers - 1}: k is the input of layer k",
        )
    return boundaries


class Target:
    """A causal language model of transformers, with its tokenizer, on one device."""

    def __init__(self, model: nn.Module, boundaries: Sequence[int]) -> None:
        self.model = model.eval().requires_grad_(False)
        self.boundaries = tuple(boundaries)
        self._captured: dict[int, Tensor] = {}
        for k in self.boundaries:
            decoder_layers(model)[k].register_forward_pre_hook(self._capture(k), with_kwargs=True)

    @classmethod
    def load(cls, config: Config, folder: Path, device: torch.device) -> Target:
        """The target in `folder` (see fetch). Raises StepError when it is not there."""
        settings = read_config(folder)
        boundaries = resolve_boundaries(config.extract.boundaries, settings.num_hidden_layers)
        return cls(load_model(config, folder, device), boundaries)

    @property
    def device(self) -> torch.device:
        """Where token ids go in."""
        return self.model.get_input_embeddings().weight.device  # type: ignore[no-any-return]

    def _capture(self, k: int) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._captured[k] = args[0] if args else kwargs["hidden_states"]

        return hook

    @torch.no_grad()  # not inference mode: training reads these tensors again
    def hidden_states(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, T, 3H] (the boundaries side by side) and last hidden state [B, T, H] of `ids` [B, T].

        Rows may be padded on the right with any token: attention is causal, so what comes before does not see it.
        """
        last = self.model.get_decoder()(input_ids=ids.to(self.device), use_cache=False).last_hidden_state
        features = torch.cat([self._captured.pop(k).to(last.device) for k in self.boundaries], dim=-1)
        return features, last

    @torch.no_grad()
    def argmax(self, last: Tensor) -> Tensor:
        """The token [...] that the target would say after each last hidden state [..., H]."""
        return self.model.get_output_embeddings()(last).argmax(-1)


def load_model(config: Config, folder: Path, device: torch.device) -> Any:
    """The causal language model in `folder`, for inference, on `device`, or spread with `device_map`.

    A quantised checkpoint stays as its `quantization_config` says, or is unpacked with `dequantize`; transformers names
    what it lacks for that.
    """
    quantised = getattr(AutoConfig.from_pretrained(folder, **_trust()), "quantization_config", None)
    places: dict[str, Any] = {}
    if config.device_map:
        places = {"device_map": config.device_map}
    elif quantised:
        places = {"device_map": {"": device}}  # quantised weights are put where they stay, not moved
    if quantised and config.dequantize:
        places["quantization_config"] = _unpacked(quantised)
    dtype = torch_dtype(config.dtype, device)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **places, **_trust())
    except (ImportError, ValueError) as error:
        raise StepError(
            f"transformers does not load the target in `{folder}`: {str(error).strip().splitlines()[0]}",
            hint="install what it names on this host, or choose a target that transformers knows",
        ) from error
    model = (model if places else model.to(device)).eval()
    if device.type == "cuda":
        fuse_norms(model)
    return model


@torch.no_grad()
def fuse_norms(model: nn.Module) -> int:
    """Let root-mean-square norms run as one kernel each where that gives what they give; how many do.

    Written out, as transformers has them, they are six passes over memory, a fifth of a small target's time. A norm
    that turns out different (Gemma adds one to its weight) is left as it is.
    """
    fused = 0
    for module in model.modules():
        weight, epsilon = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
        if not type(module).__name__.endswith("RMSNorm") or epsilon is None or not isinstance(weight, Tensor):
            continue
        forward = functools.partial(F.rms_norm, normalized_shape=weight.shape, weight=weight, eps=epsilon)
        probe = torch.linspace(-3, 3, 4 * weight.numel(), device=weight.device, dtype=weight.dtype).view(4, -1)
        if torch.allclose(forward(probe).float(), module(probe).float(), rtol=2e-2, atol=1e-3):
            module.forward = forward
            fused += 1
    return fused


def _unpacked(quantised: Any) -> Any:
    """The setting that makes transformers unpack a checkpoint of this quantisation."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    told = quantised if isinstance(quantised, dict) else quantised.to_dict()
    method = str(told.get("quant_method"))
    try:
        return AUTO_QUANTIZATION_CONFIG_MAPPING[method](dequantize=True)
    except (KeyError, TypeError) as error:
        raise StepError(
            f"transformers cannot unpack a checkpoint that is quantised by `{method}`",
            hint="leave `dequantize` out, or take the target's checkpoint in bfloat16",
        ) from error


def trust_remote_code(trust: bool) -> None:
    """Whether code that comes with a checkpoint may be loaded, from now on and in this process."""
    global _remote_code
    _remote_code = trust


def _trust() -> dict[str, bool]:
    return {"trust_remote_code": True} if _remote_code else {}


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The list of decoder layers of `model`. Raises StepError when none has the length its configuration gives."""
    wanted = model.config.get_text_config().num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and name.endswith("layers") and len(module) == wanted:
            return module
    raise StepError(
        f"no list of {wanted} layers in a `{type(model).__name__}`", hint="this architecture is not supported"
    )


def read_config(folder: Path) -> PretrainedConfig:
    """The text model's configuration of the checkpoint in `folder`."""
    if not (folder / "config.json").is_file():
        raise StepError(f"no target in `{folder}`", hint="run `python -m eagle3.fetch` first")
    return AutoConfig.from_pretrained(folder, **_trust()).get_text_config()


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of the checkpoint in `folder`."""
    return AutoTokenizer.from_pretrained(folder, **_trust())


def stop_tokens(folder: Path, tokenizer: Any) -> list[int]:
    """The tokens that end an answer: those of generation_config.json, or else the tokenizer's end of sentence."""
    path = folder / "generation_config.json"
    named = json.loads(path.read_text())["eos_token_id"] if path.is_file() else None
    if named is None:
        named = tokenizer.eos_token_id
    return named if isinstance(named, list) else [named]


def digest_of(folder: Path) -> str:
    """A hash that tells checkpoints apart without reading them whole: config.json, and of each file of weights its
    size, its first and its last MiB."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(file.read(1 << 20))
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - (1 << 20)))
            digest.update(file.read() + str(size).encode())
    return digest.hexdigest()[:16]


def read_embedding(folder: Path) -> Tensor:
    """The input embedding [V, H] of the checkpoint in `folder`, as stored."""
    return _read_tensor(folder, EMBEDDING_NAMES)


def read_head(folder: Path) -> Tensor:
    """The output head [V, H]; the embedding, when the target ties the two."""
    tied = read_config(folder).tie_word_embeddings
    return _read_tensor(folder, EMBEDDING_NAMES if tied else HEAD_NAMES)


def _read_tensor(folder: Path, names: Sequence[str]) -> Tensor:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in names:
                if name in file.keys():  # noqa: SIM118 (a safetensors file is no mapping)
                    return file.get_tensor(name)
    raise StepError(f"no tensor {' or '.join(names)} in `{folder}`", hint="this architecture is not supported")
