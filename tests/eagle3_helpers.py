"""What the eagle3 tests share: a target small enough to be run a thousand times, a drafter for it, its answers."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from playbooks.eagle3.payload.drafter_config import drafter_config
from playbooks.eagle3.payload.feed import taught_places
from playbooks.eagle3.payload.model import Drafter
from playbooks.eagle3.payload.objective import Batch
from playbooks.eagle3.payload.shards import Features
from playbooks.eagle3.payload.target import Target

torch.set_num_threads(1)  # the tensors are tiny: waiting for a second thread costs more than it does

VOCAB = 64
STOP = 2
BOUNDARIES = (1, 2, 3)
TEMPLATE = (
    "{% for m in messages %}<s> {{ m['role'] }} {{ m['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}<s> assistant {% endif %}"
)


def tiny_model(seed: int = 0) -> LlamaForCausalLM:
    """A random Llama of four layers whose greedy answers wander before they fall into a loop."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=STOP,
        pad_token_id=0,
        tie_word_embeddings=True,
        initializer_range=0.3,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    )
    return LlamaForCausalLM(config).eval()


def tiny_target(seed: int = 0) -> Target:
    return Target(tiny_model(seed), BOUNDARIES)


def tiny_tokenizer(template: str = TEMPLATE) -> PreTrainedTokenizerFast:
    """Words split at spaces, with a chat template of the usual shape."""
    words = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant", *(f"w{n}" for n in range(6, VOCAB))]
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", bos_token="<s>", unk_token="<unk>")
    fast.chat_template = template
    return fast


def save_tiny_target(folder: Path) -> Path:
    """The tiny target as a checkpoint on disk."""
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def tiny_drafter(target: Target, kept: list[int], seed: int = 1) -> Drafter:
    """A random drafter for `target` over the target ids in `kept`."""
    torch.manual_seed(seed)
    ids = torch.tensor(kept)
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[ids] = True
    embedding = target.model.get_input_embeddings().weight.detach().clone()
    return Drafter(
        drafter_config(target.model.config, len(kept), BOUNDARIES), embedding, ids - torch.arange(len(ids)), t2d
    )


def greedy_sequence(target: Target, prompt: list[int], new_tokens: int) -> Features:
    """The target's greedy answer to `prompt` with its hidden states, by the model's own cache-less forward pass."""
    ids = list(prompt)
    for _ in range(new_tokens):
        _, last = target.hidden_states(torch.tensor([ids]))
        ids.append(int(target.argmax(last[0, -1])))
    features, last = target.hidden_states(torch.tensor([ids]))
    return Features(
        ids=torch.tensor(ids),
        mask=torch.tensor([False] * len(prompt) + [True] * new_tokens),
        features=features[0].clone(),
        last=last[0].clone(),
        argmax=target.argmax(last[0]).clone(),
    )


def batch_of(sequences: list[Features], drafter: Drafter) -> Batch:
    """`sequences` as one batch, padded on the right."""
    ids, mask, argmax, features, last = (
        torch.nn.utils.rnn.pad_sequence([getattr(s, name) for s in sequences], batch_first=True)
        for name in ("ids", "mask", "argmax", "features", "last")
    )
    return Batch(ids, features, last, taught_places(mask, drafter.t2d[argmax]))


def target_head(target: Target, drafter: Drafter) -> torch.Tensor:
    """The target's output head cut to the draft vocabulary [D, H]."""
    head: torch.Tensor = target.model.get_output_embeddings().weight.detach()[drafter.kept]
    return head
