"""The words that differ between vLLM and SGLang, as tables: flags, values, what needs no flag, what is lost.

Written against the options of vLLM 0.6.6 to 0.33.0 and SGLang 0.5.14 and 0.5.23 (`tables/`); a test holds every name
against them.
"""

from __future__ import annotations

COPIES = {
    "model": "--model-path",
    "tokenizer": "--tokenizer-path",
    "skip-tokenizer-init": "--skip-tokenizer-init",
    "trust-remote-code": "--trust-remote-code",
    "revision": "--revision",
    "download-dir": "--download-dir",
    "dtype": "--dtype",
    "port": "--port",
    "root-path": "--fastapi-root-path",
    "ssl-keyfile": "--ssl-keyfile",
    "ssl-certfile": "--ssl-certfile",
    "ssl-ca-certs": "--ssl-ca-certs",
    "enable-ssl-refresh": "--enable-ssl-refresh",
    "uvicorn-log-level": "--log-level-http",
    "tool-server": "--tool-server",
    "config-format": "--model-config-parser",
    "model-loader-extra-config": "--model-loader-extra-config",
    "stream-interval": "--stream-interval",
    "disable-custom-all-reduce": "--disable-custom-all-reduce",
    "enable-eplb": "--enable-eplb",
    "enable-prompt-tokens-details": "--enable-cache-report",
    "enable-force-include-usage": "--stream-response-default-include-usage",
    "enable-sleep-mode": "--enable-memory-saver",
    "kv-events-config": "--kv-events-config",
    "cpu-offload-gb": "--cpu-offload-gb",
    "block-size": "--page-size",
    "pipeline-parallel-size": "--pp-size",
    "max-num-queued-reqs": "--max-queued-requests",
    "num-redundant-experts": "--ep-num-redundant-experts",
    "eplb-step-interval": "--eplb-rebalance-num-iterations",
    "distributed-timeout-seconds": "--dist-timeout",
    "mamba-ssm-cache-dtype": "--mamba-ssm-dtype",
    "guided-decoding-disable-any-whitespace": "--constrained-json-disable-any-whitespace",
    "enable-multimodal-encoder-data-parallel": "--mm-enable-dp-encoder",
    "enable-layerwise-nvtx-tracing": "--enable-layerwise-nvtx-marker",
    "enable-lora": "--enable-lora",
    "max-lora-rank": "--max-lora-rank",
    "spec-model": "--speculative-draft-model-path",
}
"""Flags that carry their value over as it is."""

DEFAULTS = {
    "enable-reasoning": "SGLang parses thoughts as soon as a reasoning parser is named",
    "chat-template-content-format": "SGLang finds it in the template",
    "disable-frontend-multiprocessing": "SGLang always has processes of its own",
    "use-tqdm-on-load": "a matter of the log alone",
    "lora-dtype": "SGLang serves adapters in the model's dtype",
    "lora-extra-vocab-size": "SGLang finds added tokens in the adapter",
    "enable-prompt-embeds": "SGLang takes embeddings with a request",
    "numa-bind": "SGLang finds the NUMA node of each GPU itself",
    "prefix-caching-hash-algo": "SGLang's radix cache compares tokens, it hashes nothing",
    "skip-mm-profiling": "SGLang does not profile with media",
    "enable-offline-docs": "SGLang serves no offline documentation page; nothing depends on it",
    "disable-async-output-proc": "SGLang's overlap schedule does it another way",
    "max-parallel-loading-workers": "SGLang loads in its own order",
    "safetensors-load-strategy": "SGLang reads safetensors in its own order",
}
"""Flags that need none in SGLang, and why."""

LOSSES: dict[str, tuple[str, int]] = {
    "uds": ("SGLang does not listen on a unix socket: put a proxy in front", 8),
    "middleware": ("SGLang loads no middleware: put a proxy in front, above all when it checks access", 9),
    "allowed-origins": ("SGLang allows every origin: restrict it in a proxy", 7),
    "allowed-methods": ("SGLang has no CORS settings", 4),
    "allowed-headers": ("SGLang has no CORS settings", 4),
    "allow-credentials": ("SGLang has no CORS settings", 4),
    "ssl-cert-reqs": ("SGLang does not ask clients for certificates: put a proxy in front", 8),
    "ssl-ciphers": ("SGLang takes the library's ciphers", 4),
    "max-logprobs": ("SGLang puts no limit on the logprobs of a request", 2),
    "allowed-local-media-path": ("requests may name local files without this limit: check before exposing it", 7),
    "allowed-media-domains": ("SGLang does not limit where media are fetched from", 7),
    "swap-space": ("SGLang swaps no KV cache; near: --enable-hierarchical-cache --hicache-size", 1),
    "preemption-mode": ("SGLang retracts requests by itself", 1),
    "num-scheduler-steps": ("SGLang overlaps scheduling instead; nothing to set", 1),
    "multi-step-stream-outputs": ("SGLang streams every step; see --stream-interval", 1),
    "use-v2-block-manager": ("a switch of an old vLLM", 0),
    "optimization-level": ("vLLM's compiler levels do not exist in SGLang", 1),
    "performance-mode": ("SGLang has no such switch; measure instead", 2),
    "compilation-config": ("vLLM's compiler does not exist in SGLang; its CUDA graphs are on by default", 1),
    "language-model-only": ("SGLang's --language-only is a disaggregation role, not this", 3),
    "disable-sliding-window": ("SGLang follows the model's window", 4),
    "max-log-len": ("SGLang cuts logged requests by --log-requests-level, not by length", 1),
    "mm-processor-cache-type": ("SGLang keeps processed media in its own way", 1),
    "mm-processor-cache-gb": ("SGLang keeps processed media in its own way", 1),
    "disable-mm-preprocessor-cache": ("SGLang keeps processed media in its own way", 1),
    "override-generation-config": (
        "SGLang has no forced sampling defaults: --preferred-sampling-params is only told to clients; put the values "
        "into generation_config.json of the model folder",
        6,
    ),
    "response-role": ("SGLang answers as `assistant`", 3),
    "return-tokens-as-token-ids": ("SGLang returns tokens as text", 4),
    "tool-parser-plugin": ("SGLang loads no parser plugins", 8),
    "reasoning-parser-plugin": ("SGLang loads no parser plugins", 8),
    "logits-processors": ("SGLang takes logit processors with a request alone", 7),
    "logits-processor-pattern": ("SGLang takes logit processors with a request alone", 5),
    "fully-sharded-loras": ("SGLang shards adapters in its own way", 1),
    "max-seq-len-to-capture": ("SGLang's graphs have no limit of length", 0),
    "disable-hybrid-kv-cache-manager": ("SGLang has its own pools for hybrid models", 1),
    "code-revision": ("SGLang takes one revision for all: pin a local copy", 4),
    "tokenizer-revision": ("SGLang takes one revision for all: pin a local copy", 4),
    "enable-request-id-headers": ("SGLang sends no X-Request-Id", 3),
    "disable-fastapi-docs": ("SGLang serves /docs", 2),
    "disable-cascade-attn": ("SGLang's kernels share prefixes in their own way", 0),
    "num-lookahead-slots": ("SGLang computes it", 0),
    "max-num-partial-prefills": ("SGLang chunks one prefill at a time", 3),
    "max-long-partial-prefills": ("SGLang chunks one prefill at a time", 3),
    "scheduler-delay-factor": ("SGLang has --schedule-conservativeness, another quantity", 2),
    "scheduler-cls": ("SGLang loads no scheduler of another's", 6),
    "worker-cls": ("SGLang loads no worker of another's", 6),
    "worker-extension-cls": ("SGLang loads no worker of another's", 6),
    "hf-token": ("give HF_TOKEN in the environment", 4),
    "ray-workers-use-nsight": ("a matter of profiling alone", 0),
    "enable-dbo": ("near: --enable-two-batch-overlap, for expert parallel models", 3),
    "guided-decoding-disable-fallback": ("SGLang does not fall back", 1),
    "default-mm-loras": ("SGLang picks no adapter by the kind of input", 6),
    "additional-config": ("settings of a plugin of vLLM", 3),
    "enable-server-load-tracking": ("SGLang tells its load at /get_load", 1),
    "kv-sharing-fast-prefill": ("vLLM's way of sharing KV between layers", 1),
    "io-processor-plugin": ("SGLang loads no plugins of vLLM", 7),
    "allow-deprecated-quantization": ("SGLang has no such guard", 0),
    "mamba-cache-dtype": ("near: --mamba-ssm-dtype", 2),
    "data-parallel-hybrid-lb": ("SGLang balances over all ranks, or through its router", 3),
    "data-parallel-external-lb": ("SGLang balances over all ranks, or through its router", 3),
    "logprobs-mode": ("SGLang's logprobs are those of the model's logits: compare before relying on them", 5),
    "calculate-kv-scales": (
        "SGLang takes the scales of the checkpoint, else 1.0: compare the answers",
        5,
    ),
    "weight-transfer-config": ("another protocol: SGLang has /update_weights_from_distributed", 7),
    "enable-log-outputs": ("near: --log-requests --log-requests-level 3", 2),
    "log-config-file": ("SGLang reads a logging configuration from SGLANG_LOGGING_CONFIG_PATH", 2),
    "hf-config-path": ("SGLang reads the configuration of the model's own folder: put it there", 6),
    "pooler-config": ("SGLang pools as the model says", 6),
    "override-pooler-config": ("SGLang pools as the model says", 6),
    "collect-detailed-traces": ("near: --enable-trace --trace-modules", 2),
    "kv-cache-metrics": ("near: --enable-metrics", 2),
    "media-io-kwargs": ("near: --mm-process-config", 4),
    "trust-request-chat-template": ("SGLang takes the server's template alone", 3),
    "device-ids": ("choose cards with CUDA_VISIBLE_DEVICES or --base-gpu-id", 6),
    "expert-placement-strategy": ("near: --init-expert-location", 2),
    "enable-elastic-ep": ("near: --elastic-ep-backend", 4),
    "watchdog-config": ("near: --watchdog-timeout", 2),
    "prefill-context-parallel-size": ("near: --enable-prefill-cp --attn-cp-size", 5),
    "shutdown-timeout": ("SGLang ends when its requests have ended", 2),
    "model-class-overrides": ("near: SGLANG_EXTERNAL_MODEL_PACKAGE", 6),
    "enable-prompt-adapter": ("SGLang serves no prompt adapters", 7),
    "prompt-adapters": ("SGLang serves no prompt adapters", 7),
    "tokens-only": ("near: --skip-tokenizer-init", 5),
    "reasoning-config": ("a matter of requests in SGLang", 3),
    "quantization-config": ("SGLang reads it from the checkpoint", 5),
    "grpc": ("another protocol: --smg-grpc-mode or --grpc-mode are not vLLM's", 8),
}
"""What SGLang does not have, what that costs, and how much (0 nothing, 9 said first)."""

NEWER = {
    "language-model-only", "allowed-media-domains", "trust-request-chat-template", "watermark-config",
    "dcp-comm-backend", "enable-mamba-cache-stochastic-rounding", "mamba-cache-philox-rounds",
}  # fmt: skip
"""Lost in older releases of SGLang; newer ones have a flag of the same name and meaning."""

TOOL_PARSERS = {
    "deepseek_v3": "deepseekv3", "deepseek_v31": "deepseekv31", "deepseek_v32": "deepseekv32",
    "deepseek_v4": "deepseekv4", "llama3_json": "llama3", "llama4_json": "llama3", "llama4_pythonic": "pythonic",
    "openai": "gpt-oss", "minimax_m2": "minimax-m2", "hunyuan_a13b": "hunyuan", "apertus": "apertus2509",
    "qwen3_xml": "qwen3_coder", "qwen": "qwen", "interns1": "interns1",
}  # fmt: skip
REASONING_PARSERS = {
    "deepseek_r1": "deepseek-r1", "deepseek_v3": "deepseek-v3", "deepseek_v4": "deepseek-v4",
    "openai_gptoss": "gpt-oss", "minimax_m2": "minimax", "minimax_m2_append_think": "minimax-append-think",
    "hunyuan_a13b": "hunyuan", "nemotron_v3": "nemotron_3",
}  # fmt: skip
ATTENTION = {
    "FLASH_ATTN": "fa3", "FLASH_ATTN_VLLM_V1": "fa3", "FLASHINFER": "flashinfer", "FLASHINFER_VLLM_V1": "flashinfer",
    "TRITON_ATTN": "triton", "TRITON_ATTN_VLLM_V1": "triton", "FLASHMLA": "flashmla", "CUTLASS_MLA": "cutlass_mla",
    "FLASHINFER_MLA": "trtllm_mla", "FLASH_ATTN_MLA": "fa3", "TRITON_MLA": "triton", "FLEX_ATTENTION": "flex_attention",
    "TORCH_SDPA": "torch_native", "ROCM_AITER_FA": "aiter", "ROCM_AITER_MLA": "aiter", "ROCM_FLASH": "aiter",
}  # fmt: skip
MOE_RUNNER = {
    "auto": "auto", "triton": "triton", "cutlass": "cutlass", "deep_gemm": "deep_gemm", "marlin": "marlin",
    "flashinfer_trtllm": "flashinfer_trtllm", "flashinfer_cutlass": "flashinfer_cutlass",
    "flashinfer_cutedsl": "flashinfer_cutedsl", "aiter": "aiter",
}  # fmt: skip
MOE_A2A = {
    "deepep_high_throughput": "deepep", "deepep_low_latency": "deepep", "deepep": "deepep",
    "flashinfer_all2allv": "flashinfer", "flashinfer_nvlink_one_sided": "flashinfer",
    "flashinfer_nvlink_two_sided": "flashinfer", "nixl_ep": "nixl", "nixl": "nixl", "mori": "mori",
    "allgather_reducescatter": "none", "naive": "none",
}  # fmt: skip
METHODS = {
    "eagle": "EAGLE", "eagle3": "EAGLE3", "draft_model": "STANDALONE", "ngram": "NGRAM", "ngram_gpu": "NGRAM",
    "dflash": "DFLASH", "dspark": "DSPARK", "mtp": "NEXTN",
}  # fmt: skip
"""Speculation by vLLM's method; every `..._mtp` is NEXTN too."""
