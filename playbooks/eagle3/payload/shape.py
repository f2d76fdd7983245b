"""How large a model is, from the numbers of its `config.json`: weights, cache, and what the drafter for it holds.

Nothing is loaded, and torch is not imported: this has to answer on a laptop, for a model of a terabyte. The numbers
come from the target's own `config.json` where it is in reach, else from a table that came along (`shapes/`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import Config, parse_toml
from .errors import StepError

BITS = {
    "bnb_4bit": 4.5,
    "bitsandbytes": 4.5,
    "gptq": 4.5,
    "awq": 4.5,
    "compressed-tensors": 4.5,
    "mxfp4": 4.25,
    "fp8": 8.1,
}


@dataclass(frozen=True)
class Shape:
    """A target: its settings by the names of `config.json`, and where they are from."""

    settings: Mapping[str, Any]
    source: str

    def __getitem__(self, key: str) -> int:
        value = self.settings.get(key)
        if not isinstance(value, int):
            raise StepError(f"{self.source} has no number `{key}`", hint="is it the configuration of a language model?")
        return value

    def get(self, key: str, default: int = 0) -> int:
        """A setting that a model need not have."""
        value = self.settings.get(key)
        return value if isinstance(value, int) else default

    @property
    def hidden(self) -> int:
        return self["hidden_size"]

    @property
    def layers(self) -> int:
        return self["num_hidden_layers"]

    @property
    def latent(self) -> bool:
        """Whether its attention is latent (MLA), as DeepSeek's and Kimi's."""
        return bool(self.get("kv_lora_rank"))

    @property
    def head_size(self) -> int:
        return self.get("head_dim") or self.hidden // self["num_attention_heads"]

    def attention(self, width: int) -> int:
        """Weights of one attention that reads vectors of `width`."""
        heads, hidden = self["num_attention_heads"], self.hidden
        if not self.latent:
            return self.head_size * (width * (heads + 2 * self["num_key_value_heads"]) + heads * hidden)
        nope, rope, value = self["qk_nope_head_dim"], self["qk_rope_head_dim"], self["v_head_dim"]
        rank, query = self["kv_lora_rank"], self.get("q_lora_rank")
        queries = width * query + query * heads * (nope + rope) if query else width * heads * (nope + rope)
        return queries + width * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden

    def layer(self, experts: int) -> int:
        """Weights of one mixture layer of which so many routed experts count."""
        of_expert = 3 * self.hidden * self["moe_intermediate_size"]
        return self.attention(self.hidden) + of_expert * (experts + self.get("n_shared_experts"))

    @property
    def experts(self) -> int:
        return self.get("n_routed_experts") or self.get("num_experts") or self.get("num_local_experts")

    def body(self, experts: int) -> int:
        """Weights of all layers of which so many routed experts of each count."""
        dense = self.attention(self.hidden) + 3 * self.hidden * self["intermediate_size"]
        first = self.get("first_k_dense_replace") if self.experts else self.layers
        return first * dense + ((self.layers - first) * self.layer(experts) if self.experts else 0)

    @property
    def vocabulary(self) -> int:
        return self["vocab_size"]

    @property
    def weights(self) -> int:
        """All of them."""
        ends = 1 if self.settings.get("tie_word_embeddings") else 2
        return self.body(self.experts) + ends * self.vocabulary * self.hidden

    @property
    def active(self) -> int:
        """Those that one token passes through, without the embedding."""
        return self.body(self.get("num_experts_per_tok")) + self.vocabulary * self.hidden

    @property
    def bytes_per_weight(self) -> float:
        told = self.settings.get("bytes_per_weight")
        if isinstance(told, float):
            return told
        method = (self.settings.get("quantization_config") or {}).get("quant_method")
        return BITS.get(str(method), 16.0) / 8

    @property
    def cache(self) -> int:
        """Bytes of one token's keys and values in bfloat16."""
        width = self["kv_lora_rank"] + self["qk_rope_head_dim"] if self.latent else 0
        return 2 * self.layers * (width or 2 * self["num_key_value_heads"] * self.head_size)

    def drafter(self, vocabulary: int, latent: bool, intermediate: int = 0) -> tuple[int, int]:
        """Weights of the drafter's layer, and of all of it; `intermediate` is its MLP's size, 0 for the target's."""
        hidden = self.hidden
        attention = self.attention(2 * hidden)
        if self.latent and not latent:
            attention = 2 * hidden * (hidden + hidden // 2) + hidden * hidden  # see drafter_config
        layer = attention + 3 * hidden * (intermediate or self["intermediate_size"]) + 3 * hidden
        return layer, layer + 3 * hidden * hidden + hidden + vocabulary * hidden


def read_shape(config: Config, root: Path) -> Shape:
    """The target's shape: from `target/config.json` below `root`, the folder named, or the table that came along.

    Raises StepError when none of these is there.
    """
    named = Path(config.target).expanduser()
    for path in (root / "target" / "config.json", named / "config.json"):
        if path.is_file():
            settings = json.loads(path.read_text(encoding="utf-8"))
            return Shape({**settings, **(settings.get("text_config") or {})}, f"`{path}`")
    table = Path(__file__).with_name("shapes") / f"{config.shape}.toml"
    if config.shape and table.is_file():
        return Shape(
            parse_toml(table.read_text(encoding="utf-8"), f"`{table}`"), f"the table `{config.shape}` that came along"
        )
    raise StepError(
        f"the shape of `{config.target}` is not known before it is fetched",
        hint="run `python -m eagle3.fetch` first, or give a folder with its config.json as `target`",
    )
