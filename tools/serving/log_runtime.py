"""Signs of servers that die or hang at work: watchdogs, NCCL, CUDA faults, and processes that ended.

Sources: messages in vLLM 0.2.7, 0.6.3, 0.10.0, 0.23.0 and SGLang 0.2.15 to 0.5.14; NCCL and torch.distributed; CUDA.
The signs of role SYMPTOM say that a process died; what killed it stands above them in the log.
"""

from __future__ import annotations

import re

from tools.serving.log_signs import Facts, Role, cause, sign


def _watchdog(found: re.Match[str], facts: Facts) -> str:
    compiling = "jit" in facts.values
    seconds = found["seconds"] or "the set number of"
    first = (
        "just before, kernels were being compiled: a slow compile is likely, so RAISE --watchdog-timeout"
        if compiling
        else ("RAISE --watchdog-timeout if something compiles (--enable-torch-compile, a first start)")
    )
    return (
        f"no forward pass ended within {seconds} s: {first}; else a deadlock, often NCCL. Install py-spy to see "
        "where it "
        "stands (its absence is not the cause)"
    )


RUNTIME = (
    cause(
        "watchdog timeout",
        "atchdog timeout (",
        r"atchdog timeout \((?!.*soft=True)(?:self\.watchdog_timeout=(?P<seconds>\d{1,9}\.?\d*))?",
        _watchdog,
    ),
    sign(Role.FACT, "jit", ("Loading JIT ops", "JIT", "torch.compile"), r"(?P<jit>JIT|torch\.compile)"),
    cause(
        "nccl timeout",
        ("collective operation timeout", "Heartbeat monitor timed out", "watchdog got stuck"),
        None,
        "one rank waits for another that is slow, hung or dead: find the rank that logged last or an error before "
        "this; "
        "NCCL_DEBUG=INFO shows the links; try NCCL_P2P_DISABLE=1 or --disable-custom-all-reduce",
    ),
    cause(
        "cuda illegal memory access",
        ("illegal memory access", "misaligned address", "unspecified launch failure", "CUBLAS_STATUS_EXECUTION_FAILED"),
        None,
        "a kernel fault, of a bug or of the card: look at `dmesg | grep -i xid`; try another attention backend, no "
        "CUDA graphs "
        "(vLLM --enforce-eager, SGLang --disable-cuda-graph), another version; CUDA_LAUNCH_BLOCKING=1 names the kernel",
    ),
    cause(
        "cuda device assert",
        "device-side assert triggered",
        None,
        "an index was out of range on the GPU, often a token id beyond the vocabulary or a wrong draft map; "
        "CUDA_LAUNCH_BLOCKING=1 names the kernel",
    ),
    cause(
        "gpu fault",
        ("uncorrectable ECC", "fallen off the bus", "GPU is lost", "requires reset", "NVRM: Xid"),
        r"uncorrectable ECC|off the bus|is lost|requires reset|Xid \(PCI:\S+\): (?:48|6[24]|74|79|95|119|120|140|143|"
        r"154)\b",
        "the card itself: take it out of use, read `nvidia-smi -q` and `dmesg | grep -i xid`, reset it or reboot the "
        "host",
        any_level=True,
    ),
    cause(
        "gpu held exclusively",
        "busy or unavailable",
        r"CUDA-capable device\(s\) is/are busy",
        "another process holds the card, or it is in exclusive mode: `nvidia-smi`, then `nvidia-smi -c 0`",
    ),
    cause(
        "custom all-reduce failed",
        ("custom_all_reduce.cuh", "custom_all_reduce.cu"),
        None,
        "the cards cannot reach each other's memory the way this kernel wants: --disable-custom-all-reduce (both "
        "engines)",
    ),
    cause(
        "nccl error",
        (
            "NCCL error",
            "ncclSystemError",
            "ncclInternalError",
            "ncclUnhandledCudaError",
            "ncclRemoteError",
            "ncclInvalidUsage",
        ),
        r"NCCL [Ee]rror|nccl\w+Error|ncclInvalidUsage",
        "read the first `NCCL WARN` above it (NCCL_DEBUG=INFO): peers unreachable, the wrong interface "
        "(NCCL_SOCKET_IFNAME), "
        "too little shared memory (--shm-size), two ranks on one GPU, or different NCCL versions",
    ),
    cause(
        "distributed init failed",
        ("client socket has timed out", "DistNetworkError", "Gloo connectFullMesh failed", "Connection refused while"),
        None,
        "the ranks do not find each other: the same address and port everywhere (--dist-init-addr), open in the "
        "firewall, the "
        "right interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, VLLM_HOST_IP)",
    ),
    cause(
        "engine timeout",
        ("Engine iteration timed out", "RPC call to", "Timed out waiting for", "didn't reply within"),
        r"Engine iteration timed out|RPC call to \w+ timed out|Timed out waiting for (?:new )?engine core|didn't "
        r"reply within",
        "a step or the start took longer than its limit: RAISE VLLM_ENGINE_READY_TIMEOUT_S (start) or "
        "VLLM_ENGINE_ITERATION_TIMEOUT_S (step) if it is only slow; else a rank hangs: look for NCCL above",
    ),
    cause(
        "nan in logits", "NaN in the logits", None, "the number format overflows: --dtype bfloat16, or another backend"
    ),
    cause(
        "kv pool leak",
        "memory leak detected",
        None,
        "a bug of the engine: update it; --disable-radix-cache works round it",
        survivable=True,
    ),
    cause(
        "cuda error",
        ("CUDA error", "CUDA driver error", "Cuda error"),
        r"(?:CUDA|Cuda)(?: driver)? error[: ]+(?P<what>.{1,200})",
        "`{what}`: look at `dmesg | grep -i xid` and `nvidia-smi`; CUDA_LAUNCH_BLOCKING=1 names the kernel",
    ),
    sign(
        Role.TROUBLE,
        "health check failed",
        ("get a response from detokenizer", "broadcast block found in"),
        None,
        "the port answers but nothing is generated: the scheduler hangs or is overloaded. Send one short request; if "
        "that hangs "
        "too, look for NCCL or a watchdog above and restart",
        any_level=True,
    ),
    sign(
        Role.SYMPTOM,
        "warm-up request failed",
        "Initialization failed. warmup error",
        None,
        "the server came up but its own first request failed: the reason stands below it",
    ),
    sign(
        Role.SYMPTOM,
        "scheduler died",
        ("Scheduler hit an exception", "scheduler died during", "scheduler is dead", "Received sigquit from a child"),
        None,
        "a scheduler process ended without saying why here: read its last lines above, and `dmesg -T` for the OOM "
        "killer",
    ),
    sign(
        Role.SYMPTOM,
        "engine core died",
        (
            "Engine core initialization failed",
            "EngineCore failed to start",
            "EngineCore encountered a fatal",
            "EngineDeadError",
            "died unexpectedly",
            "Engine process failed to start",
            "WorkerProc initialization failed",
            "died, exit code",
        ),
        None,
        "the first error above it names the cause; if there is none, read the engine core's own lines and `dmesg -T`",
    ),
    sign(
        Role.SYMPTOM,
        "crashed in native code",
        ("Segmentation fault", "core dumped", "SIGSEGV", "Fatal Python error", "terminate called after"),
        None,
        "read the stack below it; match driver, torch and kernels, and try without CUDA graphs",
        any_level=True,
    ),
)
