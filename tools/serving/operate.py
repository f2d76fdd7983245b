"""Tools for a server that is there: find it, ask it a token, read its figures, stop it with proof, say why it is down.

    - {id: find, tool: engine_find, args: {host: gpu1, engine: vllm}}
    - {id: well, tool: engine_health, args: {host: gpu1, url: "{{ todos.find.url }}"}}
    - {id: end, tool: engine_stop, args: {host: gpu1, engine: vllm, pid: "{{ todos.find.pid }}", drain_s: 60}}

What is done on the host is in `onhost`, which is sent there; how engines differ is in `engines`. Each may run twice:
`engine_stop` of a server that is gone says so and proves it again.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyio import to_thread

from state.errors import ToolError
from tools.base import ToolCall, tool
from tools.diagnose import diagnose
from tools.probe import facts
from tools.serving.engines import engine
from tools.ssh import Host

ONHOST = Path(__file__).with_name("onhost")
TAIL_BYTES = 256 * 1024
_SECRET = re.compile(r"^(--?[\w-]*(?:api[-_]key|token|password|secret)[\w-]*)(=.*)?$", re.IGNORECASE)


@tool
async def engine_find(call: ToolCall) -> dict[str, Any]:
    """The server of `engine` that runs on `host`: `pid`, `argv` (secrets out), `url`, `port`, `form`, `unit`, `env`.

    `port` is the one that users see; `inner_port` that of its command, which differs in a container.

    `port`, `unit` or `container` say which, where there is more than one. Raises ToolError for none, or several.
    """
    host, name = await call.host(str(call.arg("host"))), str(call.arg("engine", "vllm"))
    given = {key: call.args[key] for key in ("unit", "container", "port") if call.args.get(key)}
    if not given:
        given = {"pid": await _only_one(host, name)}
    try:
        found = await on_host(host, "describe", {**given, "pattern": engine(name).pattern})
    except ToolError as error:
        if "vllm_to_sglang.router" in error.message:
            raise ToolError(
                f"port {given.get('port')} of `{host.spec.name}` is passed on by a router already: the move was done",
                hint=f"the way back: `sh ~/.turnout/migrations/{given.get('port')}/back` there",
            ) from error
        raise
    argv = [str(word) for word in found["argv"]]
    inner = _port(argv, engine(name).default_port)
    port = int(given.get("port") or _published(found.pop("published", ()), inner))
    shown = redacted(argv)
    return {
        **found, "argv": shown, "command": shlex.join(shown), "engine": name, "port": port, "inner_port": inner,
        "url": f"http://{_address(argv)}:{port}", "model": _model(argv), "speculates": _speculates(argv),
        "tensor_parallel": int(value_of(argv, "--tensor-parallel-size", "--tp-size", "-tp") or 1),
    }  # fmt: skip


@tool
async def engine_stop(call: ToolCall) -> dict[str, Any]:
    """Drain and stop the server that `pid` (with `ticks`), `unit`, `container` or `port` names; the proof of its end.

    `drain_s`, `grace_s` and `settle_s` are seconds. With `when: false` nothing is done. A second call finds it gone.
    """
    if not call.args.get("when", True):
        return {"was_running": None, "note": "not asked for"}
    host, chosen = await call.host(str(call.arg("host"))), engine(str(call.arg("engine", "vllm")))
    given = {key: call.args[key] for key in ("pid", "ticks", "unit", "container", "port") if call.args.get(key)}
    drain_s, grace_s = float(call.args.get("drain_s") or 0), float(call.args.get("grace_s") or chosen.grace_s)
    asked = {
        **given, "url": call.args.get("url"), "busy": list(chosen.busy), "drain_s": drain_s, "grace_s": grace_s,
        "settle_s": call.args.get("settle_s", 3), "unless_gone": True,
    }  # fmt: skip
    return await on_host(host, "stop", asked, limit_s=drain_s + 2 * grace_s + 120)


@tool
async def engine_health(call: ToolCall) -> dict[str, Any]:
    """Whether the server at `url` generates a token. Raises ToolError with what it said instead."""
    host, url = await call.host(str(call.arg("host"))), str(call.arg("url"))
    found = await on_host(host, "token", {"url": url, "limit_s": call.args.get("limit_s") or 60}, limit_s=120)
    if not found["healthy"]:
        raise ToolError(
            f"the server at `{url}` does not generate: {found.get('error', 'an empty answer')}",
            hint="another server may hold the port; `turnout hosts probe` shows which engines run",
        )
    return found


@tool
async def engine_metrics(call: ToolCall) -> dict[str, Any]:
    """The metrics `names` (by default those that count requests of `engine`) of the server at `url`."""
    host, chosen = await call.host(str(call.arg("host"))), engine(str(call.arg("engine", "sglang")))
    names = list(call.args.get("names") or chosen.busy)
    return await on_host(host, "figures", {"url": call.arg("url"), "path": chosen.metrics_path, "names": names})


@tool
async def gpus_free(call: ToolCall) -> dict[str, Any]:
    """Whether the host's GPUs are free, waiting up to `wait_s`: `free` is `None` where that cannot be told."""
    host = await call.host(str(call.arg("host")))
    wait = float(call.args.get("wait_s") or 0)
    return await on_host(host, "free", {**call.args, "wait_s": wait}, limit_s=wait + 60)


@tool
async def engine_kit(call: ToolCall) -> dict[str, Any]:
    """Put what works on hosts onto `host`; `folder` is where: `PYTHONPATH=folder python3 -m onhost ...`."""
    return {"folder": await kit(await call.host(str(call.arg("host"))))}


@tool
async def engine_why(call: ToolCall) -> dict[str, Any]:
    """What the log of a server's `job` (an id, or a todo of this session) says: `state`, `kind`, `remedy`, evidence."""
    host = await call.host(str(call.arg("host")))
    job = await newest_job(host, call, str(call.arg("job")))
    piece = await host.read_log(job, -TAIL_BYTES, TAIL_BYTES)
    return {**diagnose(piece.data, source=job).as_json(), "job": job}


async def newest_job(host: Host, call: ToolCall, name: str) -> str:
    """A job's id as it is, or the newest job of the todo `name` of this session. Raises ToolError for none."""
    known = {state.id: state for state in await host.list_jobs()}
    if name in known:
        return name
    start = f"{call.session}.{re.sub(r'[^A-Za-z0-9._-]', '_', name)}"
    mine = [id for id in known if re.fullmatch(re.escape(start) + r"(?:-[0-9a-f]{8})?\.\d+", id)]
    if not mine:
        raise ToolError(f"no job of `{name}` lies on `{host.spec.name}`", hint="`turnout jobs` lists them")
    return max(mine, key=lambda id: int(id.rpartition(".")[2]))


async def on_host(host: Host, action: str, given: Mapping[str, Any], *, limit_s: float = 60.0) -> dict[str, Any]:
    """Do an action of `onhost` on a host. Raises ToolError with what it says."""
    folder = await kit(host)
    python = shlex.quote((await host.hello()).executable)
    command = f"PYTHONPATH={shlex.quote(folder)} {python} -m onhost {action} {shlex.quote(json.dumps(given))}"
    done = await host.run(command, timeout_s=limit_s)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-400:]
        why = "did not end in time" if done.timed_out else f"failed: {said}"
        raise ToolError(
            f"`{action}` on `{host.spec.name}` {why}", hint="look at the host: `turnout hosts probe`"
        ) from None
    if "hint" in answer and "error" in answer:
        raise ToolError(f"on `{host.spec.name}`: {answer['error']}. {answer['hint']}".rstrip(". "))
    return answer


async def kit(host: Host) -> str:
    """The folder on the host that holds `onhost`, sent if missing."""
    folder = Path(await to_thread.run_sync(tempfile.mkdtemp))
    try:
        await to_thread.run_sync(_copy, folder)
        return await host.put_tree(folder)
    finally:
        await to_thread.run_sync(shutil.rmtree, folder)


def _copy(folder: Path) -> None:
    shutil.copytree(ONHOST, folder / "onhost", ignore=shutil.ignore_patterns("__pycache__"))


async def _only_one(host: Host, name: str) -> int:
    running = [one for one in facts(await host.probe())["engines_running"] if one["engine"] == name]
    # Whose ports another user may not see is a server all the same.
    running = [one for one in running if one["ports"]] or running
    mains = [one for one in running if not any(other["pid"] == one["parent"] for other in running)]
    if len(mains) == 1:
        return int(mains[0]["pid"])
    ports = ", ".join(str(port) for one in mains for port in one["ports"])
    raise ToolError(
        f"{len(mains)} servers of {name} listen on `{host.spec.name}`" + (f": ports {ports}" if mains else ""),
        hint="say which: `port`, `unit` or `container`" if mains else "is it the right host, and has it started?",
    )


def redacted(argv: list[str]) -> list[str]:
    """A command line without its secrets."""
    found: list[str] = []
    for word in argv:
        before = _SECRET.match(found[-1]) if found else None
        secret = _SECRET.match(word)
        hidden = before is not None and before[2] is None
        found.append("[redacted]" if hidden else f"{secret[1]}=[redacted]" if secret and secret[2] else word)
    return found


def value_of(argv: list[str], *flags: str) -> str | None:
    """The value of a flag, written `--flag value` or `--flag=value`; underscores count as dashes."""
    for place, word in enumerate(argv):
        name, is_joined, value = word.partition("=")
        if name.startswith("-") and name.replace("_", "-") in flags:
            return value if is_joined else argv[place + 1] if place + 1 < len(argv) else None
    return None


def _address(argv: list[str]) -> str:
    """Where it is asked from on its host: the loopback, unless it listens on one address only."""
    given = value_of(argv, "--host") or ""
    return "127.0.0.1" if given in ("", "0.0.0.0", "::", "localhost") else f"[{given}]" if ":" in given else given


def _published(lines: Sequence[str], inner: int) -> int:
    """The host's port of a container's: `docker port` writes `8000/tcp -> 0.0.0.0:80`."""
    found = [line.rpartition(":")[2] for line in lines if line.startswith(f"{inner}/tcp")]
    return int(found[0]) if found else inner


def _port(argv: list[str], default: int) -> int:
    given = value_of(argv, "--port")
    return int(given) if given and given.isdigit() else default


def _model(argv: list[str]) -> str | None:
    named = value_of(argv, "--model", "--model-path")
    if named or "serve" not in argv:
        return named
    after = argv[argv.index("serve") + 1 :]
    return after[0] if after and not after[0].startswith("-") else None


def _speculates(argv: list[str]) -> bool:
    return any(word.replace("_", "-").startswith(("--speculative", "-sc", "--spec-")) for word in argv)
