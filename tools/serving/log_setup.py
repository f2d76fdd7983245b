"""Signs of settings that cannot work: arguments, ports, sizes, numbers of GPUs, adapters, speculation.

Sources: messages in vLLM 0.2.7, 0.6.3, 0.10.0, 0.23.0 and SGLang 0.2.15 to 0.5.14; argparse; uvicorn. What is wrong
with the model's files stands in `log_model`, with the installation in `log_install`.
"""

from __future__ import annotations

import re

from tools.serving.log_signs import Facts, cause


def _length(found: re.Match[str], facts: Facts) -> str:
    return (
        f"{found['asked']} tokens were asked for, the model's own limit is {found['own']}: LOWER --max-model-len "
        f"(SGLang --context-length) to {found['own']}, or give the model a RoPE scaling that carries further"
    )


SETUP = (
    cause(
        "port in use",
        ("ddress already in use", "ort is already in use", "is already in use. When running"),
        r"^.*bind on address \('[^']*', (?P<port>\d+)|Errno 98|Port is already in use|port (?P<other>\d+) is already "
        r"in use|"
        r"[Aa]ddress already in use",
        lambda found, facts: (
            f"port {found['port'] or found['other'] or 'of the server'} is taken, often by a server that was not "
            "stopped: "
            "`ss -ltnp` names who listens; end that one, or choose another --port"
        ),
    ),
    cause(
        "unrecognized arguments",
        (
            "unrecognized arguments:",
            "error: ambiguous option",
            "error: argument ",
            "the following arguments are required",
        ),
        r"error: (?P<what>.+)",
        "the command line is refused: `{what}`. Compare with `--help` of the installed version; flags were renamed "
        "between versions, and each engine has its own",
    ),
    cause(
        "quantization unsupported",
        (
            "nknown quantization method",
            "nvalid quantization method",
            "does not match the quantization method",
            "is not supported for quantization method",
            "Cannot find the config file for",
            "not support BitsAndBytes",
        ),
        None,
        "the --quantization or --dtype asked for does not fit the checkpoint: drop the flag and let the engine read "
        "quantization_config from the model's config.json",
    ),
    cause(
        "kv cache dtype unsupported",
        ("kv_cache_dtype", "kv-cache-dtype", "FP8 KV", "fp8 KV", "quantized kv-cache"),
        r"(?:Unsupported|[Nn]ot support(?:ed)?|only supports?|requires|not yet supported).*(?:kv[_-]cache|KV)|"
        r"(?:kv[_-]cache[_-]dtype|FP8 KV|fp8 KV).*(?:not (?:yet )?support|unsupported|not implemented)",
        "this attention backend cannot use that KV cache type: drop --kv-cache-dtype, or choose a backend that has it",
    ),
    cause(
        "disk full",
        ("No space left on device", "Disk quota exceeded"),
        r"No space left on device(?!.*/dev/shm)|Disk quota exceeded",
        "free room where the model cache lies (HF_HOME; `df -h`), or point it at a larger disk; delete the "
        "half-written files",
    ),
    cause(
        "tensor parallel size does not divide",
        ("must be divisible by", "is not divisible by", "not aligned with the quantized weight shape"),
        r"attention heads \((?P<whole>\d+)\) must be divisible by tensor parallel size \((?P<by>\d+)\)|AssertionError: "
        r"(?P<size>\d+) is not divisible by (?P<ranks>\d+)|not divisible by (?:weight quantization|min_thread)|"
        r"quantized weight",
        lambda found, facts: (
            f"{found['whole'] or found['size'] or 'a dimension of the model'} is not a multiple of "
            f"{found['by'] or found['ranks'] or 'the tensor parallel size'}: use a tensor parallel size that divides "
            "the "
            "heads and the vocabulary (a power of two at most), or pipeline parallelism for the rest"
        ),
    ),
    cause(
        "more gpus asked than present",
        (
            "larger than the number of available GPUs",
            "less than max local gpu count",
            "invalid device ordinal",
            "Cannot provide a placement group",
            "exceeds the total number of available GPUs",
            "number of required GPUs",
        ),
        r"(?:World size|[Tt]ensor parallel size) \((?P<asked>\d+)\).*GPUs \((?P<there>\d+)\)|gpu count|device ordinal|"
        r"placement group|available GPUs|required GPUs",
        lambda found, facts: (
            f"{found['asked'] or 'more'} GPUs are asked for and {found['there'] or 'fewer'} are visible: LOWER the "
            "tensor "
            "parallel size, or look at CUDA_VISIBLE_DEVICES, `docker --gpus` and `nvidia-smi -L`"
        ),
    ),
    cause(
        "context length larger than the model's",
        ("greater than the derived",),
        r"(?:max_model_len|context_length) \((?P<asked>\d+)\) is greater than the derived (?:max_model_len|"
        r"context_length) "
        r"\((?:[a-z_]+=)?(?P<own>\d{1,9}\.?\d*)",
        _length,
    ),
    cause(
        "max_num_batched_tokens too small",
        "is smaller than max_model_len",
        r"max_num_batched_tokens \((?P<have>\d+)\) is smaller than max_model_len \((?P<length>\d+)\)",
        "RAISE --max-num-batched-tokens from {have} to {length}, LOWER --max-model-len, or enable chunked prefill",
    ),
    cause(
        "lora error",
        ("LoRA", "lora"),
        r"LoRA rank (?P<rank>\d+) is greater than max_lora_rank|LoRA adapter .*(?:rank|incompatible|Failed)|Failed "
        r"to load "
        r"LoRA|does not support LoRA|LoRA is not enabled|Cannot find adapter config|No adapter found for|"
        r"[Ll]oading lora .* failed|max_lora_rank \(|specify both --max-lora-rank|Currently LoRA is only compatible",
        "an adapter does not fit what was reserved: RAISE --max-lora-rank to the adapter's rank, name its target "
        "modules "
        "(SGLang --lora-target-modules), enable LoRA, or fix the path of the adapter",
    ),
    cause(
        "draft vocabulary mismatch",
        ("same vocab", "draft vocab ("),
        r"(?:raft|target).*same vocab|draft vocab \(",
        "drafter and target must share one vocabulary here: take a drafter made for this very target, with `d2t` if "
        "its "
        "vocabulary is smaller",
    ),
    cause(
        "speculative config invalid",
        ("peculative", "EAGLE", "Eagle3", "num_speculative_tokens"),
        r"(?:[Uu]nsupported|[Uu]nknown|[Ii]nvalid) specul|does not support EAGLE3|Eagle3 is only supported|EAGLE\S* "
        r"is not "
        r"support|not compatible with .*speculative|speculative \w+ (?:is|are) (?:currently )?not supported|"
        r"num_speculative_tokens.*(?:must|requir|provided)|only supports topk=1 for speculative|speculative_\w+=\S+ "
        r"cannot be",
        "the speculative settings exclude each other or this model: check method, drafter and counts (SGLang with "
        "top-k 1: "
        "draft tokens = steps + 1; no pipeline parallelism), or start without speculation to see the rest works",
    ),
    cause(
        "speculative config invalid",
        ("no attribute 'set_e", "no attribute 'hot_token_id'", "no attribute 'get_embed"),
        r"'(?P<model>\w+)' object has no attribute '(?:set_embed\w*|set_eagle3_\w+|hot_token_id|get_embed\w*)'",
        "`{model}` is no drafter, or a target that cannot give its hidden states to one: name the drafter "
        "(--speculative-draft-model-path) and check its `architectures`",
        detail="not a drafter",
    ),
)
