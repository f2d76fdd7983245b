"""What a host is: the remote half's raw answer (`tools/remote/probe.py`), with its GPU texts read.

`facts` is pure: raw answer in, JSON out. Which cards may be leased is `usable_gpus`; `None` when nobody can tell, which
is not the same as none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools import gpus


def facts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that is known of a host, as JSON; the keys of the raw answer, with `gpu` read into these:

    `gpus`, `gpu_processes` (lists of objects, memory in MiB), `usable_gpus` (indices, or `None`), `gpu_error`,
    `gpu_remedy`, `warnings` (sentences).
    """
    texts = raw.get("gpu", {})
    reading = gpus.read("\n".join(str(texts[part]) for part in ("query", "apps", "table") if texts.get(part)))
    problems = [str(texts["error"])] if texts.get("error") else list((texts.get("errors") or {}).values())
    known = reading.gpu_count is not None and not texts.get("error")
    return {
        **{key: value for key, value in raw.items() if key != "gpu"},
        "gpus": [gpu.as_json() for gpu in reading.gpus],
        "gpu_processes": [_process(process) for process in reading.processes],
        "usable_gpus": [key for key in reading.usable if isinstance(key, int)] if known else None,
        "gpu_error": "; ".join(problems) or reading.kind,
        "gpu_remedy": reading.remedy,
        "warnings": [*reading.notes, *(f"GPU {key}: broken, not leased" for key in reading.faulted)],
    }


def _process(process: gpus.GpuProcess) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "name": process.name,
        "used_mib": process.used_mib,
        "gpu": process.gpu_index if process.gpu_index is not None else process.gpu_uuid or process.gpu_bus_id,
        "zombie": process.zombie,
    }
