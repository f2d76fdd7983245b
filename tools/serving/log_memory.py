"""Signs of memory that does not suffice: GPU memory, KV cache, host memory, shared memory.

The same words ask for opposite remedies: a KV cache that does not fit wants a HIGHER memory fraction, an allocation
that fails at run time a LOWER one. So each remedy says which way, and carries the numbers of the line.

Sources: messages in vLLM 0.2.7, 0.6.3, 0.10.0, 0.23.0 and SGLang 0.2.15 to 0.5.14; torch's allocator; the kernel.
"""

from __future__ import annotations

import math
import re

from tools.serving.log_signs import Facts, Role, cause, sign

KV = "kv cache too small"
HELD = "gpu memory held by others"
OOM = "cuda out of memory"
KILLED = "killed by OS OOM killer"
_GIB = {"TiB": 1024.0, "GiB": 1.0, "GB": 1.0, "MiB": 1 / 1024, "MB": 1 / 1024, "KiB": 1 / 1024**2, "bytes": 1 / 1024**3}


def _free_memory(found: re.Match[str], facts: Facts) -> str:
    free, total, need = float(found["free"]), float(found["total"]), float(found["need"])
    fits = math.floor(free / total * 100) / 100 if total else 0
    seen = f"{free:g} of {total:g} GiB are free, {need:g} GiB are wanted"
    if _gap(found) == "leftovers":
        return (
            f"{seen}: almost all is held, as after a server that died without letting go. Find it (`nvidia-smi`, "
            "`fuser -v /dev/nvidia*`), end it, and start again with the same settings"
        )
    if _gap(found) == "a little short":
        return (
            f"{seen}: {need - free:.2f} GiB short, as much as a desktop or the driver takes. LOWER "
            f"--gpu-memory-utilization from {found['share']} to {fits:.2f}"
        )
    return (
        f"{seen}, and {total - free:.2f} GiB are held by somebody else: look for other or zombie processes first "
        f"(`nvidia-smi`); only if they must stay LOWER --gpu-memory-utilization to {fits:.2f}"
    )


def _gap(found: re.Match[str]) -> str | None:
    free, total, need = float(found["free"]), float(found["total"]), float(found["need"])
    if need - free <= 0.02 * total:
        return "a little short"
    return "leftovers" if free < 0.1 * total else None


def _held_in(found: re.Match[str], facts: Facts) -> str | None:
    return _gap(found)


def _gib(amount: str | None, unit: str | None) -> float | None:
    return float(amount) * _GIB[unit] if amount and unit in _GIB else None


def _oom_remedy(found: re.Match[str], facts: Facts) -> str:
    line = found.string
    asked = re.search(r"[Tt]ried to allocate (\d{1,9}\.?\d*) (\w+)", line)
    total = re.search(r"total capacity of (\d{1,9}\.?\d*) (\w+)|; (\d{1,9}\.?\d*) (\w+) total capacity", line)
    free = re.search(r"of which (\d{1,9}\.?\d*) (\w+) is free|; (\d{1,9}\.?\d*) (\w+) free", line)
    seen = f"{asked[1]} {asked[2]} more were asked for" if asked else "an allocation failed"
    if free and total:
        seen += (
            f", {free[1] or free[3]} {free[2] or free[4]} of {total[1] or total[3]} {total[2] or total[4]} were free"
        )
    if others := _others(line):
        return (
            f"{seen}; other processes hold {others:.2f} GiB: end them (`nvidia-smi`), then start with the same settings"
        )
    fraction = {"sglang": "--mem-fraction-static", "vllm": "--gpu-memory-utilization"}.get(
        facts.values.get("engine", ""),
        "the memory fraction (vLLM --gpu-memory-utilization, SGLang --mem-fraction-static)",
    )
    if facts.phase == "at start":
        return (
            f"{seen} while loading: the weights or the first forward pass do not fit. Use more GPUs (a larger tensor "
            "parallel size), a quantised or smaller model, or a smaller prefill batch (vLLM --max-num-batched-tokens, "
            "SGLang --chunked-prefill-size); a fraction does not help against weights"
        )
    if facts.phase == "in graph capture":
        return (
            f"{seen} while capturing CUDA graphs: LOWER {fraction} by 0.05, or capture fewer (vLLM --max-num-seqs, "
            "SGLang --cuda-graph-max-bs)"
        )
    return (
        f"{seen} while serving: LOWER {fraction} by 0.05, or the load (--max-num-seqs, --max-running-requests, "
        "--chunked-prefill-size)"
    )


def _others(line: str) -> float | None:
    """GiB that torch says other processes hold, if that is more than half the card.

    Torch lists every process; in a container it cannot tell itself among them, then its own share is taken off.
    """
    held = sum(_gib(m[1], m[2]) or 0 for m in re.finditer(r"Process \d+ has (\d{1,9}\.?\d*) (\w+) memory in use", line))
    if "this process has" not in line:
        own = re.search(
            r"allocated memory (\d{1,9}\.?\d*) (\w+) is allocated by PyTorch, and (\d{1,9}\.?\d*) (\w+) is reserved",
            line,
        )
        held -= sum(_gib(own[i], own[i + 1]) or 0 for i in (1, 3)) if own else 0
    total = re.search(r"total capacity of (\d{1,9}\.?\d*) (\w+)", line)
    size = _gib(total[1], total[2]) if total else None
    return held if size and held > size / 2 else None


def _oom_detail(found: re.Match[str], facts: Facts) -> str | None:
    return "memory held by others" if _others(found.string) else facts.phase


def _v1_remedy(found: re.Match[str], facts: Facts) -> str:
    line = found.string
    fits = re.search(r"estimated maximum model length is (\d+)", line)
    lower = f"LOWER --max-model-len from {found['length']}" + (f" to at most {fits[1]}" if fits else "")
    return (
        f"one request of {found['length']} tokens needs {found['need']} GiB of KV cache, {found['have']} GiB are "
        "there: "
        f"{lower}, or RAISE --gpu-memory-utilization"
    )


def _negative(found: re.Match[str], facts: Facts) -> str:
    used, left = facts.number("weights_gb"), facts.number("left_gb")
    seen = (
        f"the weights take {used:g} GB and leave {left:g} GB of the {used + left:.0f} GB that were free"
        if used is not None and left is not None
        else "the weights leave no room"
    )
    return (
        f"the KV cache would hold {found['tokens']} tokens: {seen}. Use more GPUs for each copy of the model (a larger "
        "--tp-size; each data-parallel rank holds a full copy), or a smaller or quantised model; --max-total-tokens "
        "does "
        "not help"
    )


def _fraction(found: re.Match[str], facts: Facts) -> str:
    now = found["now"] or facts.values.get("mem_fraction_static")
    given = f" (now {now})" if now else ""
    return (
        f"RAISE --mem-fraction-static{given}: the weights leave no room for the KV cache within it. That is the "
        "opposite "
        "of what helps against an out-of-memory at run time; if the higher value then runs out of memory no value "
        "works: "
        "cut --chunked-prefill-size and --cuda-graph-max-bs (a draft model's weights count too), use more GPUs or a "
        "smaller model"
    )


def _host_killed(found: re.Match[str], facts: Facts) -> str:
    return (
        "host memory ran out, not GPU memory: confirm with `dmesg -T | grep -i oom` (in a container `docker inspect`: "
        "OOMKilled, exit code 137); give it more memory or swap, or load with fewer threads. On unified memory (GB10, "
        "GH200, Jetson) the GPU's weights are host memory too"
    )


MEMORY = (
    cause(
        KV,
        "tokens that can be stored in KV cache",
        r"max seq len \((?P<length>\d+)\) is larger than the maximum number of tokens that can be stored in KV cache "
        r"\((?P<fits>\d+)\)",
        "{length} tokens were asked for and {fits} fit: RAISE --gpu-memory-utilization, or LOWER --max-model-len to at "
        "most {fits}",
    ),
    cause(
        KV,
        "larger than the available KV cache memory",
        r"max seq len \((?P<length>\d+)\).{0,8}?\(?(?P<need>\d{1,9}\.?\d*) GiB KV cache is needed.*KV cache memory "
        r"\((?P<have>\d{1,9}\.?\d*) GiB\)",
        _v1_remedy,
    ),
    cause(
        KV,
        ("No available memory for the cache blocks", "Cannot auto-fit max_model_len"),
        None,
        "after the weights nothing is left within the fraction: RAISE --gpu-memory-utilization, use more GPUs, or a "
        "smaller or quantised model; LOWER --max-num-batched-tokens and --max-num-seqs if the profiling run took much",
    ),
    cause(
        KV,
        ("Please try to increase --mem-fraction-static", "leave no GPU memory for the KV cache under"),
        r"(?:increase --mem-fraction-static|KV cache under)(?:.*?mem[_-]fraction[_-]static=(?P<now>\d{1,9}\.?\d*))?",
        _fraction,
        detail="mem-fraction-static",
    ),
    cause(KV, "larger than the profiled value", r"larger than the profiled value (?P<tokens>-\d+)", _negative),
    cause(
        KV,
        ("state cache is too small", "GPU memory for hybrid"),
        r"Hybrid \(mamba|hybrid \(mamba",
        "the linear-attention state takes the room: LOWER --max-running-requests, or RAISE --mem-fraction-static",
        detail="state cache",
    ),
    cause(
        KV,
        (
            "No space left for only one request",
            "runs out of memory. Please set a smaller number",
            "out of memory. Try to lower",
        ),
        None,
        "the KV cache filled up while serving: LOWER --max-running-requests or RAISE --mem-fraction-static; "
        "--schedule-conservativeness above 1 admits fewer requests at once",
        detail="at run time",
    ),
    cause(
        HELD,
        "less than desired GPU memory utilization",
        r"Free memory on device.{0,20}? \((?P<free>\d{1,9}\.?\d*)/(?P<total>\d{1,9}\.?\d*) GiB\) on startup is less "
        r"than desired GPU "
        r"memory utilization \((?P<share>\d{1,9}\.?\d*), (?P<need>\d{1,9}\.?\d*) GiB\)",
        _free_memory,
        detail=_held_in,
    ),
    cause(
        HELD,
        ("Error in memory profiling", "memory capacity is unbalanced"),
        None,
        "free GPU memory changed or differs between cards: another process came or went during the start. Look with "
        "`nvidia-smi`, start servers one after another, and give each its own cards",
    ),
    cause(
        OOM,
        ("out of memory", "OutOfMemoryError", "cudaErrorMemoryAllocation", "CUBLAS_STATUS_ALLOC_FAILED"),
        r"(?:CUDA|HIP)(?: error: | )out of memory|Cuda failure.*out of memory|OutOfMemoryError|"
        r"cudaErrorMemoryAllocation|"
        r"CUBLAS_STATUS_ALLOC_FAILED",
        _oom_remedy,
        detail=_oom_detail,
    ),
    cause(
        KILLED,
        ("OS OOM killer", "oom-kill:", "Killed process", "OOMKilled"),
        r"exit code: -9\)|\boom-kill:|Out of memory: Killed process|Memory cgroup out of memory|OOMKilled\"?[:=] "
        r"?\"?true|"
        r"Reason: +OOMKilled",
        _host_killed,
        any_level=True,
    ),
    cause(
        "host memory too small",
        (
            "Not enough host memory",
            "DefaultCPUAllocator",
            "std::bad_alloc",
            "Cannot allocate memory",
            "Too large swap space",
        ),
        None,
        "the host's memory does not suffice: LOWER --hicache-size, --swap-space or --cpu-offload-gb, or free host "
        "memory",
    ),
    cause(
        "shared memory too small",
        ("Bus error", "/dev/shm", "shared memory object", "out of shared memory"),
        r"[Bb]us error|(?:No space left|Error while creating shared memory|unable to (?:open|write|"
        r"mmap)).*(?:/dev/shm|shared "
        r"memory)|/dev/shm.*No space left|out of shared memory",
        "/dev/shm is too small (docker gives 64 MB): start the container with `--shm-size 32g` or `--ipc=host`, and "
        "remove what dead servers left there",
        any_level=True,
    ),
    sign(
        Role.SYMPTOM,
        KILLED,
        ("Killed", "exit code: -9", "exitcode: -9", "exited with code 137", "terminated with -9", "with exit code 137"),
        r"^\s*Killed\s*$|: +\d+ Killed  |\bKilled +(?:python|vllm|sglang|nohup)|exit ?code:? (?:-9|137)\b|code 137\b|"
        r"terminated with -9\b",
        _host_killed,
        detail="probable",
        any_level=True,
    ),
    sign(
        Role.FACT,
        "weights",
        "Load weight end",
        r"avail mem=(?P<left_gb>\d{1,9}\.?\d*) GB, mem usage=(?P<weights_gb>\d{1,9}\.?\d*) GB",
    ),
    sign(
        Role.FACT,
        "fraction",
        "mem_fraction_static=",
        r"mem_fraction_static=(?P<mem_fraction_static>\d{1,9}\.?\d*)",
    ),
)
