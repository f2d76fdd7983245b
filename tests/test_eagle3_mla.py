"""Targets and drafters with latent attention, in the shape of DeepSeek-V3 and Kimi."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, LlamaConfig  # noqa: E402
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention  # noqa: E402

from playbooks.eagle3.payload.attention import attend, heads_first  # noqa: E402
from playbooks.eagle3.payload.drafter_config import boundaries_of, drafter_config, layer_ids  # noqa: E402
from playbooks.eagle3.payload.errors import StepError  # noqa: E402
from playbooks.eagle3.payload.export import load_drafter, save_drafter  # noqa: E402
from playbooks.eagle3.payload.mla import LatentAttention  # noqa: E402
from playbooks.eagle3.payload.model import Drafter  # noqa: E402
from playbooks.eagle3.payload.objective import unrolled_loss  # noqa: E402
from playbooks.eagle3.payload.shape import Shape  # noqa: E402
from playbooks.eagle3.payload.target import Target  # noqa: E402
from tests.eagle3_helpers import VOCAB, batch_of, greedy_sequence, target_head  # noqa: E402

pytestmark = pytest.mark.train
YARN = {
    "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 64,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip


def settings(**more) -> DeepseekV3Config:
    return DeepseekV3Config(
        **{
            "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 4,
            "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
            "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_parameters": YARN, "initializer_range": 0.3,
            "bos_token_id": 1, "eos_token_id": 2, "num_nextn_predict_layers": 0, **more,
        }
    )  # fmt: skip


def latent_target() -> Target:
    torch.manual_seed(0)
    return Target(DeepseekV3ForCausalLM(settings()).eval(), (1, 2, 3))


def latent_drafter(target: Target, attention: str = "mla") -> Drafter:
    torch.manual_seed(1)
    embedding = target.model.get_input_embeddings().weight.detach().clone()
    every = torch.zeros(VOCAB, dtype=torch.int64), torch.ones(VOCAB, dtype=torch.bool)
    return Drafter(drafter_config(target.model.config, VOCAB, (2, 1, 3), attention), embedding, *every)


@pytest.mark.parametrize("rope", [YARN, {"rope_type": "default", "rope_theta": 5000.0}], ids=["yarn", "plain"])
def test_latent_attention_is_the_one_of_transformers(rope: dict) -> None:
    """Over vectors of the same width, with the same weights, both give the same heads."""
    wide = settings(hidden_size=64, rope_parameters=rope)
    torch.manual_seed(0)
    theirs = DeepseekV3Attention(wide, 0).eval()
    ours = LatentAttention(settings(rope_parameters=rope))
    theirs.o_proj = torch.nn.Identity()
    weights = {name: t for name, t in theirs.state_dict().items() if not name.startswith("o_proj")}
    ours.load_state_dict({**weights, "o_proj.weight": torch.zeros(32, 24)})
    x, positions = torch.randn(2, 11, 64), torch.arange(11)[None]
    drafter = latent_drafter(latent_target())
    drafter.rope = type(drafter.rope)(settings(rope_parameters=rope))
    rope_parts = drafter.rope(x, positions)
    mask = torch.full((11, 11), float("-inf")).triu(1)[None, None]
    wanted, _ = theirs(hidden_states=x, position_embeddings=rope_parts, attention_mask=mask)
    flat = tuple(part.expand(2, -1, -1).flatten(0, 1) for part in rope_parts)
    q, k, v = (heads_first(part, 2) for part in ours.project(x.flatten(0, 1), flat))
    found = attend(q, [(k, v)])[..., : ours.value].transpose(1, 2).flatten(2)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("attention", ["mla", "llama"])
def test_a_drafter_of_a_latent_target_learns(attention: str) -> None:
    """Either kind of drafter is trained on a mixture-of-experts target with latent attention, and its loss falls."""
    target = latent_target()
    drafter = latent_drafter(target, attention)
    batch = batch_of([greedy_sequence(target, [1, 9, 17], 24)], drafter)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=5e-3)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = unrolled_loss(drafter, target_head(target, drafter), batch, 3, 0.8).mean
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.75 * losses[0]


def test_unrolled_steps_of_a_latent_drafter_are_a_chain_grown_token_by_token() -> None:
    """Training-time test over latent attention equals the drafting that serving does."""
    target = latent_target()
    drafter = latent_drafter(target)
    ids = torch.randint(3, VOCAB, (1, 12))
    features, _ = target.hidden_states(ids)
    steps = list(drafter.unroll(ids, features, 3))
    root = 5
    hidden, tokens = drafter.fc(features[:, : root + 1]), ids[0, 1 : root + 2]
    for step in range(3):
        newest = drafter.extend(tokens, hidden)[:, -1:]
        torch.testing.assert_close(steps[step][:, root], newest[:, 0], atol=1e-5, rtol=1e-4)
        tokens = torch.cat([tokens, ids[0, root + 2 + step, None]])
        hidden = torch.cat([hidden, newest], dim=1)


def test_the_export_has_the_names_and_sizes_that_sglang_reads(tmp_path: Path) -> None:
    """`Eagle3DeepseekV2ForCausalLM` finds every tensor that it looks for, and the folder comes back unchanged."""
    target = latent_target()
    drafter = latent_drafter(target)
    save_drafter(drafter, tmp_path, torch.float32)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["Eagle3DeepseekV2ForCausalLM"]
    assert config["q_lora_rank"] == 24
    attention = {n.removeprefix("midlayer.self_attn.") for n in drafter.state_dict() if "self_attn" in n}
    assert attention == {
        "q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight", "kv_a_proj_with_mqa.weight",
        "kv_a_layernorm.weight", "kv_b_proj.weight", "o_proj.weight",
    }  # fmt: skip
    again = load_drafter(tmp_path, drafter.embedding)
    assert all(t.equal(again.state_dict()[n]) for n, t in drafter.state_dict().items())
    assert again.boundaries == (2, 1, 3)


def test_layer_ids_are_written_as_each_family_of_targets_reads_them() -> None:
    """SGLang adds one to every id; for latent targets only when the first is 1: so what is written differs."""
    latent, plain = settings(), LlamaConfig()
    assert layer_ids(plain, (2, 30, 58)) == [1, 29, 57]
    assert layer_ids(latent, (2, 30, 58)) == [1, 29, 57]
    assert layer_ids(latent, (3, 30, 58)) == [3, 30, 58]
    with pytest.raises(StepError, match="cannot be told"):
        layer_ids(latent, (1, 30, 58))
    assert boundaries_of({"target_boundaries": [3, 30, 58], "eagle_config": {}}) == (3, 30, 58)


def test_the_size_of_a_drafter_is_known_without_building_it() -> None:
    """The estimate counts the very weights that the drafter has."""
    target = latent_target()
    shape = Shape(target.model.config.to_dict(), "the test")
    for attention in ("mla", "llama"):
        built = sum(p.numel() for p in latent_drafter(target, attention).parameters())
        _, counted = shape.drafter(VOCAB, attention == "mla")
        assert abs(built - counted) < 0.02 * built
    assert abs(shape.weights - sum(p.numel() for p in target.model.parameters())) < 0.02 * shape.weights


def test_latent_attention_for_a_target_without_it_is_refused() -> None:
    """The setting that cannot be met names itself and what to set."""
    with pytest.raises(StepError, match=r"`draft.attention` is `mla`"):
        drafter_config(settings(q_lora_rank=None), VOCAB, (1, 2, 3), "mla")
