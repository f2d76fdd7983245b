"""Generated commands: whatever vLLM takes comes out as something SGLang takes, with every flag accounted for."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from state.errors import UsageError
from tools.serving.flags import load, translate
from tools.serving.flags.items import STRUCTURED
from tools.serving.flags.table import Option

SGLANG, VLLM = load("sglang"), load("vllm")
NEWEST = load("sglang", "0.5.23")
WORDS = st.text(
    st.characters(codec="ascii", categories=("L", "N"), include_characters="-._/:= "), min_size=1, max_size=12
)
PLAIN = WORDS.filter(lambda word: word.strip() == word and not word.startswith("-") and "  " not in word)
METHODS = ["eagle", "eagle3", "mtp", "deepseek_mtp", "ngram", "draft_model", "dflash", "suffix", "medusa"]
SPECULATION = st.fixed_dictionaries(
    {"method": st.sampled_from(METHODS)},
    optional={
        "model": PLAIN, "num_speculative_tokens": st.integers(1, 9), "draft_tensor_parallel_size": st.integers(1, 8),
        "max_model_len": st.integers(1024, 9000), "prompt_lookup_max": st.integers(1, 8), "quantization": PLAIN,
    },
)  # fmt: skip
JSONS = st.dictionaries(PLAIN, st.one_of(st.integers(0, 99), st.booleans(), PLAIN), min_size=1, max_size=3)


def values(option: Option) -> st.SearchStrategy[list[str]]:
    """Values that vLLM's own parser takes for an option."""
    name = option.dest.replace("_", "-")
    if name == "speculative-config":
        return SPECULATION.map(lambda setting: [json.dumps(setting)])
    if name == "limit-mm-per-prompt":
        return st.just([json.dumps({"image": 2})])
    if name in STRUCTURED or option.type == "loads":
        return JSONS.map(lambda setting: [json.dumps(setting)])
    if option.choices:
        return st.sampled_from([[str(one)] for one in option.choices if one is not None])
    kind = option.type.rpartition(" ")[2]
    if kind == "int":
        return st.integers(1, 16).map(lambda number: [str(number)])
    if kind == "float":
        return st.sampled_from([["0.5"], ["0.83"], ["0.95"], ["1"]])
    if kind.startswith("human_readable_int"):
        return st.sampled_from([["4096"], ["32k"], ["8K"]])
    if name == "port":
        return st.integers(1024, 65535).map(lambda number: [str(number)])
    one = PLAIN if name != "lora-modules" else PLAIN.map(lambda word: f"a={word}")
    return st.lists(one, min_size=1, max_size=3) if option.many else one.map(lambda word: [word])


@st.composite
def flags(draw: st.DrawFn) -> list[tuple[str, list[str]]]:
    """Some options of vLLM with values, each once."""
    usable = [
        option for option in VLLM.options if option.flags and option.dest not in ("config", "model", "lora_modules")
    ]
    chosen = draw(st.lists(st.sampled_from(usable), max_size=8, unique_by=lambda option: option.dest))
    found = []
    for option in chosen:
        spellings = [flag for flag in option.flags if option.switch or flag.startswith("--")]
        flag = draw(st.sampled_from(spellings or list(option.flags)))
        if flag.startswith("--") and draw(st.booleans()):
            flag = "--" + flag[2:].replace("-", "_")
        found.append((flag, [] if option.switch else draw(values(option))))
    return found


def command(chosen: list[tuple[str, list[str]]], joined: bool) -> str:
    """A shell command of them."""
    words = ["vllm", "serve", "org/model"]
    for flag, told in chosen:
        words += [f"{flag}={told[0]}"] if joined and len(told) == 1 else [flag, *told]
    return shlex.join(words)


def arguments(text: str | None) -> list[str]:
    """SGLang's arguments of a command that came out."""
    words = shlex.split((text or "").replace("\\\n", " "))
    return words[words.index("sglang.launch_server") + 1 :]


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(flags(), st.booleans())
@example([("--served-model-name", ["::"])], False)
def test_what_vllm_takes_becomes_what_sglang_takes(chosen: list[tuple[str, list[str]]], joined: bool) -> None:
    """A generated command is translated, SGLang's parser takes the result, and each flag is said exactly once."""
    text = command(chosen, joined)
    found = translate(text)
    assert found.refused is None, (text, found.refused)
    assert found.parsed == SGLANG.parse(arguments(found.command))
    given = [entry.written.split(" ")[0] for entry in found.entries if entry.given and not entry.variable]
    for flag, _ in chosen:
        assert given.count(flag) == 1, (flag, given)
    assert len(given) == len(chosen) + 1


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(flags())
def test_the_newest_release_takes_it_too(chosen: list[tuple[str, list[str]]]) -> None:
    """The same holds for the options of the newest shipped table."""
    found = translate(command(chosen, False), version="0.5.23")
    assert found.refused is None
    assert found.parsed == NEWEST.parse(arguments(found.command))


PIECES = """vllm| serve |M|--|-tp| 2|'|"|{|}|$X|${A:-b}|$(|)| |docker run |vllm/vllm-openai|-e A=1|image: |- |command: |
ExecStart=|Environment=|--speculative-config|--hf-overrides|=|>|#|é|{{ x }}|bash -c |A=(|--config c.yaml|&a|*a|:|
non-default args: {""".replace("\n", "").split("|")
PIECES += ["\n", "\\\n", "\\", "\t", "\0", "|", "args:\n", "[Service]\n", "<<EOF\n", "EOF\n", "export A=1\n", "```\n"]
TEXTS = st.one_of(st.text(max_size=300), st.lists(st.sampled_from(PIECES), max_size=40).map("".join))


@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS)
@example("vllm serve M --speculative-config '{'")
@example("image: vllm\nargs: [&a x, *a]\n")
@example("[Service]\nExecStart=\nExecStart=vllm serve")
@example("docker run vllm/vllm-openai")
@example("vllm serve M --config c.yaml\n# c.yaml:\n- 1")
def test_any_text_is_answered(text: str) -> None:
    """Broken input of every kind gives a translation, a refusal or an error that says what is wanted."""
    try:
        found = translate(text)
    except UsageError:
        return
    told = found.as_json()
    assert json.loads(json.dumps(told)) == told
    assert (found.command is None) == (found.refused is not None)


@pytest.mark.parametrize("secret", ["hf_" + "a1B2" * 8, "sk-" + "x9Y8" * 8])
@pytest.mark.parametrize(
    "place",
    [
        "HF_TOKEN={} vllm serve M", "vllm serve M --api-key {}", "export T={}\nvllm serve M",
        "vllm serve M --hf-token {}", "KEY={}\nvllm serve M --api-key $KEY", "T={}\nHF_TOKEN=$T vllm serve M",
        "docker run -e X={} vllm/vllm-openai --model M", "curl -H 'Bearer {}' http://h\nvllm serve M",
        "vllm serve M --api-key={} other", "image: vllm/x\nargs: [--model, M]\nenv:\n- {{name: A, value: {}}}",
    ],
)  # fmt: skip
def test_no_secret_comes_out(secret: str, place: str) -> None:
    """Wherever a token stands, no part of the answer holds it."""
    told: dict[str, Any] = translate(place.format(secret)).as_json()
    assert secret not in json.dumps(told)
