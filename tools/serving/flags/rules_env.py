"""Rules for the environment: variables of vLLM by what they become, and the many that have no counterpart.

Variables that are not vLLM's (CUDA, NCCL, Hugging Face, the shell's) stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tools.serving.flags.names import ATTENTION, MOE_A2A
from tools.serving.flags.report import HIDDEN, Entry, is_secret
from tools.serving.flags.work import Work, open_value, whole

RENAMED = {
    "VLLM_USE_MODELSCOPE": "SGLANG_USE_MODELSCOPE",
    "VLLM_HOST_IP": "SGLANG_HOST_IP",
    "VLLM_CACHE_ROOT": "SGLANG_CACHE_DIR",
    "VLLM_USE_DEEP_GEMM": "SGLANG_ENABLE_JIT_DEEPGEMM",
    "VLLM_PP_LAYER_PARTITION": "SGLANG_PP_LAYER_PARTITION",
    "VLLM_SKIP_P2P_CHECK": "SGLANG_SKIP_P2P_CHECK",
    "VLLM_TORCH_PROFILER_DIR": "SGLANG_TORCH_PROFILER_DIR",
}
NEEDLESS = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "SGLang has /load_lora_adapter whenever LoRA is on (not /v1/load_lora_adapter)",
    "VLLM_SERVER_DEV_MODE": "SGLang offers its endpoints for development always",
    "VLLM_NO_USAGE_STATS": "SGLang sends no usage statistics",
    "VLLM_DO_NOT_TRACK": "SGLang sends no usage statistics",
}
LOST = {
    "VLLM_USE_V1": "a switch of vLLM's own engines",
    "VLLM_WORKER_MULTIPROC_METHOD": "SGLang always spawns",
    "VLLM_USE_V2_MODEL_RUNNER": "vLLM's own; it matters for which layers a drafter is fed, so measure acceptance",
    "VLLM_ENGINE_READY_TIMEOUT_S": "SGLang's start has no such limit",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "near: --disaggregation-bootstrap-port",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "SGLang's bootstrap server tells the address",
    "VLLM_RPC_TIMEOUT": "SGLang has --watchdog-timeout",
    "VLLM_GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS": "no such switch in SGLang",
}
_ENGINE_PATH = re.compile(r"(?i)vllm")


def variable(work: Work, name: str, value: str, *, ours: bool, outside: bool = False) -> str | None:
    """Say what becomes of a variable. Returns its new text `NAME=VALUE`, "" when it goes, `None` when it stays.

    `ours` is a variable of the command's own prefix, which is therefore told in `env`; of one that comes from `outside`
    the value is a reference.
    """
    if outside:
        return _outside(work, name, value)
    hidden = HIDDEN if is_secret(name, value) else value
    written = f"{name}={hidden}"
    if name.startswith("VLLM_"):
        return _vllm(work, name, value, written)
    if name == "LMCACHE_CONFIG_FILE" and "--enable-lmcache" in work.flags:
        _tell(work, "renamed", written, work.emit("--lmcache-config-file", value))
        return ""
    entry = _tell(work, "same", written, written)
    if hidden == HIDDEN:
        instead = HIDDEN if work.form in ("k8s", "kserve", "systemd") else f"${name}"
        work.secrets[value] = instead
        place = {"k8s": "a Secret", "kserve": "a Secret", "systemd": "an EnvironmentFile"}
        entry.notes.append(
            f"a secret in plain sight, and not repeated here: take {name} from {place.get(work.form, 'outside')}"
        )
    if name in ("PATH", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH") and _ENGINE_PATH.search(value):
        entry.kind, entry.why = "suspicious", "it points into vLLM's installation: give SGLang's own"
    if ours:
        secret = is_secret(name, "?")
        work.settings.setdefault(name, f"${name}" if hidden == HIDDEN else value if secret else work.resolve(value))
    return f"{name}={instead}" if hidden == HIDDEN else None


def _outside(work: Work, name: str, reference: str) -> str | None:
    """A variable whose value is elsewhere: it stays, and vLLM's key becomes SGLang's argument by reference."""
    written = f"{name} (from outside)"
    if name == "VLLM_API_KEY" and "--api-key" not in work.flags:
        _tell(work, "renamed", written, work.emit("--api-key", reference))
    elif name.startswith("VLLM_"):
        _tell(work, "none", written, "", "its value is not known here; SGLang does not read it", cost=4)
    else:
        _tell(work, "same", written, written)
    return None


def _tell(work: Work, kind: str, written: str, result: str = "", why: str = "", cost: int = 2) -> Entry:
    entry = Entry(kind, written, result, why, cost, variable=True)
    work.entries.append(entry)
    return entry


def _vllm(work: Work, name: str, value: str, written: str) -> str:
    plain = work.resolve(value)
    if name in RENAMED:
        work.settings[RENAMED[name]] = plain
        _tell(work, "renamed", written, f"{RENAMED[name]}={plain}")
        return f"{RENAMED[name]}={value}"
    if name in _SPECIAL:
        return _SPECIAL[name](work, plain, written)
    if name in NEEDLESS:
        _tell(work, "same", written, "", NEEDLESS[name])
    else:
        _tell(work, "none", written, "", LOST.get(name, "a variable of vLLM alone"), cost=2)
    return ""


def _flag(work: Work, written: str, flag: str, *values: str) -> str:
    if flag in work.flags:
        _tell(work, "same", written, "", f"{flag} is given, and wins")
    elif not work.takes(flag, values[0] if values else None):
        _tell(work, "none", written, "", f"{flag} of SGLang {work.table.version} does not take it", cost=3)
    else:
        _tell(work, "renamed", written, work.emit(flag, *values))
    return ""


def _api_key(work: Work, value: str, written: str) -> str:
    if "--api-key" in work.flags:
        _tell(work, "same", written, "", "--api-key is given, and wins")
        return ""
    if open_value(value):
        _tell(work, "renamed", written, work.emit("--api-key", value))
        return ""
    if is_secret("api-key", value):
        work.secrets[value] = "$API_KEY"
    key = {"k8s": "$(API_KEY)", "kserve": "$(API_KEY)", "compose": "${API_KEY}", "systemd": "${API_KEY}"}
    entry = _tell(work, "renamed", written, work.emit("--api-key", key.get(work.form, "$API_KEY")))
    entry.notes.append("set API_KEY in the environment to the key")
    return ""


def _long(work: Work, value: str, written: str) -> str:
    context = whole(work.given("max-model-len"))
    if value not in ("1", "true", "True"):
        _tell(work, "same", written, "", "off")
    elif context is not None and context <= 4096 and "--speculative-algorithm" not in work.flags:
        _tell(work, "same", written, "", f"no model is shorter than the {context} tokens asked for: nothing to allow")
    else:
        work.settings["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
        _tell(work, "renamed", written, "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1")
        return "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
    return ""


def _attention(work: Work, value: str, written: str) -> str:
    known = ATTENTION.get(value.upper())
    if known is None:
        _tell(work, "none", written, "", f"SGLang has no {value}; it chooses a backend for the card itself", cost=4)
        return ""
    return _flag(work, written, "--attention-backend", known)


def _level(work: Work, value: str, written: str) -> str:
    return _flag(work, written, "--log-level", value.lower())


def _switch(flag: str, why: str) -> Callable[[Work, str, str], str]:
    def turn(work: Work, value: str, written: str) -> str:
        if value in ("1", "true", "True"):
            return _flag(work, written, flag)
        _tell(work, "same", written, "", why)
        return ""

    return turn


def _sampler(work: Work, value: str, written: str) -> str:
    return _flag(work, written, "--sampling-backend", "flashinfer" if value in ("1", "true", "True") else "pytorch")


def _exchange(work: Work, value: str, written: str) -> str:
    target = MOE_A2A.get(value)
    if target is None:
        _tell(work, "none", written, "", f"SGLang has no {value}", cost=4)
        return ""
    return _flag(work, written, "--moe-a2a-backend", target)


_SPECIAL = {
    "VLLM_ALL2ALL_BACKEND": _exchange,
    "VLLM_API_KEY": _api_key,
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": _long,
    "VLLM_ATTENTION_BACKEND": _attention,
    "VLLM_LOGGING_LEVEL": _level,
    "VLLM_BATCH_INVARIANT": _switch("--enable-deterministic-inference", "off in SGLang too"),
    "VLLM_SLEEP_WHEN_IDLE": _switch("--sleep-on-idle", "off in SGLang too"),
    "VLLM_USE_FLASHINFER_SAMPLER": _sampler,
}
