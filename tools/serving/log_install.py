"""Signs of an installation that does not fit: imports, driver, card, compilers, limits of the host.

Sources: messages in vLLM 0.2.7, 0.6.3, 0.10.0, 0.23.0 and SGLang 0.2.15 to 0.5.14; the dynamic loader; CUDA and torch;
flashinfer, triton and ninja.
"""

from __future__ import annotations

import re

from tools.serving.log_signs import Facts, cause, clue

IMPORT = "import error"
DRIVER = "driver / CUDA mismatch"
CAPABILITY = "unsupported compute capability"
COMPILE = "kernel compile failed"


def _abi(found: re.Match[str], facts: Facts) -> str:
    package = re.search(r"(sgl_kernel|flash_attn|vllm|flashinfer|torchvision|torchaudio|xformers)", found.string)
    return (
        f"{'`' + package[1] + '`' if package else 'an extension'} was built for another torch: install the pair that "
        "belongs "
        "together, with the engine's own pins (`pip install sglang==VERSION` or `vllm==VERSION` in a clean "
        "environment). "
        "Upgrading the one package, or another GPU's wheel, does not help"
    )


def _driver(found: re.Match[str], facts: Facts) -> str:
    if number := found.groupdict().get("cuda"):
        major, minor = int(number) // 1000, int(number) % 1000 // 10
        return (
            f"the driver supports CUDA up to {major}.{minor} ({number} is that number, not the driver's), this build "
            "wants "
            "more: a newer driver, or a torch and engine built for an older CUDA. nvidia-smi working proves nothing "
            "here"
        )
    return (
        "the driver is older than the CUDA this build was made for: a newer driver, or a build for an older CUDA. "
        "Error 804: "
        "forward-compatibility libraries on a consumer card; take /usr/local/cuda/compat out of LD_LIBRARY_PATH. "
        "Error 803: "
        "the container's libcuda is not the host driver's"
    )


MISSING = "the installation is not whole: install the engine again with its own pins, in a clean environment"

INSTALL = (
    cause(
        IMPORT, "undefined symbol", r"undefined symbol: ?(?P<symbol>\w+)?", _abi, detail="ABI mismatch", survivable=True
    ),
    cause(IMPORT, "Could not load any common_ops library", None, _abi, survivable=True),
    cause(
        IMPORT,
        ("cannot open shared object file", "GLIBC", "DLL load failed"),
        r"ImportError.*cannot open shared object|OSError: \S+: cannot open shared object|version `?GLIBC|DLL load "
        r"failed",
        "a system library is missing or older than the wheel wants: install it, or take the engine's own container "
        "image",
        detail="missing library",
        survivable=True,
    ),
    cause(
        IMPORT,
        ("ModuleNotFoundError", "ImportError", "No module named"),
        r"(?:ModuleNotFoundError|ImportError): +(?P<what>(?!.*undefined symbol)\S.*)|: No module named (?P<module>\S+)",
        lambda found, facts: f"`{(found['what'] or found['module'])[:200]}`: {MISSING}",
        survivable=True,
    ),
    clue(IMPORT, "Failed to import from vllm._C", None, MISSING, any_level=True),
    clue(IMPORT, "'_OpNamespace'", None, "the compiled extension did not load: " + MISSING),
    cause(
        DRIVER,
        (
            "driver on your system is too old",
            "driver version is insufficient",
            "unsupported toolchain",
            "Error 803",
            "Error 804",
            "unsatisfied condition: cuda",
        ),
        r"too old \(found version (?P<cuda>\d+)\)|insufficient|toolchain|Error 80[34]|unsatisfied condition",
        _driver,
    ),
    cause(
        "fabric manager not running",
        ("Error 802", "system not yet initialized"),
        None,
        "`systemctl start nvidia-fabricmanager` of exactly the driver's version (NVSwitch machines need it), then "
        "try again",
    ),
    cause(
        "no gpu visible",
        (
            "No CUDA GPUs are available",
            "Found no NVIDIA driver",
            "Failed to infer device type",
            "libcuda.so.1: cannot open",
            "not compiled with CUDA",
            "could not select device driver",
            "no CUDA-capable device",
        ),
        None,
        "torch sees no GPU: check `nvidia-smi`, `docker --gpus all`, CUDA_VISIBLE_DEVICES, and that torch is a CUDA "
        "build",
    ),
    cause(
        CAPABILITY,
        ("no kernel image is available",),
        None,
        "this build holds no code for this card: take a build for its compute capability (new cards want a newer CUDA)",
        detail="no kernel image",
    ),
    clue(
        CAPABILITY,
        "is not compatible with the current PyTorch",
        r"capability (?P<sm>sm_\d+\w?)",
        "torch holds no code for {sm}: take a build that does",
        any_level=True,
    ),
    cause(
        CAPABILITY,
        (
            "compute capability",
            "for the current GPU",
            "supports sm75",
            "fp8e4nv not supported",
            "Blackwell",
            "Ampere GPUs or newer",
            "_scaled_mm",
        ),
        r"Bfloat16 is only supported|not supported for the current GPU|only supports sm75|fp8e4nv not supported|"
        r"(?:only|not) support(?:ed|s)? .*(?:compute capability|Blackwell|Ampere)|requires? .*compute capability",
        "this card is too old for the number format or kernel asked for: --dtype half instead of bfloat16, another "
        "quantization or attention backend, or a newer card",
    ),
    cause(
        COMPILE,
        (
            "nvcc",
            "CUDA_HOME environment variable",
            "Ninja is required",
            "'ninja'",
            "'gcc'",
            "Failed to find C compiler",
            "Python.h: No such file",
            "Could not find CUDA",
        ),
        r"[Cc]ould not find (?:nvcc|CUDA)|nvcc: not found|directory: '\S*(?:nvcc|ninja|gcc)'|CUDA_HOME environment "
        r"variable is "
        r"not set|Ninja is required|Failed to find C compiler|Python\.h: No such file",
        "kernels are compiled at the start and a tool is missing: install ninja, a C++ compiler, Python's headers "
        "and the CUDA "
        "toolkit (nvcc, CUDA_HOME), or packages with ready-made kernels (flashinfer-jit-cache); vLLM: "
        "VLLM_USE_FLASHINFER_SAMPLER=0, SGLang: --attention-backend triton --sampling-backend pytorch",
        detail="missing tool",
    ),
    cause(
        COMPILE,
        (
            "ninja: build stopped",
            "Error building extension",
            "ptxas fatal",
            "nvcc fatal",
            "CompilationError",
            "InductorError",
            "BackendCompilerFailed",
            "out of resource: shared memory",
        ),
        None,
        "a kernel does not compile on this machine: match CUDA toolkit, torch and engine, clear the kernel cache "
        "(~/.cache/flashinfer, ~/.triton, ~/.cache/vllm), or go on without it (vLLM --enforce-eager, another "
        "attention backend)",
    ),
    cause(
        "permission denied",
        ("PermissionError", "Permission denied"),
        r"PermissionError: (?P<what>.+)|Permission denied",
        "check owner and mode of the file named there (model folder, HF_HOME, /dev/nvidia*), and which user runs the "
        "server",
        survivable=True,
    ),
    cause("too many open files", "Too many open files", None, "RAISE the limit: `ulimit -n 65535` before the start"),
    cause(
        "process limit",
        ("can't start new thread", "Resource temporarily unavailable"),
        None,
        "RAISE the number of processes: `ulimit -u`, the container's pids limit; LOWER OMP_NUM_THREADS",
    ),
)
