"""What only a host can tell a translation: the options of the SGLang that is installed there, files, models' configs.

table = await host_table(host)
found = await translate_for(host, "vllm serve /models/m --speculative-config ...")
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyio import to_thread

from state.errors import HostUnusable, JobError
from tools.base import ToolCall, tool
from tools.serving.flags.generate import MARK
from tools.serving.flags.report import Translation
from tools.serving.flags.table import Table, from_json
from tools.serving.flags.translate import translate as translate_text
from tools.serving.flags.work import Look
from tools.ssh import Host

DUMP = Path(__file__).with_name("dump.py")
IMPORT_S = 180.0
MAX_TABLE = 2 << 20
MAX_FILE = 1 << 20


async def host_table(host: Host, python: str | None = None) -> Table:
    """The options of the SGLang on a host, as its own parser tells them; importing it may take a minute.

    `python` is the interpreter that has it; by default the first one on the host that does. Raises `HostUnusable` when
    none has, `JobError` when SGLang cannot be imported there.
    """
    chosen = python or _with_sglang((await host.probe()).get("pythons", []))
    if chosen is None:
        raise HostUnusable(
            f"no Python on `{host.spec.name}` has SGLang",
            hint="name a release with `--sglang-version`, or install SGLang there first",
        )
    source = await to_thread.run_sync(DUMP.read_bytes)
    done = await host.run(f"{shlex.quote(chosen)} - sglang", stdin=source, timeout_s=IMPORT_S, max_output=MAX_TABLE)
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith(MARK):
            return from_json(json.loads(line.removeprefix(MARK)))
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    raise JobError(
        f"SGLang of `{chosen}` on `{host.spec.name}` does not tell its options: {said[-1] if said else 'no word'}",
        hint=f"run `{chosen} -m sglang.launch_server --help` there",
    )


def _with_sglang(pythons: list[Mapping[str, Any]]) -> str | None:
    for one in pythons:
        if (one.get("packages") or {}).get("sglang"):
            return str(one.get("path") or one.get("executable"))
    return None


async def translate_for(
    host: Host,
    text: str,
    *,
    table: Table | None = None,
    version: str | None = None,
    files: Mapping[str, str] | None = None,
) -> Translation:
    """Translate with what the host knows: configuration files and models that the command names are read there.

    `table` are the options of the SGLang on the host; without it those of `version`.
    """
    asked: dict[str, Any] = {}

    def by(look: Look) -> Translation:
        return translate_text(text, table=table, version=version, files=files, look=look)

    first = await to_thread.run_sync(by, _asking(asked))
    if not asked:
        return first
    for model in list(asked)[:4]:
        asked[model] = await _config(host, model)
    return await to_thread.run_sync(by, asked.get)


def _asking(asked: dict[str, Any]) -> Any:
    """Note which models were asked for; only folders can be looked at."""

    def look(model: str) -> None:
        if model.startswith("/"):
            asked.setdefault(model, None)

    return look


async def _config(host: Host, model: str) -> dict[str, Any] | None:
    done = await host.run(f"cat {shlex.quote(model + '/config.json')}", max_output=MAX_FILE)
    try:
        value = json.loads(done.stdout) if done.ok else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


@tool
async def translate(call: ToolCall) -> dict[str, Any]:
    """A vLLM command, script, unit or manifest (`text`) as SGLang's.

    With `host` by the options of the SGLang that is there (`python`: its interpreter), else by those of
    `sglang_version`. The result has the keys of `turnout translate --json`; `arguments` are SGLang's, ready for
    `extra` of a serve plan.
    """
    text, version = str(call.arg("text")), call.args.get("sglang_version")
    if not call.args.get("host"):
        found = await to_thread.run_sync(lambda: translate_text(text, version=version))
        return found.as_json()
    host = await call.host(str(call.arg("host")))
    table = None if version else await host_table(host, call.args.get("python"))
    return (await translate_for(host, text, table=table, version=version)).as_json()
