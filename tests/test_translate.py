"""From vLLM's command lines to SGLang's: the public cases, value by value, and the rules behind them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from state.errors import UsageError
from tools.serving.flags import Translation, load, translate
from tools.serving.flags.report import CLASSES

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "translations.json").read_text("utf-8"))


def said(found: Translation) -> str:
    """All entries in one text."""
    return "\n".join(f"{entry.kind}: {entry.sentence()}" for entry in found.entries)


def parsed(text: str, **more: Any) -> dict[str, Any]:
    """The parsed values of a command that is not refused, without model, host and port."""
    found = translate(text, **more)
    assert found.parsed is not None, found.refused
    return {name: value for name, value in found.parsed.items() if name not in ("model_path", "host", "port")}


@pytest.mark.parametrize("case", CASES, ids=[f"{case['id']}-{case['about']}" for case in CASES])
def test_a_public_case_gives_the_values_that_experts_gave(case: dict[str, Any]) -> None:
    """Each collected command comes out with exactly the values that SGLang's own parser read from the right answer."""
    found = translate(case["input"])
    assert found.parsed == case["parsed"]
    assert found.env == case["env"]
    assert bool(found.refused) == case["refused"]
    for name in case["lost"]:
        assert any(name in line for line in found.no_counterpart), (name, found.no_counterpart)
    lost = " ".join(found.no_counterpart)
    assert not found.no_counterpart or case["lost"] or case["id"] in ("V02",), lost


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_output_is_taken_by_the_parser_of_the_newest_release_too(case: dict[str, Any]) -> None:
    """Whatever release is asked for, what comes out is checked against that release's options."""
    found = translate(case["input"], version="0.5.23")
    assert found.refused or found.parsed is not None
    assert found.sglang == "0.5.23"


def test_every_setting_of_a_command_is_said_exactly_once() -> None:
    """No flag and no variable is dropped silently, and none is told twice."""
    found = translate(
        "VLLM_USE_V1=1 HF_HOME=/h vllm serve M -tp 2 --max-model-len 4k --swap-space 4 --enable-prefix-caching"
        ' --gpu-memory-utilization 0.8 --unheard-of 1 --speculative-config \'{"method":"eagle3","model":"d"}\''
    )
    given = [entry.written.split("=")[0].split()[0] for entry in found.entries if entry.given]
    assert sorted(given) == sorted(
        ["VLLM_USE_V1", "HF_HOME", "MODEL", "-tp", "--max-model-len", "--swap-space", "--enable-prefix-caching",
         "--gpu-memory-utilization", "--unheard-of", "--speculative-config"]
    )  # fmt: skip
    assert {entry.kind for entry in found.entries} <= set(CLASSES)


@pytest.mark.parametrize(
    ("share", "fraction"), [("0.9", None), ("0.95", None), ("0.89", 0.84), ("0.5", 0.45), ("0.08", 0.04), ("1.0", None)]
)
def test_the_share_of_memory_is_another_quantity(share: str, fraction: float | None) -> None:
    """A high share is left to SGLang, a deliberate low one is carried over 0.05 lower, with the arithmetic said."""
    found = translate(f"vllm serve M --gpu-memory-utilization {share}")
    assert found.parsed is not None
    assert found.parsed.get("mem_fraction_static") == fraction
    assert "--gpu-memory-utilization" in "".join(found.warnings)


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ('{"method":"eagle3","model":"D","num_speculative_tokens":5}', ("EAGLE3", 5, 6, "D")),
        ('{"method":"mtp","num_speculative_tokens":1}', ("NEXTN", 1, 2, None)),
        ('{"method":"deepseek_mtp","num_speculative_tokens":2}', ("NEXTN", 2, 3, None)),
        ('{"model":"org/x-eagle3-y","num_speculative_tokens":3}', ("EAGLE3", 3, 4, "org/x-eagle3-y")),
        ('{"model":"org/small","num_speculative_tokens":3}', ("STANDALONE", 3, 4, "org/small")),
    ],
)
def test_k_drafted_tokens_are_k_steps_of_a_chain(setting: str, values: tuple[Any, ...]) -> None:
    """Speculation is told in full, because SGLang would choose its own tree otherwise."""
    shapes = [
        f"--speculative-config '{setting}'",
        f"--speculative_config='{setting}'",
        f"-sc '{setting}'",
        f"--speculative-config {setting}",
        "--speculative-config " + setting.replace('"', "").replace(":", ": ").replace(",", ", "),
        "--speculative-config '" + setting.replace('"', '\\"') + "'",
        *[" ".join(f"--speculative-config.{key} {value}" for key, value in json.loads(setting).items())],
    ]
    for shape in shapes:
        got = parsed(f"vllm serve M {shape} --max-num-seqs 8")
        assert got.get("speculative_algorithm") == values[0], shape
        steps = (got["speculative_num_steps"], got["speculative_eagle_topk"], got["speculative_num_draft_tokens"])
        assert steps == (values[1], 1, values[2])
        assert got.get("speculative_draft_model_path") == values[3]


def test_a_draft_is_known_by_its_configuration() -> None:
    """Where the draft's config.json can be read, it says what the missing method is."""
    setting = '\'{"model": "/d", "num_speculative_tokens": 3}\''
    look = {"/d": {"architectures": ["LlamaForCausalLMEagle3"], "max_position_embeddings": 2048}}
    found = translate(f"vllm serve M --speculative-config {setting}", look=look.get)
    assert found.parsed is not None
    assert found.parsed["speculative_algorithm"] == "EAGLE3"
    assert found.env == {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    short = translate(f"vllm serve M --max-model-len 2048 --speculative-config {setting}", look=look.get)
    assert short.env == {}


def test_a_method_without_counterpart_is_the_first_thing_said() -> None:
    """Speculation that SGLang does not have is left out whole, and leads the report."""
    found = translate('vllm serve M --swap-space 4 --speculative-config \'{"method":"suffix"}\'')
    assert "suffix" in found.no_counterpart[0]
    assert not any(name.startswith("speculative") for name in found.parsed or {})


def test_ranks_are_counted_together() -> None:
    """vLLM's limits are for a rank, SGLang's for all; with shared experts the world is one."""
    plain = parsed("vllm serve dense/model -dp 4 -tp 2 --max-num-seqs 100 --max-num-batched-tokens 4096")
    assert plain == {"dp_size": 4, "tp_size": 2, "max_running_requests": 400, "chunked_prefill_size": 4096}
    shared = parsed(
        "vllm serve M -dp 4 -tp 2 --enable-expert-parallel --max-num-seqs 100 --max-num-batched-tokens 4096"
    )
    assert shared == {
        "dp_size": 4, "tp_size": 8, "ep_size": 8, "enable_dp_attention": True, "max_running_requests": 400,
        "chunked_prefill_size": 16384,
    }  # fmt: skip


def test_several_machines_are_told_where_the_first_one_is() -> None:
    """A world of more GPUs than a machine has becomes several machines, and what must be filled in is said."""
    found = translate("vllm serve M -tp 16")
    assert found.parsed is not None
    assert found.parsed["nnodes"] == 2
    assert found.parsed["dist_init_addr"] == "HEAD:5000"
    assert "--node-rank" in said(found)
    told = parsed(
        "vllm serve M -tp 8 -pp 2 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29501 --headless"
    )
    assert told["dist_init_addr"] == "10.0.0.1:29501"
    assert told["node_rank"] == 1


def test_graph_sizes_are_requests_and_not_tokens() -> None:
    """With speculation a request has k + 1 tokens, so sizes are divided."""
    text = 'vllm serve M --speculative-config \'{"method":"mtp","num_speculative_tokens":3}\' --max-num-seqs 8'
    assert parsed(f"{text} --cudagraph-capture-sizes 4 8 16")["cuda_graph_bs_decode"] == [1, 2, 4]
    assert parsed(f"{text} --max-cudagraph-capture-size 512")["cuda_graph_max_bs_decode"] == 128
    assert parsed("vllm serve M --max-cudagraph-capture-size 512")["cuda_graph_max_bs_decode"] == 512


@pytest.mark.parametrize(("length", "value"), [("32k", 32000), ("32K", 32768), ("1m", 10**6), ("4096", 4096)])
def test_lengths_are_made_plain(length: str, value: int) -> None:
    """`32K` is a number to vLLM and an error to SGLang."""
    assert parsed(f"vllm serve M --max-model-len {length}") == {"context_length": value}


def test_adapters_need_what_sglang_wants_to_know() -> None:
    """Slots hold the base model too, and rank and modules are told where no adapter is loaded at the start."""
    assert parsed("vllm serve M --enable-lora --max-loras 2") == {
        "enable_lora": True, "max_loras_per_batch": 3, "max_lora_rank": 16, "lora_target_modules": ["all"],
    }  # fmt: skip
    named = parsed(
        'vllm serve M --enable-lora --lora-modules \'{"name": "a", "path": "/p", "base_model_name": "b"}\' c=/q'
    )
    assert named["lora_paths"] == ["a=/p", "c=/q"]


def test_what_sglang_would_refuse_at_its_start_is_not_written() -> None:
    """Chunks are whole pages; speculation that excludes adapters, pipelines or DP attention gives way, and says so."""
    assert parsed("vllm serve M --block-size 64 --max-num-batched-tokens 5000")["chunked_prefill_size"] == 4992
    drafting = '--speculative-config \'{"method":"eagle3","model":"D","num_speculative_tokens":3}\''
    found = translate(f"vllm serve M --enable-lora --lora-modules a=/p {drafting}")
    assert not any(name.startswith("speculative") for name in found.parsed or {})
    assert "NGRAM" in found.no_counterpart[0]
    staged = translate(f"vllm serve M -tp 2 -pp 2 {drafting}")
    assert staged.parsed is not None
    assert staged.parsed["tp_size"] == 4
    assert "pp_size" not in staged.parsed
    assert "Two lawful choices" in said(staged)


def test_what_a_newer_release_has_is_carried_over() -> None:
    """The options of the release decide: template arguments are lost in 0.5.14 and kept in 0.5.23."""
    text = "vllm serve M --default-chat-template-kwargs '{\"enable_thinking\": false}'"
    assert "enable_thinking" in translate(text).no_counterpart[0]
    assert parsed(text, version="0.5.23") == {"default_chat_template_kwargs": {"enable_thinking": False}}


def test_a_flag_on_its_way_out_is_said() -> None:
    """What a newer release takes but calls deprecated is told, with what it wants instead."""
    found = translate("vllm serve M -dp 2 -tp 2 --enable-expert-parallel", version="0.5.23")
    assert "--attn-dp-size" in " ".join(found.warnings)
    assert "deprecated" not in said(translate("vllm serve M -dp 2 -tp 2 --enable-expert-parallel"))


def test_a_secret_is_never_repeated() -> None:
    """Keys and tokens are in no part of what comes out, and the command takes them from the environment."""
    texts = [
        "HF_TOKEN=hf_abcdefghijklmnopqrstuv vllm serve M --api-key sk-1234567890abcdefghij",
        "docker run -e HF_TOKEN=hf_abcdefghijklmnopqrstuv -e VLLM_API_KEY=sk-1234567890abcdefghij "
        "vllm/vllm-openai --model M",
        "[Service]\nEnvironment=HF_TOKEN=hf_abcdefghijklmnopqrstuv\n"
        "ExecStart=vllm serve M --api-key sk-1234567890abcdefghij\n",
        "API_KEY=abcdefghij\nvllm serve M --api-key $API_KEY",
        "services:\n  a:\n    image: vllm/vllm-openai\n    environment: {HF_TOKEN: hf_abcdefghijklmnopqrstuv}\n"
        "    command: --model M --api-key sk-1234567890abcdefghij\n",
    ]
    for text in texts:
        found = translate(text)
        everything = json.dumps(found.as_json())
        assert "abcdefghij" not in everything, text
        assert "API_KEY" in everything


def test_an_unknown_flag_that_sglang_would_take_is_refused() -> None:
    """A broken line must not become a running one with another meaning."""
    found = translate("vllm serve M --lora-path org/adapter")
    assert found.exit_code == 20
    assert found.command is None
    assert found.draft is not None
    assert "--lora-paths" in (found.refused or "")


def test_unreadable_settings_are_refused_with_the_form_to_paste() -> None:
    """What cannot be repaired is not guessed."""
    found = translate("vllm serve M --speculative-config '{method eagle'")
    assert found.exit_code == 20
    assert '"num_speculative_tokens"' in (found.refused or "")


def test_exit_codes_tell_clean_from_changed() -> None:
    """0 is for a command in which nothing is lost and nothing means something else."""
    assert translate("vllm serve M --port 1234 -tp 2").exit_code == 0
    assert translate("vllm serve M --gpu-memory-utilization 0.5").exit_code == 10
    assert translate("vllm serve --port 1").exit_code == 20


def test_a_text_without_vllm_is_an_error_that_says_what_is_wanted() -> None:
    """Nothing found is no translation."""
    with pytest.raises(UsageError, match="no vLLM start"):
        translate("echo hello")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("", "an empty text"),
        ("Serve it, please", "`Serve it, please`"),
        ("# Notes\n\nType `turnout translate 'vllm serve …'`.\n", "2 lines, of which one reads `Type "),
        ("Serve with vLLM\nas `vllm serve ...` does", "2 lines, of which one reads `Serve with vLLM`"),
    ],
)
def test_prose_is_refused_with_what_was_seen(text: str, seen: str) -> None:
    """A text that only speaks of vLLM is not taken for a start, and the error shows the line that speaks of it."""
    with pytest.raises(UsageError, match="no vLLM start") as refused:
        translate(text)
    assert seen in refused.value.message
    assert "`vllm serve ...`" in (refused.value.hint or "")


def test_an_error_shows_no_secret() -> None:
    """The line that is shown keeps a token to itself."""
    with pytest.raises(UsageError) as refused:
        translate("export HF_TOKEN=hf_abcdefgh1234567890 # for vllm")
    assert "hf_abcd" not in refused.value.message


def test_a_misspelt_flag_is_told_with_the_one_that_is_near() -> None:
    """The line of a flag that no vLLM knows names the nearest one, and none where nothing is near."""
    lines = translate("vllm serve M --max_model_lenn 300 --gpu-memory-utilisation 0.8 --frobnicate 3").no_counterpart
    meant = {line.split()[0]: line.partition("did you mean ")[2] for line in lines}
    assert meant == {
        "--max_model_lenn": "--max-model-len?)", "--gpu-memory-utilisation": "--gpu-memory-utilization?)",
        "--frobnicate": "",
    }  # fmt: skip


@pytest.mark.parametrize("version", ["9.9", "0.5.20", "0.5.14.post1"])
def test_a_version_without_a_table_is_a_warning(version: str) -> None:
    """The nearest older table is taken, and the report says so, with the versions that there are tables for."""
    found = translate("vllm serve M", version=version)
    (told,) = [warning for warning in found.warnings if warning.startswith(f"SGLang {version} -> ")]
    assert f"the options of {found.sglang}" in told
    assert "0.5.14, 0.5.23" in told
    assert found.exit_code == 10
    assert translate("vllm serve M", version="0.5.23").exit_code == 0


def test_the_parser_of_a_table_behaves_like_the_engines() -> None:
    """Abbreviations, choices and human sizes are those of SGLang's own argparse."""
    table = load("sglang", "0.5.14")
    assert table.parse(["--model-path", "M", "--context-len", "32k"]) == {"model_path": "M", "context_length": 32000}
    assert table.abbreviated("--lora-path") == ("--lora-paths",)
    assert load("sglang", "0.5.20").version == "0.5.14"
    with pytest.raises(UsageError):
        load("sglang", "0.4.0")
