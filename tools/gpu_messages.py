"""Reads the sentences that nvidia-smi and the kernel print when something is wrong with the driver or a card.

Each has a meaning of its own: no driver, no card, no program, a card off the bus. How many cards there are is 0 only
where the sentence says so.

    message = next(iter(read_messages(lines)), None)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tools.gpu_csv import Line
from tools.gpu_model import Gpu

OFF_BUS = "gpu fell off the bus"
RESET = "gpu requires reset"
FAULT = "gpu fault"

REMEDIES = {
    OFF_BUS: "take the card out of use, read `dmesg | grep -i xid`, then reboot or power-cycle the host; if it comes "
    "back, reseat or replace the card. Until then give jobs the other cards through CUDA_VISIBLE_DEVICES",
    RESET: "do not schedule on it though it may read 0 MiB used. Stop what holds it (`fuser -v /dev/nvidia*`), then "
    "`nvidia-smi --gpu-reset -i INDEX`; where that says Not Supported, power the host off and on",
    FAULT: "do not schedule on it. Read `nvidia-smi -q -i INDEX` and `dmesg | grep -i xid`, then reset the card or "
    "reboot the host",
}


@dataclass(frozen=True, slots=True)
class Message:
    """One sentence found. `gpu_count` as in `Reading`; `gpu` is the broken card where the sentence names one."""

    line: int
    text: str
    kind: str
    remedy: str
    gpu_count: int | None = None
    gpu: Gpu | None = None
    what: str = "nvidia-smi message"


@dataclass(frozen=True, slots=True)
class _Sentence:
    pattern: re.Pattern[str]
    kind: str
    remedy: str
    gpu_count: int | None = None


def _say(pattern: str, kind: str, remedy: str, gpu_count: int | None = None) -> _Sentence:
    return _Sentence(re.compile(pattern, re.IGNORECASE), kind, remedy, gpu_count)


_BUS = r"(?P<bus>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?)"
_NOT_FOUND = (
    r"nvidia-smi: (?:command )?not found|(?:command not found|unknown command):? ['\"]?nvidia-smi|"
    r"['\"]?nvidia-smi(?:\.exe)?['\"]? (?:is not recognized|not found)|"
    r"nvidia-smi['\"]?: (?:executable file not found|no such file)|"
    r"no such file or directory: ['\"]?nvidia-smi"
)
_SENTENCES = (
    _say(
        r"unable to determine the device handle for gpu ?(?P<index>\d{1,4}(?![0-9a-f]*:[0-9a-f]+:))?:? ?"
        rf"{_BUS}?:? ?(?P<why>.*)",
        OFF_BUS,
        REMEDIES[OFF_BUS],
    ),
    _say(
        r"couldn't communicate with the nvidia driver|failed to initialize nvml: driver not loaded|"
        r"module nvidia not found",
        "driver not loaded",
        "`lsmod | grep nvidia`; `sudo modprobe nvidia` and read `dmesg`. After a kernel update the module must be "
        "built again (dkms) and the host rebooted",
        0,
    ),
    _say(
        r"driver/library version mismatch",
        "driver / library mismatch",
        "the driver was updated under a loaded module: drain the host, then reboot it or unload and load the nvidia "
        "modules. Running jobs may still go on; new ones cannot start",
    ),
    _say(
        r"failed to initialize nvml: unknown error",
        "container lost the gpus",
        "inside a container: a `systemctl daemon-reload` on the host took the devices away. Restart the container; "
        "pass the /dev/nvidia* devices explicitly to keep them",
    ),
    _say(
        r"failed to initialize nvml: insufficient permissions|gpu access blocked by the operating system",
        "permission denied",
        "check who may read /dev/nvidia* (groups `video` and `render`); under WSL update Windows' driver and WSL",
    ),
    _say(
        r"couldn't find libnvidia-ml\.so|failed to initialize nvml: (?:not found|function not found)",
        "driver library missing",
        "install the driver's libraries of the same version as its module; in a container start it with `--gpus all`",
    ),
    _say(
        r"no devices (?:were )?found|no nvidia gpus? (?:were )?(?:found|detected)",
        "no gpu visible",
        "the driver runs but sees no card: `lspci | grep -i nvidia`, `dmesg | grep -i nvrm`; in a virtual machine or a "
        "container check that a GPU is passed through",
        0,
    ),
    _say(
        _NOT_FOUND,
        "nvidia-smi not found",
        "not installed, or not in the PATH of a non-interactive shell: try /usr/bin/nvidia-smi and "
        "/usr/lib/wsl/lib/nvidia-smi before concluding that there is no GPU",
    ),
    _say(
        r"field \"?(?P<field>[\w.]+)\"? is not a valid field to query",
        "unknown query field",
        "this driver does not know the column: leave it out and ask again (`nvidia-smi --help-query-gpu`)",
    ),
    _say(r"gpu (?:has )?fallen off the bus|gpu is lost", OFF_BUS, REMEDIES[OFF_BUS]),
)
# One look for all of them: most lines hold none.
_ABOUT = re.compile(
    r"device handle|nvml|nvidia driver|devices|nvidia gpu|nvidia-smi|mismatch|valid field|off the bus|is lost|"
    r"gpu access|module nvidia|libnvidia",
    re.IGNORECASE,
)
# Xid numbers after which the card itself cannot be trusted (NVIDIA's Xid catalogue); 13, 31, 43 and 45 are the
# program's own fault, 94 was contained.
_FATAL_XIDS = {48, 62, 64, 74, 79, 95, 119, 120, 140, 143, 154}
_XID = re.compile(rf"NVRM: Xid \(PCI:{_BUS}\): (?P<xid>\d{{1,4}})", re.IGNORECASE)


def read_messages(lines: Iterable[Line]) -> list[Message]:
    """Every such sentence among numbered lines, in their order."""
    return [message for at, line in lines if (message := _message(at, line))]


def _message(at: int, line: str) -> Message | None:
    if "Xid" in line and (xid := _XID.search(line)):
        return _xid(at, line, xid)
    # Box rows and CSV say "GPU is lost" of a single cell: their readers know which card that is.
    if line.lstrip()[:1] in ("|", "[") or not _ABOUT.search(line):
        return None
    for sentence in _SENTENCES:
        found = sentence.pattern.search(line)
        if found and "," not in line[: found.start()]:
            gpu = _handle(found) if "why" in found.groupdict() else None
            return Message(at, line.strip(), sentence.kind, sentence.remedy, sentence.gpu_count, gpu)
    return None


def _handle(found: re.Match[str]) -> Gpu:
    index = int(found["index"]) if found["index"] else None
    why = found["why"].strip() or "no device handle"
    return Gpu(index=index, bus_id=_full_bus_id(found["bus"]), faulted=True, fault=why)


def _xid(at: int, line: str, found: re.Match[str]) -> Message | None:
    number = int(found["xid"])
    if number not in _FATAL_XIDS:
        return None
    kind = OFF_BUS if number == 79 else f"{FAULT} (Xid {number})"
    gpu = Gpu(bus_id=_full_bus_id(found["bus"]), faulted=True, fault=f"Xid {number}")
    return Message(at, line.strip(), kind, REMEDIES[OFF_BUS if number == 79 else FAULT], None, gpu, "kernel log")


def _full_bus_id(bus: str | None) -> str | None:
    """The kernel leaves out the function and half the domain: `0000:5d:00` is nvidia-smi's `00000000:5D:00.0`."""
    if not bus:
        return None
    *domain, slot, device = bus.upper().split(":")
    return f"{(domain[0] if domain else '0').zfill(8)}:{slot}:{device if '.' in device else device + '.0'}"
